"""Options that several commands have: which model, on which device, how it is printed, and numbers in words.

The words that name a model on the command line are read as the same words in a budget are.
"""

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_modelbudget.budget import grammar, input_forms, source_forms, yaml_text
from pytest_modelbudget.errors import InputError
from pytest_modelbudget.formats.source import AS_WRITTEN, GROUPED, OPTIMIZERS, InputSpec, InputSpecs, ModelSource
from pytest_modelbudget.gate import from_python
from pytest_modelbudget.gate.asked_device import asked_deployment, asked_lowering
from pytest_modelbudget.lowering.lowered import Lowering
from pytest_modelbudget.metrics.measured_model import Deployment
from pytest_modelbudget.registry import Tables

CALLING = ("--args", "--kwargs")  # whose values may be calls
_NAMED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


def add_format(
    command: argparse.ArgumentParser, formats: Sequence[str] = ("table", "json"), *, what: str = "what to print"
) -> None:
    """How a command prints: the first of these where nobody says."""
    command.add_argument("--format", choices=tuple(formats), default=formats[0], help=what)


def whole_number(called: str, *, least: int = 0, most: int | None = None) -> Callable[[str], int]:
    """The reader of an option that takes a whole number, and what a message calls that."""

    def read(text: str) -> int:
        if most is not None and text.isdecimal() and (len(text) > len(str(most)) or int(text) > most):
            raise argparse.ArgumentTypeError(f"'{text[:40]}' is no {called}: {most} is the largest")
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"'{text}' is no {called}: write {least}, {least + 1}, {least + 2} ...")
        return int(text)

    return read


SEED = whole_number("seed")


def add_source(command: argparse.ArgumentParser) -> None:
    """The options that name a model and what it is run on."""
    add = command.add_argument
    add("source", metavar="SOURCE", help="module:callable, a model file, or a folder with weights")

    def several(option: str, metavar: str, text: str) -> None:
        add(option, metavar=metavar, action="append", default=[], help=text)

    several("--input", "[NAME=]SPEC", "one input, such as 'float32 1x3x224x224' or flag=false; repeat it for several")
    several("--args", "VALUE", "an argument of the callable: a plain value, or all of them as a JSON list")
    several("--kwargs", "KEY=VALUE", "a named argument of the callable, or all of them as a JSON object")
    add("--dtype", metavar="DTYPE", help="convert the model, for example to bfloat16")
    several("--dims", "NAME=SIZE", "the size of a symbolic dimension of an ONNX file or exported program")
    add("--training", choices=tuple(OPTIMIZERS), default="", help="measure a training step, too, with this optimizer")
    command.set_defaults(loads_model=True)
    add("-v", "--verbose", action="store_true", help="show the whole exception where the model's code raises one")
    add("--qdq", choices=(GROUPED, AS_WRITTEN), default=GROUPED, help="how dequantise, operation, quantise are read")


def add_deployment(command: argparse.ArgumentParser) -> None:
    """The options that name a device, and what its compiler does to a program."""
    add = command.add_argument
    text = "a shipped device (modelbudget devices lists them), or hardware.yaml::name"
    add("--device", metavar="NAME", help=text)
    text = "what its compiler does, such as dtype=int8; repeat it, or give a JSON object"
    add("--lower", metavar="KEY=VALUE", action="append", default=[], help=text)


def deployment_of(options: argparse.Namespace, registry: Tables) -> Deployment | None:
    """The device and the lowering of the command's words; None where they name neither."""
    lower = lowering_of(options, registry) if options.lower else None
    return asked_deployment(lower, options.device, registry, base=Path.cwd())


def lowering_of(options: argparse.Namespace, registry: Tables) -> Lowering:
    """What the command's words say that a device's compiler does."""
    base = Path.cwd()
    return asked_lowering(Words(grammar.Reading(base, base, registry)).mapped("--lower", options.lower), registry)


def source_of(options: argparse.Namespace, registry: Tables) -> ModelSource:
    """The model source that the command's words name; raises ModelBudgetError for other words."""
    base = Path.cwd()
    words = Words(grammar.Reading(base, base, registry))
    return ModelSource(
        from_python.source_format(options.source, registry, base),
        options.source,
        words.inputs(options.input),
        args=words.listed(options.args),
        kwargs=words.mapped("--kwargs", options.kwargs),
        dtype=words.dtype(options.dtype),
        dims=words.dims(options.dims),
        qdq="" if options.qdq == GROUPED else options.qdq,
        training=options.training,
        base=base,
    )


