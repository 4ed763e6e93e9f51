"""``golden: net.golden.npz``: outputs that were written down once, as the first side of a claim.

A file holds what a model gave for each call of the claim, as it is stored and in float64, under the digest of the
inputs; digests of the stored tensors; the claim's runs, versions, and a digest of the file itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import numpy as np

from pytest_modelbudget.equivalence.changed import Changed
from pytest_modelbudget.equivalence.claim import Claim, Kind, Outcome
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.equivalence.runs import Pair, original_runs
from pytest_modelbudget.errors import TransformError, user_code
from pytest_modelbudget.formats import model as models
from pytest_modelbudget.transforms.artefact import whole
from pytest_modelbudget.transforms.transform import CREATES, IS_WRITTEN, Settings
from pytest_modelbudget.units import some_of

VERSION = 1
META, DIGEST = "golden", "digest"  # arrays of a file: all but outputs, as JSON, and the digest of the others
MOST_BYTES = 2**28  # of outputs
PACKAGES = {"torch": "torch", "onnx": "onnxruntime"}  # by engine: what computes the outputs
CREATE = "--model-budget-update=create"
ANEW = f"delete it, and write it again with {CREATE}"


def apply(model: models.Model, settings: Settings) -> Changed:
    """The model itself, compared with what a file says that it gave."""
    (name, path), second = cast("tuple[str, Path]", settings["golden"]), models.must_run(model)
    golden = Golden(name, path, second, creates=bool(settings.get(CREATES)))
    return Changed(second, upcasts=True, follows=False, held_to=golden.verify)


@dataclass(frozen=True, eq=False)
class Golden:
    """A file of outputs, as a budget names it and where it is, and the model that is compared with it."""

    name: str
    path: Path
    model: models.RunnableModel
    creates: bool = False

    def verify(self, claim: Claim, judge: Callable[[Claim, models.RunnableModel], Equivalence]) -> Equivalence:
        """The judgement on the model next to what the file has; a missing one is written where that is asked for.

        Raises TransformError for a file that is missing, damaged, or of other runs.
        """
        if not self.path.is_file():
            if not self.creates:
                raise TransformError(f"golden: there is no {self.name}: {CREATE} writes it")
            return self._written(claim, judge)
        record = read(self.path, self.name)
        for key, now in _runs(self.model, claim).items():
            if (was := record.said["runs"].get(key, "")) != now:
                words = f"golden: {self.name} was written with {key} {was or 'none'}, and not {now or 'none'}"
                raise TransformError(f"{words}: restore them, or {ANEW}")
        return self._beside(record, judge(claim, Recorded(self.model.inputs, record)))

    def _written(self, claim: Claim, judge: Callable[[Claim, models.RunnableModel], Equivalence]) -> Equivalence:
        """The judgement next to what the model gave just now, which is written where it gives that again."""
        record = recorded(self.model, claim)
        result = judge(claim, Recorded(self.model.inputs, record))
        if result.outcome is not Outcome.WITHIN:
            return replace(result, reason=f"golden: {self.name} is not written: {result.reason}")
        write(record, self.path, self.name)
        return replace(result, notes=(*result.notes, f"golden: {self.name}{IS_WRITTEN}"))

    def _beside(self, record: Record, result: Equivalence) -> Equivalence:
        """The judgement, with versions and stored tensors that are others.

        A tensor that no output shows leaves an exact claim unknown: nobody can say whether inputs may reach it.
        """
        stored, mine, now = record.said["stored"], digests(self.model), _versions(self.model)
        notes = [f"golden: {self.name} was written with {package} {was}, and this is {now.get(package) or 'none'}"
                 for package, was in record.said["versions"].items() if now.get(package) != was]  # fmt: skip
        others = [name for name in stored if stored[name] != mine.get(name)]
        if others:
            named = some_of(map(repr, others), 2)
            notes.append(f"golden: {len(others):,} of {len(stored):,} stored tensors changed: {named}")
            notes.append(f"golden: to accept that, delete {self.name}, and write it again with {CREATE}")
        result = replace(result, notes=(*result.notes, *notes))
        unseen = some_of((repr(name) for name in others if name in mine), 2)
        if result.outcome is not Outcome.WITHIN or not unseen or result.kind is not Kind.EXACT_ALGEBRA:
            return result
        words = f"stored tensors that no output shows differ: {unseen}: give inputs that reach them, or {ANEW}"
        return replace(result, outcome=Outcome.UNKNOWN, reason=words)


# What a file says besides outputs.


def _runs(model: models.RunnableModel, claim: Claim) -> dict[str, str]:
    """On what a claim is run, as words by what they are of."""
    return {
        "inputs": ", ".join(f"{name} {spec.spelled}" for name, spec in model.inputs.specs.items()),
        "seeds": ", ".join(map(str, claim.seeds)),
        "families": ", ".join(claim.run_families),
        "rows": str(claim.rows or ""),
        "batch sizes": ", ".join(map(str, claim.batches)),
        "given inputs": claim.given.text if claim.given else "",
    }


def _versions(model: models.RunnableModel) -> dict[str, str]:
    """Versions of what draws and computes, by package."""
    found = {}
    for package in filter(None, ("numpy", PACKAGES.get(model.engine))):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def digests(model: models.RunnableModel) -> dict[str, str]:
    """The SHA-256 of every stored tensor, its type and its shape, by name."""
    return {name: _digest({"": read()}) for name, read in model.tables().items()}


def _digest(arrays: models.Arrays) -> str:
    """The SHA-256 of arrays, with their names, types and shapes, by name."""
    found = sha256()
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype} {array.shape};".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


@dataclass(frozen=True, eq=False)
class Record:
    """What a file holds: said is all but outputs, arrays those of each call, by its key and the output's position."""

    said: Mapping[str, Any]
    arrays: dict[str, models.Values] = field(default_factory=dict)

    def add(self, key: str, run: models.Run) -> None:
        """Write down what a call gave. Raises TransformError for what is no number, or too much."""
        outputs = [[output.name, output.dtype] for output in run.outputs]
        self.said["calls"][key] = {"structure": run.structure, "outputs": outputs}
        for at, output in enumerate(run.outputs):
            values = np.asarray(output.values)
            if values.dtype.kind not in "biufcV":
                raise TransformError(f"golden: output '{output.name}' is no array of numbers")
            is_plain = values.dtype.isbuiltin == 1  # else a smaller type of a package, exact in float32
            self.arrays[f"{key}-{at}"] = values if is_plain else values.astype(np.float32)
        if sum(array.nbytes for array in self.arrays.values()) > MOST_BYTES:
            words = f"golden: outputs take more than {MOST_BYTES >> 20} MiB"
            raise TransformError(f"{words}: run fewer, such as families: [normal], seeds: [0]")

    def run(self, key: str) -> models.Run:
        """What a call gave. Raises TransformError where none was on these inputs."""
        call = self.said["calls"].get(key)
        if call is None:
            raise TransformError(f"golden: the inputs have other values than those that it was written for: {ANEW}")
        named = enumerate(call["outputs"])
        outputs = (models.Output(name, dtype, self.arrays[f"{key}-{at}"]) for at, (name, dtype) in named)
        return models.Run(tuple(outputs), call["structure"])


