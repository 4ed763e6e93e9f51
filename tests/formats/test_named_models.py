"""A module that a budget names and that is not there: which, and the extra that brings it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from pytest_modelbudget.errors import MissingExtraError, SourceError
from pytest_modelbudget.formats.source import EXTRAS, resolved

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("missing", "extra"),
    [pytest.param("torchvision", "vision", id="vision"), pytest.param("onnxruntime", "onnx", id="onnx")],
)
@pytest.mark.parametrize("named", ["directly", "in a module of one's own"])
def test_what_an_extra_brings_is_told_with_the_extra(
    missing: str, extra: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the budget names the package, or a module that imports it."""
    (tmp_path / "nets_over_it.py").write_text(f"import {missing}\nsmall = {missing}.small\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, missing, None)
    target = f"{missing}:small" if named == "directly" else "nets_over_it:small"
    with pytest.raises(MissingExtraError) as told:
        resolved(target)
    assert str(told.value) == (
        f"'{target}' needs {missing}, which is not installed: pip install 'pytest-modelbudget[{extra}]'"
    )


def test_a_module_that_no_extra_brings_is_told_by_its_name() -> None:
    """A slip of the user's is no package of this project's."""
    with pytest.raises(SourceError, match="there is no module 'torchvison'"):
        resolved("torchvison.models:resnet18")


@pytest.mark.parametrize(("package", "extra"), EXTRAS.items())
def test_the_extra_brings_the_package(package: str, extra: str) -> None:
    """The extra that is named asks for the package in the project file."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    asked = re.search(rf"^{extra} = \[.*?(?=^\w)", project, re.MULTILINE | re.DOTALL)
    assert asked is not None
    assert f'"{package}>=' in asked[0]
