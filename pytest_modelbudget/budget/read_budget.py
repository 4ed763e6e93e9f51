"""A budget file read into plain data; every problem of the file is reported at once, in place."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pytest_modelbudget.budget.budget import (
    AnyLimit,
    Budget,
    Loosen,
    ModelBudget,
    Place,
    TransformCheck,
)
from pytest_modelbudget.budget.grammar import (
    DEFAULTS,
    FILE,
    LARGEST,
    MARKER,
    VARIANT,
    VERSION,
    model_grammar,
    taken_names,
)
from pytest_modelbudget.budget.read_limits import read_limits, read_op_names, read_scopes
from pytest_modelbudget.budget.read_source import (
    Defaults,
    declared_places,
    read_dims,
    read_inputs,
    read_model_dtype,
    read_source,
    refuse_dtype_of_a_file,
)
from pytest_modelbudget.budget.read_transforms import read_transform
from pytest_modelbudget.budget.reading import Entry, Reading, scalar
from pytest_modelbudget.budget.yaml_text import (
    Block,
    BudgetFileError,
    Node,
    Problem,
    Refused,
    Text,
    shown,
    tree,
)
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.formats.table import FrontEnd
from pytest_modelbudget.metrics.measurement import Metric
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.transforms.table import transform_table
from pytest_modelbudget.transforms.transform import Transform

HELD = {"limits", "scopes", "transforms"}
_MARKED = re.compile(rf"^(?:\ufeff|\{{\s*)*([\"']?){MARKER}\1\s*:(?:\s|$)", re.MULTILINE)
_MISSPELT = re.compile(
    r"^\ufeff?[\"']?(model[-_ ]?budgets?)[\"']?\s*:", re.MULTILINE | re.IGNORECASE
)
_FORBIDDEN = re.compile(r"::|[\[@\r\n\v\f\x1c-\x1e\x85\u2028\u2029]")


def is_budget(content: str | bytes) -> bool:
    """Whether a YAML text carries the marker key at the start of a line; never raises.

    Broken YAML with the marker is a broken budget; without it, it is none of our business.
    """
    text = content.decode("utf-8", "replace") if isinstance(content, bytes) else content
    return _MARKED.search(text) is not None


def misspelt_marker(content: bytes) -> str | None:
    """The key that must be meant for the marker ("model-budget"), in a text without the marker."""
    if is_budget(content):
        return None
    found = _MISSPELT.search(content.decode("utf-8", "replace"))
    return found[1] if found else None


def read_budget(
    path: Path,
    *,
    root: Path,
    metrics: Mapping[str, Metric],
    front_ends: Mapping[str, FrontEnd],
    ops: OpTable,
    transforms: Mapping[str, Transform] | None = None,
    text: str | None = None,
) -> Budget:
    """The budget of one file; places name it relative to ``root``, the project's root.

    text is what the file is to hold in place of what it does hold, such as another revision's.
    Raises BudgetFileError with every problem of the file. Opens no other file.
    """
    where, top = Path(os.path.abspath(path)), Path(os.path.abspath(root))
    inside = where.is_relative_to(top)
    file = where.relative_to(top).as_posix() if inside else where.as_posix()
    node, problems = tree(budget_text(where, file) if text is None else text, file)
    reading = Reading(
        where.parent,
        top if inside else where.parent,
        metrics,
        front_ends,
        ops,
        transform_table() if transforms is None else transforms,
        problems,
    )
    _must_be_our_version(node, reading)
    given = reading.fields(node, FILE)
    models = _models(given, reading)
    loosen = _loosen(given, reading)
    if reading.problems:
        raise BudgetFileError(reading.problems)
    return Budget(file, models, loosen)


def budget_text(path: Path, file: str) -> str:
    """What a budget file holds, without a byte order mark; file names it in problems.

    Raises BudgetFileError where it cannot be read, is no UTF-8, or too large.
    """
    try:
        size = path.stat().st_size
        if size > LARGEST:
            message = f"the file has {size:,} bytes, a budget at most {LARGEST:,}: split it"
            raise BudgetFileError([Problem(Place(file, 1), message)])
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        message = f"the file cannot be read: {error.strerror or error}"
        raise BudgetFileError([Problem(Place(file, 1), message)]) from error
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        place = Place(file, before.count(b"\n") + 1, error.start - before.rfind(b"\n"))
        raise BudgetFileError([Problem(place, "not UTF-8: save the file as UTF-8")]) from error


def _loosen(given: Mapping[str, Entry], reading: Reading) -> Loosen:
    """What the file says of changes that make a limit easier to keep."""
    if "loosen" not in given:
        return Loosen.WARN
    words = [each.value for each in Loosen]
    text = reading.text(given["loosen"].value, f"{' or '.join(words)}")
    if text is not None and text.text not in words:
        message = f"'loosen' is {' or '.join(words)}, not {shown(text.text)}"
        reading.refuse(text.place, message)
    return Loosen(text.text) if text is not None and text.text in words else Loosen.WARN


def _models(given: Mapping[str, Entry], reading: Reading) -> tuple[ModelBudget, ...]:
    """Every model of the file, each followed by its variants."""
    defaults = _defaults(given["defaults"].value, reading) if "defaults" in given else Defaults()
    if "models" not in given:
        return ()
    budgets: list[ModelBudget] = []
    for entry in reading.named(given["models"].value, "models: a mapping of names to models"):
        _must_be_a_name(entry.key, "model", reading)
        budgets.extend(_model(entry, defaults, reading))
    return tuple(budgets)


def _must_be_our_version(node: Node, reading: Reading) -> None:
    """Refuse at once a file of another version: its other keys are not ours to judge."""
    version = next((value for key, value in _entries(node) if key.text == MARKER), None)
    if not isinstance(version, Text):
        if version is not None and not isinstance(version, Refused):
            reading.refuse(version.place, f"expected {MARKER}: {VERSION}")
        return
    number = scalar(version.text) if version.plain and len(version.text) < 10 else None
    if type(number) is int and number > VERSION:
        message = (
            f"{MARKER}: {number} is read by a newer version of pytest-modelbudget; this one reads "
            f"{MARKER}: {VERSION}: pip install --upgrade pytest-modelbudget"
        )
        raise BudgetFileError([Problem(version.place, message)])
    if type(number) is not int or number != VERSION:
        message = f"{MARKER} must be {VERSION}, not {shown(version.text)}"
        reading.refuse(version.place, message)


def _entries(node: Node) -> tuple[tuple[Text, Node], ...]:
    return node.entries if isinstance(node, Block) else ()


def _defaults(node: Node, reading: Reading) -> Defaults:
    known = len(reading.problems)
    given = reading.fields(node, DEFAULTS)
    return Defaults(
        read_inputs(given["inputs"].value, reading) if "inputs" in given else None,
        read_model_dtype(given["dtype"].value, reading) if "dtype" in given else None,
        is_broken=len(reading.problems) > known or isinstance(node, Refused),
        places={key: entry.key.place for key, entry in given.items()},
    )


def _must_be_a_name(name: Text, what: str, reading: Reading) -> None:
    """Refuse names that a node id could not hold."""
    text = name.text
    if not text.strip() or text != text.strip() or not text.isprintable():
        message = f"{shown(text)} is no name of a {what}: write visible characters on one line"
        reading.refuse(name.place, message)
    elif _FORBIDDEN.search(text):
        message = f"the {what} name {shown(text)} may not hold '::', '[', '@' or line breaks"
        reading.refuse(name.place, message)


def _model(entry: Entry, defaults: Defaults, reading: Reading) -> list[ModelBudget]:
    """One model's budget, and one for each of its variants."""
    given = reading.fields(entry.value, model_grammar(reading.front_ends))
    if not isinstance(entry.value, Block):
        return []
    source = read_source(entry.key, given, defaults, reading)
    limits = _limits(given, reading)
    if not {*HELD, "variants"} & given.keys():
        message = f"the model {shown(entry.key.text)} has no limits: a gate must hold something"
        reading.refuse(entry.key.place, message)
    budgets = []
    transforms = _transforms(given, source, reading)
    places = declared_places(source, given, defaults) if source else {}
    if source and (limits or transforms):
        name, place = entry.key.text, entry.key.place
        budgets.append(ModelBudget(name, place, source, limits, None, transforms, places))
    if "variants" in given:
        budgets.extend(_variants(given["variants"].value, entry.key, source, places, reading))
    return budgets


