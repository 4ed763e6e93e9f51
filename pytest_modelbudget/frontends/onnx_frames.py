"""The values that a node can see: its own graph's, and those of the graphs around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import onnx

from pytest_modelbudget.frontends.onnx_shapes import DeclaredTypes
from pytest_modelbudget.frontends.onnx_steps import Body
from pytest_modelbudget.frontends.onnx_types import ValueType, tensor_type
from pytest_modelbudget.ir.tensor import Storage, Tensor


@dataclass
class Frame:
    """One graph while it is read: the tensors made so far, and what is known of their values.

    shapes are values that only lead to shapes. times is how often the graph runs. placed says on
    whose memory a result must lie, where a loop stacks it.
    """

    body: Body
    declared: DeclaredTypes
    shapes: frozenset[str]
    outer: Frame | None = None
    times: int = 1
    prefix: str = ""
    tensors: dict[str, Tensor] = field(default_factory=dict)
    types: dict[str, ValueType] = field(default_factory=dict)
    stored: dict[str, onnx.TensorProto] = field(default_factory=dict)
    values: dict[str, onnx.TensorProto | None] = field(default_factory=dict)
    placed: dict[str, Storage] = field(default_factory=dict)

    def tensor(self, name: str) -> Tensor | None:
        """The tensor of a value; None for one that nothing has made yet."""
        found = self.tensors.get(name)
        return self.outer.tensor(name) if found is None and self.outer else found

    def type(self, name: str) -> ValueType:
        """What is known of a value's type."""
        known = self.types.get(name)
        if known is not None:
            return known
        if name in self.stored:
            return tensor_type(self.stored[name])
        if self.outer is None or name in self.declared.protos:
            return self.declared[name]
        return self.outer.type(name)

    def home(self, name: str) -> Frame | None:
        """The frame of the graph that makes or stores a value."""
        if name in self.tensors or name in self.stored or name in self.producers:
            return self
        return self.outer.home(name) if self.outer else None

    @cached_property
    def producers(self) -> Mapping[str, onnx.NodeProto]:
        """The node that makes each value of this graph."""
        return {name: step.node for step in self.body.steps for name in step.outputs if name}
