"""Frameworks older than the lowest supported version are one error, with the command that installs a newer one."""

import importlib
import sys
from types import ModuleType

import pytest

from pytest_modelbudget.errors import SourceError, must_be_recent


def installed(package: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an empty package of this version in the place of what is installed."""
    module = ModuleType(package)
    module.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package, module)


@pytest.mark.parametrize("version", ["2.3.1", "2.3.1+cu121", "1.13.0", "2.0.0a0+git1234"])
def test_an_older_framework_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two numbers decide, as numbers: 1.13 is older than 1.16."""
    installed("torch", version, monkeypatch)
    with pytest.raises(SourceError, match=r"^torch \S+ is too old: pip install 'torch>=2\.4'$"):
        must_be_recent("torch", "2.4")


@pytest.mark.parametrize("version", ["2.4.0", "2.10.0+cpu", "2.16.0.dev20261101", "3.0.0"])
def test_others_are_taken(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a local name nor a nightly build is a number."""
    installed("torch", version, monkeypatch)
    must_be_recent("torch", "2.4")


@pytest.mark.parametrize(
    ("package", "room", "old"), [("torch", "torch_models", "2.3.1"), ("onnx", "onnx_models", "1.15.0")]
)
def test_the_readers_ask_before_they_import(package: str, room: str, old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No name that an older framework lacks is looked up."""
    room = f"pytest_modelbudget.{room}"
    installed(package, old, monkeypatch)
    for name in [each for each in sys.modules if each == room or each.startswith(f"{room}.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SourceError, match=f"^{package} {old} is too old"):
        importlib.import_module(f"{room}.model" if package == "onnx" else f"{room}.module")
