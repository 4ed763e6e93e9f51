"""What a reader must know of what a model stores.

Weights that are no parameters, constants that nothing registers, and parameters that no operation reads.
"""

from collections.abc import Collection, Iterator

from pytest_modelbudget.graph.graph import Graph, Op, Weight, name_in
from pytest_modelbudget.graph.tensor import ACTIVATION, Storage, StorageKind, Tensor, distinct_nbytes
from pytest_modelbudget.metrics.costs import NO_TRAFFIC, CostedGraph
from pytest_modelbudget.metrics.storage import saved_nbytes, weight_nbytes
from pytest_modelbudget.ops.rule import contracted
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.units import some_of

KINDS = frozenset({StorageKind.BUFFER, StorageKind.CONSTANT})
TABLES = frozenset({"embedding", "embedding_bag", "gather"})  # kinds, whose first operand is a table of picked rows
WORTH_A_WORD = 100  # times what a note is about is at least the size that it stands beside
UNCOUNTED = "no operation that is counted"  # as of a branch that another one costs more than
Origins = dict[Storage, frozenset[str]]  # names of the stored tensors that a memory comes from, where no input does


def notes_on_stored(costed: CostedGraph) -> tuple[str, ...]:
    """Of stored tensors that a size lacks, and of parameters that nothing reads: which, and where they count."""
    named, note = _on_weights(costed)
    return (*note, *_on_constants(costed, named), *_on_unread(costed))


def _on_constants(costed: CostedGraph, named: Collection[str]) -> Iterator[str]:
    """Tensors in plain attributes, as a table of positions or the scales of a quantiser: no state dict has them.

    Not those that a note has named, and no word where model_size is a hundred times as much.
    """
    lacking = [
        weight.tensor
        for weight in costed.graph.weights
        if weight.kind is StorageKind.CONSTANT and not weight.persistent
        and weight.tensor.name not in named and not weight.tensor.is_immediate
    ]  # fmt: skip
    nbytes = distinct_nbytes(lacking)
    if not nbytes or nbytes * WORTH_A_WORD < sum(amount for _, amount in costed.once(saved_nbytes)):
        return
    memories = {tensor.storage for tensor in lacking}
    readers = [cost for cost in costed.costs if any(tensor.storage in memories for tensor in cost.op.tensors())]
    working = [cost for cost in readers if cost.traffic is not NO_TRAFFIC]  # and do not hand a constant on
    operators = dict.fromkeys(name_in(cost.op.name, cost.op.scope) for cost in working or readers)
    yield (
        f"constants that no parameter or buffer holds: {nbytes:,} B, read by {some_of(operators, 2) or UNCOUNTED}; "
        "model_size lacks them"
    )


def _on_unread(costed: CostedGraph) -> Iterator[str]:
    """Parameters that no counted operation reads, as heads for training alone and the floats of quantised ones.

    No word where weight_memory is a hundred times as much, nor of a model without a pass.
    """
    graph, amounts = costed.graph, costed.once(weight_nbytes)
    unread = [(weight, amount) for weight, amount in amounts if weight.tensor.storage not in graph.read]
    if not unread:
        return
    operands = [tensor for op in graph.ops for tensor in op.tensors()]
    # A sparse operand may be a parameter, and a body that is not written out, as a Loop's, may read any.
    if not operands or any(op.unsized for op in graph.ops):
        return
    asked = {tensor.storage for tensor in operands}  # for its shape, too
    unread = [
        (weight, amount) for weight, amount in unread if _is_parameter(weight) and weight.tensor.storage not in asked
    ]
    nbytes = sum(amount for _, amount in unread)
    if not nbytes or nbytes * WORTH_A_WORD < sum(amount for _, amount in amounts):
        return
    named = some_of(_shown(weight) for weight, _ in unread)
    yield f"parameters that no counted operation reads: {named}; params and weight_memory have them, {nbytes:,} B"


