"""Matrix products: linear layers, also chosen or packed ones, matmul in all its spellings, einsum, bilinear forms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.role import (
    BIAS,
    LAYER,
    PARTS,
    WEIGHT,
    WEIGHT_SCALE,
    WEIGHT_ZERO_POINT,
    Role,
    X,
    Y,
    logical_bits,
    roles,
)
from pytest_modelbudget.ops.rule import (
    Attributes,
    Contraction,
    Formula,
    Maybe,
    Names,
    OpRule,
    Over,
    in_filters,
    in_rows,
    nothing,
    under,
)


def linear_macs(*, x: Tensor, out: Tensor) -> int:
    """One multiply-add per output element and contracted element.

    x (..., k) · weight (n, k) or (k,) → out (..., n) or (...,), hence out.elements * k; an element may hold two values.
    Adding the bias multiplies nothing and is not counted.
    """
    return out.elements * (x.shape[-1] * x.dtype.values if x.shape else 1)


def bias_flops(*, out: Tensor, bias: Maybe = None) -> int:
    """One addition per output element where there is a bias."""
    return out.elements if bias is not None else 0


def activated_flops(*, out: Tensor, bias: Maybe = None) -> int:
    """An activation per output element, fused behind the bias."""
    return bias_flops(out=out, bias=bias) + out.elements


# FLOPs per output element of what may stand behind a product; any other activation has one.
SEVERAL = {"none": 0, "Softmax": 5, "LogSoftmax": 5}


def named_activation_flops(*, out: Tensor, attributes: Attributes) -> int:
    """Those of the activation that the node names, if it names one."""
    return out.elements * SEVERAL.get(str(attributes.get("activation") or "none"), 1)


def fused_flops(*, out: Tensor, attributes: Attributes, bias: Maybe = None) -> int:
    """An addition per output element where there is a bias, and the activation that is named."""
    return bias_flops(out=out, bias=bias) + named_activation_flops(out=out, attributes=attributes)


def addition_flops(*, out: Tensor) -> int:
    """One addition per output element: addmm, baddbmm and their like always add."""
    return out.elements


def contracted_size(x: Tensor, attributes: Attributes) -> int:
    """Size that a product sums over: the last of x, unless flags turn x round."""
    return in_product(0, x.shape, attributes)


def turned_macs(*, x: Tensor, out: Tensor, attributes: Attributes) -> int:
    """A product whose operands may be transposed by flags: one multiply-add per output and k."""
    return out.elements * contracted_size(x, attributes)


def inner_macs(*, x: Tensor, out: Tensor) -> int:
    """Every row of x (..., k) meets every row of y (..., k): neither has a batch."""
    return linear_macs(x=x, out=out)


def batch_sum_macs(*, x: Tensor, y: Tensor) -> int:
    """addbmm sums the batch too: x (b, n, k) · y (b, k, m) → out (n, m), hence b·n·k·m."""
    return x.elements * y.shape[-1]


def bilinear_macs(*, x: Tensor, y: Tensor, weight: Tensor) -> int:
    """y = x1ᵀ·A·x2 for each output feature, contracted left to right.

    x (..., i), y (..., j), weight (o, i, j): rows·o·i·j for x·A, then rows·o·j for ·y.
    """
    rows = prod(x.shape[:-1])
    features, _, in2 = weight.shape
    return rows * weight.elements + rows * features * in2


def trilinear_macs(*, x: Tensor, weight: Tensor, y: Tensor, attributes: Attributes) -> int:
    """The kernel below bilinear and its gradients: a product of three, contracted left to right.

    Each operand lacks the axes that its ``expand`` names, the result those of ``sumdim``: x (rows, i), weight (o, i, j)
    and y (rows, j) are ac,bcd,ad->ab.
    """
    lacking = [attributes[name] for name in ("expand1", "expand2", "expand3", "sumdim")]
    axes = len(x.shape) + len(tuple(lacking[0]))  # type: ignore[arg-type]  # a tuple of whole numbers
    letters = ["".join(chr(97 + axis) for axis in range(axes) if axis not in each) for each in lacking]  # type: ignore[operator]
    return einsum_macs(parts=(x, weight, y), attributes={"equation": f"{','.join(letters[:3])}->{letters[3]}"})


def grouped_macs(*, x: Tensor, y: Tensor, out: Tensor) -> int:
    """Groups of rows, or of contracted columns where both operands are matrices.

    x (m, k) · y (g, k, n) → (m, n): m·n·k. x (m, k) · y (k, n) → (g, m, n): k is split among the
    groups, hence m·k·n in all. An element along k may hold two values.
    """
    outputs = x.shape[0] * y.shape[-1] if len(x.shape) == 2 and len(y.shape) == 2 else out.elements
    return outputs * x.shape[-1] * x.dtype.values


@dataclass(frozen=True, slots=True)
class EinsumStep:
    """One step of an einsum: a contraction of a pair, or elementwise products and sums.

    A pair is x (batch, rows, summed) · y (batch, summed, columns), each size that of all its indices together.
    """

    contracts: bool
    rows: int
    summed: int = 1
    columns: int = 1
    batch: int = 1

    @property
    def elements(self) -> int:
        """The product of the sizes of all indices."""
        return self.batch * self.rows * self.summed * self.columns


def einsum_macs(*, parts: tuple[Tensor, ...], attributes: Attributes) -> int:
    """Contractions of an einsum, taken left to right.

    A pair that shares an index which neither the result nor a later operand needs is a
    contraction: the product of the sizes of all its indices. A pair that contracts nothing is an
    elementwise or outer product and has no accumulation. An index that only one operand has and
    nobody needs is summed first, which multiplies nothing.
    Source: numpy.einsum, torch.einsum with opt_einsum off.
    """
    return sum(step.elements for step in einsum_steps(parts, attributes) if step.contracts)


def einsum_flops(*, parts: tuple[Tensor, ...], attributes: Attributes) -> int:
    """One operation per element of each product and sum that is not a contraction."""
    return sum(step.elements for step in einsum_steps(parts, attributes) if not step.contracts)


def einsum_steps(parts: tuple[Tensor, ...], attributes: Attributes) -> Iterator[EinsumStep]:
    """The steps of an einsum, left to right; (50,30)(30,40)(40,2) contracts 60,000 + 4,000."""
    equation = str(attributes["equation"]).replace(" ", "")
    terms, result = expanded(equation, [part.shape for part in parts])
    sizes: dict[str, int] = {}
    for term, part in zip(terms, parts, strict=True):
        for index, size in zip(term, part.shape, strict=True):
            sizes[index] = size if sizes.get(index, 1) == 1 else sizes[index]
    left: set[str] = set()
    for position, term in enumerate(terms):
        later = terms[position + 1 :]
        right = set(term)
        alone = right - left - set(result).union(*later)
        if alone:
            yield EinsumStep(contracts=False, rows=prod(sizes[index] for index in right))
        right -= alone
        kept = (left | right) & set(result).union(*later)
        summed, both = (left | right) - kept, left & right & kept
        if position:
            axes = (left - right, summed, right - left, both)
            yield EinsumStep(bool(summed), *[prod(sizes[index] for index in axis) for axis in axes])
        left = kept if position else right


def expanded(equation: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[str], str]:
    """Terms and result of an equation, with ``...`` spelt out and the implicit result added."""
    inputs, arrow, result = equation.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(shapes):
        raise UnmeasurableError(f"einsum '{equation}' has {len(shapes)} operands")
    if not arrow:
        letters = "".join(terms).replace("...", "")
        result = "..." + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    ranks = [len(s) - len(t.replace("...", "")) for t, s in zip(terms, shapes, strict=True)]
    widest = max((rank for rank, term in zip(ranks, terms, strict=True) if "..." in term), default=0)
    batch = [chr(0x100 + axis) for axis in range(widest)]  # letters no equation uses
    spelt = [
        term.replace("...", "".join(batch[widest - rank :]) if rank else "")
        for term, rank in zip(terms, ranks, strict=True)
    ]
    return spelt, result.replace("...", "".join(batch))


def sums_products(attributes: Attributes) -> bool:
    """Whether an einsum contracts: two terms share an index that the result lacks."""
    if "equation" not in attributes:
        return True  # the call of a function decides it
    inputs, arrow, result = str(attributes["equation"]).replace(" ", "").partition("->")
    terms = [set(term) - {"."} for term in inputs.split(",")]
    shared = {index for index in set().union(*terms) if sum(index in term for term in terms) > 1}
    return bool(shared - set(result)) if arrow else bool(shared)


def in_product(at: int, shape: Sequence[int], attributes: Attributes) -> int:
    """x (..., n, k) · y (..., k, m), either of them turned by flags; a vector is summed whole.

    transA swaps the last two dimensions of x; transBatchA moves its first one behind the batch
    before that; transB and transBatchB do so with y. Source: ONNX Gemm; com.microsoft FusedMatMul.
    """
    side = "B" if at else "A"
    if len(shape) < 2 or bool(at) is bool(attributes.get(f"trans{side}")):
        return shape[-1]
    return shape[0] if attributes.get(f"transBatch{side}") else shape[-2]


def in_columns(shape: Sequence[int], attributes: Attributes) -> int:
    """The fan-in of the second of them."""
    return in_product(1, shape, attributes)


def in_layer(at: int, shape: Sequence[int], attributes: Attributes) -> int:
    """x (..., k) and weight (n, k), or (k)."""
    return in_filters(shape, attributes) if at and len(shape) > 1 else shape[-1]


def in_inner(at: int, shape: Sequence[int], attributes: Attributes) -> int:
    """x (..., k) and y (..., k)."""
    return shape[-1]


def in_batch_sum(at: int, shape: Sequence[int], attributes: Attributes) -> int:
    """x (b, n, k) and y (b, k, m), whose batch is summed, too."""
    return shape[0] * shape[1 if at else 2]


def in_term(at: int, shape: Sequence[int], attributes: Attributes) -> int:
    """The sizes of those indices of an einsum's term that its result lacks; all where the term does not fit."""
    inputs, arrow, result = str(attributes.get("equation", "")).replace(" ", "").partition("->")
    term = dict(enumerate(inputs.split(","))).get(at, "")
    kept = set(result) if arrow else {letter for letter in inputs if inputs.count(letter) == 1} | {"."}
    indices = term.replace("...", "." * (len(shape) - len(term.replace("...", ""))))
    if len(indices) != len(shape):
        return prod(shape)
    return prod(size for index, size in zip(indices, shape, strict=True) if index not in kept)


