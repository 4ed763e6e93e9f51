"""Several packed linear layers on one input in one operator, as ONNX Runtime fuses the projections of a decoder."""

from math import prod

from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.role import Role
from pytest_modelbudget.ops.rule import Attributes, Contraction, Maybe, OpRule, Over, under

NORM = ("x", Role("skip"), Role("norm_scale", weight=True, scales=True))


def _packed(name: str, width: str) -> tuple[Role, ...]:
    """A weight of K times so many packed elements, its scales and its bias."""
    weight = Role(name, weight=True, packed=("K", width))
    return weight, Role(f"{name}_scale", quantises=name), Role(f"{name}_bias", weight=True)


def _rows(x: Tensor) -> int:
    return prod(x.shape[:-1])


def _norm_flops(x: Tensor, skip: Maybe, norm_scale: Maybe) -> int:
    """Four for each element of an RMS norm, and one for each of a residual that is added before it."""
    return x.elements * (4 * (norm_scale is not None) + (skip is not None))


def gated_macs(*, x: Tensor, out: Tensor) -> int:
    """x (..., k) times gate (k, n) and up (k, n): two products for each output."""
    return 2 * out.elements * x.shape[-1]


def gated_flops(
    *,
    x: Tensor,
    out: Tensor,
    skip: Maybe = None,
    norm_scale: Maybe = None,
    gate_bias: Maybe = None,
    up_bias: Maybe = None,
) -> int:
    """What comes before the products, their biases, and for each output an activation and a product."""
    biases = (gate_bias is not None) + (up_bias is not None)
    return _norm_flops(x, skip, norm_scale) + (biases + 2) * out.elements


def projections_macs(*, x: Tensor, attributes: Attributes) -> int:
    """x (..., k) times query (k, n), key (k, m) and value (k, m)."""
    return x.elements * (_width(attributes, "Nq") + 2 * _width(attributes, "Nkv"))


def projections_flops(
    *,
    x: Tensor,
    attributes: Attributes,
    skip: Maybe = None,
    norm_scale: Maybe = None,
    query_bias: Maybe = None,
    key_bias: Maybe = None,
    value_bias: Maybe = None,
) -> int:
    """What comes before the products, and a sum for each output with a bias."""
    widths = ((query_bias, "Nq"), (key_bias, "Nkv"), (value_bias, "Nkv"))
    biased = sum(_width(attributes, width) for bias, width in widths if bias is not None)
    return _norm_flops(x, skip, norm_scale) + _rows(x) * biased


def _width(attributes: Attributes, name: str) -> int:
    return int(str(attributes[name]))


QUERY, KEY, VALUE = _packed("query", "Nq"), _packed("key", "Nkv"), _packed("value", "Nkv")
PACKED_PROJECTIONS: tuple[OpRule, ...] = (
    OpRule(
        "gated_linear",
        under("com.microsoft::MatMulNBitsMlp", NORM, _packed("gate", "N"), _packed("up", "N")),
        "an RMS norm where there is its scale, and activation(x·gate) * (x·up): the MACs of two float products",
        macs=gated_macs,
        flops=gated_flops,
        contracts=Contraction(Over.FEATURES, ("x", "gate", "up")),
    ),
    OpRule(
        "projections",
        under("com.microsoft::MatMulNBitsQkv", NORM, QUERY, KEY, VALUE),
        "an RMS norm, and its result times three weights: the MACs of three float products",
        macs=projections_macs,
        flops=projections_flops,
        contracts=Contraction(Over.FEATURES, ("x", "query", "key", "value")),
    ),
)
