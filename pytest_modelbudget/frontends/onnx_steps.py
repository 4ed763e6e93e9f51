"""Nodes of a graph as plain data: read out of the file's own form once, and walked many times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import onnx
from onnx import AttributeProto, NodeProto

from pytest_modelbudget.frontends.onnx_types import attribute_value
from pytest_modelbudget.ops.op_rule import OpRule
from pytest_modelbudget.ops.op_table import OpTable

STANDARD = frozenset({"", "ai.onnx"})  # the names of ONNX's own domain


class Step(NamedTuple):
    """One node: its operator as rules spell it, its rule (None without one), and what it reads.

    roles are one per operand, "" where no rule names it. attributes are its plain ones, bodies the
    graphs that it holds.
    """

    node: NodeProto
    name: str
    rule: OpRule | None
    inputs: tuple[str, ...]
    roles: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, object]
    bodies: Mapping[str, Body]


@dataclass(frozen=True, slots=True)
class Body:
    """A graph and its nodes in order."""

    proto: onnx.GraphProto
    steps: tuple[Step, ...]

    def everything(self) -> Iterator[Body]:
        """This graph, and every graph inside its nodes."""
        yield self
        for step in self.steps:
            for body in step.bodies.values():
                yield from body.everything()


NO_BODIES: Mapping[str, Body] = {}


def read_body(graph: onnx.GraphProto, rules: OpTable) -> Body:
    """A graph with its nodes as plain data."""
    return Body(graph, tuple(_step(node, rules) for node in graph.node))


def _step(node: NodeProto, rules: OpTable) -> Step:
    name = op_name(node)
    rule = rules.get(name)
    inputs = tuple(node.input)
    roles = _roles(rule.names[name] if rule else (), len(inputs))
    attributes: dict[str, object] = {}
    bodies = NO_BODIES
    for each in node.attribute:
        value = attribute_value(each)
        if value is not None:
            attributes[each.name] = value
        elif each.type == AttributeProto.GRAPH:
            bodies = {**bodies, each.name: read_body(each.g, rules)}
    return Step(node, name, rule, inputs, roles, tuple(node.output), attributes, bodies)


def op_name(node: NodeProto) -> str:
    """The name of a node's operator as rules spell it: ``onnx::Conv``."""
    domain = node.domain
    return f"onnx::{node.op_type}" if domain in STANDARD else f"{domain}::{node.op_type}"


@cache
def _roles(named: tuple[str, ...], count: int) -> tuple[str, ...]:
    """The role of each of count operands; the last name may take all that remain."""
    rest = ""
    if named and named[-1].startswith("*"):
        named, rest = named[:-1], named[-1][1:]
    return (*named, *(rest for _ in range(count - len(named))))[:count]
