"""Sorting and counting: elements are compared with each other, nothing is contracted."""

from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.role import shapes
from pytest_modelbudget.ops.rule import Attributes, OpRule, under


def sorting_flops(*, x: Tensor, out: Tensor, attributes: Attributes) -> int:
    """x (..., n, ...) → ⌈log2 n⌉ comparisons for each element, n along its dim, or all for one result."""
    dim = int(str(attributes.get("dim", attributes.get("axis", -1))))
    n = x.shape[dim] if out.shape else x.elements
    return x.elements * max(n - 1, 0).bit_length()


def one_per_counted(*, x: Tensor) -> int:
    """One operation per element that is counted."""
    return x.elements


SORTING: tuple[OpRule, ...] = (
    OpRule(
        "sort",
        under("sort argsort topk kthvalue median nanmedian mode", "x y order") | under("TopK", "x", shapes("count")),
        "comparisons only, as many as a merge sort makes: libraries' own ways need about as many",
        flops=sorting_flops,
    ),
    OpRule(
        "sort",
        under("msort quantile searchsorted bucketize", "x y order") | under("Hardmax", "x"),
        "comparisons only",
        flops=None,
    ),
    OpRule(
        "histogram", under("histc bincount", "x y"), "one addition to a count for each element", flops=one_per_counted
    ),
    OpRule(
        "unique",
        under("_unique2 _unique unique_dim unique_consecutive isin", "x y") | under("Unique", "x"),
        "comparisons and counts only",
        flops=None,
    ),
    OpRule(
        "nms",
        under("torchvision::nms", "boxes scores")
        | under("NonMaxSuppression", "boxes scores", shapes("count limit delta")),
        "boxes are compared, not contracted",
        flops=None,
    ),
)
