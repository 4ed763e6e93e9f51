"""``modelbudget metrics`` and ``ops``: what a budget may limit, and why operations cost what they cost."""

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from pytest_modelbudget.budget.yaml_text import suggestion
from pytest_modelbudget.cli.options import add_format
from pytest_modelbudget.cli.screen import print_json, print_text, terminal_width
from pytest_modelbudget.errors import InputError
from pytest_modelbudget.metrics.measurement import Metric
from pytest_modelbudget.registry import tables
from pytest_modelbudget.reports import reference

USUAL = ("params", "weight_memory", "model_size", "macs", "flops", "peak_activation", "bandwidth", "ops")


def add_metrics(command: argparse.ArgumentParser) -> None:
    """The options of ``metrics``: which, and how they are printed."""
    command.add_argument(
        "names", metavar="METRIC", nargs="*", help="metrics to show (default: the eight that most use)"
    )
    command.add_argument("--all", action="store_true", help="show every metric")
    add_format(command)
    command.set_defaults(command=print_metrics)


def add_ops(command: argparse.ArgumentParser) -> None:
    """The options of ``ops``: which kinds, and how they are printed."""
    text = "a kind, or an operator of torch or ONNX: its rules in full (default: a line for each kind)"
    command.add_argument("names", metavar="NAME", nargs="*", help=text)
    add_format(command)
    command.set_defaults(command=print_ops)


def print_metrics(options: argparse.Namespace) -> bool:
    """Print metrics with their units and what they count."""
    metrics = tables().metrics
    asked = [metric_named(name, metrics) for name in options.names or (metrics if options.all else USUAL)]
    if options.format == "json":
        print_json({metric.key: _record(metric) for metric in asked})
    else:
        print_text(reference.metrics_text(asked, terminal_width()))
        if not options.names and not options.all:
            print(f"\n{len(metrics) - len(USUAL)} more: modelbudget metrics --all")
    return True


def metric_named(word: str, metrics: Mapping[str, Metric]) -> Metric:
    """The metric of that key; raises InputError with the one that is meant."""
    if word not in metrics:
        also = {key: metric.also for key, metric in metrics.items()}
        guess = suggestion(word, metrics, also)
        raise InputError(f"there is no metric '{word}': {guess} (modelbudget metrics --all lists them)")
    return metrics[word]


def _record(metric: Metric) -> dict[str, object]:
    return {
        "unit": metric.unit,
        "definition": metric.definition,
        "measured_on": metric.stage.value,
        "not_scoped": metric.not_scoped,
        "also": metric.also,
    }


def print_ops(options: argparse.Namespace) -> bool:
    """Print kinds of operations; those that were asked for with all that their rules say."""
    kinds = {entry.kind: entry for entry in reference.op_kinds(tables().ops)}
    asked = [kinds[kind] for kind in dict.fromkeys(k for name in options.names for k in _kinds_of(name, kinds))]
    if options.format == "json":
        print_json([asdict(entry) for entry in asked or kinds.values()])
    elif asked:
        print_text("\n\n".join(reference.kind_text(entry, terminal_width()) for entry in asked))
    else:
        print_text(reference.kinds_text(kinds.values(), terminal_width()))
    return True


def _kinds_of(word: str, kinds: Mapping[str, reference.KindEntry]) -> Iterable[str]:
    """The kinds that a word names: one of its own name, else those of operators that are called so in any case."""
    if word in kinds:
        return [word]
    named = [kind for kind, entry in kinds.items() if word.casefold() in entry.spellings]
    if not named:
        also = {kind: entry.spellings for kind, entry in kinds.items()}
        raise InputError(f"no op rule knows '{word}': {suggestion(word, kinds, also)}")
    return named