LINEAR_OF = Contraction(Over.FEATURES, ("x", "weight"), fan_in_at=in_layer)
COLUMNS_OF = Contraction(Over.FEATURES, ("x", "weight"), fan_in=in_columns, fan_in_at=in_product)
PRODUCT_OF = Contraction(Over.FEATURES, ("x", "y"), fan_in=in_columns, fan_in_at=in_product)
INNER_OF = Contraction(Over.FEATURES, ("x", "y"), fan_in_at=in_inner)
BATCH_SUM_OF = Contraction(Over.FEATURES, ("x", "y"), fan_in=in_columns, fan_in_at=in_batch_sum)
BILINEAR_OF = Contraction(Over.FEATURES, ("x", "y", "weight"))
EINSUM_OF = Contraction(Over.FEATURES, ("parts",), where=sums_products, fan_in_at=in_term)
EACH_OUTPUT = "x (..., k) · y (k, ...): one multiply-add per output and contracted element"


def linear(
    names: Names, because: str, *, of: Contraction = LINEAR_OF, macs: Formula = linear_macs, flops: Formula = bias_flops
) -> OpRule:
    """A rule for a product with a weight, and what comes behind it."""
    return OpRule("linear", names, because, macs=macs, contracts=of, flops=flops)


def _matmul(
    names: Names, because: str, *, of: Contraction = PRODUCT_OF, macs: Formula = linear_macs, flops: Formula = nothing
) -> OpRule:
    return OpRule("matmul", names, because, macs=macs, contracts=of, flops=flops)


