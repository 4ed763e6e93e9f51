"""Branches of TorchScript that values choose: what each does, as plain data. Runs do not tell which they took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from pytest_modelbudget.formats.model import Way
from pytest_modelbudget.torch_models.bodies import FALSE, TRUE, digest

# What makes a number or a truth of a tensor.
READS = ("aten::Bool", "aten::Int", "aten::Float", "aten::Complex", "aten::item", "aten::is_nonzero", "aten::tolist",
         "aten::IntImplicit", "aten::FloatImplicit", "aten::ScalarImplicit", "aten::ComplexImplicit")  # fmt: skip
CONSTANT, ATTRIBUTE, IF = "prim::Constant", "prim::GetAttr", "prim::If"


def script_ways(model: torch.jit.ScriptModule) -> Iterator[Way]:
    """Both branches of every if whose condition is made of a tensor's values, by its order."""
    graph: Any = model.inlined_graph  # which owns its nodes
    reads = [node for kind in READS for node in graph.findAllNodes(kind) if _is_tensor(next(node.inputs()))]
    if not reads:
        return
    made = {each.debugName() for node in reads for each in node.outputs()}
    chosen = (node for node in graph.findAllNodes(IF) if _is_made_of(next(node.inputs()), made))
    spelling = Spelling(model)
    for number, node in enumerate(chosen, 1):
        for name, block in zip((TRUE, FALSE), node.blocks(), strict=True):
            yield Way(str(number), name, f"if #{number}", None, partial(_does, spelling.block(block, {}, 0)))


def _does(spelled: object, by_name: bool) -> object:
    return spelled


def _is_tensor(value: Any) -> bool:
    return bool(value.type().isSubtypeOf(torch.TensorType.get()))


def _is_made_of(value: Any, made: set[str]) -> bool:
    """Whether a number or a truth hangs on one of these."""
    pending, seen = [value], set[str]()
    while pending:
        each = pending.pop()
        name = each.debugName()
        if name in made:
            return True
        if name not in seen and not _is_tensor(each):
            seen.add(name)
            node = each.node()
            pending += node.inputs() if node.kind() != ATTRIBUTE else ()
            pending += (end for block in node.blocks() for end in block.outputs())
    return False


class Spelling:
    """What blocks do, as plain data that is equal where they do the same.

    Results are numbered, tensors of the model known by their paths, and values from outside by what makes them.
    """

    def __init__(self, model: torch.jit.ScriptModule) -> None:
        self._model = model

    def block(self, block: Any, outside: Mapping[str, object], depth: int) -> object:
        """The nodes of a block, and what it gives."""
        known = {**outside, **{each.debugName(): ("input", depth, at) for at, each in enumerate(block.inputs())}}
        nodes: list[object] = []
        for node in block.nodes():
            if node.kind() in {CONSTANT, ATTRIBUTE}:
                continue
            operands = tuple(self._value(each, known) for each in node.inputs())
            inner = tuple(self.block(each, known, depth + 1) for each in node.blocks())
            nodes.append((node.kind(), operands, inner))
            known.update({each.debugName(): ("made", depth, len(nodes), at) for at, each in enumerate(node.outputs())})
        return tuple(nodes), tuple(self._value(each, known) for each in block.outputs())

    def _value(self, value: Any, known: Mapping[str, object]) -> object:
        if value.debugName() in known:
            return known[value.debugName()]
        node = value.node()
        if node.kind() == CONSTANT:
            return _plain(value.toIValue())
        if node.kind() != ATTRIBUTE:
            return node.kind(), str(value.type())
        path = self._path(value)
        held: Any = self._model
        for name in path:
            held = getattr(held, name)
        return path if isinstance(held, (torch.Tensor, torch.nn.Module)) else _plain(held)

    def _path(self, value: Any) -> tuple[str, ...]:
        """The names by which an attribute is reached from the model."""
        names = []
        while value.node().kind() == ATTRIBUTE:
            names.append(value.node().s("name"))
            value = next(value.node().inputs())
        return tuple(reversed(names))


def _plain(value: Any) -> object:
    return digest(value) if isinstance(value, torch.Tensor) else repr(value)
