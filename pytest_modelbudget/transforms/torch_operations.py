"""A transform that rewrites operations, applied to any torch format: its cost and its outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.equivalence.comparison import Sides, divergence_of
from pytest_modelbudget.equivalence.divergence import Divergence
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.equivalence.torch_sides import CountedSide, TorchSide, array
from pytest_modelbudget.equivalence.torch_verifying import verified_beside_torch
from pytest_modelbudget.equivalence.torch_watching import rounding_search
from pytest_modelbudget.equivalence.wrong_layers import WrongLayers
from pytest_modelbudget.frontends import torch_exported_program, torch_module, torch_script_file
from pytest_modelbudget.frontends.loaded_model import LoadedModel
from pytest_modelbudget.frontends.model_source import InputSpecs
from pytest_modelbudget.frontends.torch_running import Runnable, products_of, stored_dtype
from pytest_modelbudget.frontends.torch_tracing import Subject
from pytest_modelbudget.transforms.torch_rewriting import Rewrite, rewriting_with
from pytest_modelbudget.transforms.transform import Job, Transformed

if TYPE_CHECKING:
    import torch

    from pytest_modelbudget.equivalence.torch_sides import Arrays

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

    def sides_of(subject: Subject, specs: InputSpecs, weights_are_drawn: bool) -> Sides:
        original, dtype = Runnable(subject), stored_dtype(subject.model)
        wrong = WrongLayers(dtype)

        def compare(scope: str, before: torch.Tensor, after: torch.Tensor) -> None:
            wrong.compare(scope, array(before), array(after))

        comparing = rewriting_with(rewrite, job.rules, compare=compare)
        second = CountedSide(
            original.rewritten(rewriting),
            specs,
            promised=products,
            rules=job.rules,
            exact=original.rewritten(comparing),
        )

        def divergence(inputs: Arrays) -> Divergence | None:
            second.run(inputs, float64=True)
            return next(map(divergence_of, wrong.pairs()), None)

        def partial_sums() -> int:
            return rewrite.partial_sums

        first = TorchSide(original, specs)
        return Sides(
            first,
            second,
            dtype,
            divergence,
            rounding_search(first, second, partial_sums),
            partial_sums,
            disagreements=lambda: (*second.disagreements(), *wrong.shapes()),
            wrong_layers=wrong.pairs,
        )

    def verify(claim: Claim) -> Equivalence:
        return verified_beside_torch(claim, job.source, sides_of)

    return Transformed(loaded, changes, verify)
