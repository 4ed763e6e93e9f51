"""Packed weights count as the values that they stand for, in every layout; bytes are those of the header."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import pytest

from pytest_modelbudget import measure
from tests.builders.checkpoint_files import BITS, Described, write

SHAPES = ((64, 128), (96, 256), (32, 64))  # (out, in) of a linear layer
GROUP = 32


def compressed(n: int, k: int, bits: int = 4) -> Described:
    """compressed-tensors: packed along the input, with a shape record that zeros here leave to config.json."""
    return {"fc.weight_packed": ("I32", (n, k * bits // 32)), "fc.weight_scale": ("BF16", (n, k // GROUP)),
            "fc.weight_shape": ("I64", (2,))}  # fmt: skip


def gptq(n: int, k: int, bits: int = 4) -> Described:
    """GPTQ: packed along the input."""
    return {"fc.qweight": ("I32", (k * bits // 32, n)), "fc.qzeros": ("I32", (k // GROUP, n * bits // 32)),
            "fc.scales": ("F16", (k // GROUP, n)), "fc.g_idx": ("I32", (k,)), "fc.bias": ("F16", (n,))}  # fmt: skip


def awq(n: int, k: int) -> Described:
    """AWQ: packed along the output, without an order of groups."""
    return {"fc.qweight": ("I32", (k, n // 8)), "fc.qzeros": ("I32", (k // GROUP, n // 8)),
            "fc.scales": ("F16", (k // GROUP, n))}  # fmt: skip


def nf4(n: int, k: int) -> Described:
    """bitsandbytes with nested scales: two values a byte, in one column."""
    return {"fc.weight": ("U8", (n * k // 2, 1)), "fc.weight.absmax": ("U8", (n * k // 64,)),
            "fc.weight.quant_map": ("F32", (16,)), "fc.weight.nested_absmax": ("F32", (-(-n * k // 64 // 256),)),
            "fc.weight.nested_quant_map": ("F32", (256,)),
            "fc.weight.quant_state.bitsandbytes__nf4": ("U8", (79,))}  # fmt: skip


def llm_int8(n: int, k: int) -> Described:
    return {"fc.weight": ("I8", (n, k)), "fc.SCB": ("F32", (n,)), "fc.weight_format": ("U8", ())}


def mlx(n: int, k: int, bits: int = 4) -> Described:
    return {"fc.weight": ("U32", (n, k * bits // 32)), "fc.scales": ("F16", (n, k // GROUP)),
            "fc.biases": ("F16", (n, k // GROUP))}  # fmt: skip


def fp8(n: int, k: int) -> Described:
    return {"fc.weight": ("F8_E4M3", (n, k)), "fc.weight_scale_inv": ("F32", (1, 1)), "fc.input_scale": ("F32", ())}


def mxfp4(n: int, k: int) -> Described:
    """As gpt-oss has them: 32 values in 16 bytes under one scale."""
    return {"mlp.up_blocks": ("U8", (n, k // 32, 16)), "mlp.up_scales": ("U8", (n, k // 32))}


def nvfp4(n: int, k: int) -> Described:
    return {"fc.weight": ("U8", (n, k // 2)), "fc.weight_scale": ("F8_E4M3", (n, k // 16)),
            "fc.weight_scale_2": ("F32", ()), "fc.input_scale": ("F32", ())}  # fmt: skip


def nvfp4_packed(n: int, k: int) -> Described:
    return {"fc.weight_packed": ("U8", (n, k // 2)), "fc.weight_scale": ("F8_E4M3", (n, k // 16)),
            "fc.weight_global_scale": ("F32", (1,))}  # fmt: skip


GROUPS = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}}
LAYOUTS = (
    pytest.param(compressed, {"quantization_config": GROUPS}, id="compressed-tensors"),
    pytest.param(gptq, {"quantization_config": {"quant_method": "gptq", "bits": 4}}, id="gptq"),
    pytest.param(lambda n, k: gptq(n, k, 3), {}, id="gptq-3-bits"),
    pytest.param(lambda n, k: gptq(n, k, 8), {}, id="gptq-8-bits"),
    pytest.param(awq, {}, id="awq"),
    pytest.param(nf4, {}, id="bitsandbytes-nf4"),
    pytest.param(llm_int8, {}, id="bitsandbytes-int8"),
    pytest.param(mlx, {"quantization": {"bits": 4, "group_size": GROUP}}, id="mlx"),
    pytest.param(
        lambda n, k: mlx(n, k, 8), {"quantization": {"bits": 4, "fc": {"bits": 8}}}, id="mlx-8-bits-of-one-layer"
    ),
    pytest.param(fp8, {}, id="fp8"),
    pytest.param(mxfp4, {}, id="mxfp4"),
    pytest.param(nvfp4, {}, id="nvfp4"),
    pytest.param(nvfp4_packed, {}, id="nvfp4-packed"),
)


def folder(path: Path, tensors: Described, config: Mapping[str, Any]) -> Path:
    write(path / "model.safetensors", tensors)
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("layout", "config"), LAYOUTS)
def test_params_are_those_before_packing(
    tmp_path: Path, layout: Any, config: Mapping[str, Any], shape: tuple[int, int]
) -> None:
    """out · in, and a bias where one is stored; bytes are all that the header has."""
    tensors = layout(*shape)
    numbers = measure(folder(tmp_path, tensors, config))
    bias = prod(tensors.get("fc.bias", ("", (0,)))[1])
    assert int(numbers.params) == shape[0] * shape[1] + bias
    assert int(numbers.weight_memory) == sum(prod(size) * BITS[dtype] // 8 for dtype, size in tensors.values())
    assert int(numbers.model_size) == int(numbers.weight_memory)


UNKNOWN = (
    pytest.param({"fc.W_q": ("U8", (64, 64)), "fc.scale": ("F16", (64,))}, "fc.W_q", id="hqq"),
    pytest.param({"fc.qweight": ("I32", (8, 64))}, "fc.qweight", id="no scales"),
    pytest.param({"fc.weight": ("U32", (8, 8)), "fc.scales": ("F16", (8, 1))}, "fc.weight", id="mlx without bits"),
    pytest.param({"fc.weight": ("U8", (64, 1))}, "fc.weight", id="bytes in a column"),
)


@pytest.mark.parametrize(("tensors", "named"), UNKNOWN)
def test_an_unknown_layout_is_a_lower_bound_that_names_its_tensor(
    tmp_path: Path, tensors: Described, named: str
) -> None:
    """How many values these integers pack is not known."""
    numbers = measure(folder(tmp_path, {**tensors, "norm.weight": ("F16", (8,))}, {}))
    why = f"no params: '{named}' may hold several weights in each integer: a checkpoint has no operations"
    with pytest.raises(KeyError, match=re.escape(why)):
        numbers["params"]
    assert "model_size" in numbers


def test_buffers_are_told_by_their_names(tmp_path: Path) -> None:
    """GPT-2's file has causal masks of (1, 1, 4, 4) next to weights: the hub's own count takes them for parameters."""
    tensors = {"h.0.attn.bias": ("F32", (1, 1, 4, 4)), "h.0.attn.c_attn.weight": ("F32", (8, 24)),
               "bn.running_var": ("F32", (8,)), "bn.num_batches_tracked": ("I64", ())}  # fmt: skip
    numbers = measure(folder(tmp_path, tensors, {}))
    assert (int(numbers.params), int(numbers.model_size)) == (8 * 24, 4 * (16 + 192 + 8) + 8)
    assert numbers.notes == ("buffers, by their names: 1 x num_batches_tracked, 1 x running_var, 1 x bias",)


def test_a_shape_record_counts_before_bits(tmp_path: Path) -> None:
    """A weight of 6 x 10 in words of 4 bits has padding that the record alone tells."""
    path = write(tmp_path / "net.safetensors", {
        "fc.weight_packed": ("I32", (6, 2)), "fc.weight_scale": ("BF16", (6, 1)), "fc.weight_shape": ("I64", (2,)),
    })  # fmt: skip
    content = path.read_bytes()
    path.write_bytes(content[:-16] + (6).to_bytes(8, "little") + (10).to_bytes(8, "little"))
    assert int(measure(path).params) == 60


def test_torchao_says_its_own_shape(tmp_path: Path) -> None:
    """Flattened tensor subclasses, as torchao's own writer names and describes them."""
    described = {"_type": "Int4TilePackedTo4dTensor", "_data": {"block_size": [1, 32], "shape": [64, 128]},
                 "_tensor_data_names": ["qdata", "scale_and_zero"]}  # fmt: skip
    plain = {"_type": "Int8Tensor", "_data": {"block_size": [1, 64]}, "_tensor_data_names": ["qdata", "scale"]}
    tensors = {"a._weight_qdata": ("I32", (8, 4, 32, 4)), "a._weight_scale_and_zero": ("BF16", (4, 64, 2)),
               "b._weight_qdata": ("I8", (32, 64)), "b._weight_scale": ("F32", (32, 1))}  # fmt: skip
    path = write(
        tmp_path / "net.safetensors", tensors, {"a.weight": json.dumps(described), "b.weight": json.dumps(plain)}
    )
    assert int(measure(path).params) == 64 * 128 + 32 * 64
