"""The record of one transform: what it changed, what it costs, and whether outputs are the same.

Drawn once, as it stands in a model's ``transforms``::

    {"id": "budgets/a.yaml::net::tiled", "name": "tiled", "transform": "tile_linear", "line": 9,
     "metrics": {...}, "ops": [...],
     "changes": [{"scope": "fc", "operation": "aten::linear", "became": "4 products of 64x64"}],
     "checks": [{"id": "budgets/a.yaml::net::tiled::equivalence", "metric": "equivalence", ...}],
     "equivalence": {"outcome": "within", "kind": "exact_algebra", "weights": "drawn, seed 0",
                     "outputs": [{"name": "0", "family": "normal", "algebra": "3.2e-15", ...}]}}
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from pytest_modelbudget.budget.budget import EQUIVALENCE, EquivalenceCheck, TransformCheck
from pytest_modelbudget.equivalence.array_errors import ALGEBRA
from pytest_modelbudget.equivalence.divergence import Divergence, Worst
from pytest_modelbudget.equivalence.judgement import Equivalence, OutputRecord
from pytest_modelbudget.equivalence.output_figures import Figures
from pytest_modelbudget.reports.report import (
    MeasuredModel,
    Record,
    model_record,
    numberless_check,
)
from pytest_modelbudget.transforms.transform import Change


def transform_record(
    node_id: str, check: TransformCheck, model: MeasuredModel, changes: tuple[Change, ...]
) -> Record:
    """One transform before its checks; its metrics stand here as in a model's record."""
    record = model_record(node_id, check.place.file, check.place.line, model)
    record["name"] = check.name
    record["transform"] = check.transform
    record["changes"] = [_change(each) for each in changes]
    return record


def _change(change: Change) -> Record:
    record = {"scope": change.scope, "operation": change.operation, "became": change.became}
    return {**record, "why": change.why} if change.why else record


def equivalence_check_record(
    node_id: str, check: EquivalenceCheck, equivalence: Equivalence
) -> Record:
    """The claim as one check among others; measured and allowed are for eyes.

    exact_algebra shows how far float64 outputs differ, other claims the least SQNR.
    """
    algebra = [record.algebra for record in equivalence.outputs if record.algebra is not None]
    noise = [record.figures.sqnr for record in equivalence.outputs]
    measured = f"{min(noise):.1f} dB" if noise else "-"
    outcome, reason = equivalence.outcome.value, equivalence.reason
    return {
        **numberless_check(node_id, EQUIVALENCE, outcome, reason, line=check.place.line),
        "measured": decimal(max(algebra)) if algebra else measured,
        "allowed": decimal(ALGEBRA) if algebra else "-",
    }


def equivalence_record(equivalence: Equivalence) -> Record:
    """The evidence: every output under every family, floats as decimal strings."""
    record: Record = {
        "outcome": equivalence.outcome.value,
        "kind": equivalence.kind.value,
        "reason": equivalence.reason,
        "weights": equivalence.weights,
        "basis": equivalence.basis.value,
        "seeds": list(equivalence.seeds),
        "outputs": [_output(each) for each in equivalence.outputs],
    }
    if equivalence.notes:
        record["notes"] = list(equivalence.notes)
    if equivalence.first_divergence is not None:
        record["first_divergence"] = _divergence(equivalence.first_divergence)
    return record


def _output(output: OutputRecord) -> Record:
    record: Record = {
        "name": output.name,
        "family": output.family,
        "dtype": output.dtype,
        "outcome": output.outcome.value,
    }
    if output.reason:
        record["reason"] = output.reason
    record.update(_figures(output))
    if output.worst is not None:
        record["worst"] = _worst(output.worst)
    return record


def _figures(output: OutputRecord) -> Iterator[tuple[str, str]]:
    """Every figure that is known, as a decimal string."""
    for name, value in (("algebra", output.algebra), ("precision", output.precision)):
        if value is not None:
            yield name, decimal(value)
    for each in fields(Figures):
        found: float | None = getattr(output.figures, each.name)
        if found is not None:
            yield each.name, decimal(found)


def _divergence(divergence: Divergence) -> Record:
    record: Record = {"scope": divergence.scope, "error": decimal(divergence.error)}
    if divergence.worst is not None:
        record["worst"] = _worst(divergence.worst)
    if divergence.repeat:
        record["repeat"] = divergence.repeat
    return record


def _worst(worst: Worst) -> Record:
    return {
        "index": list(worst.index),
        "original": decimal(worst.original),
        "transformed": decimal(worst.transformed),
    }


def decimal(value: float) -> str:
    """A float as a short decimal string: rounding differs from machine to machine behind it."""
    return f"{value:.4g}"
