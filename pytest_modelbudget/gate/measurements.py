"""The numbers of one model as ``measure()`` gives them: a mapping, attributes, a layer table, and a notebook's view."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_modelbudget.budget.yaml_text import suggestion
from pytest_modelbudget.metrics.costs import NO_DEVICE
from pytest_modelbudget.metrics.measured_model import DeployedModel, MeasuredModel
from pytest_modelbudget.metrics.measurement import PROGRAM, Measurement, Metric, Stage
from pytest_modelbudget.reports import notebook, show
from pytest_modelbudget.reports.devices import deployment_notes
from pytest_modelbudget.reports.layer_table import LayerTable

ASKED_BY = {Stage.TRAINED: "training='adam'", Stage.SERVED: "serving={'context': 8192}", Stage.DEPLOYED: "device=NAME"}


@dataclass(frozen=True, eq=False, repr=False)
class Measurements(Mapping[str, Measurement]):
    """The numbers of one model: ``numbers["macs"]`` is ``numbers.macs``. notes say what their reader must know.

    deployed is all that is known of the model on a device, where that was asked: its arena, its memories, what was
    lowered. A number that nothing is known of, for want of inputs or of a figure of the device, is not there; asking
    for it says why.
    """

    format: str
    traced: str
    notes: tuple[str, ...]
    deployed: DeployedModel | None
    _measurements: Mapping[str, Measurement]
    _left_out: Mapping[str, str]
    _also: Mapping[str, tuple[str, ...]]
    _layers: notebook.NotebookTable

    @classmethod
    def of(
        cls,
        model: MeasuredModel,
        layers: LayerTable,
        metrics: Mapping[str, Metric],
        deployed: DeployedModel | None = None,
    ) -> Measurements:
        """What is known of a measured model, and why the rest is not."""
        notes = (*deployment_notes(deployed), *_lacking_figures(deployed), *model.notes) if deployed else model.notes
        numbers = {key: number for key, number in model.measurements.items() if not _unknown(number)}
        left_out = {
            key: f"it is measured where it is asked for, with {ASKED_BY[metric.stage]}"
            for key, metric in metrics.items()
            if metric.stage in ASKED_BY
        }
        left_out |= {key: why for key, number in model.measurements.items() if (why := _unknown(number))}
        left_out |= {key: str(failure) for key, failure in model.failures.items()}
        also = {key: metric.also for key, metric in metrics.items()}
        table = notebook.NotebookTable(layers.rows)
        return cls(model.format, model.traced, notes, deployed, numbers, left_out, also, table)

    def __getitem__(self, key: str) -> Measurement:
        if key in self._measurements:
            return self._measurements[key]
        raise KeyError(self._lacking(key))

    def __getattr__(self, name: str) -> Measurement:
        if name.startswith("_"):  # among them the fields themselves, while a copy is made
            raise AttributeError(name)
        if name in self._measurements:
            return self._measurements[name]
        raise AttributeError(self._lacking(name))

    def _lacking(self, key: object) -> str:
        if key in self._left_out:
            return f"no {key}: {self._left_out[str(key)]}"
        known = {**self._measurements, **self._left_out}
        return f"there is no metric {key!r}: {suggestion(str(key), known, self._also)}"

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._measurements})

    def __iter__(self) -> Iterator[str]:
        return iter(self._measurements)

    def __len__(self) -> int:
        return len(self._measurements)

    def __repr__(self) -> str:
        numbers = (f"{key}: {number.sign}{number.value} {number.unit}" for key, number in self.items())
        return f"<Measurements {', '.join(numbers)}>"

    def table(self) -> notebook.NotebookTable:
        """What each layer holds, computes and puts out, as ``modelbudget show`` prints it; figures are in ``.rows``."""
        return self._layers

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values: what ``modelbudget show --format json`` prints."""
        return show.layer_record(self, self._layers, self._measurements)

    def _repr_html_(self) -> str:
        return notebook.measurements_html(self._measurements, self._layers, self.notes)


def _unknown(number: Measurement) -> str:
    """Why nothing is known of a number; "" of one that is known, be it as a bound."""
    return next((op.why for op in number.unmeasured if op.op == PROGRAM), "")


def _lacking_figures(deployed: DeployedModel) -> Iterator[str]:
    """A line for each thing that a device does not say, with the metrics that need it."""
    if deployed.deployment.device is not NO_DEVICE:
        keys: dict[str, list[str]] = {}
        for key, failure in deployed.measured.failures.items():
            keys.setdefault(str(failure), []).append(key)
        yield from (f"no {', '.join(needing)}: {why}" for why, needing in keys.items())
