"""A session that is one of several machines': which models are its own, and what it leaves to ``modelbudget merge``.

Models are dealt out whole, heaviest first, each to the shard that has least to do so far::

    macs locked   a 900   b 500   c 400   d -        what d takes is what others do on average: 600
    shard 1/2     a, c                               order: a 900, d 600, b 500, c 400
    shard 2/2     d, b
"""

import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from pytest_modelbudget.budget.base_inventory import Baselines
from pytest_modelbudget.budget.budget import Address, names_of
from pytest_modelbudget.budget.git import BaseError, commit_named
from pytest_modelbudget.pytest_plugin import options
from pytest_modelbudget.pytest_plugin.items import BudgetItem
from pytest_modelbudget.pytest_plugin.session_models import baselines_of
from pytest_modelbudget.reports import record, table
from pytest_modelbudget.reports.annotations import path_in_checkout
from pytest_modelbudget.reports.build import Assembly
from pytest_modelbudget.reports.shard import CutRun, LockComparison, Part, Version

COST = "macs"  # the check whose locked number tells what a model costs to measure


class CutCollection(NamedTuple):
    """A collection that was cut: so many limits, of which other shards have some; its hash."""

    limits: int = 0
    elsewhere: int = 0
    collection: str = ""


class SessionShard:
    """The part of a session's limits that is its own.

    Raises pytest.UsageError for what only the whole run can say, or write.
    """

    def __init__(self, config: pytest.Config, asked: options.AskedShard) -> None:
        self.config = config
        self.asked = asked
        self.cut = CutCollection()
        _must_not_ask_for_the_whole(config, asked)

    @property
    def name(self) -> str:
        return f"{self.asked.number}/{self.asked.of}"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, None, None]:
        """Leave to others what is theirs, after every other selection: each shard cuts the same collection."""
        yield
        limits = {item: _model(item.nodeid) for item in items if isinstance(item, BudgetItem)}
        files = {model: item.path for item, model in limits.items()}
        owners = dealt(_costs(files, baselines_of(self.config)), self.asked.of)
        theirs = [item for item, model in limits.items() if owners[model] != self.asked.number]
        asked, elsewhere = (len({item.nodeid for item in some if not item.is_idle}) for some in (limits, theirs))
        self.cut = CutCollection(asked, elsewhere, _digest(limits, files))
        if theirs:
            gone = set(theirs)
            items[:] = [item for item in items if item not in gone]
            self.config.hook.pytest_deselected(items=theirs)

    def part(
        self, report: record.Report, cut: CutCollection, assembly: Assembly, locks: Sequence[LockComparison], exit_: int
    ) -> Part:
        """What this shard leaves to ``modelbudget merge``: what items said, and all that does not depend on them."""
        return Part(
            schema=Version.ONE,
            number=self.asked.number,
            run=self._run(report, cut),
            exit=exit_,
            results=tuple(assembly.results),
            session=replace(report, models=(), timings={}, extra={}),
            locks=tuple(locks),
            extra=report.extra,
        )

    def _run(self, report: record.Report, cut: CutCollection) -> CutRun:
        """The run that was cut, as all of its shards know it."""
        root, commit = self.config.rootpath, ""
        with suppress(BaseError):  # without git, or a commit
            commit = commit_named("HEAD", root)
        days = (case.check.waiver.today for case in report.cases() if case.check.waiver)
        return CutRun(
            number_of_shards=self.asked.of,
            commit=commit,
            base=f"{report.base_name} {report.base or ''}".strip(),
            environment=report.environment,
            root=path_in_checkout(root, os.environ),
            lock_check=self.config.getoption(options.LOCK) == "check",
            number_of_limits=cut.limits,
            collection=cut.collection,
            exceptions_on=next(days, None),
        )


def dealt(costs: Mapping[str, int | None], shards: int) -> dict[str, int]:
    """The number of the shard, from 1, that each model belongs to.

    A model of unknown cost costs what the others do on average. That is added to each, since measuring a model takes
    its time whatever it costs.
    """
    known = [cost for cost in costs.values() if cost is not None]
    usual = max(1, sum(known) // len(known)) if known else 1
    loads = dict.fromkeys(range(1, shards + 1), 0)
    owners = {}
    for cost, model in sorted((-(usual if cost is None else cost), model) for model, cost in costs.items()):
        owner = min(loads, key=lambda shard: (loads[shard], shard))
        loads[owner] += usual - cost
        owners[model] = owner
    return owners


def _digest(limits: Iterable[BudgetItem], files: Mapping[str, Path]) -> str:
    """A SHA-256 of all ids, one a line, and of their budgets, which git need not know; ends of lines may differ."""
    ids = "\n".join(sorted(item.nodeid for item in limits))
    budgets = dict.fromkeys(files[model] for model in sorted(files))
    whole = sha256()
    texts = [ids.encode()]
    for budget in budgets:
        with suppress(OSError):  # a file that cannot be read, whose only item fails
            texts.append(budget.read_bytes().replace(b"\r\n", b"\n"))
    for text in texts:
        whole.update(sha256(text).digest())  # each of one length, so that no text runs into the next
    return whole.hexdigest()


def _model(node_id: str) -> str:
    """The model that an item belongs to, with all its variants and transforms: "budgets/a.yaml::net"."""
    address = Address.parse(node_id)
    return str(Address(address.file, address.names[:1]))


def _costs(files: Mapping[str, Path], baselines: Baselines) -> dict[str, int | None]:
    """The locked MACs of each model, of all its variants together; None where no lock knows them."""
    costs: dict[str, int | None] = {}
    for model, path in files.items():
        (name,) = Address.parse(model).names
        lock = baselines.in_working_tree(path).lock
        of_model = (checks for below, checks in (lock.models if lock else {}).items() if names_of(below)[0] == name)
        macs = [int(checks[COST].value) for checks in of_model if COST in checks]
        costs[model] = sum(macs) if macs else None
    return costs


def _must_not_ask_for_the_whole(config: pytest.Config, asked: options.AskedShard) -> None:
    """Refuse options whose answer a part does not know."""
    if config.getoption(options.UPDATE):
        raise pytest.UsageError(
            f"{options.UPDATE} needs all limits, and {asked} measures a part of them: update without shards"
        )
    asked_reports = list(options.report_files(config))
    for report, path in asked_reports:
        if report.is_of_whole:
            raise pytest.UsageError(
                f"{options.REPORT}={report.type}:{path} speaks of all limits, and {asked} measures a part of "
                f"them: give {options.REPORT}={table.JSON}, and let modelbudget merge write it"
            )
    if config.getoption(options.LOCK) == "check" and not any(report.type == table.JSON for report, _ in asked_reports):
        raise pytest.UsageError(
            f"{options.LOCK} is judged by modelbudget merge, and {asked} measures a part: "
            f"give {options.REPORT}={table.JSON}, which it merges"
        )
