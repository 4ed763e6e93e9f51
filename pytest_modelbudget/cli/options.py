"""Options that several commands have: which model, on which device, how it is printed, and numbers in words.

The words that name a model on the command line are read as the same words in a budget are.
"""

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytest_modelbudget.budget import grammar, input_forms, source_forms, yaml_text
from pytest_modelbudget.budget.grammar import Form
from pytest_modelbudget.errors import InputError
from pytest_modelbudget.formats.source import AS_WRITTEN, GROUPED, OPTIMIZERS, InputSpec, InputSpecs, ModelSource
from pytest_modelbudget.gate import from_python
from pytest_modelbudget.gate.asked_device import asked_deployment, asked_lowering
from pytest_modelbudget.lowering.lowered import Lowering
from pytest_modelbudget.metrics.measured_model import Deployment
from pytest_modelbudget.registry import Tables

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
    return asked_lowering(_mapped("--lower", options.lower, registry), registry)


def source_of(options: argparse.Namespace, registry: Tables) -> ModelSource:
    """The model source that the command's words name; raises ModelBudgetError for other words."""
    base, dtype = Path.cwd(), options.dtype
    args = [_read("--args", word, source_forms.VALUE, registry) for word in options.args]
    dims = _mapped("--dims", options.dims, registry)
    return ModelSource(
        from_python.source_format(options.source, registry, base),
        options.source,
        _inputs(options.input, registry),
        args=tuple(args[0] if len(args) == 1 and isinstance(args[0], list) else args),  # a JSON list is all of them
        kwargs=_mapped("--kwargs", options.kwargs, registry),
        dtype=None if dtype is None else _read("--dtype", dtype, input_forms.FLOATING_TYPE, registry),
        dims=_read("--dims", json.dumps(dims), source_forms.DIMS, registry, said=" ".join(options.dims))
        if dims
        else {},
        qdq="" if options.qdq == GROUPED else options.qdq,
        training=options.training,
        base=base,
    )


def _inputs(specs: Sequence[str], registry: Tables) -> InputSpecs:
    """Positional inputs in their order, and those spelled NAME=SPEC by name; a JSON list or object is several."""
    positional: list[InputSpec] = []
    named: dict[str, InputSpec] = {}
    for word in specs:
        name, spec = _split(word)
        several = input_forms.INPUTS if name is None else None
        read = _read("--input", spec, input_forms.ARGUMENT, registry, several=several)
        if isinstance(read, InputSpecs):
            positional.extend(read.positional)
            named.update(read.named)
        elif name is None:
            positional.append(read)
        else:
            named[name] = read
    return InputSpecs(tuple(positional), named)


def _mapped(option: str, words: Sequence[str], registry: Tables) -> dict[str, object]:
    """Plain values by name, from pairs or JSON objects; those of a callable may be calls."""
    values: dict[str, object] = {}
    for word in words:
        name, text = _split_size(word) if option == "--dims" else _split(word)
        value = _read(option, text, source_forms.VALUE if option == "--kwargs" else grammar.ANYTHING, registry)
        if name is not None:
            values[name] = value
        elif isinstance(value, dict):
            values.update(value)
        else:
            raise InputError(f"{option} '{word}' is neither KEY=VALUE nor a JSON object")
    return values


def _read(
    option: str, word: str, form: Form[Any], registry: Tables, *, several: Form[Any] | None = None, said: str = ""
) -> Any:
    """The value of one word as a form reads it, of a list or a mapping another one; JSON is a part of YAML.

    Raises InputError where the same word in a budget would be refused.
    """
    reading = grammar.Reading(Path.cwd(), Path.cwd(), registry)
    try:
        node = yaml_text.tree(word, option)
        value = (form if several is None or isinstance(node, yaml_text.Text) else several).of(node, reading)
    except yaml_text.BudgetFileError as error:
        reading.problems.extend(error.problems)
    if not reading.problems:
        return value
    messages = "; ".join(problem.message for problem in reading.problems)
    named = option if yaml_text.shown(word) in messages else f"{option} '{said or word}'"
    raise InputError(f"{named}: {messages}")


def _split(word: str) -> tuple[str | None, str]:
    """(name, value) of NAME=VALUE; (None, word) of anything else."""
    match = _NAMED.fullmatch(word)
    return (match[1], match[2]) if match else (None, word)


def _split_size(word: str) -> tuple[str | None, str]:
    """(symbol, size) of SYMBOL=SIZE: a symbol need not be a name, as x.0 and 2*n+1 are none."""
    symbol, equals, size = word.rpartition("=")
    return (symbol, size) if equals and not symbol.startswith("{") else (None, word)
