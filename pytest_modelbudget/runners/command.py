"""``runner: "python run_on_board.py {model} {inputs} {outputs}"``: a command that runs a model, as the second side.

It is started once for each call of the claim, with an ``.npz`` of inputs, and writes one of outputs. A map gives each
array's name, layout and type on that side.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import parent_process
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np

from pytest_modelbudget.equivalence.changed import Changed
from pytest_modelbudget.errors import TransformError, user_code
from pytest_modelbudget.formats import model as models
from pytest_modelbudget.formats.spellings import suggestion
from pytest_modelbudget.transforms.transform import Settings
from pytest_modelbudget.units import some_of

LINES, LETTERS = 5, 1_000  # of stderr that a failure shows at most
LAYOUTS = ("NCHW", "NHWC")  # of a runner; this side has the first


def apply(model: models.Model, settings: Settings) -> Changed:
    """The model, and a command that runs what was made of it."""
    said, first = cast("Mapping[str, Any]", settings["runner"]), models.must_run(model)
    file = cast("tuple[str, Path]", settings.get("model") or ("", ""))[1]
    folder = Path(str(settings.get("folder", ".")))
    if str(file) and not Path(file).exists():
        raise TransformError(f"runner: {said['command']}: {file} does not exist: build it, or correct 'model'")
    maps = ({name: mapped(name, each) for name, each in said[key].items()} for key in ("inputs", "outputs", "layers"))
    second = Ran(first, Command(said["command"], folder, str(file), said["timeout"]), *maps)
    return Changed(second, upcasts=True, follows=False, stacks=False)


@dataclass(frozen=True, slots=True)
class Mapped:
    """An array on the side of a runner: its name, its layout ("NHWC" where it is not this side's), and its type."""

    name: str
    layout: str = LAYOUTS[0]
    dtype: str = ""

    def given(self, values: models.Values) -> models.Values:
        """An array of this side, as the runner takes it."""
        turned = np.moveaxis(values, 1, -1) if self.layout == LAYOUTS[1] and values.ndim > 1 else values
        return np.ascontiguousarray(turned, self.dtype or None)

    def taken(self, values: models.Values, dtype: str = "") -> models.Values:
        """An array of the runner, as this side has it: in its type, where the map says what the runner's is.

        Raises TransformError for another type than the map says.
        """
        turned = np.moveaxis(values, -1, 1) if self.layout == LAYOUTS[1] and values.ndim > 1 else values
        if self.dtype and values.dtype != self.dtype:
            words = f"runner: '{self.name}' is {values.dtype.name} there, and the budget says {self.dtype}"
            raise TransformError(f"{words}: correct its dtype")
        return turned.astype(dtype) if self.dtype and dtype else turned


def mapped(name: str, said: object) -> Mapped:
    """The map of one array in a budget: its name, or a mapping. Raises TransformError for anything else."""
    known: dict[str, Any] = {"name": name, **(said if isinstance(said, Mapping) else {"name": said})}
    if known.keys() - {"name", "layout", "dtype"} or known.get("layout", LAYOUTS[0]) not in LAYOUTS:
        raise TransformError(f"runner: {name}: {said} is no array: write {{name: x, layout: NHWC, dtype: float32}}")
    with user_code(f"runner: {name}: reading its dtype", TransformError):
        np.dtype(str(known.get("dtype", "f4")))
    return Mapped(**{key: str(value) for key, value in known.items()})


@dataclass(frozen=True, slots=True)
class Command:
    """A command as a budget has it, the folder that it runs in, the model's file, and its limit in seconds."""

    text: str
    folder: Path
    model: str
    timeout: int

    def outputs(self, inputs: models.Arrays) -> models.Arrays:
        """The arrays that the command writes for these. Raises TransformError for one that fails, or writes none."""
        with TemporaryDirectory() as folder:
            places = {"{model}": self.model, "{inputs}": f"{folder}/inputs.npz", "{outputs}": f"{folder}/outputs.npz"}
            np.savez(places["{inputs}"], **cast("Any", inputs))
            self._run([_filled(word, places) for word in self._words()], Path(folder, "stderr"))
            try:
                with np.load(places["{outputs}"], allow_pickle=False) as loaded:
                    return {name: loaded[name] for name in loaded.files}
            except Exception as error:  # numpy and zipfile raise whatever a damaged file makes them
                words = "nothing" if isinstance(error, FileNotFoundError) else "no .npz of arrays"
                raise TransformError(f"runner: {self.text}: it wrote {words} to {{outputs}}: write one") from error

    def _words(self) -> list[str]:
        """The command's words. Raises TransformError for one that has no words, or a quote that does not end."""
        try:
            words = shlex.split(self.text)
        except ValueError as error:
            raise TransformError(f"runner: {self.text}: a quotation mark is missing: correct the command") from error
        if not words:
            raise TransformError("runner: the command is empty: python run.py {model} {inputs} {outputs}")
        return words

    def _run(self, words: list[str], stderr: Path) -> None:
        """Run it in the group of the model's own process, which ends with that, or else in one of its own."""
        program = sys.executable if words[0] in ("python", "python3") else words[0]
        with stderr.open("wb") as file:
            try:
                process = subprocess.Popen(
                    [program, *words[1:]], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                    start_new_session=parent_process() is None,
                )  # fmt: skip
            except OSError as error:
                why = f"{error.strerror}: {words[0]}"
                raise TransformError(f"runner: {self.text}: it does not start ({why}): correct the command") from error
            try:
                code: int | None = process.wait(self.timeout)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(process)
        if code:
            lines = stderr.read_text("utf-8", "replace").strip().splitlines()
            said = " / ".join([line.strip() for line in lines if line.strip(" ~^")][-LINES:])[-LETTERS:]
            raise TransformError(f"runner: {self.text}: exit code {code}: {said or 'stderr is empty'}: run it by hand")
        if code is None:
            raise TransformError(f"runner: {self.text}: no answer within {self.timeout} s: raise timeout, or mend it")


def _filled(word: str, places: Mapping[str, str]) -> str:
    for place, text in places.items():
        word = word.replace(place, text)
    return word


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, and what it has started."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):  # all of it has ended
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


class Ran(models.RunnableModel):
    """A model that a command runs: on the inputs of the first one, with outputs under its names."""

    def __init__(self, first: models.RunnableModel, command: Command, *maps: Mapping[str, Mapped]) -> None:
        self._first, self._command = first, command
        self._inputs, self._outputs, self._layers = maps
        self._expected: tuple[models.Output, ...] = ()

    @property
    def measured(self) -> models.LoadedModel:
        return self._first.measured

    @property
    def inputs(self) -> models.DrawnInputs:
        return self._first.inputs

    @property
    def dtype(self) -> str:
        return self._first.dtype

    def run(self, inputs: models.Arrays, watch: models.Watch = models.UNWATCHED) -> models.Run:
        if watch.layers is not None and not self._layers:
            raise TransformError("the runner maps no layers: {runner: {command: ..., layers: {module.path: name}}}")
        given = ((self._inputs.get(name, Mapped(name)), values) for name, values in inputs.items())
        arrays = self._command.outputs({mapped.name: mapped.given(values) for mapped, values in given})
        layers = {name: each.taken(self._written("layers", name, each, arrays)) for name, each in self._layers.items()}
        if not self._expected:
            self._expected = self._mapped(inputs, layers).outputs
        outputs = tuple(self._output(each, arrays) for each in self._expected)
        seen = tuple(models.LayerOutput(name, name, values) for name, values in layers.items())
        return models.Run(outputs, layers=seen)

    def _mapped(self, inputs: models.Arrays, layers: models.Arrays) -> models.Run:
        """A run of the first model. Raises TransformError where maps name what it has not, or has in another shape."""
        run = self._first.run(inputs, models.Watch(layers=()) if layers else models.UNWATCHED)
        shapes = {each.name: each.values.shape for each in reversed(run.layers)}
        outputs = [each.name for each in run.outputs]
        for key, names, known in (
            ("inputs", self._inputs, inputs), ("outputs", self._outputs, outputs), ("layers", layers, shapes),
        ):  # fmt: skip
            if odd := names.keys() - set(known):
                raise TransformError(f"runner: {key}: the model has no '{min(odd)}': {suggestion(min(odd), known)}")
        for name, values in layers.items():
            if values.shape != shapes[name]:
                words = f"runner: layers: '{name}' is {[*shapes[name]]} here, and {[*values.shape]} there"
                raise TransformError(f"{words}: correct its name or its layout")
        return run

    def _written(self, key: str, name: str, mapped: Mapped, arrays: models.Arrays) -> models.Values:
        """An array that the runner wrote. Raises TransformError where it wrote none."""
        if mapped.name in arrays:
            return arrays[mapped.name]
        words = f"runner: {self._command.text}: it wrote {some_of(arrays) or 'nothing'}, and no '{mapped.name}'"
        raise TransformError(f"{words}: write it, or map it: {key}: {{'{name}': name}}")

    def _output(self, expected: models.Output, arrays: models.Arrays) -> models.Output:
        """One output by its name, or the only one."""
        mapped = self._outputs.get(expected.name, Mapped(expected.name))
        if len(arrays) == len(self._expected) == 1 and expected.name not in self._outputs:
            mapped = Mapped(*arrays)
        values = mapped.taken(self._written("outputs", expected.name, mapped, arrays), expected.dtype)
        return models.Output(expected.name, values.dtype.name, values)
