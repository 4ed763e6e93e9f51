"""What may be written in a budget, out of the tables that measure: metrics, and operations with their reasons.

Of one kind drawn once::

    KindEntry("relu6", (
        RuleEntry(("aten::relu6", "aten::relu6_"), "none", "one_per_element: ...", "one operation per ..."), ...))
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from textwrap import wrap

from pytest_modelbudget.metrics.measurement import Metric, Stage
from pytest_modelbudget.ops.rule import OpRule, nothing
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.reports.text import aligned

UNKNOWN, FREE = "unknown, so the operation is unmeasured", "none"


@dataclass(frozen=True, slots=True)
class RuleEntry:
    """What operations of these foreign names cost, in words, and why that is right."""

    names: tuple[str, ...]
    macs: str
    flops: str  # beside two for each MAC
    because: str


@dataclass(frozen=True, slots=True)
class KindEntry:
    """A kind of operations, as ``ops:`` of a budget names it, with all rules of that kind."""

    kind: str
    rules: tuple[RuleEntry, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for rule in self.rules for name in rule.names)

    @property
    def spellings(self) -> frozenset[str]:
        return frozenset(part.casefold() for name in self.names for part in (name, name.rpartition("::")[2]))


def op_kinds(ops: OpTable) -> tuple[KindEntry, ...]:
    """Every kind that a rule knows, by name."""
    rules: dict[str, list[OpRule]] = {}
    for rule in dict.fromkeys(ops.values()):
        rules.setdefault(rule.kind, []).append(rule)
    return tuple(KindEntry(kind, tuple(map(_entry, rules[kind]))) for kind in sorted(rules))


def _entry(rule: OpRule) -> RuleEntry:
    return RuleEntry(tuple(rule.names), cost_words(rule.macs), cost_words(rule.flops), rule.because)


def cost_words(formula: Callable[..., int] | None) -> str:
    """The name of a formula and the first line of what it says of itself: "convolution_macs: Each output ..."."""
    if formula is None or formula is nothing:
        return UNKNOWN if formula is None else FREE
    name = getattr(formula, "__name__", type(formula).__name__)
    about = (inspect.getdoc(formula) or "").partition("\n")[0]
    return f"{name}: {about}" if about else name


def metrics_text(metrics: Iterable[Metric], width: int) -> str:
    """Each metric with its unit, what it counts, where it cannot be asked for, and other words for it."""
    return "\n".join(line for metric in metrics for line in _metric(metric, width))


def _metric(metric: Metric, width: int) -> Iterator[str]:
    yield f"{metric.key} ({metric.unit})"
    stage = "" if metric.stage is Stage.WRITTEN else f"of {metric.stage.value}"
    scopes = f"not of a part of a model: {metric.not_scoped}" if metric.not_scoped else ""
    also = f"also called {', '.join(metric.also)}" if metric.also else ""
    for sentence in filter(None, (metric.definition, stage, scopes, also)):
        yield from wrap(sentence, width, initial_indent="  ", subsequent_indent="    ")


def kinds_text(kinds: Iterable[KindEntry], width: int) -> str:
    """A line for each kind: whether it has MACs, and why; of several rules the first."""
    rows = [(entry.kind, _has_macs(entry), entry.rules[0].because) for entry in kinds]
    lines = aligned("{:<}  {:<}  {}", [("kind", "MACs", "because"), *rows])
    return "\n".join(line if len(line) <= width else f"{line[: width - 1]}…" for line in lines)


def _has_macs(entry: KindEntry) -> str:
    words = {"no" if rule.macs == FREE else "unknown" if rule.macs == UNKNOWN else "yes" for rule in entry.rules}
    return words.pop() if len(words) == 1 else "some"


def kind_text(entry: KindEntry, width: int) -> str:
    """All rules of one kind: names, formulas and reasons."""
    lines = [entry.kind]
    for rule in entry.rules:
        lines.append("")
        facts = (
            ("names", ", ".join(rule.names)),
            ("MACs", rule.macs),
            ("FLOPs", rule.flops),
            ("because", rule.because),
        )
        for word, text in facts:
            lines += wrap(
                text, width, initial_indent=f"  {word:<9}", subsequent_indent=" " * 11, break_on_hyphens=False
            )
    return "\n".join(lines)
