"""A torch model, and another one that must compute the same, on weights that can prove it."""

from __future__ import annotations

from collections.abc import Callable

from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.equivalence.comparison import (
    DRAWN,
    LOADED,
    Comparison,
    Sides,
    comparison,
    telling,
)
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.equivalence.torch_sides import leaf_specs, stacks
from pytest_modelbudget.frontends.model_source import InputSpecs, ModelSource
from pytest_modelbudget.frontends.torch_drawing import redraw
from pytest_modelbudget.frontends.torch_running import loads_no_weights, true_subject
from pytest_modelbudget.frontends.torch_tracing import Subject

# Both sides of a model on these inputs; the last argument says whether its weights are drawn.
SidesOf = Callable[[Subject, InputSpecs, bool], Sides]


def verified_beside_torch(
    claim: Claim,
    source: ModelSource,
    sides_of: SidesOf,
    *,
    may_draw: bool = True,
    may_stack: bool = True,
) -> Equivalence:
    """Hold what stands beside a torch model to a claim, on weights that can prove something.

    may_stack says that the second model, too, takes any size of the first dimension.
    """

    def compared(subject: Subject, specs: InputSpecs, *, drawn: bool) -> Comparison:
        if drawn:
            redraw(subject.model)
        leaves = leaf_specs(specs)
        sides = sides_of(subject, specs, drawn)
        return comparison(claim, sides, leaves, stacks=may_stack and stacks(leaves))

    subject, specs = true_subject(source)
    if may_draw and loads_no_weights(source, subject):
        found = compared(subject, specs, drawn=True)
        return found.equivalence(DRAWN, constant=found.before.still())
    found = compared(subject, specs, drawn=False)
    if not may_draw:
        return found.equivalence(LOADED)
    return telling(found, lambda: compared(*true_subject(source), drawn=True))
