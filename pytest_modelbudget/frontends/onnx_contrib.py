"""Result types of the operators that ONNX Runtime's optimisers write: onnx knows none of them."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import NodeProto

from pytest_modelbudget.frontends.onnx_types import ValueType


def contrib_types(
    node: NodeProto, operands: Mapping[str, ValueType]
) -> tuple[ValueType, ...] | None:
    """Types of a contrib operator's results; None for one that is not known."""
    return None
