"""``modelbudget build`` and ``shipped:``: what ships is what was judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_modelbudget.cli.command import main
from tests.builders.onnx_linears import linear, written

pytest_plugins = ["pytester"]

BUDGET = """
model_budget: 1
models:
  net:
    onnx: ../model.onnx
    transforms:
      tiled: {tile: {products: 8}, equivalence: exact_algebra, shipped: ../build/tiled.onnx}
      other: {tile: {products: 4}, equivalence: exact_algebra}
      wrong: {tile_linear: {tile: 8}, equivalence: {kind: custom, max_abs: 0}}
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A linear layer of 20 inputs and 12 outputs, whose tiled twin ships."""
    root = pytester.path
    written(linear(20, 12, leading=(2,)), root)
    pytester.makeini("[pytest]\n")
    (root / "budgets").mkdir()
    (root / "budgets" / "net.yaml").write_text(BUDGET, encoding="utf-8")
    monkeypatch.chdir(root)
    return root


def build(transform: str, out: str) -> int:
    return main(["build", f"budgets/net.yaml::net::{transform}", "--out", out])


def verdict(pytester: pytest.Pytester) -> tuple[int, str]:
    """What the gate says of the transform that ships."""
    result = pytester.runpytest("--model-budget", "budgets/net.yaml::net::tiled", "-p", "no:randomly")
    return int(result.ret), result.stdout.str()


def flip_byte(root: Path) -> None:
    file = root / "build" / "tiled.onnx"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(bytes(data))


def change_certificate(root: Path) -> None:
    file = root / "build" / "tiled.onnx.certificate.json"
    file.write_text(file.read_text(encoding="utf-8").replace("within", "proved"), encoding="utf-8")


def swap_file(root: Path) -> None:
    """The file and the certificate of the other transform, under the name of this one."""
    build("other", "build/other/tiled.onnx")
    for end in ("", ".certificate.json"):
        (root / "build" / "other" / f"tiled.onnx{end}").replace(root / "build" / f"tiled.onnx{end}")


def swap_certificate(root: Path) -> None:
    build("other", "build/other.onnx")
    (root / "build" / "other.onnx.certificate.json").replace(root / "build" / "tiled.onnx.certificate.json")


def change_source(root: Path) -> None:
    written(linear(20, 12, leading=(2,), seed=1), root)


WRONG: dict[str, tuple[Callable[[Path], None], str]] = {
    "one flipped byte": (flip_byte, "../build/tiled.onnx is another file than its certificate names"),
    "a changed certificate": (change_certificate, "the certificate of ../build/tiled.onnx was changed"),
    "another file": (swap_file, "../build/tiled.onnx was built with another transform"),
    "another file's certificate": (swap_certificate, "the certificate of ../build/tiled.onnx is that of other.onnx"),
    "another source": (change_source, "../build/tiled.onnx was built with another source"),
    "no file": (lambda root: (root / "build" / "tiled.onnx").unlink(), "there is no tiled.onnx"),
}


def test_what_was_built_ships(project: Path, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]) -> None:
    """Built, it is green, and the certificate has digests, the claim, inputs, figures and versions."""
    assert build("tiled", "build/tiled.onnx") == 0
    assert "wrote build/tiled.onnx and build/tiled.onnx.certificate.json" in capsys.readouterr().out
    record = json.loads((project / "build" / "tiled.onnx.certificate.json").read_text(encoding="utf-8"))
    assert record["claim"][0]["outcome"] == "within"
    assert record["figures"]["macs"] == str(2 * 20 * 12)
    assert record["versions"]["onnxruntime"]
    assert len(record["source"]["sha256"]) == len(record["file"]["sha256"]) == 64
    code, said = verdict(pytester)
    assert code == 0, said


@pytest.mark.parametrize("name", WRONG)
def test_anything_else_is_red(name: str, project: Path, pytester: pytest.Pytester) -> None:
    """Each is one sentence, with what to do."""
    change, said = WRONG[name]
    assert build("tiled", "build/tiled.onnx") == 0
    change(project)
    code, shown = verdict(pytester)
    assert code == 1
    assert said in " ".join(shown.split())
    assert "build it again with modelbudget build" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["budgets/net.yaml::net::wrong", "--out", "build/x.onnx"], "build/x.onnx is not written: equivalence over"),
        (["budgets/net.yaml::net::tiled", "--out", "x.pt2"], "x.pt2: a model of this transform is written as .onnx"),
        (["budgets/net.yaml::net::none", "--out", "x.onnx"], "has no transform 'net::none': it has net::tiled"),
        (["budgets/none.yaml::net::tiled", "--out", "x.onnx"], "budgets/none.yaml does not exist"),
    ],
)
def test_what_cannot_be_built(words: list[str], said: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, exit code 2, and no file."""
    assert main(["build", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (project / words[-1]).exists()


def test_values_of_a_changed_model(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """W (20, 12) in tiles of 8 is stored in 3 · 2 parts, and the bias as it was."""
    assert main(["weights", "budgets/net.yaml::net::tiled"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("fc.weight_k") == 6
    assert "fc.bias" in shown
