"""``modelbudget activations`` and ``modelbudget weights``, as a new user tries them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_modelbudget.cli.command import main

NETS = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))

def deep():
    block = lambda: nn.ModuleDict({"linear_output": nn.Linear(4, 4)})
    return nn.ModuleDict({"body_of_the_network": nn.ModuleDict({"dw": block(), "pw": block()})})

def inner():
    part = lambda: nn.ModuleDict({"projection_of_all_the_queries": nn.Linear(4, 4)})
    return nn.ModuleDict({f"encoder_of_images_{number}_in_a_row": part() for number in range(2)})

class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale)) if scale else None

    def forward(self, x):
        return x if self.scale is None else x * self.scale

class Log(nn.Module):
    def forward(self, x):
        return torch.log(x)
"""
X = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with models and inputs, in which the command runs."""
    (tmp_path / "values_nets.py").write_text(NETS)
    np.save(tmp_path / "x.npy", X)
    monkeypatch.chdir(tmp_path)
    return tmp_path


RUN = ("values_nets:net", "--input", "float32 2x4")


@pytest.mark.needs_torch
def test_activations_are_saved_and_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Six rows in three calls: the file has all of them, and JSON has numpy's figures of these."""
    words = ("--given", "x.npy", "--types", "Linear", "--stats", "--format", "json", "--save", "out.npz",
             "--quantiles", "0.97", "1/3")  # fmt: skip
    assert main(["activations", *RUN, *words]) == 0
    told = json.loads(capsys.readouterr().out)
    with np.load(folder / "out.npz", allow_pickle=False) as saved:
        arrays = {name: saved[name] for name in saved.files}
    assert {name: (array.shape, str(array.dtype)) for name, array in arrays.items()} == {
        "0": ((6, 3), "float32"), "2": ((6, 2), "float32"),
    }  # fmt: skip
    assert (told["measured_on"], told["calls"]) == ("x.npy", 3)
    for layer in told["layers"]:
        exact = arrays[layer["name"]].astype(np.float64)
        assert layer["mean"] == pytest.approx(exact.mean(), rel=1e-6)
        assert layer["deviation"] == pytest.approx(exact.std(), rel=1e-6)
        for share, name in ((0.5, "0.5"), (0.97, "0.97"), (1 / 3, "0.333333")):
            assert layer["quantiles"][name] == np.quantile(exact, share, method="inverted_cdf")
        assert layer["int8"]["range"]["scale"] == pytest.approx((max(exact.max(), 0) - min(exact.min(), 0)) / 255)
    assert sorted(path.name for path in folder.iterdir() if "out" in path.name) == ["out.npz"]


@pytest.mark.needs_torch
def test_weights_by_the_types_of_their_layers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The two linear layers store weights and biases; a ReLU stores nothing, which is said."""
    assert main(["weights", *RUN, "--types", "Linear", "--stats", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [layer["name"] for layer in told["layers"]] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert main(["weights", *RUN, "--types", "ReLU"]) == 2
    assert "no layer of type 'ReLU' stores values: known are Linear" in capsys.readouterr().err


@pytest.mark.needs_torch
@pytest.mark.parametrize("command", ["activations", "weights"])
def test_tables_fit_a_narrow_terminal(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """80 columns, with every table, and on what it was measured in the last line."""
    assert main([command, *RUN, "--stats"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < 80
    assert [line.split()[0] for line in lines if line.startswith(("layer", "quantiles", "int8"))] == [
        "layer", "quantiles", "int8",
    ]  # fmt: skip
    assert "measured on " in lines[-1]


@pytest.mark.needs_torch
@pytest.mark.parametrize("statistics", [(), ("--stats",)], ids=["shapes", "statistics"])
@pytest.mark.parametrize(("name", "is_narrow"), [("deep", True), ("inner", False)])
def test_no_two_rows_have_one_name(
    name: str, is_narrow: bool, statistics: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names that are the same when their middle is cut out are cut in front, or stand whole where that is no help."""
    assert main(["weights", f"values_nets:{name}", *statistics]) == 0
    lines = capsys.readouterr().out.split("\n\n")[0].splitlines()[1:5]
    assert len({line.split()[0] for line in lines}) == 4
    assert all(line.split()[0].endswith((".weight", ".bias")) for line in lines)
    assert (max(map(len, lines)) < 80) is is_narrow or not statistics


