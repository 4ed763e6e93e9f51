"""Claims with inputs, families and bounds of their own, from a budget file to every report."""

from __future__ import annotations

import base64
import gzip
import re
from pathlib import Path

import numpy as np
import pytest

# Imported here, because pytester forgets what runs import anew, and torch can be imported once.
import torch  # noqa: F401
import torchvision  # noqa: F401

import pytest_modelbudget.pytest_plugin.items  # noqa: F401
from pytest_modelbudget.equivalence import user_inputs
from tests.builders.torch_project import TorchProject

pytestmark = pytest.mark.needs_torch

ROWS = np.random.default_rng(0).standard_normal((8, 100)).astype(np.float32)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> TorchProject:
    monkeypatch.setenv("COLUMNS", "400")
    pytester.syspathinsert()
    return TorchProject(pytester)


def folder(project: TorchProject) -> Path:
    return project.pytester.path / "budgets"


def test_v4_the_bound_that_decided_is_in_every_report(project: TorchProject) -> None:
    """Terminal, JSON, Markdown and page show the figure, the bound and the family."""
    result = project.run(
        "      small: {quantize: {}, equivalence: {kind: lossy, sqnr: 30, families: [uniform, zeros]}}\n",
        "nets:net", "--model-budget-report=summary:s.md", "--model-budget-report=html:p.html",
    )  # fmt: skip
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["within  net::small::equivalence *SQNR [34]?.? dB *30 dB*", "*SQNR * dB, bound 30, family *"]
    )
    claim = project.transform["equivalence"]
    decided = claim["decided"]
    assert decided.startswith("SQNR ")
    assert ", bound 30, family " in decided
    assert decided in [output["decided"] for output in claim["outputs"]]
    assert [output["family"] for output in claim["outputs"]] == ["uniform", "zeros"]
    assert (project.pytester.path / "s.md").read_text().count("SQNR ") == 1
    assert decided in (project.pytester.path / "s.md").read_text()
    packed = re.findall(r"<script type=[^>]*>([^<]*)</script>", (project.pytester.path / "p.html").read_text())
    assert any(decided in gzip.decompress(base64.b64decode(view)).decode() for view in packed)