def _limits(given: Mapping[str, Entry], reading: Reading) -> tuple[AnyLimit, ...]:
    """Limits on the whole model, then those on its scopes."""
    allowed: tuple[str, ...] = ()
    if "allow_unmeasured" in given:
        allowed = read_op_names(given["allow_unmeasured"].value, reading)
    whole: tuple[AnyLimit, ...] = ()
    if "limits" in given:
        whole = read_limits(given["limits"].value, reading, allowed=allowed)
    if "scopes" not in given:
        return whole
    return (*whole, *read_scopes(given["scopes"].value, reading, allowed=allowed))


def _transforms(
    given: Mapping[str, Entry], source: ModelSource | None, reading: Reading
) -> tuple[TransformCheck, ...]:
    """Every transform of a model, in the order of the file."""
    if "transforms" not in given:
        return ()
    found = []
    variants = given["variants"].value if "variants" in given else None
    taken = {key.text for key, _ in _entries(variants)} if variants is not None else set()
    for entry in reading.named(given["transforms"].value, "transforms: a mapping of names"):
        _must_be_a_name(entry.key, "transform", reading)
        if entry.key.text in {*taken_names(reading.metrics), *taken}:
            what = "a variant" if entry.key.text in taken else "checks"
            message = f"a transform may not be called {shown(entry.key.text)}: {what} is called so"
            reading.refuse(entry.key.place, message.replace("checks is", "checks are"))
        found.append(read_transform(entry, source, _limits, reading))
    return tuple(each for each in found if each is not None)


