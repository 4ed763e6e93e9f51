"""A transform that rewrites operations, applied to any torch format: its cost and its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from pytest_modelbudget.frontends import torch_exported_program, torch_module, torch_script_file
from pytest_modelbudget.frontends.loaded_model import LoadedModel
from pytest_modelbudget.frontends.torch_inputs import CallInputs
from pytest_modelbudget.frontends.torch_running import Runnable, products_of
from pytest_modelbudget.frontends.torch_tracing import NameOf, ScopeNow, Subject
from pytest_modelbudget.transforms.claim import Claim
from pytest_modelbudget.transforms.divergence import Divergence, first_difference
from pytest_modelbudget.transforms.equivalence import Equivalence
from pytest_modelbudget.transforms.torch_rewriting import ComparingMode, Rewrite, rewriting_with
from pytest_modelbudget.transforms.torch_verifying import Sides, array, verified
from pytest_modelbudget.transforms.transform import Job, Transformed

if TYPE_CHECKING:
    from pytest_modelbudget.transforms.divergence import Values

LOADERS = {
    "torch": torch_module.load,
    "torchscript": torch_script_file.load,
    "exported": torch_exported_program.load,
}
Rewriter = TypeVar("Rewriter", bound=Rewrite)


def transformed_operations(
    job: Job, rewrite: Rewriter, *, must_be_complete: Callable[[Rewriter], None]
) -> Transformed:
    """The model under a rewrite; must_be_complete raises where that left out what it may not."""
    rewriting = rewriting_with(rewrite, job.rules)
    loaded: LoadedModel = LOADERS[job.source.format](job.source, job.rules, rewriting=rewriting)
    must_be_complete(rewrite)
    changes = tuple(rewrite.changes)
    products = products_of(loaded.graph, job.rules)

    def sides_of(subject: Subject, weights_are_drawn: bool) -> Sides:
        original = Runnable(subject)

        def divergence(inputs: CallInputs) -> Divergence | None:
            return first_difference(compared_operations(original, rewrite, job, inputs))

        return Sides(
            original,
            original.rewritten(rewriting),
            divergence,
            job.rules,
            products,
            partial_sums=lambda: getattr(rewrite, "partial_sums", 1),
        )

    def verify(claim: Claim) -> Equivalence:
        return verified(claim, job.source, sides_of)

    return Transformed(loaded, changes, verify)


def compared_operations(
    original: Runnable, rewrite: Rewrite, job: Job, inputs: CallInputs
) -> Iterator[tuple[str, Values, Values]]:
    """(scope, original, rewritten) of every rewritten operation in float64, on one input each."""
    modes: list[ComparingMode] = []

    def comparing(weight_name: NameOf, scope_now: ScopeNow) -> ComparingMode:
        rewrite.changes.clear()
        modes.append(ComparingMode(rewrite, job.rules, weight_name, scope_now))
        return modes[-1]

    original.rewritten(comparing).run(inputs, float64=True)
    for scope, before, after in modes[-1].compared:
        yield scope, array(before), array(after)