def test_v4_a_broken_bound_is_what_is_measured(project: TorchProject) -> None:
    """Not the SQNR, which nobody has asked for."""
    result = project.run("      small: {quantize: {weights: {bits: 4}}, equivalence: {kind: custom, max_abs: 1e-6}}\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["over    net::small::equivalence *max_abs * 1e-06*"])
    (check,) = project.transform["checks"]
    assert check["measured"].startswith("max_abs ")
    assert check["allowed"] == "1e-06"


def test_e4_given_inputs_stand_beside_or_in_place_of_drawn_ones(project: TorchProject) -> None:
    """families says which; a file lies beside its budget."""
    np.savez(folder(project) / "rows.npz", **{"0": ROWS})
    beside = "{kind: lossy, sqnr: 20, inputs: rows.npz, seeds: [0]}"
    in_place = "{kind: lossy, sqnr: 20, inputs: rows.npz, families: [given]}"
    project.run(
        f"      a: {{quantize: {{}}, equivalence: {beside}}}\n      b: {{quantize: {{}}, equivalence: {in_place}}}\n"
    ).assert_outcomes(passed=2)
    families = [[each["family"] for each in found["equivalence"]["outputs"]] for found in project.transforms]
    assert families == [["normal", "uniform", "large", "zeros", "given"], ["given"]]


@pytest.mark.parametrize(
    ("write", "says"),
    [
        pytest.param(lambda path: None, "rows.npz does not exist: a path starts at the budget's folder", id="missing"),
        pytest.param(lambda path: path.write_bytes(b"no"), "rows.npz raised BadZipFile", id="damaged"),
        pytest.param(lambda path: np.savez(path, x=ROWS), "has 'x', which is no input", id="name"),
        pytest.param(lambda path: np.savez(path, **{"0": ROWS[:3]}), "is 3x100, and the model takes 4x100", id="sizes"),
    ],
)
def test_e4_inputs_that_cannot_be_read_are_unknown(project: TorchProject, write: object, says: str) -> None:
    """Never green, whatever else holds."""
    assert callable(write)
    write(folder(project) / "rows.npz")
    claim = "{kind: lossy, sqnr: 1, inputs: rows.npz, families: [given]}"
    project.run(f"      a: {{quantize: {{}}, equivalence: {claim}}}\n").assert_outcomes(failed=1)
    (check,) = project.transform["checks"]
    assert check["outcome"] == "unknown"
    assert says in check["reason"]


def test_e4_bounds_of_a_family_hold_in_place_of_those_of_all(project: TorchProject) -> None:
    """Large inputs are held to 99 dB, which eight bits do not keep, and all others to 20."""
    claim = "{kind: lossy, sqnr: 20, family_bounds: {large: {sqnr: 99}}}"
    project.run(f"      a: {{quantize: {{}}, equivalence: {claim}}}\n").assert_outcomes(failed=1)
    (output,) = (each for each in project.transform["equivalence"]["outputs"] if each["outcome"] == "over")
    assert output["family"] == "large"
    assert output["decided"].endswith("bound 99, family large")


@pytest.mark.parametrize(
    ("claim", "says"),
    [
        ("inputs: rows.txt", "'rows.txt' is no inputs: write data/file.npz, or package.module:callable"),
        ("inputs: ../../rows.npz", "lies outside the project: a file of inputs must stay inside it"),
        ("families: [norml]", "'norml' is no family of inputs: did you mean 'normal'?"),
        ("families: []", "families is empty: name at least one"),
        ("families: [given]", "the family 'given' is what 'inputs' brings"),
        ("family_bounds: {larg: {sqnr: 5}}", "'larg' is no family of inputs: did you mean 'large'?"),
        ("family_bounds: {large: {sqr: 5}}", "unknown key 'sqr' in the bounds of a family: did you mean 'sqnr'?"),
        ("families: [normal], family_bounds: {large: {sqnr: 5}}", "family_bounds of 'large', which is not run"),
        ("family_bounds: {given: {sqnr: 5}}", "family_bounds of 'given', which is not run"),
        ("rows: 0", "rows of 0: it must be 1 to 65,536"),
        ("rows: many", "expected rows: a whole number, found 'many'"),
        ("row: 3", "unknown key 'row' in an equivalence: did you mean 'rows'?"),
    ],
)
def test_e4_a_claim_that_cannot_be_read_says_where(project: TorchProject, claim: str, says: str) -> None:
    """Every problem has its line, and a way out."""
    result = project.run(f"      a: {{quantize: {{}}, equivalence: {{kind: lossy, sqnr: 20, {claim}}}}}\n")
    result.assert_outcomes(failed=1)
    assert says in result.stdout.str()


def test_e12_a_note_is_wrapped_and_not_cut(project: TorchProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole sentence is on the terminal, however narrow; that 1,024 calls are taken holds test_user_inputs.py."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(user_inputs, "MOST_CALLS", 4)
    np.savez(folder(project) / "rows.npz", **{"0": ROWS})
    (project.pytester.path / "data.py").write_text(
        "import numpy\nrows = numpy.load('budgets/rows.npz')['0']\n"
        "def an_endless_stream_of_calibration_inputs():\n    while True:\n"
        "        yield rows[:4]\n        yield rows[4:]\n"
    )
    source = "data:an_endless_stream_of_calibration_inputs"
    claim = f"{{kind: lossy, sqnr: 20, inputs: '{source}', families: [given]}}"
    transform = f"      a: {{quantize: {{}}, equivalence: {claim}}}\n"
    result = project.run(transform, "nets:net", "--model-budget-workers=0")
    result.assert_outcomes(passed=1)
    assert "..." not in result.stdout.str()
    said = f"inputs: the first 4 calls of {source}"
    assert said not in result.stdout.str()
    assert said in " ".join(result.stdout.str().split())


def test_e10_layers_of_a_compiled_module_keep_their_names(project: TorchProject) -> None:
    """``torch.compile`` puts a module around: no layer of it changed."""
    (project.pytester.path / "eager.py").write_text(
        "import torch\ndef compiled(model):\n    return torch.compile(model, backend='eager')\n"
    )
    project.run("      x: {apply: 'eager:compiled', limits: {params: 10 k}}\n")
    changes = {each["scope"]: (each["became"], each.get("why")) for each in project.transform["changes"]}
    assert changes == dict.fromkeys("012", ("", "as it was"))


@pytest.mark.parametrize(
    ("backend", "failed", "reason"),
    [
        pytest.param("'eager'", 0, "as compiled, ", id="there"),
        pytest.param("absent", 1, "compiled code was not run: compiling it raised ", id="no compiler"),
    ],
)
def test_e10_a_claim_compiles_code(project: TorchProject, backend: str, failed: int, reason: str) -> None:
    """Eager code is compared first; where the compiler fails, nothing is known of what it makes."""
    (project.pytester.path / "eager.py").write_text(
        "import torch\n"
        "def absent(graph, inputs):\n    raise RuntimeError('no C++ compiler')\n"
        f"def compiled(model):\n    return torch.compile(model, backend={backend})\n"
    )
    project.run("      x: {apply: 'eager:compiled', equivalence: exact_algebra}\n").assert_outcomes(
        passed=1 - failed, failed=failed
    )
    assert project.transform["equivalence"]["reason"].startswith(reason)
