"""``measure()``: the numbers of one model, for Python code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_modelbudget.check.measuring import measured
from pytest_modelbudget.check.python_values import NOTHING, NOTHING_BOUND, model_source
from pytest_modelbudget.check.tables import tables
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.reports.report import MeasuredModel


class Measurements(Mapping[str, Measurement]):
    """The numbers of one model by metric key; notes say what their reader must know."""

    def __init__(self, model: MeasuredModel) -> None:
        self._measurements = dict(model.measurements)
        self.format = model.format
        self.traced = model.traced
        self.notes = model.notes

    def __getitem__(self, key: str) -> Measurement:
        return self._measurements[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._measurements)

    def __len__(self) -> int:
        return len(self._measurements)

    def __repr__(self) -> str:
        numbers = (f"{key}: {each.value} {each.unit}" for key, each in self.items())
        return f"<Measurements {', '.join(numbers)}>"


def measure(
    source: object,
    inputs: object = None,
    *,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] = NOTHING,
    dims: Mapping[str, int] = NOTHING_BOUND,
) -> Measurements:
    """All metrics of one model, as a budget would see them.

    source: "package.module:callable", the path of a model file, a module, or a factory that
    takes args and kwargs. inputs: a spec ("float32 1x3x224x224"), a TensorSpec or a tensor, or
    several of them in a list (positional) or a mapping (by name); files may bring their own.
    dims binds symbolic dimensions of a file's own inputs.

    The model never sees a tensor that is given: only its type and shape are used, and of integers
    the range, min to max, within which other values may be drawn.

    Raises ModelBudgetError, saying what to do, where the model cannot be loaded or measured.
    """
    using, here = tables(), Path.cwd()
    model = measured(
        model_source(source, inputs, args=args, kwargs=kwargs, dims=dims, using=using, base=here),
        using,
        root=here,
    )
    for failure in (model.failure, *model.failures.values()):
        if failure is not None:
            raise failure
    return Measurements(model)
