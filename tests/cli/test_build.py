"""``modelbudget build`` and ``shipped:``: what ships is what was judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
      claimless: {tile: {products: 8}, limits: {macs: 9000}}
      twelve: {quantize: {weights: {bits: 12}}, equivalence: {kind: custom, max_abs: 100}}
      wrong: {tile_linear: {tile: 8}, equivalence: {kind: custom, max_abs: 0}}
"""


# The same in two steps, which may be any far off: what is built is what they made.
STEPS = BUDGET.replace("{tile: {products: 8}, equivalence: exact_algebra, shipped", (
    "{steps: [{tile: {products: 8}}, {quantize: {weights: {bits: 8}}}], "
    "equivalence: {kind: custom, max_abs: 100}, shipped"
))  # fmt: skip
NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(20, 64), nn.Linear(64, 12)
    def forward(self, x):
        return self.two(torch.relu(self.one(x)) * 3.0) + torch.tensor(7.0)

class Chosen(Net):
    def forward(self, x):
        return super().forward(x).argmax(-1)
"""
TORCH = """
model_budget: 1
models:
  net:
    torch: nets:Net
    inputs: float32 4x20
    transforms:
      tiled: {tile: {products: 8}, equivalence: exact_algebra, shipped: ../build/tiled.pt2}
      four: {quantize: {weights: {bits: 4}}, equivalence: {kind: custom, max_abs: 100}}
      like: {compare: {torch: nets:Net}, equivalence: exact_algebra}
  chosen:
    torch: nets:Chosen
    inputs: float32 4x20
    transforms:
      tiled: {tile: {products: 8}, equivalence: exact_algebra}
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


@pytest.fixture
def torch_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two linear layers of torch, 20 · 64 + 64 · 12 weights, whose tiled twin ships as an exported program."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)  # of two files of one second, and of one size
    (project / "nets.py").write_text(NETS, encoding="utf-8")
    (project / "budgets" / "net.yaml").write_text(TORCH, encoding="utf-8")
    return project


def build(transform: str, out: str, model: str = "net") -> int:
    return main(["build", f"budgets/net.yaml::{model}::{transform}", "--out", out])


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
    "no file": (lambda root: (root / "build" / "tiled.onnx").unlink(), "there is no ../build/tiled.onnx:"),
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


