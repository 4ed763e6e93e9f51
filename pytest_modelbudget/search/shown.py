"""A search as text: layers ranked by what they lose alone, the Pareto front, and the plan as ``layers:`` to paste."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from pytest_modelbudget.graph.graph import scope_text
from pytest_modelbudget.reports.text import aligned
from pytest_modelbudget.search.plan import Layer, Point
from pytest_modelbudget.search.trials import Found
from pytest_modelbudget.units import exact, readable, several

MOST_ROWS = 10  # of the front


def search_text(found: Found) -> str:
    """The ranked layers, and the front with what was run of it."""
    asked = found.asked
    heads = ("layer", "operation", *(f"{bits} bits" for bits in asked.bits), f"saved at {min(asked.bits)} bits")
    rows = [heads, *((scope_text(each.scope), each.operation, *(f"{trial.sqnr:.1f}" for trial in each.trials),
                      readable(-each.trials[-1].cost, found.unquantised.unit)) for each in _ranked(found))]  # fmt: skip
    columns = "  ".join(["  {:<}  {:<}", *["{:>}"] * (len(heads) - 2)])
    front = [("", asked.metric, "predicted", "run", "layers by bits"), *_front_rows(found)]
    return "\n".join([
        f"{asked.source.target}: {several(len(found.layers), 'layer')}, {asked.keep}, least {asked.metric}", "",
        "SQNR in dB with one layer quantised, the most sensitive first:", *aligned(columns, rows), "",
        "plans that no other one beats:", *aligned("{:<}  {:>}  {:>}  {:>}  {:<}", front), "",
    ])  # fmt: skip


def _ranked(found: Found) -> list[Layer]:
    return sorted(found.layers, key=lambda layer: min(trial.sqnr for trial in layer.trials))


def _front_rows(found: Found) -> Iterator[tuple[str, ...]]:
    """Plans that were run, and some of the others, spread over the front."""
    some, before = found.points[:: -(-len(found.points) // MOST_ROWS)], found.unquantised
    for point in (each for each in found.points if each in some or each.plan in found.runs):
        run = found.runs.get(point.plan)
        bits = ", ".join(f"{count} at {bits}" for bits, count in sorted(Counter(point.plan).items(), reverse=True))
        yield (">" if point == found.best else "", readable(before.value + point.cost, before.unit),
               f"{point.sqnr:.1f}", f"{run.sqnr:.1f}" if run else "", bits)  # fmt: skip


def ending(found: Found) -> str:
    """How it ended, in one sentence."""
    run = found.runs[found.best.plan] if found.best else max(found.runs.values(), key=lambda each: each.sqnr)
    figure = f"{run.figure} with {found.asked.metric} {exact(run.cost, found.unquantised.unit)}"
    models = several(found.evaluations, "model")
    if found.best is None:
        return f"no plan keeps {found.asked.keep}: the best of {models} that were run has {figure}"
    saved = float(1 - run.cost / Fraction(found.unquantised.value))
    return f"kept: {figure}, {saved:.1%} less than unquantised; {models} run"


def plan_yaml(found: Found) -> str:
    """The best plan as a transform to paste under ``transforms:``, or as ``layers:`` of the one that is there."""
    assert found.best is not None, "a plan that keeps the bound"
    pairs = zip(found.layers, found.best.plan, strict=True)
    entries = [f"{json.dumps(scope_text(layer.scope))}: {{weights: {{bits: {bits}}}}}" for layer, bits in pairs]
    if found.asked.transform:
        return "\n".join(["layers:", *(f"  {entry}" for entry in entries)])
    bounds = "".join(f", {bound.value}: {float(value):g}" for bound, value in found.asked.claim.bounds.items())
    judged = f"  equivalence: {{kind: lossy{bounds}}}"
    if found.asked.drop is not None:
        judged = f"  evaluate: {{drop: {100 * float(found.asked.drop):g}%}}"
    lines = ["searched:", "  quantize:", "    layers:", *(f"      {entry}" for entry in entries)]
    return "\n".join([*lines, judged])


def search_record(found: Found) -> dict[str, Any]:
    """The same as plain JSON values; costs are those of the whole model, and an SQNR is 300 dB at most."""
    asked, cost = found.asked, found.unquantised
    ranked = [
        {"layer": layer.scope, "operation": layer.operation, "alone": [
            {"bits": each.bits, "cost": float(cost.value + each.cost), "sqnr": each.sqnr} for each in layer.trials]}
        for layer in _ranked(found)
    ]  # fmt: skip
    best = _record(found, found.best) if found.best else None
    return {"model": str(asked.source.target), "keep": asked.keep, "metric": asked.metric, "unit": cost.unit,
            "unquantised": float(cost.value), "evaluations": found.evaluations, "layers": ranked,
            "front": [_record(found, point) for point in found.points], "best": best}  # fmt: skip


def _record(found: Found, point: Point) -> dict[str, Any]:
    bits = {layer.scope: bits for layer, bits in zip(found.layers, point.plan, strict=True)}
    record = {"bits": bits, "cost": float(found.unquantised.value + point.cost), "predicted_sqnr": point.sqnr}
    run = found.runs.get(point.plan)
    return record | ({"sqnr": run.sqnr, "kept": run.is_kept, "figure": run.figure} if run else {})
