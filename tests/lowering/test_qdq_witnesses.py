"""QDQ files against the same networks as QOperator, and as ONNX Runtime optimises them: three programs, one number."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from pytest_modelbudget import measure
from tests.builders.quantised_nets import NETS, operators, quantised_files

EQUAL = (
    "macs", "params", "weight_memory", "flops", "peak_activation", "bandwidth", "bandwidth_floor", "total_activation",
    "arithmetic_intensity",
)  # fmt: skip


@pytest.mark.parametrize("per_channel", [False, True], ids=["a scale a tensor", "a scale a channel"])
@pytest.mark.parametrize("name", NETS)
def test_s10_qdq_is_measured_as_its_twins(name: str, per_channel: bool, tmp_path: Path) -> None:
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


def test_s10_conv_relu_conv_by_hand(tmp_path: Path) -> None:
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


def test_s10_the_program_as_written_stays(tmp_path: Path) -> None:
    """Read as it is written, every dequantise writes floats: two float32 tensors, and the weights beside them."""
    files = quantised_files("conv_relu_conv", tmp_path, per_channel=True)
    number = measure(files["QDQ"], qdq="as_written")
    elements, kernel, filters = 16 * 48 * 48, 16 * 16 * 9, 16
    dequantised = 4 * (kernel + filters)  # both layers' are written before the first one runs, but for its own
    assert number["ops"].parts["dequantize"] == 2 * 2 + 3
    assert number["peak_activation"].value == (4 + 4) * elements + 2 * dequantised
    assert number["macs"].value == measure(files["QDQ"])["macs"].value
    assert not number.notes


def test_s10_weights_stand_in_the_row_of_their_layer(tmp_path: Path) -> None:
    """No row of a dequantise holds parameters: the shares of params are the layers of the float network."""
    files = quantised_files("residual", tmp_path, per_channel=False)
    layers = [node.name for node in onnx.load(files["float"]).graph.node if node.op_type == "Conv"]
    assert [share.scope for share in measure(files["QDQ"])["params"].shares] == layers
