"""``torchscript:`` a file that ``torch.jit.save`` wrote."""

import io
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from torch import nn

from pytest_modelbudget.errors import SourceError, TraceError, user_code
from pytest_modelbudget.formats.model import LoadedModel, no_training_step
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, existing_file, must_be
from pytest_modelbudget.graph.graph import Graph
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.torch_models.environment import torch_as_it_starts
from pytest_modelbudget.torch_models.module_paths import WeightScopes
from pytest_modelbudget.torch_models.recording import Scopes
from pytest_modelbudget.torch_models.running import TorchModel
from pytest_modelbudget.torch_models.tracing import Rewriting, Subject, traced
from pytest_modelbudget.torch_models.values import CallInputs
from pytest_modelbudget.torch_models.versions import script_methods
from pytest_modelbudget.torch_models.weights import module_tree

Opener = Callable[[str], torch.jit.ScriptModule]
SCRIPT = torch.jit.ScriptModule
ONEDNN = "prim::ConstantMKLDNNTensor"  # a weight in oneDNN's form
OPTIMISED = (
    "torch.jit.optimize_for_inference left weights in oneDNN's form, which neither a file holds nor an operator reads: "
    "give the script that it was made of, or torch.jit.freeze() of that"
)
OVERLOADED = "forward__"  # as torch calls the overloads of a forward (nn.GRU, nn.LSTM) in a script
DEPRECATION = "`torch.jit"  # torch >= 2.15 warns at each use; the format stays supported here


def load(source: ModelSource, rules: OpTable) -> TorchModel:
    """The model in a TorchScript file."""
    return TorchModel(ScriptSource(source), rules)


@dataclass(frozen=True, slots=True)
class ProgramSource(ABC):
    """A program in a file or in memory, with torch as it starts: nobody trains it, and no factory builds it."""

    source: ModelSource

    @abstractmethod
    def build(self, seed: int = 0) -> tuple[Subject, InputSpecs]:
        """The program with its weights, and what it takes."""

    def trace(self, model: TorchModel) -> LoadedModel:
        with self.surroundings():
            subject, specs = self.build()
            return traced(subject, specs, model.rules, rewriting=model.rewriting())

    def training_step(self, model: TorchModel, optimizer: str) -> Graph:
        raise no_training_step(model.format)

    def is_factory(self) -> bool:
        return False

    def surroundings(self) -> AbstractContextManager[None]:
        return torch_as_it_starts()

    def reachable(self, model: TorchModel) -> nn.Module:
        return model.subject.model


class ScriptSource(ProgramSource):
    """A TorchScript file."""

    __slots__ = ()

    def trace(self, model: TorchModel) -> LoadedModel:
        """The graph of the file, in eval mode."""
        opened, specs = opener(self.source), self.source.inputs
        with self.surroundings():
            return script_graph("torchscript", opened, specs, model.rules, model.rewriting())

    def build(self, seed: int = 0) -> tuple[Subject, InputSpecs]:
        with self.surroundings():
            return script_subject("torchscript", opener(self.source)), self.source.inputs


def opener(source: ModelSource) -> Opener:
    """Reads the file that a source names onto a device."""
    path = existing_file(source, "a TorchScript file")
    must_be(path, "torchscript")
    if source.dtype is not None:
        raise SourceError("dtype converts modules, not TorchScript: save it in that type")
    return lambda device: _loaded(path, device)


def _loaded(path: Path, device: str) -> torch.jit.ScriptModule:
    with user_code(f"{path.name} is not a TorchScript file: reading it", SourceError):
        return _read(str(path), device)


def _read(file: Any, device: str) -> torch.jit.ScriptModule:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=DEPRECATION)
        try:
            loaded: torch.jit.ScriptModule = torch.jit.load(  # type: ignore[no-untyped-call]
                file, map_location=device
            )
        except RuntimeError as error:
            if _lacks_weights(file):
                raise SourceError(OPTIMISED) from error
            raise
    names = [method.name for method in script_methods(loaded)]
    if "forward" not in names:
        overloaded = any(name.startswith(OVERLOADED) for name in names)
        why = "but overloads, of which torch calls none" if overloaded else "which stayed in Python (torch.jit.ignore)"
        raise SourceError(f"{loaded.original_name} as a script has no forward, {why}: script a module that calls it")
    return loaded


def _lacks_weights(file: Any) -> bool:
    """Whether a file, or what was written in memory, reads weights in oneDNN's form, which it does not hold."""
    with suppress(BadZipFile), ZipFile(file) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py")]
        called = f"ops.{ONEDNN.replace('::', '.')}(".encode()
        return any(called in archive.read(name) for name in names)
    return False


def script_graph(
    format: str, opened: Opener, specs: InputSpecs, rules: OpTable, rewriting: Rewriting | None = None
) -> LoadedModel:
    """The graph of a script module: without its weights, else with them and meta inputs, else run.

    TorchScript compares tensor constants by value, when reading a file and when first running it.
    Meta tensors have none, so such a module is read with its weights, which are then not touched.
    """
    try:
        meta = script_subject(format, opened, "meta")
        return traced(meta, specs, rules, ways=("meta",), rewriting=rewriting)
    except (TraceError, SourceError):
        real = script_subject(format, opened, "cpu")
        return traced(real, specs, rules, ways=("meta", "real"), rewriting=rewriting)


def saved_copy(model: torch.jit.ScriptModule) -> Opener:
    """Reads a script module that lives in memory, through a copy saved in memory.

    Raises SourceError for one that a file cannot hold.
    """
    saved = io.BytesIO()
    with user_code("saving the script module", SourceError), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=DEPRECATION)
        torch.jit.save(model, saved)

    def read(device: str) -> torch.jit.ScriptModule:
        with user_code("reading the script module", SourceError):
            return _read(io.BytesIO(saved.getvalue()), device)

    return read


def script_subject(format: str, opened: Opener, device: str = "cpu") -> Subject:
    """A loaded script module."""
    return _subject(format, opened, opened(device))


def _subject(format: str, opened: Opener, module: Any) -> Subject:
    def run(inputs: CallInputs, scopes: Scopes) -> Any:
        return module.eval()(*inputs.args, **inputs.kwargs)

    return Subject(
        format,
        module,
        run,
        lambda values, modules: WeightScopes(),
        real=lambda: script_subject(format, opened, "cpu"),
        of_instance=lambda other: _subject(format, opened, other),
        keeps_weights=True,
        stored_from_rank=1,
        frozen=frozen_parts(module),
    )


def _scripts_in(model: nn.Module) -> list[tuple[str, Any]]:
    return [(path, part) for path, part in module_tree(model) if isinstance(part, SCRIPT)]


def refuse_optimised(model: nn.Module) -> None:
    """Raises SourceError for a script in a model that computes in oneDNN's form, where no operator is seen."""
    for path, script in _scripts_in(model):
        if any(method.graph.findNode(ONEDNN, True) for method in script_methods(script)):  # in its blocks, too
            raise SourceError(f"{path}: {OPTIMISED}" if path else OPTIMISED)


def frozen_parts(model: nn.Module) -> tuple[str, ...]:
    """Paths of the frozen scripts in a model: freezing folds the mode away, too."""
    scripts = _scripts_in(model)
    return tuple(path for path, script in scripts if not hasattr(script, "training"))
