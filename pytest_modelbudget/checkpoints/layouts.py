"""How quantisers lay weights out in checkpoints: which tensors pack several values, and which only scale them.

A layout is recognised by the names and types around a packed tensor. One that is not in the table leaves its integers
unknown, which makes ``params`` a lower bound that names them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

from pytest_modelbudget.checkpoints.stored import Checkpoint, StoredTensor, reading
from pytest_modelbudget.graph.tensor import StorageKind

PARAMETER, QUANTISER, BUFFER = StorageKind.PARAMETER, StorageKind.QUANTISER, StorageKind.BUFFER


@dataclass(frozen=True, slots=True)
class Role:
    """What a stored tensor is; logical is its number of values, None where its elements are these."""

    kind: StorageKind
    logical: int | None = None
    layout: str = ""


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed tensor: what its layer is called, the tensors whose names begin so, and its settings."""

    tensor: StoredTensor
    stem: str
    around: Mapping[str, StoredTensor]
    settings: Mapping[str, Any]


Logical = Callable[[Packed], "int | None"]


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to store a weight.

    The packed tensor is named STEM + suffix, and is of one of these types. needs are endings behind the stem, all of
    which must be there; more are those of other tensors that scale or describe it.
    """

    key: str
    suffix: str
    types: frozenset[str]
    needs: tuple[str, ...]
    logical: Logical
    more: tuple[str, ...] = ()


def times(count: int) -> Logical:
    """So many values in each element."""
    return lambda packed: packed.tensor.elements * count


def _in_bits(packed: Packed, bits: Fraction) -> int | None:
    values = packed.tensor.elements * Fraction(packed.tensor.dtype.bits) / bits
    return int(values) if values.denominator == 1 else None


def by_setting(packed: Packed) -> int | None:
    """By the bits that config.json names, for this layer or for all."""
    own = packed.settings.get(packed.stem)
    bits = (own if isinstance(own, Mapping) else packed.settings).get("bits")
    return _in_bits(packed, Fraction(bits)) if isinstance(bits, int) and 0 < bits <= 32 else None


def by_zero_points(packed: Packed) -> int | None:
    """By the zero points, which are packed like the weight: scales (groups, n), qzeros (groups, n · bits ÷ 32)."""
    scales, zeros = packed.around[".scales"].elements, packed.around[".qzeros"]
    if not scales or not zeros.elements:
        return by_setting(packed)
    bits = Fraction(zeros.elements * int(zeros.dtype.bits), scales)
    return _in_bits(packed, bits) if bits.denominator == 1 and 0 < bits <= 8 else by_setting(packed)


def by_shape_record(packed: Packed) -> int | None:
    """By the sizes in the record that belongs to it; else by the bits of config.json.

    An archive gives a record no position in the file: a storage counts elements, and compression hides bytes.
    """
    record = packed.around["_shape"]
    if not record.offset or record.storage:
        return by_setting(packed)
    if record.elements == len(packed.tensor.shape) and record.dtype.name == "int64":
        with reading(record.file), record.file.open("rb") as file:
            file.seek(record.offset)
            content = file.read(record.nbytes)
        sizes = [int.from_bytes(content[at : at + 8], "little", signed=True) for at in range(0, len(content), 8)]
        fewest, most = packed.tensor.elements, packed.tensor.elements * int(packed.tensor.dtype.bits)
        if min(sizes, default=0) > 0 and fewest <= prod(sizes) <= most:
            return prod(sizes)
    return by_setting(packed)


INT32, UINT8 = frozenset({"int32"}), frozenset({"uint8"})
EIGHT_BITS = frozenset({"float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "int8"})
NESTED = (".nested_absmax", ".nested_quant_map", *(f".quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4")))
LAYOUTS = (
    Layout("compressed-tensors", "_packed", INT32, ("_scale", "_shape"), by_shape_record, ("_zero_point", "_g_idx")),
    Layout("NVFP4", "_packed", UINT8, ("_scale", "_global_scale"), times(2)),
    Layout("MXFP4", "_packed", UINT8, ("_scale",), times(2)),
    Layout("GPTQ", ".qweight", INT32, (".qzeros", ".scales", ".g_idx"), by_zero_points),
    Layout("AWQ", ".qweight", INT32, (".qzeros", ".scales"), by_zero_points),
    Layout("bitsandbytes", "", UINT8, (".absmax", ".quant_map"), times(2), NESTED),
    Layout("bitsandbytes int8", ".weight", frozenset({"int8"}), (".SCB",), times(1), (".weight_format",)),
    Layout("MLX", ".weight", frozenset({"uint32"}), (".scales",), by_setting, (".biases",)),
    Layout("MXFP4", "_blocks", UINT8, ("_scales",), times(2)),
    Layout("NVFP4", "", UINT8, ("_scale", "_scale_2"), times(2)),
    Layout("FP8", "", EIGHT_BITS, ("_scale_inv",), times(1)),
    Layout("8 bits", "", EIGHT_BITS, ("_scale",), times(1), ("_zero_point",)),
)
ACTIVATION_SCALES = ("input_scale", "output_scale", "k_scale", "v_scale", "input_zero_point", "input_global_scale")

# torchao: values in an element of each tensor subclass's qdata, where the subclass writes no shape.
TORCHAO = {"Int4Tensor": 2, "Int8Tensor": 1, "IntxUnpackedToInt8Tensor": 1, "Float8Tensor": 1, "NVFP4Tensor": 2}

# Buffers of public models that files store like weights: of batch norms, of rotary positions, and GPT-2's causal
# masks, (1, 1, 1024, 1024): https://huggingface.co/openai-community/gpt2
BUFFERS = ("running_mean", "running_var", "num_batches_tracked", "inv_freq", "masked_bias", "position_ids")
MASK = "attn.bias"
# llama.cpp's files have factors of rotary positions, of Llama 3.x and of long contexts (LLM_TENSOR_ROPE_FREQS):
# https://github.com/ggml-org/llama.cpp/blob/master/src/llama-arch.cpp
GGUF_BUFFERS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def roles(checkpoint: Checkpoint) -> Mapping[str, Role]:
    """The role of each tensor, by name."""
    by_name = {tensor.name: tensor for tensor in checkpoint.tensors}
    settings = _settings(checkpoint.config)
    found = {tensor.name: _as_described(tensor) for tensor in by_name.values() if tensor.logical is not None}
    found.update(_of_torchao(checkpoint.metadata, by_name))
    for tensor in checkpoint.tensors:
        if tensor.name not in found:
            found.update(_of_layout(tensor, by_name, settings))
    return {name: found.get(name) or _alone(tensor) for name, tensor in by_name.items()}


def _settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What config.json says of quantisation, with one number of bits where its groups agree on one."""
    settings = next((said for key in SETTINGS if isinstance(said := config.get(key), Mapping)), {})
    groups = settings.get("config_groups")
    weights = (
        [each.get("weights") for each in groups.values() if isinstance(each, Mapping)]
        if isinstance(groups, Mapping)
        else []
    )
    bits = {each.get("num_bits") for each in weights if isinstance(each, Mapping)}
    return {"bits": settings.get("w_bit"), **({"bits": bits.pop()} if len(bits) == 1 else {}), **settings}


