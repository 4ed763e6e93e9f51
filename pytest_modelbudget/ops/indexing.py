"""Gathers and scatters: they touch the rows they name, not the whole table."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.graph.tensor import Tensor, nbytes_of
from pytest_modelbudget.ops.role import WEIGHT, Role, X
from pytest_modelbudget.ops.rule import Contraction, OpRule, Over, free, under

ROWS = "copies the elements that the indices name: reads as many bytes as it writes"


def rows_read(*, out: Tensor) -> Mapping[str, int]:
    """As many bytes of the table as the result holds, however large the table is."""
    return {"x": out.nbytes}


def one_per_output(*, out: Tensor) -> int:
    """One operation per element that is gathered."""
    return out.elements


def packed_rows_read(*, weight: Tensor, out: Tensor) -> Mapping[str, int]:
    """The part of a table (rows, ...) that the result's rows are of it, in its own bytes."""
    row = prod(out.shape[len(out.shape) - len(weight.shape) + 1 :])
    rows = out.elements // row if row else 0
    return {"weight": nbytes_of(rows * prod(weight.shape[1:]), weight.dtype)}


def bag_rows_read(*, x: Tensor, indices: Tensor) -> Mapping[str, int]:
    """One row of the table (rows, d) per index, although the result holds only their sums."""
    return {"x": nbytes_of(indices.elements * x.shape[-1], x.dtype)}


def bag_macs(*, x: Tensor, indices: Tensor, per_sample_weights: Tensor | None = None) -> int:
    """With a weight per row, the sum of rows is a contraction: one MAC per element of each."""
    return indices.elements * x.shape[-1] if per_sample_weights is not None else 0


def bag_flops(*, x: Tensor, indices: Tensor, per_sample_weights: Tensor | None = None) -> int:
    """One addition per element of each row that is summed, unless a MAC does it."""
    return indices.elements * x.shape[-1] if per_sample_weights is None else 0


def target_untouched() -> Mapping[str, int]:
    """An indexed in-place write does not read its target."""
    return {"x": 0}


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


def put_read(
    *,
    x: Tensor,
    indices: tuple[Tensor | None, ...],
    source: Tensor,
    attributes: Mapping[str, object],
) -> Mapping[str, int]:
    """x[indices] = source does not read x; accumulating reads what it writes."""
    accumulates = attributes.get("accumulate")
    return {"x": put_written(x=x, indices=indices, source=source) if accumulates else 0}


def indexed_written(*, x: Tensor, index: Tensor) -> int:
    """One element of the target per index: a scatter of a scalar."""
    return nbytes_of(index.elements, x.dtype)


def filled_rows(*, x: Tensor, index: Tensor, attributes: Mapping[str, object]) -> int:
    """index_fill writes whole slices: index.elements of them along one dimension."""
    dim = int(str(attributes["dim"]))
    others = prod(size for axis, size in enumerate(x.shape) if axis != dim % len(x.shape))
    return nbytes_of(index.elements * others, x.dtype)


def put_written(*, x: Tensor, indices: tuple[Tensor | None, ...], source: Tensor) -> int:
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
    positions = prod(_broadcast([index.shape for index in given]))
    untouched = [
        size for axis, size in enumerate(x.shape) if axis >= len(indices) or indices[axis] is None
    ]
    return nbytes_of(positions * prod(untouched), x.dtype)


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) if all(sizes) else 0 for sizes in zip(*padded, strict=True))


INDEXING: tuple[OpRule, ...] = (
    free("embedding", under("aten::embedding", "x", "indices"), ROWS, reads=rows_read),
    OpRule(
        "embedding_bag",
        under(
            "aten::embedding_bag aten::_embedding_bag aten::_embedding_bag_forward_only",
            "x",
            "indices",
            "offsets",
            "per_sample_weights",
        ),
        "adds up the rows that the indices name, weighted where each has a weight",
        macs=bag_macs,
        contracts=Contraction(Over.ROWS, ("x", "per_sample_weights")),
        flops=bag_flops,
        reads=bag_rows_read,
    ),
    free(
        "gather",
        under(
            "aten::index_select aten::gather aten::take aten::take_along_dim "
            "aten::masked_select aten::index aten::_unsafe_index",
            X,
            "*indices",
        ),
        ROWS,
        reads=rows_read,
    ),
    free(
        "nonzero",
        under(
            "aten::nonzero aten::argwhere aten::nonzero_numpy aten::nonzero_static onnx::NonZero",
            "x",
        ),
        "reads a mask and writes the positions it holds",
    ),
    free(
        "one_hot",
        {"aten::one_hot": ("x",), "onnx::OneHot": ("x", Role("depth", shape=True), "values")},
        "writes a one at each index; nothing is computed",
    ),
    free(
        "scatter",
        under("aten::index_put_ aten::_index_put_impl_", "x", "indices", "source"),
        "writes the elements that the indices name",
        reads=put_read,
        writes=put_written,
    ),
    free(
        "scatter",
        under("aten::scatter_", "x", "index", "source"),
        "writes the elements that the indices name",
        reads=target_untouched,
        writes=indexed_written,
    ),
    free(
        "scatter",
        under("aten::index_copy_", "x", "index", "source"),
        "writes the slices that the indices name: all of the source",
        reads=target_untouched,
        writes=source_written,
    ),
    free(
        "scatter",
        under("aten::index_fill_", "x", "index", "value"),
        "writes the slices that the indices name",
        reads=target_untouched,
        writes=filled_rows,
    ),
    free(
        "scatter",
        under("aten::masked_scatter_", "x", "mask", "source"),
        "writes elements of the source where the mask says so",
        reads=target_untouched,
        writes=decided_by_data,
    ),
    free(
        "scatter",
        under(
            "aten::index_put aten::scatter aten::index_copy aten::index_fill "
            "aten::masked_scatter aten::slice_scatter aten::select_scatter "
            "aten::diagonal_scatter onnx::Scatter onnx::ScatterElements onnx::ScatterND "
            "onnx::TensorScatter",
            "x",
            "*sources",
        ),
        "copies the target and writes into the copy",
    ),
    OpRule(
        "scatter_add",
        under(
            "aten::scatter_add_ aten::index_add_ aten::scatter_reduce_ aten::index_reduce_",
            "x",
            "index",
            "source",
        ),
        "one addition per element that is scattered",
        flops=scattered_flops,
        reads=scattered_read,
        writes=source_written,
    ),
    OpRule(
        "scatter_add",
        under(
            "aten::scatter_add aten::index_add aten::scatter_reduce aten::index_reduce",
            "x",
            "index",
            "source",
        ),
        "copies the target, and one addition per element that is scattered",
        flops=scattered_flops,
    ),
    free(
        "gather",
        under(
            "onnx::Gather onnx::GatherElements onnx::GatherND onnx::Compress "
            "ai.onnx.ml::ArrayFeatureExtractor",
            X,
            "indices",
        ),
        ROWS,
        reads=rows_read,
    ),
    OpRule(
        "gather",
        under(
            "com.microsoft::GatherBlockQuantized",
            WEIGHT,
            "indices",
            Role("weight_scale", quantises="weight"),
            Role("weight_zero_point", quantises="weight"),
        ),
        "rows of a packed table, dequantised: one product per element",
        flops=one_per_output,
        reads=packed_rows_read,
    ),
)


