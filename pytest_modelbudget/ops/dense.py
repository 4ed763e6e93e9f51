"""Matrix products: linear layers, matmul in all its spellings, einsum and bilinear forms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.role import BIAS, PARTS, WEIGHT, X, Y
from pytest_modelbudget.ops.rule import Contraction, OpRule, Over, under

LINEAR_OF = Contraction(Over.FEATURES, ("x", "weight"))
PRODUCT = Contraction(Over.FEATURES, ("x", "y"))
BILINEAR = Contraction(Over.FEATURES, ("x", "y", "weight"))


def linear_macs(*, x: Tensor, out: Tensor) -> int:
    """One multiply-add per output element and contracted element.

    x (..., k) · weight (n, k) or (k,) → out (..., n) or (...,), hence out.elements * k.
    Adding the bias multiplies nothing and is not counted.
    """
    return out.elements * (x.shape[-1] if x.shape else 1)


def bias_flops(*, out: Tensor, bias: Tensor | None = None) -> int:
    """One addition per output element where there is a bias."""
    return out.elements if bias is not None else 0


def activated_flops(*, out: Tensor, bias: Tensor | None = None) -> int:
    """An activation per output element, fused behind the bias."""
    return bias_flops(out=out, bias=bias) + out.elements


def addition_flops(*, out: Tensor) -> int:
    """One addition per output element: addmm, baddbmm and their like always add."""
    return out.elements


def contracted_size(x: Tensor, attributes: Mapping[str, object]) -> int:
    """Size that a product sums over: the last of x, unless flags turn x round.

    transA swaps the last two dimensions of x; transBatchA moves its first one behind the batch
    before that. Source: ONNX Gemm; com.microsoft FusedMatMul.
    """
    if not attributes.get("transA"):
        return x.shape[-1]
    return x.shape[0] if attributes.get("transBatchA") else x.shape[-2]


def turned_macs(*, x: Tensor, out: Tensor, attributes: Mapping[str, object]) -> int:
    """A product whose operands may be transposed by flags: one multiply-add per output and k."""
    return out.elements * contracted_size(x, attributes)


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


def trilinear_macs(*, x: Tensor, weight: Tensor, y: Tensor) -> int:
    """The kernel below bilinear: x (rows, i), weight (o, i, j), y (rows, j)."""
    return bilinear_macs(x=x, y=y, weight=weight)


def grouped_macs(*, x: Tensor, y: Tensor, out: Tensor) -> int:
    """Groups of rows, or of contracted columns where both operands are matrices.

    x (m, k) · y (g, k, n) → (m, n): m·n·k. x (m, k) · y (k, n) → (g, m, n): k is split among the
    groups, hence m·k·n in all.
    """
    if len(x.shape) == 2 and len(y.shape) == 2:
        return x.elements * y.shape[-1]
    return out.elements * x.shape[-1]


@dataclass(frozen=True, slots=True)
class EinsumStep:
    """One step of an einsum: a contraction of a pair, or elementwise products and sums."""

    contracts: bool
    elements: int


def einsum_macs(*, parts: tuple[Tensor, ...], attributes: Mapping[str, object]) -> int:
    """Contractions of an einsum, taken left to right.

    A pair that shares an index which neither the result nor a later operand needs is a
    contraction: the product of the sizes of all its indices. A pair that contracts nothing is an
    elementwise or outer product and has no accumulation. An index that only one operand has and
    nobody needs is summed first, which multiplies nothing.
    Source: numpy.einsum, torch.einsum with opt_einsum off.
    """
    return sum(step.elements for step in einsum_steps(parts, attributes) if step.contracts)


def einsum_flops(*, parts: tuple[Tensor, ...], attributes: Mapping[str, object]) -> int:
    """One operation per element of each product and sum that is not a contraction."""
    return sum(step.elements for step in einsum_steps(parts, attributes) if not step.contracts)


def einsum_steps(
    parts: tuple[Tensor, ...], attributes: Mapping[str, object]
) -> Iterator[EinsumStep]:
    """The steps of an einsum, left to right; (50,30)(30,40)(40,2) contracts 60,000 + 4,000."""
    equation = str(attributes["equation"]).replace(" ", "")
    terms, result = _expanded(equation, [part.shape for part in parts])
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
            yield EinsumStep(contracts=False, elements=prod(sizes[index] for index in right))
        joined = left | (right - alone)
        kept = joined & set(result).union(*later)
        if position:
            yield EinsumStep(bool(joined - kept), prod(sizes[index] for index in joined))
        left = kept if position else right - alone


def _expanded(equation: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[str], str]:
    """Terms and result of an equation, with ``...`` spelt out and the implicit result added."""
    inputs, arrow, result = equation.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(shapes):
        raise UnmeasurableError(f"einsum '{equation}' has {len(shapes)} operands")
    if not arrow:
        letters = "".join(terms).replace("...", "")
        result = "..." + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    ranks = [len(s) - len(t.replace("...", "")) for t, s in zip(terms, shapes, strict=True)]
    widest = max(
        (rank for rank, term in zip(ranks, terms, strict=True) if "..." in term), default=0
    )
    batch = [chr(0x100 + axis) for axis in range(widest)]  # letters no equation uses
    spelt = [
        term.replace("...", "".join(batch[widest - rank :]) if rank else "")
        for term, rank in zip(terms, ranks, strict=True)
    ]
    return spelt, result.replace("...", "".join(batch))


def sums_products(attributes: Mapping[str, object]) -> bool:
    """Whether an einsum contracts: two terms share an index that the result lacks."""
    if "equation" not in attributes:
        return True  # the call of a function decides it
    inputs, arrow, result = str(attributes["equation"]).replace(" ", "").partition("->")
    terms = [set(term) - {"."} for term in inputs.split(",")]
    shared = {index for index in set().union(*terms) if sum(index in term for term in terms) > 1}
    return bool(shared - set(result)) if arrow else bool(shared)


EINSUM = Contraction(Over.FEATURES, ("parts",), where=sums_products)
DENSE: tuple[OpRule, ...] = (
    OpRule(
        kind="linear",
        names={
            "aten::linear": ("x", WEIGHT, BIAS),
            "aten::mkldnn_linear": ("x", WEIGHT, BIAS),
        },
        macs=linear_macs,
        contracts=LINEAR_OF,
        flops=bias_flops,
        because="y = x·Wᵀ + b: torch.nn.Linear",
    ),
    OpRule(
        kind="linear",
        names={
            "aten::addmm": (BIAS, "x", WEIGHT),
            "aten::addmm_": (BIAS, "x", WEIGHT),
            "aten::addmv": (BIAS, "x", WEIGHT),
            "aten::addmv_": (BIAS, "x", WEIGHT),
        },
        macs=linear_macs,
        contracts=LINEAR_OF,
        flops=addition_flops,
        because="b + x·W: torch.addmm, torch.addmv",
    ),
    OpRule(
        kind="linear",
        names={"aten::_addmm_activation": (BIAS, "x", WEIGHT)},
        macs=linear_macs,
        contracts=LINEAR_OF,
        flops=activated_flops,
        because="an activation of b + x·W in one kernel",
    ),
    OpRule(
        kind="matmul",
        names=under(
            "aten::matmul aten::mm aten::bmm aten::mv aten::dot aten::vdot aten::linalg_matmul "
            "aten::inner aten::_int_mm",
            X,
            Y,
        ),
        macs=linear_macs,
        contracts=PRODUCT,
        because="x (..., k) · y (k, ...): one multiply-add per output and contracted element",
    ),
    OpRule(
        kind="matmul",
        names=under("aten::baddbmm aten::baddbmm_", BIAS, X, Y),
        macs=linear_macs,
        contracts=PRODUCT,
        flops=addition_flops,
        because="bias + x·y for each matrix of the batch: torch.baddbmm",
    ),
    OpRule(
        kind="matmul",
        names=under("aten::addbmm aten::addbmm_", BIAS, X, Y),
        macs=batch_sum_macs,
        contracts=PRODUCT,
        flops=addition_flops,
        because="bias + the sum of x·y over the batch: torch.addbmm",
    ),
    OpRule(
        kind="matmul",
        names=under(
            "aten::_scaled_mm aten::_weight_int8pack_mm aten::_weight_int4pack_mm "
            "aten::_weight_int4pack_mm_for_cpu",
            X,
            Y,
            "scale",
            "other_scale",
            BIAS,
            "result_scale",
        ),
        macs=linear_macs,
        contracts=PRODUCT,
        flops=bias_flops,
        because="x·y over packed or scaled operands: the MACs of the float product",
    ),
    OpRule(
        kind="matmul",
        names={"aten::_grouped_mm": (X, Y, "offsets", BIAS)},
        macs=grouped_macs,
        contracts=PRODUCT,
        flops=bias_flops,
        because="each row meets the matrix of its group: one product as large as an ungrouped one",
    ),
    OpRule(
        kind="linear",
        names=under("onnx::Gemm com.microsoft::FusedGemm", X, WEIGHT, BIAS),
        macs=turned_macs,
        contracts=LINEAR_OF,
        flops=bias_flops,
        because="x·W + b, either of them transposed: ONNX Gemm",
    ),
    OpRule(
        kind="matmul",
        names=under("onnx::MatMul", X, Y)
        | under("com.microsoft::FusedMatMul com.microsoft::TransposeMatMul", X, Y),
        macs=turned_macs,
        contracts=PRODUCT,
        because="x (..., k) · y (k, ...): one multiply-add per output and contracted element",
    ),
    OpRule(
        kind="einsum",
        names=under("aten::einsum onnx::Einsum", PARTS),
        macs=einsum_macs,
        contracts=EINSUM,
        flops=einsum_flops,
        because="sums of products over the indices of the equation, left to right",
    ),
    OpRule(
        kind="bilinear",
        names={"aten::bilinear": ("x", "y", WEIGHT, BIAS)},
        macs=bilinear_macs,
        contracts=BILINEAR,
        flops=bias_flops,
        because="x1ᵀ·A·x2 + b: torch.nn.Bilinear",
    ),
    OpRule(
        kind="bilinear",
        names={"aten::_trilinear": ("x", WEIGHT, "y")},
        macs=trilinear_macs,
        contracts=BILINEAR,
        because="the kernel that scripted and exported bilinear layers call",
    ),
    OpRule(
        kind="distance",
        names=under("aten::cdist aten::_cdist_forward aten::pdist aten::_euclidean_dist", "x", "y"),
        macs=None,
        flops=None,
        because="a kernel may compute distances as a matrix product or element by element",
    ),
)
