"""``huggingface:`` a model built without weights from its config.json; sizes are those of the checkpoint next to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from pytest_modelbudget.checkpoints import model as checkpoints
from pytest_modelbudget.checkpoints.stored import json_file
from pytest_modelbudget.errors import SourceError, user_code
from pytest_modelbudget.formats.model import LoadedModel, Model
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.graph.graph import Graph, Weight
from pytest_modelbudget.graph.tensor import StorageKind
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.storage import params
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.torch_models.building import built, without_downloads
from pytest_modelbudget.torch_models.module import load as load_module
from pytest_modelbudget.torch_models.tracing import NO_RUN

FORMAT = "huggingface"
CONFIG = "config.json"
AS_STORED = "built from config.json; params and sizes are of the checkpoint"


def load(source: ModelSource, rules: OpTable) -> Model:
    """The model of a configuration, with what is stored next to it.

    Raises SourceError for a file that is no configuration, an architecture that is not installed, and a checkpoint that
    lacks a module of it.
    """
    model, folder = load_module(_as_module(source), rules), config_file(source).parent
    has_checkpoint = checkpoints.is_checkpoint(folder)
    if source.inputs and not has_checkpoint:
        return model
    measured = model.measured
    graph, notes = measured.graph, [note for note in measured.notes if note != NO_RUN]  # no model makes any in its pass
    if has_checkpoint:
        stored = checkpoints.load(ModelSource("checkpoint", str(folder), base=source.base), rules)
        _check_whole(folder, graph, stored.graph, rules)
        graph = replace(graph, weights=tuple(_stored(graph, stored.graph)))
        notes += [*stored.notes, AS_STORED]
    return LoadedModel(graph, FORMAT, measured.traced, measured.layers, tuple(notes), measured.offered)


def _check_whole(folder: Path, built: Graph, stored: Graph, rules: OpTable) -> None:
    """Raises SourceError where a checkpoint has fewer parameters than its model, and none of one of its modules."""
    of_model, of_files = (CostedGraph(graph, rules).once(params) for graph in (built, stored))
    if of_files.complete and of_files.value < of_model.value:
        known = {_place(weight.scope) for weight in stored.weights}
        found = {weight.tensor.storage for weight in built.weights if _place(weight.scope) in known}  # tied ones, too
        for weight in built.weights:
            if weight.kind is StorageKind.PARAMETER and weight.tensor.storage not in found:
                lacks = f"{folder.name} lacks '{weight.tensor.name}', which its {CONFIG} describes"
                raise SourceError(f"{lacks}: download all its files, or write it under checkpoint:")


def _place(scope: str) -> str:
    """The path of a module from its numbered layer on, "layers.0.mlp", or its last name: what is before differs."""
    parts = scope.split(".")
    layer = next((at for at, part in enumerate(parts) if part.isdigit()), len(parts))
    return ".".join(parts[max(layer - 1, 0) :])


def _stored(built: Graph, stored: Graph) -> Iterator[Weight]:
    """The tensors of a checkpoint: of those that are as in the model, the model's own; and what it does not save."""
    own = {weight.tensor.name: weight for weight in built.weights}
    for weight in stored.weights:
        tensor, same = weight.tensor, own.get(weight.tensor.name)
        is_same = same is not None and (same.tensor.shape, same.tensor.dtype) == (tensor.shape, tensor.dtype)
        yield same if same is not None and is_same else weight
    yield from (weight for weight in built.weights if not weight.persistent)


def module(source: ModelSource) -> nn.Module:
    """The module that a configuration describes, whose weights have no memory."""
    return built(_as_module(source))


def _as_module(source: ModelSource) -> ModelSource:
    return replace(source, format="torch", target=partial(_build, config_file(source)))


def config_file(source: ModelSource) -> Path:
    """The configuration that a source names, itself or by its folder; raises SourceError where there is none."""
    path = source.base / str(source.target)
    path = path / CONFIG if path.is_dir() else path
    if not path.is_file():
        raise SourceError(f"{source.target} has no {CONFIG}: name a folder with one, or write it under checkpoint:")
    return path


def _build(path: Path) -> nn.Module:
    said = json_file(path)
    names = said.get("architectures") or ["AutoModelForCausalLM"]
    library: Any = transformers
    kind = getattr(library, str(names[0]), None) if isinstance(names, list) else None
    if kind is None:
        raise SourceError(
            f"{path.parent.name}: the architecture {str(names)[:80]} is not in transformers "
            f"{transformers.__version__}: update it, or name a callable under torch:"
        )
    with without_downloads(), user_code(f"reading {path.name}", SourceError), torch.device("meta"):
        config = library.AutoConfig.from_pretrained(path, trust_remote_code=False)
        if hasattr(config, "quantization_config"):
            del config.quantization_config  # of what is stored, which the checkpoint says itself
        dtype = getattr(config, "dtype", None) or torch.float32
        make = kind._from_config if hasattr(kind, "_from_config") else kind.from_config
        model: nn.Module = make(config, dtype=dtype)
    return model
