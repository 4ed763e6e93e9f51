"""Quantised files as tools write them: one grid in many nodes, four bits, scales of dynamic quantisation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from pytest_modelbudget.errors import SourceError
from tests.builders.onnx_graphs import measured, model, node, scalar, stored, value

EVERY = ("macs", "params", "weight_memory", "peak_activation", "bandwidth", "bandwidth_floor")


def two_readers(*, shared: bool, shape: tuple[int, ...] = ()) -> onnx.ModelProto:
    """x · w, read by a product and by a sigmoid, each behind a quantise and a dequantise of its own."""
    scales: list[onnx.TensorProto] = []

    def grid() -> str:
        if not scales or not shared:
            at = len(scales) // 2
            scales.append(onnx.numpy_helper.from_array(np.full(shape, 0.5, np.float32), f"s{at}"))
            scales.append(onnx.numpy_helper.from_array(np.zeros(shape, np.uint8), f"z{at}"))
        return f"{scales[-2].name} {scales[-1].name}"

    def held(x: str) -> list[onnx.NodeProto]:
        return [node("QuantizeLinear", f"{x} {grid()}", f"{x}q"), node("DequantizeLinear", f"{x}q {grid()}", f"{x}f")]

    def again(x: str) -> list[onnx.NodeProto]:
        return [node("QuantizeLinear", f"{x} {grid()}", f"{x}r"), node("DequantizeLinear", f"{x}r {grid()}", f"{x}g")]

    nodes = [
        node("DequantizeLinear", "w ws", "wf"), *held("x"), node("MatMul", "xf wf", "h"),
        *held("h"), node("MatMul", "hf wf", "a"), *held("a"), *again("h"), node("Sigmoid", "hg", "b"), *held("b"),
    ]  # fmt: skip
    outputs = [value("af", 4, 8), value("bf", 4, 8)]
    weights = [stored("w", 8, 8, dtype=np.int8), scalar("ws", 0.25), *scales]
    return model(nodes, [value("x", 4, 8)], outputs, weights)


@pytest.mark.parametrize("shape", [(), (1,)], ids=["rank 0", "rank 1"])
def test_s10_a_scale_for_each_node_is_one_grid(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Exporters write scale and zero point anew for each node: what has the same numbers is one grid.

    Peak: the first output in floats, 128 B, while the second is made, 128 B, of its integers, 32 B.
    """
    apart, together = (measured(two_readers(shared=shared, shape=shape), tmp_path) for shared in (False, True))
    keys = EVERY if not shape else EVERY[:5]
    assert {key: apart[key].value for key in keys} == {key: together[key].value for key in keys}
    assert (apart["macs"].value, apart["peak_activation"].value) == (2 * 4 * 8 * 8, 128 + 32 + 128)
    assert apart["ops"].parts == together["ops"].parts


def _quantised_nothing(domain: str) -> onnx.ModelProto:
    made = node("QuantizeLinear", "", "y", domain=domain)
    return model([made], [value("x", 4)], [value("y", None)], domains=[domain or "own"])


def test_s10_a_quantisation_of_nothing_is_unmeasured(tmp_path: Path) -> None:
    """A node without operands is no reason to fail in our own words, where onnx does not declare them."""
    assert not measured(_quantised_nothing("com.microsoft"), tmp_path)["bandwidth"].complete


def test_s10_a_quantisation_of_nothing_lacks_what_onnx_declares(tmp_path: Path) -> None:
    """No runtime takes it."""
    with pytest.raises(SourceError, match="lacks its operand x"):
        measured(_quantised_nothing(""), tmp_path)
