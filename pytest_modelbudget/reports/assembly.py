"""One report put together from what each item, in whichever process, has to say.

An item's statement is one JSON string, because that is what passes between processes::

    {"check": {...}, "model": {...}, "seconds": "0.012"}    a limit; the model only once a process
    {"check": {...}, "model": {...}, "transform": {...}, "equivalence": {...}}   below a transform
    {"check": {...}, "number": {...}}                       measured completely, as a lock has it
    {"broken": {...}}                                       a file that could not be read
"""

from __future__ import annotations

import json

from pytest_modelbudget.reports.report import (
    MeasuredModel,
    Record,
    lost_check_record,
    model_record,
    report,
    sorted_checks,
)


def check_statement(
    check: Record,
    model: Record | None,
    seconds: float,
    number: Record | None = None,
    *,
    transform: Record | None = None,
    equivalence: Record | None = None,
) -> str:
    """What an item says about its check, and about what it is the first to know.

    number is the measured one as a lock file has it, and the path of the budget that it belongs
    to; no report shows it. model took so many seconds to measure.
    """
    told: Record = {"number": number, "transform": transform, "equivalence": equivalence}
    if model is not None:
        told |= {"model": model, "seconds": f"{seconds:.3f}"}
    known = {key: each for key, each in told.items() if each is not None}
    return json.dumps({"check": check, **known})


def broken_statement(node_id: str, problems: tuple[str, ...]) -> str:
    """What the item of an unreadable file says."""
    return json.dumps({"broken": {"id": node_id, "problems": list(problems)}})


class Assembly:
    """Statements as they arrive, in any order; an item that is run again replaces its own."""

    def __init__(self) -> None:
        self._models: dict[str, Record] = {}
        self._timings: dict[str, str] = {}
        self._checks: dict[str, Record] = {}
        self._broken: dict[str, Record] = {}
        self._transforms: dict[str, Record] = {}
        self._equivalences: dict[str, Record] = {}
        self.numbers: dict[str, Record] = {}  # by id of the check, as a lock file has them

    def add(self, statement: str) -> None:
        """Take in what one item said."""
        said: Record = json.loads(statement)
        if "broken" in said:
            self._broken[said["broken"]["id"]] = said["broken"]
            return
        self._checks[said["check"]["id"]] = said["check"]
        if "transform" in said:
            self._transforms.setdefault(said["transform"]["id"], said["transform"])
        if "equivalence" in said:
            self._equivalences[said["check"]["id"].rpartition("::")[0]] = said["equivalence"]
        if "number" in said:
            self.numbers[said["check"]["id"]] = said["number"]
        if "model" in said and said["model"]["id"] not in self._models:
            self._models[said["model"]["id"]] = said["model"]
            self._timings[said["model"]["id"]] = said["seconds"]

    def lose(self, node_id: str, reason: str) -> None:
        """Note a limit whose item failed without a word; it is unknown."""
        if node_id not in self._checks and node_id not in self._broken:
            self._checks[node_id] = lost_check_record(node_id, reason)

    @property
    def answered(self) -> int:
        """How many items have spoken: limits, unknown ones included, and unreadable files."""
        return len(self._checks) + len(self._broken)

    def report(self, *, selected: bool, unanswered: int = 0) -> Record:
        """The record for all renderers; unanswered items have not spoken, and should have."""
        by_model: dict[str, list[Record]] = {}
        for check in self._checks.values():
            by_model.setdefault(check["id"].rpartition("::")[0], []).append(check)
        models = dict(self._models)
        for model_id in by_model.keys() - self._transforms.keys():
            models.setdefault(model_id, _lost_model(model_id))
        return report(
            models=models.values(),
            checks=by_model,
            transforms=self._nested(by_model),
            broken=self._broken.values(),
            timings=self._timings,
            selected=selected,
            unanswered=unanswered,
        )

    def _nested(self, checks: dict[str, list[Record]]) -> dict[str, list[Record]]:
        """Transforms with their checks, under the id of their model."""
        nested: dict[str, list[Record]] = {}
        for key, transform in self._transforms.items():
            found = sorted_checks(checks.get(key, ()))
            record = {**transform, "checks": found}
            if key in self._equivalences:
                record["equivalence"] = self._equivalences[key]
            nested.setdefault(key.rpartition("::")[0], []).append(record)
        return nested


def _lost_model(model_id: str) -> Record:
    """A model of which nothing arrived; its checks say why."""
    return model_record(model_id, model_id.partition("::")[0], 0, MeasuredModel(format=""))
