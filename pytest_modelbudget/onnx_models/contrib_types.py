"""Result types of operators that onnx knows none of: of ONNX Runtime's optimisers, and of older classical learners."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from onnx import TensorProto

from pytest_modelbudget.graph.tensor import broadcast
from pytest_modelbudget.onnx_models.program import Node
from pytest_modelbudget.onnx_models.value_types import NOTHING_KNOWN, ValueType

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One node: the types of its operands (absent ones know nothing) and its attributes."""

    operands: Sequence[ValueType]
    attributes: Mapping[str, object]

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
        """Whether an operand is there."""
        return position < len(self.operands) and bool(self.operands[position].code)

    def integer(self, name: str, default: int = 0) -> int:
        """An integer attribute."""
        return int(str(self.attributes.get(name, default)))


Results = tuple[ValueType, ...]
TypesOf = Callable[[Call], Results]

# Operators that give what a standard one gives: its name, and which operands that one takes.
DELEGATES: Mapping[str, tuple[str, slice]] = {
    "com.microsoft::FusedConv": ("Conv", slice(0, 3)),
    "com.microsoft.nchwc::Conv": ("Conv", slice(0, 3)),
    "com.microsoft.nchwc::MaxPool": ("MaxPool", slice(0, 1)),
    "com.microsoft.nchwc::AveragePool": ("AveragePool", slice(0, 1)),
    "com.microsoft.nchwc::GlobalAveragePool": ("GlobalAveragePool", slice(0, 1)),
    "com.microsoft.nchwc::GlobalMaxPool": ("GlobalMaxPool", slice(0, 1)),
    "com.microsoft::FusedGemm": ("Gemm", slice(0, 3)),
    "com.microsoft::QLinearConcat": ("Concat", slice(2, None, 3)),
    "com.microsoft::GridSample": ("GridSample", slice(0, 2)),
    "com.microsoft::Trilu": ("Trilu", slice(0, 2)),
}


# Operators of ONNX's own that give what their first operand is, where onnx's inference does not say so: written as
# functions, or in an operator set that is older than they are.
GIVE_THEIR_FIRST = frozenset({
    "onnx::GroupNormalization", "onnx::LayerNormalization", "onnx::MeanVarianceNormalization", "onnx::ThresholdedRelu",
})  # fmt: skip


def contrib_types(node: Node, operands: Mapping[str, ValueType]) -> Results:
    """Types of a contrib operator's results; nothing known where it or an operand is not."""
    nothing = (NOTHING_KNOWN,) * len(node.outputs)
    types_of = CONTRIB_TYPES.get(node.operator)
    if types_of is None:
        return nothing
    known = [operands.get(name, NOTHING_KNOWN) for name in node.inputs]
    try:
        results = types_of(Call(known, node.attributes))
    except (LookupError, ValueError, ZeroDivisionError):
        return nothing
    return (*results, *nothing)[: len(node.outputs)]


def _alike(call: Call) -> Results:
    """The first operand's type."""
    return (ValueType(call.code(0), call.sizes(0)),)


def _quantised(call: Call) -> Results:
    """The first operand in integers of the zero point's type: in every opset of those that only the newest has."""
    return (ValueType(call.code(2) if call.has(2) else TensorProto.UINT8, call.sizes(0)),)


def _dequantised(call: Call) -> Results:
    """The first operand in the type of the scale; of a norm, too, whose operand may be of another one."""
    return (ValueType(call.code(1), call.sizes(0)),)


def _skipped(call: Call) -> Results:
    """A norm after a sum: result, two statistics that inference leaves out, the sum."""
    alike = ValueType(call.code(0), call.sizes(0))
    return alike, NOTHING_KNOWN, NOTHING_KNOWN, alike


def _broadcast(*positions: int, code: int = 0) -> TypesOf:
    """Operands by position, each broadcast to the others; in a type, or that of the first."""

    def types(call: Call) -> Results:
        shape = broadcast(call.sizes(position) for position in positions)
        return (ValueType(code or call.code(positions[0]), shape),)

    return types


