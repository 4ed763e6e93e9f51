"""What an operator asks of its operands' shapes together, where onnx's inference lets pass what no runtime runs.

Each check takes operands and the first result, of shapes that are all known, and says what does not fit, or "".
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from math import prod

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.onnx_models.contrib_types import Call, turned
from pytest_modelbudget.onnx_models.program import Node
from pytest_modelbudget.onnx_models.value_types import ValueType

Sizes = tuple[int, ...]
Check = Callable[[Call, Sizes], str]  # operands and attributes, the first result's shape
# Whose result onnx's inference does not know, or not where they do not fit, so that a declared one would stand.
BY_OPERANDS_ALONE = frozenset({
    "com.microsoft::EmbedLayerNormalization", "com.microsoft::FusedConv", "onnx::Attention", "onnx::Conv",
    "onnx::ConvInteger", "onnx::ConvTranspose", "onnx::GroupNormalization", "onnx::QLinearConv",
})  # fmt: skip


class MisfitError(SourceError):
    """A node that no runtime runs on operands of these shapes."""


def check_fit(node: Node, operands: Sequence[ValueType], results: Sequence[ValueType]) -> None:
    """Raise MisfitError where operands of a node do not fit together; of shapes that are not known, nothing is said."""
    result = results[0].sizes if results else None
    if result is None and node.operator not in BY_OPERANDS_ALONE:
        return
    for name, known in zip(node.inputs, operands, strict=True):
        if name and known.sizes is None:
            return
    try:
        why = CHECKS[node.operator](Call(operands, node.attributes), result or ())
    except (LookupError, ZeroDivisionError):  # an operand is absent, or has fewer axes or heads than it must have
        why = _operands(node, operands)
    if why:
        raise misfit(node, operands, why)


def misfit(node: Node, operands: Sequence[ValueType], why: str = "") -> MisfitError:
    """The error that says what a node cannot take: why, or its operands by their shapes."""
    place, shown = node.proto.name or node.result, why or _operands(node, operands)
    return MisfitError(f"{node.operator} '{place}' cannot take {shown}: check the model, and sizes in dims")


def _operands(node: Node, operands: Sequence[ValueType]) -> str:
    """The shapes of operands, without those that say how large or where."""
    pairs = zip(operands, node.roles, strict=True)
    return " and ".join(_shown(known.sizes) for known, role in pairs if known.sizes and not role.shape) or "them"


def _shown(sizes: Sequence[int] | None) -> str:
    return "x".join(map(str, sizes or ())) or "one number"


def _spreads(part: Sizes, whole: Sizes) -> bool:
    """Whether a shape is broadcast to another one, and that stays as it is."""
    padded = (1,) * (len(whole) - len(part)) + part
    return len(part) <= len(whole) and all(size in {1, other} for size, other in zip(padded, whole, strict=True))


PADDINGS = frozenset({"NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"})


def _window(call: Call, x: Sizes, filters: Sizes) -> str:
    """A convolution that no window fits into; pools of ONNX Runtime give an empty result there."""
    padding = call.attributes.get("auto_pad", "NOTSET")
    if padding not in PADDINGS:
        return f"auto_pad '{padding}'"
    pads = _per_side(call, len(x) - 2) if padding == "NOTSET" else repeat(0)
    is_padded = str(padding).startswith("SAME")
    for size, extent, pad in zip(x[2:], _extents(call, filters), pads, strict=False):
        if size + pad < (1 if is_padded else extent):
            return f"{_shown(x)}, which is smaller than its window"
    return ""


def _extents(call: Call, filters: Sizes) -> Sizes:
    """How many elements a filter covers along each axis, the gaps of a dilation included."""
    kernel = filters[2:]
    steps = _integers(call, "dilations", len(kernel), 1)
    return tuple(step * (size - 1) + 1 for size, step in zip(kernel, steps, strict=True))


def _integers(call: Call, name: str, count: int, default: int) -> Sizes:
    """An attribute of one number for each axis. Raises LookupError where it has another length."""
    found = call.attributes.get(name) or (default,) * count
    if not isinstance(found, tuple) or len(found) != count:
        raise LookupError(name)
    return found


def _per_side(call: Call, rank: int) -> Sizes:
    """How much is padded along each axis, on both of its sides together."""
    pads = _integers(call, "pads", 2 * rank, 0)
    return tuple(map(sum, zip(pads[:rank], pads[rank:], strict=True)))


def _convolution(*, weight: int = 1, bias: int = 2, grid: Sequence[int] = ()) -> Check:
    """x (batch, c, ...), weight (out, c / groups, kernel ...), bias (out,); of a grid one number, or (out,)."""

    def check(call: Call, result: Sizes) -> str:
        x, filters, groups = call.sizes(0), call.sizes(weight), call.integer("group", 1)
        return (
            _channels(x, filters, filters[1] * groups)
            or (f"{filters[0]} filters in {groups} groups" if filters[0] % groups else "")
            or _kernel(call, filters)
            or _one_each(call, bias, filters[0])
            or next(filter(None, (_one_or_each(call, at, filters[0]) for at in grid)), "")
            or _window(call, x, filters)
        )

    return check


def _transposed(call: Call, result: Sizes) -> str:
    """x (batch, c, ...), weight (c, out / groups, kernel ...), bias (out,)."""
    x, filters, groups = call.sizes(0), call.sizes(1), call.integer("group", 1)
    return (
        _channels(x, filters, filters[0])
        or (f"{filters[0]} channels in {groups} groups" if filters[0] % groups else "")
        or _kernel(call, filters)
        or _one_each(call, 2, filters[1] * groups)
        or _spread_out(call, x, filters)
    )


def _spread_out(call: Call, x: Sizes, filters: Sizes) -> str:
    """A transposed convolution of which nothing is left, or whose result is larger than what its filters reach."""
    rank = len(x) - 2
    strides, steps = (_integers(call, name, rank, 1) for name in ("strides", "dilations"))
    added = _integers(call, "output_padding", rank, 0)
    if any(extra >= max(pair) for extra, *pair in zip(added, strides, steps, strict=True) if extra):
        return f"output_padding {_shown(added)} with strides {_shown(strides)}"
    if "output_shape" in call.attributes or call.attributes.get("auto_pad", "NOTSET") != "NOTSET":
        return ""
    sides = zip(x[2:], strides, added, _extents(call, filters), _per_side(call, rank), strict=True)
    is_left = all(stride * (size - 1) + extra + extent > pad for size, stride, extra, extent, pad in sides)
    return "" if is_left else f"{_shown(x)}, of which its pads leave nothing"


def _deformed(call: Call, result: Sizes) -> str:
    """DeformConv: a convolution with offsets (b, 2·g·kernel, windows ...), and masks (b, g·kernel, windows ...)."""
    filters, groups = call.sizes(1), call.integer("offset_group", 1)
    moved = groups * prod(filters[2:])
    for at, channels in ((2, 2 * moved), (4, moved)):
        if call.has(at) and call.sizes(at) != (result[0], channels, *result[2:]):
            wanted = _shown((result[0], channels, *result[2:]))
            return f"offsets or masks of {_shown(call.sizes(at))}, where {wanted} are read"
    return _convolution(bias=3)(call, result)


def _channels(x: Sizes, filters: Sizes, taken: int) -> str:
    fits = len(x) == len(filters) and x[1] == taken
    return "" if fits else f"{_shown(x)} with a weight of {_shown(filters)}, which takes {taken} channels"


def _kernel(call: Call, filters: Sizes) -> str:
    kernel = call.attributes.get("kernel_shape", filters[2:])
    if not isinstance(kernel, tuple) or kernel == filters[2:]:
        return ""
    return f"a weight of {_shown(filters)} where kernel_shape is {_shown(kernel)}"


def _one_each(call: Call, at: int, count: int) -> str:
    """One number for each of so many channels."""
    fits = not call.has(at) or call.sizes(at) == (count,)
    return "" if fits else f"{_shown(call.sizes(at))} where it has {count} channels"


def _one_or_each(call: Call, at: int, count: int) -> str:
    """One number, or one for each of so many channels."""
    return "" if not call.has(at) or call.sizes(at) in {(), (1,)} else _one_each(call, at, count)


def _recurrent(gates: int) -> Check:
    """x (time, batch, k), weights (d, gates·h, k) and (d, gates·h, h), bias (d, 2·gates·h), a length for each row.

    Rows are those of the batch. States are (d, batch, h), and peepholes (d, 3·h); layout 1 puts rows first.
    """

    def check(call: Call, result: Sizes) -> str:
        x, h = call.sizes(0), call.integer("hidden_size", call.sizes(2)[2])
        directions = 2 if call.attributes.get("direction") == "bidirectional" else 1
        batch = x[0 if call.integer("layout") else 1]
        state = (batch, directions, h) if call.integer("layout") else (directions, batch, h)
        wanted = {
            1: (directions, gates * h, x[2]), 2: (directions, gates * h, h), 3: (directions, 2 * gates * h),
            4: (batch,), 5: state, 6: state, 7: (directions, 3 * h),
        }  # fmt: skip
        for at, sizes in wanted.items():
            if call.has(at) and call.sizes(at) != sizes:
                what = "lengths of" if at == 4 else "a state of" if at in {5, 6} else "a weight of"
                return f"{what} {_shown(call.sizes(at))}, where {_shown(x)} and {h} units want {_shown(sizes)}"
        return ""

    return check


def _scaled(first: int) -> Check:
    """x, and from an operand on what is broadcast to it."""

    def check(call: Call, result: Sizes) -> str:
        x = call.sizes(0)
        for at in range(first, len(call.operands)):
            if call.has(at) and not _spreads(call.sizes(at), x):
                return f"{_shown(call.sizes(at))} with {_shown(x)}"
        return ""

    return check


def _slope(call: Call, result: Sizes) -> str:
    """PRelu: x and a slope; before opset 7, and in some files since, one for each channel."""
    x, slope = call.sizes(0), call.sizes(1)
    per_channel = len(slope) == 1 and x[1:2] == slope
    return "" if per_channel or _spreads(slope, x) else f"{_shown(slope)} with {_shown(x)}"


def _normed(call: Call, result: Sizes) -> str:
    """InstanceNormalization: x (batch, c, ...), scale (c,), shift (c,)."""
    channels = call.sizes(0)[1]
    return _one_each(call, 1, channels) or _one_each(call, 2, channels)


def _added(call: Call, result: Sizes) -> str:
    """Gemm: x (m, k), weight (k, n) as its flags turn them, c broadcast to (m, n)."""
    fits = not call.has(2) or _spreads(call.sizes(2), result)
    return "" if fits else f"{_shown(call.sizes(2))} beside a product of {_shown(result)}"


def _same_elements(call: Call, result: Sizes) -> str:
    """What only looks at its operand in another shape."""
    x = call.sizes(0)
    return "" if prod(x) == prod(result) else f"{_shown(x)} as {_shown(result)}"


def _permuted(call: Call, result: Sizes) -> str:
    x, order = call.sizes(0), call.attributes.get("perm", ())
    if not isinstance(order, tuple) or len(order) in {0, len(x)}:
        return ""
    return f"{_shown(x)} with {len(order)} axes in perm"


def _heads(call: Call, result: Sizes) -> str:
    """Attention: query (b, h, l, e), key (b, h', s, e), value (b, h', s, v), or all (b, l, h·e)."""
    query, key, value = (call.sizes(at) for at in range(3))
    if len(query) == len(key) == len(value) == 3:
        heads, groups = call.integer("q_num_heads"), call.integer("kv_num_heads")
        if query[2] % heads or key[2] % groups or value[2] % groups:
            return f"{_widths(query, key, value)} in {heads} and {groups} heads"
        query, key, value = (
            (sizes[0], count, sizes[1], sizes[2] // count)
            for sizes, count in ((query, heads), (key, groups), (value, groups))
        )
    fits = query[3] == key[3] and key[:3] == value[:3] and query[0] == key[0] and query[1] % key[1] == 0
    fits = fits and len(query) == len(key) == len(value) and (not call.has(6) or call.sizes(6) == query[:1])
    shown = " and ".join(_shown(call.sizes(at)) for at in range(3))
    return _masked(call, query, key, shown) if fits else shown


def _masked(call: Call, query: Sizes, key: Sizes, shown: str) -> str:
    """A mask of attention is broadcast to its scores (b, h, l, s), of which those at the end may be left out."""
    if not call.has(3):
        return ""
    mask, keys = call.sizes(3), key[2] + (call.sizes(4)[2] if call.has(4) else 0)
    fits = _spreads(mask[:-1], query[:3]) and mask[-1] <= keys
    return "" if fits else f"{shown} with a mask of {_shown(mask)}"


def _widths(*operands: Sizes) -> str:
    return " and ".join(map(_shown, operands))


def _summed(call: Call, result: Sizes) -> str:
    """Einsum: each index, and each axis that dots stand for, has one size in all its terms, or 1."""
    terms = str(call.attributes["equation"]).replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for at, term in enumerate(terms):
        shape = call.sizes(at)
        before, dots, behind = term.partition("...")
        if dots:
            covered = shape[len(before) : len(shape) - len(behind)]
            names = [str(at) for at in range(len(covered), 0, -1)]  # from the last one on, as shapes are broadcast
            sizes_of = [*zip(names, covered, strict=True)]
        else:
            sizes_of = []
        ends = (*shape[: len(before)], *(shape[len(shape) - len(behind) :] if dots else ()))
        for index, size in (*zip(before + behind, ends, strict=True), *sizes_of):
            if size != 1 and sizes.setdefault(index, size) != size:
                return " and ".join(_shown(known.sizes) for known in call.operands)
    return ""


def _product(call: Call, result: Sizes) -> str:
    """x (..., m, k) and y (..., k, n), as the node's flags turn them."""
    if min(len(call.sizes(0)), len(call.sizes(1))) < 2:
        return ""
    x = turned(call.sizes(0), call.integer("transA"), call.integer("transBatchA"))
    y = turned(call.sizes(1), call.integer("transB"), call.integer("transBatchB"))
    return "" if x[-1] == y[-2] else f"{_shown(x)} and {_shown(y)}"


