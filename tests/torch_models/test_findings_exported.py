"""An exported program in memory is a model as its file is."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_modelbudget import check_equivalence, measure
from pytest_modelbudget.errors import ModelBudgetError

pytestmark = pytest.mark.needs_torch
KEYS = ("params", "weight_memory", "macs", "flops", "peak_activation", "bandwidth", "model_size")


@pytest.fixture
def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10)).eval()


@pytest.fixture
def program(mlp: nn.Module) -> torch.export.ExportedProgram:
    return torch.export.export(mlp, (torch.ones(4, 64),))


def test_s17_an_exported_program_has_the_numbers_of_its_file(
    program: torch.export.ExportedProgram, tmp_path: Path
) -> None:
    """S17: 4 x (64 x 100 + 100 x 10) MACs, and every other number is the file's."""
    torch.export.save(program, tmp_path / "mlp.pt2")
    in_memory, from_file = measure(program), measure(tmp_path / "mlp.pt2")
    assert in_memory["macs"].value == 4 * (64 * 100 + 100 * 10)
    assert in_memory["params"].value == 64 * 100 + 100 + 100 * 10 + 10
    for key in KEYS:
        assert (in_memory[key].value, in_memory[key].complete) == (from_file[key].value, from_file[key].complete)


def test_the_first_program_of_a_process_starts_no_thread(program: torch.export.ExportedProgram, tmp_path: Path) -> None:
    """What shows torch's progress starts one that stays, and the first program alone was said to have started it."""
    torch.export.save(program, tmp_path / "mlp.pt2")
    code = f"from pytest_modelbudget import measure; print(measure({str(tmp_path / 'mlp.pt2')!r}).notes)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "()\n"


def test_s17_an_exported_program_is_compared(mlp: nn.Module, program: torch.export.ExportedProgram) -> None:
    """S17: with the module that it was exported from, and with one of other weights."""
    other = torch.export.export(nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10)), (torch.ones(4, 64),))
    assert check_equivalence(program, program).outcome == "within"
    assert check_equivalence(mlp, program, "float32 4x64").outcome == "within"
    assert check_equivalence(program, other).outcome == "over"


def test_s17_an_exported_program_takes_no_arguments(program: torch.export.ExportedProgram) -> None:
    """S17: there is nothing to call with them."""
    with pytest.raises(ModelBudgetError, match="model already"):
        measure(program, args=(1,))