def _product(code: int = 0, *, like: int = 0) -> TypesOf:
    """A matrix product of the first two operands, its batch broadcast; in a type, or that of an operand."""

    def types(call: Call) -> Results:
        x = turned(call.sizes(0), call.integer("transA"), call.integer("transBatchA"))
        y = turned(call.sizes(1), call.integer("transB"), call.integer("transBatchB"))
        rank = max(len(x), len(y))
        batches = [(1,) * (rank - len(shape)) + shape[:-2] for shape in (x, y)]
        batch = tuple(max(sizes) for sizes in zip(*batches, strict=True))
        return (ValueType(code or call.code(like), (*batch, x[-2], y[-1])),)

    return types


def turned(shape: Sizes, swapped: int, batch_first: int) -> Sizes:
    """A shape after transBatch (its first dimension goes behind the batch) and trans."""
    if batch_first:
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if swapped else shape


def _packed_product(call: Call) -> Results:
    return (ValueType(call.code(0), (*call.sizes(0)[:-1], call.integer("N"))),)


def _projections(*widths: str) -> TypesOf:
    """Packed products of one input: one of each width, then the sum before its norm."""

    def types(call: Call) -> Results:
        rows = call.sizes(0)[:-1]
        products = (ValueType(call.code(0), (*rows, call.integer(width))) for width in widths)
        return (*products, *_alike(call))

    return types