@pytest.mark.parametrize("budget", [BUDGET, STEPS], ids=["one transform", "steps"])
@pytest.mark.parametrize("name", WRONG)
def test_anything_else_is_red(name: str, budget: str, project: Path, pytester: pytest.Pytester) -> None:
    """Each is one sentence, with what to do."""
    change, said = WRONG[name]
    (project / "budgets" / "net.yaml").write_text(budget, encoding="utf-8")
    assert build("tiled", "build/tiled.onnx") == 0
    change(project)
    code, shown = verdict(pytester)
    assert code == 1
    assert said in " ".join(shown.split())
    assert "run modelbudget build budgets/net.yaml::MODEL::tiled --out build/tiled.onnx" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["budgets/net.yaml::net::wrong", "--out", "build/x.onnx"], "x.onnx is not written: wrong: equivalence over"),
        (["budgets/net.yaml::net::twelve", "--out", "x.onnx"], "it stores 1,008 B, and what was judged 456 B"),
        (
            ["budgets/net.yaml::net::claimless", "--out", "x.onnx"],
            "claimless makes no claim: name a transform with equivalence",
        ),
        (["budgets/net.yaml::net::tiled", "--out", "x.pt2"], "x.pt2: a model of this transform is written as .onnx"),
        (["budgets/net.yaml::net::none", "--out", "x.onnx"], "has no 'net::none': name one of net, net::tiled"),
        (["budgets/net.yaml::net", "--out", "x.onnx"], "net makes no claim: name a transform with equivalence"),
        (["budgets/none.yaml::net::tiled", "--out", "x.onnx"], "budgets/none.yaml does not exist"),
    ],
)
def test_what_cannot_be_built(words: list[str], said: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, exit code 2, and no file."""
    assert main(["build", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (project / words[-1]).exists()


def rewritten(name: str, before: str, after: str) -> Callable[[Path], None]:
    """What writes other words into a file of a project."""

    def write(root: Path) -> None:
        text = (root / name).read_text(encoding="utf-8")
        assert before in text
        (root / name).write_text(text.replace(before, after), encoding="utf-8")

    return write


STALE: dict[str, tuple[Callable[[Path], None], str]] = {
    "another function": (
        rewritten("nets.py", "torch.relu", "nn.functional.gelu"),
        "was built with another source and changed model",
    ),
    "another factor": (rewritten("nets.py", "3.0", "5.0"), "was built with another source and changed model"),
    "another constant": (rewritten("nets.py", "7.0", "8.0"), "computes otherwise than the changed model"),
    "other inputs": (
        rewritten("budgets/net.yaml", "4x20", "8x20"),
        "was built with another source and changed model and inputs",
    ),
}


@pytest.mark.needs_torch
def test_a_program_of_torch_ships(torch_project: Path, pytester: pytest.Pytester) -> None:
    """Its tiles have all weights: 4 · (20 · 64 + 64 + 64 · 12 + 12) bytes. No part of a file is left."""
    assert build("tiled", "build/tiled.pt2") == 0
    record = json.loads((torch_project / "build" / "tiled.pt2.certificate.json").read_text(encoding="utf-8"))
    assert record["figures"]["weight_memory"] == str(4 * (20 * 64 + 64 + 64 * 12 + 12))
    assert sorted(file.name for file in (torch_project / "build").iterdir()) == [
        "tiled.pt2",
        "tiled.pt2.certificate.json",
    ]
    code, said = verdict(pytester)
    assert code == 0, said


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", STALE)
def test_a_program_of_torch_of_another_time_is_red(name: str, torch_project: Path, pytester: pytest.Pytester) -> None:
    """The weights are equal in each."""
    change, said = STALE[name]
    assert build("tiled", "build/tiled.pt2") == 0
    change(torch_project)
    code, shown = verdict(pytester)
    assert code == 1
    assert f"../build/tiled.pt2 {said}: run modelbudget build" in " ".join(shown.split())


@pytest.mark.needs_torch
@pytest.mark.parametrize(
    ("transform", "out", "said"),
    [
        pytest.param("tiled", "x.safetensors", "the transform changes operations, not weights", id="weights of tiles"),
        pytest.param("four", "x.safetensors", "it stores 8,496 B, and what was judged", id="floats of integers"),
        pytest.param("four", "x.pt2", "it stores 8,496 B, and what was judged", id="a program on floats"),
    ],
)
def test_a_file_that_is_not_what_was_judged(
    transform: str, out: str, said: str, torch_project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused, and nothing is written."""
    pytest.importorskip("safetensors")
    assert build(transform, out) == 2
    assert said in capsys.readouterr().err
    assert not list(torch_project.glob("x.*"))


@pytest.mark.needs_torch
def test_a_program_that_gives_integers_is_compared(
    torch_project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One place of an argmax is another one in the exported program, as if a converter were wrong."""
    torch = pytest.importorskip("torch")
    assert build("tiled", "x.pt2", "chosen") == 0
    (torch_project / "x.pt2").unlink()
    module = torch.export.ExportedProgram.module

    def wrong(program: Any, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        made = module(program, *args, **kwargs)
        return lambda *given: made(*given) + 1

    monkeypatch.setattr(torch.export.ExportedProgram, "module", wrong)
    assert build("tiled", "x.pt2", "chosen") == 2
    assert "computes otherwise than the changed model" in capsys.readouterr().err
    assert not (torch_project / "x.pt2").exists()


@pytest.mark.needs_torch
def test_weights_alone_ship(torch_project: Path) -> None:
    """What changes no operation has its weights in a file, which all can read."""
    read = pytest.importorskip("safetensors.numpy").load_file
    assert build("like", "x.safetensors") == 0
    stored = read(torch_project / "x.safetensors")
    assert {name: values.shape for name, values in stored.items()} == {
        "one.weight": (64, 20), "one.bias": (64,), "two.weight": (12, 64), "two.bias": (12,)
    }  # fmt: skip
    assert (torch_project / "x.safetensors").stat().st_mode & 0o044
    certificate = (torch_project / "x.safetensors.certificate.json").read_text(encoding="utf-8")
    assert str(torch_project) not in certificate, "elsewhere it is another place"
    assert "Path" not in certificate


def test_values_of_a_changed_model(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """W (20, 12) in tiles of 8 is stored in 3 · 2 parts, and the bias as it was."""
    assert main(["weights", "budgets/net.yaml::net::tiled"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("fc.weight_k") == 6
    assert "fc.bias" in shown
    assert main(["weights", "budgets/net.yaml::net"]) == 0
    assert capsys.readouterr().out.count("fc.weight") == 1, "the model itself"


def test_a_changed_model_is_shown(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of 2 columns of tiles reads x (2, 20); W is read once, and each of 3 parts of K writes (2, 12)."""
    assert main(["show", "budgets/net.yaml::net::tiled", "--by", "operator", "--format", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    (product,) = [row for row in record["by_operator"] if row["operator"] == "onnx::MatMul"]
    assert product == {
        "operator": "onnx::MatMul", "calls": 6, "macs": 2 * 20 * 12,
        "read": 2 * 4 * 2 * 20, "weights": 4 * 20 * 12, "write": 3 * 4 * 2 * 12,
    }  # fmt: skip
    total = {"read": 0, "weights": 0, "write": 0}
    for row in record["by_operator"]:
        total = {key: total[key] + row[key] for key in total}
    assert total == {key: int(value) for key, value in record["metrics"]["bandwidth"]["parts"].items()}


def test_operations_that_read_most_come_first(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A product of 8 inputs and 8 outputs reads 4 · 2 · 8 bytes, and 4 · 8 · 8 of its weight; it writes 4 · 2 · 8."""
    assert main(["show", "budgets/net.yaml::net::tiled", "--by", "operation"]) == 0
    head, *rows = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert head.split() == ["operation", "calls", "MACs", "read", "B", "weights", "B", "write", "B"]
    assert ["onnx::MatMul", "1", "128", "64", "256", "64"] in [row.split()[1:] for row in rows]
    moved = [[int(word) for word in row.replace(",", "").split()[-3:-1]] for row in rows]
    assert [sum(each) for each in moved] == sorted(map(sum, moved), reverse=True)
