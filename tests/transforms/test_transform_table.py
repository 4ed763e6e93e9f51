"""The list of transforms: what an engine that is not installed says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_modelbudget.budget.budget import Transformation
from pytest_modelbudget.errors import MissingExtraError
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate.transforming import apply_transform
from pytest_modelbudget.registry import tables


@pytest.mark.parametrize(
    ("package", "key", "form", "extra"),
    [
        ("torch", "tile_linear", "torch", "torch"),
        ("onnx", "tile_linear", "onnx", "onnx"),
        ("torch", "tile_conv", "torchscript", "torch"),
        ("onnx", "tile_conv", "onnx", "onnx"),
        pytest.param("onnxruntime", "export_onnx", "torch", "onnx", marks=pytest.mark.needs_torch),
    ],
)
def test_an_engine_without_its_package_names_the_extra(
    package: str, key: str, form: str, extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever lacks a package is told what to install, and not which import failed."""
    using = tables()
    engines = ("pytest_modelbudget.transforms", "pytest_modelbudget.equivalence")
    for name in [each for each in sys.modules if each.startswith(engines)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    source = ModelSource(form, "nothing", base=tmp_path)
    with pytest.raises(MissingExtraError, match=rf"{key} needs {package}, .*\[{extra}\]"):
        apply_transform(source, Transformation(key, {}), using)
