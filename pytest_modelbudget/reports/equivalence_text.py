"""What a person reads when outputs are no longer the same.

equivalence over: output '0', normal inputs: float64 outputs differ by 3.2e-04 …   budgets/a.yaml:9
  first layer that differs: classifier.1, by 0.032 of its size, most at [0, 17]: 0.52 -> 0.11
  worst output element: '0' at [3, 12], normal inputs: 1.5 -> 0.2
  weights: drawn, seed 0; inputs: seeds 0, 1, 2
repeat: pytest --model-budget budgets/a.yaml::alexnet::tiled::equivalence
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_modelbudget.budget.budget import Place
from pytest_modelbudget.equivalence.divergence import Worst
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.equivalence.outcome import Outcome
from pytest_modelbudget.reports.failure_text import one_line
from pytest_modelbudget.reports.scope_text import scope_text


def equivalence_lines(equivalence: Equivalence, place: Place, repeat: str) -> tuple[str, ...]:
    """The first line says everything; the others help to find the layer."""
    words = f"equivalence {equivalence.outcome.value}: {one_line(equivalence.reason)}   {place}"
    return (words, *_evidence(equivalence), f"repeat: {repeat}")


def _evidence(equivalence: Equivalence) -> Iterator[str]:
    divergence = equivalence.first_divergence
    if divergence is not None:
        scope = scope_text(divergence.scope)
        size = f", by {divergence.error:.2g} of its size" if divergence.error < 1e300 else ""
        yield f"  first layer that differs: {scope}{size}{_most(divergence.worst)}"
    worst = next((o for o in equivalence.outputs if o.outcome is Outcome.OVER and o.worst), None)
    if worst is not None and worst.worst is not None:
        yield f"  worst output element: '{worst.name}', {worst.family} inputs{_most(worst.worst)}"
    if equivalence.weights:
        seeds = ", ".join(map(str, equivalence.seeds))
        yield f"  weights: {equivalence.weights}; inputs: seeds {seeds}"
    yield from (f"  {one_line(note)}" for note in equivalence.notes)


def _most(worst: Worst | None) -> str:
    if worst is None:
        return ""
    return f", most at {list(worst.index)}: {told_apart(worst.original, worst.transformed)}"


def told_apart(before: float, after: float) -> str:
    """Two numbers in six digits, or in as many more as it takes to see a difference."""
    pairs = [(f"{before:.{digits}g}", f"{after:.{digits}g}") for digits in range(6, 18)]
    return " -> ".join(next((pair for pair in pairs if pair[0] != pair[1]), pairs[0]))
