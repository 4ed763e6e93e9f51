"""Branches and loops of TorchScript that values choose: what each does, as plain data. Runs do not tell which ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Any

import torch

from pytest_modelbudget.formats.model import Way
from pytest_modelbudget.torch_models.bodies import FALSE, TRUE, digest
from pytest_modelbudget.torch_models.script_memory import Memories, is_tensor
from pytest_modelbudget.torch_models.weights import ModuleTree

# What asks a tensor for a number or a truth that does not hang on its values. Everything else does.
SIZES_AND_TYPES = frozenset({
    "aten::size", "aten::sym_size", "aten::stride", "aten::numel", "aten::len", "aten::dim", "aten::storage_offset",
    "aten::element_size", "aten::is_contiguous", "aten::is_same_size", "aten::is_floating_point", "aten::is_complex",
    "aten::is_signed", "aten::is_conj", "aten::is_neg", "aten::is_inference", "aten::is_leaf", "aten::is_pinned",
    "aten::get_device", "aten::result_type", "aten::qscheme", "aten::q_scale", "aten::q_zero_point", "aten::__is__",
    "aten::__isnot__",
})  # fmt: skip
LISTED = "prim::tolist"
CONSTANT, ATTRIBUTE, SET = "prim::Constant", "prim::GetAttr", "prim::SetAttr"
LOOP = "prim::Loop"
# What runs blocks, by the word for it: how many operands choose whether it does, and what its blocks are.
CHOOSING = {"if": ("prim::If", 1, (TRUE, FALSE)), "loop": (LOOP, 2, ("body",))}
PLAIN = ("BoolType", "IntType", "FloatType", "ComplexType", "NumberType")


def ways_of_scripts(modules: ModuleTree) -> Iterator[Way]:
    """The ways of a script, and of those that are parts of a module."""
    within: set[int] = set()
    for path, part in modules:
        if isinstance(part, torch.jit.ScriptModule) and id(part) not in within:
            within.update(id(inner) for inner in part.modules())
            place = f" of '{path}'" if path else ""
            yield from (replace(way, key=f"{way.key}{place}", place=f"{way.place}{place}") for way in _ways_of(part))


def _ways_of(model: torch.jit.ScriptModule) -> Iterator[Way]:
    """Both branches of every if, and the body of every loop, that hang on a tensor's values, by their order."""
    graph: Any = model.inlined_graph  # which owns its nodes
    made = {each.debugName() for node in _nodes(graph) if _reads_values(node) for each in node.outputs()}
    if not made:
        return
    spelling = Spelling(model, graph)
    for word, (kind, count, names) in CHOOSING.items():
        choosers = ((node, islice(node.inputs(), count)) for node in graph.findAllNodes(kind))
        chosen = (node for node, values in choosers if any(_is_made_of(value, made) for value in values))
        for number, node in enumerate(chosen, 1):
            for name, spelled in zip(names, spelling.blocks[node], strict=True):
                does = partial(_does, spelled)
                yield Way(f"{word} {number}", name, f"{word} #{number}", None, does)


def _nodes(block: Any) -> Iterator[Any]:
    """All nodes of a block, and of those inside."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _reads_values(node: Any) -> bool:
    """Whether a node makes a number or a truth of a tensor's values."""
    kind = node.kind()
    if kind == LISTED:
        return True
    is_plain = kind.startswith("aten::") and any(each.type().kind() in PLAIN for each in node.outputs())
    return is_plain and kind not in SIZES_AND_TYPES and any(map(is_tensor, node.inputs()))


def _does(spelled: object, by_name: bool) -> object:
    return spelled


def _is_made_of(value: Any, made: set[str]) -> bool:
    """Whether a number or a truth hangs on one of these."""
    pending, seen = [value], set[str]()
    while pending:
        each = pending.pop()
        name = each.debugName()
        if name in made:
            return True
        if name not in seen and not is_tensor(each):
            seen.add(name)
            node = each.node()
            pending += node.inputs() if node.kind() != ATTRIBUTE else ()
            pending += (end for block in node.blocks() for end in block.outputs())
    return False


