"""ONNX models written to files: one file, or two where a message would be too long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnx_ir
from onnx import TensorProto, helper, numpy_helper

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.frontends.onnx_types import dtype_of, elements_of

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
