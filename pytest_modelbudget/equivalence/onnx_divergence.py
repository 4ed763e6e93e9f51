"""Where two ONNX graphs part: the first value of one that the other has nowhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from typing import TYPE_CHECKING, Any

import onnx
from onnx import NodeProto

from pytest_modelbudget.equivalence.array_errors import ALGEBRA, relative_error
from pytest_modelbudget.equivalence.divergence import Divergence, worst_element
from pytest_modelbudget.equivalence.onnx_running import OnnxRun, upcast
from pytest_modelbudget.equivalence.onnx_stored import names_read
from pytest_modelbudget.frontends.onnx_scopes import scope_of

if TYPE_CHECKING:
    from pytest_modelbudget.equivalence.comparison import Search

Values = Mapping[str, Any]


def divergence_search(original: onnx.ModelProto, other: onnx.ModelProto) -> Search:
    """A search for the first node of the original whose float64 result the other does not compute.

    Results are matched by name, else by value, so that names may have changed. One that only leads
    to results which agree was laid out otherwise (a convolution into which a batch norm was
    folded) and is no divergence, unless it is an output.
    """
    nodes = [node for node in original.graph.node if any(node.output)]
    results = [_result(node) for node in nodes]
    outputs = {value.name for value in original.graph.output}

    @cache
    def runs() -> tuple[OnnxRun, OnnxRun]:
        names = {*results, *last_results(other)}
        there = [name for node in other.graph.node for name in node.output if name in names]
        return (
            OnnxRun(original, float64=True, watched=results),
            OnnxRun(other, float64=True, watched=there),
        )

    def search(inputs: Values) -> Divergence | None:
        before, after = (_floating(run(upcast(inputs))) for run in runs())
        return _first(nodes, outputs, before, after)

    return search


def _first(
    nodes: Sequence[NodeProto], outputs: AbstractSet[str], before: Values, after: Values
) -> Divergence | None:
    """The first of some nodes whose result is wrong, or is an output and wrong."""
    results = map(_result, nodes)
    errors = {name: _error(name, before[name], after) for name in results if name in before}
    for node in nodes:
        name = _result(node)
        if errors.get(name, 0.0) <= ALGEBRA:
            continue
        following = [_result(each) for each in nodes if name in names_read((each,))]
        lost = following and all(errors.get(each, 0.0) <= ALGEBRA for each in following)
        if name in outputs or not lost:
            return _told(node, errors[name], before[name], after.get(name))
    return None


def _result(node: NodeProto) -> str:
    return str(next(filter(None, node.output)))


def last_results(model: onnx.ModelProto) -> Iterable[str]:
    """The last result of every layer: what another model may have under another name."""
    last = {scope_of(node): _result(node) for node in model.graph.node if any(node.output)}
    return last.values()


def _floating(values: Values) -> Values:
    """Those values that are floating tensors."""
    return {
        name: value
        for name, value in values.items()
        if getattr(value, "dtype", None) is not None and value.dtype.kind == "f"
    }


def _error(name: str, value: Any, others: Values) -> float:
    """How far the other model is from one value, wherever it comes closest; inf for NaN."""
    error = relative_error(value, others[name]) if name in others else float("inf")
    if error > ALGEBRA and any(relative_error(value, each) <= ALGEBRA for each in others.values()):
        return 0.0
    return error


def _told(node: NodeProto, error: float, before: Any, after: Any) -> Divergence:
    comparable = after is not None and after.shape == before.shape
    worst = worst_element(before, after) if comparable else None
    return Divergence(scope_of(node), error, worst)
