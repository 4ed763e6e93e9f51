"""Every run of a torch model starts from the same state, whatever the run before has written."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.formats.table import format_table
from pytest_modelbudget.ops.table import builtin_ops
from pytest_modelbudget.torch_models.running import TorchModel

pytestmark = pytest.mark.needs_torch

X = torch.ones(2, 3)


class Counter(nn.Module):
    """Adds one to a buffer in each call, and gives its input times what the buffer holds."""

    def __init__(self, persistent: bool = True, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=dtype), persistent=persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


class Moved(Counter):
    """Gives its buffer other memory, of another shape."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.data = self.calls.data.reshape(-1) + 1
        return x * self.calls


class Rebound(Counter):
    """Puts another tensor in the buffer's place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return x * self.calls


class Aliased(Counter):
    """Writes into a buffer through another one, a view that torch itself cannot write into."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("wide", self.calls.expand(3))


def scripted(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, and stays supported here
        made: nn.Module = torch.jit.script(model)
    return made


def runnable(source: ModelSource) -> TorchModel:
    model = format_table()[source.format].load(source, builtin_ops())
    assert isinstance(model, TorchModel)
    return model


def outputs(model: TorchModel) -> list[float]:
    """The first element that three runs give, one after the other."""
    runs = (model.run({"x": X.numpy()}) for _ in range(3))
    return [float(run.outputs[0].values.flatten()[0]) for run in runs]


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(Counter, id="in place"),
        pytest.param(lambda: Counter(persistent=False), id="not persistent"),
        pytest.param(lambda: Counter(dtype=torch.int64), id="an integer"),
        pytest.param(Moved, id="other memory"),
        pytest.param(Rebound, id="another tensor"),
        pytest.param(Aliased, id="through a view"),
        pytest.param(lambda: scripted(Counter()), id="TorchScript in place"),
        pytest.param(lambda: scripted(Rebound()), id="TorchScript, another tensor"),
    ],
)
@pytest.mark.parametrize("float64", [False, True])
def test_every_run_is_the_first(build: Callable[[], nn.Module], float64: bool) -> None:
    """The first call gives 1 · 1; a counter that went on counting would give 2 and 3 after it."""
    specs = InputSpecs((TensorSpec("float32", (2, 3)),))
    model = runnable(ModelSource("torch", build(), specs))
    model = model.in_float64() if float64 else model
    assert outputs(model) == [1.0, 1.0, 1.0]
    assert float(dict(model.subject.model.named_buffers())["calls"]) == 0.0


def test_every_run_of_an_exported_program_is_the_first(tmp_path: Path) -> None:
    """Its graph writes the buffer back at its end."""
    program = torch.export.export(Counter(), (X,))
    torch.export.save(program, tmp_path / "counter.pt2")
    model = runnable(ModelSource("exported", "counter.pt2", base=tmp_path))
    assert outputs(model) == [1.0, 1.0, 1.0]
