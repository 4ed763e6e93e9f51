"""What the layers of a model give on named inputs, run by run: chosen, counted, and kept in a file where that is asked.

``statistics_of`` draws, or reads, the same inputs twice; at no time are the values of more than one call in memory.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fractions import Fraction
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pytest_modelbudget.equivalence import inputs as draws
from pytest_modelbudget.equivalence.user_inputs import GivenInputs, given_rows
from pytest_modelbudget.errors import InputError, TransformError
from pytest_modelbudget.formats.model import LayerValue, Model, Probe, RunnableModel, Watch, must_run
from pytest_modelbudget.graph.graph import is_in_scope, paths
from pytest_modelbudget.graph.tensor import StorageKind
from pytest_modelbudget.units import several, some_of

if TYPE_CHECKING:
    from pytest_modelbudget.values.statistics import Statistics

SEEDS = (0, 1, 2)
SIGMAS = 3.0  # deviations around the mean that a range spans
CHANNELS = 1  # the axis of channels in the outputs of convolutions, and of a batch of rows
MOST_NAMED = 8  # types that a message names
Take = Callable[[LayerValue], None]


@dataclass(frozen=True, slots=True)
class Selection:
    """Layers by globs on their paths, and by their types: "Conv2d" of modules, "Conv" or "conv2d" of operators.

    Layers that hold others are taken where their type is named.
    """

    layers: tuple[str, ...] = ("*",)
    types: tuple[str, ...] = ()

    def wants(self, scope: str, types: Collection[str], holds_others: bool) -> bool:
        """Whether a layer is among them."""
        is_of_type = bool({*self.types} & {*types}) if self.types else not holds_others
        return is_of_type and any(is_in_scope(scope, glob) for glob in self.layers)

    @property
    def text(self) -> str:
        """The layers in words."""
        of_type = f" of type {' or '.join(self.types)}" if self.types else ""
        return f"{', '.join(map(repr, self.layers))}{of_type}"


@dataclass(frozen=True, slots=True)
class NamedInputs:
    """The inputs that a model is run on: given ones, or one draw of N(0, 1) for each seed."""

    given: GivenInputs | None = None
    seeds: tuple[int, ...] = SEEDS

    @property
    def text(self) -> str:
        """The inputs in words, which each figure that was measured on them shows."""
        if self.given is not None:
            return self.given.text
        return f"drawn inputs, seed{'s' * (len(self.seeds) > 1)} {', '.join(map(str, self.seeds))}"

    def calls(self, model: RunnableModel) -> tuple[Callable[[], Iterable[Mapping[str, Any]]], tuple[str, ...]]:
        """What gives the inputs of every call, as often as it is asked, and notes.

        Raises InputError for given inputs that are not the model's.
        """
        specs, notes = model.inputs.specs, model.inputs.notes
        if self.given is not None:
            rows, more = given_rows(self.given, specs)
            return lambda: rows, more
        family = draws.families_of(list(specs.values()), draws.FAMILIES[:1])[0]
        return lambda: (draws.drawn(specs, draws.Row(family, seed), draws.SCALES[0]) for seed in self.seeds), notes


@dataclass(frozen=True, slots=True)
class LayerStatistics:
    """The statistics of one call of a layer, or of a stored tensor, over all runs; shape is that of the first."""

    name: str
    scope: str
    type: str
    dtype: str
    shape: tuple[int, ...]
    statistics: Statistics


@dataclass(frozen=True, slots=True)
class Captured:
    """What was seen of layers in so many calls of a model, in the order in which they ended; notes on the inputs.

    unseen says of which type that was asked for, beside others, no layer gave numbers.
    """

    layers: tuple[LayerStatistics, ...]
    calls: int
    notes: tuple[str, ...] = ()
    unseen: str = ""


@dataclass(slots=True)
class _Run:
    """Runs a model, hands the chosen values out, and remembers what there was to choose from."""

    model: RunnableModel
    selection: Selection
    types: dict[str, set[str]] = field(default_factory=dict)  # all names of a type, by the first of them
    scopes: dict[str, None] = field(default_factory=dict)
    seen: dict[str, None] = field(default_factory=dict)  # scopes of the layers that gave numbers
    seen_types: set[str] = field(default_factory=set)  # all names of theirs

    def over(self, calls: Iterable[Mapping[str, Any]], take: Take) -> int:
        """The number of calls. Raises InputError where a glob chose no layer, TransformError where the model fails."""
        number = 0

        def taken(value: LayerValue) -> None:
            self.seen.setdefault(value.scope)
            self.seen_types.update(self.types[value.type])
            take(value)

        for number, inputs in enumerate(calls, 1):  # noqa: B007  # it is returned
            self.model.run(inputs, Watch(probe=Probe(self._wants, taken)))
        for glob in self.selection.layers:
            if not any(is_in_scope(scope, glob) for scope in self.seen):
                raise InputError(self._no_layer(replace(self.selection, layers=(glob,))))
        return number

    def unseen(self) -> str:
        """The first type of which no layer gave numbers, in a sentence; "" where all did."""
        names = (name for name in self.selection.types if name not in self.seen_types)
        return next((self._no_layer(replace(self.selection, types=(name,))) for name in names), "")

    def _no_layer(self, asked: Selection) -> str:
        return f"no layer {asked.text} gave numbers: {self._guess(asked)}"

    def _wants(self, scope: str, types: Collection[str], holds_others: bool) -> bool:
        self.types.setdefault(next(iter(types)), set()).update(types)
        self.scopes.setdefault(scope)
        return self.selection.wants(scope, types, holds_others)

    def _guess(self, selection: Selection) -> str:
        for asked, known in ((selection.types, self.types), (selection.layers, self.scopes)):
            close = [found for word in asked for found in get_close_matches(word, known, 1)]
            if close and close[0] not in asked:
                return f"did you mean '{close[0]}'?"
        named = ", ".join(list(self.types)[:MOST_NAMED])
        more = ", ..." if len(self.types) > MOST_NAMED else ""
        return f"it has layers of type {named}{more}" if named else "it has none that is seen"


def runnable(model: Model) -> RunnableModel:
    """The model as one that runs with weights of its own; raises TransformError for any other."""
    model = must_run(model, "so that no values of it are seen")
    if model.missing:
        raise TransformError(f"values come of the model's own weights: {model.missing}")
    return model


def statistics_of(
    model: Model,
    selection: Selection,
    inputs: NamedInputs,
    *,
    sigmas: float = SIGMAS,
    quantiles: Sequence[Fraction] = (),
    channel_axis: int = CHANNELS,
    take: Take | None = None,
) -> Captured:
    """The statistics of the chosen layers over all inputs; take gets the values, too.

    Raises InputError for inputs that are not the model's and where a glob chose no layer, TransformError for a model
    that does not run, or gives other values when it is run again.
    """
    from pytest_modelbudget.values.statistics import NOT_REPEATED, Moments, Ranks, Statistics

    model = runnable(model)
    calls, notes = inputs.calls(model)
    run, about = _Run(model, selection), dict[str, Callable[[Statistics], LayerStatistics]]()
    moments, ranks = dict[str, Moments](), dict[str, Ranks]()

    def first(value: LayerValue) -> None:
        if value.name not in about:
            shape = value.values.shape
            about[value.name] = partial(LayerStatistics, value.name, value.scope, value.type, value.dtype, shape)
            moments[value.name] = Moments(channel_axis)
        moments[value.name].add(value.values)
        if take:
            take(value)

    def second(value: LayerValue) -> None:
        if value.name not in ranks:
            raise TransformError(NOT_REPEATED)
        ranks[value.name].add(value.values)

    number = run.over(calls(), first)
    ranks.update({name: Ranks(each, sigmas=sigmas, quantiles=quantiles) for name, each in moments.items()})
    run.over(calls(), second)
    layers = tuple(about[name](each.statistics()) for name, each in ranks.items())
    return Captured(layers, number, notes, run.unseen())


def weights_of(
    model: Model, layers: Sequence[str] = ("*",), *, types: Collection[str] = (), sigmas: float = SIGMAS,
    quantiles: Sequence[Fraction] = (), take: Take | None = None,
) -> Captured:  # fmt: skip
    """The statistics of stored tensors from rank 1 on, by a glob on their names; channels lie on their first axis.

    types are those of the layers that own them. Raises InputError where there is none of a name or of a type,
    TransformError where values cannot be read.
    """
    from pytest_modelbudget.values.statistics import Moments, Ranks

    model = runnable(model)
    declared = {weight.tensor.name: weight.tensor for weight in model.graph.weights}
    numbers, rows = model.numbers(), list[LayerStatistics]()
    owners = {layer.scope: layer.type for layer in model.layers}
    types_of = {name: owners.get(name.rpartition(".")[0], "") for name in numbers}
    if absent := [each for each in types if each not in types_of.values()]:
        names = some_of(sorted({*filter(None, types_of.values())}), MOST_NAMED)
        raise InputError(f"no layer of type {absent[0]!r} stores values: known are {names}")
    for name, read in numbers.items():
        is_chosen = any(is_in_scope(name, glob) for glob in layers) and (not types or types_of[name] in types)
        values = read() if is_chosen else None
        if values is None or values.dtype.kind not in "fiu" or not values.ndim:
            continue
        known = declared.get(name)
        dtype, kind = (known.dtype.name, known.storage.kind.value) if known else (values.dtype.name, "stored")
        if take:
            take(LayerValue(name, name, kind, dtype, values))
        moments = Moments(0)
        moments.add(values)
        ranks = Ranks(moments, sigmas=sigmas, quantiles=quantiles)
        ranks.add(values)
        rows.append(LayerStatistics(name, name, kind, dtype, values.shape, ranks.statistics()))
    for glob in layers:
        if not any(is_in_scope(each.scope, glob) for each in rows):
            raise InputError(_why_no_row(glob, model, tuple(numbers)))
    return Captured(tuple(rows), 1, () if types else tuple(_left_out(model, layers, {row.name for row in rows})))


def _why_no_row(glob: str, model: Model, names: Sequence[str]) -> str:
    """Why no row of stored values has a name: there are none at all, none of that name, or only single values."""
    left_out = next(_left_out(model, (glob,), ()), "")
    if left_out or any(is_in_scope(name, glob) for name in names):
        named = left_out or f"all are skipped: {some_of(repr(name) for name in names if is_in_scope(name, glob))}"
        return f"no stored tensor called {glob!r} holds real numbers along an axis: {named}"
    if not names:
        return "the model stores no values: it has no weights; modelbudget activations tells what its layers give"
    scopes = dict.fromkeys(path for name in names for path in paths(name))
    close = get_close_matches(glob.removesuffix(".*"), scopes, 1)
    hint = f"did you mean '{close[0]}'?" if close else f"known are {some_of(map(repr, sorted(names)))}"
    return f"no stored tensor of numbers is called {glob!r}: {hint}"


def _left_out(model: Model, layers: Sequence[str], told: Collection[str]) -> Iterator[str]:
    """A note on parameters of these names that have no row: single values, complex ones, and those of functions."""
    parameters = [weight.tensor for weight in model.graph.weights if weight.kind is StorageKind.PARAMETER]
    seen = {tensor.storage for tensor in parameters if any(path in told for path in _called(tensor.name))}
    others = {tensor.storage: tensor for tensor in parameters if tensor.storage not in seen}
    names = [name for name in (each.name for each in others.values()) if any(is_in_scope(name, one) for one in layers)]
    if names:
        yield f"{several(len(names), 'parameter tensor')} skipped: {some_of(map(repr, names))}"


def _called(name: str) -> Iterator[str]:
    """A tensor's name with and without the modules that a file's reader puts before it."""
    parts = name.split(".")
    return (".".join(parts[at:]) for at in range(len(parts)))


NUMPY_HAS = frozenset(
    {"float16", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
)


@dataclass(slots=True)
class _Array:
    """One array while its rows come, and the file that they lie in."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    rows: int = 0


