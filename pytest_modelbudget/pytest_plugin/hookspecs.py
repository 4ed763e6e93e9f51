"""Hooks that a conftest.py or another plugin may implement; called only with --model-budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_modelbudget.budget.verdict import Verdict
    from pytest_modelbudget.equivalence.judgement import Equivalence
    from pytest_modelbudget.metrics.measurement import Measurement


@pytest.hookspec
def pytest_model_budget_extensions(config: pytest.Config) -> object:
    """A module with OPS, METRICS and TRANSFORMS tuples, any of which may be missing, or a list.

    They join the project's own tables for this session, before the first budget is read; so the hook belongs in the
    conftest.py of the root directory, or in a plugin. An installed package declares the entry point group
    ``modelbudget.extensions`` instead, which the command line and ``measure()`` read too.
    """


@pytest.hookspec
def pytest_model_budget_measured(config: pytest.Config, model_id: str, measurements: Mapping[str, Measurement]) -> None:
    """Called once per model and process, after ``budgets/a.yaml::model`` was measured.

    Under xdist this runs in the worker that measured. A model that could not be loaded has no
    measurements, and the hook is not called.
    """


@pytest.hookspec
def pytest_model_budget_judged(item: pytest.Item, verdict: Verdict) -> None:
    """Called for every limit, within, over or unknown, before its item passes or fails."""


@pytest.hookspec
def pytest_model_budget_verified(item: pytest.Item, equivalence: Equivalence) -> None:
    """Called for every claim about a transform's outputs, before its item passes or fails."""


@pytest.hookspec
def pytest_model_budget_report(config: pytest.Config, report: dict[str, Any]) -> None:
    """Called once per session, in the controller, before the report files are written.

    report is the record of ``--model-budget-report=json``; a key that is added to it is written with it, and
    must hold what JSON can. Keys that are added deeper are left out. A hook that raises makes the session fail.
    """
