"""``bandwidth``, its floor, ``total_activation`` and ``arithmetic_intensity``: bytes that move."""

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction

from pytest_modelbudget.graph.graph import Graph
from pytest_modelbudget.graph.tensor import ACTIVATION, Storage, Tensor, distinct_nbytes, nbytes_by_storage
from pytest_modelbudget.metrics import measurement
from pytest_modelbudget.metrics.compute import macs
from pytest_modelbudget.metrics.costs import NO_TRAFFIC, CostedGraph, Traffic, Unknown, runs_of


def _moved(costed: CostedGraph) -> list[tuple[str, Traffic]]:
    """(scope, traffic) of every op that moves something, and whose traffic is known."""
    traffics = [(cost.op.scope, cost.traffic) for cost in costed.costs if cost.traffic is not NO_TRAFFIC]
    return [(scope, traffic) for scope, traffic in traffics if isinstance(traffic, Traffic)]


def _unmoved(costed: CostedGraph) -> tuple[measurement.UnmeasuredOp, ...]:
    """Operations whose traffic is not known."""
    unknown = [(cost.op, cost.traffic.why) for cost in costed.costs if isinstance(cost.traffic, Unknown)]
    return measurement.unmeasured_ops(runs_of(unknown))


def bandwidth(costed: CostedGraph) -> measurement.Measurement:
    """Bytes read, weights included, and written, op by op, as if nothing stayed on chip."""
    moved = costed.once(_moved)
    parts = {way: sum([getattr(traffic, way) for _, traffic in moved]) for way in ("read", "weights", "write")}
    return measurement.summed(
        [(scope, traffic.total) for scope, traffic in moved], "B", costed.once(_unmoved), parts=parts
    )


def total_activation(costed: CostedGraph) -> measurement.Measurement:
    """Bytes that all ops write: bandwidth's write part."""
    return measurement.summed(
        [(scope, traffic.write) for scope, traffic in costed.once(_moved)], "B", costed.once(_unmoved)
    )


def bandwidth_floor(costed: CostedGraph) -> measurement.Measurement:
    """Bytes that must move even if all ops were fused: inputs and weights once, and outputs."""
    contributions = [*_read_once(costed), *_returned(costed)]
    return measurement.summed(contributions, "B", (*costed.once(_unmoved), *_unsized_edges(costed.graph)))


def _unsized_edges(graph: Graph) -> tuple[measurement.UnmeasuredOp, ...]:
    """Inputs and outputs of the graph whose size is not known."""
    return measurement.unmeasured_ops(
        (f"{edge} {tensor.name}", "", tensor.storage.unsized)
        for edge, tensors in (("input", graph.inputs), ("output", graph.outputs))
        for tensor in tensors
        if tensor.storage.unsized
    )


def _read_once(costed: CostedGraph) -> Iterator[tuple[str, int]]:
    """Each region of an input or weight once; rows of a table no more often than they are read.

    Shares are the first reader's.
    """
    whole: dict[Storage, list[Tensor]] = {}
    tables: dict[Storage, list[Tensor]] = defaultdict(list)
    rows: dict[Storage, int] = defaultdict(int)
    readers: dict[Storage, str] = {}
    inputs = {tensor.storage for tensor in costed.graph.inputs}
    for scope, traffic in costed.once(_moved):
        for tensor in traffic.whole:
            storage = tensor.storage
            if storage.kind is not ACTIVATION or storage in inputs:
                readers.setdefault(storage, scope)
                whole.setdefault(storage, []).append(tensor.sweeps or tensor)
        for tensor, nbytes in traffic.rows.items():
            storage = tensor.storage
            if storage.kind is not ACTIVATION or storage in inputs:
                readers.setdefault(storage, scope)
                rows[storage] += nbytes
                tables[storage].append(tensor)
    for storage, scope in readers.items():
        entire = whole.get(storage, [])
        nbytes = distinct_nbytes(entire)
        if storage in tables:
            nbytes = min(nbytes + rows[storage], distinct_nbytes([*entire, *tables[storage]]))
        yield scope, nbytes


def _returned(costed: CostedGraph) -> Iterator[tuple[str, int]]:
    """The bytes that the caller gets of what ops wrote, under the model itself."""
    returned = nbytes_by_storage(costed.graph.outputs)
    written = dict.fromkeys(returned, 0)
    for _, traffic in costed.once(_moved):
        for storage, nbytes in traffic.written.items():
            if storage in written:
                written[storage] += nbytes
    for storage, nbytes in returned.items():
        yield "", min(nbytes, written[storage])


def arithmetic_intensity(costed: CostedGraph) -> measurement.Measurement:
    """FLOPs of the contractions per byte moved: 2 x macs / bandwidth."""
    computed, moved = costed.once(macs), costed.once(bandwidth)
    pair = (2 * int(computed.value), int(moved.value))
    missing = tuple(dict.fromkeys((*computed.unmeasured, *moved.unmeasured)))
    if not pair[1]:
        nothing = measurement.UnmeasuredOp("model", 1, "", "moves no bytes, so it has no ratio")
        missing = missing or (nothing,)
        return measurement.Measurement(Fraction(0), "FLOP/B", unmeasured=missing)
    per_scope = {share.scope: share.value for share in computed.shares}
    none = Fraction(0)  # of most scopes, and slow to make
    ratios = tuple(
        measurement.Share(scope, Fraction(2 * int(per_scope[scope]), int(nbytes)) if scope in per_scope else none)
        for scope, nbytes in ((share.scope, share.value) for share in moved.shares)
    )
    return measurement.Measurement(Fraction(*pair), "FLOP/B", shares=ratios, unmeasured=missing, unreduced=pair)


BANDWIDTH = measurement.Metric(
    "bandwidth",
    "B",
    "bytes each op reads and writes, weights included, summed",
    bandwidth,
    measurement.ByTraffic(("read", "weights", "write")),
    drafted=True,
    also=("traffic", "memory_traffic", "dram_traffic", "bytes_moved", "memory_access"),
)
TOTAL_ACTIVATION = measurement.Metric(
    "total_activation",
    "B",
    "bytes written by all ops",
    total_activation,
    measurement.ByTraffic(("write",)),
    also=("activation_sum", "output_size", "outputs"),
)
BANDWIDTH_FLOOR = measurement.Metric(
    "bandwidth_floor",
    "B",
    "inputs, weights and outputs once: perfect fusion",
    bandwidth_floor,
    not_scoped="perfect fusion is defined for the whole model",
)
ARITHMETIC_INTENSITY = measurement.Metric(
    "arithmetic_intensity",
    "FLOP/B",
    "2 x macs / bandwidth",
    arithmetic_intensity,
    not_scoped="a ratio is not the sum of its shares",
    also=("intensity", "operational_intensity"),
)