class SavedValues(AbstractContextManager["SavedValues"]):
    """Collects values next to a .npz file, which is complete when the context ends without an error.

    The calls of a layer follow each other along the first axis; what has no axis gets one. A type that numpy has not,
    such as bfloat16, becomes float32.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent)
        self._arrays: dict[str, _Array] = {}

    def take(self, value: LayerValue) -> None:
        """Add what one call gave. Raises TransformError where its shape is not that of the calls before."""
        dtype = value.dtype if value.dtype in NUMPY_HAS else "float32"
        values: Any = value.values.astype(dtype)
        values = values.reshape(values.shape or (1,))
        number = len(self._arrays)
        own = self._arrays.setdefault(value.name, _Array(Path(self._folder.name, str(number)), dtype, values.shape[1:]))
        if own.shape != values.shape[1:]:
            was, now = list(own.shape), list(values.shape[1:])
            raise TransformError(f"'{value.name}' gives rows of {now} after rows of {was}: no one array holds both")
        own.rows += values.shape[0]
        with own.file.open("ab") as file:
            file.write(values.tobytes())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Write the file, where nothing went wrong, and leave nothing else."""
        with self._folder:
            if error is None:
                self._write(Path(self._folder.name, "whole.npz"))

    def _write(self, unnamed: Path) -> None:
        import numpy as np

        with zipfile.ZipFile(unnamed, "w") as archive:
            for name, array in self._arrays.items():
                header = {
                    "descr": np.dtype(array.dtype).str,
                    "fortran_order": False,
                    "shape": (array.rows, *array.shape),
                }
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member, array.file.open("rb") as rows:
                    np.lib.format.write_array_header_2_0(member, header)
                    shutil.copyfileobj(rows, member)
        os.replace(unnamed, self._path)
