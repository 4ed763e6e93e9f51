"""``kv_cache`` of a checkpoint by the formula of its attention: from config.json, or a GGUF file's settings, alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pytest_modelbudget.checkpoints.files import read
from pytest_modelbudget.checkpoints.model import NO_OPERATIONS
from pytest_modelbudget.checkpoints.safetensors import TYPES
from pytest_modelbudget.errors import DeviceError, InputError, TraceError
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.graph.graph import Graph
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.measurement import FORMULA, Measurement
from pytest_modelbudget.metrics.serving import ServedGraph, Service
from pytest_modelbudget.ops.table import OpTable

OF_TYPES = {dtype.name: dtype for dtype in TYPES.values()}
# A GGUF file's settings behind its architecture's name, and what config.json calls them.
OF_GGUF = {
    "block_count": "num_hidden_layers", "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads", "attention.key_length": "head_dim",
    "attention.value_length": "v_head_dim", "embedding_length": "hidden_size",
    "context_length": "max_position_embeddings", "attention.kv_lora_rank": "kv_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim", "attention.sliding_window": "sliding_window",
    "ssm.conv_kernel": "mamba_d_conv",
}  # fmt: skip
NEEDED = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
FULL, SLIDING = "full_attention", "sliding_attention"
ALL_SLIDING = (
    "mistral",
)  # model_type of those whose every layer has the window; others mix them in a way of their own
# What says that some layers cache something else: Jamba and GGUF files, Nemotron-H, Llama 3.2 Vision, Qwen3-Next.
OF_HYBRIDS = (
    "attn_layer_period", "mamba_d_conv", "hybrid_override_pattern", "cross_attention_layers", "full_attention_interval",
)  # fmt: skip
# Names of a configuration for the most tokens.
LONGEST = ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions")


def serve(source: ModelSource, rules: OpTable, weights: Measurement) -> ServedGraph:
    """A service of which nothing but the weights and the cache is known.

    Raises TraceError where the settings name no attention of which a formula is known, InputError for more tokens than
    the model knows.
    """
    serving, checkpoint = source.serving, read(source)
    assert serving is not None, "a source that is served says how"
    of_gguf = _of_gguf(checkpoint.metadata)
    settings = of_gguf or checkpoint.config.get("text_config") or checkpoint.config
    check_context(serving.context, longest_context(settings))
    written = settings.get("dtype") or settings.get("torch_dtype") or ("float16" if of_gguf else "")
    dtype = OF_TYPES.get(serving.cache_dtype or str(written))
    if dtype is None:
        raise TraceError(f"{source.target} does not say of which type its cache is: add cache_dtype to 'serving'")
    sizes = layer_elements(settings, serving.context)
    cache = tuple(
        (f"layers.{at}.cache", serving.batch * size * int(dtype.bits) // 8, dtype) for at, size in enumerate(sizes)
    )
    empty = Graph((), (), (), (), operations_unknown=NO_OPERATIONS)
    service = Service(CostedGraph(empty, rules), cache, weights, _unknown, reserve=serving.reserve, convention=FORMULA)
    return ServedGraph(empty, rules, service)


def _unknown(memory: Callable[[CostedGraph], Measurement]) -> int:
    raise DeviceError(f"max_context is not known: {NO_OPERATIONS}; write its config.json under huggingface:")


def _of_gguf(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a GGUF file as config.json calls them; nothing of another file."""
    prefix = metadata.get("general.architecture")
    return {key: value for name, key in OF_GGUF.items() if (value := metadata.get(f"{prefix}.{name}")) is not None}


def longest_context(settings: Mapping[str, Any]) -> int | None:
    """The most tokens that settings allow; None where they do not say so."""
    found = (settings.get(name) for name in LONGEST)
    return next((value for value in found if isinstance(value, int) and value > 0), None)


def check_context(context: int, longest: int | None) -> None:
    """Raises InputError for more tokens than the model knows."""
    if longest is not None and context > longest:
        raise InputError(f"context {context:,} is above the model's own maximum: write at most {longest:,}")


def layer_elements(settings: Mapping[str, Any], tokens: int) -> Iterator[int]:
    """Cached values of each layer for one sequence: keys and values of all heads, or of latent attention one vector.

    A sliding layer has at most its window. Raises TraceError for layers of another kind, and where the settings do not
    say which layers slide.
    """
    size = "qk_rope_head_dim" if settings.get("kv_lora_rank") else "hidden_size"
    needed = NEEDED if settings.get("head_dim") and size == "hidden_size" else (*NEEDED, size)
    if lacking := [name for name in needed if not isinstance(settings.get(name), int) or settings[name] < 1]:
        raise _unknown_cache(f": {lacking[0]} is not in its settings")
    if mixed := [name for name in OF_HYBRIDS if settings.get(name)]:
        raise _unknown_cache(f": {mixed[0]} says that its layers differ")
    window, heads = settings.get("sliding_window") or tokens, settings["num_attention_heads"]
    head = settings.get("head_dim") or settings.get("hidden_size", 0) // heads
    each = settings["num_key_value_heads"] * (head + (settings.get("v_head_dim") or head))
    if settings.get("kv_lora_rank"):
        each = settings["kv_lora_rank"] + settings["qk_rope_head_dim"]
    if each < 1:
        raise _unknown_cache(f": hidden_size is less than its {heads:,} heads")
    for kind in _kinds(settings, tokens):
        yield each * (min(tokens, window) if kind == SLIDING else tokens)


def _kinds(settings: Mapping[str, Any], tokens: int) -> Sequence[str]:
    """FULL or SLIDING of each layer that has a cache of its own."""
    count, kinds = settings["num_hidden_layers"], settings.get("layer_types")
    if not kinds:
        slides = settings.get("use_sliding_window", True) and (settings.get("sliding_window") or tokens) < tokens
        if slides and settings.get("model_type") not in ALL_SLIDING:
            raise _unknown_cache(": layer_types is not in its settings, so which layers slide is not known")
        kinds = [SLIDING if slides else FULL] * count
    if others := set(map(str, kinds)) - {FULL, SLIDING}:
        raise _unknown_cache(f" of {min(others)[:40]}")
    if len(kinds) != count:
        raise _unknown_cache(f": layer_types has {len(kinds):,} of {count:,} layers")
    return kinds[: count - (settings.get("num_kv_shared_layers") or 0)]


def _unknown_cache(why: str) -> TraceError:
    return TraceError(f"no formula is known of the cache{why}: use huggingface:")
