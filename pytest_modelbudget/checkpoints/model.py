"""Checkpoints as models: every tensor a stored weight, and no operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_modelbudget.checkpoints.files import CONFIG, READERS, read
from pytest_modelbudget.checkpoints.layouts import BUFFER, Role, roles
from pytest_modelbudget.checkpoints.stored import Checkpoint, StoredTensor
from pytest_modelbudget.errors import InputError
from pytest_modelbudget.formats.model import LoadedModel
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.graph.graph import Graph, Weight
from pytest_modelbudget.graph.tensor import Storage, Tensor, contiguous_strides
from pytest_modelbudget.ops.table import OpTable

NO_OPERATIONS = "a checkpoint has no operations"


def load(source: ModelSource, rules: OpTable) -> LoadedModel:
    """The tensors of a file or folder, by their headers.

    Raises SourceError where these do not describe it, InputError for inputs, which nothing would read.
    """
    if source.inputs or source.dims:
        raise InputError(f"{source.target}: {NO_OPERATIONS}, so nothing reads inputs: give no inputs and no dims")
    checkpoint = read(source)
    known = roles(checkpoint)
    storages: dict[str, Storage] = {}
    weights = tuple(_weight(tensor, known[tensor.name], storages) for tensor in checkpoint.tensors)
    way_out = ""
    if "architectures" in checkpoint.config:
        way_out = f": show {_config(source)}, or write it under huggingface:"
    graph = Graph((), (), (), weights, operations_unknown=NO_OPERATIONS + way_out)
    return LoadedModel(graph, "checkpoint", notes=(*checkpoint.notes, *_notes(checkpoint, known)))


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder has a file that stores tensors. Opens none."""
    return any(file.suffix in READERS for file in folder.iterdir())


def _config(source: ModelSource) -> Path:
    """The config.json of a checkpoint, as its source is named."""
    target = Path(str(source.target))
    return target / CONFIG if (source.base / target).is_dir() else target.with_name(CONFIG)


def _weight(tensor: StoredTensor, role: Role, storages: dict[str, Storage]) -> Weight:
    key = tensor.storage or tensor.name
    storage = storages.setdefault(key, Storage(key, tensor.nbytes, role.kind))
    offset, strides = tensor.offset if tensor.storage else 0, contiguous_strides(tensor.shape)
    value = Tensor(tensor.name, tensor.shape, tensor.dtype, storage, offset, strides)
    return Weight(value, trainable=None, packed=role.logical)


def _notes(checkpoint: Checkpoint, known: Mapping[str, Role]) -> Iterator[str]:
    """Which layouts pack weights, and which tensors count as buffers by their names."""
    layouts = Counter(role.layout for role in known.values() if role.layout)
    if layouts:
        yield "packed weights: " + ", ".join(f"{count:,} in {layout}'s layout" for layout, count in layouts.items())
    buffers = Counter(
        name.removesuffix(".weight").rpartition(".")[2]
        for name, role in known.items()
        if role.kind is BUFFER and role.logical
    )
    if buffers:
        yield "buffers, by their names: " + ", ".join(f"{count:,} x {name}" for name, count in buffers.items())