DENSE: tuple[OpRule, ...] = (
    linear(under("linear mkldnn_linear tflite::FULLY_CONNECTED", LAYER), "y = x·Wᵀ + b: torch.nn.Linear"),
    linear(
        under("addmm addmm_ addmv addmv_", BIAS, "x", WEIGHT),
        "b + x·W: torch.addmm, torch.addmv",
        of=COLUMNS_OF,
        flops=addition_flops,
    ),
    linear(
        under("_addmm_activation", BIAS, "x", WEIGHT),
        "an activation of b + x·W in one kernel",
        of=COLUMNS_OF,
        flops=activated_flops,
    ),
    linear(
        under("Gemm com.microsoft::FusedGemm", X, WEIGHT, BIAS),
        "x·W + b, either of them transposed, and an activation behind it: ONNX Gemm",
        of=COLUMNS_OF,
        macs=turned_macs,
        flops=fused_flops,
    ),
    linear(
        under("com.microsoft::GemmFloat8", X, WEIGHT, BIAS, "x_scale", WEIGHT_SCALE, "out_scale"),
        "x·W + b over floats of 8 bits: ONNX Runtime's GemmFloat8",
        of=COLUMNS_OF,
        macs=turned_macs,
        flops=fused_flops,
    ),
    linear(
        under("com.microsoft::MatMulBlockQuantizedFp8Weight", "x", WEIGHT, WEIGHT_SCALE, "x_scale", BIAS)
        | under(
            "com.microsoft::MatMulBlockQuantizedFp4Weight",
            "x",
            replace(WEIGHT, bits=(4,)),
            WEIGHT_SCALE,
            Role("whole_scale", quantises="weight"),
            "x_scale",
            BIAS,
        ),
        "x·Wᵀ + b with a scale for each block of a weight (n, k) of 8 or 4 bits",
    ),
    linear(
        under("com.microsoft::GemmFastGelu", X, WEIGHT, BIAS),
        "x·W + b, and a GELU behind it",
        of=COLUMNS_OF,
        flops=activated_flops,
    ),
    _matmul(under("matmul mm bmm mv dot vdot linalg_matmul _int_mm", X, Y), EACH_OUTPUT),
    _matmul(under("inner", X, Y), "x (..., k) · y (..., k): rows by rows", of=INNER_OF, macs=inner_macs),
    _matmul(
        under("MatMul com.microsoft::FusedMatMul com.microsoft::TransposeMatMul tflite::BATCH_MATMUL", X, Y),
        EACH_OUTPUT,
        macs=turned_macs,
    ),
    _matmul(
        under("com.microsoft::FusedMatMulActivation", X, Y),
        "x·y, either of them transposed, and an activation or a softmax behind it",
        macs=turned_macs,
        flops=named_activation_flops,
    ),
    _matmul(
        under("baddbmm baddbmm_", BIAS, X, Y),
        "bias + x·y for each matrix of the batch: torch.baddbmm",
        flops=addition_flops,
    ),
    _matmul(
        under("addbmm addbmm_", BIAS, X, Y),
        "bias + the sum of x·y over the batch: torch.addbmm",
        of=BATCH_SUM_OF,
        macs=batch_sum_macs,
        flops=addition_flops,
    ),
    _matmul(
        under("_scaled_mm _scaled_mm_v2", (X, Y, roles("scale other_scale"), BIAS, Role("result_scale")))
        | under(
            "_weight_int8pack_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu", (X, Y, Role("scale", quantises="y"))
        )
        | under("_dyn_quant_matmul_4bit", X, Role("y", weight=True, packed=("in_features", "out_features"), bits=(4,))),
        "x·y over packed or scaled operands: the MACs of the float product",
        flops=bias_flops,
    ),
    _matmul(
        under("_scaled_addmm _scaled_addmm_", (BIAS, X, Y, roles("scale other_scale"))),
        "bias + x·y over scaled operands",
        flops=addition_flops,
    ),
    _matmul(
        under("_grouped_mm transformers::grouped_mm_fallback", X, Y, "offsets", BIAS)
        | under(
            "_scaled_grouped_mm _scaled_grouped_mm_v2",
            (X, Y, roles("scale other_scale"), Role("offsets"), BIAS, Role("result_scale")),
        ),
        "each row meets the matrix of its group: one product as large as an ungrouped one",
        macs=grouped_macs,
        flops=bias_flops,
    ),
    OpRule(
        "einsum",
        under("einsum Einsum", PARTS),
        "sums of products over the indices of the equation, left to right",
        macs=einsum_macs,
        contracts=EINSUM_OF,
        flops=einsum_flops,
    ),
    OpRule(
        "bilinear",
        under("bilinear", "x y", WEIGHT, BIAS),
        "x1ᵀ·A·x2 + b: torch.nn.Bilinear",
        macs=bilinear_macs,
        contracts=BILINEAR_OF,
        flops=bias_flops,
    ),
    OpRule(
        "bilinear",
        under("_trilinear", "x", WEIGHT, "y"),
        "the kernel that scripted and exported bilinear layers call",
        macs=trilinear_macs,
        contracts=BILINEAR_OF,
    ),
    OpRule(
        "distance",
        under("cdist _cdist_forward pdist _pdist_forward _euclidean_dist", "x y"),
        "a kernel may compute distances as a matrix product or element by element",
        macs=None,
        flops=None,
    ),
)


