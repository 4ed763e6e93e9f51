"""``compare: {torch: package.module:callable}``: a second model that must agree with the first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.equivalence.comparison import Sides
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.equivalence.stored_values import stores_other_values
from pytest_modelbudget.equivalence.torch_sides import CountedSide, TorchSide, floating_weights
from pytest_modelbudget.equivalence.torch_verifying import verified_beside_torch
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.frontends.frontend_table import frontend_table
from pytest_modelbudget.frontends.model_source import InputSpecs, ModelSource
from pytest_modelbudget.frontends.torch_building import is_an_instance
from pytest_modelbudget.frontends.torch_drawing import redraw
from pytest_modelbudget.frontends.torch_running import Runnable, products_of, true_subject
from pytest_modelbudget.frontends.torch_tracing import Subject
from pytest_modelbudget.transforms.torch_modules import sides
from pytest_modelbudget.transforms.transform import Job, Transformed

TORCH = ("torch", "torchscript", "exported")


def transformed(job: Job) -> Transformed:
    """The second model, measured on the first one's inputs, and both run side by side."""
    given = job.settings["compare"]
    assert isinstance(given, ModelSource)
    if given.format == "onnx":
        from pytest_modelbudget.transforms import compare_torch_to_onnx

        return compare_torch_to_onnx.transformed(job)
    if given.format not in TORCH:
        raise TransformError(f"a {job.source.format} model cannot be compared with {given.format}")
    second = given if given.format == "exported" else replace(given, inputs=job.source.inputs)
    loaded = frontend_table()[second.format].load(second, job.rules)
    products = products_of(loaded.graph, job.rules)
    may_draw = second.format == "torch" and not is_an_instance(second)

    def sides_of(subject: Subject, specs: InputSpecs, weights_are_drawn: bool) -> Sides:
        other, _ = true_subject(second)
        notes: tuple[str, ...] = ()
        if weights_are_drawn:
            redraw(other.model)
            notes = tuple(_partners(subject.model, other.model))
        both = sides(
            TorchSide(Runnable(subject), specs),
            CountedSide(Runnable(other), specs, promised=products, rules=job.rules),
        )
        return replace(
            both,
            notes=notes,
            other_weights=lambda: stores_other_values(
                *map(floating_weights, (subject.model, other.model))
            ),
        )

    def verify(claim: Claim) -> Equivalence:
        return verified_beside_torch(claim, job.source, sides_of, may_draw=may_draw)

    return Transformed(loaded, (), verify)


def _partners(first: nn.Module, second: nn.Module) -> Iterator[str]:
    """A word about weights that only one of two models has, and so cannot be equal in both."""
    mine, theirs = ({name for name, _ in each.named_parameters()} for each in (first, second))
    alone = sorted(mine ^ theirs)
    if alone:
        yield (
            f"weights are drawn by name, and {len(alone)} have no partner of their name, such as "
            f"{alone[0]}: let both factories load their weights"
        )