def _variants(
    node: Node, model: Text, source: ModelSource | None, places: Mapping[str, Place],
    reading: Reading,
) -> list[ModelBudget]:  # fmt: skip
    """The same model under other inputs; a variant inherits all but the limits."""
    budgets = []
    for entry in reading.named(node, "variants: a mapping of names to variants"):
        _must_be_a_name(entry.key, "variant", reading)
        if entry.key.text in taken_names(reading.metrics):
            message = f"a variant may not be called {shown(entry.key.text)}: checks are called so"
            reading.refuse(entry.key.place, message)
        given = reading.fields(entry.value, VARIANT)
        if isinstance(entry.value, Block) and not HELD & given.keys():
            message = f"the variant {shown(entry.key.text)} has no limits: they are not inherited"
            reading.refuse(entry.key.place, message)
        limits = _limits(given, reading)
        varied = _varied(source, given, reading)
        transforms = _transforms(given, varied, reading)
        if varied and (limits or transforms):
            name, place = entry.key.text, entry.key.place
            own = {**places, **{key: each.key.place for key, each in given.items()}}
            budgets.append(ModelBudget(model.text, place, varied, limits, name, transforms, own))
    return budgets


def _varied(
    source: ModelSource | None, given: Mapping[str, Entry], reading: Reading
) -> ModelSource | None:
    """The model's source with the variant's inputs, dtype and dims in place of its own."""
    inputs = read_inputs(given["inputs"].value, reading) if "inputs" in given else None
    dtype = read_model_dtype(given["dtype"].value, reading) if "dtype" in given else None
    dims = read_dims(given["dims"].value, reading) if "dims" in given else {}
    if source is None:
        return None
    refuse_dtype_of_a_file(source.format, given, reading)
    return replace(
        source,
        inputs=inputs if inputs is not None else source.inputs,
        dtype=dtype or source.dtype,
        dims={**source.dims, **dims},
    )
