"""Inputs are written as they are read."""

from __future__ import annotations

import pytest

from pytest_modelbudget.budget.input_forms import positional_text
from tests.builders.texts import Read, inputs


@pytest.mark.parametrize(
    ("given", "written"),
    [
        pytest.param("'float32[1, 3]'", "float32 1x3", id="one"),
        pytest.param("float32 ()", "float32 ()", id="scalar"),
        pytest.param("[float32 1x3]", "float32 1x3", id="a list of one"),
        pytest.param("[float32 1x3, int64 1]", "[float32 1x3, int64 1]", id="two"),
        pytest.param("[[float32 3x4, float32 3x5]]", "[[float32 3x4, float32 3x5]]", id="one list"),
        pytest.param("[[float32 3x4], int8 1]", "[[float32 3x4], int8 1]", id="a list and one"),
        pytest.param(
            "{shape: 1x128, dtype: int64, high: 9}", '{"dtype": "int64", "shape": [1, 128], "high": 9}', id="a range"
        ),
        pytest.param("[float32 1x3, true, ~, 0x10, 2e-1]", "[float32 1x3, true, null, 16, 0.2]", id="plain values"),
        pytest.param("[float32 1, {plain: '3'}]", '[float32 1, {"plain": "3"}]', id="a text"),
        pytest.param("[{b: float32 1, a: [int8 2, 3]}]", "[{b: float32 1, a: [int8 2, 3]}]", id="a dict, in its order"),
    ],
)
def test_inputs_are_read_back(read: Read, given: str, written: str) -> None:
    """A list of tensors is one argument, and a list around one tensor is nothing."""
    (model,) = read(inputs(given)).models
    assert positional_text(model.made.inputs.positional) == written
    (again,) = read(inputs(written)).models
    assert again.made.inputs == model.made.inputs
