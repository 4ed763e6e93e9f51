"""Two torch models run on the same inputs, in both steps; what they gave goes to the judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.frontends.model_source import InputSpec, InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.frontends.torch_drawing import redraw
from pytest_modelbudget.frontends.torch_inputs import CallInputs, dtype_named
from pytest_modelbudget.frontends.torch_running import (
    Executed,
    Product,
    Result,
    Runnable,
    loads_no_weights,
    stored_dtype,
    true_subject,
    weight_names,
)
from pytest_modelbudget.frontends.torch_tracing import Subject
from pytest_modelbudget.frontends.torch_values import dtype_of
from pytest_modelbudget.ir.tensor import least_precise
from pytest_modelbudget.ops.op_table import OpTable
from pytest_modelbudget.transforms.claim import Claim, Kind
from pytest_modelbudget.transforms.comparison import (
    DRAWN,
    LOADED,
    Row,
    joined,
    without_rounded_weights,
)
from pytest_modelbudget.transforms.divergence import Divergence
from pytest_modelbudget.transforms.equivalence import (
    Basis,
    Equivalence,
    OutputPair,
    judged,
)
from pytest_modelbudget.transforms.input_families import (
    SCALES,
    Scale,
    drawn_values,
    families_of,
    runs_of,
    scale_note,
)
from pytest_modelbudget.transforms.outcome import Outcome

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Sides:
    """Both models, and what is known about the second.

    divergence looks for the first layer that differs, on these inputs. products
    are those that the graph of the second promises; None where nobody promised. other_weights tells
    whether the second stores other values than the first, which may be rounded on another way.
    """

    original: Runnable
    transformed: Runnable
    divergence: Callable[[CallInputs], Divergence | None]
    rules: OpTable
    products: Counter[Product] | None = None
    partial_sums: Callable[[], int] = lambda: 1
    notes: tuple[str, ...] = ()
    other_weights: Callable[[], bool] = lambda: False


SidesOf = Callable[[Subject, bool], Sides]  # of a model, and whether its weights are drawn


def verified(
    claim: Claim, source: ModelSource, sides_of: SidesOf, *, may_draw: bool = True
) -> Equivalence:
    """Hold the transformed side of a model to a claim, on weights that can prove something."""
    subject, specs = true_subject(source)
    if may_draw and loads_no_weights(source, subject):
        redraw(subject.model)
        return Comparison(claim, sides_of(subject, True), specs).equivalence(DRAWN)
    found = Comparison(claim, sides_of(subject, False), specs)
    if found.moves() or not may_draw:
        return found.equivalence(LOADED)
    subject, specs = true_subject(source)
    redraw(subject.model)
    return Comparison(claim, sides_of(subject, True), specs).equivalence(DRAWN)


class Comparison:
    """Both models on all inputs of a claim."""

    def __init__(self, claim: Claim, sides: Sides, specs: InputSpecs) -> None:
        self.claim = claim
        self.sides = sides
        self.specs = specs
        families = families_of([leaf for _, leaf in leaves(specs)])
        self.rows = [Row(*each) for each in runs_of(families, claim.seeds)]
        self.structure: list[str] = []
        self.notes: list[str] = list(sides.notes)
        self.scale = SCALES[0]
        self._begin()

    def _begin(self) -> None:
        """Run the original, on inputs as large as its type stands."""
        for scale in SCALES:
            self.scale = scale
            self.batches = [
                Batch(each, self.rows, scale) for each in resized(self.specs, self.claim.batches)
            ]
            self.exact = [batch.run(self.sides.original, float64=True) for batch in self.batches]
            self.stored = [batch.run(self.sides.original) for batch in self.batches]
            if not self._overflows():
                break
        self.notes.extend(scale_note(self.scale))

    def _overflows(self) -> bool:
        """Whether the original gives Inf or NaN in its own type where float64 gives numbers."""
        return any(
            bool((~torch.isfinite(y.tensor) & torch.isfinite(x.tensor)).any())
            for exact, stored in zip(self.exact, self.stored, strict=True)
            for before, after in zip(exact, stored, strict=True)
            for x, y in zip(before.outputs, after.outputs, strict=True)
        )

    def moves(self) -> bool:
        """Whether any output of the original depends on its input."""
        return any(_moves(results) for results in self.exact)

    def equivalence(self, weights: str) -> Equivalence:
        """The judgement over everything that was run."""
        if not self.moves():
            words = "the original's outputs do not move with its inputs: nothing could be seen"
            return Equivalence(
                Outcome.UNKNOWN, self.claim.kind, words, weights, seeds=self.claim.seeds
            )
        model = stored_dtype(self.sides.original.subject.model)
        pairs, noted = without_rounded_weights(
            tuple(self._pairs()), model, self.sides.other_weights
        )
        self.notes.extend(noted)
        basis = Basis.NETWORK if all(p.algebra is not None for p in pairs) else Basis.NOTHING
        found = judged(
            self.claim,
            pairs,
            structure=tuple(dict.fromkeys(self.structure)),
            weights=weights,
            basis=basis,
            partial_sums=self.sides.partial_sums(),
            notes=tuple(self.notes),
        )
        if found.outcome is not Outcome.OVER:
            return found
        return replace(found, first_divergence=self._divergence())

    def _pairs(self) -> Iterator[OutputPair]:
        """Outputs of all runs, pooled by name and family."""
        algebra = self._algebra() if self.claim.kind is Kind.EXACT_ALGEBRA else None
        transformed = [self._executed(batch) for batch in self.batches]
        for exact, found in zip(self.exact, transformed, strict=True):
            for before, after in zip(exact, found, strict=True):
                self.structure.extend(differences(before, after))
        for stored, found in zip(self.stored, transformed, strict=True):
            for before, after in zip(stored, found, strict=True):
                self.structure.extend(type_differences(before, after))
        if self.structure:
            return
        model = stored_dtype(self.sides.original.subject.model)
        for index, output in enumerate(self.stored[0][0].outputs):
            dtype = least_precise((model, dtype_of(output.tensor.dtype).name))
            for family in dict.fromkeys(row.family for row in self.rows):
                chosen = [i for i, row in enumerate(self.rows) if row.family == family]
                yield OutputPair(
                    output.name,
                    family,
                    dtype,
                    _pooled(self.exact, chosen, index),
                    None if algebra is None else _pooled(algebra, chosen, index),
                    _pooled(self.stored, chosen, index),
                    _pooled(transformed, chosen, index),
                )

    def _algebra(self) -> list[list[Result]] | None:
        """The transformed model in float64; None where it cannot run so."""
        try:
            found = [batch.run(self.sides.transformed, float64=True) for batch in self.batches]
        except TraceError as error:
            self.notes.append(f"precision only: {error}")
            return None
        for exact, after in zip(self.exact, found, strict=True):
            for x, y in zip(exact, after, strict=True):
                self.structure.extend(differences(x, y))
        return found

    def _executed(self, batch: Batch) -> list[Result]:
        """The transformed model in its own type; what it multiplies must be what its graph says."""
        sides = self.sides
        counting = Executed(sides.rules, weight_names(sides.transformed.subject.model))
        results = batch.run(sides.transformed, listening=(counting,))
        if sides.products is None or counting.counts == sides.products:
            return results
        alone = Executed(sides.rules, weight_names(sides.transformed.subject.model))
        sides.transformed.run(
            Batch(self.specs, self.rows[:1], self.scale).alone(0), listening=(alone,)
        )
        if alone.counts != sides.products:
            self.structure.append(disagreement(sides.products, alone.counts))
        return results

    def _divergence(self) -> Divergence | None:
        """The first layer that differs in float64, on the inputs that the models were run on."""
        if self.structure:
            return None
        for batch in self.batches:
            for inputs in batch.calls():
                with suppress(TraceError):  # a model without float64 has no layers to compare
                    found = self.sides.divergence(inputs)
                    if found is not None:
                        return found
        return None


class Batch:
    """The inputs of all rows under one set of specs; run as one where the model takes that."""

    def __init__(self, specs: InputSpecs, rows: Sequence[Row], scale: Scale) -> None:
        self.specs = specs
        self.rows = rows
        self.scale = scale
        sizes = {leaf.shape[:1] for _, leaf in leaves(specs)}
        self.is_stacked = len(rows) > 1 and len(sizes) == 1 and sizes != {()}

    def alone(self, index: int) -> CallInputs:
        """The inputs of one row."""
        return self._inputs([self.rows[index]])

    def calls(self) -> Iterator[CallInputs]:
        """The inputs of every call: one for all rows, or one for each."""
        if self.is_stacked:
            yield self._inputs(self.rows)
            return
        yield from map(self.alone, range(len(self.rows)))

    def run(self, model: Runnable, **options: Any) -> list[Result]:
        """What a model returns for each row; one run for all of them where it can be told apart."""
        if self.is_stacked:
            try:
                stacked = model.run(self._inputs(self.rows), **options)
                return list(_unstacked(stacked, len(self.rows)))
            except (TraceError, ValueError):
                self.is_stacked = False
        return [model.run(self.alone(index), **options) for index in range(len(self.rows))]

    def _inputs(self, rows: Sequence[Row]) -> CallInputs:
        def made(spec: InputSpec, name: str) -> Any:
            if not isinstance(spec, TensorSpec):
                return [made(part, f"{name}.{i}") for i, part in enumerate(spec)]
            drawn = [self._tensor(spec, name, row) for row in rows]
            return drawn[0] if len(drawn) == 1 else torch.cat(drawn)

        args = tuple(made(spec, str(i)) for i, spec in enumerate(self.specs.positional))
        return CallInputs(args, {n: made(spec, n) for n, spec in self.specs.named.items()})

    def _tensor(self, spec: TensorSpec, name: str, row: Row) -> torch.Tensor:
        values = drawn_values(spec, name, row.family, row.seed, scale=self.scale)
        return torch.as_tensor(values).to(dtype_named(spec.dtype))


def _unstacked(result: Result, rows: int) -> Iterator[Result]:
    """The result of each row; raises ValueError where an output has no row for each."""
    parts = []
    for output in result.outputs:
        if output.tensor.dim() == 0 or output.tensor.shape[0] % rows:
            raise ValueError(f"output {output.name} has no row for each input")
        parts.append(output.tensor.chunk(rows))
    for row in range(rows):
        outputs = tuple(
            replace(output, tensor=part[row])
            for output, part in zip(result.outputs, parts, strict=True)
        )
        yield Result(result.structure, outputs)


def leaves(specs: InputSpecs) -> Iterator[tuple[str, TensorSpec]]:
    """(name, spec) of every tensor that a model takes."""

    def below(spec: InputSpec, name: str) -> Iterator[tuple[str, TensorSpec]]:
        if isinstance(spec, TensorSpec):
            yield name, spec
            return
        for i, part in enumerate(spec):
            yield from below(part, f"{name}.{i}")

    for position, spec in enumerate(specs.positional):
        yield from below(spec, str(position))
    for name, spec in specs.named.items():
        yield from below(spec, name)


def resized(specs: InputSpecs, batches: tuple[int, ...]) -> list[InputSpecs]:
    """The specs as they are, or with each of these sizes as first dimension."""

    def sized(spec: InputSpec, batch: int) -> InputSpec:
        if isinstance(spec, TensorSpec):
            return replace(spec, shape=(batch, *spec.shape[1:]))
        return tuple(sized(part, batch) for part in spec)

    if not batches:
        return [specs]
    return [
        InputSpecs(
            tuple(sized(spec, batch) for spec in specs.positional),
            {name: sized(spec, batch) for name, spec in specs.named.items()},
        )
        for batch in batches
    ]


def differences(before: Result, after: Result) -> Iterator[str]:
    """How the outputs of two runs differ in structure, names, order and shapes."""
    if before.structure != after.structure:
        yield f"{after.structure} in place of {before.structure}"
        return
    for x, y in zip(before.outputs, after.outputs, strict=True):
        if x.name != y.name:
            yield f"output '{y.name}' in place of '{x.name}'"
        if x.tensor.shape != y.tensor.shape:
            yield f"output '{x.name}' is {list(y.tensor.shape)} and was {list(x.tensor.shape)}"


def type_differences(before: Result, after: Result) -> Iterator[str]:
    """How the outputs of two runs differ in element types."""
    for x, y in zip(before.outputs, after.outputs, strict=False):
        if x.tensor.dtype != y.tensor.dtype:
            was, now = dtype_of(x.tensor.dtype).name, dtype_of(y.tensor.dtype).name
            yield f"output '{x.name}' is {now} and was {was}"


def disagreement(promised: Counter[Product], executed: Counter[Product]) -> str:
    """The first product that a graph and a run do not count alike."""
    for product in sorted({*promised, *executed}):
        said, done = promised[product], executed[product]
        if said != done:
            name, shape = product
            size = f" by weights {list(shape)}" if shape else ""
            return f"the graph has {said:,} {name}{size}, and the run executes {done:,}"
    raise AssertionError("nothing to tell: both count alike")


def _moves(results: Sequence[Result]) -> bool:
    """Whether any output differs between two rows by more than rounding."""
    first = results[0]
    for other in results[1:]:
        for x, y in zip(first.outputs, other.outputs, strict=False):
            if x.tensor.shape != y.tensor.shape:
                return True
            mine, theirs = (torch.nan_to_num(_widest(each.tensor)) for each in (x, y))
            apart = (mine - theirs).abs()
            if apart.numel() and bool((apart > 1e-9 * theirs.abs().max()).any()):
                return True
    return False


def _widest(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in the widest type of their kind."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _pooled(batches: Sequence[Sequence[Result]], rows: Sequence[int], index: int) -> NDArray[Any]:
    """One output over all runs of a family, rows first."""
    return joined([array(found[row].outputs[index].tensor) for found in batches for row in rows])


def array(tensor: torch.Tensor) -> NDArray[Any]:
    """Values as float64, or as the integers they are; complex ones as complex128."""
    if tensor.is_floating_point():
        tensor = tensor.double()
    found: NDArray[Any] = tensor.detach().cpu().resolve_conj().numpy()
    return found
