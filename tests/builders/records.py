"""Records as the gate makes them, written out by hand: what every report has to render."""

from __future__ import annotations

from typing import Any

from pytest_modelbudget.reports.json_records import from_json
from pytest_modelbudget.reports.record import Report

Record = dict[str, Any]
FILE = "budgets/mobile.yaml"
BAN = {"forbidden": True, "forbidden_by": "budgets/mobile.yaml:2 at main (1a2b3c4)"}

# The growth of a classifier from 1000 to 1175 classes: 175 rows of 1280 weights, 175 biases.
BLAME = [
    {
        "scope": "classifier.1", "name": "weight", "delta": 175 * 1280,
        "before": 1000 * 1280, "after": 1175 * 1280,
        "shape_before": [1000, 1280], "shape_after": [1175, 1280],
    },
    {
        "scope": "classifier.1", "name": "bias", "delta": 175, "before": 1000, "after": 1175,
        "shape_before": [1000], "shape_after": [1175],
    },
    {"scope": None, "delta": 12, "count": 2},
]  # fmt: skip


def check(
    name: str = "params",
    *,
    line: int | None = 8,
    actual: int | str | None = 40,
    limit: int | str | None = 50,
    outcome: str = "within",
    level: str = "error",
    unit: str = "param",
    **more: object,
) -> Record:
    """One check; the model that it is given to says whose it is."""
    return {
        "id": name,
        "metric": name.partition("@")[0],
        "limit": limit,
        "actual": actual,
        "baseline": None,
        "outcome": outcome,
        "level": level,
        "line": line,
        "reason": f"{name.partition('@')[0]} {actual} against {limit}",
        "unit": unit,
        **more,
    }


def over(name: str = "params", *, by: int = 25, **more: Any) -> Record:
    """A check that is over a limit of 100 by so much."""
    return check(name, actual=100 + by, limit=100, outcome="over", **more)


def accepted(**more: Any) -> Record:
    """A check that is over a limit of 100 by 25, under an exception up to 130."""
    exception = {
        "to": 130, "until": "2027-01-31", "reason": "the head is being replaced", "today": "2026-11-22", "line": 9,
        "text": "accepted to 130 until 2027-01-31: the head is being replaced",
    }  # fmt: skip
    return over(**more) | {"outcome": "accepted", "waiver": exception}


def model(*checks: Record, of: str = "net", file: str = FILE, line: int = 3, **more: Any) -> Record:
    """A model with these checks, whose params are made of two layers.

    of names its variant too: "net::batch8".
    """
    shares = [{"scope": "features.0", "value": 15}, {"scope": "classifier.1", "value": 25}]
    params = {"value": 40, "unit": "param", "complete": True, "shares": shares}
    return {
        "id": f"{file}::{of}", "file": file, "line": line, "format": "torch", "traced": "meta",
        "metrics": {"params": params}, "ops": [], "transforms": [],
        "checks": [each | {"id": f"{file}::{of}::{each['id']}"} for each in checks], **more,
    }  # fmt: skip


def report(*models: Record, selected: bool = False, **more: Any) -> Report:
    """A report of these models; broken, loosened and lock as asked for."""
    document = {
        "schema": "model-budget-report/1",
        "selected": selected,
        "environment": {"python": "3.11.7", "torch": "2.15.0"},
        "models": list(models),
        "broken": [],
        "timings": {model["id"]: "0.250" for model in models},
        **more,
    }
    return from_json(Report, document)


def broken(*problems: str, file: str = "budgets/bad.yaml") -> Record:
    """A file that could not be read."""
    return {"id": f"{file}::budget", "problems": list(problems)}


def loosened(*, forbidden: bool = False, **more: object) -> Record:
    """A limit of 3.5 M raised to 4.0 M: 0.5 / 3.5 is 14.3 % more."""
    return {
        "file": FILE, "line": 8, "id": f"{FILE}::net::params", "metric": "params",
        "what": "max raised",
        "before": 3_500_000, "after": 4_000_000, "percent": "+14.3", "forbidden": forbidden,
        "text": "budget loosened +14.3 %: params 3.5 M -> 4.0 M", **more,
    }  # fmt: skip


def redefined() -> Record:
    """Inputs of another size; it is no limit's, and so has no metric."""
    return {
        "file": FILE, "line": 5, "id": f"{FILE}::net", "what": "inputs", "before": "float32 2x4",
        "after": "float32 1x4", "forbidden": False, "text": "model changed: inputs",
    }  # fmt: skip


def grown() -> Record:
    """A model whose classifier grew, with the layers to blame."""
    before = 3_504_872
    after = before + 175 * 1280 + 175 + 12
    return model(
        check(
            actual=after, limit=3_510_000, outcome="over", baseline=before, allowed=3_540_000,
            blame=BLAME, reason="params 3.729 M > 3.510 M (+6.4%)",
        ),
        of="mobilenet_v2",
    )  # fmt: skip


def transformed() -> Record:
    """A model with a transform that costs too much and whose outputs differ."""
    claim = check(
        "equivalence", actual=None, limit=None, outcome="over", line=13, measured="3.2e-04",
        allowed="1e-10", reason="output '0': float64 outputs differ by 3.2e-04",
    )  # fmt: skip
    tiled = {
        "id": f"{FILE}::net::tiled",
        "name": "tiled",
        "changes": [],
        "metrics": {},
        "checks": [
            each | {"id": f"{FILE}::net::tiled::{each['id']}"}
            for each in (claim, over("macs", unit="MAC", line=14))
        ],
        "equivalence": {
            "outcome": "over", "kind": "exact_algebra", "weights": "drawn, seed 0",
            "seeds": [0, 1], "outputs": [],
            "first_divergence": {"scope": "classifier.1", "error": "0.032"},
        },
    }  # fmt: skip
    return model(check(), transforms=[tiled])


def claimed(basis: str, *notes: str, outcome: str = "within") -> Record:
    """A model with a transform that claims equal outputs, held on this basis, with these notes."""
    claim = check(
        "equivalence", actual=None, limit=None, outcome=outcome, line=13, measured="127.2 dB",
        allowed="-",
    )  # fmt: skip
    folded = {
        "id": f"{FILE}::net::folded", "name": "folded", "changes": [], "metrics": {},
        "checks": [claim | {"id": f"{FILE}::net::folded::equivalence"}],
        "equivalence": {
            "outcome": outcome, "kind": "exact_algebra", "weights": "drawn, seed 0", "seeds": [0],
            "basis": basis, "outputs": [], **({"notes": list(notes)} if notes else {}),
        },
    }  # fmt: skip
    return model(transforms=[folded])


def lock(*, state: str = "stale", fails: bool = False) -> Record:
    """What became of a lock file."""
    file = FILE.replace(".yaml", ".lock.json")
    return {"file": file, "state": state, "text": f"lock {state}: {file}", "fails": fails}


def everything() -> Report:
    """Grown, unknown, to be warned of, with a waiver, within, a transform, unreadable, changes, locks, a limit lost."""
    unknown = check(outcome="unknown", line=12, reason="params unknown: no rule")
    return report(
        grown(),
        model(unknown, over(level="warn", line=13, name="macs"), accepted(line=14, name="flops"), of="odd", line=10),
        transformed(),
        broken=[broken("budgets/bad.yaml:4:1: did you mean 'params'?", "budgets/bad.yaml:5:1: no")],
        loosened=[loosened(), loosened(what="level lowered", **BAN)],
        redefined=[redefined()],
        lock=[lock(), lock(fails=True)],
        unanswered=1,
    )
