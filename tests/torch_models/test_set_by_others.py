"""What others set of torch before a model is measured, as a conftest.py or a test does, changes no file's numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pytest_modelbudget import check_equivalence, measure

pytestmark = pytest.mark.needs_torch


@contextmanager
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def on_meta() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


Setting = Callable[[], AbstractContextManager[Any]]
SETTINGS: dict[str, Setting] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "modes": lambda: FlopCounterMode(display=False),
    "default type": in_float64,
    "default device": on_meta,
}
SETTING = pytest.mark.parametrize("setting", SETTINGS.values(), ids=list(SETTINGS))


class Shifted(nn.Module):
    """One product of 4 x 8 by 8 x 8, and a constant that its forward makes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + torch.ones(8)


def as_script(path: Path) -> Path:
    torch.jit.save(torch.jit.script(Shifted()), str(path / "net.pt"))  # type: ignore[no-untyped-call]
    return path / "net.pt"


def as_program(path: Path) -> Path:
    torch.export.save(torch.export.export(Shifted(), (torch.ones(4, 8),)), path / "net.pt2")
    return path / "net.pt2"


@pytest.mark.parametrize("write", [as_script, as_program])
@SETTING
def test_a_file_is_measured_as_torch_starts(setting: Setting, write: Callable[[Path], Path], tmp_path: Path) -> None:
    """Two results of 4 x 8 and the constant in float32; the setting is there again afterwards."""
    file = write(tmp_path)
    with setting() as entered:
        before = (torch.is_autocast_enabled("cpu"), torch.get_default_dtype(), torch.ones(1).device)
        measured = measure(str(file), "float32 4x8")
        assert (torch.is_autocast_enabled("cpu"), torch.get_default_dtype(), torch.ones(1).device) == before
        if isinstance(entered, FlopCounterMode):
            torch.ones(2, 3) @ torch.ones(3, 4)
            assert entered.get_total_flops() == 2 * 2 * 3 * 4
    assert measured["total_activation"].value == 4 * (4 * 8 + 8 + 4 * 8)
    assert measured["bops"].value == 4 * 8 * 8 * 32 * 32
    assert measured.notes == ()


@pytest.mark.parametrize("write", [as_script, as_program])
@SETTING
def test_a_claim_runs_files_as_torch_starts(setting: Setting, write: Callable[[Path], Path], tmp_path: Path) -> None:
    """Its figures are the same to the last digit, whatever was set before."""
    file = str(write(tmp_path))
    alone = check_equivalence(file, file, "float32 4x8")
    assert alone.outcome == "within"
    with setting():
        found = check_equivalence(file, file, "float32 4x8")
    assert (found.outcome, found.reason) == (alone.outcome, alone.reason)
