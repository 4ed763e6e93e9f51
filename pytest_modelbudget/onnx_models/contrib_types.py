"""Result types of operators of which neither onnx nor ONNX Runtime says a shape, or a right one: a row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto

from pytest_modelbudget.onnx_models.program import Node
from pytest_modelbudget.onnx_models.value_types import NOTHING_KNOWN, TYPE_CODES, ValueType

Sizes = tuple[int, ...]
Results = Sequence[ValueType]


@dataclass(frozen=True, slots=True)
class Call:
    """One node: the types of its operands (absent ones know nothing), its attributes, and values by position."""

    operands: Sequence[ValueType]
    attributes: Mapping[str, object]
    value: Callable[[int], Any] = lambda position: None

    def sizes(self, position: int) -> Sizes:
        """The shape of an operand. Raises LookupError where it is absent or not known."""
        sizes = self.operands[position].sizes
        if sizes is None:
            raise LookupError(position)
        return sizes

    def code(self, position: int) -> int:
        """The element type of an operand."""
        return self.operands[position].code

    def has(self, position: int) -> bool:
        return position < len(self.operands) and bool(self.operands[position].code)

    def integer(self, name: str, default: int = 0) -> int:
        """An integer attribute."""
        return int(str(self.attributes.get(name, default)))

    def integers(self, name: str, default: Sizes = ()) -> Sizes:
        """An attribute of several integers."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, tuple) else default

    def typed(self, *sizes: int, code: int = 0) -> ValueType:
        """A type of these sizes, of the first operand's elements or of others."""
        return ValueType(code or self.code(0), sizes)


def types_by_row(node: Node, operands: Sequence[ValueType], value: Callable[[int], Any]) -> Results:
    """Types of the results of an operator with a row; none where something that decides them is not known."""
    try:
        return ROWS[node.operator](Call(operands, node.attributes, value))
    except (LookupError, TypeError, ValueError, ArithmeticError):
        return ()


def _alike(call: Call) -> Results:
    return [call.typed(*call.sizes(0))]


def _floats_alike(call: Call) -> Results:
    return [call.typed(*call.sizes(0), code=TensorProto.FLOAT)]


