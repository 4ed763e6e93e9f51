"""Sources, inputs and limits as Python code gives them, read as a budget file is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pytest_modelbudget.budget.budget import AnyLimit, Limit, Place
from pytest_modelbudget.budget.grammar import AUTO
from pytest_modelbudget.budget.read_inputs import read_inputs
from pytest_modelbudget.budget.read_limits import read_limits
from pytest_modelbudget.budget.reading import Reading
from pytest_modelbudget.budget.yaml_nodes import Text, tree
from pytest_modelbudget.check.tables import Tables
from pytest_modelbudget.errors import (
    BudgetError,
    InputError,
    SourceError,
)
from pytest_modelbudget.frontends.model_source import (
    InputSpec,
    InputSpecs,
    ModelSource,
    TensorSpec,
    names_attribute,
)

NOTHING: Mapping[str, object] = MappingProxyType({})


NOTHING_BOUND: Mapping[str, int] = MappingProxyType({})


def model_source(
    source: object,
    inputs: object = None,
    *,
    using: Tables,
    base: Path,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] = NOTHING,
    dims: Mapping[str, int] = NOTHING_BOUND,
) -> ModelSource:
    """The source that Python code means; a path is relative to base.

    Raises SourceError for what no front end reads, and InputError for what is no input.
    """
    specs = input_specs(inputs, using)
    key = source_format(source, using)
    target = str(source) if isinstance(source, Path) else source
    return ModelSource(key, target, specs, args=tuple(args), kwargs=kwargs, dims=dims, base=base)


def source_format(source: object, using: Tables) -> str:
    """The key of the front end that reads a source, told by its look; raises SourceError."""
    if not isinstance(source, (str, Path)) or names_attribute(str(source)):
        return "torch"
    suffix = Path(source).suffix
    for front_end in using.front_ends.values():
        if suffix in front_end.suffixes:
            return front_end.key
    known = ", ".join(each for front in using.front_ends.values() for each in front.suffixes)
    raise SourceError(f"'{source}' is neither module:callable nor a model file ({known})")


def input_specs(inputs: object, using: Tables) -> InputSpecs:
    """Inputs as specs: one, several in order, or several by name; raises InputError."""
    if inputs is None:
        return InputSpecs()
    if isinstance(inputs, InputSpecs):
        return inputs
    if isinstance(inputs, Mapping):
        return InputSpecs(named={str(name): _spec(each, using) for name, each in inputs.items()})
    if isinstance(inputs, (list, tuple)):
        return InputSpecs(tuple(_spec(each, using) for each in inputs))
    return InputSpecs((_spec(inputs, using),))


def _spec(given: object, using: Tables) -> InputSpec:
    if isinstance(given, TensorSpec):
        return given
    if isinstance(given, str):
        return _written_spec(given, using)
    if isinstance(given, (list, tuple)):
        return tuple(_spec(each, using) for each in given)
    shape, dtype = getattr(given, "shape", None), getattr(given, "dtype", None)
    if shape is None or dtype is None:
        raise InputError(
            f"a {type(given).__name__} is no input: give 'float32 1x3x224x224', a TensorSpec or "
            "a tensor"
        )
    sizes = tuple(int(size) for size in shape)
    return TensorSpec(str(dtype).removeprefix("torch."), sizes, *_value_range(given, str(dtype)))


def _value_range(tensor: Any, dtype: str) -> tuple[int | None, int | None]:
    """The range [low, high) of an integer tensor's values; of others, and without values, none."""
    if not dtype.removeprefix("torch.").startswith(("int", "uint")):
        return None, None
    try:
        return int(tensor.min()), int(tensor.max()) + 1
    except (RuntimeError, ValueError):  # empty, or on a device that holds no values
        return None, None


def _written_spec(text: str, using: Tables) -> InputSpec:
    """A spec as budgets spell it, read by the same reader."""
    reading = Reading(Path(), Path(), using.metrics, using.front_ends, using.ops)
    specs = read_inputs(Text(text, plain=False, place=Place("inputs", 1)), reading)
    if reading.problems:
        raise InputError("; ".join(problem.message for problem in reading.problems))
    return specs.positional[0]


def written_limits(limits: Mapping[str, object], using: Tables) -> tuple[AnyLimit, ...]:
    """Limits as budgets spell them, from Python's values; read by the same reader.

    Raises BudgetError, with every problem, where they cannot be read.
    """
    if not limits:
        raise BudgetError("no limits: a gate must hold something, such as params='11.7 M'")
    # JSON is YAML; what it cannot spell is refused by the reader like any other odd word.
    node, problems = tree(json.dumps(limits, default=str, ensure_ascii=False), "limits")
    reading = Reading(Path(), Path(), using.metrics, using.front_ends, using.ops, problems=problems)
    read = read_limits(node, reading)
    if reading.problems:
        raise BudgetError("\n".join(problem.message for problem in reading.problems))
    for limit in read:
        if isinstance(limit, Limit) and (limit.grow is not None or limit.auto):
            word = "grow" if limit.grow is not None else AUTO
            raise BudgetError(f"{limit.metric}: '{word}' needs a lock file: write it in a budget")
    return read
