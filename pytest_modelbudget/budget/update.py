"""Updates worked out purely: the scalars of a budget file and the numbers of its lock to change.

=======  ==========================================  ==========================================
mode     in the budget                               in the lock
=======  ==========================================  ==========================================
create   values written as auto                      numbers that it lacks
trim     maxima more than 1% above what is measured  numbers that fell; those of no limit go
fix      limits that are broken                      numbers that changed
=======  ==========================================  ==========================================

A limit that is broken and accepted stays as it is, in both files. trim removes exceptions that are past or not needed,
and fix those of the limits that it sets.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction

from pytest_modelbudget.budget.budget import Budget, Limit, path_of
from pytest_modelbudget.budget.changes import CheckKey
from pytest_modelbudget.budget.limit_forms import WAIVER
from pytest_modelbudget.budget.lock_file import Baseline, Lock, LockedModel, LockedValue
from pytest_modelbudget.budget.yaml_text import Edit
from pytest_modelbudget.evaluation.evaluate import LIMITED
from pytest_modelbudget.units import Number, quantity, snug_quantity

SLACK = Fraction(1, 100)  # how far above what is measured a maximum may be by rounding alone: trim leaves that

BaselineOf = Callable[[str, str], Baseline]


@dataclass(frozen=True, slots=True)
class Exempt:
    """Checks with exceptions: those accepted for now, and those whose exception is past, or not needed."""

    accepted: frozenset[CheckKey] = frozenset()
    idle: frozenset[CheckKey] = frozenset()


NO_EXCEPTIONS = Exempt()


class UpdateMode(str, Enum):
    """The kinds of change that may be written."""

    CREATE = "create"
    TRIM = "trim"
    FIX = "fix"


@dataclass(frozen=True, slots=True)
class Update:
    """The scalars of a budget that are to be written, and its whole lock."""

    edits: tuple[Edit, ...]
    lock: Lock


def update(
    mode: UpdateMode,
    budget: Budget,
    measured: Mapping[CheckKey, LockedValue],
    lock: Lock,
    *,
    baseline: BaselineOf,
    exempt: Exempt = NO_EXCEPTIONS,
) -> Update:
    """Work out an update of a budget and its lock; what was not measured stays as it is."""
    edits: list[Edit] = []
    for held in budget.held():
        limit, key = held.check, held.key
        if not isinstance(limit, Limit) or key in exempt.accepted:
            continue
        part = [*(("limits",) if limit.scope is None else ("scopes", limit.scope)), limit.metric]
        part = ["evaluate"] if limit.metric in LIMITED.values() else part
        value, keys, subject = measured.get(key), (*held.keys, *part), path_of(*key)
        texts = dict(_quantities(mode, limit, value, baseline(*key))) if value else {}
        edits += (Edit((*keys, end), text, subject) for end, text in texts.items())
        is_idle = key in exempt.idle and mode is UpdateMode.TRIM
        if limit.waiver is not None and (is_idle or (texts and mode is UpdateMode.FIX)):
            edits.append(Edit((*keys, WAIVER), None, subject))
    return Update(tuple(edits), updated_lock(mode, budget, measured, lock, exempt))


def as_updated(mode: UpdateMode, limit: Limit, today: LockedValue, against: Baseline) -> Limit:
    """A limit as an update writes it; one that fix sets has no exception any more."""
    texts = dict(_quantities(mode, limit, today, against))
    most, least, grow = texts.get("max"), texts.get("min"), texts.get("grow")
    return replace(
        limit,
        max=quantity(most, today.unit) if most else limit.max,
        min=quantity(least, today.unit, round_up=True) if least else limit.min,
        grow=Fraction(quantity(grow, "%")) if grow else limit.grow,
        written=most or least or limit.written,
        auto=() if mode is UpdateMode.CREATE else limit.auto,
        waiver=None if texts and mode is UpdateMode.FIX else limit.waiver,
    )


def _quantities(mode: UpdateMode, limit: Limit, today: LockedValue, against: Baseline) -> Iterator[tuple[str, str]]:
    """(end, quantity) of every scalar of a limit that is to hold something else."""
    value, unit = today.value, today.unit
    if mode is UpdateMode.CREATE:
        for end in limit.auto:
            yield end, snug_quantity(value, unit, down=end == "min")
    is_short = limit.min is not None and value < limit.min  # is broken, and lowers no maximum
    if mode is UpdateMode.TRIM and limit.max is not None and value * (1 + SLACK) < limit.max and not is_short:
        yield "max", snug_quantity(value, unit, like=limit.written)
    if mode is UpdateMode.FIX:
        if limit.max is not None and value > limit.max:
            yield "max", snug_quantity(value, unit, like=limit.written)
        if is_short:
            like = limit.written if limit.max is None and not limit.auto else ""
            yield "min", snug_quantity(value, unit, like=like, down=True)
        yield from _growth(limit, value, against)


def _growth(limit: Limit, value: Number, against: Baseline) -> Iterator[tuple[str, str]]:
    """The growth that is to be allowed, where the base is compared with."""
    locked = against.locked.value if against.locked else None
    if limit.grow is None or not against.revision or not isinstance(locked, int):
        return
    allowed = limit.allowed(locked)
    if allowed is not None and value > allowed and locked:
        yield "grow", snug_quantity(Fraction(value - locked) / locked, "%", like="2%")


def updated_lock(
    mode: UpdateMode,
    budget: Budget,
    measured: Mapping[CheckKey, LockedValue],
    lock: Lock,
    exempt: Exempt = NO_EXCEPTIONS,
) -> Lock:
    """The lock after an update; numbers of limits that did not run are kept."""
    declared = {held.key for held in budget.held()}
    values = lock.numbers
    if mode is UpdateMode.TRIM:
        values = {key: value for key, value in values.items() if key in declared}
    for key, today in measured.items():
        if _is_to_be_locked(mode, values.get(key), today) and not (key in exempt.accepted and key in values):
            values[key] = today
    models: dict[str, LockedModel] = {}
    for (path, name), value in values.items():
        models[path] = {**models.get(path, {}), name: value}
    return Lock(models)


def _is_to_be_locked(mode: UpdateMode, known: LockedValue | None, today: LockedValue) -> bool:
    if known is None:
        return mode is UpdateMode.CREATE
    if mode is UpdateMode.TRIM:
        return today.value < known.value
    return mode is UpdateMode.FIX and replace(known, versions=today.versions) != today
