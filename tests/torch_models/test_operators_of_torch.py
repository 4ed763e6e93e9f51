"""Torch's own list of operators, with its own samples: one number on meta, on fake tensors and in a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from pytest_modelbudget.errors import ModelBudgetError
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.gate.measuring import measure_model
from pytest_modelbudget.registry import tables
from tests.builders.micro_modules import Apply
from tests.builders.torch_ways import WAYS, rows

SAMPLES = int(os.environ.get("MODELBUDGET_OPERATORS", "0"))
pytestmark = [
    pytest.mark.needs_torch,
    pytest.mark.skipif(not SAMPLES, reason="MODELBUDGET_OPERATORS=3 takes three samples of each operator of torch"),
    pytest.mark.filterwarnings("ignore"),
]
TYPES = {torch.float32, torch.int64, torch.int32, torch.bool}


def row_major(x: torch.Tensor) -> torch.Tensor:
    """The usual layout."""
    return x.contiguous()


def permuted(x: torch.Tensor) -> torch.Tensor:
    """Channels last of images, and of other tensors the last two axes exchanged."""
    if x.dim() == 4:
        return x.contiguous(memory_format=torch.channels_last)
    return x.transpose(-1, -2).contiguous().transpose(-1, -2) if x.dim() > 1 else x.contiguous()


def calls(operator: Any, order: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[tuple[Apply, list[TensorSpec]]]:
    """A model that calls an operator on what a sample has, in another layout, and its inputs."""
    for sample in islice(operator.sample_inputs("cpu", torch.float32), SAMPLES):
        given, structure = tree_flatten(((sample.input, *sample.args), sample.kwargs))
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        if tensors and all(x.dtype in TYPES and x.layout is torch.strided and x.dim() for x in tensors):
            yield Apply(calling(operator, given, structure, order)), [described(x) for x in tensors]


def calling(operator: Any, given: list[Any], structure: Any, order: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A forward pass that takes a sample's tensors, and gives the operator's results row-major."""

    def forward(*tensors: torch.Tensor) -> list[torch.Tensor]:
        rest = iter(tensors)
        leaves = [order(next(rest)) if isinstance(value, torch.Tensor) else value for value in given]
        args, kwargs = tree_unflatten(leaves, structure)
        results = [each for each in tree_flatten(operator.op(*args, **kwargs))[0] if isinstance(each, torch.Tensor)]
        return [each.contiguous() if each.layout is torch.strided else each for each in results]

    return forward


def described(x: torch.Tensor) -> TensorSpec:
    """A tensor's type and shape; integers are drawn between its least and its greatest."""
    name = str(x.dtype).removeprefix("torch.")
    if x.dtype in {torch.int64, torch.int32} and x.numel():
        return TensorSpec(name, tuple(x.shape), int(x.min()), max(int(x.max()), int(x.min()) + 1))
    return TensorSpec(name, tuple(x.shape))


def measured(model: Apply, specs: list[TensorSpec]) -> dict[str, dict[str, Any]]:
    """Every number by each way that the operator takes."""
    found = {}
    for way in WAYS:
        try:
            found[way] = rows(model, *specs, way=way)
        except ModelBudgetError:
            continue  # data decide, or there is no such kernel: the next way is taken then
    return found


@pytest.mark.parametrize("order", [row_major, permuted])
def test_every_operator_has_one_number(order: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """On its own samples, in two layouts."""
    from torch.testing._internal.common_methods_invocations import op_db  # seconds, and it needs expecttest

    differ, seen = [], 0
    for operator in op_db:
        if torch.float32 not in operator.dtypes:
            continue
        for model, specs in calls(operator, order):
            found = measured(model, specs)
            seen += len(found) > 1
            if any(row != next(iter(found.values())) for row in found.values()):
                differ.append((operator.name, operator.variant_test_name, [spec.shape for spec in specs], found))
    assert not differ
    assert seen > 300 * SAMPLES


# Those without a rule, which are unmeasured by name: what they cost, the data decide, or nobody has asked for it.
UNRULED = {
    "aten::_chunk_cat", "aten::_histogramdd_bin_edges", "aten::_histogramdd_from_bin_cts",
    "aten::_histogramdd_from_bin_tensors", "aten::_to_sparse", "aten::_unsafe_masked_index_put_accumulate",
    "aten::cholesky_inverse", "aten::geqrf", "aten::linalg_householder_product", "aten::linalg_ldl_factor_ex",
    "aten::linalg_ldl_solve", "aten::mvlgamma", "aten::ormqr", "aten::put",
}  # fmt: skip


def test_operators_without_a_rule_are_listed() -> None:
    """A newer torch with more of them fails here until somebody says what they cost."""
    from torch.testing._internal.common_methods_invocations import op_db

    models = [call for operator in op_db if torch.float32 in operator.dtypes for call in calls(operator, row_major)]
    assert len(models) > 300 * SAMPLES
    assert {name for model, specs in models for name in without_a_rule(model, specs)} == UNRULED


def without_a_rule(model: Apply, specs: list[TensorSpec]) -> set[str]:
    """Names of the operators that no rule knows; none of a sample that drawn numbers do not fit."""
    source = ModelSource("torch", model, InputSpecs(tuple(specs)))
    census = measure_model(source, tables(), root=Path.cwd()).measurements.get("ops")
    return {missing.op for missing in census.unmeasured} if census else set()
