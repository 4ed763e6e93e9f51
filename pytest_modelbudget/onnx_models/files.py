"""Reading an ONNX file without its weights' bytes, and refusing what is none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import onnx
import onnx_ir
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor

from pytest_modelbudget.errors import InputError, SourceError, TransformError
from pytest_modelbudget.formats.user_code import user_code
from pytest_modelbudget.onnx_models.program import all_graphs, dtype_of, elements_of
from pytest_modelbudget.onnx_models.weights import masks

MOST_ELEMENTS_KEPT = 256  # of a tensor whose values may decide a shape
_INTEGERS = frozenset({TensorProto.INT64, TensorProto.INT32})
_VALUE_FIELDS = (
    "raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data",
    "string_data",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReadModel:
    """A model without the bytes of its weights; masks are the stored tensors that could be one."""

    proto: onnx.ModelProto
    masks: frozenset[str]

    @property
    def opsets(self) -> Mapping[str, int]:
        """Version of each operator set, by domain; the standard one is ""."""
        return {_domain(each.domain): each.version for each in self.proto.opset_import}


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def read_model(path: Path) -> ReadModel:
    """The model in a file: no weight is looked at, so that external data may be missing.

    Only small integer tensors (shapes) are read, and what holds 0 and −inf alone (masks). Raises
    SourceError for a file that is no ONNX model or that names data outside its own folder.
    """
    proto = onnx.ModelProto()
    doing = f"{path.name} is not an ONNX model, or only a part of one: reading it"
    with (
        user_code(doing, SourceError),
        path.open("rb") as file,
        mmap(file.fileno(), 0, access=ACCESS_READ) as mapped,  # a copy less than bytes
        memoryview(mapped) as content,
    ):
        proto.ParseFromString(content)
    if not (proto.HasField("graph") and proto.opset_import and proto.ir_version):
        raise SourceError(f"{path.name} is not an ONNX model: it holds no graph with operator sets")
    graphs = tuple(all_graphs(proto.graph))
    tensors = tuple(_stored(graphs, proto.functions))
    for tensor in tensors:
        _refuse_impossible(tensor, path)
    found, folder = masks(graphs), path.parent
    for tensor in tensors:
        _lighten(tensor, folder)
    return ReadModel(proto, found)


def _stored(
    graphs: Iterable[onnx.GraphProto], functions: Iterable[onnx.FunctionProto]
) -> Iterator[TensorProto]:
    """Every tensor that the file stores, inside bodies and functions too."""
    for graph in graphs:
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield sparse.values
        yield from _in_attributes(graph.node)
    for function in functions:
        yield from _in_attributes(function.node)


def _in_attributes(nodes: Iterable[onnx.NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            kind = attribute.type
            if kind == AttributeProto.TENSOR:
                yield attribute.t
            elif kind == AttributeProto.TENSORS:
                yield from attribute.tensors


def _refuse_impossible(tensor: TensorProto, path: Path) -> None:
    if min(tensor.dims, default=0) < 0:
        raise SourceError(
            f"{path.name}: the stored tensor '{tensor.name}' has a negative dimension: "
            f"{list(tensor.dims)}"
        )
    if tensor.data_location == TensorProto.EXTERNAL:
        location = _location(tensor)
        pure = PurePosixPath(location)
        outside = pure.is_absolute() or ".." in pure.parts or PureWindowsPath(location).drive
        if outside or not location:
            raise SourceError(
                f"{path.name}: the data of '{tensor.name}' lie outside the model's folder "
                f"({location!r}): save the model with its data beside it"
            )


def _location(tensor: TensorProto) -> str:
    return next((each.value for each in tensor.external_data if each.key == "location"), "")


def _lighten(tensor: TensorProto, folder: Path) -> None:
    """Drop the values of a tensor, but for the few that may decide a shape."""
    external = tensor.data_location == TensorProto.EXTERNAL
    is_large = elements_of(tensor) > MOST_ELEMENTS_KEPT
    if is_large:
        for field in _VALUE_FIELDS:
            tensor.ClearField(field)
    elif external and tensor.data_type in _INTEGERS and (folder / _location(tensor)).is_file():
        with user_code(f"reading the external data of '{tensor.name}'", SourceError):
            load_external_data_for_tensor(tensor, str(folder))
        external = False
    if external or is_large:
        tensor.ClearField("external_data")
        tensor.data_location = TensorProto.DEFAULT


def has_values(tensor: TensorProto) -> bool:
    """Whether the values of a lightened tensor are still there."""
    return any(getattr(tensor, field) for field in _VALUE_FIELDS) or not elements_of(tensor)


def bind_dims(proto: onnx.ModelProto, dims: Mapping[str, int], file: str) -> None:
    """Write sizes in place of symbols; a symbol that no input has is refused.

    An input's dimension without a name goes by "input.axis". Raises InputError naming the
    symbols that there are, and SourceError for a negative dimension.
    """
    symbols = set()
    for value in proto.graph.input:
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
            if dimension.dim_value < 0:
                raise SourceError(
                    f"{file}: dimension {axis} of input '{value.name}' is negative "
                    f"({dimension.dim_value}): export it as a symbol, or with a size"
                )
            if not dimension.dim_param and not dimension.HasField("dim_value"):
                dimension.dim_param = f"{value.name}.{axis}"
            symbols.add(dimension.dim_param)
    unknown = sorted(set(dims) - symbols)
    if unknown:
        known = ", ".join(sorted(symbols - {""})) or "none at all"
        raise InputError(f"dims: no input of {file} has a dimension '{unknown[0]}': {known}")
    if not dims:
        return
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param in dims:
                dimension.dim_value = dims[dimension.dim_param]


LARGEST_MESSAGE = 2**31 - 1  # bytes of one protobuf message
ROOM_FOR_NODES = 2**26  # what nodes and names may take beside the weights
OPSET, IR_VERSION = 18, 8


def write_model(model: onnx.ModelProto, path: Path, *, largest: int = LARGEST_MESSAGE) -> None:
    """Write a model; weights too large for one message lie in a file beside it, FILE.data.

    Raises TransformError where the file cannot be written.
    """
    weights = sum(nbytes_of(tensor) for tensor in model.graph.initializer)
    beside = weights + ROOM_FOR_NODES > largest
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if beside:
            data = path.with_name(f"{path.name}.data")
            onnx_ir.save(onnx_ir.from_proto(model), path, external_data=data.name)
        else:
            path.write_bytes(model.SerializeToString())
    except OSError as error:
        raise TransformError(f"cannot write {path}: {error.strerror or error}") from error


def linear_model(
    m: int, k: int, n: int, *, bias: bool = True, dtype: str = "float32", seed: int = 0
) -> onnx.ModelProto:
    """x (m, k) → Gemm → y (m, n) with drawn weights: W (n, k) from N(0, 1/√k), b from N(0, 0.1)."""
    arrays = _drawn(k, n, bias, dtype, seed)
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    code = helper.np_dtype_to_tensor_dtype(arrays["linear.weight"].dtype)
    gemm = helper.make_node("Gemm", ["x", *arrays], ["y"], "/linear/Gemm", transB=1)
    graph = helper.make_graph(
        [gemm],
        "linear",
        [helper.make_tensor_value_info("x", code, [m, k])],
        [helper.make_tensor_value_info("y", code, [m, n])],
        weights,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    made.ir_version = IR_VERSION
    return made


def _drawn(k: int, n: int, bias: bool, dtype: str, seed: int) -> dict[str, Any]:
    import numpy as np

    generator = np.random.Generator(np.random.Philox(seed))
    arrays = {"linear.weight": generator.standard_normal((n, k)) / k**0.5}
    if bias:
        arrays["linear.bias"] = generator.standard_normal(n) * 0.1
    return {name: array.astype(dtype) for name, array in arrays.items()}


def nbytes_of(tensor: TensorProto) -> int:
    """Bytes of a stored tensor's values, whether they lie in the file or beside it."""
    return -(-elements_of(tensor) * dtype_of(tensor.data_type).bits // 8)
