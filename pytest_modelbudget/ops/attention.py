"""Attention called as one operator: query-key scores, softmax, and their product with values."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.dense import COLUMNS_OF, in_columns, in_product
from pytest_modelbudget.ops.role import BIAS, WEIGHT, WEIGHT_SCALE, WEIGHT_ZERO_POINT, X_SCALE, roles
from pytest_modelbudget.ops.rule import Attributes, Contraction, Maybe, OpRule, Over, under


def attention_macs(*, query: Tensor, key: Tensor, value: Tensor, out: Tensor) -> int:
    """Two matrix products per head, whichever kernel runs; a causal mask saves nothing.

    query (..., h, l, e) · keyᵀ (..., h', s, e) → scores (..., h, l, s), · value (..., h', s, v).
    Grouped queries (h' < h) reuse keys and values, hence rows of out · s · (e + v).
    """
    rows = prod(out.shape[:-1])
    return rows * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def attention_flops(*, key: Tensor, out: Tensor, attributes: Attributes, mask: Maybe = None) -> int:
    """Per score: softmax 5, scale 1, and 1 for a mask, given or causal."""
    masked = mask is not None or bool(attributes.get("is_causal"))
    return prod(out.shape[:-1]) * key.shape[-2] * (6 + masked)


def native_attention_macs(*, query: Tensor, key: Tensor, value: Tensor, attributes: Attributes) -> int:
    """A whole multi-head attention: four projections around the two products.

    query (b, l, d), key and value (b, s, d); all projections are (d, d).
    """
    d = int(str(attributes["embed_dim"]))
    batch, length = query.shape[0], query.shape[1]
    projections = (2 * query.elements + key.elements + value.elements) * d
    return projections + 2 * batch * length * key.shape[1] * d


def native_attention_flops(
    *, query: Tensor, key: Tensor, value: Tensor, attributes: Attributes, mask: Maybe = None
) -> int:
    """Biases of the four projections, then softmax, scale and mask per score of every head."""
    heads = int(str(attributes["num_head"]))
    scores = query.shape[0] * heads * query.shape[1] * key.shape[1]
    biases = 2 * query.elements + key.elements + value.elements
    return biases + scores * (6 + (mask is not None))


def encoder_layer_macs(*, x: Tensor, feed_forward: Tensor, attributes: Attributes) -> int:
    """A whole encoder layer: self-attention, then d → f → d on every row.

    x (b, l, d), feed_forward (f, d).
    """
    attention = native_attention_macs(query=x, key=x, value=x, attributes=attributes)
    return attention + 2 * x.elements * feed_forward.shape[0]


@dataclass(frozen=True, slots=True)
class Scores:
    """Sizes of an attention: in each head of each image, queries meet keys over e and values of v."""

    heads: int  # of all images together
    queries: int
    keys: int
    e: int
    v: int

    @property
    def rows(self) -> int:
        """Queries of all heads."""
        return self.heads * self.queries

    @property
    def macs(self) -> int:
        """Query-key products of e, then scores times values of v."""
        return self.rows * self.keys * (self.e + self.v)

    def flops(self, masked: bool) -> int:
        """Softmax 5, scale 1, and 1 for a mask, per score."""
        return self.rows * self.keys * (6 + masked)


def _heads(attributes: Attributes, name: str) -> int:
    heads = int(str(attributes.get(name, 0)))
    if heads < 1:
        raise UnmeasurableError(f"the node does not say {name}")
    return heads


def tokens_first_scores(
    *, query: Tensor, key: Tensor, value: Tensor, attributes: Attributes, offsets: Maybe = None, blocks: Maybe = None
) -> Scores:
    """query (b, l, h, e), key (b, s, h', e) and value (b, s, h', v); with offsets all sequences in one row (l, h, e).

    Offsets (b + 1,) of one sequence leave no choice. Raises UnmeasurableError where the data decide how long several
    are, or which blocks of a cache they read; the longest key, as the call says it, bounds them.
    """
    if blocks is not None:
        raise UnmeasurableError(UNPADDED)
    rows = query.elements // query.shape[-1]
    e, v, keys = query.shape[-1], value.shape[-1], key.shape[-3]
    if offsets is not None and offsets.shape != (2,):
        longest = attributes.get("max_k", attributes.get("max_seqlen_k"))
        bound = Scores(1, rows, min(keys, int(str(longest))), e, v).macs if longest else 0
        raise UnmeasurableError(UNPADDED + (f"; at most {bound:,} MACs, by max_k {longest}" if bound else ""))
    return Scores(1, rows, keys, e, v)


def tokens_first_macs(
    *, query: Tensor, key: Tensor, value: Tensor, attributes: Attributes, offsets: Maybe = None
) -> int:
    """Two products per head, which is the axis behind the tokens."""
    return tokens_first_scores(query=query, key=key, value=value, attributes=attributes, offsets=offsets).macs


def tokens_first_flops(
    *,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attributes: Attributes,
    offsets: Maybe = None,
    mask: Maybe = None,
    slopes: Maybe = None,
) -> int:
    """Per score: softmax 5, scale 1, and 1 for a mask, given or causal, or for slopes by distance."""
    scores = tokens_first_scores(query=query, key=key, value=value, attributes=attributes, offsets=offsets)
    is_causal = bool(attributes.get("is_causal") or attributes.get("custom_mask_type"))
    return scores.flops(is_causal or mask is not None or slopes is not None)


def attention_23_scores(
    *, query: Tensor, key: Tensor, value: Tensor, attributes: Attributes, past_key: Maybe = None
) -> Scores:
    """Attention-23: (b, h, l, e), or (b, l, h·e) with the heads as attributes."""
    past = past_key.shape[2] if past_key is not None else 0
    if len(query.shape) == 4:
        return Scores(prod(query.shape[:2]), query.shape[2], key.shape[2] + past, query.shape[3], value.shape[3])
    batch, length, width = query.shape
    heads = _heads(attributes, "q_num_heads")
    v = value.shape[2] // _heads(attributes, "kv_num_heads")
    return Scores(batch * heads, length, key.shape[1] + past, width // heads, v)


def attention_23_macs(
    *, query: Tensor, key: Tensor, value: Tensor, attributes: Attributes, past_key: Maybe = None
) -> int:
    """Two products per head; cached keys and values count like new ones."""
    return attention_23_scores(query=query, key=key, value=value, attributes=attributes, past_key=past_key).macs


def attention_23_flops(
    *, query: Tensor, key: Tensor, value: Tensor, attributes: Attributes, mask: Maybe = None, past_key: Maybe = None
) -> int:
    """Softmax, scale and mask per score, and 3 for a soft cap (quotient, tanh, product)."""
    scores = attention_23_scores(query=query, key=key, value=value, attributes=attributes, past_key=past_key)
    capped = 3 * bool(attributes.get("softcap"))
    masked = mask is not None or bool(attributes.get("is_causal"))
    return scores.flops(masked) + scores.rows * scores.keys * capped


def multi_head_scores(
    *, query: Tensor, attributes: Attributes, key: Maybe = None, value: Maybe = None, past_key: Maybe = None
) -> Scores:
    """MultiHeadAttention: q (b, l, h·e), all in (b, l, h, 3, e) or (b, l, h·(2·e + v)), or k and v in (b, s, h, 2, e).

    A buffer that past and present share counts in full, as what is longer than its content.
    """
    heads = _heads(attributes, "num_heads")
    batch, length = query.shape[:2]
    past = past_key.shape[2] if past_key is not None else 0
    shared = past_key is not None and bool(attributes.get("past_present_share_buffer"))
    if key is None and len(query.shape) == 3:
        width = query.shape[2] // heads
        e = past_key.shape[3] if past_key is not None else width // 3
        return Scores(batch * heads, length, past if shared else length + past, e, width - 2 * e)
    e = query.shape[-1] if len(query.shape) == 5 else query.shape[2] // heads
    if key is None:
        return Scores(batch * heads, length, length + past, e, e)
    if len(key.shape) == 5:
        return Scores(batch * heads, length, key.shape[1] + past, e, e)
    keys = key.shape[2] if len(key.shape) == 4 else key.shape[1] * (not shared)
    v = e
    if value is not None:
        v = value.shape[3] if len(value.shape) == 4 else value.shape[2] // heads
    return Scores(batch * heads, length, keys + past, e, v)


def multi_head_macs(
    *, query: Tensor, attributes: Attributes, key: Maybe = None, value: Maybe = None, past_key: Maybe = None
) -> int:
    """Two products per head, without projections."""
    return multi_head_scores(query=query, key=key, value=value, attributes=attributes, past_key=past_key).macs


def multi_head_flops(
    *,
    query: Tensor,
    attributes: Attributes,
    key: Maybe = None,
    value: Maybe = None,
    past_key: Maybe = None,
    bias: Maybe = None,
    mask: Maybe = None,
    padding_mask: Maybe = None,
) -> int:
    """Softmax, scale and mask per score, and the bias of queries, keys and values; in heads (b, h, s, e) none."""
    scores = multi_head_scores(query=query, key=key, value=value, attributes=attributes, past_key=past_key)
    given = [each for each in (query, key, value) if each is not None and len(each.shape) != 4]
    added = sum(each.elements for each in given) if bias is not None else 0
    return added + scores.flops(mask is not None or padding_mask is not None or bool(attributes.get("unidirectional")))


def grouped_query_scores(
    *, query: Tensor, attributes: Attributes, outputs: tuple[Tensor, ...], key: Maybe = None, past_key: Maybe = None
) -> Scores:
    """GroupQueryAttention: q (b, l, h·e), or packed (b, l, (h + 2·h')·e); keys as in the cache."""
    heads = _heads(attributes, "num_heads")
    groups = _heads(attributes, "kv_num_heads")
    batch, length, width = query.shape
    e = width // (heads if key is not None else heads + 2 * groups)
    past = past_key.shape[2] if past_key is not None else 0
    present = outputs[1] if len(outputs) > 1 and len(outputs[1].shape) == 4 else None
    keys = present.shape[2] if present is not None else length + past
    return Scores(batch * heads, length, keys, e, e)


def grouped_query_macs(
    *, query: Tensor, attributes: Attributes, outputs: tuple[Tensor, ...], key: Maybe = None, past_key: Maybe = None
) -> int:
    """Two products per query head; a buffer that is longer than its content counts in full."""
    scores = grouped_query_scores(query=query, attributes=attributes, outputs=outputs, key=key, past_key=past_key)
    return scores.macs


def grouped_query_flops(
    *,
    query: Tensor,
    attributes: Attributes,
    outputs: tuple[Tensor, ...],
    key: Maybe = None,
    past_key: Maybe = None,
    mask: Maybe = None,
    weight: Maybe = None,
) -> int:
    """Softmax, scale and mask per score, 3 for a soft cap; and of queries and keys, 3 per element turned, 4 normed."""
    scores = grouped_query_scores(query=query, attributes=attributes, outputs=outputs, key=key, past_key=past_key)
    capped = 3 * bool(attributes.get("softcap"))
    masked = mask is not None or bool(attributes.get("causal", 1))
    heads = _heads(attributes, "num_heads")
    both = scores.rows // heads * scores.e * (heads + _heads(attributes, "kv_num_heads"))
    prepared = 3 * bool(attributes.get("do_rotary")) + 4 * (weight is not None)
    return scores.flops(masked) + scores.rows * scores.keys * capped + both * prepared


def projected_scores(*, x: Tensor, weight: Tensor, attributes: Attributes, past: Maybe = None) -> Scores:
    """Attention of ONNX Runtime: x (b, l, d) · weight (d, q + k + v), then heads of both."""
    heads = _heads(attributes, "num_heads")
    sizes = attributes.get("qkv_hidden_sizes")
    third = weight.shape[1] // 3
    q, _, v = sizes if isinstance(sizes, tuple) and len(sizes) == 3 else (third, third, third)
    before = past.shape[3] if past is not None else 0
    shared = past is not None and bool(attributes.get("past_present_share_buffer"))
    keys = before if shared else x.shape[1] + before  # a buffer counts in full
    return Scores(x.shape[0] * heads, x.shape[1], keys, int(q) // heads, int(v) // heads)


def projected_macs(*, x: Tensor, weight: Tensor, attributes: Attributes, past: Maybe = None) -> int:
    """One projection to queries, keys and values together, then the two products per head."""
    rows = prod(x.shape[:2])
    return rows * weight.elements + projected_scores(x=x, weight=weight, attributes=attributes, past=past).macs


def projected_flops(
    *,
    x: Tensor,
    weight: Tensor,
    attributes: Attributes,
    bias: Maybe = None,
    mask: Maybe = None,
    score_bias: Maybe = None,
    past: Maybe = None,
) -> int:
    """The bias of the projection, queries and keys turned (3 an element), then softmax, scale and mask per score."""
    scores = projected_scores(x=x, weight=weight, attributes=attributes, past=past)
    added = prod(x.shape[:2]) * weight.shape[1] if bias is not None else 0
    part = int(str(attributes.get("rotary_embedding_dim", 0))) or scores.e
    turned = 2 * 3 * scores.rows * part if attributes.get("do_rotary") else 0
    masked = mask is not None or bool(attributes.get("unidirectional"))
    masked = masked or score_bias is not None
    return added + turned + scores.flops(masked)


def decided_by_data(why: str) -> Callable[[], int]:
    """MACs that no formula gives before the run: it raises UnmeasurableError."""

    def macs() -> int:
        raise UnmeasurableError(why)

    return macs


def linear_attention_macs(*, query: Tensor, key: Tensor, value: Tensor, attributes: Attributes) -> int:
    """A state (d_k, d_v) per head: k·vᵀ is added to it, q reads it, a delta rule reads it twice.

    query (b, t, h·d_k), key (b, t, h'·d_k), value (b, t, h'·d_v).
    """
    heads, groups = _heads(attributes, "q_num_heads"), _heads(attributes, "kv_num_heads")
    state = (key.shape[2] // groups) * (value.shape[2] // groups)
    delta = "delta" in str(attributes.get("update_rule", "gated_delta"))
    return prod(query.shape[:2]) * state * (heads + groups * (1 + delta))


def packed_linear_attention_macs(*, query: Tensor, key: Tensor, value: Tensor, attributes: Attributes) -> int:
    """The same of query (t, h, d_k), key (t, h', d_k) and value (t, h″, d_v), with a state for each head of values."""
    state, states = key.shape[-1] * value.shape[-1], value.shape[1]
    delta = "delta" in str(attributes.get("update_rule", "gated_delta"))
    return query.shape[0] * state * (max(query.shape[1], states) + states * (1 + delta))


def rotary_flops(*, out: Tensor, attributes: Attributes) -> int:
    """Two products and a sum per element that is turned: of heads (b, h, l, e) or (b, l, h·e), all or the first few."""
    part = int(str(attributes.get("rotary_embedding_dim", 0)))
    if not part:
        return 3 * out.elements
    e = out.shape[-1] if len(out.shape) == 4 else out.shape[-1] // _heads(attributes, "num_heads")
    return 3 * out.elements // e * part


QUERY, KEY, VALUE = roles("query key value", learnt=True)
MASK, SCORE_BIAS = roles("mask score_bias", learnt=True, masks=True)
ATTENDED = (QUERY, KEY, VALUE, MASK)
PAST = roles("past_key past_value", learnt=True)
ANGLES = roles("cosines sines")  # of positions: nobody trains them
PROJECTIONS = roles("in_weight in_bias out_weight out_bias", weight=True)
ENCODER = roles(
    "norm_weight_1 norm_bias_1 norm_weight_2 norm_bias_2 feed_forward feed_forward_bias feed_back feed_back_bias",
    weight=True,
)
ATTENTION_OF = Contraction(Over.FEATURES, ("query", "key", "value"))
CACHED_OF = Contraction(Over.FEATURES, ("query", "key", "value", "past_key", "past_value"))
NATIVE_OF = Contraction(Over.FEATURES, ("query", "key", "value", "in_weight", "out_weight"))
ENCODER_OF = Contraction(Over.FEATURES, ("x", "in_weight", "out_weight", "feed_forward", "feed_back"))
GLOBAL_WEIGHT, GLOBAL_BIAS = roles("second_weight second_bias", weight=True)
LOCAL_AND_GLOBAL_OF = Contraction(
    Over.FEATURES, ("x", "weight", "second_weight"), fan_in=in_columns, fan_in_at=in_product
)
UNPADDED = "each query meets the keys of its own sequence, whose length the data decide"
ATTENTION: tuple[OpRule, ...] = (
    OpRule(
        "attention",
        under(
            "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu "
            "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
            "_scaled_dot_product_fused_attention_overrideable",
            ATTENDED,
        )
        | under("_scaled_dot_product_flash_attention", (QUERY, KEY, VALUE), "query_scale key_scale value_scale")
        | under("_scaled_dot_product_attention_math", ATTENDED, "dropout_mask"),
        "softmax(q·kᵀ)·v: torch.nn.functional.scaled_dot_product_attention",
        macs=attention_macs,
        contracts=ATTENTION_OF,
        flops=attention_flops,
    ),
    OpRule(
        "attention",
        under("_flash_attention_forward", (QUERY, KEY, VALUE), "offsets key_offsets lengths slopes blocks")
        | under(
            "_flash_attention_forward.quantized",
            (QUERY, KEY, VALUE),
            "offsets key_offsets query_scale key_scale value_scale lengths slopes",
        )
        | under("_efficient_attention_forward", ATTENDED, "offsets key_offsets lengths")
        | under("torch_attn::_varlen_attn", (QUERY, KEY, VALUE), "offsets key_offsets lengths blocks")
        | under("torch_attn::_varlen_attn_out", "into", (QUERY, KEY, VALUE), "offsets key_offsets lengths blocks"),
        "softmax(q·kᵀ)·v with tokens before heads: torch.nn.attention.varlen, and the kernels behind attention",
        macs=tokens_first_macs,
        contracts=ATTENTION_OF,
        flops=tokens_first_flops,
    ),
    OpRule(
        "multi_head_attention",
        under("_native_multi_head_attention", "query key value", PROJECTIONS, "mask"),
        "the fast path that scripted nn.MultiheadAttention takes: projections included",
        macs=native_attention_macs,
        contracts=NATIVE_OF,
        flops=native_attention_flops,
    ),
    OpRule(
        "transformer_encoder_layer",
        under("_transformer_encoder_layer_fwd", "x", PROJECTIONS, ENCODER, "mask"),
        "the fast path that scripted nn.TransformerEncoderLayer takes, as one operator",
        macs=encoder_layer_macs,
        contracts=ENCODER_OF,
        flops=None,
    ),
    OpRule(
        "attention",
        under("Attention", ATTENDED, PAST, "lengths"),
        "softmax(q·kᵀ)·v: ONNX Attention, opset 23 and later",
        macs=attention_23_macs,
        contracts=CACHED_OF,
        flops=attention_23_flops,
    ),
    OpRule(
        "attention",
        under("ai.onnx.preview::FlexAttention", QUERY, KEY, VALUE),
        "attention whose scores run through bodies of the node, which flops/1 has no figure for",
        macs=attention_23_macs,
        contracts=ATTENTION_OF,
        flops=None,
    ),
    OpRule(
        "attention",
        under(
            "com.microsoft::MultiHeadAttention",
            (QUERY, KEY, VALUE, BIAS),
            ("padding_mask", MASK, "past_key past_value"),
            "lengths indirection",
        )
        | under(
            "com.microsoft::DecoderMaskedMultiHeadAttention",
            (QUERY, KEY, VALUE),
            ("padding_mask", MASK, "past_key past_value"),
            "lengths beams indirection",
            BIAS,
        ),
        "softmax(q·kᵀ)·v per head, after the projections",
        macs=multi_head_macs,
        contracts=CACHED_OF,
        flops=multi_head_flops,
    ),
    OpRule(
        "attention",
        under(
            "com.microsoft::GroupQueryAttention",
            (QUERY, KEY, VALUE, PAST),
            "lengths total_length",
            ANGLES,
            "positions",
            (MASK, "sink", roles("key_scale value_scale")),  # of the cache
            (WEIGHT, roles("second_weight", weight=True)),
        ),
        "softmax(q·kᵀ)·v, several query heads on one head of keys and values",
        macs=grouped_query_macs,
        contracts=CACHED_OF,
        flops=grouped_query_flops,
    ),
    OpRule(
        "multi_head_attention",
        under("com.microsoft::Attention", "x", WEIGHT, BIAS, (MASK, "past", SCORE_BIAS, "lengths"))
        | under(
            "com.microsoft::DecoderMaskedSelfAttention",
            ("x", WEIGHT, BIAS, MASK, "past", SCORE_BIAS),
            "lengths beams indirection",
        )
        | under(
            "com.microsoft::QAttention",
            ("x", WEIGHT, BIAS, X_SCALE, WEIGHT_SCALE),
            (MASK, "x_zero_point", WEIGHT_ZERO_POINT, "past"),
        ),
        "one projection to queries, keys and values, then softmax(q·kᵀ)·v",
        macs=projected_macs,
        contracts=COLUMNS_OF,
        flops=projected_flops,
    ),
    OpRule(
        "local_attention",
        under("com.microsoft::LongformerAttention", "x", WEIGHT, BIAS, MASK, (GLOBAL_WEIGHT, GLOBAL_BIAS, "chosen")),
        "attention within a window, and beyond it of a few that the data choose",
        macs=decided_by_data("each query meets a window of keys and those that the data choose"),
        contracts=LOCAL_AND_GLOBAL_OF,
        flops=None,
    ),
    OpRule(
        "unpadded_attention",
        under("com.microsoft::PackedAttention", "x", WEIGHT, BIAS, "offsets lengths", SCORE_BIAS),
        "attention over sequences of any length that lie one behind the other",
        macs=decided_by_data(UNPADDED),
        contracts=COLUMNS_OF,
        flops=None,
    ),
    OpRule(
        "unpadded_attention",
        under("com.microsoft::PackedMultiHeadAttention", (QUERY, KEY, VALUE, BIAS), "offsets lengths", SCORE_BIAS),
        "attention over sequences of any length that lie one behind the other",
        macs=decided_by_data(UNPADDED),
        contracts=ATTENTION_OF,
        flops=None,
    ),
    OpRule(
        "linear_attention",
        under("LinearAttention com.microsoft::LinearAttention", "query key value past decay beta"),
        "a running state per head takes the place of scores: one update and one read a step",
        macs=linear_attention_macs,
        contracts=ATTENTION_OF,
        flops=None,
    ),
    OpRule(
        "linear_attention",
        under(
            "com.microsoft::GatedDeltaNet",
            (QUERY, KEY, VALUE),
            "offsets decay beta past",
            roles("factor shift", weight=True),
            "captured active",
        ),
        "a running state per head takes the place of scores, over tokens of all sequences in one row",
        macs=packed_linear_attention_macs,
        contracts=ATTENTION_OF,
        flops=None,
    ),
    OpRule(
        "rotary_embedding",
        under("RotaryEmbedding", "x", ANGLES, "positions")
        | under("com.microsoft::RotaryEmbedding com.microsoft::MRotaryEmbedding", "x positions", ANGLES),
        "pairs are turned by an angle: two products and a sum per element of theirs, nothing contracted",
        flops=rotary_flops,
    ),
)