class Recorded(models.RunnableModel):
    """A record as a model, which runs on the inputs of its calls alone; those of a live one are added to it."""

    def __init__(
        self, inputs: models.DrawnInputs, record: Record, live: models.RunnableModel | None = None, prefix: str = ""
    ) -> None:
        self._inputs, self._record, self._live, self._prefix = inputs, record, live, prefix

    @property
    def measured(self) -> models.LoadedModel:
        raise TransformError("golden: a file of outputs is not measured")

    @property
    def inputs(self) -> models.DrawnInputs:
        return replace(self._inputs, stacks=False)

    @property
    def dtype(self) -> str:
        return str(self._record.said["dtype"])

    def in_float64(self) -> Recorded:
        return Recorded(self._inputs, self._record, self._live and self._live.in_float64(), "float64 ")

    def run(self, inputs: models.Arrays, watch: models.Watch = models.UNWATCHED) -> models.Run:
        key = self._prefix + _digest(inputs)[:32]
        if self._live is not None:
            self._record.add(key, self._live.run(inputs))
        return self._record.run(key)


def recorded(model: models.RunnableModel, claim: Claim) -> Record:
    """What a model gives in the runs of a claim."""
    said = {"version": VERSION, "runs": _runs(model, claim), "dtype": model.dtype, "versions": _versions(model),
            "stored": digests(model), "calls": {}}  # fmt: skip
    record, same = Record(said), Changed(model, upcasts=True, follows=False)
    original_runs(claim, Pair(Recorded(model.inputs, record, model), same, lambda _: same))
    return record


def write(record: Record, path: Path, name: str) -> None:
    """Write a record whole, with its own digest."""
    arrays = {**record.arrays, META: np.array(json.dumps(record.said, sort_keys=True))}
    sealed: Any = {**arrays, DIGEST: np.array(_digest(arrays))}
    with user_code(f"writing {name}", TransformError), whole(path) as file:
        np.savez_compressed(file, **sealed)


def read(path: Path, name: str) -> Record:
    """The record in a file. Raises TransformError for one that is none, of another version, or that was changed."""
    try:
        with np.load(path, allow_pickle=False) as loaded:
            arrays = {key: loaded[key] for key in loaded.files}
        digest, said = str(arrays.pop(DIGEST)), json.loads(str(arrays[META]))
        known = said["version"]
    except Exception as error:  # numpy and zipfile raise whatever a damaged file makes them
        raise TransformError(
            f"golden: {name} holds no golden outputs, or is damaged: fetch it (git lfs pull), or {ANEW}"
        ) from error
    if known != VERSION:
        raise TransformError(f"golden: {name} is of version {known}, and version {VERSION} is read: {ANEW}")
    if digest != _digest(arrays):
        raise TransformError(f"golden: {name} was changed after it was written: restore it, or {ANEW}")
    return Record(said, arrays)
