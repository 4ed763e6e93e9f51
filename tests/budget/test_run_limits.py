"""Limits on what a run gives, as a budget says them: read, loosened, held on something else."""

from __future__ import annotations

from fractions import Fraction

import pytest

from pytest_modelbudget.budget.budget import Budget
from pytest_modelbudget.budget.changes import ELSE, loosenings, redefinitions
from pytest_modelbudget.formats.benchmark import Plan, Processor
from pytest_modelbudget.metrics.table import metric_table
from pytest_modelbudget.transforms.table import transform_table
from pytest_modelbudget.values.capture import NamedInputs, Selection
from tests.builders.texts import Read

HEAD = "model_budget: 1\nmodels:\n  net:\n    torch: a:b\n    inputs: float32 1x3\n"


def statistics(words: str) -> str:
    return f"{HEAD}    statistics:\n      some: {{{words}}}\n"


def runtime(words: str) -> str:
    return f"{HEAD}    runtime: {{{words}}}\n"


def test_statistics_are_read(read: Read) -> None:
    """Words alone or in lists, shares as percentages or numbers, and defaults; each limit by its group's name."""
    (model,) = read(
        statistics("layers: 'a.*', types: [ReLU, GELU], zeros: 5%, saturation: 0.01, dead_channels: 0")
    ).models
    (run,) = {check.run for check in model.checks}
    assert run.selection == Selection(("a.*",), ("ReLU", "GELU"))
    assert (run.inputs, run.channels, run.sigmas) == (NamedInputs(None, (0, 1, 2)), 1, 3.0)
    assert {limit.name: limit.max for limit in model.checks} == {
        "zeros@some": Fraction(1, 20), "saturation@some": Fraction(1, 100), "dead_channels@some": 0,
    }  # fmt: skip


def test_runtime_is_read(read: Read) -> None:
    """Exact amounts; the memory is asked for where it is limited."""
    (model,) = read(
        runtime("latency: 20 ms, peak_memory: 60 MB, device: cuda, repeats: 7, warmup: 0, threads: 2")
    ).models
    (run,) = {check.run for check in model.checks}
    assert run.plan == Plan(Processor.CUDA, 7, 0, 2, memory=True)
    limits = {limit.name: limit.max for limit in model.checks}
    assert limits == {"latency@cuda": Fraction(1, 50), "peak_memory@cuda": 60_000_000}


def texts(before: Budget, now: Budget) -> list[str]:
    """All that is said of a change: loosened limits, then what they are held on."""
    loosened = [each.text.removeprefix("budget loosened") for each in loosenings(before, now, metric_table())]
    else_ = redefinitions(before, now, transform_table())
    return [*loosened, *(each.text.removesuffix(f": {ELSE}") for each in else_)]


CHANGES = [
    pytest.param(statistics("zeros: 50%"), statistics("zeros: 60%"), [" +20.0 %: zeros@some 50% -> 60%"], id="raised"),
    pytest.param(statistics("zeros: 50%"), statistics("zeros: 40%"), [], id="lowered"),
    pytest.param(
        statistics("zeros: 50%, max_abs: 9"), statistics("max_abs: 9"), [": zeros@some removed, was 50%"], id="removed"
    ),
    pytest.param(
        statistics("inputs: x.npz, max_abs: 9"), statistics("max_abs: 9"),
        ["statistics some changed: inputs x.npz -> drawn inputs, seeds 0, 1, 2"], id="other inputs",
    ),
    pytest.param(
        statistics("max_abs: 9"), statistics("max_abs: 9, types: ReLU"),
        ["statistics some changed: types none -> ReLU"], id="other layers",
    ),
    pytest.param(
        runtime("latency: 20 ms"), runtime("latency: 25 ms"), [" +25.0 %: latency@cpu 20 ms -> 25 ms"], id="slower"
    ),
    pytest.param(
        runtime("latency: 20 ms"), runtime("latency: 20 ms, device: cuda"),
        [": latency@cpu removed, was 20 ms"], id="another device",
    ),
    pytest.param(
        runtime("latency: 20 ms"), runtime("latency: 20 ms, threads: 8"),
        ["runtime changed: threads 1 -> 8"], id="more threads",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("before", "now", "said"), CHANGES)
def test_a_change_is_said(read: Read, before: str, now: str, said: list[str]) -> None:
    """As of any limit; what was not changed is not spoken of."""
    assert texts(read(before), read(now)) == said
    assert texts(read(before), read(before)) == []
