"""The entries of what a change does to budgets and their locks: limits loosened, models redefined, locks unfit.

{"loosened": [{"file": "budgets/a.yaml", "line": 6, "id": "budgets/a.yaml::net::params", "metric": "params",
               "what": "max raised", "before": 50, "after": 60, "percent": "+20.0",
               "text": "budget loosened +20.0 %: params 50 -> 60"}],
 "lock": [{"file": "budgets/a.lock.json", "state": "stale", "text": "...", "fails": true}]}
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_modelbudget.budget.budget import Address, path_of
from pytest_modelbudget.budget.changes import GRANTS
from pytest_modelbudget.reports.typed_json import Entry, rare

LOCK = "lock"  # name of an item that fails for a lock file, or a base, and for no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class LockReport(Entry):
    """The state of a lock file, in the working tree or at the base, and whether that fails.

    state is fresh, stale, missing, broken (unreadable), stray (its budget is gone), moved (a model is compared with
    another lock of the base), or of the base unreachable (it is not here; file is then None).
    """

    file: str | None
    state: str
    text: str
    fails: bool = False

    @property
    def id(self) -> str:
        """The node id under which it fails: "budgets/a.lock.json::lock", of a base that is not here "base::lock"."""
        return path_of(self.file or "base", LOCK)

    @property
    def is_fresh(self) -> bool:
        """Whether it holds what was measured."""
        return self.state == "fresh"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetChange(Entry):
    """Something that the change since the base does to a budget, and where.

    line is 1 where nothing is left of a model. forbidden_by is where its budget forbids that, and at which base.
    """

    file: str
    line: int
    id: str
    forbidden: bool = False
    forbidden_by: str = rare("")
    text: str = ""

    @property
    def address(self) -> Address:
        """The node id in parts."""
        return Address.parse(self.id)

    @property
    def subject(self) -> str:
        """The model, and variant or transform, as people read it; "" of a whole file."""
        return self.address.title

    @property
    def sentence(self) -> str:
        """What a terminal says of it: "net: budget loosened +20.0 %: params 50 -> 60 (forbidden)"."""
        lead = f"{self.subject}: " if self.subject else ""
        return f"{lead}{self.text}{' (forbidden)' if self.forbidden else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoosenedLimit(BudgetChange):
    """A limit that the change since the base makes easier to keep; text says it to people.

    metric is None where a whole model is gone, percent where there is none.
    """

    metric: str | None = None
    what: str = ""
    before: int | str | None = None
    after: int | str | None = None
    percent: str | None = None

    @property
    def grants_exception(self) -> bool:
        """Whether it lets a broken limit pass for a while, or for longer."""
        return self.what in GRANTS

    @property
    def subject(self) -> str:
        """The model of a limit, and variant or transform; "" of a whole file."""
        return self.address.title if self.metric is None else self.address.above.title


@dataclass(frozen=True, slots=True, kw_only=True)
class RedefinedModel(BudgetChange):
    """A key of a model, or of a transform, that says something else than at the base.

    what is the key, "source" for where a model comes from, "transform" for which one it is, or "name" or "file" of a
    model that was renamed, or moved.
    """

    what: str = ""
    before: str | None = None
    after: str | None = None


def bans(changes: Iterable[LoosenedLimit | RedefinedModel]) -> dict[str, tuple[str, ...]]:
    """Of each budget file that forbids some of these changes: where it does so, and the way out, as lines."""
    by_file: dict[str, list[LoosenedLimit | RedefinedModel]] = {}
    for change in changes:
        if change.forbidden_by:
            by_file.setdefault(change.file, []).append(change)
    return {file: tuple(_ban_lines(some)) for file, some in by_file.items()}


def _ban_lines(changes: Sequence[LoosenedLimit | RedefinedModel]) -> Iterator[str]:
    """Below forbidden changes of one budget file: where it forbids them, and the way out.

    A ban of the base can only be lifted at the base; one that the change brings need not come with it.
    """
    ban, kinds = changes[0].forbidden_by, {change.what for change in changes}
    yield f"forbidden by loosen: forbid   {ban}"
    if kinds == {"unknown"}:  # whose words say what to do about the base
        return
    if not ban.endswith(")"):  # the change's own: no base stands behind its line
        yield "fix: take that back, or leave loosen: forbid to a change of its own, after this one"
    elif kinds == {"loosen removed"}:
        yield "fix: take that back, or have a person merge it past this check, by itself"
    else:
        yield "fix: take that back, or first merge a change that only sets loosen: warn, past this check"
