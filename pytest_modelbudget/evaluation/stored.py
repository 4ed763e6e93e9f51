"""Answers that were worked out before, by the content of all that they depend on.

The key is a SHA-256 of the model's program and stored values, of the transform and what it was given, of every input
and label, of the code of the user's modules that are loaded, and of all versions. One file a key stands in the folder
``pytest-modelbudget`` of the user's caches.
"""

from __future__ import annotations

import io
import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_modelbudget.equivalence.user_inputs import GivenInputs, calls_of
from pytest_modelbudget.errors import ModelBudgetError, TransformError, user_code
from pytest_modelbudget.evaluation.evaluate import (
    ACCURACY,
    DROP,
    ERROR,
    Evaluated,
    accuracy,
    drop,
    evaluate,
    labelled,
    score_of,
)
from pytest_modelbudget.formats.model import Model, must_run
from pytest_modelbudget.formats.source import Evaluation, ModelSource
from pytest_modelbudget.formats.user_modules import OWN, is_installed
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.transforms.artefact import digest_of, spelled
from pytest_modelbudget.values.judgement import nine_digits

if TYPE_CHECKING:
    from hashlib import _Hash

    from pytest_modelbudget.formats.model import Arrays, Values


@dataclass(frozen=True, slots=True)
class Origin:
    """The model that transforms have changed, and each transform's key and settings."""

    model: Model
    made: tuple[tuple[str, Mapping[str, object]], ...]


def evaluated(
    model: Model, evaluation: Evaluation | None, origin: Origin | None = None
) -> tuple[Mapping[str, Measurement], Mapping[str, ModelBudgetError]]:
    """What is known of a model's answers, and why the rest is not, by metric; of a changed model with the drop."""
    if evaluation is None:
        return {}, {}
    asked = (ERROR,) if evaluation.is_error else (ACCURACY, DROP)[: 1 + (origin is not None)]
    try:
        with user_code("evaluating the model", TransformError):
            answers = stored_answers(model, evaluation, origin)
            if evaluation.is_error:
                return {ERROR: Measurement(nine_digits(answers.mean), "")}, {}
            numbers = {ACCURACY: accuracy(answers)}
            if origin is not None:
                numbers[DROP] = drop(stored_answers(origin.model, evaluation), answers)
            return numbers, {}
    except ModelBudgetError as error:
        return {}, dict.fromkeys(asked, error)


def stored_answers(model: Model, evaluation: Evaluation, origin: Origin | None = None) -> Evaluated:
    """The answers of a model, which a changed one was made of its origin; worked out where no file has them.

    Raises as ``evaluate`` does.
    """
    import numpy as np

    file = folder() / f"{digest(model, evaluation, origin)}.npy"
    with suppress(OSError, ValueError, EOFError):
        return Evaluated(np.load(file, allow_pickle=False))
    answers = evaluate(model, evaluation)
    with suppress(OSError):  # a folder that cannot be written to: they are worked out again
        _write(file, answers.values)
    return answers


def folder() -> Path:
    """The folder of stored answers: in $XDG_CACHE_HOME, or in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pytest-modelbudget" / "answers"


def _write(file: Path, values: Values) -> None:
    import numpy as np

    stream = io.BytesIO()
    np.save(stream, values, allow_pickle=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.new")
    temporary.write_bytes(stream.getvalue())
    temporary.replace(file)


def digest(model: Model, evaluation: Evaluation, origin: Origin | None = None) -> str:
    """The key of a model's answers, for which data are read, and nothing is run."""
    score_of(evaluation.metric)  # which loads the user's module
    found = sha256(repr((evaluation.metric, evaluation.batch, platform.machine(), sys.version, _versions())).encode())
    runnable = must_run(model, "so that it has no answers: leave out 'evaluate'")
    for inputs, labels in labelled(evaluation, runnable.inputs):
        _hash_arrays({**inputs, "": labels}, found)
    found.update(digest_of(model).encode())
    if origin is not None:
        found.update(digest_of(origin.model).encode())
        for transform, settings in origin.made:
            _hash_setting({transform: settings}, found)
    for file in sorted({*_user_files(), *OWN.rglob("*.py")}):
        found.update(file.name.encode() + file.read_bytes())
    return found.hexdigest()


def _hash_arrays(arrays: Arrays, found: _Hash) -> None:
    for name, array in arrays.items():
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        found.update(array.tobytes())


def _hash_setting(setting: object, found: _Hash) -> None:
    """A setting of a transform, by what it stands for: the arrays of given inputs, and no name of a file."""
    if isinstance(setting, Mapping):
        for key, value in setting.items():
            found.update(f"{key}=".encode())
            _hash_setting(value, found)
    elif isinstance(setting, GivenInputs):
        for arrays in calls_of(setting)[0]:
            _hash_arrays(arrays, found)
    else:
        found.update((spelled(setting) if isinstance(setting, ModelSource) else repr(setting)).encode())


@cache
def _versions() -> list[tuple[str, str]]:
    """Every installed package and its version."""
    return sorted((each.metadata["Name"] or "", each.version) for each in distributions())


def _user_files() -> set[Path]:
    """The Python files of the user's modules that this process has loaded."""
    files = (getattr(module, "__file__", None) for module in [*sys.modules.values()])
    return {Path(file) for file in files if file and os.path.isfile(file) and not is_installed(file)}
