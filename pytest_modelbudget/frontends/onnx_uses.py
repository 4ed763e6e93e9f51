"""Who reads each value of a graph, and in which role: found before any shape is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx

from pytest_modelbudget.frontends.onnx_types import all_graphs, bodies
from pytest_modelbudget.ops.op_rule import OpRule
from pytest_modelbudget.ops.op_table import OpTable

# Roles that say how large or where, and are worked out before the run.
SHAPE_ROLES = frozenset({
    "shape", "axes", "axis", "pads", "repeats", "starts", "ends", "steps", "sizes", "roi",
    "resize_scales", "count", "split", "depth", "start", "limit", "delta",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Use:
    """One operand of one node: the node, its rule (None without one) and the operand's role."""

    node: onnx.NodeProto
    rule: OpRule | None
    role: str


def op_name(node: onnx.NodeProto) -> str:
    """The name of a node's operator as rules spell it: ``onnx::Conv``."""
    domain = node.domain
    return f"onnx::{node.op_type}" if domain in {"", "ai.onnx"} else f"{domain}::{node.op_type}"


def roles_of(node: onnx.NodeProto, rule: OpRule | None) -> Iterator[str]:
    """The role of each operand of a node; "" where no rule names it."""
    roles = rule.names[op_name(node)] if rule else ()
    variadic = roles[-1][1:] if roles and roles[-1].startswith("*") else ""
    for position in range(len(node.input)):
        if position < len(roles) - bool(variadic):
            yield roles[position]
        else:
            yield variadic


def uses_of(graph: onnx.GraphProto, rules: OpTable) -> Mapping[str, list[Use]]:
    """Every use of every value, those inside bodies included."""
    uses: dict[str, list[Use]] = defaultdict(list)
    for each in all_graphs(graph):
        for node in each.node:
            rule = rules.get(op_name(node))
            for name, role in zip(node.input, roles_of(node, rule), strict=True):
                if name:
                    uses[name].append(Use(node, rule, role))
    return uses


def shape_values(graph: onnx.GraphProto, rules: OpTable) -> frozenset[str]:
    """Values of a graph that only lead to shapes of others, and are worked out before the run.

    Shape → Gather → Concat → Reshape is the usual chain. A value that nobody reads is none.
    """
    read = {output.name for output in graph.output}
    shaping: set[str] = set()
    for node in reversed(graph.node):
        inner = bodies(node)
        for body in inner.values():
            read.update(_names_read(body))
        only_shapes = shaping.intersection(node.output) and not read.intersection(node.output)
        roles = roles_of(node, rules.get(op_name(node)))
        for name, role in zip(node.input, roles, strict=True):
            (shaping if role in SHAPE_ROLES or (only_shapes and not inner) else read).add(name)
    return frozenset(shaping - read)


def _names_read(body: onnx.GraphProto) -> Iterator[str]:
    """Every name that a body, or one inside it, mentions."""
    for graph in all_graphs(body):
        for node in graph.node:
            yield from node.input
        yield from (output.name for output in graph.output)
