"""Two torch models that must agree: one made from the other, or both given."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn

from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.equivalence.comparison import Sides
from pytest_modelbudget.equivalence.divergence import Divergence, first_divergence
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.equivalence.torch_sides import CountedSide, TorchSide
from pytest_modelbudget.equivalence.torch_verifying import verified_beside_torch
from pytest_modelbudget.equivalence.torch_watching import named, rounding_search, watched
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.frontends.model_source import InputSpecs, ModelSource
from pytest_modelbudget.frontends.torch_building import untouched_globals
from pytest_modelbudget.frontends.torch_float64 import in_float64
from pytest_modelbudget.frontends.torch_running import (
    Runnable,
    products_of,
    stored_dtype,
    true_subject,
)
from pytest_modelbudget.frontends.torch_tracing import Subject, traced
from pytest_modelbudget.frontends.torch_weights import copied
from pytest_modelbudget.frontends.user_code import user_code
from pytest_modelbudget.transforms.torch_originals import original, weights_untouched
from pytest_modelbudget.transforms.transform import Change, Job, Transformed

if TYPE_CHECKING:
    from pytest_modelbudget.equivalence.torch_sides import Arrays

Changer = Callable[[nn.Module], nn.Module]


def transformed_module(
    job: Job, changer: Changer, changes: Callable[[nn.Module, nn.Module], tuple[Change, ...]]
) -> Transformed:
    """The model that a changer makes of a copy; changes tells what is different in it."""
    subject, specs = true_subject(job.source)
    changed = changed_copy(job.source, subject, changer)
    loaded = traced(changed, specs, job.rules)
    told = changes(subject.model, changed.model)
    products = products_of(loaded.graph, job.rules)

    def sides_of(subject: Subject, specs: InputSpecs, weights_are_drawn: bool) -> Sides:
        def in_double() -> Subject:
            exact = in_float64(copied(subject.model))
            return subject.over(_changed(exact, changer))

        second = Runnable(changed_copy(job.source, subject, changer), in_double=in_double)
        return sides(
            TorchSide(Runnable(subject), specs),
            CountedSide(second, specs, promised=products, rules=job.rules),
        )

    def verify(claim: Claim) -> Equivalence:
        return verified_beside_torch(claim, job.source, sides_of)

    return Transformed(loaded, told, verify)


def changed_copy(source: ModelSource, subject: Subject, changer: Changer) -> Subject:
    """What a changer makes of a copy of a model; the model stays as it is.

    Raises TransformError where the changer does, or writes into the model's own weights.
    """
    with untouched_globals(), user_code("copying the model", TransformError):
        same = copied(subject.model)
    with weights_untouched(original(source, subject)):
        return subject.over(_changed(same, changer))


def _changed(model: nn.Module, changer: Changer) -> nn.Module:
    model.eval()
    given = list(model.modules())
    with untouched_globals():
        changed = changer(model)
    if not isinstance(changed, nn.Module):
        raise TransformError(
            f"the transform returned {type(changed).__name__}, not a torch.nn.Module"
        )
    _still_in_eval_mode(changed, given)
    return changed


def _still_in_eval_mode(changed: nn.Module, given: list[nn.Module]) -> None:
    """Refuse a model whose own layers were switched to training: a dropout left on would hide.

    New layers are in training mode because nobody has switched them yet, and say nothing.
    """
    mine = set(map(id, given))
    for path, module in changed.named_modules():
        if module.training and id(module) in mine:
            raise TransformError(
                f"the transform left {f'layer {path!r}' if path else 'the model'} in training "
                "mode: it is given in eval mode; call eval() on what you return"
            )


def sides(first: TorchSide, second: CountedSide) -> Sides:
    """Both models, with a search by layers for where they part."""

    def divergence(inputs: Arrays) -> Divergence | None:
        return first_divergence(watched(first, inputs), named(watched(second, inputs)))

    return Sides(
        first,
        second,
        stored_dtype(first.model.subject.model),
        divergence,
        rounding_search(first, second),
        disagreements=second.disagreements,
    )