def _uncontracted(kind: str, names: str, because: str, *roles: str) -> OpRule:
    """No MACs, for the reason given; the FLOP convention has no figure for it."""
    return OpRule(kind, under(names, *roles), because, flops=None)


def unseen() -> int:
    """What is done with values outside torch moves bytes that nobody sees."""
    raise UnmeasurableError(LEFT)


LEFT = "values leave torch here: what is computed with them is not seen"
SEARCHING: tuple[OpRule, ...] = (
    OpRule(
        "leaves_torch",
        under(
            "torch::numpy torch::__array__ torch::__dlpack__ torch::to_dlpack torch::data_ptr "
            "torch::tolist torch::item",
            "x",
        ),
        LEFT,
        macs=None,
        flops=None,
        writes=unseen,
    ),
    _uncontracted(
        "loss",
        "aten::mse_loss aten::smooth_l1_loss aten::huber_loss aten::soft_margin_loss",
        "differences element by element, and their mean",
        "x",
        "y",
    ),
    _uncontracted(
        "sort",
        "aten::sort aten::argsort aten::topk aten::msort aten::kthvalue aten::median "
        "aten::nanmedian aten::mode aten::quantile aten::searchsorted aten::bucketize",
        "comparisons only",
        "x",
        "y",
        "order",
    ),
    _uncontracted(
        "unique",
        "aten::_unique2 aten::_unique aten::unique_dim aten::unique_consecutive aten::bincount "
        "aten::histc aten::isin",
        "comparisons and counts only",
        "x",
        "y",
    ),
    _uncontracted(
        "nms", "torchvision::nms", "boxes are compared, not contracted", "boxes", "scores"
    ),
    _uncontracted(
        "fft",
        "aten::fft_fft aten::fft_ifft aten::fft_rfft aten::fft_irfft aten::fft_fft2 "
        "aten::fft_ifft2 aten::fft_rfft2 aten::fft_irfft2 aten::fft_fftn aten::fft_ifftn "
        "aten::fft_rfftn aten::fft_irfftn aten::_fft_r2c aten::_fft_c2r aten::_fft_c2c "
        "aten::stft aten::istft",
        "butterflies, not a contraction; a formula for one algorithm would not hold for another",
        "x",
        "window",
    ),
    _uncontracted(
        "random",
        "aten::rand aten::randn aten::randint aten::randperm aten::rand_like aten::randn_like "
        "aten::randint_like aten::bernoulli aten::bernoulli_ aten::normal aten::normal_ "
        "aten::uniform_ aten::random_ aten::exponential_ aten::multinomial aten::poisson "
        "aten::trunc_normal_",
        "numbers are drawn, not contracted",
        "x",
        "y",
        "z",
    ),
    OpRule(
        "sort",
        under("onnx::TopK", "x", Role("count", shape=True)) | under("onnx::Hardmax", "x"),
        "comparisons only",
        flops=None,
    ),
    _uncontracted("unique", "onnx::Unique", "comparisons and counts only", "x"),
    OpRule(
        "nms",
        under(
            "onnx::NonMaxSuppression",
            "boxes",
            "scores",
            Role("count", shape=True),
            Role("limit", shape=True),
            Role("delta", shape=True),
        ),
        "boxes are compared, not contracted",
        flops=None,
    ),
    OpRule(
        "fft",
        under("onnx::DFT", "x", Role("count", shape=True), Role("axis", shape=True))
        | under("onnx::STFT", "x", Role("steps", shape=True), "window", Role("count", shape=True)),
        "butterflies, not a contraction; a formula for one algorithm would not hold for another",
        flops=None,
    ),
    OpRule(
        "random",
        under(
            "onnx::Bernoulli onnx::Multinomial onnx::RandomNormal onnx::RandomNormalLike "
            "onnx::RandomUniform onnx::RandomUniformLike",
            "like",
        ),
        "numbers are drawn, not contracted",
        flops=None,
    ),
)
