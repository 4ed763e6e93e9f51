"""Where inputs and results are rounded to their grids, and what a calibration says of these.

A convolution and its ReLU round once, behind the ReLU; what hands values on, as a maximum pool, keeps their grid::

    x ─[grid]→ convolution → relu ─[grid]→ max_pool → flatten → linear ─[grid]→ y
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_modelbudget.equivalence.inputs import SCALES, Row, drawn, families_of
from pytest_modelbudget.equivalence.user_inputs import GivenInputs, given_rows
from pytest_modelbudget.errors import InputError, TransformError
from pytest_modelbudget.formats.model import RunnableModel
from pytest_modelbudget.graph.graph import Graph, Op
from pytest_modelbudget.graph.tensor import Storage, Tensor
from pytest_modelbudget.lowering.groups import FORM_OF, MAXIMA, is_floating
from pytest_modelbudget.ops.rule import read_in_roles
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.transforms.quantize.costs import Quantised
from pytest_modelbudget.transforms.quantize.grid import Grid, rounded

if TYPE_CHECKING:
    from pytest_modelbudget.formats.model import Arrays

SEEDS = (0, 1, 2)  # of drawn calibration inputs, which are normal
Ends = tuple[float, float]  # the least and the largest value
OF_INPUTS = -1  # the place of what no operation gives


@dataclass(frozen=True, eq=False, slots=True)
class Point:
    """A value that is rounded to a grid where it is made: an input, or a result of the operation at a place."""

    at: int
    tensor: Tensor
    grid: Grid


@dataclass(frozen=True, slots=True)
class ScaledBias:
    """A bias in integers whose scale is that of the input at a point, times those of a weight."""

    bias: Tensor
    weight: str
    axes: tuple[int, ...]
    x: Point
    grid: Grid


@dataclass
class Points:
    """The points of a program, by place and memory, and its scaled biases by their memory."""

    graph: Graph
    points: dict[tuple[int, Storage], Point] = field(default_factory=dict)
    biases: dict[Storage, ScaledBias] = field(default_factory=dict)

    def add(self, at: int, tensor: Tensor, plan: Quantised, origins: dict[Storage, Point]) -> None:
        """Round a value where it is made, if it has a grid."""
        grid = plan.values.get(tensor.storage)
        if grid is not None and is_floating(tensor):
            origins[tensor.storage] = self.points[at, tensor.storage] = Point(at, tensor, grid)

    @cached_property
    def places(self) -> frozenset[int]:
        return frozenset(at for at, _ in self.points)

    def of_inputs(self, storage: Storage) -> Point | None:
        return self.points.get((OF_INPUTS, storage))


def points_of(plan: Quantised, rules: OpTable) -> Points:
    """Where the values of a program are rounded. Raises TransformError for one whose branches data choose."""
    graph, found = plan.before, Points(plan.before)
    if not plan.values:
        return found
    if graph.forks:
        raise TransformError("quantize: activations: data choose branches of the model: quantize its weights alone")
    origins: dict[Storage, Point] = {}
    for tensor in graph.inputs:
        found.add(OF_INPUTS, tensor, plan, origins)
    readers = _readers(graph)
    for at, op in enumerate(graph.ops):
        _add_bias(found, plan, op, origins)
        if op.is_shape_computation or (op.is_view and not op.mutates):
            continue
        source = _handed_on(op, rules, origins)
        for out in op.outputs:
            if source is not None:
                origins[out.storage] = source
            elif not _is_clamped_next(graph, rules, readers, at, out):
                found.add(at, out, plan, origins)
    return found


def _readers(graph: Graph) -> Mapping[Storage, list[int]]:
    readers: dict[Storage, list[int]] = {}
    for at, op in enumerate(graph.ops):
        for storage in dict.fromkeys(tensor.storage for tensor in op.tensors()):
            readers.setdefault(storage, []).append(at)
    return readers


def _handed_on(op: Op, rules: OpTable, origins: Mapping[Storage, Point]) -> Point | None:
    """The one point whose values an operation hands on; None where it computes others."""
    rule = rules.get(op.name)
    form = FORM_OF.get(rule.kind) if rule else None
    if rule is None or form is None or not (form.carries or (rule.kind in MAXIMA and "max" in op.name.lower())):
        return None
    read = {origins.get(t.storage) for _, t in read_in_roles(op, rule) if is_floating(t) and not t.is_immediate}
    return read.pop() if len(read) == 1 else None


def _is_clamped_next(graph: Graph, rules: OpTable, readers: Mapping[Storage, list[int]], at: int, out: Tensor) -> bool:
    """Return whether all that reads a result next is an activation to whose range rounding clamps: relu."""
    later = [reader for reader in readers.get(out.storage, ()) if reader > at]
    if not later or out in graph.outputs:
        return False
    op = graph.ops[later[0]]
    form = FORM_OF.get(rules[op.name].kind) if op.name in rules else None
    is_step = form is not None and form.steps and rules[op.name].kind != "cast"
    return is_step and (len(later) == 1 or op.mutates)


def _add_bias(found: Points, plan: Quantised, op: Op, origins: Mapping[Storage, Point]) -> None:
    """Note the scaled bias of an operation, with the input and the weight that it has its scale of."""
    tensors = op.tensors()
    bias = next((each for each in tensors if each.storage in plan.biases), None)
    weight = next((plan.whole(each.storage) for each in tensors if plan.whole(each.storage)), None)
    x = next((origins[each.storage] for each in tensors if each.storage in origins), None)
    if bias is None or weight is None or x is None or plan.biases[bias.storage].frac is not None:
        return
    grid = plan.biases[bias.storage]
    found.biases[bias.storage] = ScaledBias(bias, weight.tensor.name, weight.axes, x, grid)


# Calibration.

Observe = Callable[["Arrays"], Iterator[tuple[Point, Ends]]]  # run a model, and tell the ends of each value
Scales = Mapping[Point, tuple[float, int]]  # scale and zero point


def calibrated(points: Points, model: RunnableModel, calibrate: GivenInputs | str, observe: Observe) -> Scales:
    """Scale and zero point of every point, by the least and the largest value of it on calibration inputs.

    Fixed point needs none. Raises TransformError for inputs that are not the model's.
    """
    ends: dict[Point, Ends] = {}
    scaled = {point for point in points.points.values() if point.grid.frac is None}
    for row in _rows(model, calibrate) if scaled else ():
        for point, (least, most) in observe(row):
            known = ends.get(point, (least, most))
            ends[point] = min(known[0], least), max(known[1], most)
    if missing := scaled - ends.keys():
        words = f"no run gives '{missing.pop().tensor.name}'"
        raise TransformError(f"quantize: activations: {words}: quantize weights alone")
    scales = {}
    for point in points.points.values():
        least, most = ends.get(point, (0.0, 0.0))
        scale, zero = point.grid.scale_of(np.array(least), np.array(most), np.float32)
        scales[point] = float(scale), int(zero)
    return scales


MASKED, OF_HALF = -1e9, -32752.0  # what masks add before a softmax, and nothing computes; and in float16
BELOW = 16.0  # how far below all others a grid has its end for masked scores: a softmax gives them e^-16
ALONE = 128.0  # of a mask by itself, which is added to scores of any size


def ends_of(values: Any) -> Ends:
    """The least and the largest of some values, at least one; masked ones are somewhat below all others."""
    least, most = float(values.min()), float(values.max())
    bound = OF_HALF if values.dtype == np.float16 else MASKED
    if not least <= bound:
        return least, most
    others = values[values > bound]
    least, most = (float(others.min()), float(others.max())) if others.size else (0.0, 0.0)
    return least - (BELOW if least < most else ALONE), most


def _rows(model: RunnableModel, calibrate: GivenInputs | str) -> Iterator[Arrays]:
    specs = model.inputs.specs
    if not isinstance(calibrate, GivenInputs):
        families = families_of(list(specs.values()), ("normal",))
        yield from (drawn(specs, Row(family, seed), SCALES[0]) for family in families for seed in SEEDS)
        return
    try:
        yield from given_rows(calibrate, specs)[0]
    except InputError as error:
        words = str(error).removeprefix("inputs: ")
        raise TransformError(f"quantize: activations: calibrate: {words}") from error


def bias_on_grid(values: Any, bias: ScaledBias, weight_scale: Any, scales: Scales) -> tuple[Any, Any]:
    """The integers of a bias, and their scales: those of the input times the weight's, one for each channel."""
    step = scales[bias.x][0] * np.asarray(weight_scale, np.float64).reshape(-1)
    if 1 < step.size < np.size(values):  # of a transposed convolution, whose groups share the scales of its columns
        step = np.tile(step, np.size(values) // step.size)
    return rounded(np.asarray(values, np.float64), step, 0, bias.grid), step