def _on_weights(costed: CostedGraph) -> tuple[Collection[str], tuple[str, ...]]:
    """Names of weights that are no parameters, and the note on them."""
    held = {w.tensor.name: w for w in _held(costed.graph)}
    found = list(_multiplied(costed.graph, costed.rules, held.keys())) if held else []
    if not found:
        return (), ()
    operators = dict.fromkeys(name_in(op.name, op.scope) for op, _ in found)
    weights = [held[name] for name in dict.fromkeys(name for _, names in found for name in names)]
    named = some_of(map(_shown, weights))
    stored = sum(weight.persistent for weight in weights)
    size = "model_size has" if stored == len(weights) else "model_size lacks some of" if stored else "model_size lacks"
    note = (
        f"weights that are no parameters: {named}, read by {some_of(operators, 2)}; "
        f"params and weight_memory lack them, {size} them"
    )
    return [weight.tensor.name for weight in weights], (note,)


def _held(graph: Graph) -> Iterator[Weight]:
    """Stored tensors that may be weights: matrices, and flat ones that operations make something else of first."""
    stored = [w for w in graph.weights if w.tensor.shape and w.kind in KINDS and w.held_as is None]
    read_alone: set[Storage] = set()
    for op in graph.ops if stored else ():
        for tensor in op.tensors():
            if tensor.storage.kind is ACTIVATION:
                break
        else:
            read_alone.update([tensor.storage for tensor in op.tensors()])
    for weight in stored:
        is_flat = weight.tensor.storage in read_alone and max(weight.tensor.shape) > 1
        if is_flat or _is_matrix(weight.tensor):
            yield weight


def _is_matrix(tensor: Tensor) -> bool:
    """Whether it has rows and columns, as tables of positions and frequencies do not."""
    return len(tensor.shape) > 1 and sum([size > 1 for size in tensor.shape]) > 1


def _fills(stored: Tensor, operand: Tensor) -> bool:
    """Whether a stored tensor has a value for each element of a matrix, however flat it lies; a byte may hold eight."""
    if _is_matrix(stored):
        return True
    each = 8 if stored.dtype.name == "uint8" else 1
    return _is_matrix(operand) and each * stored.elements >= operand.region.elements


def _shown(weight: Weight) -> str:
    """Name and shape: "fc.weight (1000x512)"."""
    return f"{weight.tensor.name} ({'x'.join(map(str, weight.tensor.shape)) or 'scalar'})"


def _is_parameter(weight: Weight) -> bool:
    return weight.kind is StorageKind.PARAMETER


def _multiplied(graph: Graph, rules: OpTable, names: Collection[str]) -> Iterator[tuple[Op, list[str]]]:
    """What an operation that depends on an input reads as a weight and comes from stored tensors: those of these names.

    Not those that come from a parameter of as many elements, too: that is the weight, and a smaller one is a scale.
    """
    stored = {weight.tensor.name: weight for weight in graph.weights}
    moving = {tensor.storage for tensor in graph.inputs}
    origins: Origins = {}
    for name, each in stored.items():  # several may be parts of one memory
        origins[each.tensor.storage] = origins.get(each.tensor.storage, frozenset()) | {name}
    named = {stored[name].tensor.storage for name in names}  # and what comes from these
    for op in graph.ops:
        read = {tensor.storage for tensor in op.tensors()}
        if not moving.isdisjoint(read):
            is_named = not named.isdisjoint(read)
            for weight in (*contracted(op, rules.get(op.name)), *_table(op, rules, moving)) if is_named else ():
                come = frozenset[str]() if weight.storage in moving else origins.get(weight.storage, frozenset())
                whole = max((stored[name].tensor.elements for name in come if _is_parameter(stored[name])), default=0)
                held = (name for name in names if name in come and _fills(stored[name].tensor, weight))
                larger = [name for name in held if stored[name].tensor.elements > whole]
                if larger:
                    yield op, larger
            moving.update([tensor.storage for tensor in op.outputs])
        elif all(storage in origins for storage in read):
            names_read = frozenset[str]().union(*(origins[storage] for storage in read))
            if not named.isdisjoint(read):
                named.update([out.storage for out in op.outputs])
            origins.update((out.storage, names_read | origins.get(out.storage, frozenset())) for out in op.outputs)


def _table(op: Op, rules: OpTable, moving: Collection[Storage]) -> Iterator[Tensor]:
    """The table whose rows an input picks, by an embedding or an index; what fixed positions pick is none."""
    rule = rules.get(op.name)
    if rule is not None and rule.kind in TABLES and len(op.operands) > 1:
        table, indices = op.operands[:2]
        picks = indices if isinstance(indices, tuple) else (indices,)
        if isinstance(table, Tensor) and any(each is not None and each.storage in moving for each in picks):
            yield table
