"""A module that a budget names and that is not there: which, and the extra that brings it."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_modelbudget.errors import MissingExtraError, SourceError
from pytest_modelbudget.formats.source import EXTRAS, ModelSource, existing_file, resolved

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


@pytest.mark.parametrize("slip", ["my_nets", "mynet", "mynest"])
def test_a_module_of_almost_that_name_is_named(slip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever an import would find it; one that is called otherwise is no guess."""
    (tmp_path / "mynets.py").write_text("small = print\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SourceError, match=f"there is no module '{slip}': did you mean mynets:small?"):
        resolved(f"{slip}:small")
    with pytest.raises(SourceError, match=r"there is no module 'quite_another': is it installed, or on the pyth"):
        resolved("quite_another:small")


def test_a_name_like_none_is_told_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the module defines itself, and neither what it imports nor what it keeps for itself."""
    (tmp_path / "nets_of_two.py").write_text(
        "from pathlib import Path\n\nclass Wide: pass\n\ndef small(): pass\n\ndef _made(): pass\n\nSIZE = 3\n"
    )
    (tmp_path / "nets_of_none.py").write_text("from pathlib import Path\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SourceError, match=r"^nets_of_two has no 'Xy'; it has Wide, small$"):
        resolved("nets_of_two:Xy")
    with pytest.raises(SourceError, match=r"^nets_of_none has no 'Xy'$"):
        resolved("nets_of_none:Xy")


def test_a_file_of_almost_that_name_is_named(tmp_path: Path) -> None:
    """Beside the missing one, and of the same kind."""
    (tmp_path / "small.onnx").touch()
    (tmp_path / "smal.pt").touch()
    source = ModelSource("onnx", "smal.onnx", base=tmp_path)
    with pytest.raises(SourceError, match=r"^smal.onnx does not exist: did you mean small.onnx\?$"):
        existing_file(source, "an ONNX model")
    with pytest.raises(SourceError, match=r"^big.onnx does not exist: is it written before the gate runs"):
        existing_file(replace(source, target="big.onnx"), "an ONNX model")


@pytest.mark.parametrize(("package", "extra"), EXTRAS.items())
def test_the_extra_brings_the_package(package: str, extra: str) -> None:
    """The extra that is named asks for the package in the project file."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    asked = re.search(rf"^{extra} = \[.*?(?=^\w)", project, re.MULTILINE | re.DOTALL)
    assert asked is not None
    assert f'"{package}>=' in asked[0]
