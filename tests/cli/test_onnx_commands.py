"""``modelbudget lab linear`` and ``modelbudget lab tile``: ONNX files to look at, or to feed a compiler."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from pytest_modelbudget import check_equivalence, measure
from pytest_modelbudget.cli.command import main
from pytest_modelbudget.transforms import transform
from tests.builders.onnx_graphs import model, node, stored, value


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    """A linear layer of 4 x 200 x 130 in a file."""
    path = tmp_path / "linear.onnx"
    assert main(["lab", "linear", "--m", "4", "--k", "200", "--n", "130", "--out", str(path)]) == 0
    return path


def test_a_linear_layer(linear: Path) -> None:
    """m·k·n MACs and k·n + n parameters, in a file that the checker finds valid."""
    onnx.checker.check_model(linear, full_check=True)
    found = measure(linear)
    assert found["macs"].value == 4 * 200 * 130
    assert found["params"].value == 200 * 130 + 130


def test_half_precision_without_a_bias(tmp_path: Path) -> None:
    """--dtype and --no-bias are told by the bytes: 2·k·n."""
    path = tmp_path / "half.onnx"
    words = ["--m", "1", "--k", "64", "--n", "32", "--dtype", "float16", "--no-bias"]
    assert main(["lab", "linear", *words, "--out", str(path)]) == 0
    assert measure(path)["weight_memory"].value == 2 * 64 * 32


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        (("9" * 20, "1", "1"), "is no size: 9223372036854775807 is the largest"),
        (("1", "9" * 5000, "1"), "is no size: 9223372036854775807 is the largest"),
        (("1", str(2**63 - 1), "2"), "no memory can hold so many weights"),
        (("1", str(2**40), str(2**19)), "there is not enough memory"),
    ],
)
def test_a_layer_that_no_machine_holds_is_refused(
    sizes: tuple[str, str, str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a sentence, and with no file."""
    m, k, n = sizes
    words = ["lab", "linear", "--m", m, "--k", k, "--n", n, "--out", str(tmp_path / "big.onnx")]
    try:
        code: object = main(words)
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [10**7, 10**12])
def test_tiles_that_no_machine_holds_are_refused(size: int, linear: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Padded to them, the weights would have terabytes, or more bytes than there are addresses."""
    twin = linear.with_name("twin.onnx")
    assert main(["lab", "tile", str(linear), "--tile", str(size), "--edge", "pad", "--out", str(twin)]) == 2
    assert f"tiling {linear} raised " in capsys.readouterr().err
    assert not twin.exists()


@pytest.mark.parametrize(
    ("words", "products"),
    [
        pytest.param([], 4 * 3, id="default"),
        pytest.param(["--tile", "100"], 2 * 2, id="tile"),
        pytest.param(["--tile", "3", "64", "64"], 2 * 4 * 3, id="rows"),
        pytest.param(["--form", "batched"], 2 * 2, id="batched with edges"),
        pytest.param(["--form", "batched", "--edge", "pad"], 1, id="batched and padded"),
    ],
)
def test_its_twin(words: list[str], products: int, linear: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The twin is valid, has the products that the command says, and computes the same."""
    twin = linear.with_name("twin.onnx")
    assert main(["lab", "tile", str(linear), *words, "--out", str(twin)]) == 0
    onnx.checker.check_model(twin, full_check=True)
    names = [node.op_type for node in onnx.load(twin).graph.node]
    assert names.count("MatMul") == products
    assert check_equivalence(linear, twin, seeds=(0,)).outcome == "within"
    assert "linear: onnx::Gemm: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        pytest.param(["--tile", "1", "2"], "one size or three", id="two sizes"),
        pytest.param(["--layers", "head"], "layers: no linear operation matches 'head': known are", id="no layer"),
    ],
)
def test_what_is_wrong_is_said(
    words: list[str], sentence: str, linear: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, exit code 2, and nothing is written."""
    twin = linear.with_name("twin.onnx")
    assert main(["lab", "tile", str(linear), "--out", str(twin), *words]) == 2
    assert sentence in capsys.readouterr().err
    assert not twin.exists()


def test_a_file_that_is_missing_is_told_from_here(
    linear: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No budget is near that its path could be relative to."""
    monkeypatch.chdir(linear.parent)
    assert main(["lab", "tile", "nothing_of_it.onnx", "--out", "twin.onnx"]) == 2
    assert f"nothing_of_it.onnx does not exist in {linear.parent}: write it first" in capsys.readouterr().err


def test_the_file_itself_is_not_overwritten(linear: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A twin in the place of its original would be tiled again by the next call."""
    assert main(["lab", "tile", str(linear), "--out", str(linear)]) == 2
    assert "write the twin to another one" in capsys.readouterr().err


def test_without_onnx_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where onnx is missing, one sentence names the pip command."""

    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'onnx'", name="onnx")

    monkeypatch.setattr(transform, "import_module", missing)
    words = ["lab", "linear", "--m", "1", "--k", "1", "--n", "1", "--out", str(tmp_path / "x.onnx")]
    assert main(words) == 2
    assert "pip install 'pytest-modelbudget[onnx]'" in capsys.readouterr().err


@pytest.mark.parametrize("symbol", ["x.0", "rows", "2*n+1", "batch=size"])
def test_a_symbol_need_not_be_a_name(symbol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--dims SYMBOL=SIZE binds whatever stands for a size; an axis without a name is its input's and its place."""
    rows = None if symbol == "x.0" else symbol
    product = model([node("MatMul", "x w", "y")], [value("x", rows, 8)], [value("y", rows, 4)], [stored("w", 8, 4)])
    onnx.save(product, tmp_path / "product.onnx")
    assert main(["show", str(tmp_path / "product.onnx"), "--dims", f"{symbol}=3"]) == 0
    shown = capsys.readouterr().out
    assert f"{3 * 8 * 4} MAC" in shown
    assert f"file: IR version {product.ir_version}, opset {product.opset_import[0].version}" in shown
