"""What models may be measured with: the project's own tables, joined with extensions', and versions."""

import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import TypeVar

from pytest_modelbudget.errors import ExtensionError, user_code
from pytest_modelbudget.evaluation.evaluate import EVALUATED
from pytest_modelbudget.formats.table import Format, format_table
from pytest_modelbudget.metrics.measurement import Metric
from pytest_modelbudget.metrics.table import metric_table
from pytest_modelbudget.ops.rule import OpRule
from pytest_modelbudget.ops.table import OpTable, builtin_ops
from pytest_modelbudget.transforms.table import transform_table
from pytest_modelbudget.transforms.transform import Transform

EXTENSIONS = "modelbudget.extensions"
PACKAGES = ("pytest-modelbudget", "torch", "torchvision", "onnx", "onnxruntime")

Entry = TypeVar("Entry")


def environment() -> dict[str, str]:
    """Versions that the numbers may depend on, read without importing any of the packages."""
    versions = {package: installed_version(package) for package in PACKAGES}
    return {"python": platform.python_version(), **{name: number for name, number in versions.items() if number}}


@cache
def installed_version(package: str) -> str:
    """The version of a package, "" where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@dataclass(frozen=True, slots=True)
class Tables:
    """What a model may be measured with: the project's own entries and its extensions'."""

    ops: OpTable
    metrics: Mapping[str, Metric]
    formats: Mapping[str, Format]
    transforms: Mapping[str, Transform]

    def versions(self, format: str) -> Mapping[str, str]:
        """The framework that reads a format, and its version; nothing where it takes none."""
        extra = self.formats[format].extra if format in self.formats else ""
        return {extra: installed_version(extra)} if extra else {}


def tables(modules: Iterable[object] = ()) -> Tables:
    """The project's tables, joined with all installed extensions and with these modules.

    An extension is a module with the tuples OPS, METRICS, FORMATS and TRANSFORMS, any of which may be missing. Raises
    ExtensionError where one cannot be imported, holds something else, or claims a name that is taken.
    """
    return joined_tables((*installed_extensions(), *modules))


def joined_tables(extensions: Iterable[object]) -> Tables:
    """The project's tables, joined with these extensions alone. Raises ExtensionError."""
    extensions = tuple(extensions)

    def entries(name: str, kind: type[Entry]) -> tuple[Entry, ...]:
        return tuple(entry for module in extensions for entry in _entries(module, name, kind))

    ops = entries("OPS", OpRule)
    return Tables(
        # Joining all rules takes longer than measuring a small model.
        OpTable((*dict.fromkeys(builtin_ops().values()), *ops)) if ops else builtin_ops(),
        metric_table((*EVALUATED, *entries("METRICS", Metric))),
        format_table(entries("FORMATS", Format)),
        transform_table(entries("TRANSFORMS", Transform)),
    )


def installed_extensions() -> tuple[object, ...]:
    """Modules that installed packages declare as entry points, in the order of their names."""
    modules = []
    for point in _declared(entry_points, tuple((place, _written(place)) for place in map(str, sys.path))):
        with user_code(f"importing the extension '{point.name}' ({point.value})", ExtensionError):
            modules.append(point.load())
    return tuple(modules)


@lru_cache(maxsize=8)
def _declared(read: Callable[..., Iterable[EntryPoint]], places: tuple[tuple[str, int], ...]) -> list[EntryPoint]:
    """The entry points on these places, read once while none was written to: that takes longer than a small model."""
    return sorted(read(group=EXTENSIONS), key=lambda point: (point.name, point.value))


def _written(place: str) -> int:
    """When something was last installed in a folder; 0 where there is none."""
    try:
        return os.stat(place or os.curdir).st_mtime_ns
    except OSError:
        return 0


def _entries(module: object, name: str, kind: type[Entry]) -> tuple[Entry, ...]:
    entries = getattr(module, name, ())
    if not isinstance(entries, tuple) or not all(isinstance(entry, kind) for entry in entries):
        where = getattr(module, "__name__", repr(module))
        raise ExtensionError(f"extension {where}: {name} must be a tuple of {kind.__name__}")
    return entries
