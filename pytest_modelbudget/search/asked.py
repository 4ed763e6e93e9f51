"""The words of a search: which model, which widths, what to keep, and the least of what."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from pytest_modelbudget.budget import transform_forms
from pytest_modelbudget.budget.budget import ClaimCheck
from pytest_modelbudget.budget.read_budget import subject_named
from pytest_modelbudget.budget.yaml_text import suggestion
from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.errors import InputError
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate.asked_device import read_python
from pytest_modelbudget.metrics.measured_model import Deployment
from pytest_modelbudget.registry import Tables

TRANSFORM = "quantize"
METRICS = {"bytes": "weight_memory"}  # words for a metric
DROP = re.compile(r"\s*top1\s+drop\s+(\d*\.?\d+)\s*%\s*")
BOUND = re.compile(r"\s*([a-z]\w*)\s*[:=]?\s*([-+.\deE]+\s*%?)\s*(?:dB)?\s*")


@dataclass(frozen=True, slots=True)
class Asked:
    """A search: the model, widths to choose from, the claim to keep, and the metric to have the least of.

    settings are those of quantize for all that a plan leaves open, and transform is the name of what has them in a
    budget, "" of none. keep has the words of the bound. drop is how much less may be right on the labelled data of the
    model, in place of bounds of the claim.
    """

    source: ModelSource
    settings: Mapping[str, Any]
    bits: tuple[int, ...]
    claim: Claim
    keep: str
    metric: str
    deployment: Deployment | None = None
    transform: str = ""
    drop: Fraction | None = None


def asked_search(
    model: str, bits: str, keep: str, least: str, deployment: Deployment | None, registry: Tables, *, root: Path
) -> Asked:
    """The search of BUDGET::MODEL, or BUDGET::MODEL::TRANSFORM, whose inputs and other settings stay.

    Raises InputError for words that mean nothing.
    """
    subject, part = subject_named(model, registry, root)
    if part and part.made.transform != TRANSFORM:
        raise InputError(f"{model} is {part.made.transform or 'made in steps'}: name the model, or a {TRANSFORM} of it")
    if (metric := METRICS.get(least, least)) not in registry.metrics:
        raise InputError(f"--least {least} is no metric: {suggestion(least, [*METRICS, *registry.metrics])}")
    widths = re.split(r"\s*,\s*", bits.strip())
    if not all(each.isdecimal() and 2 <= int(each) <= 32 for each in widths):
        raise InputError(f"--bits {bits} is no list of widths of 2 to 32 bits: write 8,4,3")
    lost, match = DROP.fullmatch(keep), BOUND.fullmatch(keep)
    if lost and subject.made.evaluate is None:
        raise InputError(f"--keep '{keep}' is of labelled data: add evaluate: {{data: ..., metric: top1}} to {model}")
    if not lost and match is None:
        raise InputError(f"--keep '{keep}' is no bound: write 'sqnr 20 dB' or 'top1 drop 0.5 %'")
    words = {"kind": "lossy", **({match[1]: match[2]} if match else {})}
    bound: Claim = read_python(transform_forms.EQUIVALENCE, words, "--keep", registry, InputError).claim
    claims = [check.claim for check in (part.checks if part else ()) if isinstance(check, ClaimCheck)]
    defaults = {each.key: each.default for each in registry.transforms[TRANSFORM].settings}
    return Asked(
        subject.made,
        part.made.settings if part else defaults,
        tuple(sorted({int(each) for each in widths}, reverse=True)),
        replace([*claims, Claim()][0], kind=bound.kind, bounds=bound.bounds, of_output={}, of_family={}),
        keep.strip(),
        metric,
        deployment,
        part.name if part else "",
        Fraction(lost[1]) / 100 if lost else None,
    )
