"""Versions of this project and of the frameworks that a run used."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

FRAMEWORKS = ("pytest-modelbudget", "torch", "torchvision", "onnx", "onnxruntime")


def environment() -> dict[str, str]:
    """Versions that the numbers may depend on, read without importing any of the packages."""
    versions = {"python": platform.python_version()}
    numbers = {package: installed_version(package) for package in FRAMEWORKS}
    return versions | {package: number for package, number in numbers.items() if number}


@cache
def installed_version(package: str) -> str:
    """The version of a package, "" where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
