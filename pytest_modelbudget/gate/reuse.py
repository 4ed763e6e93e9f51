"""Measurements of model files that earlier sessions made, taken again where nothing that they depend on differs.

An entry is a file whose name tells the model and what it is run on, so that a newer one takes its place::

    2c26b46b68ff...                          the digest of all that follows
    {"subject": "9f86d0...", "key": "ba7816...", "files": {"shapes.bin": "e3b0c4..."}, "with_parts": false,
     "model": {"format": "onnx", ...}}

The key is the digest of the model's bytes and of what numbers depend on besides: this project's own source, Python, the
installed packages, the source of extensions and of the project's own pytest plugins. What is not as it was written is
measured anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter, time_ns
from typing import Any, NamedTuple

from pytest_modelbudget.budget.replacing import replace_file
from pytest_modelbudget.errors import InputError
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate.python_files import OWN, imports_of, is_installed
from pytest_modelbudget.metrics.measured_model import MeasuredModel
from pytest_modelbudget.ops.table import builtin_ops
from pytest_modelbudget.reports.typed_json import exact_json, from_exact_json

ENVIRONMENT = ("TORCH", "PYTORCH", "ONNX", "ORT_")  # how variables begin that frameworks look at
CHUNK = 1 << 20
ABSENT = ""  # the digest of a file that is not there


class Begun(NamedTuple):
    """A model whose measuring began: its key, its file as it was then, and when that was."""

    key: str
    stat: os.stat_result
    moment: int  # in nanoseconds

    def still_holds(self, path: Path, beside: Iterable[Path]) -> bool:
        """Whether nobody wrote to its file since, or to those beside it, whose state was not known then."""
        now, compared = path.stat(), ("st_ino", "st_dev", "st_size", "st_mtime_ns")
        is_same = all(getattr(self.stat, field) == getattr(now, field) for field in compared)
        return is_same and not any(file.exists() and file.stat().st_mtime_ns >= self.moment for file in beside)


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model and all that it depends on: the digests of files beside its own by their path from its folder.

    with_parts says that the model has what its numbers are made of.
    """

    subject: str
    key: str
    files: Mapping[str, str]
    with_parts: bool
    model: MeasuredModel


