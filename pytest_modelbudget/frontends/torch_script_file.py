"""``torchscript:`` a file that ``torch.jit.save`` wrote."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.frontends.loaded_model import LoadedModel
from pytest_modelbudget.frontends.model_files import existing_file
from pytest_modelbudget.frontends.model_source import ModelSource
from pytest_modelbudget.frontends.torch_inputs import CallInputs
from pytest_modelbudget.frontends.torch_scopes import WeightScopes
from pytest_modelbudget.frontends.torch_tracing import Subject, WatchedScopes, traced
from pytest_modelbudget.frontends.user_code import user_code
from pytest_modelbudget.ops.op_table import OpTable

Opener = Callable[[str], torch.jit.ScriptModule]
DEPRECATION = "`torch.jit"  # torch >= 2.15 warns at each use; the format stays supported here


def load(source: ModelSource, rules: OpTable) -> LoadedModel:
    """The graph of a TorchScript file, in eval mode; its weights are not read for a meta trace."""
    path = existing_file(source, "a TorchScript file")

    def opened(device: str) -> torch.jit.ScriptModule:
        return _loaded(path, device)

    return traced(_subject("torchscript", opened), source.inputs, rules)


def _loaded(path: Path, device: str) -> torch.jit.ScriptModule:
    with user_code(f"{path.name} is not a TorchScript file: reading it", SourceError), _quietly():
        return torch.jit.load(str(path), map_location=device)


@contextmanager
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=DEPRECATION)
        yield


def script_subject(model: torch.jit.ScriptModule, format: str) -> Subject:
    """How the tracer runs a script module that lives in memory: through a saved copy."""

    def opened(device: str) -> torch.jit.ScriptModule:
        with user_code("saving the script module", SourceError), _quietly():
            saved = io.BytesIO()
            torch.jit.save(model, saved)
            saved.seek(0)
            return torch.jit.load(saved, map_location=device)

    return _subject(format, opened)


def _subject(format: str, opened: Opener, device: str = "meta") -> Subject:
    """A loaded script module: its operators carry no path, so weights tell where they run."""
    module = opened(device)

    def run(inputs: CallInputs, scopes: WatchedScopes) -> Any:
        return module(*inputs.args, **inputs.kwargs)

    return Subject(
        format,
        module,
        run,
        lambda values: WeightScopes(),
        real=lambda: _subject(format, opened, "cpu"),
        on_meta=True,
        stored_from_rank=1,
    )
