"""What this project does for one cell of the scoreboard: build, trace, and all metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.gate.measuring import measure_model
from pytest_modelbudget.registry import tables

TABLES = tables()


def all_metrics(target: object, shapes: tuple[tuple[int, ...], ...], kwargs: Mapping[str, object]) -> int:
    """MACs of a model that was built, traced and measured by every metric; raises on failure."""
    inputs = InputSpecs(tuple(TensorSpec("float32", shape) for shape in shapes))
    source = ModelSource("torch", target, inputs, kwargs=kwargs)
    model = measure_model(source, TABLES, root=Path.cwd())
    if model.failure:
        raise model.failure
    if not model.measurements["macs"].complete:
        raise ValueError(f"{target} has unmeasured operations")
    return int(model.measurements["macs"].value)
