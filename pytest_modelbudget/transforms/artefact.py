"""What ships of a transform: the changed model in a file, and a certificate of what was judged, in JSON next to it.

A certificate holds digests of the source, of the changed model and of the file, the claim and its outcome, the inputs,
every figure, and versions; and a digest of its own text.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pytest_modelbudget.equivalence.user_inputs import GivenInputs
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.model import Model, RunnableModel
from pytest_modelbudget.formats.source import ModelSource

Record = dict[str, Any]
SUFFIX = ".certificate.json"
WRITERS: Mapping[str, tuple[str, tuple[str, ...]]] = {  # by engine: the module that writes, and what it can write
    "torch": ("pytest_modelbudget.transforms.artefact_on_torch", (".pt2", ".safetensors")),
    "onnx": ("pytest_modelbudget.onnx_models.model", (".onnx",)),
}


def certificate_of(file: Path) -> Path:
    """Where the certificate of a file is."""
    return file.with_name(file.name + SUFFIX)


def write(model: Model, file: Path) -> None:
    """Write a changed model. Raises TransformError for a suffix that its engine does not write."""
    assert isinstance(model, RunnableModel), "what was judged has run"
    module, suffixes = WRITERS.get(model.engine, ("", ()))
    if file.suffix not in suffixes:
        known = " or ".join(suffixes) or "no file"
        raise TransformError(f"{file.name}: a model of this transform is written as {known}: name such a file")
    writer: Callable[[Model, Path], None] = import_module(module).write
    writer(model, file)


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """A place to write a file, and what lies next to it, that all moves to where it should be, or goes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=file.parent) as folder:
        yield Path(folder, file.name)
        file.with_name(f"{file.name}.data").unlink(missing_ok=True)
        for each in Path(folder).iterdir():
            each.replace(file.with_name(each.name))


def digest_of_file(file: Path) -> str:
    """The SHA-256 of a file, and of the weights that an ONNX file keeps in FILE.data."""
    data = file.with_name(f"{file.name}.data")
    found = sha256(file.read_bytes())
    if data.is_file():
        found.update(data.read_bytes())
    return found.hexdigest()


def digest_of(model: Model) -> str:
    """The SHA-256 of all that a model computes and stores: operations with what they read and give, and values."""
    found = sha256()
    ways = (way for fork in model.graph.forks for way in fork.ways.values())
    for op in (op for graph in (model.graph, *ways) for op in graph.ops):
        values = sorted(op.attributes.items(), key=str)
        tensors = [(each.name, each.shape, each.strides, each.dtype.name) for each in (*op.tensors(), *op.outputs)]
        found.update(repr((op.name, op.scope, op.times, values, tensors)).encode())
    for name, read in sorted(model.tables().items() if isinstance(model, RunnableModel) else ()):
        array = read()
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def spelled(setting: object) -> Any:
    """A setting of a transform, in words that are the same in every copy of a project."""
    if isinstance(setting, Mapping):
        return {key: spelled(value) for key, value in setting.items()}
    if not isinstance(setting, ModelSource):
        return setting.text if isinstance(setting, GivenInputs) else str(setting)
    made = (setting.args, dict(setting.kwargs), setting.dtype or "", dict(setting.dims), setting.qdq)
    return " ".join(map(str, (f"{setting.format}:", setting.target, setting.inputs, *made)))


def _seal(record: Mapping[str, Any]) -> str:
    text = json.dumps({key: value for key, value in record.items() if key != "seal"}, sort_keys=True)
    return sha256(text.encode()).hexdigest()


def write_certificate(file: Path, record: Record) -> Path:
    """Write the certificate of a file, whose digest is added."""
    record = {**record, "file": {"name": file.name, "sha256": digest_of_file(file)}}
    path = certificate_of(file)
    path.write_text(json.dumps({**record, "seal": _seal(record)}, indent=2) + "\n", encoding="utf-8")
    return path


def must_ship(file: Path, shown: str, expected: Mapping[str, Any], model: Model, *, again: str) -> None:
    """Raise TransformError where a file is not what its certificate says, or that is one of other things.

    A program of torch runs once: no digest has a constant that its code makes. again is how it is built again.
    """
    path = certificate_of(file)
    for each in (file, path):
        if not each.is_file():
            raise TransformError(f"shipped: there is no {shown.removesuffix(file.name)}{each.name}: {again}")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        is_whole = isinstance(record, dict) and record.get("seal") == _seal(record)
    except ValueError:
        is_whole = False
    if not is_whole:
        raise TransformError(f"shipped: the certificate of {shown} was changed after it was written: {again}")
    if record["file"]["name"] != file.name:
        raise TransformError(f"shipped: the certificate of {shown} is that of {record['file']['name']}: {again}")
    if record["file"]["sha256"] != digest_of_file(file):
        raise TransformError(f"shipped: {shown} is another file than its certificate names: {again}")
    others = [key for key, value in expected.items() if record.get(key) != value]
    if others:
        raise TransformError(f"shipped: {shown} was built with another {' and '.join(others)}: {again}")
    module = WRITERS["torch"][0]
    if isinstance(model, RunnableModel) and model.engine == "torch" and not import_module(module).computes(model, file):
        raise TransformError(f"shipped: {shown} computes otherwise than the changed model: {again}")
