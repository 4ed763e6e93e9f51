"""The program of a quantised model: the same operations over integers, whatever format it came from.

Costs are those of the operands that are multiplied, as a device reads them; nothing is dequantised on the way.
linear(x, W) with W of int4 in groups of 32 drawn once::

    aten::linear(x float32 1x64, W int4 8x64)  reads beside it  W.scale float32 8x2
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import cast

from pytest_modelbudget.equivalence.changed import Changed, Floor
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.model import Change, LoadedModel, RunnableModel
from pytest_modelbudget.graph.graph import Graph, Op, Weight
from pytest_modelbudget.graph.rewrite import StorageMap, with_tensors, with_ways
from pytest_modelbudget.graph.tensor import DType, Storage, StorageKind, Tensor, dense, nbytes_of
from pytest_modelbudget.lowering.groups import is_floating
from pytest_modelbudget.lowering.program import Program, Step
from pytest_modelbudget.lowering.retyping import as_type, floating_memory, types_of
from pytest_modelbudget.lowering.weight_scales import Read, added_to_products, bring_scales, reads
from pytest_modelbudget.ops.rule import contracted
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.transforms.quantize.grid import Grid, Scheme, floor_of
from pytest_modelbudget.transforms.transform import LEFT_OUT, must_name_layers
from pytest_modelbudget.units import several


@dataclass(slots=True)
class StoredWeight:
    """A weight on a grid: the axes of its channels, and how often an operation multiplies by it."""

    tensor: Tensor
    scope: str
    operation: str
    grid: Grid
    axes: tuple[int, ...]
    channels: int = 0
    times: int = 0


@dataclass(frozen=True, slots=True)
class Quantised:
    """A model with its program on integers, and the grid of every weight, bias and other value, by its memory before.

    weights are those that are multiplied. biases have, where they are scaled, the scale of input times weight.
    """

    measured: LoadedModel
    before: Graph
    weights: Mapping[Storage, StoredWeight]
    biases: Mapping[Storage, Grid]
    values: Mapping[Storage, Grid]
    turned: Mapping[Storage, Storage]  # memory that a transposed weight is moved to, and the weight's own
    changes: tuple[Change, ...]

    @property
    def on_grids(self) -> Iterator[tuple[str, Grid, tuple[int, ...]]]:
        """Name, grid and axes of channels of each stored tensor that has other values in a run."""
        yield from ((each.tensor.name, each.grid, each.axes) for each in self.weights.values())
        stored = {weight.tensor.storage: weight for weight in self.before.weights[::-1]}
        fixed = {storage: grid for storage, grid in self.biases.items() if grid.frac is not None}
        learnt = {each: grid for each, grid in self.values.items() if each.kind is StorageKind.PARAMETER}
        for storage, grid in (fixed | learnt).items():
            yield stored[storage].tensor.name, replace(grid, symmetric=True), ()

    def whole(self, storage: Storage) -> StoredWeight | None:
        """The weight that lies in some memory, also where the program has moved it there; None where none does."""
        return self.weights.get(self.turned.get(storage, storage))

    @property
    def products(self) -> int:
        """How often an operation multiplies by integers."""
        return sum(weight.times for weight in self.weights.values())


def quantised(model: RunnableModel, rules: OpTable, scheme: Scheme) -> Quantised:
    """The program of a model on the grids of a scheme.

    Raises TransformError where nothing is on a grid, or two layers ask for one weight on two.
    """
    graph = model.graph
    found = _Choice(graph, rules, scheme)
    for program in _programs(graph):
        found.add(Program(replace(program, weights=graph.weights), rules))
    now, became = found.written()

    def there(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(became.get(tensor, tensor) for tensor in tensors)

    layers = tuple(replace(each, inputs=there(each.inputs), outputs=there(each.outputs)) for each in model.layers)
    loaded = LoadedModel(now, model.format, model.traced, layers, (*model.notes, *found.notes()), model.offered)
    turned = {storage: whole for storage, (whole, _) in found.turned.items()}
    return Quantised(loaded, graph, found.weights, found.biases, found.values, turned, tuple(found.changes(model)))


def changed(model: RunnableModel, plan: Quantised, scheme: Scheme, *, is_copy: bool) -> Changed:
    """A quantised model, its changes, and the floor that its weights owe; copies are not examined again."""
    made = Changed(model, plan.changes, is_last=True)
    if is_copy:
        return made
    must_name_layers([glob for glob, _ in scheme.of_layers], made)
    grids = [weight.grid for weight in plan.weights.values()]
    scaled = [grid.bits for grid in grids if grid.frac is None]
    if plan.values or len(scaled) < len(grids) or not grids:
        return replace(made, floor=Floor(0.0, "what calibration and fixed ends leave"))
    return replace(made, floor=floor_of(min(scaled), plan.products))


def _programs(graph: Graph) -> Iterator[Graph]:
    yield graph
    for way in (way for fork in graph.forks for way in fork.ways.values()):
        yield from _programs(way)


@dataclass(slots=True)
class _Choice:
    """Which memory becomes integers, and of which bits; what stays, and why, by the module that owns it."""

    graph: Graph
    rules: OpTable
    scheme: Scheme
    weights: dict[Storage, StoredWeight] = field(default_factory=dict)
    biases: dict[Storage, Grid] = field(default_factory=dict)
    values: dict[Storage, Grid] = field(default_factory=dict)
    stays: dict[str, tuple[str, str]] = field(default_factory=dict)  # module: operation and reason
    left: list[Step] = field(default_factory=list)
    _programs: list[Program] = field(default_factory=list)
    _types: dict[Storage, DType] = field(default_factory=dict)  # before
    _asked: dict[Storage, Grid | None] = field(default_factory=dict)
    _kept: set[Storage] = field(default_factory=set)  # weights and biases of layers that stay
    turned: dict[Storage, tuple[Storage, tuple[int, ...]]] = field(default_factory=dict)  # memory, and order of axes

    def add(self, program: Program) -> None:
        """Choose of one program: the whole, or a branch of it."""
        self._programs.append(program)
        stored = [weight for weight in self.graph.weights if weight.kind is StorageKind.PARAMETER]
        matrices = [each for each in stored if len(each.tensor.shape) > 1 and is_floating(each.tensor)]
        owners = {weight.tensor.storage: weight for weight in matrices[::-1]}  # the first of tied ones
        wholes = {storage: weight.tensor for storage, weight in owners.items()}
        self._turn(program, owners, wholes)
        biases, computed = added_to_products(program), _computed(program)
        self._types.update(floating_memory(program))
        for _, op in program.running():
            multiplied = {*contracted(op, program.rule(op))}
            for read in reads(program, op, wholes) if multiplied and not op.is_view else ():
                if read.part in multiplied:
                    self._choose(op, read, owners[read.whole.storage], biases)
            if any(each.storage in computed - wholes.keys() for each in multiplied):
                self.stays.setdefault(op.scope, (op.name, "its weight is computed, or quantised already"))
        if self.scheme.layer.activations:
            self._choose_values(program)

    def _turn(self, program: Program, owners: dict[Storage, Weight], wholes: dict[Storage, Tensor]) -> None:
        """Take what moves a stored weight to other places, as ONNX transposes it, for the weight itself."""
        for _, op in program.running():
            source = op.tensors()[0] if program.kind(op) == "transpose" and not op.is_view else None
            if source is not None and source.storage in owners:
                owner, (out,) = owners[source.storage], op.outputs
                axes = list(range(len(source.shape)))
                before = self.turned.get(source.storage, (source.storage, tuple(axes)))[1]
                order = cast("Sequence[int]", op.attributes.get("perm", axes[::-1]))
                owners[out.storage], wholes[out.storage] = owner, out
                self.turned[out.storage] = owner.tensor.storage, tuple(before[at] for at in order)

    def _choose(self, op: Op, read: Read, owner: Weight, biases: set[Storage]) -> None:
        layer, storage = self.scheme.of(owner.scope, op.scope), owner.tensor.storage
        known = self.weights.get(storage)
        if self._asked.setdefault(storage, layer.weights) != layer.weights:
            raise TransformError(
                f"quantize: '{owner.tensor.name}' is read by {op.scope or op.name} too, and 'layers' asks for two "
                "grids of it: write one entry that names both readers"
            )
        if layer.weights is None or storage not in self._types:
            why = LEFT_OUT if layer.weights is None else "it lies in memory of several types"
            self._kept.update((storage, *(each.storage for each in op.tensors() if each.storage in biases)))
            self.stays.setdefault(owner.scope, (op.name, why))
            return
        if known is None:
            axes = _whole_axes(read) if self.scheme.per_channel or self.scheme.group else ()
            if read.whole.storage in self.turned:
                axes = tuple(sorted(self.turned[read.whole.storage][1][axis] for axis in axes))
            known = self.weights[storage] = StoredWeight(owner.tensor, owner.scope, op.name, layer.weights, axes)
        known.channels = max(known.channels, read.channels)
        known.times += op.times
        if layer.bias:
            beside = (each.storage for each in op.tensors() if each.storage in biases & self._types.keys())
            self.biases.update(dict.fromkeys(beside, layer.bias))

    def _choose_values(self, program: Program) -> None:
        """Activations, and what is stored with them, as a device lowers them."""
        grid = self.scheme.layer.activations
        assert grid is not None, "asked for where there are activations"
        floating = (op for _, op in program.running() if self.scheme.of(op.scope).activations is None)
        kept = {each.storage for op in floating for each in op.outputs}
        types = types_of(program, floating_memory(program), "int8", "int8")
        self.left += program.left
        taken = {*kept, *self._kept, *self.weights, *self.biases}
        self.values.update((storage, grid) for storage, _ in types if storage not in taken)
        for _, op in program.running():
            layer = self.scheme.of(op.scope)
            if layer.activations:
                mine = (each.storage for each in op.outputs if each.storage in self.values)
                self.values.update(dict.fromkeys(mine, layer.activations))

    # The program that this gives.

    def written(self) -> tuple[Graph, Mapping[Tensor, Tensor]]:
        """The program on integers, and what stands for each of its tensors before."""
        grids = {storage: each.grid for storage, each in self.weights.items()}
        turned = {storage: grids[whole] for storage, (whole, _) in self.turned.items() if whole in grids}
        grids = {**self.values, **self.biases, **grids, **turned}
        if not grids:
            reasons = (f"{scope or 'the model'} ({op}: {why})" for scope, (op, why) in self.stays.items())
            why = next(reasons, "no operation multiplies by a stored weight")
            raise TransformError(f"quantize changed nothing: {why}: name layers with floats")
        types = {storage: DType(f"int{grid.bits}", grid.bits) for storage, grid in grids.items()}
        memories = {storage: as_type(storage, self._types[storage], after) for storage, after in types.items()}
        scales: dict[str, Tensor] = {}
        scaled: dict[Op, Op] = {}
        by_scale = {storage for storage, grid in grids.items() if grid.frac is None and storage not in self.biases}
        for program in self._programs:
            before = list(program.ops)
            bring_scales(program, by_scale, partial(self._stored, scales, "scale"))
            zeros = {storage for storage in by_scale & self.weights.keys() if not grids[storage].symmetric}
            bring_scales(program, zeros, partial(self._stored, scales, "zero_point"))
            pairs = zip(before, program.ops, strict=True)
            scaled.update((op, now) for op, now in pairs if op is not None and now is not None)
        graph = _over(self.graph, lambda op: scaled.get(op, op))
        new = StorageMap(memories, types)
        graph = with_tensors(graph, new)
        mine = {*memories.values()}
        weights = [_counted(each) if each.tensor.storage in mine else each for each in graph.weights]
        return replace(graph, weights=(*weights, *map(Weight, scales.values()))), new.copies

    def _stored(self, made: dict[str, Tensor], word: str, whole: Tensor, channels: int) -> Tensor:
        """The scales, or zero points, of a weight; the same in every program."""
        weight, name = self.weights.get(whole.storage), f"{whole.name}.{word}"
        if weight is None:
            shape: tuple[int, ...] = (channels,) if channels else ()
        elif self.scheme.group:
            of_one = whole.elements // max(weight.channels, 1)
            shape = (weight.channels, -(-of_one // self.scheme.group))
        else:
            shape = (weight.channels,) if self.scheme.per_channel else ()
        bits = weight.grid.bits if weight else 0
        dtype = whole.dtype if word == "scale" else DType(f"int{bits}", bits)
        if name not in made:
            memory = Storage(name, nbytes_of(prod(shape), dtype), StorageKind.QUANTISER)
            made[name] = dense(name, shape, dtype, memory)
        return made[name]

    # What is said of it.

    def notes(self) -> Iterator[str]:
        """What stays floating where activations are integers."""
        staying = [step for step in self.left if step.stays]
        if staying:
            where = f"{staying[0].op} in {staying[0].scope}" if staying[0].scope else staying[0].op
            yield f"quantize: {several(len(staying), 'operation')} left in floating types, first {where}"

    def changes(self, model: RunnableModel) -> Iterator[Change]:
        """Every layer, and every other operation with a weight: what became of it, or why it stays."""
        became = {each.scope: f"{each.grid.text}, {self.scheme.text}" if each.grid.frac is None else each.grid.text
                  for each in self.weights.values()}  # fmt: skip
        kinds = {each.scope: each.operation for each in self.weights.values()}
        kinds |= {scope: operation for scope, (operation, _) in self.stays.items()}
        kinds |= {
            layer.scope: layer.type for layer in model.layers if layer.leaf or (layer.scope and layer.scope in kinds)
        }
        for scope, operation in kinds.items():
            why = self.stays.get(scope, ("", "it has no weight that is multiplied"))[1]
            yield Change(scope, operation, became.get(scope, ""), "" if scope in became else why)


def _counted(weight: Weight) -> Weight:
    """A stored tensor of integers, a parameter with its number of weights, which no reader need find out."""
    packed = weight.tensor.elements if weight.kind is StorageKind.PARAMETER else weight.packed
    return replace(weight, packed=packed, trainable=False)


def _computed(program: Program) -> set[Storage]:
    """Memory of what stored tensors alone give: weights that nobody stores."""
    stored = {weight.tensor.storage for weight in program.weights}
    computed = set[Storage]()
    for _, op in program.running():
        if op.tensors() and all(each.storage in stored or each.storage in computed for each in op.tensors()):
            computed.update(output.storage for output in op.outputs if output.storage not in stored)
    return computed


def _whole_axes(read: Read) -> tuple[int, ...]:
    """The axes of a stored weight along which its outputs lie."""
    part, whole = read.part, read.whole
    if part.strides == whole.strides:
        return tuple(sorted(read.own))
    return tuple(sorted(whole.strides.index(part.strides[axis]) for axis in read.own))


def _over(graph: Graph, new: Callable[[Op], Op]) -> Graph:
    """The graph and its branches over other operations."""
    graph = with_ways(graph, lambda way: _over(way, new))
    return replace(graph, ops=tuple(map(new, graph.ops)))
