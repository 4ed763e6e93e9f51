"""Packed projections of a decoder that ONNX Runtime fuses cost what they cost one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.builders.onnx_graphs import measured, model, node, stored, value

MICROSOFT = "com.microsoft"
K, N, M = 64, 32, 16  # of the input, and of the results
ROWS = 2 * 3
PACKED: Any = {"bits": 4, "block_size": 32}


def weights(*names: str, width: int) -> list[onnx.TensorProto]:
    """Half a byte for each of K elements of an output, and a scale for each 32 of them."""
    found = []
    for name in names:
        found += [
            stored(name, width, K // 32, 16, dtype=np.uint8),
            stored(f"{name}s", width * K // 32),
            stored(f"{name}b", width),
        ]
    return found


def layer(name: str, width: int, *, has_bias: bool) -> onnx.NodeProto:
    operands = f"n {name} {name}s - - {name}b" if has_bias else f"n {name} {name}s"
    return node("MatMulNBits", operands, f"{name}y", domain=MICROSOFT, K=K, N=width, **PACKED)


def norm(*, has_skip: bool) -> onnx.NodeProto:
    if has_skip:
        return node("SkipSimplifiedLayerNormalization", "x s g", "n - - sum", domain=MICROSOFT)
    return node("SimplifiedLayerNormalization", "x g", "n", axis=-1)


def program(nodes: list[onnx.NodeProto], outputs: list[str], held: list[onnx.TensorProto]) -> onnx.ModelProto:
    read = {name for each in nodes for name in each.input}
    inputs = [value(name, 2, 3, K) for name in ("x", "s") if name in read]
    kept = [each for each in held if each.name in read]
    negated = [node("Neg", name, f"{name}z") for name in outputs]
    results = [value(f"{name}z") for name in outputs]
    made = model([*nodes, *negated], inputs, results, kept, opset=17, domains=[MICROSOFT])
    for result in made.graph.output:
        result.type.tensor_type.ClearField("shape")
    return made


def both(one: onnx.ModelProto, apart: onnx.ModelProto, folder: Path) -> list[Any]:
    return [measured(one, folder), measured(apart, folder)]


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_skip", [False, True])
def test_query_key_and_value(has_skip: bool, has_bias: bool, tmp_path: Path) -> None:
    """6 rows of 64 times 32 + 16 + 16 outputs."""
    held = [stored("g", K), *weights("q", width=N), *weights("k", "v", width=M)]
    b = ["qb", "kb", "vb"] if has_bias else ["-"] * 3
    operands = f"x {'s' if has_skip else '-'} g q qs {b[0]} k ks {b[1]} v vs {b[2]}"
    results = ["qy", "ky", "vy", *(["sum"] if has_skip else [])]
    fused = node("MatMulNBitsQkv", operands, " ".join(results), domain=MICROSOFT, K=K, Nq=N, Nkv=M, **PACKED)
    widths = {"q": N, "k": M, "v": M}
    apart = [norm(has_skip=has_skip), *(layer(name, width, has_bias=has_bias) for name, width in widths.items())]
    one, each = both(program([fused], results, held), program(apart, results, held), tmp_path)
    assert one["macs"].value == ROWS * K * (N + 2 * M)
    assert one["params"].value == K * (N + 2 * M) + K + has_bias * (N + 2 * M)
    for key in ("macs", "flops", "params", "weight_memory", "model_size"):
        assert one[key].complete, key
        assert one[key].value == each[key].value, key
    assert all(one[key].complete for key in ("bandwidth", "peak_activation"))
    # The norm is written and read three times where it is a result of its own.
    assert each["bandwidth"].value - one["bandwidth"].value == 4 * ROWS * K * 4


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("before", ["nothing", "a norm", "a sum and a norm"])
def test_gate_and_up(before: str, has_bias: bool, tmp_path: Path) -> None:
    """6 rows of 64 times 2 x 32 outputs, an activation and a product for each of 32."""
    held = [stored("g", K), *weights("gate", "up", width=N)]
    has_norm, has_skip = before != "nothing", before == "a sum and a norm"
    bias = ["gateb", "upb"] if has_bias else ["-"] * 2
    operands = f"x {'s' if has_skip else '-'} {'g' if has_norm else '-'} gate gates {bias[0]} up ups {bias[1]}"
    results = ["y", *(["sum"] if has_skip else [])]
    fused = node("MatMulNBitsMlp", operands, " ".join(results), domain=MICROSOFT, activation="silu", K=K, N=N, **PACKED)
    apart = [
        norm(has_skip=has_skip) if has_norm else node("Identity", "x", "n"),
        layer("gate", N, has_bias=has_bias),
        layer("up", N, has_bias=has_bias),
        node("Relu", "gatey", "a"),
        node("Mul", "a upy", "y"),
    ]
    one, each = both(program([fused], results, held), program(apart, results, held), tmp_path)
    assert one["macs"].value == ROWS * K * 2 * N
    assert one["params"].value == 2 * K * N + has_norm * K + has_bias * 2 * N
    for key in ("macs", "flops", "params", "weight_memory", "model_size"):
        assert one[key].complete, key
        assert one[key].value == each[key].value, key
    assert all(one[key].complete for key in ("bandwidth", "peak_activation"))