def _packed_product(call: Call, result: Sizes) -> str:
    """x (..., K), and a weight of N columns in blocks of K, each in whole bytes."""
    x, k, n = call.sizes(0), call.integer("K"), call.integer("N")
    if x[-1] != k:
        return f"{_shown(x)} where K is {k}"
    blocks, size = -(-k // call.integer("block_size")), call.integer("block_size")
    wanted = n * blocks * -(-size * call.integer("bits", 4) // 8)
    fits = prod(call.sizes(1)) == wanted
    return "" if fits else f"a weight of {_shown(call.sizes(1))}, where {n} columns of {k} have {wanted} bytes"


def _projected(call: Call, result: Sizes) -> str:
    """Attention of ONNX Runtime: x (b, l, k), weight (k, 3·h·e)."""
    x, weight, heads = call.sizes(0), call.sizes(1), call.integer("num_heads")
    sizes = call.attributes.get("qkv_hidden_sizes")
    widths = sizes if isinstance(sizes, tuple) and sizes else (weight[1] // 3,)
    if any(width % heads for width in widths):
        return f"{_shown(widths)} in {heads} heads"
    return "" if x[-1] == weight[0] else f"{_shown(x)} and {_shown(weight)}"


def _grouped(call: Call, result: Sizes) -> str:
    """GroupQueryAttention of ONNX Runtime: query (b, l, h·e), or all in one (b, l, (h + 2·g)·e); h in g groups."""
    query, heads, groups = call.sizes(0), call.integer("num_heads"), call.integer("kv_num_heads")
    parts = heads if call.has(1) else heads + 2 * groups
    if heads % groups or query[-1] % parts:
        return f"{_shown(query)} in {heads} and {groups} heads"
    batch, width = query[0], query[-1] // parts
    for at in (1, 2):
        if call.has(at) and call.sizes(at) != (*query[:2], groups * width):
            return f"{_shown(query)} and {_shown(call.sizes(at))} in {heads} and {groups} heads"
    kept = [call.sizes(at) for at in (3, 4) if call.has(at)]
    is_plain = not call.integer("kv_cache_bit_width")  # else several share a byte
    if any(len(past) != 4 or past[:2] != (batch, groups) or (is_plain and past[3] != width) for past in kept):
        return f"{_shown(query)} with a cache of {' and '.join(map(_shown, kept))}"
    return ""


def _group_normed(call: Call, result: Sizes) -> str:
    """GroupNormalization: x (batch, c, ...) in groups of as many channels."""
    channels, groups = call.sizes(0)[1], call.integer("num_groups")
    if groups < 1 or channels % groups:
        return f"{channels} channels in {groups} groups"
    for at in (1, 2):  # before opset 21 one for each group
        if call.has(at) and prod(call.sizes(at)) not in {channels, groups}:
            return f"{_shown(call.sizes(at))} where it has {channels} channels"
    return ""


def _along_an_axis(default: int) -> Check:
    """x, normalised from an axis on that it has, and what is broadcast to it."""
    scaled = _scaled(1)

    def check(call: Call, result: Sizes) -> str:
        x, axis = call.sizes(0), call.integer("axis", default)
        return scaled(call, result) if -len(x) <= axis < len(x) else f"{_shown(x)} from axis {axis} on"

    return check


def _on_a_grid(call: Call, result: Sizes) -> str:
    """QuantizeLinear and DequantizeLinear: x (..., c, ...), and one scale, one for each channel, or for each block."""
    x, scale, axis, block = call.sizes(0), call.sizes(1), call.integer("axis", 1), call.integer("block_size", 0)
    zero = call.sizes(2) if call.has(2) else scale
    if scale in {(), (1,)} and not block:
        return "" if zero in {(), (1,)} else f"{_shown(x)} with one scale and zero points of {_shown(zero)}"
    place = f"along axis {axis}" + (f" in blocks of {block}" if block else "")
    if not -len(x) <= axis < len(x):
        return f"{_shown(x)} with scales {place}"
    at = axis % len(x)
    wanted = (*x[:at], -(-x[at] // block), *x[at + 1 :]) if block > 0 else (x[at],)
    if scale == zero == wanted:
        return ""
    return f"{_shown(x)} with scales of {_shown(scale)} and zero points of {_shown(zero)} {place}"


def _multi_head(call: Call, result: Sizes) -> str:
    """MultiHeadAttention of ONNX Runtime: query (b, l, h·e), key (b, s, h·e), value (b, s, v), where each stands alone.

    Its bias is one row for all of them.
    """
    query, key = call.sizes(0), call.sizes(1) if call.has(1) else ()
    heads = call.integer("num_heads")
    if len(query) == 3 and query[2] % heads:
        return f"{_shown(query)} in {heads} heads"
    if not len(query) == len(key) == 3:
        return ""
    value = call.sizes(2) if call.has(2) else key
    if query[::2] != key[::2] or (len(value) == 3 and value[:2] != key[:2]):
        return _widths(query, key, value)
    return _one_each(call, 3, query[2] + key[2] + value[2]) if len(value) == 3 else ""


def _skipping(call: Call, result: Sizes) -> str:
    """SkipLayerNormalization: x and skip (..., l, h), where skip may repeat its batch or have none; the others (h,)."""
    x, skip = call.sizes(0), call.sizes(1)
    if skip[-2:] != x[-2:] or call.sizes(2) != x[-1:]:
        return f"{_widths(x, skip, call.sizes(2))}"
    return next(filter(None, (_one_each(call, at, x[-1]) for at in range(3, len(call.operands)))), "")


def _embedding(call: Call, result: Sizes) -> str:
    """EmbedLayerNormalization: ids and segments (b, l), tables (n, h), scale and shift (h,)."""
    ids, width = call.sizes(0), call.sizes(2)[1]
    if len(ids) != 2 or call.has(1) != call.has(4) or (call.has(1) and call.sizes(1) != ids):
        return f"ids of {_shown(ids)} and their segments"
    for at in (2, 3, 4):
        if call.has(at) and call.sizes(at)[1:] != (width,):
            return f"a table of {_shown(call.sizes(at))} beside one of {_shown(call.sizes(2))}"
    if ids[1] > call.sizes(3)[0]:
        return f"{_shown(ids)} with {call.sizes(3)[0]} positions"
    fits = call.sizes(5) == call.sizes(6) == (width,)
    return "" if fits else f"{_widths(call.sizes(5), call.sizes(6))} where it has {width} channels"


CHECKS: Mapping[str, Check] = {
    "onnx::Conv": _convolution(),
    "onnx::ConvInteger": _convolution(bias=4),  # it takes none
    "onnx::QLinearConv": _convolution(weight=3, bias=8, grid=(4, 5)),
    "onnx::DeformConv": _deformed,
    "com.microsoft::FusedConv": _convolution(),
    "onnx::ConvTranspose": _transposed,
    "onnx::LSTM": _recurrent(4),
    "onnx::GRU": _recurrent(3),
    "onnx::RNN": _recurrent(1),
    "onnx::PRelu": _slope,
    "onnx::LayerNormalization": _along_an_axis(-1),
    "onnx::SimplifiedLayerNormalization": _scaled(1),
    "onnx::RMSNormalization": _along_an_axis(-1),
    "onnx::GroupNormalization": _group_normed,
    "onnx::QuantizeLinear": _on_a_grid,
    "onnx::DequantizeLinear": _on_a_grid,
    "com.microsoft::EmbedLayerNormalization": _embedding,
    "com.microsoft::SkipLayerNormalization": _skipping,
    "com.microsoft::SkipSimplifiedLayerNormalization": _skipping,
    "com.microsoft::BiasGelu": _scaled(1),
    "onnx::InstanceNormalization": _normed,
    "onnx::Gemm": _added,
    "onnx::Transpose": _permuted,
    "onnx::Attention": _heads,
    "onnx::Einsum": _summed,
    "com.microsoft::FusedMatMul": _product,
    "com.microsoft::TransposeMatMul": _product,
    "com.microsoft::DynamicQuantizeMatMul": _product,
    "com.microsoft::MatMulIntegerToFloat": _product,
    "com.microsoft::MatMulNBits": _packed_product,
    "com.microsoft::Attention": _projected,
    "com.microsoft::QAttention": _projected,
    "com.microsoft::MultiHeadAttention": _multi_head,
    "com.microsoft::GroupQueryAttention": _grouped,
    "onnx::Reshape": _same_elements,
    "onnx::DepthToSpace": _same_elements,
    "onnx::SpaceToDepth": _same_elements,
}
