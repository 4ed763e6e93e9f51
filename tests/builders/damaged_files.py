"""Right rewrites of small ONNX files, made of a file in which one stored tensor was damaged."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

Node = tuple[str, str, str, str, dict[str, object]]  # name, operator, what it reads, what it gives, attributes


def file_of(nodes: list[Node], stored: dict[str, tuple[int, ...]], shape: tuple[int, ...]) -> onnx.ModelProto:
    """A file with drawn tensors, whose last node gives the output y."""
    draws = np.random.default_rng(0)
    tensors = []
    for name, size in stored.items():
        values = draws.standard_normal(size) / np.sqrt(max(np.prod(size[1:]), 1))
        values = np.abs(values) + 0.5 if name.startswith("var") else values
        tensors.append(numpy_helper.from_array(values.astype(np.float32), name))
    made = [
        helper.make_node(operator, reads.split(), gives.split(), name=name, **attributes)
        for name, operator, reads, gives, attributes in nodes
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in (("x", shape), ("y", None)))
    graph = helper.make_graph(made, "g", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def convolutions() -> onnx.ModelProto:
    nodes: list[Node] = []
    stored: dict[str, tuple[int, ...]] = {}
    before = "x"
    for at, inputs in ((1, 3), (2, 6), (3, 6)):
        norm = f"scale{at} shift{at} mean{at} var{at}"
        nodes += [
            (f"conv{at}", "Conv", f"{before} w{at} b{at}", f"c{at}", {"pads": [1, 1, 1, 1]}),
            (f"bn{at}", "BatchNormalization", f"c{at} {norm}", f"n{at}", {}),
            (f"relu{at}", "Relu", f"n{at}", f"r{at}", {}),
        ]
        stored |= {f"w{at}": (6, inputs, 3, 3), f"b{at}": (6,), **dict.fromkeys(norm.split(), (6,))}
        before = f"r{at}"
    nodes += [("flat", "Flatten", before, "f", {}), ("fc", "Gemm", "f w4 b4", "y", {})]
    return file_of(nodes, stored | {"w4": (6 * 25, 5), "b4": (5,)}, (2, 3, 5, 5))


def projections() -> onnx.ModelProto:
    """MatMul and Add, as exporters write linear layers; the stored tensors are handed on by Identity."""
    nodes: list[Node] = []
    stored: dict[str, tuple[int, ...]] = {}
    before, sizes = "x", (12, 16, 16, 16, 4)
    for at, size in enumerate(pairwise(sizes), 1):
        gives = "y" if at == 4 else f"a{at}"
        nodes += [
            (f"same{at}", "Identity", f"w{at}", f"i{at}", {}),
            (f"mul{at}", "MatMul", f"{before} i{at}", f"m{at}", {}),
            (f"add{at}", "Add", f"m{at} b{at}", gives, {}),
        ]
        stored |= {f"w{at}": size, f"b{at}": size[1:]}
        before = gives
        if at < 4:
            nodes.append((f"tanh{at}", "Tanh", gives, f"t{at}", {}))
            before = f"t{at}"
    return file_of(nodes, stored, (3, 12))


def folded(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Batch norms in the convolutions before them, everything under names of its own."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    values = {each.name: numpy_helper.to_array(each).astype(np.float64) for each in made.graph.initializer}
    nodes = []
    for node in made.graph.node:
        if node.op_type == "BatchNormalization":
            scale, shift, mean, var = (values[name] for name in node.input[1:])
            weight, bias = nodes[-1].input[1:]
            factor = scale / np.sqrt(var + 1e-5)
            values[weight] = values[weight] * factor[:, None, None, None]
            values[bias] = (values[bias] - mean) * factor + shift
            nodes[-1].output[0] = node.output[0]
        else:
            nodes.append(node)
    return renamed(made, nodes, values)


def gemms(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Each MatMul and Add as one Gemm of the stored tensor itself, under names of its own."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    values = {each.name: numpy_helper.to_array(each) for each in made.graph.initializer}
    sources = {node.output[0]: node.input[0] for node in made.graph.node if node.op_type == "Identity"}
    nodes = []
    for node in made.graph.node:
        if node.op_type == "Add":
            x, weight = nodes.pop().input
            nodes.append(helper.make_node("Gemm", [x, sources[weight], node.input[1]], node.output))
        elif node.op_type != "Identity":
            nodes.append(node)
    return renamed(made, nodes, values)


def renamed(proto: onnx.ModelProto, nodes: list[onnx.NodeProto], values: dict[str, np.ndarray]) -> onnx.ModelProto:
    """A file of these nodes and values, in which but inputs and outputs have other names."""
    nodes = copy.deepcopy(nodes)
    read = {name for node in nodes for name in node.input}
    del proto.graph.node[:], proto.graph.initializer[:]
    for at, node in enumerate(nodes):
        node.name = f"node_{at}"
        for names in (node.input, node.output):
            names[:] = [name if name in ("x", "y") else f"v_{name}" for name in names]
    proto.graph.node.extend(nodes)
    proto.graph.initializer.extend(
        numpy_helper.from_array(array.astype(np.float32), f"v_{name}") for name, array in values.items() if name in read
    )
    return proto


def optimised(level: str) -> Callable[[onnx.ModelProto], onnx.ModelProto]:
    """What ONNX Runtime writes as its optimised file."""

    def rewritten(proto: onnx.ModelProto) -> onnx.ModelProto:
        from tempfile import TemporaryDirectory

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
        options.log_severity_level = 3
        with TemporaryDirectory() as folder:
            options.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
            onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
            return onnx.load(options.optimized_model_filepath)

    return rewritten


@dataclass(frozen=True, slots=True)
class FileRewrite:
    """A file, what makes another one of it, and by stored tensor the layers that compute with it."""

    model: Callable[[], onnx.ModelProto]
    rewritten: Callable[[onnx.ModelProto], onnx.ModelProto]
    layers: dict[str, set[str]]


CONVOLVED = {f"{kind}{at}": {f"conv{at}", f"bn{at}"} for at in (1, 2, 3) for kind in ("w", "shift")} | {"w4": {"fc"}}
PROJECTED = {f"{kind}{at}": {f"mul{at}", f"add{at}"} for at in (1, 2, 3, 4) for kind in ("w", "b")}
FILE_REWRITES = {
    "folded by hand": FileRewrite(convolutions, folded, CONVOLVED),
    "ONNX Runtime, basic": FileRewrite(convolutions, optimised("BASIC"), CONVOLVED),
    "ONNX Runtime, extended": FileRewrite(convolutions, optimised("EXTENDED"), CONVOLVED),
    "Gemm": FileRewrite(projections, gemms, PROJECTED),
    "Gemm by ONNX Runtime, basic": FileRewrite(projections, optimised("BASIC"), PROJECTED),
    "Gemm by ONNX Runtime, all": FileRewrite(projections, optimised("ALL"), PROJECTED),
}


def damaged_file(rewrite: FileRewrite, tensor: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The file as it was, and one rewritten after a quarter of a stored tensor was set to 2."""
    right = rewrite.model()
    wrong = copy.deepcopy(right)
    for each in wrong.graph.initializer:
        if each.name == tensor:
            values = numpy_helper.to_array(each).copy()
            values[: max(1, len(values) // 4)] = 2
            each.CopyFrom(numpy_helper.from_array(values, tensor))
    return right, rewrite.rewritten(wrong)


def file_cases() -> Iterator[tuple[str, str]]:
    """Rewrite and stored tensor."""
    for name, rewrite in FILE_REWRITES.items():
        for tensor in rewrite.layers:
            yield name, tensor
