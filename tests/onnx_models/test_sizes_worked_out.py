"""What a run computes is work, also where only a size is made of it: nothing of it is shape arithmetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from pytest_modelbudget import measure

HEADER = '<ir_version: 8, opset_import: ["": 17]> g (float[4, 16] x) => '
STORED = f"""<float[16, 8] w = {{{", ".join(map(str, np.arange(128) / 100))}}},
    int64[1] axis = {{0}}, int64 zero = {{0}}, int64 one = {{1}}>"""
SIZES = "p = MatMul(x, w) s = ReduceSum<keepdims=0>(p, axis) k = Cast<to=7>(s)"

ENDS = {
    "(float[n] y)": "m = ReduceSum<keepdims=0>(k) r = Range(zero, m, one) y = Cast<to=1>(r)",
    "(float[a, b] y)": "y = Expand(x, k)",
    "(float[c, d] y)": "y = Reshape(x, k)",
    "(float[e, f] y)": "q = Identity(k) y = ConstantOfShape(q)",
    "(float[4, g] y)": "m = ReduceMax<keepdims=1>(k) y, i = TopK(x, m)",
}
PROGRAMS = [f"{result} {STORED} {{ {SIZES} {end} }}" for result, end in ENDS.items()]


@pytest.mark.parametrize("program", PROGRAMS, ids=list(ENDS.values()))
def test_fuzz_products_that_only_lead_to_a_size_are_counted(program: str, tmp_path: Path) -> None:
    """4 x 16 · 16 x 8 runs, whatever becomes of it: 512 MAC, and never 0; its weight is a parameter."""
    model = onnx.parser.parse_model(HEADER + program)
    onnx.checker.check_model(model)
    onnx.save(model, tmp_path / "net.onnx")
    measured = measure(tmp_path / "net.onnx")
    assert (measured["macs"].value, measured["params"].value) == (4 * 16 * 8, 16 * 8)
