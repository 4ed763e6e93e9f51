"""Transform → measure → compare: a changed model beside the one that it was made from."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from os.path import relpath
from pathlib import Path
from typing import Any

from pytest_modelbudget.budget.budget import ClaimCheck, Subject, Transformation
from pytest_modelbudget.equivalence.changed import Changed, Remake
from pytest_modelbudget.equivalence.claim import Claim, Outcome
from pytest_modelbudget.equivalence.comparison import compare
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.errors import ModelBudgetError, TransformError, user_code
from pytest_modelbudget.evaluation.stored import Origin
from pytest_modelbudget.formats.benchmark import clock
from pytest_modelbudget.formats.model import Change, Model, RunnableModel
from pytest_modelbudget.formats.source import InputSpecs, ModelSource
from pytest_modelbudget.formats.table import beside
from pytest_modelbudget.formats.user_modules import Roots, searched_first
from pytest_modelbudget.gate.measuring import CostedModel, Profile, costed, deployed, undisturbed, without_graph
from pytest_modelbudget.gate.process_state import collection_paused, state_kept
from pytest_modelbudget.metrics.measured_model import MeasuredModel
from pytest_modelbudget.registry import Tables, installed_version
from pytest_modelbudget.transforms import artefact
from pytest_modelbudget.transforms.transform import CREATES, Apply, Settings

Changer = tuple[str, Apply, Settings]  # the key of a transform, what applies it, and what that is given
Steps = tuple[tuple[object, ...], ...]  # of a graph: name, scope and result shapes of each operation
REPLACED = (
    "the original computes otherwise since the other model was made: that replaces code which both run "
    "(a function, a method of a class), so that they cannot be compared in one process"
)


@dataclass(frozen=True, slots=True)
class Applied:
    """A model, what a transform made of it, and the same change to copies of it."""

    original: Model
    changed: Changed
    remake: Remake
    steps: Steps = ()
    steps_now: Callable[[], Steps] = tuple

    def verify(self, claim: Claim) -> Equivalence:
        """Hold the outputs to a claim; unknown where the code of the original was replaced meanwhile (Liger-Kernel)."""
        result = compare(self.original, self.remake, claim)
        if result.outcome is not Outcome.UNKNOWN and self.steps_now() != self.steps:
            return Equivalence(Outcome.UNKNOWN, claim.kind, REPLACED, seeds=claim.seeds)
        return result

    def release(self) -> None:
        """Forget what measuring has built."""
        for model in (self.original, self.changed.model):
            if isinstance(model, RunnableModel):
                model.release()


def apply_transform(source: ModelSource, made: Transformation, registry: Tables) -> Applied:
    """What a transform makes of the model that a source names, or of what the changes before it made of that.

    Raises SourceError where that cannot be loaded, and TransformError where the transform cannot be
    applied to it.
    """
    in_turn = (*made.after, *(made.steps or (made,)))
    changers = [*_changers(in_turn, source, registry)]
    before, after = changers[: len(made.after)], changers[len(made.after) :]
    first = _load(source, registry)
    runs_code = registry.formats[source.format].engine == "torch" and any(
        each.transform in {"apply", "compare"} for each in in_turn
    )
    steps = _steps(first) if runs_code else ()
    begun = _changed(before, first)
    original, changed = begun.model, _changed(after, begun.model, is_last=begun.is_last)

    def remake(model: Model) -> Changed:
        return changed if model is original else _changed(after, model)

    def steps_now() -> Steps:
        return _steps(_load(source, registry)) if steps else ()

    return Applied(original, changed, remake, steps, steps_now)


def _changers(in_turn: Iterable[Transformation], source: ModelSource, registry: Tables) -> Iterator[Changer]:
    """What applies each of some transforms that are made one after the other."""
    format = registry.formats[source.format]
    for made in in_turn:
        transform = registry.transforms[made.transform]
        loaded = {
            key: _load(beside(value, source, registry.formats), registry) if isinstance(value, ModelSource) else value
            for key, value in made.settings.items()
        }
        yield made.transform, transform.applied_to(format), loaded
        format = registry.formats[transform.gives or format.key]


def _changed(changers: Iterable[Changer], model: Model, *, is_last: bool = False) -> Changed:
    """All changes as one, each made to what the one before gave."""
    made = Changed(model, upcasts=True, is_last=is_last)
    for key, apply, settings in changers:
        if made.is_last:
            raise TransformError(f"steps: {key} would lose what the step before it made: put it before that")
        made = made.then(apply(made.model, settings))
    return made


def _load(source: ModelSource, registry: Tables) -> Model:
    return registry.formats[source.format].load(source, registry.ops)


def _steps(model: Model) -> Steps:
    """What a model computes; nothing of one that cannot be traced, which its comparison says."""
    try:
        return tuple((op.name, op.scope, *(out.shape for out in op.outputs)) for op in model.graph.ops)
    except ModelBudgetError:
        return ()


@dataclass(frozen=True, slots=True)
class TransformedModel:
    """The numbers of a transformed model, what changed, and both models to be compared."""

    measured: MeasuredModel
    changes: tuple[Change, ...] = ()
    applied: Applied | None = None


@collection_paused()
def transformed_model(
    source: ModelSource, change: Subject[Transformation], registry: Tables, *, root: Path, with_parts: bool = False,
    creates: bool = False, profile: Profile | None = None,
) -> TransformedModel:  # fmt: skip
    """A model after a transform, measured, also on devices; or why it could not be."""
    began, settings = clock(), {**change.made.settings, **({CREATES: True} if creates else {})}
    with undisturbed(registry.formats[source.format]):
        try:
            with searched_first(source.searched(root)), user_code(f"applying {change.made.transform}", TransformError):
                applied = apply_transform(source, replace(change.made, settings=settings), registry)
                if change.made.shipped:
                    name, file = change.made.shipped
                    words = f"{change.place.file}::MODEL::{change.name} --out {relpath(file, root)}"
                    expected = provenance(source, change, applied)
                    artefact.must_ship(
                        file, name, expected, applied.changed.model, again=f"run modelbudget build {words}"
                    )
                model = _costed(source, change.made, applied, registry)
        except ModelBudgetError as error:
            failed = MeasuredModel(source.format, failure=error, seconds=clock() - began)
            return TransformedModel(failed)
        measured = without_graph(model, began, registry, with_parts=with_parts)
        on_devices = (
            deployed(model, each.made, registry, with_parts=with_parts, profile=profile) for each in change.deployments
        )
        measured = replace(measured, deployments=tuple(on_devices))
        applied.release()
    return TransformedModel(measured, applied.changed.changes, applied)


def _costed(source: ModelSource, made: Transformation, applied: Applied, registry: Tables) -> CostedModel:
    """A changed model with its numbers, evaluated where the transform says so."""
    origin = Origin(applied.original, tuple((each.transform, each.settings) for each in made.steps or (made,)))
    return costed(applied.changed.model, registry, replace(source, evaluate=made.evaluate), origin)


def verified(model: TransformedModel, claim: Claim, roots: Roots) -> Equivalence:
    """Whether a transformed model's outputs are still the same; what cannot be run is unknown."""
    if model.applied is None:
        return Equivalence(Outcome.UNKNOWN, claim.kind, str(model.measured.failure))
    with state_kept(), searched_first(roots):
        return compared(model.applied, claim)