SETTINGS = ("quantization_config", "compression_config", "quantization")


def _of_layout(
    tensor: StoredTensor, by_name: Mapping[str, StoredTensor], settings: Mapping[str, Any]
) -> Mapping[str, Role]:
    """The roles of a packed tensor and of all that scales it; nothing of one that no layout claims."""
    for layout in LAYOUTS:
        stem = tensor.name.removesuffix(layout.suffix)
        if tensor.dtype.name not in layout.types or not tensor.name.endswith(layout.suffix):
            continue
        if all(stem + ending in by_name for ending in layout.needs):
            endings = (*layout.needs, *layout.more)
            around = {ending: by_name[stem + ending] for ending in endings if stem + ending in by_name}
            scales = {each.name: Role(QUANTISER) for each in around.values()}
            logical = layout.logical(Packed(tensor, stem, around, settings))
            return scales if logical is None else {**scales, tensor.name: Role(PARAMETER, logical, layout.key)}
    return {}


def _of_torchao(metadata: Mapping[str, Any], by_name: Mapping[str, StoredTensor]) -> Iterator[tuple[str, Role]]:
    """The flattened parts of torchao's tensor subclasses: "fc.weight" is in "fc._weight_qdata" and its like."""
    for name, text in metadata.items():
        described = _json_object(text) if isinstance(text, str) and '"_tensor_data_names"' in text else {}
        owner, _, own = name.rpartition(".")
        parts = [part for part in described.get("_tensor_data_names", ()) if isinstance(part, str)]
        for part in parts:
            flat = f"{owner}._{own}_{part}"
            if flat in by_name:
                logical = _values_of(described, by_name[flat]) if part == "qdata" else None
                if part != "qdata" or logical is not None:
                    yield flat, Role(QUANTISER) if logical is None else Role(PARAMETER, logical, "torchao")


def _json_object(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _values_of(described: Mapping[str, Any], qdata: StoredTensor) -> int | None:
    """The values of a tensor subclass, by its own shape or its class; None of another class."""
    details = described.get("_data")
    shape = details.get("shape") if isinstance(details, Mapping) else None
    if isinstance(shape, list) and shape and all(isinstance(size, int) and size >= 0 for size in shape):
        return prod(shape)
    count = TORCHAO.get(str(described.get("_type")))
    return None if count is None else qdata.elements * count


def _as_described(tensor: StoredTensor) -> Role:
    """The role of a tensor whose file says its number of values."""
    is_buffer = tensor.file.suffix == ".gguf" and tensor.name in GGUF_BUFFERS
    return Role(BUFFER if is_buffer else PARAMETER, tensor.logical)


def _alone(tensor: StoredTensor) -> Role:
    """The role of a tensor that no layout claims, by its name and type.

    Integers of 8 bits count as parameters, and wider ones as none: of neither is known how many values they pack.
    """
    last = tensor.name.rpartition(".")[2]
    if last in BUFFERS or (len(tensor.shape) == 4 and tensor.name.endswith(MASK)):
        return Role(BUFFER, tensor.elements)
    if last in ACTIVATION_SCALES:
        return Role(QUANTISER)
    is_weight = not tensor.dtype.is_integer or tensor.dtype.bits == 8
    return Role(PARAMETER if is_weight and tensor.dtype.name != "bool" else BUFFER)