def _quantised_to(code: int, scales: int = 0, block: int = 1) -> Callable[[Call], Results]:
    """As x in another type; where scales has a type, too, one of these for each block of the last axis."""

    def types(call: Call) -> Results:
        *rows, columns = call.sizes(0)
        first = call.typed(*rows, columns, code=code)
        return [first, call.typed(*rows, -(-columns // block), code=scales)] if scales else [first]

    return types


def _dequantised(call: Call) -> Results:
    """As x, in the type of its scale."""
    return [call.typed(*call.sizes(0), code=call.code(1))]


def _statistics(call: Call) -> Results:
    """BatchNormalization: its further results, of which onnx says nothing before opset 14, are as its statistics."""
    return [NOTHING_KNOWN, *[call.operands[4]] * 4]


def _kept(call: Call) -> Results:
    """Compress: as many slices of x as a condition has true ones, which may be shorter than their axis."""
    x, condition, axis = call.sizes(0), call.value(1), call.attributes.get("axis")
    if axis is None:
        return [call.typed(int(np.count_nonzero(condition[: prod(x)])))]
    at = range(len(x))[call.integer("axis")]
    return [call.typed(*x[:at], int(np.count_nonzero(condition[: x[at]])), *x[at + 1 :])]


def _transformed(call: Call) -> Results:
    """STFT: (b, frames, bins, 2) of x (b, n, ...); onnx's inference takes two sides where nothing is said."""
    (batch, n), length = call.sizes(0)[:2], int(call.value(3)) if call.has(3) else call.sizes(2)[0]
    bins = length // 2 + 1 if call.integer("onesided", 1) else length
    return [call.typed(batch, (n - length) // int(call.value(1)) + 1, bins, 2)]


def _resized(call: Call) -> Results:
    """Resize and Upsample: as large as sizes say, else each size times its scale, as ONNX Runtime multiplies.

    That is in float32: 20 · float32(0.7) is 14 there, and 13.999… in the doubles of onnx's inference.
    Source: UpsampleBase::ComputeOutputShape of onnxruntime. Sizes that keep an aspect are left to ONNX Runtime.
    """
    x, shape = call.sizes(0), list(call.sizes(0))
    axes, made = call.integers("axes", tuple(range(len(x)))), [*call.value(3)] if call.has(3) else []
    if call.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise LookupError("keep_aspect_ratio_policy")
    if not made:
        at = len(call.operands) - 1 if len(call.operands) < 3 else 2
        scales: Any = call.value(at) if at else call.attributes["scales"]
        made = [np.float32(x[axis]) * np.float32(scale) for axis, scale in zip(axes, scales, strict=True)]
    for axis, size in zip(axes, made, strict=True):
        shape[axis] = int(size)
    return [call.typed(*shape)]


def _unpooled(call: Call) -> Results:
    """MaxUnpool: as large as its third operand says."""
    return [call.typed(*map(int, call.value(2)))]


def _cached(call: Call) -> Results:
    """GroupQueryAttention: (b, l, h·e), then keys and values (b, h', s, e), stored as those before were."""
    length = call.sizes(0)[1]
    caches = [(call.code(at), call.sizes(at)) for at in (3, 4)]
    return [NOTHING_KNOWN, *(call.typed(b, h, past + length, e, code=code) for code, (b, h, past, e) in caches)]


def _skipped(call: Call) -> Results:
    """A norm after a sum: result, two statistics that inference leaves out, the sum."""
    return [NOTHING_KNOWN, NOTHING_KNOWN, NOTHING_KNOWN, *_alike(call)]


def _decoder_multi_head(call: Call) -> Results:
    """DecoderMaskedMultiHeadAttention: (b, l, h·v), keys and values (b, h, s, e), and scores (b, h, l, s).

    Queries (b, l, h·e) alone, before keys in heads, or packed with new keys and values (b, l, h·(2·e + v)).
    """
    batch, length, width = call.sizes(0)
    heads = call.integer("num_heads")
    if call.has(1) and len(call.sizes(1)) == 4:
        keys, e, v = call.sizes(1)[2], call.sizes(1)[3], call.sizes(2)[3]
    else:
        past, e = call.sizes(5)[2:] if call.has(5) else (0, width // heads // (1 if call.has(1) else 3))
        v = call.sizes(2)[2] // heads if call.has(2) else width // heads - 2 * e
        keys = past if past and call.integer("past_present_share_buffer") else past + length
    shapes = (batch, length, heads * v), (batch, heads, keys, e), (batch, heads, keys, v), (batch, heads, length, keys)
    return [call.typed(*shape) for shape in shapes]


def _projected(call: Call) -> Results:
    """Attention: (b, l, v) and the cache (2, b, h, s, e), which may be that before."""
    batch, length, _ = call.sizes(0)
    third, heads = call.sizes(1)[1] // 3, call.integer("num_heads")
    width = call.integers("qkv_hidden_sizes", (third,) * 3)[2]
    past = call.sizes(4)[3] if call.has(4) else 0
    keys = past if past and call.integer("past_present_share_buffer") else past + length
    return [call.typed(batch, length, width), call.typed(2, batch, heads, keys, width // heads)]


def _rows(call: Call) -> int:
    """Rows of x (n, k); x (k,) is one."""
    x = call.sizes(0)
    return x[0] if len(x) > 1 else 1


def _a_row_each(width: str, default: int = 0) -> Callable[[Call], Results]:
    """As many floats for each row as an attribute says."""

    def types(call: Call) -> Results:
        columns = call.integer(width, default)
        return [call.typed(_rows(call), columns, code=TensorProto.FLOAT)] if columns else ()

    return types


def _classified(call: Call) -> Results:
    """A label for each row, and a score for each row and class; of two each, where votes are counted by pairs."""
    numbers = call.integers("classlabels_int64s", call.integers("classlabels_ints"))
    classes = len(numbers or call.integers("classlabels_strings")) or 1
    if classes > 2 and call.attributes.get("vectors_per_class") and not call.attributes.get("prob_a"):
        classes = classes * (classes - 1) // 2
    labels = call.typed(_rows(call), code=TensorProto.INT64 if numbers else TensorProto.STRING)
    return [labels, call.typed(_rows(call), classes, code=TensorProto.FLOAT)]


def _linear_classes(call: Call) -> Results:
    """LinearClassifier without intercepts, by which onnx's inference counts its scores."""
    return () if "intercepts" in call.attributes else _classified(call)


def _extracted(call: Call) -> Results:
    """ArrayFeatureExtractor: x (..., k) and indices (m,) give (..., m); of x (k,), (1, m)."""
    return [call.typed(*(call.sizes(0)[:-1] or (1,)), prod(call.sizes(1)))]


FP8, FP4, BLOCK_SCALE = (TYPE_CODES[name] for name in ("FLOAT8E4M3FN", "FLOAT4E2M1", "FLOAT8E8M0"))
QONNX = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")
ROWS: Mapping[str, Callable[[Call], Results]] = {
    **{
        f"{domain}::{name}": _alike
        for domain in QONNX
        for name in ("Quant", "IntQuant", "BipolarQuant", "FloatQuant", "Trunc")
    },
    **{f"trt::{name}DequantizeLinear": _dequantised for name in ("", "TRT_FP8", "TRT_INT4", "TRT_MXFP8")},
    "trt::QuantizeLinear": _quantised_to(TensorProto.INT8),
    "trt::TRT_FP8QuantizeLinear": _quantised_to(FP8),
    "trt::TRT_INT4QuantizeLinear": _quantised_to(TensorProto.INT4),
    "trt::TRT_MXFP8QuantizeLinear": _quantised_to(FP8),
    "trt::TRT_MXFP8DynamicQuantize": _quantised_to(FP8, BLOCK_SCALE, 32),
    "trt::TRT_FP4DynamicQuantize": _quantised_to(FP4, FP8, 16),
    "trt::TRT_FP4QDQ": _alike,
    "onnx::BatchNormalization": _statistics,
    "onnx::Compress": _kept,
    "onnx::MaxUnpool": _unpooled,
    "onnx::Resize": _resized,
    "onnx::STFT": _transformed,
    "onnx::Upsample": _resized,
    "com.microsoft::DecoderMaskedMultiHeadAttention": _decoder_multi_head,
    "com.microsoft::Attention": _projected,
    "com.microsoft::GroupQueryAttention": _cached,
    "com.microsoft::SkipLayerNormalization": _skipped,
    "com.microsoft::SkipSimplifiedLayerNormalization": _skipped,
    "ai.onnx.ml::ArrayFeatureExtractor": _extracted,
    "ai.onnx.ml::Imputer": _alike,
    "ai.onnx.ml::LinearClassifier": _linear_classes,
    "ai.onnx.ml::LinearRegressor": _a_row_each("targets", 1),
    "ai.onnx.ml::Normalizer": _floats_alike,
    "ai.onnx.ml::Scaler": _floats_alike,
    "ai.onnx.ml::SVMClassifier": _classified,
    "ai.onnx.ml::SVMRegressor": _a_row_each("n_targets", 1),
    "ai.onnx.ml::TreeEnsembleClassifier": _classified,
    "ai.onnx.ml::TreeEnsembleRegressor": _a_row_each("n_targets"),
}
