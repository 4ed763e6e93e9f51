"""Linear layers as ONNX models, and what numpy says that they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from pytest_modelbudget.onnx_models.session import OnnxRun
from tests.builders.onnx_graphs import model, node, value

CODES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


def drawn(seed: int, *shape: int, dtype: str = "float32") -> Any:
    """Values from N(0, 1), in a storage type."""
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def linear(
    k: int, n: int, *, leading: tuple[int | str, ...] = (3,), bias: bool = True, dtype: str = "float32", seed: int = 0
) -> onnx.ModelProto:
    """x (*leading, k) → MatMul and Add, or Gemm with W stored as (n, k) where x is a matrix."""
    weight = drawn(seed, n, k, dtype=dtype) / np.sqrt(k).astype(dtype)
    shift = drawn(seed + 1, n, dtype=dtype)
    if len(leading) == 1:
        reads = "x fc.weight fc.bias" if bias else "x fc.weight"
        nodes = [node("Gemm", reads, "y", transB=1)]
        stored = {"fc.weight": weight, "fc.bias": shift}
    else:
        first = "product" if bias else "y"
        nodes = [node("MatMul", "x fc.weight", first), node("Add", "product fc.bias", "y")]
        stored = {"fc.weight": np.ascontiguousarray(weight.T), "fc.bias": shift}
    nodes = nodes if bias else nodes[:1]
    weights = [numpy_helper.from_array(stored[name], name) for name in stored]
    code = CODES[dtype]
    given, result = value("x", *leading, k, code=code), value("y", *leading, n, code=code)
    return model(nodes, [given], [result], weights if bias else weights[:1])


def expected(proto: onnx.ModelProto, x: Any) -> Any:
    """The same layer in float64, by numpy."""
    stored = {each.name: numpy_helper.to_array(each) for each in proto.graph.initializer}
    weight = stored["fc.weight"].astype("float64")
    turned = proto.graph.node[0].op_type == "Gemm"
    product = x.astype("float64") @ (weight.T if turned else weight)
    return product + stored["fc.bias"].astype("float64") if "fc.bias" in stored else product


def in_float64(proto: onnx.ModelProto, **inputs: Any) -> Mapping[str, Any]:
    """A float64 run."""
    return OnnxRun(proto, float64=True)({name: x.astype("float64") for name, x in inputs.items()})


def is_close(found: Any, wanted: Any, tolerance: float = 1e-13) -> bool:
    """Whether two arrays agree to a share of their size."""
    assert found.shape == wanted.shape
    return bool(np.linalg.norm(found - wanted) <= tolerance * np.linalg.norm(wanted))


def operators(proto: onnx.ModelProto) -> Mapping[str, int]:
    """How many nodes of each operator there are."""
    names = [node.op_type for node in proto.graph.node]
    return {name: names.count(name) for name in sorted(set(names))}


def written(proto: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    """The model in a file, which the checker finds valid."""
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    onnx.checker.check_model(path, full_check=True)
    return path


def change(proto: onnx.ModelProto, name: str, how: Callable[[Any], Any]) -> None:
    """Write other values, of the same type, to one stored tensor."""
    tensor = next(each for each in proto.graph.initializer if each.name == name)
    values = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(how(values.copy()).astype(values.dtype), name))


def network(dtype: str) -> onnx.ModelProto:
    """Three linear layers 200 → 130 → 90 → 70 with biases, ReLU between, and two outputs."""
    code, widths = CODES[dtype], (200, 130, 90, 70)
    nodes, weights, x = [], [], "x"
    for layer, (k, n) in enumerate(pairwise(widths)):
        names = f"{x} w{layer} b{layer}"
        nodes.append(node("Gemm", names, f"fc{layer}"))
        weight = drawn(layer, k, n, dtype=dtype) / np.sqrt(k).astype(dtype)
        weights.append(numpy_helper.from_array(weight, f"w{layer}"))
        weights.append(numpy_helper.from_array(drawn(9 + layer, n, dtype=dtype), f"b{layer}"))
        x = f"fc{layer}"
        if layer < 2:
            nodes.append(node("Relu", x, f"relu{layer}"))
            x = f"relu{layer}"
    nodes.append(node("Softmax", "relu0", "second", axis=-1))
    outputs = [value("fc2", 4, 70, code=code), value("second", 4, 130, code=code)]
    return model(nodes, [value("x", 4, 200, code=code)], outputs, weights)


def find(proto: onnx.ModelProto, result: str) -> onnx.NodeProto:
    return next(node for node in proto.graph.node if result in node.output)
