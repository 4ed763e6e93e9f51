"""What is said of an exception that a user's model raises: its cause, on one line."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_modelbudget import measure
from pytest_modelbudget.errors import TraceError, described, in_code, is_users_file, user_code

pytestmark = pytest.mark.needs_torch


class Linear(nn.Module):
    """Takes rows of three."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x)
        return result


class Picky(nn.Module):
    """Takes nothing of more than one row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 1:
            raise ValueError("one row\nat a time")
        return x


ADDMM = "(addmm: )?"  # which torch says from 2.15 on


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "says"),
    [
        pytest.param(
            lambda: torch.jit.script(Linear()),
            f"calling it raised RuntimeError: {ADDMM}mat1 and mat2 shapes cannot be multiplied",
            id="scripted",
        ),
        pytest.param(
            lambda: torch.jit.trace(Linear(), torch.zeros(1, 3)),
            f"calling it raised RuntimeError: {ADDMM}mat1 and mat2 shapes cannot be multiplied",
            id="traced",
        ),
        pytest.param(lambda: torch.jit.script(Picky()), r"calling it raised ValueError: one row \(in", id="its own"),
    ],
)
def test_an_error_in_torchscript_has_its_cause(make: object, says: str) -> None:
    """The interpreter's own first line says nothing; the end of its traceback does."""
    assert callable(make)
    module = make()
    with pytest.raises(TraceError) as told, user_code("calling it", TraceError):
        module(torch.zeros(2, 5))
    assert re.match(says, str(told.value))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("first\nKeyError: second"), "ValueError: first"),
        (ValueError("an object at 0x7f01 of mine"), "ValueError: an object of mine"),
        (ValueError(), "ValueError"),
    ],
)
def test_the_first_line_of_an_error_is_told(error: Exception, expected: str) -> None:
    """With its type, without addresses, and without what follows."""
    assert described(error) == expected


def test_a_path_below_the_current_folder_is_told_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is the same in every checkout; a path of elsewhere stays whole."""
    monkeypatch.chdir(tmp_path)
    inside = FileNotFoundError(2, "No such file", str(tmp_path / "weights" / "a.bin"))
    assert described(inside) == "FileNotFoundError: [Errno 2] No such file: 'weights/a.bin'"
    beside = FileNotFoundError(2, "No such file", f"{tmp_path}-other/a.bin")
    assert described(beside) == f"FileNotFoundError: [Errno 2] No such file: '{tmp_path}-other/a.bin'"
    monkeypatch.chdir("/")
    assert described(ValueError("a/b")) == "ValueError: a/b"


@pytest.mark.parametrize(
    ("file", "told"),
    [("nets.py", "nets.py"), ("vision/nets.py", "vision/nets.py"), ("src/vision/nets.py", "vision/nets.py")],
)
def test_a_raising_line_is_told_alike_in_every_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, told: str
) -> None:
    """Whatever its folder is called; a file of elsewhere has the folder that it lies in."""
    texts = set()
    for checkout in ("here", "there"):
        folder = tmp_path / checkout
        folder.mkdir()
        monkeypatch.chdir(folder)
        space: dict[str, Any] = {}
        exec(compile("def make():\n    raise ValueError('no')\n", str(folder / file), "exec"), space)
        with pytest.raises(ValueError, match="no") as raised:
            space["make"]()
        texts.add(described(raised.value))
    assert texts == {f"ValueError: no (in make, {told}:2)"}
    assert in_code("make", str(tmp_path / "nets.py"), 2) == f"(in make, {tmp_path.name}/nets.py:2)"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("import json; json.loads('{')", "JSONDecodeError: Expecting property name"),
        ("import subprocess; subprocess.run(['/no/such/program'])", "FileNotFoundError: "),
        ("import pytest; pytest.skip('no data')", "Skipped: no data"),  # in a model's code, whose line is looked for
        ("from pathlib import Path; Path('/no/such/file').read_text()", "FileNotFoundError: "),
        ("from collections import namedtuple; namedtuple('T', '1')", "ValueError: "),
    ],
)
def test_a_line_that_pythons_library_raises_is_the_users(tmp_path: Path, line: str, says: str) -> None:
    """Where a model called it, and not a line of json's or of pytest's, which nobody can mend."""
    space: dict[str, Any] = {}
    exec(compile(f"def make():\n    {line}\n", str(tmp_path / "nets.py"), "exec"), space)
    with pytest.raises(TraceError) as told, user_code("calling it", TraceError):
        space["make"]()
    assert str(told.value).startswith(f"calling it raised {says}")
    assert str(told.value).endswith(f" (in make, {tmp_path.name}/nets.py:2)")


def test_a_line_of_an_installed_package_is_told() -> None:
    """Though it may be installed below Python's library: a package of models says more than what called it."""
    assert is_users_file("/usr/lib/python3.11/site-packages/timm/models/resnet.py")
    assert is_users_file(str(Path(os.__file__).parent / "dist-packages" / "timm" / "layers.py"))
    assert not is_users_file(json.__file__)
    assert not is_users_file("<frozen importlib._bootstrap>")


@pytest.mark.parametrize(
    ("model", "file"),
    [pytest.param(nn.Linear(3, 3), "modules/linear.py"), pytest.param(Linear(), "formats/test_user_code.py")],
)
def test_no_line_of_torchs_plumbing_is_a_place(model: nn.Module, file: str) -> None:
    """Of torch's own layers the line that calls the operator is, and of a user's module its own."""
    with pytest.raises(TraceError, match=rf" \(in forward, {re.escape(file)}:\d+\)"):
        measure(model, "float32 2x4")