def expert_macs(
    *, x: Tensor, weight: Tensor, second_weight: Tensor, attributes: Attributes, third_weight: Maybe = None
) -> int:
    """Rows of x (..., d), each through k of e experts; a weight (e, n, d) has an e-th of its elements in each.

    The products that give scores stand before the operator; results of experts are scaled and added elementwise.
    """
    given = zip(PACKED, (weight, second_weight, third_weight), strict=True)
    elements = sum(_elements(role, tensor, attributes) for role, tensor in given if tensor is not None)
    return prod(x.shape[:-1]) * _chosen(weight, attributes) * elements // weight.shape[0]


def _elements(role: Role, weight: Tensor, attributes: Attributes) -> int:
    """Those that a weight stands for, of which several share a byte."""
    return weight.elements * 8 // logical_bits(role, attributes) if weight.dtype.name == "uint8" else weight.elements


def _chosen(weight: Tensor, attributes: Attributes) -> int:
    """k, the experts of each row."""
    chosen, experts = int(str(attributes.get("k", 1))), weight.shape[0]
    if not 0 < chosen <= experts:
        raise UnmeasurableError(f"the node chooses {chosen} of {experts} experts")
    return chosen


def chosen_experts(*, x: Tensor, weight: Tensor, attributes: Attributes) -> Mapping[str, int]:
    """All experts where each row takes all. Raises UnmeasurableError where the data decide which are read."""
    if _chosen(weight, attributes) < weight.shape[0]:
        raise UnmeasurableError("which of its experts it reads, the data decide")
    return {}


