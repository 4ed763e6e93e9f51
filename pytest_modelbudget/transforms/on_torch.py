"""A torch model, and another one that must compute the same, on weights that can prove it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.equivalence.comparison import (
    DRAWN,
    LOADED,
    Comparison,
    Sides,
    comparison,
    divergence_of,
    telling,
)
from pytest_modelbudget.equivalence.divergence import Divergence, Layer, first_divergence
from pytest_modelbudget.equivalence.judgement import Equivalence, WrongLayers, first_rounding
from pytest_modelbudget.errors import TraceError, TransformError
from pytest_modelbudget.formats.model import Change, LoadedModel
from pytest_modelbudget.formats.source import InputSpecs, ModelSource
from pytest_modelbudget.formats.user_code import user_code
from pytest_modelbudget.torch_models import exported as torch_exported_program
from pytest_modelbudget.torch_models import module as torch_module
from pytest_modelbudget.torch_models import script as torch_script_file
from pytest_modelbudget.torch_models.building import built, is_an_instance
from pytest_modelbudget.torch_models.isolation import untouched_globals
from pytest_modelbudget.torch_models.rewriting import Rewrite, rewriting_with
from pytest_modelbudget.torch_models.running import (
    CountedSide,
    Layers,
    Runnable,
    TorchSide,
    array,
    call_of,
    in_float64,
    layer_outputs,
    leaf_specs,
    loads_no_weights,
    products_of,
    stacks,
    stored_dtype,
    true_subject,
)
from pytest_modelbudget.torch_models.tracing import Subject, traced
from pytest_modelbudget.torch_models.weights import copied, module_tree, named_weights, redraw
from pytest_modelbudget.transforms.transform import Job, Transformed

if TYPE_CHECKING:
    from pytest_modelbudget.equivalence.comparison import Search
    from pytest_modelbudget.equivalence.divergence import Watched
    from pytest_modelbudget.torch_models.running import Arrays


# Both sides of a model on these inputs; the last argument says whether its weights are drawn.
SidesOf = Callable[[Subject, InputSpecs, bool], Sides]


def verified_beside_torch(
    claim: Claim, source: ModelSource, sides_of: SidesOf, *, may_draw: bool = True, may_stack: bool = True
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


def watched(side: TorchSide, inputs: Arrays, *, float64: bool = True) -> list[Layer]:
    """The output of every layer, in the order in which they end.

    Raises TransformError where the model cannot run so.
    """
    seen: Layers = []
    subject = side.model.exact if float64 else side.model.subject
    listening = layer_outputs(subject.model, seen)
    try:
        side.model.run(call_of(side.specs, inputs), float64=float64, listening=(listening,))
    except TraceError as error:
        raise TransformError(str(error)) from error
    return [Layer(each.path, array(each.value), each.reads_last) for each in seen]


def named(layers: Iterable[Layer]) -> Watched:
    """The outputs of layers by their names alone."""
    return [(layer.scope, layer.values) for layer in layers]


def rounding_search(first: TorchSide, second: TorchSide, partial_sums: Callable[[], int] = lambda: 1) -> Search:
    """A search for the first layer that rounds more than step 2 allows."""
    dtype = stored_dtype(first.model.subject.model)

    def search(inputs: Arrays) -> Divergence | None:
        exact = named(watched(first, inputs))
        before, after = (named(watched(side, inputs, float64=False)) for side in (first, second))
        return first_rounding(exact, before, after, dtype, partial_sums())

    return search


def original(source: ModelSource, subject: Subject) -> nn.Module:
    """The module of a source that a user's code can reach.

    A subject holds a copy of an instance; what a factory builds may be one that it keeps.
    """
    is_kept = source.format == "torch" and is_an_instance(source)
    return built(source) if is_kept else subject.model


@contextmanager
def weights_untouched(model: nn.Module) -> Iterator[None]:
    """Refuse a transform that writes into these parameters or buffers, or exchanges them.

    Raises TransformError with the first one: the copy, made before, would not show it.
    """
    before = checksums(model)
    yield
    after = checksums(model)
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            raise TransformError(
                f"the transform changed {name!r} of the original model: change only the copy "
                "that it is given, and return that"
            )


def checksums(model: nn.Module) -> dict[str, int]:
    """The CRC-32 of the memory under each parameter and buffer, by its full name.

    Tensors without plain memory (sparse ones, wrappers around others) are left out.
    """
    of_memory: dict[int, int] = {}
    found: dict[str, int] = {}
    for weight in named_weights(module_tree(model)):
        tensor = weight.tensor
        if tensor.layout is not torch.strided or is_traceable_wrapper_subclass(tensor):
            continue
        memory = tensor.untyped_storage()
        if memory._cdata not in of_memory:
            of_memory[memory._cdata] = _checksum(memory)
        found[weight.name] = of_memory[memory._cdata]
    return found


def _checksum(memory: torch.UntypedStorage) -> int:
    here = memory.cpu()  # type: ignore[no-untyped-call]  # torch gives no types
    return zlib.crc32(torch.empty(0, dtype=torch.uint8).set_(here).numpy().data)


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
            TorchSide(Runnable(subject), specs), CountedSide(second, specs, promised=products, rules=job.rules)
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
        raise TransformError(f"the transform returned {type(changed).__name__}, not a torch.nn.Module")
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


LOADERS = {"torch": torch_module.load, "torchscript": torch_script_file.load, "exported": torch_exported_program.load}
Rewriter = TypeVar("Rewriter", bound=Rewrite)


def transformed_operations(job: Job, rewrite: Rewriter, *, must_be_complete: Callable[[Rewriter], None]) -> Transformed:
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
