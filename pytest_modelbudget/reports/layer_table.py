"""The layer table: a model's module tree with what each layer holds, computes and puts out.

A linear layer in a container that also adds, drawn once::

    LayerTable((
        LayerRow("", 0, "Net", 1, inputs=((2, 3),), outputs=((2, 8),)),
        LayerRow("fc", 1, "Linear", 1, inputs=((2, 3),), outputs=((2, 8),),
                 params=32, macs=48, output_nbytes=64),
        LayerRow("", 1, OWN_OPERATIONS, 1, params=0, macs=0, output_nbytes=64)))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from pytest_modelbudget.frontends.loaded_model import LayerCall, LoadedModel
from pytest_modelbudget.ir.tensor import Tensor
from pytest_modelbudget.metrics.costed_graph import CostedGraph, OpCost, Traffic, Unknown
from pytest_modelbudget.metrics.params import params

OWN_OPERATIONS = "(own operations)"
OWN_PARAMETERS = "(own parameters)"

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One line of the table; the numbers of all lines add up to the totals.

    params, macs and output_nbytes are None in a container whose layers stand below it. calls is
    0 for a layer that was never called; shapes are those of the first call. unmeasured counts
    operations without a MAC formula, which makes macs a lower bound.
    """

    scope: str
    depth: int
    type: str
    calls: int
    inputs: tuple[Shape, ...] = ()
    outputs: tuple[Shape, ...] = ()
    kernel: Shape = ()
    params: int | None = None
    macs: int | None = None
    output_nbytes: int | None = None
    unmeasured: int = 0

    @property
    def name(self) -> str:
        """Last part of the module path; "" for the model itself and for own operations."""
        return "" if self.type in {OWN_OPERATIONS, OWN_PARAMETERS} else leaf_name(self.scope)

    @property
    def never_called(self) -> bool:
        """Whether neither a call nor an operation of it was recorded."""
        return self.params is not None and not (
            self.calls or self.macs or self.output_nbytes or self.unmeasured
        )


@dataclass(frozen=True, slots=True)
class LayerTable:
    """The rows of a model in call order, layers never called last in their container."""

    rows: tuple[LayerRow, ...]

    @property
    def params(self) -> int:
        """Sum of the column: elements of distinct parameters."""
        return sum(row.params or 0 for row in self.rows)

    @property
    def macs(self) -> int:
        """Sum of the column: multiply-accumulates whose formula is known."""
        return sum(row.macs or 0 for row in self.rows)

    @property
    def output_nbytes(self) -> int:
        """Sum of the column: bytes that layers put out, aliases of other tensors included."""
        return sum(row.output_nbytes or 0 for row in self.rows)


def leaf_name(scope: str) -> str:
    """Last part of a module path: "conv1" of "layer1.0.conv1"."""
    return scope.rpartition(".")[2]


def layer_table(model: LoadedModel, costed: CostedGraph, depth: int | None = None) -> LayerTable:
    """The table of a measured model, unfolded down to ``depth`` levels (all without one)."""
    return LayerTable(tuple(_rows(_tree(model, costed), 0, depth)))


@dataclass(slots=True)
class _Layer:
    """One module path while the tree grows: its calls, and what is its own alone."""

    scope: str
    calls: list[LayerCall] = field(default_factory=list)
    costs: list[OpCost] = field(default_factory=list)
    children: dict[str, _Layer] = field(default_factory=dict)
    params: int = 0

    @property
    def macs(self) -> int:
        return sum(cost.macs for cost in self.costs if isinstance(cost.macs, int))

    @property
    def unmeasured(self) -> int:
        return sum(cost.op.times for cost in self.costs if isinstance(cost.macs, Unknown))

    @property
    def written(self) -> int:
        moved = (cost.traffic for cost in self.costs)
        return sum(traffic.write for traffic in moved if isinstance(traffic, Traffic))

    @property
    def output_nbytes(self) -> int:
        """Bytes of a leaf's results; of a container (or where no call is known) what ops write."""
        if not self.children and self.calls:
            return sum(out.nbytes for call in self.calls for out in call.outputs)
        return self.written

    def subtree(self) -> Iterator[_Layer]:
        yield self
        for child in self.children.values():
            yield from child.subtree()


def _tree(model: LoadedModel, costed: CostedGraph) -> _Layer:
    """Module paths as a tree: layers in the order of their calls, then those never called."""
    root = _Layer("")
    for call in model.layers:
        _at(root, call.scope).calls.append(call)
    for cost in costed.costs:
        _at(root, cost.op.scope).costs.append(cost)
    for share in params(costed).shares:
        _at(root, share.scope).params += int(share.value)
    return root


def _at(root: _Layer, scope: str) -> _Layer:
    """The layer of a module path, grown with all that lead to it."""
    layer = root
    for name in scope.split(".") if scope else ():
        path = f"{layer.scope}.{name}" if layer.scope else name
        layer = layer.children.setdefault(name, _Layer(path))
    return layer


def _rows(layer: _Layer, level: int, depth: int | None) -> Iterator[LayerRow]:
    if not layer.children or level == depth:
        yield _summed(layer, level, layer.subtree())
        return
    yield _described(layer, level)
    if layer.params or layer.macs or layer.unmeasured or layer.written:
        yield LayerRow(
            layer.scope,
            level + 1,
            OWN_OPERATIONS if layer.costs else OWN_PARAMETERS,
            len(layer.calls),
            params=layer.params,
            macs=layer.macs,
            output_nbytes=layer.written,
            unmeasured=layer.unmeasured,
        )
    for child in layer.children.values():
        yield from _rows(child, level + 1, depth)


def _described(layer: _Layer, level: int) -> LayerRow:
    """A row without numbers: what the layer is, and the shapes of its first call."""
    if not layer.calls:
        return _from_operations(layer, level)
    first = layer.calls[0]
    return LayerRow(
        layer.scope,
        level,
        first.type,
        len(layer.calls),
        inputs=_shapes(first.inputs),
        outputs=_shapes(first.outputs),
        kernel=first.kernel,
    )


def _from_operations(layer: _Layer, level: int) -> LayerRow:
    """For files, which record no calls: what the layer's own operations say of it."""
    if not layer.costs or layer.children:
        return LayerRow(layer.scope, level, "", 0)
    first, last = layer.costs[0].op, layer.costs[-1].op
    return LayerRow(
        layer.scope,
        level,
        "+".join(dict.fromkeys(cost.kind for cost in layer.costs)),
        0,
        inputs=_shapes(each for each in first.tensors() if each.storage.is_activation),
        outputs=_shapes(last.outputs),
    )


def _summed(layer: _Layer, level: int, layers: Iterable[_Layer]) -> LayerRow:
    """A row with the numbers of a whole subtree."""
    covered = tuple(layers)
    return replace(
        _described(layer, level),
        params=sum(each.params for each in covered),
        macs=sum(each.macs for each in covered),
        output_nbytes=sum(each.output_nbytes for each in covered),
        unmeasured=sum(each.unmeasured for each in covered),
    )


def _shapes(tensors: Iterable[Tensor]) -> tuple[Shape, ...]:
    return tuple(tensor.shape for tensor in tensors)
