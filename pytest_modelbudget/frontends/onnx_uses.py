"""Who reads each value of a graph, and in which role: found before any shape is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pytest_modelbudget.frontends.onnx_steps import Body, Step

# Roles that say how large or where, and are worked out before the run.
SHAPE_ROLES = frozenset({
    "shape", "axes", "axis", "pads", "repeats", "starts", "ends", "steps", "sizes", "roi",
    "resize_scales", "count", "split", "depth", "start", "limit", "delta",
})  # fmt: skip


class Use(NamedTuple):
    """One operand of one node, and the role in which it is read."""

    step: Step
    role: str

    @property
    def kind(self) -> str:
        """The kind of operation that reads it; "" without a rule."""
        return self.step.rule.kind if self.step.rule else ""


def uses_of(body: Body) -> Mapping[str, list[Use]]:
    """Every use of every value, those inside bodies included."""
    uses: dict[str, list[Use]] = defaultdict(list)
    for each in body.everything():
        for step in each.steps:
            for name, role in zip(step.inputs, step.roles, strict=True):
                if name:
                    uses[name].append(Use(step, role))
    return uses


def shape_values(body: Body) -> frozenset[str]:
    """Values of a graph that only lead to shapes of others, and are worked out before the run.

    Shape → Gather → Concat → Reshape is the usual chain. A value that nobody reads is none.
    """
    read = {output.name for output in body.proto.output}
    shaping: set[str] = set()
    for step in reversed(body.steps):
        for inner in step.bodies.values():
            read.update(_names_read(inner))
        only_shapes = (
            not step.bodies
            and not shaping.isdisjoint(step.outputs)
            and read.isdisjoint(step.outputs)
        )
        if only_shapes:
            shaping.update(step.inputs)
            continue
        for name, role in zip(step.inputs, step.roles, strict=True):
            (shaping if role in SHAPE_ROLES else read).add(name)
    return frozenset(shaping - read)


def _names_read(body: Body) -> Iterator[str]:
    """Every name that a body, or one inside it, mentions."""
    for each in body.everything():
        for step in each.steps:
            yield from step.inputs
        yield from (output.name for output in each.proto.output)
