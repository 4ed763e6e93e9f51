"""``quantize_weights`` on torch modules: integers on a grid in place of floating weights.

A layer keeps its class's forward pass and reads ``weight`` as before: it is worked out from the
integers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.graph.graph import Graph, Op, Weight
from pytest_modelbudget.graph.tensor import StorageKind, Tensor
from pytest_modelbudget.ops.rule import Over
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.torch_models.running import TorchModel
from pytest_modelbudget.torch_models.weights import GRID
from pytest_modelbudget.transforms.on_torch import change_module
from pytest_modelbudget.transforms.quantize.grid import Grid, floor_of, grid_of
from pytest_modelbudget.transforms.transform import LEFT_OUT, Changed, Settings, must_name_layers

LAYERS = (nn.Linear, _ConvNd, nn.MultiheadAttention)


def apply(model: TorchModel, settings: Settings) -> Changed:
    """The module with integer weights; raises TransformError where no layer was changed."""
    grid = grid_of(settings)
    changed = change_module(
        model,
        lambda module: quantised(module, grid),
        lambda before, after: tuple(layer_changes(before, after, grid)),
        regraph=lambda graph: with_logical_elements(graph, grid.bits),
    )
    if model.is_copy:
        return changed
    must_name_layers(grid.layers, changed)
    if not any(change.became for change in changed.changes):
        raise TransformError("quantize_weights changed nothing: no layer was selected")
    listed = (*changed.changes, *unlisted(changed.model.graph, model.rules, changed.changes, grid))
    return replace(changed, changes=listed, floor=floor_of(grid.bits, products(changed.model.graph, model.rules)))


def quantised(model: nn.Module, grid: Grid) -> nn.Module:
    """The model, changed in place: selected weights are integers, and tied ones stay tied."""
    stored = StoredOnce(grid)
    for path, module in list(model.named_modules()):
        if is_selected(path, module, grid):
            for name in weights_of(module):
                put_on_grid(module, name, grid, stored)
    return model


def is_selected(path: str, module: nn.Module, grid: Grid) -> bool:
    """Whether a module has weights of its own that the grid is asked for."""
    return isinstance(module, LAYERS) and grid.selects(path) and bool(weights_of(module))


def weights_of(module: nn.Module) -> list[str]:
    """Names of the floating matrices and kernels among a layer's own parameters."""
    return [name for name, tensor in module._parameters.items() if is_matrix(tensor) and name.endswith("weight")]


def is_matrix(tensor: torch.Tensor | None) -> bool:
    """Whether a parameter is floating and has more than one axis."""
    return tensor is not None and tensor.dim() > 1 and tensor.is_floating_point()


@dataclass(frozen=True, slots=True)
class OnGrid:
    """What stands for one weight: integers, scales and zero points."""

    weight: torch.Tensor
    integers: nn.Parameter
    scale: torch.Tensor
    zero: torch.Tensor


class StoredOnce:
    """What is stored for each weight and axis, whichever layers are tied to it."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._made: dict[tuple[int, int], OnGrid] = {}

    def of(self, weight: torch.Tensor, axis: int) -> OnGrid:
        """The same tensors for the same weight, with channels along the same axis."""
        key = id(weight), axis if self._grid.per_channel else 0
        if key not in self._made:  # which holds the weight, so that its id stays its own
            integers, scale, zero = on_grid(weight.detach(), self._grid, axis)
            parameter = nn.Parameter(integers, requires_grad=False)
            self._made[key] = OnGrid(weight, parameter, scale, zero)
        return self._made[key]


def put_on_grid(module: Any, name: str, grid: Grid, stored: StoredOnce) -> None:
    """Store one weight as integers, and let the attribute of its name work it out."""
    axis = 1 if isinstance(module, _ConvTransposeNd) else 0
    made = stored.of(module._parameters.pop(name), axis)
    module.register_parameter(f"{name}_integers", made.integers)
    module.register_buffer(f"{name}_{GRID}scale", made.scale)
    if not grid.symmetric:
        module.register_buffer(f"{name}_{GRID}zero", made.zero)

    def worked_out(layer: Any) -> torch.Tensor:
        scale = getattr(layer, f"{name}_{GRID}scale")
        integers = getattr(layer, f"{name}_integers").to(scale.dtype)
        if not grid.symmetric:
            integers = integers - getattr(layer, f"{name}_{GRID}zero").to(scale.dtype)
        return cast(torch.Tensor, integers * scale)

    kind = type(module)
    module.__class__ = type(kind.__name__, (kind,), {name: property(worked_out), "__module__": kind.__module__})


def on_grid(weight: torch.Tensor, grid: Grid, axis: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Integers, scales and zero points; scales in the weight's own type, as they are stored."""
    wide = weight.double()
    others = [each for each in range(wide.dim()) if not (grid.per_channel and each == axis)]
    least = wide.amin(others, keepdim=True).clamp(max=0)
    most = wide.amax(others, keepdim=True).clamp(min=0)
    low, high = grid.ends
    span = torch.maximum(-least, most) / high if grid.symmetric else (most - least) / (high - low)
    scale = rounded_up(torch.where(span > 0, span, 1.0), weight.dtype)
    step = scale.double()
    zero = torch.zeros_like(step) if grid.symmetric else (low - least / step).round()
    zero = zero.clamp(low, high)
    integers = ((wide / step).round() + zero).clamp(low, high)
    return integers.to(torch.int8), scale, zero.to(torch.int8)