def compared(applied: Applied, claim: Claim, raised: tuple[type[ModelBudgetError], ...] = ()) -> Equivalence:
    """The judgement on two models; errors of the kinds raised are the caller's, any other makes it unknown."""
    try:
        with user_code("comparing the outputs", TransformError):
            return applied.verify(claim)
    except raised:
        raise
    except ModelBudgetError as error:
        return Equivalence(Outcome.UNKNOWN, claim.kind, str(error), seeds=claim.seeds)


def provenance(source: ModelSource, change: Subject[Transformation], applied: Applied) -> dict[str, Any]:
    """What a shipped file is made of: its source, the transform, and the changed model."""
    made = [(each.transform, artefact.spelled(each.settings)) for each in change.made.steps or (change.made,)]
    file = Path(source.base or "", str(source.target))
    digests = {
        "stored": artefact.digest_of(applied.original),
        "sha256": artefact.digest_of_file(file) if file.is_file() else "",
    }
    return {
        "source": {"format": source.format, "model": str(source.target), **digests},
        "transform": {"name": change.name, "made": [{"key": key, "settings": settings} for key, settings in made]},
        "changed model": artefact.digest_of(applied.changed.model),
        "inputs": str(source.inputs),
    }


def build(
    model: Subject[ModelSource], change: Subject[Transformation] | None, registry: Tables, *, root: Path, out: Path
) -> Path:
    """Write what a transform makes of a model, once its claims hold, and the certificate of that; where this is.

    Raises TransformError where the claim does not hold, or the model cannot be written.
    """
    if change is None or not any(isinstance(check, ClaimCheck) for check in change.checks):
        named = (change or model).name
        raise TransformError(f"{out} is not written: {named} makes no claim: name a transform with equivalence")
    source = model.made
    own = (part for part in model.transforms if part.name.startswith(f"{change.name}."))
    steps = [part for part in own if part.made in change.made.steps]
    with undisturbed(registry.formats[source.format]), searched_first(source.searched(root)):
        with user_code(f"applying {change.made.transform}", TransformError):
            claims = [_kept(part, apply_transform(source, part.made, registry), out) for part in steps]
            applied = apply_transform(source, change.made, registry)
            figures = _costed(source, change.made, applied, registry).measurements
            claims.append(_kept(change, applied, out))
            made = provenance(source, change, applied)
        packages = ("pytest-modelbudget", "torch", "onnx", "onnxruntime")
        record = {
            "claim": claims,
            "figures": {key: str(each.value) for key, each in figures.items()},
            "versions": {package: installed_version(package) for package in packages},
        }
        with user_code(f"writing {out}", TransformError), artefact.whole(out) as file:
            artefact.write(applied.changed.model, file)
            _must_be_as_judged(file, source, int(figures["weight_memory"].value), registry)
            return out.with_name(artefact.write_certificate(file, {**made, **record}).name)


