"""Every operator of ONNX is in one list: a formula, free with a reason, or unmeasured with one."""

from __future__ import annotations

import onnx
import pytest

from pytest_modelbudget.ops.rule import nothing
from pytest_modelbudget.ops.table import builtin_ops

SPACES = {"": "onnx", "ai.onnx.ml": "ai.onnx.ml", "ai.onnx.preview": "ai.onnx.preview"}
SCHEMAS = {
    f"{SPACES[schema.domain]}::{schema.name}": schema
    for schema in onnx.defs.get_all_schemas()
    if schema.domain in SPACES
}
# The only operators without a MAC formula; each rule says why.
UNMEASURED = {
    "onnx::If",
    "onnx::Loop",
    "onnx::Scan",
    "onnx::SequenceMap",
    "ai.onnx.ml::SVMClassifier",
    "ai.onnx.ml::SVMRegressor",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_operator_has_a_rule(name: str) -> None:
    """A new operator of a newer onnx fails here until somebody says what it costs."""
    assert name in builtin_ops()


def test_unmeasured_operators_are_listed() -> None:
    """No operator is without a MAC formula by oversight."""
    unmeasured = {name for name in SCHEMAS if builtin_ops()[name].macs is None}
    assert unmeasured == UNMEASURED


@pytest.mark.parametrize("name", SCHEMAS)
def test_roles_cover_every_operand(name: str) -> None:
    """A rule has a role for each operand of the schema, so that none lands in another's."""
    roles = builtin_ops()[name].names[name]
    variadic = bool(roles) and roles[-1].startswith("*")
    operands = SCHEMAS[name].inputs
    many = operands and operands[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    assert variadic or (len(operands) <= len(roles) and not many), name


def test_no_rule_names_an_operator_that_onnx_never_had() -> None:
    """A misspelt name would be a rule that never applies."""
    contracted = {"onnx::SimplifiedLayerNormalization"}  # ONNX Runtime writes it into ONNX's domain
    ever = {
        f"{SPACES[schema.domain]}::{schema.name}"
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.domain in SPACES
    }
    spaces = tuple(f"{space}::" for space in SPACES.values())
    named = {name for name in builtin_ops() if name.startswith(spaces)}
    assert named - ever == contracted


@pytest.mark.parametrize("name", SCHEMAS)
def test_contractions_are_named(name: str) -> None:
    """What has a MAC formula is of a kind that contracts; all else is free of MACs by its rule."""
    rule = builtin_ops()[name]
    contracts = rule.macs is not None and rule.macs is not nothing
    assert contracts == (rule.kind in CONTRACTIONS and name not in UNMEASURED)


CONTRACTIONS = {
    "affine_grid",
    "attention",
    "convolution",
    "deformable_convolution",
    "einsum",
    "gru",
    "linear",
    "linear_attention",
    "lstm",
    "matmul",
    "rnn",
    "solve",
}
