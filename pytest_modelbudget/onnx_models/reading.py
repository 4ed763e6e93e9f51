"""Reads an ONNX file without the bytes of its weights, or with them, and writes one."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it has no types
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor

from pytest_modelbudget.errors import SourceError, TransformError, user_code
from pytest_modelbudget.formats.source import OR_A_PART
from pytest_modelbudget.graph.tensor import nbytes_of
from pytest_modelbudget.onnx_models.exporter_names import rename_repeated_calls
from pytest_modelbudget.onnx_models.functions import SORTED, inlined, sort_nodes
from pytest_modelbudget.onnx_models.program import Body, Program, StoredTensor, stored_tensor
from pytest_modelbudget.onnx_models.protos import (
    VALUE_FIELDS,
    all_tensors,
    place_of,
    strip_values,
    tensors_in,
    with_graph,
)
from pytest_modelbudget.onnx_models.value_types import FLOATING, dtype_of
from pytest_modelbudget.onnx_models.weights import untrained, values_inside
from pytest_modelbudget.ops.table import OpTable

MOST_ELEMENTS_KEPT = 256  # of a tensor whose values may decide a shape
_INTEGERS = frozenset({TensorProto.INT64, TensorProto.INT32})


@dataclass(frozen=True, slots=True)
class ReadModel:
    """A model without the bytes of its weights, its functions inlined and its nodes in order.

    untrained are stored tensors whose values say that nobody trained them.
    """

    program: Program
    untrained: frozenset[str]
    notes: tuple[str, ...] = ()


def read_model(path: Path, rules: OpTable) -> ReadModel:
    """The model in a file: no weight is looked at, so that external data may be missing.

    Only small integer tensors (shapes) and the first values of what may be a mask are read. Raises
    SourceError for a file that is no ONNX model or that names data outside its own folder.
    """
    program, is_sorted = inlined(Program(_parsed(path), rules), path.name)
    tensors = tuple(_stored(program.everything()))
    with user_code(f"reading the stored tensors of {path.name}", SourceError):
        for tensor in tensors:
            _refuse_damaged(tensor, path)

    def values(tensor: StoredTensor) -> Any:
        return _values_beside(tensor, path) if tensor.is_outside else values_inside(tensor)

    names = untrained(program.graph, values)
    for tensor in (tensor for tensor in tensors if tensor.is_outside):
        _load_small_values(tensor, path.parent)
    for tensor in tensors:
        for values_field in VALUE_FIELDS if tensor.type.elements > MOST_ELEMENTS_KEPT else ():
            tensor.proto.ClearField(values_field)
    return ReadModel(program, names, (SORTED,) if is_sorted else ())


def weightless_model(program: Program, file: str) -> ReadModel:
    """A model in memory, read as a file of that name would be."""
    light, is_sorted = inlined(Program(weightless(program.model), program.rules), file)
    whole = {tensor.name: tensor for tensor in program.graph.initializers}

    def values(tensor: StoredTensor) -> Any:
        return values_inside(whole.get(tensor.name, tensor) if tensor.values is None else tensor)

    return ReadModel(light, untrained(light.graph, values), notes=(SORTED,) if is_sorted else ())


def _parsed(path: Path) -> onnx.ModelProto:
    """The message that a file is; raises SourceError where it is no model."""
    proto = onnx.ModelProto()
    nothing = f"{path.name} is not an ONNX model{OR_A_PART}"
    with (
        user_code(f"reading {path.name}", SourceError),
        path.open("rb") as file,
        mmap(file.fileno(), 0, access=ACCESS_READ) as mapped,  # a copy less than bytes
        memoryview(mapped) as content,
    ):
        try:
            proto.ParseFromString(_without_large_values(content, path.name))
        except DecodeError as error:
            raise SourceError(nothing) from error
    if not (proto.HasField("graph") and proto.opset_import and proto.ir_version):
        raise SourceError(nothing)
    rename_repeated_calls(proto)
    return proto


GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9  # numbers of fields of ModelProto, GraphProto and TensorProto in onnx.proto
LARGE = 2**16  # bytes of a tensor that are left where they are
_WIDTHS = {1: 8, 5: 4}  # bytes of a field, by its wire type


def _without_large_values(content: memoryview, file: str) -> bytes | memoryview:
    """A model's message in which large tensors of its graph name the place of their values in the file itself.

    A message that is not as it should be stays as it is, for protobuf to refuse.
    """
    try:
        parts: list[bytes | memoryview] = []
        for number, begin, start, end in _fields(content, 0, len(content)):
            graph = _light_graph(content, start, end, file) if number == GRAPH and end - start > LARGE else None
            parts += [content[begin:end]] if graph is None else [_tag(GRAPH, len(graph)), graph]
        return b"".join(parts)
    except (IndexError, ValueError, DecodeError):
        return content


def _light_graph(content: memoryview, start: int, end: int, file: str) -> bytes:
    parts: list[bytes | memoryview] = []
    for number, begin, inside, after in _fields(content, start, end):
        tensor = (
            _light_tensor(content, inside, after, file) if number == INITIALIZER and after - inside > LARGE else b""
        )
        parts += [_tag(INITIALIZER, len(tensor)), tensor] if tensor else [content[begin:after]]
    return b"".join(parts)


def _light_tensor(content: memoryview, start: int, end: int, file: str) -> bytes:
    """The message of a tensor without its values; b"" of one that has none of so many bytes in one place."""
    fields = [*_fields(content, start, end)]
    values = [(inside, after) for number, _, inside, after in fields if number == RAW_DATA]
    if len(values) != 1 or values[0][1] - values[0][0] <= LARGE:
        return b""
    made = TensorProto.FromString(
        b"".join(content[begin:after] for number, begin, _, after in fields if number != RAW_DATA)
    )
    if made.data_location == TensorProto.EXTERNAL or made.data_type == TensorProto.STRING:
        return b""
    del made.external_data[:]
    made.data_location = TensorProto.EXTERNAL
    (inside, after) = values[0]
    for key, value in {"location": file, "offset": inside, "length": after - inside}.items():
        made.external_data.add(key=key, value=str(value))
    return bytes(made.SerializeToString())


def _fields(content: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, begin, begin of the value, end) of every field of a message. Raises ValueError where it is none."""
    while at < end:
        begin = at
        key, at = _varint(content, at)
        if key & 7 == 2:
            size, at = _varint(content, at)
            after = at + size
        elif key & 7 == 0:
            after = _varint(content, at)[1]
        else:
            after = at + _WIDTHS.get(key & 7, end)
        if after > end:
            raise ValueError("a field ends behind its message")
        yield key >> 3, begin, at, after
        at = after


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    """A number of protobuf, seven bits a byte from the lowest on, and the place behind it."""
    number = shift = 0
    while True:
        byte = content[at]
        number, shift, at = number | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return number, at