class ReusedModels:
    """The measurements in a folder. damaged are entries that were not as somebody had written them.

    extensions gives what extends the tables, and whatever else may change what a framework does, when all of it is
    loaded; an object that is no module has no source to be compared, and nothing is then taken again.
    """

    def __init__(self, folder: Path, extensions: Callable[[], Iterable[object]], *, root: Path) -> None:
        self.folder = folder
        self.root = root
        self.damaged: set[str] = set()
        self._extensions = extensions
        self._begun: dict[str, Begun] = {}

    def get(self, source: ModelSource, *, with_parts: bool, with_profile: bool) -> MeasuredModel | None:
        """The model as it was measured, with no more than is asked for; None where it has to be measured."""
        began, subject = perf_counter(), self._subject(source)
        path = source.base / str(source.target)
        begun = self._begin(subject, path)
        entry = self._entry(subject, begun.key) if begun else None
        if entry is None or entry.with_parts < with_parts or (with_profile and entry.model.profile is None):
            return None
        try:
            is_other = any(_digest_of(path.parent / name) != digest for name, digest in entry.files.items())
        except OSError:  # which is said where the model is loaded
            return None
        if is_other:
            return None
        parts, profile = (entry.model.parts if with_parts else {}), (entry.model.profile if with_profile else None)
        return replace(entry.model, parts=parts, profile=profile, seconds=perf_counter() - began)

    def keep(self, source: ModelSource, model: MeasuredModel, *, with_parts: bool) -> None:
        """Write what was measured, where nothing but files decided it, and nobody wrote to these meanwhile."""
        subject, path = self._subject(source), source.base / str(source.target)
        begun = self._begun.pop(subject, None)
        if begun is None or not _is_reusable(model):
            return
        beside = {name: path.parent / name for name in model.files}
        with suppress(OSError, InputError, TypeError):  # what cannot be kept is measured the next time
            files = {name: _digest_of(file) for name, file in beside.items()}
            if not begun.still_holds(path, beside.values()):
                return
            entry = StoredModel(subject, begun.key, files, with_parts, replace(model, seconds=0.0))
            body = json.dumps(exact_json(entry))
            if from_exact_json(StoredModel, json.loads(body)) == entry:
                self.folder.mkdir(parents=True, exist_ok=True)
                replace_file(self._file(subject), f"{_digest(body)}\n{body}\n")

    def _begin(self, subject: str, path: Path) -> Begun | None:
        """Note a model as it is before it is measured; None where nothing can be told of it."""
        try:
            stat = path.stat()
            words = [subject, self._surroundings, _digest_of(path)]
        except (OSError, ValueError):
            return None  # which is said where it is loaded
        if not self._surroundings:
            return None
        self._begun[subject] = Begun(_digest("\n".join(words)), stat, time_ns())
        return self._begun[subject]

    def _file(self, subject: str) -> Path:
        return self.folder / f"{subject}.json"

    def _entry(self, subject: str, key: str) -> StoredModel | None:
        """The entry of a model, as long as its key is the same; None where there is none, or it is damaged."""
        try:
            digest, _, body = self._file(subject).read_text("utf-8").partition("\n")
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            digest, body = "", ""
        with suppress(ValueError, RecursionError, InputError):
            document = json.loads(body) if digest == _digest(body.removesuffix("\n")) else None
            if isinstance(document, dict) and document.get("subject") == subject:
                return from_exact_json(StoredModel, document) if document.get("key") == key else None
        self.damaged.add(str(self._file(subject)))
        return None

    def _subject(self, source: ModelSource) -> str:
        """The name of a model: its file as the project sees it, and what it is run on."""
        words = {**asdict(source), "base": "", "target": os.path.relpath(source.base / str(source.target), self.root)}
        return _digest(json.dumps(words, sort_keys=True, default=repr))[:32]

    @cached_property
    def _surroundings(self) -> str:
        """All but the model: the programs that measure it, by their bytes or versions; "" where that cannot be told."""
        extensions = tuple(self._extensions())
        modules = [module for module in extensions if getattr(module, "__file__", None)]
        if len(modules) < len(extensions):
            return ""
        names = [path.name for folder in map(Path, sys.path) for path in _metadata(folder)]
        variables = [f"{name}={value}" for name, value in os.environ.items() if name.startswith(ENVIRONMENT)]
        sources = sorted({*OWN.rglob("*.py"), *sources_of(modules)})
        words = [sys.version, sys.platform, platform.machine(), *sorted(names), *sorted(variables)]
        return "\n".join([*words, *(_digest_of(path) for path in sources)])


def _is_reusable(model: MeasuredModel) -> bool:
    """Whether another session would measure the same: nothing failed, nothing was run, no operation is of others."""
    counts = (*model.census, *(count for branch in model.branches for count in branch.ops))
    is_known = all(count.name in builtin_ops() for count in counts)
    return model.failure is None and not model.failures and model.traced != "real" and is_known


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def _digest_of(path: Path) -> str:
    """The digest of a file's bytes, ABSENT where there is none; a link counts as what it leads to."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
    except FileNotFoundError:
        return ABSENT
    return digest.hexdigest()


def _metadata(folder: Path) -> Iterator[Path]:
    """What installers leave of each package in a folder: "torch-2.15.0.dist-info"."""
    with suppress(OSError):
        yield from (path for path in folder.iterdir() if path.suffix in (".dist-info", ".egg-info"))


# The source of extensions, with the modules of the project's own that they import.


def sources_of(modules: Iterable[Any]) -> list[Path]:
    """The files of modules, and of all that these import but for what is installed apart from them."""
    waiting, known = list(modules), dict[str, Path]()
    own = {module.__name__.partition(".")[0] for module in waiting}
    while waiting:
        module = waiting.pop()
        file = Path(str(module.__file__))
        if str(file) in known:
            continue
        known[str(file)] = file
        for base, names in imports_of(file, module.__package__ or ""):
            for name in (base, *(f"{base}.{each}" for each in names)):
                inner = sys.modules.get(name)
                path = getattr(inner, "__file__", None)
                if inner is not None and path and (name.partition(".")[0] in own or not is_installed(path)):
                    waiting.append(inner)
    return list(known.values())
