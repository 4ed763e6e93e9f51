"""``kv_cache`` of a checkpoint by the formula of its attention: from config.json, or a GGUF file's settings, alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
}  # fmt: skip
NEEDED = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
FULL, SLIDING = "full_attention", "sliding_attention"


def serve(source: ModelSource, rules: OpTable, weights: Measurement) -> ServedGraph:
    """A service of which nothing but the weights and the cache is known.

    Raises TraceError where the settings name no attention of which a formula is known, InputError for more tokens than
    the model knows.
    """
    serving, checkpoint = source.serving, read(source)
    assert serving is not None, "a source that is served says how"
    of_gguf = _of_gguf(checkpoint.metadata)
    settings = of_gguf or checkpoint.config.get("text_config") or checkpoint.config
    known = settings.get("max_position_embeddings")
    if isinstance(known, int) and serving.context > known:
        raise InputError(f"context {serving.context:,} is above the model's own maximum: write at most {known:,}")
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


def layer_elements(settings: Mapping[str, Any], tokens: int) -> Iterator[int]:
    """Cached values of each layer for one sequence: keys and values of all heads, or of latent attention one vector.

    A sliding layer has at most its window. Raises TraceError for layers of another kind.
    """
    if lacking := [name for name in NEEDED if not isinstance(settings.get(name), int) or settings[name] < 1]:
        raise TraceError(f"no formula is known of this cache: {lacking[0]} is not in its settings; use huggingface:")
    count, heads = settings["num_hidden_layers"], settings["num_attention_heads"]
    window: int = settings.get("sliding_window") or tokens
    is_sliding = settings.get("sliding_window") and settings.get("use_sliding_window", True)
    kinds = settings.get("layer_types") or [SLIDING if is_sliding else FULL] * count
    if others := set(map(str, kinds)) - {FULL, SLIDING}:
        raise TraceError(f"no formula is known of the cache of {min(others)[:40]}: use huggingface:")
    head = settings.get("head_dim") or settings.get("hidden_size", 0) // heads
    each = settings["num_key_value_heads"] * (head + (settings.get("v_head_dim") or head))
    if settings.get("kv_lora_rank"):
        each = settings["kv_lora_rank"] + settings["qk_rope_head_dim"]
    for kind in kinds[: count - (settings.get("num_kv_shared_layers") or 0)]:
        yield each * (min(tokens, window) if kind == SLIDING else tokens)