def _tag(number: int, size: int) -> bytes:
    """The header of a field of so many bytes."""
    written = bytearray([number << 3 | 2])
    while size > 127:
        written.append(size & 127 | 128)
        size >>= 7
    return bytes([*written, size])


def _stored(bodies: Iterable[Body]) -> Iterator[StoredTensor]:
    """Every tensor that is stored in some bodies: initializers, and what attributes hold."""
    for body in bodies:
        yield from body.initializers
        for node in body.nodes:
            if node.tensors:
                yield from (stored_tensor(tensor.name, tensor) for tensor in tensors_in((node.proto,)))


def _refuse_damaged(tensor: StoredTensor, path: Path) -> None:
    """Raise SourceError for impossible sizes, other bytes of values than these want, and data outside the folder."""
    proto, sizes, wanted = tensor.proto, tensor.shape, tensor.type.nbytes
    name = f"{path.name}: the stored tensor '{proto.name}'"
    if not tensor.type.is_plain and min(sizes, default=0) < 0:
        raise SourceError(f"{name} has a negative dimension: {list(sizes)}")
    beside = tensor.beside
    length = len(proto.raw_data) or None  # a stripped file has none
    if tensor.is_outside:
        length = int(beside["length"]) if "length" in beside else None
        if int(beside.get("offset") or 0) < 0:
            raise SourceError(f"{name} begins before its file: {beside['offset']}")
    if length is not None and length != wanted and tensor.type.code != TensorProto.STRING:
        raise SourceError(
            f"{name} has {length:,} bytes of values, and its shape "
            f"{list(sizes)} of {tensor.dtype.name} asks for {wanted:,}: it was damaged, or cut off"
        )
    if tensor.is_outside and not _is_below(location := _location(tensor.beside)):
        raise SourceError(
            f"{path.name}: the data of '{proto.name}' lie outside the model's folder "
            f"({location!r}): save the model with its data next to it"
        )


def _location(beside: Mapping[str, str]) -> str:
    return beside.get("location", "")


@lru_cache(maxsize=64)
def _is_below(location: str) -> bool:
    """Whether a place is one in the model's folder, or below; tensors of a model mostly share one."""
    path = PurePosixPath(location)
    is_elsewhere = path.is_absolute() or ".." in path.parts or PureWindowsPath(location).drive
    return bool(location) and not is_elsewhere


def _file_beside(folder: Path, location: str) -> Path | None:
    """The file with values that tensors call so, below a model's folder; None where it is not there."""
    path = folder / location
    return path if _is_below(location) and path.is_file() else None


def _values_beside(tensor: StoredTensor, path: Path) -> Any:
    """The values of a tensor in another file, read where they are looked at; None where that has not got them."""
    code = tensor.type.code
    is_read = code in FLOATING and not tensor.is_sparse
    file = _file_beside(path.parent, _location(tensor.beside)) if is_read else None
    if file is None:
        return None
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(code))
    at = int(tensor.beside.get("offset") or 0)
    if not 0 < tensor.type.elements * dtype.itemsize <= file.stat().st_size - at:
        return None
    return np.memmap(file, dtype, "r", at, (tensor.type.elements,))


