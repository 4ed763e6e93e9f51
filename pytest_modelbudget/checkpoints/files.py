"""The files that a checkpoint consists of: one file, the parts of one, or the contents of a folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_modelbudget.checkpoints import gguf, npz, safetensors, torch_save
from pytest_modelbudget.checkpoints.stored import Checkpoint, StoredTensor, joined, json_file, json_of
from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.formats.source import ModelSource, existing_file
from pytest_modelbudget.units import some_of

Read = Callable[[Path], "tuple[tuple[StoredTensor, ...], Mapping[str, Any]]"]
READERS: Mapping[str, Read] = {
    ".safetensors": safetensors.read,
    ".gguf": gguf.read,
    **dict.fromkeys((".bin", ".ckpt", ".pt", ".pth"), torch_save.read),
    ".npz": npz.read,
}
INDEX = ".index.json"
KINDS = ", ".join(f"*{suffix}" for suffix in (INDEX, *READERS))
CONFIG, ADAPTER = "config.json", "adapter_config.json"
MODULES = "modules.json"  # of sentence-transformers: the parts of a model, most of which are folders
PART = re.compile(r"(.+-)(\d{5})-of-(\d{5})(\.\w+)")  # model-00001-of-00002.safetensors, and the same of .gguf
# In a folder with others, the model itself.
USUAL = ("model.safetensors", "adapter_model.safetensors", "pytorch_model.bin", "adapter_model.bin", "weights.npz")


def read(source: ModelSource) -> Checkpoint:
    """All tensors of the file or folder that a source names; raises SourceError."""
    path = source.base / str(source.target)
    if not path.is_dir():
        file = existing_file(source, "a checkpoint")
        if file.name.endswith(INDEX):
            return _indexed(file, json_next_to(file, CONFIG))
        if file.suffix not in READERS:
            raise SourceError(f"{file.name} is no checkpoint: name one of {KINDS}")
        return _of_files(parts_of(file), json_next_to(file, CONFIG))
    checkpoint = _of_folder(path)
    counted = {tensor.file for tensor in checkpoint.tensors}
    if more := sorted(file for file in path.iterdir() if file.suffix in READERS and file not in counted):
        return replace(checkpoint, notes=(*checkpoint.notes, f"not counted, of the same folder: {_names(more)}"))
    return checkpoint


def _of_folder(path: Path) -> Checkpoint:
    """The one checkpoint of a folder, or an adapter alone; raises SourceError where others belong to it."""
    if adapter := json_next_to(path / ADAPTER, ADAPTER):
        base, kind = (str(adapter.get(key, "?")) for key in ("base_model_name_or_path", "peft_type"))
        note = f"a {kind} adapter of {base}: the base is not counted"
        return replace(_of_files(_files_in(path), {}), notes=(note,))
    _must_be_whole(path)
    config = json_next_to(path / CONFIG, CONFIG)
    indexes = sorted(path.glob(f"*{INDEX}"))
    if len(indexes) > 1:
        raise SourceError(f"{path.name} has {len(indexes)} indexes, {_names(indexes)}: name one checkpoint's folder")
    return _indexed(indexes[0], config) if indexes else _of_files(_files_in(path), config)


def _must_be_whole(folder: Path) -> None:
    """Raise SourceError where folders within have tensors of the same model."""
    modules = json_of(folder / MODULES, list[dict[str, Any]]) if (folder / MODULES).is_file() else []
    parts = [folder / name for module in modules if isinstance(name := module.get("path"), str) and name]
    if more := [part for part in parts if part.is_dir() and any(file.suffix in READERS for file in part.iterdir())]:
        raise SourceError(f"{MODULES} of {folder.name} names {_names(more)}, with tensors, too: name one file")


def json_next_to(file: Path, name: str) -> Mapping[str, Any]:
    """What a JSON file of this name says next to another file; nothing where there is none."""
    path = file.with_name(name)
    return json_file(path) if path.is_file() else {}


def _of_files(files: Iterable[Path], config: Mapping[str, Any]) -> Checkpoint:
    tensors, metadata = list[tuple[StoredTensor, ...]](), dict[str, Any]()
    for file in files:
        found, said = READERS[file.suffix](file)
        tensors.append(found)
        metadata.update(said)
    return Checkpoint(joined(tensors), config, metadata)


def _names(files: Iterable[Path]) -> str:
    return some_of(file.name for file in files)


def parts_of(file: Path) -> Sequence[Path]:
    """All parts of a file that is split, by the number in their names; raises SourceError where one is missing."""
    match = PART.fullmatch(file.name)
    if match is None:
        return (file,)
    before, _, count, suffix = match.groups()
    parts = [file.with_name(f"{before}{at + 1:05}-of-{count}{suffix}") for at in range(min(int(count), MOST_PARTS))]
    if missing := [part for part in parts if not part.is_file()]:
        raise SourceError(f"{file.name} is a part of {len(parts)}, and {_names(missing)} is not there: download it")
    return parts


MOST_PARTS = 10_000


def _files_in(folder: Path) -> Sequence[Path]:
    """The files of a folder without an index: of the first format that it has, one file or the parts of one."""
    for suffix in READERS:
        files = sorted(file for file in folder.iterdir() if file.suffix == suffix)
        files = [file for file in files if file.name in USUAL][:1] or files
        if files and len(files) != len(parts_of(files[0])):
            raise SourceError(f"{folder.name} has {len(files)} checkpoints, {_names(files)}: name one of them")
        if files:
            return parts_of(files[0])
    raise SourceError(f"{folder.name} is a folder without tensors: a checkpoint's has one of {KINDS}")


def _indexed(index: Path, config: Mapping[str, Any]) -> Checkpoint:
    """The tensors of an index; raises SourceError where its files have others."""
    places = json_file(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) and _is_name(name) for name in places.values()):
        raise SourceError(f"{index.name} maps no tensors to files of its folder under 'weight_map': write it again")
    files = [index.with_name(name) for name in dict.fromkeys(places.values())]
    if missing := [file for file in files if not file.is_file()]:
        raise SourceError(f"{index.name} names {_names(missing)}, which is not there: download it")
    checkpoint = _of_files(files, config)
    stored = {tensor.name: tensor.file.name for tensor in checkpoint.tensors}
    for name, file in places.items():
        if stored.get(name) != file:
            raise SourceError(f"{index.name}: {file} has no tensor '{name}': write the index again")
    if more := [name for name in stored if name not in places]:
        raise SourceError(f"{index.name} lacks '{more[0]}' of {stored[more[0]]}: write the index again")
    return checkpoint


def _is_name(name: str) -> bool:
    """Whether this names a file of a known format in the same folder."""
    return Path(name).name == name and Path(name).suffix in READERS
