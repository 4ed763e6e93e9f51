"""Embeddings: rows of a table, one for each index, as they are or added up."""

from collections.abc import Mapping

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.graph.tensor import Tensor, nbytes_of
from pytest_modelbudget.ops.indexing import ROWS, one_per_output, rows_read
from pytest_modelbudget.ops.role import TABLE, Role
from pytest_modelbudget.ops.rule import Contraction, Maybe, OpRule, Over, free, under

PRUNED = "which of the rows that are named were pruned, the data decide"


def bag_rows_read(*, x: Tensor, indices: Tensor) -> Mapping[str, int]:
    """One row of the table (rows, d) per index, although the result holds only their sums."""
    return {"x": nbytes_of(indices.elements * x.shape[-1], x.dtype)}


def bag_macs(*, x: Tensor, indices: Tensor, per_sample_weights: Maybe = None) -> int:
    """With a weight per row, the sum of rows is a contraction: one MAC per element of each."""
    return indices.elements * x.shape[-1] if per_sample_weights is not None else 0


def bag_flops(*, x: Tensor, indices: Tensor, per_sample_weights: Maybe = None) -> int:
    """One addition per element of each row that is summed, unless a MAC does it."""
    return indices.elements * x.shape[-1] if per_sample_weights is None else 0


def quantised_bag_flops(*, x: Tensor, indices: Tensor, per_sample_weights: Maybe = None, mapping: Maybe = None) -> int:
    """Rows are dequantised, and then added up. Raises UnmeasurableError where some were pruned."""
    if mapping is not None:
        raise UnmeasurableError(PRUNED)
    return indices.elements * x.shape[-1] + bag_flops(x=x, indices=indices, per_sample_weights=per_sample_weights)


def quantised_bag_macs(*, x: Tensor, indices: Tensor, per_sample_weights: Maybe = None, mapping: Maybe = None) -> int:
    """Those of a bag of floats. Raises UnmeasurableError where rows were pruned and weights are given."""
    if mapping is not None and per_sample_weights is not None:
        raise UnmeasurableError(PRUNED)
    return bag_macs(x=x, indices=indices, per_sample_weights=per_sample_weights)


def quantised_bag_read(*, x: Tensor, indices: Tensor, mapping: Maybe = None) -> Mapping[str, int]:
    """Those of a bag of floats. Raises UnmeasurableError where some were pruned."""
    if mapping is not None:
        raise UnmeasurableError(PRUNED)
    return bag_rows_read(x=x, indices=indices)


def too_long() -> int:
    """An embedding with max_norm shortens some of the rows that it is about to read."""
    raise UnmeasurableError("which of the rows that are named are longer than max_norm, the data decide")


PACKED_TABLE = (Role("x", weight=True), "nothing")  # as every packed weight is read: (weight, bias), here without one
BAG_OF = Contraction(Over.ROWS, ("x", "per_sample_weights"))
EMBEDDING: tuple[OpRule, ...] = (
    free("embedding", under("embedding", TABLE, "indices"), ROWS, reads=rows_read),
    OpRule(
        "renormalisation",
        under("embedding_renorm_", "x indices"),
        "the norm of each row that is named, and a factor for those that are too long: no pairs are multiplied",
        flops=None,
        writes=too_long,
    ),
    OpRule(
        "renormalisation",
        under("embedding_renorm", "x indices"),
        "a copy of the table, in which rows that are too long are shortened: no pairs are multiplied",
        flops=None,
    ),
    OpRule(
        "embedding_bag",
        under("embedding_bag _embedding_bag _embedding_bag_forward_only", "x indices offsets per_sample_weights"),
        "adds up the rows that the indices name, weighted where each has a weight",
        macs=bag_macs,
        contracts=BAG_OF,
        flops=bag_flops,
        reads=bag_rows_read,
    ),
    OpRule(
        "embedding",
        under("quantized::embedding_byte quantized::embedding_4bit", PACKED_TABLE, "indices"),
        "rows of a packed table, dequantised: one product per element",
        flops=one_per_output,
        reads=rows_read,
    ),
    OpRule(
        "embedding_bag",
        under(
            "quantized::embedding_bag_byte quantized::embedding_bag_4bit",
            PACKED_TABLE,
            "indices offsets per_sample_weights mapping",
        ),
        "dequantises the rows that the indices name, and adds them up",
        macs=quantised_bag_macs,
        contracts=BAG_OF,
        flops=quantised_bag_flops,
        reads=quantised_bag_read,
    ),
)
