"""``modelbudget explain``: where a number of one layer comes from."""

from __future__ import annotations

import argparse

from pytest_modelbudget.budget.verdict import known_scopes
from pytest_modelbudget.budget.yaml_text import suggestion
from pytest_modelbudget.cli.exit_codes import DONE, UNMEASURED
from pytest_modelbudget.cli.source_words import add_source, shown_model, source_of
from pytest_modelbudget.errors import InputError
from pytest_modelbudget.graph.scopes import MODEL, is_in_scope
from pytest_modelbudget.registry import tables
from pytest_modelbudget.reports.explain import explanation

WHOLE = ("", MODEL)


def add_explain(command: argparse.ArgumentParser) -> None:
    """The options of ``explain``."""
    command.add_argument("metric", metavar="METRIC", help="such as macs, params or bandwidth")
    add_source(command)
    command.add_argument(
        "scope", metavar="SCOPE", help=f"a module's path, such as layer4.0.conv1, or '{MODEL}' for all of it"
    )
    command.set_defaults(command=explain)


def explain(options: argparse.Namespace) -> int:
    """Print the formulas of one metric for the operations or weights of one module."""
    registry = tables()
    if options.metric not in registry.metrics:
        guess = suggestion(options.metric, registry.metrics)
        raise InputError(f"there is no metric '{options.metric}': {guess}")
    metric = registry.metrics[options.metric]
    model = shown_model(source_of(options, registry), registry)
    known = known_scopes(model.measurements.values()) - {""}
    glob = None if options.scope in WHOLE else options.scope
    if glob and not any(is_in_scope(scope, options.scope) for scope in known):
        guess = suggestion(options.scope, sorted(known))
        raise InputError(f"no module of the model is called '{options.scope}': {guess}")
    measurement = model.measurements[metric.key]
    print(explanation(metric, measurement, model.costed, glob))
    lacking = [op for op in measurement.unmeasured if is_in_scope(op.scope, glob)]
    return UNMEASURED if lacking else DONE