def _kept(part: Subject[Transformation], applied: Applied, out: Path) -> dict[str, Any]:
    """The claim of a transform, or of a step, for a certificate; raises TransformError where it does not hold."""
    judged = compared(applied, next(check.claim for check in part.checks if isinstance(check, ClaimCheck)))
    if judged.outcome is not Outcome.WITHIN:
        said = f"equivalence {judged.outcome.value}: {judged.reason}"
        raise TransformError(f"{out} is not written: {part.name}: {said}")
    return {
        "of": part.name, "kind": judged.kind.value, "outcome": judged.outcome.value, "why": judged.reason,
        "weights": judged.weights, "seeds": list(judged.seeds),
    }  # fmt: skip


def _must_be_as_judged(file: Path, source: ModelSource, judged: int, registry: Tables) -> None:
    """Raise TransformError where a written file stores more than the model that was judged."""
    format = next(each for each in registry.formats.values() if file.suffix in each.suffixes)
    inputs = source.inputs if format.key == source.format else InputSpecs()
    written = ModelSource(format.key, str(file), inputs, dims=source.dims, qdq=source.qdq)
    stored = costed(format.load(written, registry.ops), registry, written).measurements["weight_memory"]
    if stored.value > judged:
        raise TransformError(
            f"{file.name} is not written: it stores {stored.value:,} B, and what was judged {judged:,} B: "
            "quantize an ONNX file, to 4 or 8 bits, whose integers are written"
        )