def _projected(call: Call) -> Results:
    """Attention, QAttention: (b, l, v) and the cache (2, b, h, s, e)."""
    batch, length, _ = call.sizes(0)
    widths = call.attributes.get("qkv_hidden_sizes")
    third = call.sizes(1)[1] // 3
    width = int(widths[2]) if isinstance(widths, tuple) else third
    heads = call.integer("num_heads")
    past = max((size.sizes[3] for size in call.operands[2:] if size.sizes and len(size.sizes) == 5), default=0)
    keys = past if past and call.integer("past_present_share_buffer") else past + length
    code = call.code(0) if call.code(0) in _FLOATS else call.code(2)
    cache = (2, batch, heads, keys, width // heads)
    return ValueType(code, (batch, length, width)), ValueType(code, cache)


def _multi_head(call: Call) -> Results:
    """MultiHeadAttention: (b, l, h·v), then keys and values (b, h, s, e)."""
    query = call.sizes(0)
    batch, length = query[:2]
    heads = call.integer("num_heads")
    e = query[-1] if len(query) == 5 else query[2] // heads
    v, keys = e, length
    if call.has(1):
        key = call.sizes(1)
        keys = key[2] if len(key) == 4 else key[1]
    if call.has(2):
        value = call.sizes(2)
        v = value[3] if len(value) == 4 else value[2] // heads
    if call.has(6):
        keys += call.sizes(6)[2]
    code = call.code(0)
    return (
        ValueType(code, (batch, length, heads * v)),
        ValueType(code, (batch, heads, keys, e)),
        ValueType(code, (batch, heads, keys, v)),
    )


def _decoder_multi_head(call: Call) -> Results:
    """DecoderMaskedMultiHeadAttention: (b, l, h·v), keys and values (b, h, s, e), and scores (b, h, l, s).

    Queries (b, l, h·e) alone, before keys in heads, or packed with new keys and values (b, l, h·(2·e + v)).
    """
    batch, length, width = call.sizes(0)
    heads, code = call.integer("num_heads"), call.code(0)
    if call.has(1) and len(call.sizes(1)) == 4:
        keys, e, v = call.sizes(1)[2], call.sizes(1)[3], call.sizes(2)[3]
    else:
        past, e = call.sizes(5)[2:] if call.has(5) else (0, width // heads // (1 if call.has(1) else 3))
        v = call.sizes(2)[2] // heads if call.has(2) else width // heads - 2 * e
        keys = past if past and call.integer("past_present_share_buffer") else past + length
    return (
        ValueType(code, (batch, length, heads * v)),
        ValueType(code, (batch, heads, keys, e)),
        ValueType(code, (batch, heads, keys, v)),
        ValueType(code, (batch, heads, length, keys)),
    )


def _paged(call: Call) -> Results:
    """PagedAttention: (tokens, h·v) of queries (tokens, h·e) alone, or with keys and values (tokens, (h + 2·h')·e).

    Its caches are the memory of those before, which results here have none of: nothing is known of them.
    """
    tokens, width = call.sizes(0)
    heads, groups = call.integer("num_heads"), call.integer("kv_num_heads")
    e = width // (heads if call.has(1) else heads + 2 * groups)
    return (ValueType(call.code(0), (tokens, heads * call.integer("v_head_size", e))),)


def _packed_projected(call: Call) -> Results:
    """PackedAttention: x (tokens, d) · weight (d, q + k + v) → (tokens, v)."""
    widths = call.attributes.get("qkv_hidden_sizes")
    width = int(widths[2]) if isinstance(widths, tuple) else call.sizes(1)[1] // 3
    return (ValueType(call.code(0), (call.sizes(0)[0], width)),)


def _packed_multi_head(call: Call) -> Results:
    """PackedMultiHeadAttention: (tokens, h·v), of all in (tokens, h, 3, e), or of values."""
    query = call.sizes(0)
    return (ValueType(call.code(0), (query[0], query[1] * query[3] if len(query) == 4 else call.sizes(2)[1])),)


def _padded(call: Call) -> Results:
    """RestorePadding: rows (tokens, d) and places (b, l) give (b, l, d)."""
    return (ValueType(call.code(0), (*call.sizes(1), call.sizes(0)[1])),)


def _halved(call: Call) -> Results:
    """BiasSplitGelu: (..., n) of (..., 2·n)."""
    x = call.sizes(0)
    return (ValueType(call.code(0), (*x[:-1], x[-1] // 2)),)


def _masked(call: Call) -> Results:
    """A dropout: the first operand's type, and which of its elements it keeps."""
    return *_alike(call), ValueType(TensorProto.BOOL, call.sizes(0))


def _twice(call: Call) -> Results:
    """SkipGroupNorm: the norm, and the sum before it."""
    return _alike(call) * 2


def _grouped_query(call: Call) -> Results:
    """GroupQueryAttention: (b, l, h·e), then keys and values (b, h', s, e), stored as those before were."""
    batch, length, width = call.sizes(0)
    heads, groups = call.integer("num_heads"), call.integer("kv_num_heads")
    e = width // (heads if call.has(1) else heads + 2 * groups)
    out = ValueType(call.code(0), (batch, length, heads * e))
    if not call.has(3):
        return (out, *(ValueType(call.code(0), (batch, groups, length, e)),) * 2)
    caches = (
        ValueType(call.code(at), (*call.sizes(at)[:2], call.sizes(at)[2] + length, call.sizes(at)[3])) for at in (3, 4)
    )
    return (out, *caches)


def _linear_attention(call: Call) -> Results:
    """LinearAttention: (b, t, h·v), then the state (b, h', k, v)."""
    batch, length, _ = call.sizes(0)
    heads, groups = call.integer("q_num_heads"), call.integer("kv_num_heads")
    k, v = call.sizes(1)[2] // groups, call.sizes(2)[2] // groups
    state = ValueType(call.code(0), (batch, groups, k, v))
    return ValueType(call.code(0), (batch, length, heads * v)), state


def _embedded(call: Call) -> Results:
    batch, length = call.sizes(0)
    width = call.sizes(2)[1]
    code = call.code(2)
    out = ValueType(code, (batch, length, width))
    return out, ValueType(TensorProto.INT32, (batch,)), out


def _embedded_in_floats(call: Call) -> Results:
    """QEmbedLayerNormalization: what its float form gives, in floats."""
    out, mask, _ = _embedded(call)
    return ValueType(TensorProto.FLOAT, out.sizes), mask


def _gated_bias(call: Call) -> Results:
    """GatedRelativePositionBias: (b, h, l, l), b of queries (b, l, h·e), or of offsets (b, l) of packed ones."""
    batch = call.sizes(6 if call.has(6) else 0)[0]
    return (ValueType(call.code(0), (batch, *call.sizes(2)[1:])),)


def _convolved(*, weight: int = 0, like: int = 0, channels_last: bool = False) -> TypesOf:
    """A convolution (its weight is that operand) or a pool, in an operand's type, with channels last or by attribute.

    x (b, c, ...) with weight (o, c / group, kernel ...), or x (b, ..., c) with weight
    (o, kernel ..., c / group); a weight whose attribute says channels_last stays as in the first.
    """

    def types(call: Call) -> Results:
        x = call.sizes(0)
        last = channels_last or bool(call.integer("channels_last"))
        space, channels = (x[1:-1], x[-1]) if last else (x[2:], x[1])
        kernel = _integers(call, "kernel_shape", ())
        if weight:
            shape = call.sizes(weight)
            kernel, channels = kernel or (shape[1:-1] if channels_last else shape[2:]), shape[0]
        windows = _windows(call, space, kernel)
        return (ValueType(call.code(like), (x[0], *windows, channels) if last else (x[0], channels, *windows)),)

    return types


def _windows(call: Call, space: Sizes, kernel: Sizes) -> Sizes:
    """How many windows fit along each axis. Source: ONNX Conv, AveragePool."""
    rank = len(space)
    strides = _integers(call, "strides", (1,) * rank)
    padding = str(call.attributes.get("auto_pad", "NOTSET"))
    if padding.startswith("SAME"):
        return tuple(-(-size // step) for size, step in zip(space, strides, strict=True))
    pads = _integers(call, "pads", (0,) * (2 * rank)) if padding == "NOTSET" else (0,) * (2 * rank)
    dilations = _integers(call, "dilations", (1,) * rank)
    room = [size + pads[i] + pads[rank + i] - dilations[i] * (kernel[i] - 1) - 1 for i, size in enumerate(space)]
    if call.integer("ceil_mode"):
        return tuple(-(-free // step) + 1 for free, step in zip(room, strides, strict=True))
    return tuple(free // step + 1 for free, step in zip(room, strides, strict=True))


def _integer_gemm(call: Call) -> Results:
    """QGemm: x (m, k) · weight (k, n), in the type of the result's zero point, and floating without one."""
    x = turned(call.sizes(0), call.integer("transA"), 0)
    y = turned(call.sizes(3), call.integer("transB"), 0)
    code = call.code(8) if call.has(8) else TensorProto.FLOAT
    return (ValueType(code, (x[0], y[1])),)


def _reordered(call: Call) -> Results:
    """ReorderOutput: (b, c, ...) with as many channels as the attribute says."""
    x = call.sizes(0)
    shape = (x[0], call.integer("channels", x[1]), *x[2:])
    if call.integer("channels_last"):
        shape = (shape[0], *shape[2:], shape[1])
    return (ValueType(call.code(0), shape),)


def _pooled_to_one(call: Call) -> Results:
    """Global pooling over (b, c, ...), or (b, ..., c) where channels come last."""
    x = call.sizes(0)
    ones = (1,) * (len(x) - 2)
    last = call.integer("channels_last")
    return (ValueType(call.code(0), (x[0], *ones, x[-1]) if last else (*x[:2], *ones)),)


def _reduced(call: Call) -> Results:
    """QLinearReduceMean: over some axes, or all, which stay as 1 unless an attribute says otherwise."""
    x = call.sizes(0)
    axes = {axis % len(x) for axis in _integers(call, "axes", tuple(range(len(x))))}
    kept = call.integer("keepdims", 1)
    shape = tuple(1 if at in axes else size for at, size in enumerate(x) if kept or at not in axes)
    return (ValueType(call.code(0), shape),)


def _recurrent(call: Call) -> Results:
    """DynamicQuantizeLSTM: x (t, b, k) gives (t, d, b, h), and twice the last of that, (d, b, h)."""
    steps, batch, _ = call.sizes(0)
    directions = 2 if call.attributes.get("direction") == "bidirectional" else 1
    last = ValueType(call.code(0), (directions, batch, call.integer("hidden_size", call.sizes(2)[1])))
    return ValueType(call.code(0), (steps, *(last.sizes or ()))), last, last


def _gathered_blocks(call: Call) -> Results:
    """Rows (axis 0) of a packed table; uint8 entries hold 8 / bits elements each."""
    table, indices = call.sizes(0), call.sizes(1)
    packing = 8 // call.integer("bits", 4) if call.code(0) == TensorProto.UINT8 else 1
    if call.integer("gather_axis"):
        raise LookupError("only rows are known")
    row = (*table[1:-1], table[-1] * packing)
    return (ValueType(call.code(2), (*indices, *row)),)


def _floats_alike(call: Call) -> Results:
    """The first operand's shape, in floats."""
    return (ValueType(TensorProto.FLOAT, call.sizes(0)),)


def _rows(call: Call) -> int:
    """Rows of x (n, k); x (k,) is one."""
    x = call.sizes(0)
    return x[0] if len(x) > 1 else 1


def _a_row_each(width: str, default: int = 0) -> TypesOf:
    """As many floats for each row as an attribute says, or the sum of what it lists."""

    def types(call: Call) -> Results:
        value = call.attributes.get(width, default)
        columns = sum(value) if isinstance(value, tuple) else int(str(value))
        if not columns:
            raise LookupError(width)
        return (ValueType(TensorProto.FLOAT, (_rows(call), columns)),)

    return types


def _classified(call: Call) -> Results:
    """A label for each row, and a score for each row and class."""
    numbers = _integers(call, "classlabels_int64s", _integers(call, "classlabels_ints", ()))
    classes = numbers or call.attributes["classlabels_strings"]
    assert isinstance(classes, tuple)
    rows, code = _rows(call), TensorProto.INT64 if numbers else TensorProto.STRING
    return ValueType(code, (rows,)), ValueType(TensorProto.FLOAT, (rows, len(classes)))


def _voted(call: Call) -> Results:
    """A label for each row; scores of classes, and without probabilities of each two of more than two classes."""
    labels, scores = _classified(call)
    rows, classes = scores.sizes or ()
    if classes > 2 and call.attributes.get("vectors_per_class") and not call.attributes.get("prob_a"):
        return labels, ValueType(TensorProto.FLOAT, (rows, classes * (classes - 1) // 2))
    return labels, scores


def _extracted(call: Call) -> Results:
    """ArrayFeatureExtractor: x (..., k) and indices (m,) give (..., m); of x (k,), (1, m)."""
    return (ValueType(call.code(0), (*(call.sizes(0)[:-1] or (1,)), prod(call.sizes(1)))),)


def _integers(call: Call, name: str, default: Sizes) -> Sizes:
    value = call.attributes.get(name, default)
    return value if isinstance(value, tuple) else default


_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
_ALIKE = (
    "BiasAdd BiasGelu BiasSoftmax FastGelu Gelu GroupNorm LongformerAttention MoE QLinearLeakyRelu QMoE "
    "QLinearSigmoid QLinearSoftmax QuickGelu RotaryEmbedding"
)
CONTRIB_TYPES: Mapping[str, TypesOf] = {
    **{f"com.microsoft::{name}": _alike for name in _ALIKE.split()},
    "onnx::SimplifiedLayerNormalization": _dequantised,
    "com.microsoft::QuantizeLinear": _quantised,
    "com.microsoft::DequantizeLinear": _dequantised,
    "com.microsoft::SkipLayerNormalization": _skipped,
    "com.microsoft::SkipSimplifiedLayerNormalization": _skipped,
    "com.microsoft::QLinearAdd": _broadcast(0, 3),
    "com.microsoft::QLinearMul": _broadcast(0, 3),
    "com.microsoft::QLinearWhere": _broadcast(1, 0, 4),
    "com.microsoft::SkipGroupNorm": _twice,
    "com.microsoft::BiasDropout": _masked,
    "com.microsoft::BiasSplitGelu": _halved,
    "com.microsoft::FusedMatMul": _product(),
    "com.microsoft::FusedMatMulActivation": _product(),
    "com.microsoft::GemmFastGelu": _product(),
    "com.microsoft::TransposeMatMul": _product(),
    "com.microsoft::MatMulInteger16": _product(TensorProto.INT32),
    "com.microsoft::DynamicQuantizeMatMul": _product(TensorProto.FLOAT),
    "com.microsoft::MatMulIntegerToFloat": _product(like=2),
    "com.microsoft::MatMulNBits": _packed_product,
    "com.microsoft::MatMulBnb4": _packed_product,
    "com.microsoft::MatMulNBitsMlp": _projections("N"),
    "com.microsoft::MatMulNBitsQkv": _projections("Nq", "Nkv", "Nkv"),
    "com.microsoft::Attention": _projected,
    "com.microsoft::QAttention": _projected,
    "com.microsoft::MultiHeadAttention": _multi_head,
    "com.microsoft::DecoderMaskedMultiHeadAttention": _decoder_multi_head,
    "com.microsoft::DecoderMaskedSelfAttention": _projected,
    "com.microsoft::PackedAttention": _packed_projected,
    "com.microsoft::PackedMultiHeadAttention": _packed_multi_head,
    "com.microsoft::PagedAttention": _paged,
    "com.microsoft::RestorePadding": _padded,
    "com.microsoft::GroupQueryAttention": _grouped_query,
    "com.microsoft::EmbedLayerNormalization": _embedded,
    "com.microsoft::QEmbedLayerNormalization": _embedded_in_floats,
    "com.microsoft::GatedRelativePositionBias": _gated_bias,
    "com.microsoft::NhwcConv": _convolved(weight=1, channels_last=True),
    "com.microsoft::NhwcFusedConv": _convolved(weight=1, channels_last=True),
    "com.microsoft::NhwcMaxPool": _convolved(channels_last=True),
    "com.microsoft::QLinearConv": _convolved(weight=3, like=7),
    "com.microsoft::QLinearAveragePool": _convolved(),
    "com.microsoft::QGemm": _integer_gemm,
    "com.microsoft.nchwc::ReorderInput": _alike,
    "com.microsoft.nchwc::ReorderOutput": _reordered,
    "com.microsoft::QLinearGlobalAveragePool": _pooled_to_one,
    "com.microsoft::QLinearReduceMean": _reduced,
    "com.microsoft::DynamicQuantizeLSTM": _recurrent,
    "com.microsoft::MulInteger": _broadcast(0, 2, code=TensorProto.INT32),
    "com.microsoft::LinearAttention": _linear_attention,
    "com.microsoft::GatherBlockQuantized": _gathered_blocks,
    "ai.onnx.ml::ArrayFeatureExtractor": _extracted,
    "ai.onnx.ml::FeatureVectorizer": _a_row_each("inputdimensions"),
    "ai.onnx.ml::Imputer": _alike,
    "ai.onnx.ml::LinearRegressor": _a_row_each("targets", 1),
    "ai.onnx.ml::Normalizer": _floats_alike,
    "ai.onnx.ml::Scaler": _floats_alike,
    "ai.onnx.ml::SVMClassifier": _voted,
    "ai.onnx.ml::SVMRegressor": _a_row_each("n_targets", 1),
    "ai.onnx.ml::TreeEnsembleClassifier": _classified,
    "ai.onnx.ml::TreeEnsembleRegressor": _a_row_each("n_targets"),
}
