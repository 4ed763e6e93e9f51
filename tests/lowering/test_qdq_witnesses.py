"""QDQ files against the same networks as QOperator, and as ONNX Runtime optimises them: three programs, one number."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import onnx
import pytest

from pytest_modelbudget import measure
from pytest_modelbudget.cli.command import main
from pytest_modelbudget.errors import InputError
from pytest_modelbudget.lowering.groups import FORM_OF
from tests.builders.quantised_nets import NETS, operators, quantised_files

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "write_onnx_models.py"))
EQUAL = (
    "macs", "params", "weight_memory", "flops", "peak_activation", "bandwidth", "bandwidth_floor", "total_activation",
    "arithmetic_intensity",
)  # fmt: skip


@pytest.mark.parametrize("per_channel", [False, True], ids=["a scale a tensor", "a scale a channel"])
@pytest.mark.parametrize("name", NETS)
def test_qdq_is_measured_as_its_twins(name: str, per_channel: bool, tmp_path: Path) -> None:
    """As QDQ, as QOperator and as optimised by the runtime a network has the same numbers, and the same census.

    model_size alone differs: a QDQ file stores the scale of each bias, which the others leave out.
    """
    files = quantised_files(name, tmp_path, per_channel=per_channel)
    assert "QLinearConv" in operators(files["optimised"]) or "QLinearMatMul" in operators(files["optimised"])
    qdq, *twins = (measure(files[form]) for form in ("QDQ", "QOperator", "optimised"))
    for twin in twins:
        assert {key: qdq[key].value for key in EQUAL} == {key: twin[key].value for key in EQUAL}
        assert qdq["ops"].parts == twin["ops"].parts
        assert all(qdq[key].complete for key in EQUAL)


def test_activations_that_the_quantiser_leaves_are_operations(tmp_path: Path) -> None:
    """With symmetric ranges a Relu stands between two quantisations: an operation on integers, as in QOperator."""
    files = quantised_files("residual", tmp_path, extra={"ActivationSymmetric": True})
    qdq, twin = measure(files["QDQ"]), measure(files["QOperator"])
    assert qdq["ops"].parts["relu"] == 3
    assert {key: qdq[key].value for key in EQUAL} == {key: twin[key].value for key in EQUAL}


@pytest.mark.parametrize("option", ["DedicatedQDQPair", "UseQDQContribOps"])
@pytest.mark.parametrize("name", ["branches", "attention"])
def test_ways_of_writing_one_thing(name: str, option: str, tmp_path: Path) -> None:
    """A pair of nodes for each reader, and com.microsoft's names for them: the numbers of the plain file."""
    plain, other = tmp_path / "plain", tmp_path / "other"
    for folder in (plain, other):
        folder.mkdir()
    files = quantised_files(name, plain)["QDQ"], quantised_files(name, other, extra={option: True})["QDQ"]
    first, second = map(measure, files)
    assert {key: first[key].value for key in EQUAL} == {key: second[key].value for key in EQUAL}
    assert first["ops"].parts == second["ops"].parts
    written = [[(node.domain, node.op_type) for node in onnx.load(path).graph.node] for path in files]
    assert written[0] != written[1]


def test_conv_relu_conv_by_hand(tmp_path: Path) -> None:
    """Conv, Relu, Conv on 1x16x48x48: 36,864 elements in and out of every layer, kernels of 16·16·9 = 2,304."""
    files = quantised_files("conv_relu_conv", tmp_path, per_channel=True)
    elements, kernel, filters = 16 * 48 * 48, 16 * 16 * 9, 16
    number = measure(files["QDQ"])
    assert number["params"].value == 2 * (kernel + filters)
    assert number["macs"].value == 2 * elements * 16 * 9
    # kernels in int8, biases in int32, and for each channel a float32 scale and an int8 zero point
    weights = 2 * (kernel + 4 * filters + (4 + 1) * filters)
    assert number["weight_memory"].value == weights
    # the float32 input is quantised: 4 + 1 bytes an element, and so is the output dequantised
    assert number["peak_activation"].value == (4 + 1) * elements
    # quantise 4 + 1, two convolutions 1 + 1 each, dequantise 1 + 4
    assert number["bandwidth"].value == (5 + 2 + 2 + 5) * elements + weights


def test_the_program_as_written_stays(tmp_path: Path) -> None:
    """Read as it is written, every dequantise writes floats: two float32 tensors, and the weights beside them."""
    files = quantised_files("conv_relu_conv", tmp_path, per_channel=True)
    number = measure(files["QDQ"], qdq="as_written")
    elements, kernel, filters = 16 * 48 * 48, 16 * 16 * 9, 16
    dequantised = 4 * (kernel + filters)  # both layers' are written before the first one runs, but for its own
    assert number["ops"].parts["dequantize"] == 2 * 2 + 3
    assert number["peak_activation"].value == (4 + 4) * elements + 2 * dequantised
    assert number["macs"].value == measure(files["QDQ"])["macs"].value
    assert not number.notes


def test_weights_stand_in_the_row_of_their_layer(tmp_path: Path) -> None:
    """No row of a dequantise holds parameters: the shares of params are the layers of the float network."""
    files = quantised_files("residual", tmp_path, per_channel=False)
    layers = [node.name for node in onnx.load(files["float"]).graph.node if node.op_type == "Conv"]
    assert [share.scope for share in measure(files["QDQ"])["params"].shares] == layers


def test_the_budgets_int8_network_by_hand(tmp_path: Path) -> None:
    """Three int8 layers 256→128→64→10, scales and biases float32; only the last one's result is float32.

    The input is quantised: 4·256 + 256. Then each layer reads its input, weights with a scale and a bias for each
    output, and writes int8, or 4·10 at the end.
    """
    layers = ((256, 128, 1), (128, 64, 1), (64, 10, 4))
    weights = sum(wide * features + (4 + 4) * features for wide, features, _ in layers)
    SCRIPT["write_onnx_models"](tmp_path)
    number = measure(tmp_path / "int8.onnx")
    assert number["weight_memory"].value == weights
    assert number["peak_activation"].value == 4 * 256 + 256
    assert number["bandwidth"].value == 5 * 256 + weights + sum(a + width * b for a, b, width in layers)
    assert number["flops"].value == 256 + 2 * number["macs"].value + 128 + 64 + 10
    assert number["ops"].parts == {"quantize": 1, "linear": 3}


def test_python_the_fixture_and_the_command_take_the_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both words are known everywhere, and another one is refused with them."""
    files = quantised_files("depthwise", tmp_path, per_channel=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="'float' is no way to read QDQ: write grouped or as_written"):
        measure(files["QDQ"], qdq="float")
    peaks = {}
    for qdq in ("grouped", "as_written"):
        assert main(["show", "QDQ.onnx", "--qdq", qdq, "--format", "json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        peaks[qdq] = shown["metrics"]["peak_activation"]["value"]
        assert peaks[qdq] == measure(files["QDQ"], qdq=qdq)["peak_activation"].value
    assert peaks["grouped"] < peaks["as_written"]


def test_the_docs_list_the_kinds() -> None:
    """The table of the page is that of the rules."""
    page = (Path(__file__).parents[2] / "docs" / "onnx-details.md").read_text(encoding="utf-8")
    table = page.partition("Which operations can be on integers:")[2].partition("\n- **")[0]
    cells = (line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    assert {kind for cell in cells for kind in re.findall(r"`(\w+)`", cell)} == FORM_OF.keys()
