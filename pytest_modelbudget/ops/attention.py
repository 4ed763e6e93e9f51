"""Attention called as one operator: query-key scores, softmax, and their product with values."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from pytest_modelbudget.ir.tensor import Tensor
from pytest_modelbudget.ops.op_rule import OpRule


def attention_macs(*, query: Tensor, key: Tensor, value: Tensor, out: Tensor) -> int:
    """Two matrix products per head, whichever kernel runs; a causal mask saves nothing.

    query (..., h, l, e) · keyᵀ (..., h', s, e) → scores (..., h, l, s), · value (..., h', s, v).
    Grouped queries (h' < h) reuse keys and values, hence rows of out · s · (e + v).
    """
    rows = prod(out.shape[:-1])
    return rows * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def attention_flops(
    *, key: Tensor, out: Tensor, attributes: Mapping[str, object], mask: Tensor | None = None
) -> int:
    """Per score: softmax 5, scale 1, and 1 for a mask, given or causal."""
    masked = mask is not None or bool(attributes.get("is_causal"))
    return prod(out.shape[:-1]) * key.shape[-2] * (6 + masked)


def native_attention_macs(
    *, query: Tensor, key: Tensor, value: Tensor, attributes: Mapping[str, object]
) -> int:
    """A whole multi-head attention: four projections around the two products.

    query (b, l, d), key and value (b, s, d); all projections are (d, d).
    """
    d = int(str(attributes["embed_dim"]))
    batch, length = query.shape[0], query.shape[1]
    projections = (2 * query.elements + key.elements + value.elements) * d
    return projections + 2 * batch * length * key.shape[1] * d


def native_attention_flops(
    *,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attributes: Mapping[str, object],
    mask: Tensor | None = None,
) -> int:
    """Biases of the four projections, then softmax, scale and mask per score of every head."""
    heads = int(str(attributes["num_head"]))
    scores = query.shape[0] * heads * query.shape[1] * key.shape[1]
    biases = 2 * query.elements + key.elements + value.elements
    return biases + scores * (6 + (mask is not None))


def encoder_layer_macs(*, x: Tensor, feed_forward: Tensor, attributes: Mapping[str, object]) -> int:
    """A whole encoder layer: self-attention, then d → f → d on every row.

    x (b, l, d), feed_forward (f, d).
    """
    attention = native_attention_macs(query=x, key=x, value=x, attributes=attributes)
    return attention + 2 * x.elements * feed_forward.shape[0]


ATTENTION: tuple[OpRule, ...] = (
    OpRule(
        kind="attention",
        names={
            "aten::scaled_dot_product_attention": ("query", "key", "value", "mask"),
            "aten::_scaled_dot_product_flash_attention": (
                "query",
                "key",
                "value",
                "query_scale",
                "key_scale",
                "value_scale",
            ),
            "aten::_scaled_dot_product_flash_attention_for_cpu": ("query", "key", "value", "mask"),
            "aten::_scaled_dot_product_efficient_attention": ("query", "key", "value", "mask"),
            "aten::_scaled_dot_product_cudnn_attention": ("query", "key", "value", "mask"),
            "aten::_scaled_dot_product_attention_math": (
                "query",
                "key",
                "value",
                "mask",
                "dropout_mask",
            ),
        },
        macs=attention_macs,
        flops=attention_flops,
        because="softmax(q·kᵀ)·v: torch.nn.functional.scaled_dot_product_attention",
    ),
    OpRule(
        kind="multi_head_attention",
        names={
            "aten::_native_multi_head_attention": (
                "query",
                "key",
                "value",
                "in_weight",
                "in_bias",
                "out_weight",
                "out_bias",
                "mask",
            )
        },
        macs=native_attention_macs,
        flops=native_attention_flops,
        because="the fast path that scripted nn.MultiheadAttention takes: projections included",
    ),
    OpRule(
        kind="transformer_encoder_layer",
        names={
            "aten::_transformer_encoder_layer_fwd": (
                "x",
                "in_weight",
                "in_bias",
                "out_weight",
                "out_bias",
                "norm_weight_1",
                "norm_bias_1",
                "norm_weight_2",
                "norm_bias_2",
                "feed_forward",
                "feed_forward_bias",
                "feed_back",
                "feed_back_bias",
                "mask",
            )
        },
        macs=encoder_layer_macs,
        flops=None,
        because="the fast path that scripted nn.TransformerEncoderLayer takes, as one operator",
    ),
)
