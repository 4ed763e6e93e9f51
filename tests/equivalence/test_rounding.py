"""The first layer that rounds more than it must: by arithmetic, and in an ONNX graph."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.equivalence.layers import first_rounding
from pytest_modelbudget.formats.model import LayerOutput
from tests.builders.onnx_graphs import node
from tests.builders.onnx_judgements import judged
from tests.builders.onnx_linears import network

UNIT = 2.0**-24  # of float32
ONES = np.ones(1000)
# One partial sum, and an original without any error of its own: 8·u·rms(y) is allowed.
LIMIT = 8 * UNIT


def layer(scope: str, values: np.ndarray) -> LayerOutput:
    return LayerOutput(scope, scope, values)


@pytest.mark.parametrize(
    ("errors", "named"),
    [
        pytest.param((0.0, 0.0, 0.0), None, id="none"),
        pytest.param((0.99, 0.99, 0.99), None, id="just within"),
        pytest.param((0.5, 1.01, 2.0), "b", id="the second"),
        pytest.param((3.0, 3.0, 3.0), "a", id="all of them"),
        pytest.param((0.0, 0.0, 1.01), "b", id="the second call of a layer"),
    ],
)
def test_the_first_layer_above_the_limit(errors: tuple[float, ...], named: str | None) -> None:
    """Layers a, b and b again, each off by a share of the limit in every element."""
    scopes = ("a", "b", "b")
    exact = [layer(scope, ONES) for scope in scopes]
    found = [layer(s, ONES + e * LIMIT) for s, e in zip(scopes, errors, strict=True)]
    seen = first_rounding(exact, exact, found, "float32", 1)
    assert (seen.scope if seen else None) == named
    if seen is not None:
        share = next(e for s, e in zip(scopes, errors, strict=True) if s == named and e > 1)
        assert seen.error == pytest.approx(share * LIMIT, rel=1e-6)


def test_what_cannot_be_matched_says_nothing() -> None:
    """Another name, another shape, or a type that nothing is known of is no finding."""
    exact, wrong = [layer("a", ONES)], 2 * ONES
    assert first_rounding(exact, exact, [layer("a", wrong)], "float32", 1) is not None
    assert first_rounding(exact, exact, [layer("b", wrong)], "float32", 1) is None
    assert first_rounding(exact, exact, [layer("a", wrong[1:])], "float32", 1) is None
    assert first_rounding(exact, exact, [layer("a", wrong)], "float8_e5m2", 1) is None


def test_an_onnx_layer_that_rounds_to_half_is_named() -> None:
    """The second of three layers rounds its float32 to float16: off by 2⁻¹²."""
    proto = network("float32")
    twin = onnx.ModelProto.FromString(proto.SerializeToString())
    position, layer = next((i, each) for i, each in enumerate(twin.graph.node) if each.output[0] == "fc1")
    layer.name, layer.output[0] = "wide", "wide"
    twin.graph.node.insert(position + 1, node("Cast", "wide", "half", to=TensorProto.FLOAT16))
    twin.graph.node.insert(position + 2, node("Cast", "half", "fc1", to=TensorProto.FLOAT))
    found = judged(proto, twin)
    assert found.outcome is Outcome.OVER
    assert "rounded more than it must be" in found.reason
    assert found.first_divergence is not None
    assert found.first_divergence.scope == "fc1"
    assert 2.0**-13 < found.first_divergence.error < 2.0**-11
