"""Gathers, scatters and embeddings: they touch the rows they name, not the whole table."""

from collections.abc import Mapping
from math import prod

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.graph.tensor import Tensor, broadcast, nbytes_of
from pytest_modelbudget.ops.role import OVERWRITTEN, TABLE, WEIGHT_SCALES, Role, shapes
from pytest_modelbudget.ops.rule import Attributes, Contraction, Maybe, OpRule, Over, free, under

ROWS = "copies the elements that the indices name: reads as many bytes as it writes"
NAMED = "writes the elements that the indices name"


def rows_read(*, x: Tensor, out: Tensor) -> Mapping[str, int]:
    """As many bytes of the table as the result holds, however large the table is."""
    return {"x": nbytes_of(out.elements, x.dtype)}


def one_per_output(*, out: Tensor) -> int:
    """One operation per element that is gathered."""
    return out.elements


def packed_rows_read(
    *, weight: Tensor, out: Tensor, weight_scale: Tensor, weight_zero_point: Maybe = None
) -> Mapping[str, int]:
    """The part of a table (rows, ...) that the result's rows are of it, in its own bytes, and of what it is scaled by.

    Scales of blocks of rows are read whole.
    """
    row = prod(out.shape[len(out.shape) - len(weight.shape) + 1 :])
    rows = out.elements // row if row else 0
    beside = {"weight": weight, "weight_scale": weight_scale, "weight_zero_point": weight_zero_point}
    of_rows = {word: each for word, each in beside.items() if each is not None and each.shape[0] == weight.shape[0]}
    return {word: nbytes_of(rows * prod(each.shape[1:]), each.dtype) for word, each in of_rows.items()}


def source_written(*, source: Tensor) -> int:
    """The elements of the source land in the target; nothing else of it is written."""
    return source.nbytes


def decided_by_data() -> int:
    """No shape tells how many elements a mask selects."""
    raise UnmeasurableError("how much a boolean mask writes is decided by the data")


def scattered_flops(*, source: Tensor) -> int:
    """One operation per element of the source, wherever it lands."""
    return source.elements


def scattered_read(*, source: Tensor) -> Mapping[str, int]:
    """Adding in place reads as much of the target as it writes."""
    return {"x": source.nbytes}


def put_read(*, x: Tensor, indices: tuple[Maybe, ...], source: Tensor, attributes: Attributes) -> Mapping[str, int]:
    """x[indices] = source does not read x; accumulating reads what it writes."""
    accumulates = attributes.get("accumulate")
    return {"x": put_written(x=x, indices=indices, source=source) if accumulates else 0}


def indexed_written(*, x: Tensor, index: Tensor) -> int:
    """One element of the target per index: a scatter of a scalar."""
    return nbytes_of(index.elements, x.dtype)


def filled_rows(*, x: Tensor, index: Tensor, attributes: Attributes) -> int:
    """index_fill writes whole slices: index.elements of them along one dimension."""
    dim = int(str(attributes["dim"]))
    others = prod(size for axis, size in enumerate(x.shape) if axis != dim % len(x.shape))
    return nbytes_of(index.elements * others, x.dtype)


def put_written(*, x: Tensor, indices: tuple[Maybe, ...], source: Tensor) -> int:
    """Bytes that x[indices] = source writes.

    Index tensors broadcast against each other; dimensions without one are written whole. A
    boolean mask writes as many elements as it holds True, which no shape tells, unless the source
    has one value for each.
    """
    given = [index for index in indices if index is not None]
    if any(index.dtype.name in {"bool", "uint8"} for index in given):
        if source.elements > 1:
            return source.nbytes
        raise UnmeasurableError("how much a boolean mask writes is decided by the data")
    positions = prod(broadcast(index.shape for index in given))
    untouched = [size for axis, size in enumerate(x.shape) if axis >= len(indices) or indices[axis] is None]
    return nbytes_of(positions * prod(untouched), x.dtype)


IN_BYTES = Role("weight", weight=True, bits=("bits", 4))
INDEXING: tuple[OpRule, ...] = (
    free(
        "gather",
        under("index_select gather take take_along_dim masked_select index _unsafe_index", (TABLE, "*indices"))
        | under("_unsafe_masked_index", (TABLE, "mask", "*indices"))
        | under("Gather GatherElements GatherND Compress ai.onnx.ml::ArrayFeatureExtractor", (TABLE, "indices"))
        | under("tflite::GATHER tflite::GATHER_ND", (TABLE, "indices"))
        | under("com.microsoft::RemovePadding", (TABLE, "indices")),
        ROWS,
        reads=rows_read,
    ),
    OpRule(
        "gather",
        under("com.microsoft::RelativePositionBias", Role("x", weight=True), shapes("query_length key_length")),
        "a row of a table for each distance of a query and a key: no pairs are multiplied",
        flops=None,
    ),
    OpRule(
        "gather",
        under("com.microsoft::GatherBlockQuantized", (IN_BYTES, "indices", WEIGHT_SCALES)),
        "rows of a packed table, dequantised: one product per element",
        flops=one_per_output,
        reads=packed_rows_read,
    ),
    free(
        "nonzero",
        under("nonzero argwhere nonzero_numpy nonzero_static NonZero tflite::WHERE", "x"),
        "reads a mask and writes the positions it holds",
    ),
    free(
        "one_hot",
        under("one_hot", "x") | under("OneHot tflite::ONE_HOT", "x", shapes("depth"), Role("values"), Role("off")),
        "writes a one at each index; nothing is computed",
    ),
    # An indexed write in place does not read its target, unless it accumulates.
    free(
        "scatter", under("index_put_ _index_put_impl_", "x indices source"), NAMED, reads=put_read, writes=put_written
    ),
    free("scatter", under("scatter_", OVERWRITTEN, "index source"), NAMED, writes=indexed_written),
    free(
        "scatter",
        under("index_copy_", OVERWRITTEN, "index source"),
        "writes the slices that the indices name: all of the source",
        writes=source_written,
    ),
    free(
        "scatter",
        under("index_fill_", OVERWRITTEN, "index value"),
        "writes the slices that the indices name",
        writes=filled_rows,
    ),
    free(
        "scatter",
        under("masked_scatter_", OVERWRITTEN, "mask source"),
        "writes elements of the source where the mask says so",
        writes=decided_by_data,
    ),
    free(
        "scatter",
        under(
            "index_put scatter index_copy index_fill masked_scatter slice_scatter select_scatter "
            "diagonal_scatter as_strided_scatter Scatter ScatterElements ScatterND TensorScatter "
            "tflite::DYNAMIC_UPDATE_SLICE",
            Role("x", learnt=True, starts=True),
            "*sources",
        ),
        "copies the target and writes into the copy",
    ),
    OpRule(
        "scatter_add",
        under("scatter_add_ index_add_ scatter_reduce_ index_reduce_", "x index source"),
        "one addition per element that is scattered",
        flops=scattered_flops,
        reads=scattered_read,
        writes=source_written,
    ),
    OpRule(
        "scatter_add",
        under("scatter_add index_add scatter_reduce index_reduce", "x index source"),
        "copies the target, and one addition per element that is scattered",
        flops=scattered_flops,
    ),
)


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
    free(
        "embedding",
        under("embedding", TABLE, "indices") | under("tflite::EMBEDDING_LOOKUP", "indices", TABLE),
        ROWS,
        reads=rows_read,
    ),
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