def _may_decide_a_shape(tensor: StoredTensor) -> bool:
    """Whether its values may decide a shape."""
    return tensor.type.code in _INTEGERS and tensor.type.elements <= MOST_ELEMENTS_KEPT


def _load_small_values(tensor: StoredTensor, folder: Path) -> None:
    """Read the values of a tensor in another file where they may decide a shape; all others it has none of."""
    proto = tensor.proto
    if _may_decide_a_shape(tensor) and _file_beside(folder, _location(tensor.beside)):
        with user_code(f"reading the external data of '{proto.name}'", SourceError):
            load_external_data_for_tensor(proto, str(folder))
        proto.data_location = TensorProto.DEFAULT


def weightless(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without the values of its initialisers, but for small ones; those that lie beside it keep their place."""
    stored = (
        tensor if prod(tensor.dims) <= MOST_ELEMENTS_KEPT else _emptied(tensor) for tensor in model.graph.initializer
    )
    return with_graph(model, model.graph.node, stored)


def _emptied(tensor: TensorProto) -> TensorProto:
    light = strip_values(tensor)
    if tensor.data_location == TensorProto.EXTERNAL:
        light.external_data.extend(tensor.external_data)
        light.data_location = TensorProto.EXTERNAL
    return light


def model_with_weights(path: Path) -> onnx.ModelProto:
    """The model in a file with its values in memory; those in missing files stay outside.

    Raises SourceError for a file that is no ONNX model.
    """
    with user_code(f"reading {path.name}", SourceError):
        model = onnx.load(str(path), load_external_data=False)
        rename_repeated_calls(model)
        sort_nodes(model)
        for tensor in all_tensors(model):
            if tensor.data_location == TensorProto.EXTERNAL and _file_beside(path.parent, _location(place_of(tensor))):
                load_external_data_for_tensor(tensor, str(path.parent))
                tensor.data_location = TensorProto.DEFAULT
                del tensor.external_data[:]
    return model


def with_all_weights(path: Path) -> onnx.ModelProto:
    """The model in a file with its values in memory. Raises TransformError where some are not."""
    model = model_with_weights(path)
    missing = missing_weights(model, path.name)
    if missing:
        raise TransformError(missing)
    return model


def missing_weights(model: onnx.ModelProto, file: str) -> str:
    """A sentence on a stored tensor whose values lie in a file that is not there; "" where all are in memory."""
    outside = (tensor.name for tensor in all_tensors(model) if tensor.data_location == TensorProto.EXTERNAL)
    name = next(outside, None)
    return "" if name is None else f"{file}: the data of '{name}' lie in a file that is not there"


def weight_files(path: Path) -> tuple[Path, ...]:
    """The files with a model's weights, those that are there."""
    with user_code(f"reading {path.name}", SourceError):
        stored = all_tensors(onnx.load(str(path), load_external_data=False))
    files = (_file_beside(path.parent, _location(place_of(tensor))) for tensor in stored)
    return tuple(dict.fromkeys(filter(None, files)))


LARGEST_MESSAGE = 2**31 - 1  # bytes of one protobuf message
ROOM_FOR_NODES = 2**26  # what nodes and names may take beside the weights
LEAST_BESIDE = 1024  # bytes of a tensor whose values go to the file beside
PAGE = 4096  # bytes; onnx's documentation asks for offsets that are multiples of it


def write_model(model: onnx.ModelProto, path: Path, *, largest: int = LARGEST_MESSAGE) -> None:
    """Write a model; weights too large for one message lie in a file beside it, FILE.data."""
    weights = sum(_nbytes(tensor) for tensor in model.graph.initializer)
    beside = weights + ROOM_FOR_NODES > largest
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if beside:
            data = path.with_name(f"{path.name}.data")
            model = with_graph(model, model.graph.node, _write_values(model, data))
        path.write_bytes(model.SerializeToString())
    except OSError as error:
        raise TransformError(f"cannot write {path}: {error.strerror or error}") from error


def _write_values(model: onnx.ModelProto, data: Path) -> list[TensorProto]:
    """Write the values of large initializers to a file; all initializers, the large ones naming it.

    Each begins at a whole page, so that a reader can map it into memory.
    """
    stored = []
    with data.open("wb") as file:
        for tensor in model.graph.initializer:
            if _nbytes(tensor) < LEAST_BESIDE or tensor.data_location == TensorProto.EXTERNAL:
                stored.append(tensor)
                continue
            values = tensor.raw_data or numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data
            file.write(bytes(-file.tell() % PAGE))
            place = {"location": data.name, "offset": file.tell(), "length": file.write(values)}
            outside = strip_values(tensor)
            outside.data_location = TensorProto.EXTERNAL
            for key, value in place.items():
                outside.external_data.add(key=key, value=str(value))
            stored.append(outside)
    return stored


def _nbytes(tensor: TensorProto) -> int:
    """Bytes of a stored tensor's values, in the file or next to it."""
    return nbytes_of(prod(tensor.dims), dtype_of(tensor.data_type))