@dataclass(frozen=True, slots=True)
class Words:
    """The command line's values, read as the same words in a budget file are.

    Raises InputError for a value that cannot be read so.
    """

    reading: grammar.Reading

    def inputs(self, specs: Sequence[str]) -> InputSpecs:
        """Positional inputs in their order, and those spelled NAME=SPEC by name; a JSON list or object is several."""
        positional: list[InputSpec] = []
        named: dict[str, InputSpec] = {}
        for word in specs:
            name, spec = _split(word)
            node = self._node("--input", spec)
            is_all = name is None and not isinstance(node, yaml_text.Text)
            form: grammar.Form[Any] = input_forms.INPUTS if is_all else input_forms.ARGUMENT
            read = form.of(node, self.reading)
            self._refuse("--input", word)
            assert read is not None, "what is no input was refused"
            if isinstance(read, InputSpecs):
                positional.extend(read.positional)
                named.update(read.named)
            elif name is None:
                positional.append(read)
            else:
                named[name] = read
        return InputSpecs(tuple(positional), named)

    def listed(self, words: Sequence[str]) -> tuple[object, ...]:
        """Plain values; one JSON list stands for its items."""
        values = [self._value("--args", word) for word in words]
        return tuple(values[0] if len(values) == 1 and isinstance(values[0], list) else values)

    def mapped(self, option: str, words: Sequence[str]) -> dict[str, object]:
        """Plain values by name, from pairs or JSON objects."""
        values: dict[str, object] = {}
        for word in words:
            name, text = _split_size(word) if option == "--dims" else _split(word)
            value = self._value(option, text)
            if name is not None:
                values[name] = value
            elif isinstance(value, dict):
                values.update(value)
            else:
                raise InputError(f"{option} '{word}' is neither KEY=VALUE nor a JSON object")
        return values

    def dtype(self, name: str | None) -> str | None:
        return None if name is None else self._read("--dtype", name, input_forms.FLOATING_TYPE)

    def dims(self, words: Sequence[str]) -> Mapping[str, int]:
        """Sizes by symbol."""
        if not words:
            return {}
        pairs = json.dumps(self.mapped("--dims", words))
        dims = source_forms.DIMS.of(self._node("--dims", pairs), self.reading) or {}
        self._refuse("--dims", " ".join(words))
        return dims

    def _value(self, option: str, word: str) -> object:
        return self._read(option, word, source_forms.VALUE if option in CALLING else grammar.ANYTHING)

    def _read(self, option: str, word: str, form: grammar.Form[Any]) -> Any:
        """The value of one word as a form reads it."""
        value = form.of(self._node(option, word), self.reading)
        self._refuse(option, word)
        return value

    def _node(self, option: str, word: str) -> yaml_text.Node:
        """The words of one option as a YAML tree, of which JSON is a part."""
        try:
            return yaml_text.tree(word, option)
        except yaml_text.BudgetFileError as error:
            raise InputError(f"{option} '{word}': {_messages(error.problems)}") from error

    def _refuse(self, option: str, word: str) -> None:
        if self.reading.problems:
            messages = _messages(self.reading.problems)
            named = option if yaml_text.shown(word) in messages else f"{option} '{word}'"
            raise InputError(f"{named}: {messages}")


def _split(word: str) -> tuple[str | None, str]:
    """(name, value) of NAME=VALUE; (None, word) of anything else."""
    match = _NAMED.fullmatch(word)
    return (match[1], match[2]) if match else (None, word)


def _split_size(word: str) -> tuple[str | None, str]:
    """(symbol, size) of SYMBOL=SIZE: a symbol need not be a name, as x.0 and 2*n+1 are none."""
    symbol, equals, size = word.rpartition("=")
    return (symbol, size) if equals and not symbol.startswith("{") else (None, word)


def _messages(problems: Sequence[yaml_text.Problem]) -> str:
    return "; ".join(problem.message for problem in problems)