MATRICES = (WEIGHT, *roles("second_weight third_weight", weight=True, scales=True))
BIASES = (BIAS, *roles("second_bias third_bias", weight=True))
PACKED = tuple(
    replace(role, bits=(f"fc{at}_expert_weight_bits", "expert_weight_bits", 4)) for at, role in enumerate(MATRICES, 1)
)
SCALES = (WEIGHT_SCALE, Role("second_scale", quantises="second_weight"), Role("third_scale", quantises="third_weight"))
ZERO_POINTS = (
    WEIGHT_ZERO_POINT,
    Role("second_zero_point", quantises="second_weight"),
    Role("third_zero_point", quantises="third_weight"),
)
WHOLE_SCALES = (Role("whole_scale", quantises="weight"), Role("second_whole_scale", quantises="second_weight"))
EXPERTS_OF = Contraction(Over.FEATURES, ("x", "weight", "second_weight", "third_weight"), fan_in=in_rows)
EXPERTS: tuple[OpRule, ...] = (
    OpRule(
        "mixture_of_experts",
        under("com.microsoft::MoE", "x scores", tuple(zip(MATRICES, BIASES, strict=True)))
        | under(
            "com.microsoft::QMoE",
            "x scores",
            tuple(zip(PACKED, SCALES, BIASES, strict=True)),
            (ZERO_POINTS, "mixing", WHOLE_SCALES),
            "x_scale second_x_scale x_block_scale second_x_block_scale",
        ),
        "the products of k experts for each row; what chooses, activates and mixes has no figure in flops/1",
        macs=expert_macs,
        contracts=EXPERTS_OF,
        flops=None,
        reads=chosen_experts,
    ),
)
