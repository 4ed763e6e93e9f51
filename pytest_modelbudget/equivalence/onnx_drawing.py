"""Weights drawn from a seed, for ONNX files without weights, or with ones that prove nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod, sqrt
from typing import Any
from zlib import crc32

import onnx
from onnx import TensorProto, numpy_helper
from onnx.helper import tensor_dtype_to_np_dtype

from pytest_modelbudget.equivalence.onnx_stored import FLOATING, attribute, with_graph
from pytest_modelbudget.frontends.onnx_masks import masks
from pytest_modelbudget.frontends.onnx_steps import read_body
from pytest_modelbudget.frontends.onnx_types import all_graphs
from pytest_modelbudget.frontends.onnx_uses import Use, shape_values, uses_of
from pytest_modelbudget.frontends.onnx_weights import STATISTICS, StoredKinds
from pytest_modelbudget.ir.tensor import StorageKind
from pytest_modelbudget.ops.op_table import OpTable

# Roles and kinds of what multiplies or divides, where it is a vector.
SPREAD_ROLES = frozenset({"weight", "variance", "slope"})
SPREAD_KINDS = frozenset({"mul", "div"})


def redrawn(model: onnx.ModelProto, rules: OpTable, seed: int = 0) -> onnx.ModelProto:
    """A copy whose floating parameters and statistics are drawn, at the scale of their fan-in.

    Weights N(0, 1/√fan_in), biases and shifts N(0, 0.1), scales and variances U(0.5, 1.5), each
    under its own name. What means something by its values (masks, shapes, scalars) stays.
    """
    body = read_body(model.graph, rules)
    uses = uses_of(body)
    names = frozenset(tensor.name for tensor in model.graph.initializer)
    kinds = StoredKinds(uses, names, masks(tuple(all_graphs(model.graph))), shape_values(body))
    stored = []
    for tensor in model.graph.initializer:
        kind = kinds.kind(
            tensor.name,
            floating=tensor.data_type in FLOATING,
            metadata={each.key: each.value for each in tensor.metadata_props},
            rank=len(tensor.dims),
        )
        drawn = kind in (StorageKind.PARAMETER, StorageKind.BUFFER)
        is_drawn = drawn and tensor.data_type in FLOATING
        stored.append(_drawn(tensor, uses.get(tensor.name, ()), seed) if is_drawn else tensor)
    return with_graph(model, model.graph.node, stored)


def _drawn(tensor: TensorProto, uses: Sequence[Use], seed: int) -> TensorProto:
    values = drawn_values(tensor.name, tuple(tensor.dims), uses, seed)
    dtype = tensor_dtype_to_np_dtype(tensor.data_type)
    drawn = numpy_helper.from_array(values.astype(dtype), tensor.name)
    drawn.metadata_props.extend(tensor.metadata_props)
    return drawn


def drawn_values(name: str, shape: tuple[int, ...], uses: Sequence[Use], seed: int) -> Any:
    """The values of one weight, from its name, shape, seed and use alone."""
    import numpy as np

    generator = np.random.Generator(np.random.Philox([seed, crc32(name.encode())]))
    if len(shape) > 1:
        return generator.standard_normal(shape) / sqrt(max(_fan_in(shape, uses), 1))
    spreads = any(use.role in SPREAD_ROLES or use.kind in SPREAD_KINDS for use in uses)
    if spreads or any(use.role in STATISTICS - {"mean"} for use in uses):
        return generator.uniform(0.5, 1.5, shape)
    return generator.standard_normal(shape) * 0.1


def _fan_in(shape: tuple[int, ...], uses: Sequence[Use]) -> int:
    """How many elements of the input one output sums: all but the outputs' own axis."""
    for use in uses:
        name = use.step.name
        turned = name == "onnx::Gemm" and not attribute(use.step.node, "transB", 0)
        if turned or name == "onnx::MatMul":
            return shape[-2]
    return prod(shape[1:])


def without_values(model: onnx.ModelProto) -> Mapping[str, TensorProto]:
    """Stored tensors whose values lie in a file that is not there."""
    stored = model.graph.initializer
    return {each.name: each for each in stored if each.data_location == TensorProto.EXTERNAL}
