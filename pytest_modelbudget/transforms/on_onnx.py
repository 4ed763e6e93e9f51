"""ONNX models changed by a rewrite of their graph."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import onnx

from pytest_modelbudget.equivalence.changed import Changed
from pytest_modelbudget.equivalence.products import operators_of
from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.onnx_models.model import OnnxModel
from pytest_modelbudget.onnx_models.protos import all_graphs
from pytest_modelbudget.transforms.transform import must_name_layers


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A rewritten model, what became of each operation, and how much it rounds.

    partial_sums is the largest number of sums per output that are rounded to the storage type.
    """

    model: onnx.ModelProto
    changes: tuple[Change, ...]
    partial_sums: int = 1


Rewrite = Callable[[onnx.ModelProto], Rewritten]


def change_graph(model: OnnxModel, rewrite: Rewrite, *, changes_weights: bool = False) -> Changed:
    """A model under a rewrite of its graph.

    A rewrite that changes_weights is made to the float64 copy once more: what it makes of the
    stored ones is rounded.
    """
    if model.is_exact:
        model.upcast_values()
    rewritten = rewrite(model.proto)
    changed = model.changed(rewritten.model)
    made = Changed(changed, rewritten.changes, rewritten.partial_sums, upcasts=not changes_weights)
    if model.is_copy or not is_flat(rewritten.model):
        return made
    return replace(made, promised=operators_of(changed.graph, model.rules))


def change_layers(
    model: OnnxModel, rewrite: Rewrite, layers: Iterable[str], check: Callable[[Sequence[Change]], None]
) -> Changed:
    """A model under a rewrite of the layers that globs name; check raises for what became of them.

    That every glob names a module comes first: of a name that no module has, nothing is changed. Copies of a model are
    not examined again.
    """
    changed = change_graph(model, rewrite)
    if not model.is_copy:
        must_name_layers(layers, changed)
        check(changed.changes)
    return changed


def is_flat(model: onnx.ModelProto) -> bool:
    """Whether a session executes a model's nodes as they are counted: no bodies, no functions."""
    return not model.functions and next(islice(all_graphs(model.graph), 1, None), None) is None