def rounded_up(wide: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Float64 scales in the type that stores them: no peak is off the grid, however small it is."""
    near = wide.to(dtype)
    above = torch.nextafter(near, torch.full_like(near, torch.inf))
    return torch.where(near.double() < wide, above, near)


def layer_changes(before: nn.Module, after: nn.Module, grid: Grid) -> Iterator[Change]:
    """Every layer: whether its weights are integers now, and that these lie on the grid."""
    there = dict(after.named_modules())
    for path, module in before.named_modules():
        kind = type(module).__name__
        if module._modules and not isinstance(module, LAYERS):
            continue
        if not is_selected(path, module, grid):
            yield Change(path, kind, why=_why_not(module))
            continue
        for name in weights_of(module):
            must_lie_on_grid(f"{path}.{name}", module._parameters[name], there[path], grid)
        yield Change(path, kind, grid.text)


def unlisted(graph: Graph, rules: OpTable, changes: Sequence[Change], grid: Grid) -> Iterator[Change]:
    """Operations that still multiply by a parameter, of modules that nobody listed as layers."""
    listed = {change.scope for change in changes}
    owners = {weight.tensor.storage: weight.scope for weight in graph.weights if weight.kind is StorageKind.PARAMETER}
    for op in graph.ops:
        for tensor in multiplied_tensors(op, rules):
            scope = owners.get(tensor.storage)
            if scope is not None and scope not in listed:
                listed.add(scope)
                why = "its type is not quantised" if grid.selects(scope) else LEFT_OUT
                yield Change(scope, op.name, why=why)


def products(graph: Graph, rules: OpTable) -> int:
    """How many operations multiply by a weight on the grid: one for each run of a layer."""
    stored = {weight.tensor.storage for weight in graph.weights}
    from_integers = {weight.tensor.storage for weight in graph.weights if is_on_grid(weight.tensor)}
    count = 0
    for op in graph.ops:
        if all(tensor.storage in stored for tensor in op.tensors()):
            made = {output.storage for output in op.outputs}
            stored |= made
            from_integers |= made if any(tensor.storage in from_integers for tensor in op.tensors()) else set()
        else:
            count += op.times * any(tensor.storage in from_integers for tensor in multiplied_tensors(op, rules))
    return count


def is_on_grid(tensor: Tensor) -> bool:
    """Whether a stored tensor is the integers of a weight."""
    return tensor.name.endswith("_integers")


def multiplied_tensors(op: Op, rules: OpTable) -> Iterator[Tensor]:
    """Operands whose products an operation sums, over features or channels."""
    if op.name not in rules:
        return
    for over in (Over.FEATURES, Over.CHANNELS):
        roles = rules[op.name].multiplied(op.name, over, op.attributes, len(op.operands))
        for operand in (op.operands[position] for position, _ in roles):
            if isinstance(operand, Tensor):
                yield operand
            elif operand is not None:
                yield from filter(None, operand)


def _why_not(module: nn.Module) -> str:
    """Why a layer's weights stay as they are."""
    if isinstance(module, LAYERS) and weights_of(module):
        return LEFT_OUT
    if any(is_matrix(tensor) for tensor in module._parameters.values()):
        return "its type is not quantised"
    return "it has no weight matrix"


def must_lie_on_grid(path: str, weight: Any, module: Any, grid: Grid) -> None:
    """Hold what a layer stores to w = s·(q - z), to half a step, with integers of so many bits.

    weight is what the layer had before. Raises TransformError with how far off it is.
    """
    name = path.rpartition(".")[2]
    integers = module._parameters[f"{name}_integers"]
    low, high = grid.ends
    if integers.dtype != torch.int8 or integers.min() < low or integers.max() > high:
        raise TransformError(f"quantize_weights: {path} is not on the grid of {grid.bits} bit")
    step = getattr(module, f"{name}_{GRID}scale").double()
    zero = 0 if grid.symmetric else getattr(module, f"{name}_{GRID}zero").double()
    off = ((step * (integers.double() - zero) - weight.detach().double()).abs() / step).max()
    if not off <= grid.most_steps_off:
        raise TransformError(
            f"quantize_weights: {path} is {float(off):.3g} steps off what it was, and rounding "
            f"explains {grid.most_steps_off:.2g}: leave it out with layers:"
        )


def with_logical_elements(graph: Graph, bits: int) -> Graph:
    """The graph whose stored integers take ``bits`` each, and count as one element each."""
    if bits == 8:
        return graph
    weights = tuple(_packed(weight, bits) for weight in graph.weights)
    return replace(graph, weights=weights)


def _packed(weight: Weight, bits: int) -> Weight:
    tensor = weight.tensor
    if not is_on_grid(tensor):
        return weight
    return replace(weight, tensor=replace(tensor, dtype=replace(tensor.dtype, name="int4", bits=bits)))
