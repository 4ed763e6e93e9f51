"""Damage to the bytes and to the structure of model files, drawn from a seed."""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Callable

import onnx

SIZES = (0, -1, 1, 3, 2**31, 2**40, 2**62)


def in_bytes(content: bytes, draw: random.Random) -> bytes:
    """A bit turned, a cut, a copy, a stretch of zeros or ones, or an end that is missing."""
    at, length = draw.randrange(len(content)), draw.choice((1, 2, 8, 64))
    piece = content[at : at + length]
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :],
        lambda: content[:at] + content[at + length :],
        lambda: content[:at] + piece + content[at:],
        lambda: content[:at] + bytes(len(piece)) + content[at + length :],
        lambda: content[:at] + b"\xff" * len(piece) + content[at + length :],
        lambda: content[: max(at, 1)],
    )
    return draw.choice(ways)()


def in_one_member(content: bytes, draw: random.Random) -> bytes:
    """A zip archive, one member of which is damaged, and its checksum right again."""
    source, target = zipfile.ZipFile(io.BytesIO(content)), io.BytesIO()
    chosen = draw.choice([member for member in source.infolist() if member.file_size])
    with zipfile.ZipFile(target, "w") as archive:
        for member in source.infolist():
            held = source.read(member)
            archive.writestr(member.filename, in_bytes(held, draw) if member is chosen else held)
    return target.getvalue()


def in_structure(content: bytes, draw: random.Random) -> bytes:
    """An ONNX model with one or two nodes, attributes, shapes or stored tensors changed."""
    model = onnx.load_from_string(content)
    for _ in range(draw.randint(1, 2)):
        draw.choice(STRUCTURAL)(model.graph, draw)
    return bytes(model.SerializeToString())


def _operands(graph: onnx.GraphProto, draw: random.Random) -> None:
    node = draw.choice(graph.node)
    names = [*(name for other in graph.node for name in (*other.input, *other.output)), "", "nothing"]
    if node.input:
        node.input[draw.randrange(len(node.input))] = draw.choice(names)


def _lost(graph: onnx.GraphProto, draw: random.Random) -> None:
    if len(graph.node) > 1:
        del graph.node[draw.randrange(len(graph.node))]


def _twice(graph: onnx.GraphProto, draw: random.Random) -> None:
    graph.node.add().CopyFrom(draw.choice(graph.node))


def _kind(graph: onnx.GraphProto, draw: random.Random) -> None:
    kinds = ("Relu", "MatMul", "Conv", "Reshape", "Shape", "Range", "Expand", "Concat", "If", "Loop", "Made-up")
    draw.choice(graph.node).op_type = draw.choice(kinds)


def _attribute(graph: onnx.GraphProto, draw: random.Random) -> None:
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    if attributes:
        attribute = draw.choice(attributes)
        attribute.i = draw.choice(SIZES)
        if attribute.ints:
            attribute.ints[draw.randrange(len(attribute.ints))] = draw.choice(SIZES)


def _stored_shape(graph: onnx.GraphProto, draw: random.Random) -> None:
    tensor = draw.choice(graph.initializer)
    if tensor.dims:
        tensor.dims[draw.randrange(len(tensor.dims))] = draw.choice(SIZES)


def _stored_type(graph: onnx.GraphProto, draw: random.Random) -> None:
    draw.choice(graph.initializer).data_type = draw.randrange(30)


def _input_shape(graph: onnx.GraphProto, draw: random.Random) -> None:
    dim = draw.choice(graph.input[0].type.tensor_type.shape.dim)
    if draw.random() < 0.5:
        dim.dim_param = draw.choice(("batch", ""))
    else:
        dim.dim_value = draw.choice(SIZES)


STRUCTURAL: tuple[Callable[[onnx.GraphProto, random.Random], None], ...] = (
    _operands, _lost, _twice, _kind, _attribute, _stored_shape, _stored_type, _input_shape,
)  # fmt: skip
