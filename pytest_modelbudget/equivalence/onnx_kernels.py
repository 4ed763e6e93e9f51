"""Which engine runs a node: ONNX Runtime, or onnx's reference where it has no float64 kernel."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import onnxruntime.capi.onnxruntime_pybind11_state as state
from onnx import AttributeProto, NodeProto

from pytest_modelbudget.frontends.onnx_steps import STANDARD

RUNTIME, REFERENCE = "onnxruntime", "onnx.reference"
CPU = "CPUExecutionProvider"


def runtime(node: NodeProto) -> str:
    """ONNX Runtime, for every node: a model in its own types runs as it is written."""
    return RUNTIME


def float64_engine(node: NodeProto) -> str:
    """The engine for a node of a float64 copy.

    ONNX Runtime's CPU has no float64 kernel for Conv, average pooling, Erf and a few more, and
    none of its own for operators that are defined by others.
    """
    domain = "" if node.domain in STANDARD else node.domain
    types = _kernel_types().get((domain, node.op_type), frozenset())
    knows = bool(types) and ("tensor(double)" in types or "tensor(float)" not in types)
    return RUNTIME if knows and _bodies_run(node) else REFERENCE


def _bodies_run(node: NodeProto) -> bool:
    """Whether every node inside this one has a float64 kernel too."""
    bodies = (each.g for each in node.attribute if each.type == AttributeProto.GRAPH)
    return all(float64_engine(inner) == RUNTIME for body in bodies for inner in body.node)


@cache
def _kernel_types() -> Mapping[tuple[str, str], frozenset[str]]:
    """Types that any CPU kernel of an operator takes, by (domain, operator)."""
    found: dict[tuple[str, str], set[str]] = {}
    for kernel in state.get_all_opkernel_def():
        if kernel.provider == CPU:
            domain = "" if kernel.domain in STANDARD else kernel.domain
            types = found.setdefault((domain, kernel.op_name), set())
            for allowed in kernel.type_constraints.values():
                types.update(allowed)
    return {name: frozenset(types) for name, types in found.items()}