class Spelling:
    """What blocks do, as plain data that is equal where they do the same.

    Results are numbered, tensors of the model known by their paths, and values from outside by what they are made of,
    and by what was written into them: before a branch reads them, or in the loop around it. Attributes of objects that
    the script makes are values, too.
    """

    def __init__(self, model: torch.jit.ScriptModule, graph: Any) -> None:
        self._model = model
        self._self = next(graph.inputs()).debugName()  # by which the graph knows the model
        self._made: dict[str, object] = {}  # what each value of the graph is made of, by its name
        self._read: dict[str, str] = {}  # names of memories, by those of values that read an attribute
        self._set: dict[tuple[str, ...], str] = {}  # of attributes that were set, as they are by now
        self._memories = Memories(self._name_of)
        self.blocks: dict[Any, tuple[object, ...]] = {}  # of each node that has some
        self._make(graph, "model", is_repeated=False)

    def _make(self, block: Any, given: object, *, is_repeated: bool) -> None:
        """Follow a block that is given these operands."""
        self._made.update({each.debugName(): ("input", given, at) for at, each in enumerate(block.inputs())})
        for node in block.nodes():
            if self._is_of_model(node):
                self._read.update({each.debugName(): self._name_of(each) for each in node.outputs()})
            elif node.kind() != CONSTANT:
                self._make_node(node, is_repeated=is_repeated)

    def _make_node(self, node: Any, *, is_repeated: bool) -> None:
        does: object = (*_operator(node), *(self._value(each, self._made) for each in node.inputs()))
        repeats = is_repeated or node.kind() == LOOP
        if not repeats:
            self._spell(node)
        for inner in node.blocks():
            self._make(inner, _digest(does), is_repeated=repeats)
            does = does, tuple(self._value(each, self._made) for each in inner.outputs())
        digest = _digest(does)
        if node.kind() == SET:
            self._follow_set(node, digest)
        else:
            self._memories.follow(node, digest)
        if repeats and not is_repeated:
            self._spell(node)
        self._made.update({each.debugName(): (digest, at) for at, each in enumerate(node.outputs())})

    def _follow_set(self, node: Any, does: str) -> None:
        owner, value = node.inputs()
        if not self._is_model(owner):
            self._memories.put(owner, value, does)
            return
        path = (*self._path(owner), node.s("name"))
        name = f"{_attribute(path)} {does}"
        self._memories.set(name, self._set.get(path, _attribute(path)), value, does)
        self._set[path] = name

    def _name_of(self, value: Any) -> str:
        """By which its memory is known: of an attribute the one that it had when it was read."""
        name = str(value.debugName())
        if not self._is_of_model(value.node()):
            return name
        path = self._path(value)
        return self._read.get(name) or self._set.get(path) or _attribute(path)

    def _spell(self, node: Any) -> None:
        """What blocks of a node do as things stand; where it repeats them, what those inside do, too."""
        within = (each for block in node.blocks() for each in _nodes(block)) if node.kind() == LOOP else ()
        for each in (node, *within):
            if blocks := tuple(self._block(inner, {}, 0) for inner in each.blocks()):
                self.blocks[each] = blocks

    def _block(self, block: Any, outside: Mapping[str, object], depth: int) -> object:
        """The nodes of a block, and what it gives."""
        known = {**outside, **{each.debugName(): ("input", depth, at) for at, each in enumerate(block.inputs())}}
        nodes: list[object] = []
        for node in block.nodes():
            if node.kind() == CONSTANT or self._is_of_model(node):
                continue
            operands = tuple(self._value(each, known) for each in node.inputs())
            inner = tuple(self._block(each, known, depth + 1) for each in node.blocks())
            nodes.append((_operator(node), operands, inner))
            known.update({each.debugName(): ("made", depth, len(nodes), at) for at, each in enumerate(node.outputs())})
        return tuple(nodes), tuple(self._value(each, known) for each in block.outputs())

    def _value(self, value: Any, known: Mapping[str, object]) -> object:
        name, node = value.debugName(), value.node()
        if name in known and known is not self._made:
            return known[name]
        if node.kind() == CONSTANT:
            return _plain(value.toIValue())
        if not self._is_of_model(node):
            return self._made[name], self._memories.written(value)
        path = self._path(value)
        held: Any = self._model
        for part in path:
            held = getattr(held, part)
        is_named = isinstance(held, (torch.Tensor, torch.nn.Module, torch.ScriptObject))
        return path if is_named else _plain(held), self._memories.written(value)

    def _is_of_model(self, node: Any) -> bool:
        """Whether a node reads an attribute of the model, or of a part of it."""
        return node.kind() == ATTRIBUTE and self._is_model(next(node.inputs()))

    def _is_model(self, value: Any) -> bool:
        """Whether a value is the model, or a part of it, and no object that the script makes."""
        while value.node().kind() == ATTRIBUTE:
            value = next(value.node().inputs())
        return bool(value.debugName() == self._self)

    def _path(self, value: Any) -> tuple[str, ...]:
        """The names by which an attribute is reached from the model."""
        names = []
        while value.node().kind() == ATTRIBUTE:
            names.append(value.node().s("name"))
            value = next(value.node().inputs())
        return tuple(reversed(names))


def _operator(node: Any) -> tuple[str, ...]:
    """What a node does, of an attribute also with which."""
    return (node.kind(), node.s("name")) if node.kind() in {ATTRIBUTE, SET} else (node.kind(),)


def _attribute(path: tuple[str, ...]) -> str:
    """The name by which the memory of an attribute is known; no value of a graph has such a one."""
    return f"self.{'.'.join(path)}"


def _plain(value: Any) -> object:
    return digest(value) if isinstance(value, torch.Tensor) else repr(value)


def _digest(does: object) -> str:
    return sha256(repr(does).encode()).hexdigest()
