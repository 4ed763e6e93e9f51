"""The words that name a model on the command line, read as the same words in a budget are."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from pytest_modelbudget.budget.grammar import Reading, plain_value
from pytest_modelbudget.budget.source_forms import DIMS, FLOATING_TYPE, INPUTS
from pytest_modelbudget.budget.yaml_text import BudgetFileError, Node, Problem, tree
from pytest_modelbudget.errors import InputError
from pytest_modelbudget.formats.source import InputSpec, InputSpecs, ModelSource
from pytest_modelbudget.gate.from_python import source_format
from pytest_modelbudget.gate.measuring import CostedModel, costed_model
from pytest_modelbudget.registry import Tables

_NAMED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


def add_source(command: argparse.ArgumentParser) -> None:
    """The options that name a model and what it is run on."""
    add = command.add_argument
    add("source", metavar="SOURCE", help="module:callable, or a TorchScript, .pt2 or .onnx file")
    add(
        "--input",
        metavar="[NAME=]SPEC",
        action="append",
        default=[],
        help="one input, such as 'float32 1x3x224x224'; repeat it for several",
    )
    add(
        "--args",
        metavar="VALUE",
        action="append",
        default=[],
        help="an argument of the callable: a plain value, or all of them as a JSON list",
    )
    add(
        "--kwargs",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a named argument of the callable, or all of them as a JSON object",
    )
    add("--dtype", metavar="DTYPE", help="convert the model, for example to bfloat16")
    add(
        "--dims",
        metavar="NAME=SIZE",
        action="append",
        default=[],
        help="the size of a symbolic dimension of an exported program",
    )


def shown_model(source: ModelSource, registry: Tables) -> CostedModel:
    """The model behind a source, fully measured; what its code prints goes to standard error."""
    with redirect_stdout(sys.stderr):
        model = costed_model(source, registry, root=source.base)
    for failure in model.failures.values():
        raise failure
    return model


def source_of(options: argparse.Namespace, registry: Tables) -> ModelSource:
    """The model source that the command's words name; raises ModelBudgetError for other words."""
    base = Path.cwd()
    words = Words(Reading(base, base, registry))
    key = source_format(options.source, registry)
    inputs = words.inputs(options.input)
    if not inputs and not registry.formats[key].brings_inputs:
        raise InputError(f"{options.source} needs inputs: --input 'float32 1x3x224x224'")
    return ModelSource(
        key,
        options.source,
        inputs,
        args=words.listed(options.args),
        kwargs=words.mapped("--kwargs", options.kwargs),
        dtype=words.dtype(options.dtype),
        dims=words.dims(options.dims),
        base=base,
    )


@dataclass(frozen=True, slots=True)
class Words:
    """The command line's values, read as the same words in a budget file are.

    Raises InputError for a value that cannot be read so.
    """

    reading: Reading

    def inputs(self, specs: Sequence[str]) -> InputSpecs:
        """Positional inputs in their order, and those spelled NAME=SPEC by name."""
        positional: list[InputSpec] = []
        named: dict[str, InputSpec] = {}
        for word in specs:
            name, spec = _split(word)
            read = INPUTS.of(self._node("--input", spec), self.reading) or InputSpecs()
            self._refuse("--input", word)
            if read.named or len(read.positional) != 1:
                raise InputError(f"--input '{word}' is not one input: repeat --input for several")
            if name is None:
                positional.append(read.positional[0])
            else:
                named[name] = read.positional[0]
        return InputSpecs(tuple(positional), named)

    def listed(self, words: Sequence[str]) -> tuple[object, ...]:
        """Plain values; one JSON list stands for its items."""
        values = [self._value("--args", word) for word in words]
        if len(values) == 1 and isinstance(values[0], list):
            return tuple(values[0])
        return tuple(values)

    def mapped(self, option: str, words: Sequence[str]) -> dict[str, object]:
        """Plain values by name, from pairs or JSON objects."""
        values: dict[str, object] = {}
        for word in words:
            name, text = _split(word)
            value = self._value(option, text)
            if name is not None:
                values[name] = value
            elif isinstance(value, dict):
                values.update(value)
            else:
                raise InputError(f"{option} '{word}' is neither KEY=VALUE nor a JSON object")
        return values

    def dtype(self, name: str | None) -> str | None:
        """The name of a floating-point type."""
        if name is None:
            return None
        dtype = FLOATING_TYPE.of(self._node("--dtype", name), self.reading)
        self._refuse("--dtype", name)
        return dtype

    def dims(self, words: Sequence[str]) -> Mapping[str, int]:
        """Sizes by symbol."""
        if not words:
            return {}
        pairs = json.dumps(self.mapped("--dims", words))
        dims = DIMS.of(self._node("--dims", pairs), self.reading) or {}
        self._refuse("--dims", " ".join(words))
        return dims

    def _value(self, option: str, word: str) -> object:
        value = plain_value(self._node(option, word), self.reading)
        self._refuse(option, word)
        return value

    def _node(self, option: str, word: str) -> Node:
        """The words of one option as a YAML tree, of which JSON is a part."""
        try:
            node, problems = tree(word, option)
        except BudgetFileError as error:
            raise InputError(f"{option} '{word}': {_messages(error.problems)}") from error
        self.reading.problems.extend(problems)
        return node

    def _refuse(self, option: str, word: str) -> None:
        if self.reading.problems:
            raise InputError(f"{option} '{word}': {_messages(self.reading.problems)}")


def _split(word: str) -> tuple[str | None, str]:
    """(name, value) of NAME=VALUE; (None, word) of anything else."""
    match = _NAMED.fullmatch(word)
    return (match[1], match[2]) if match else (None, word)


def _messages(problems: Sequence[Problem]) -> str:
    return "; ".join(problem.message for problem in problems)
