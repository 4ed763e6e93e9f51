"""Every ``aten::`` row of the op table fits the operator that the installed torch has."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import Any

import pytest
import torch
import torchvision  # noqa: F401  # registers its operators

from pytest_modelbudget.ops.table import builtin_ops

pytestmark = pytest.mark.needs_torch

TORCH_SPACES = ("aten::", "torchvision::", "quantized::")
TORCH_NAMES = sorted(name for name in builtin_ops() if name.startswith(TORCH_SPACES))


@lru_cache(maxsize=1)
def schemas() -> dict[str, list[Any]]:
    """Schemas of the operators the dispatcher has, by name; ``out=`` variants left out."""
    dispatched = set(torch._C._dispatch_get_all_op_names())
    found = defaultdict(list)
    for schema in torch._C._jit_get_all_schemas():
        full = f"{schema.name}.{schema.overload_name}".rstrip(".")
        if full in dispatched and not any(argument.is_out for argument in schema.arguments):
            found[schema.name].append(schema)
    return found


def covered(name: str) -> list[Any]:
    """Schemas of the overloads that a rule's name stands for."""
    space, _, operator = name.partition("::")
    base, _, overload = operator.partition(".")
    return [
        schema
        for schema in schemas()[f"{space}::{base}"]
        if (schema.overload_name == overload if overload else True)
        and (overload or f"{name}.{schema.overload_name}" not in builtin_ops())
    ]


@pytest.mark.parametrize("name", TORCH_NAMES)
def test_roles_cover_every_tensor_operand(name: str) -> None:
    """A rule has a role for each tensor of the schema, so that no operand lands in another's."""
    roles = builtin_ops()[name].names[name]
    variadic = bool(roles) and roles[-1].startswith("*")
    for schema in covered(name):
        kinds = [str(argument.type) for argument in schema.arguments]
        tensors = sum("Tensor" in kind for kind in kinds)
        packs = sum("torch.classes" in kind and "List[" not in kind for kind in kinds)  # each holds weight and bias
        lists = sum("torch.classes" in kind and "List[" in kind for kind in kinds)  # one operand, as one of tensors is
        assert variadic or tensors + 2 * packs + lists <= len(roles), str(schema)


def test_no_rule_names_an_operator_that_torch_never_had() -> None:
    """A misspelt name would be a rule that never applies; in-place twins need not exist."""
    unknown = {name for name in TORCH_NAMES if not covered(name) and not name.endswith("_")}
    assert unknown <= {"aten::_scaled_addmm"}  # which torch has since 2.15