@pytest.mark.needs_torch
def test_without_statistics_shapes_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["activations", *RUN, "--layers", "0", "--seeds", "7"]) == 0
    assert capsys.readouterr().out.splitlines() == ["layer  type    shape  dtype", "0      Linear  2x3    float32"]


@pytest.mark.needs_torch
def test_values_that_are_not_finite_are_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Logarithms of negative numbers: exit code 1, and a line that counts them; JSON stays JSON."""
    words = ["values_nets:Log", "--input", "float32 6x4", "--given", "x.npy", "--stats"]
    assert main(["activations", *words]) == 1
    assert f"(model): {(X < 0).sum()} values NaN or Inf, skipped" in capsys.readouterr().out
    assert main(["activations", *words, "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["layers"][0]["not_finite"] == (X < 0).sum()


WRONG: list[Any] = [
    pytest.param(["--given", "y.npy"], "--given y.npy does not exist", id="no file"),
    pytest.param(["--given", "x"], "--given 'x' is no inputs: write data/file.npz", id="no inputs"),
    pytest.param(["--given", "x.npy", "--seeds", "1"], "--given and --seeds exclude each other", id="both"),
    pytest.param(["--save", "out.txt"], "--save out.txt: name a .npz file", id="no npz"),
    pytest.param(["--save", "no/out.npz"], "name a .npz file in a folder that is there", id="folder"),
    pytest.param(["--format", "json"], "--format json prints statistics: add --stats", id="json"),
    pytest.param(["--types", "Linaer"], "did you mean 'Linear'?", id="type"),
]  # fmt: skip


@pytest.mark.needs_torch
@pytest.mark.parametrize(("words", "said"), WRONG)
def test_wrong_words_are_one_sentence(
    words: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, what is wrong and the way out; nothing is left behind."""
    before = sorted(folder.iterdir())
    assert main(["activations", *RUN, *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert [path for path in sorted(folder.iterdir()) if path.name != "__pycache__"] == before


def test_onnx_needs_no_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """y = x·Wᵀ + b, by the file's own weights."""
    pytest.importorskip("onnxruntime")
    file, saved = tmp_path / "linear.onnx", tmp_path / "y.npz"
    assert main(["lab", "linear", "--m", "2", "--k", "4", "--n", "3", "--out", str(file)]) == 0
    import onnx

    graph = onnx.load(file).graph
    stored = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    np.savez(tmp_path / "x.npz", **{graph.input[0].name: X})
    words = ["--given", str(tmp_path / "x.npz"), "--types", "Gemm", "MatMul", "--save", str(saved)]
    assert main(["activations", str(file), *words]) == 0
    (weight,) = (each for each in stored.values() if each.ndim == 2)
    (bias,) = (each for each in stored.values() if each.ndim == 1)
    with np.load(saved) as arrays:
        (y,) = (arrays[name] for name in arrays.files)
    assert y == pytest.approx(X @ weight.T + bias, rel=1e-5, abs=1e-6)
    capsys.readouterr()
    assert main(["weights", str(file), "--stats", "--format", "json"]) == 0
    means = {each["name"]: each["mean"] for each in json.loads(capsys.readouterr().out)["layers"]}
    assert means == pytest.approx({name: float(each.astype(np.float64).mean()) for name, each in stored.items()})


@pytest.mark.needs_torch
@pytest.mark.parametrize(
    ("model", "layers", "words"),
    [
        (("values_nets:Log",), "*", "the model stores no values: it has no weights; modelbudget activations tells"),
        (("values_nets:Log",), "a.*", "the model stores no values"),
        (("values_nets:Scaled", "--args", "2.0"), "*", "along an axis: 1 parameter tensor skipped: 'scale'"),
        (("values_nets:net",), "z.*", "is called 'z.*': known are '0.bias', '0.weight', '2.bias' and 1 more"),
    ],
)
def test_weights_that_are_not_there_are_told_for_what_they_are(
    folder: Path, capsys: pytest.CaptureFixture[str], model: tuple[str, ...], layers: str, words: str
) -> None:
    """Without weights, with single values alone, or of another name."""
    assert main(["weights", *model, "--input", "float32 2x4", "--layers", layers]) == 2
    assert words in capsys.readouterr().err
