"""Language models in service: caches as real runs return them, memories, and the longest context."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from pytest_modelbudget import measure
from pytest_modelbudget.cli.command import main
from pytest_modelbudget.errors import InputError, SourceError, TraceError
from pytest_modelbudget.formats.source import ModelSource, Serving
from pytest_modelbudget.gate import measuring
from pytest_modelbudget.metrics.measurement import Measurement, UnmeasuredOp
from pytest_modelbudget.registry import tables
from pytest_modelbudget.reports.fit import serving_text
from pytest_modelbudget.reports.html.profile import profile
from pytest_modelbudget.serving.fitting import longest_fitting
from pytest_modelbudget.serving.formula import layer_elements
from tests.builders.checkpoint_files import write

pytestmark = pytest.mark.needs_torch
BATCH = 2
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "vocab_size": 128, "max_position_embeddings": 128}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2}
LATENT = {**SIZES, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8,
          "qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
          "topk_group": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1}  # fmt: skip
HEADS = 2 * BATCH * 2 * 4  # keys and values, sequences, layers, bytes of float32: by elements of a token and layer


def grouped(tokens: int) -> int:
    return HEADS * tokens * 2 * 16


MODELS: Mapping[str, tuple[str, dict[str, Any], Any]] = {  # with the formula of the cache, where one is known
    "llama": ("Llama", GROUPED, grouped),
    "qwen2": ("Qwen2", GROUPED, grouped),
    "mixtral": ("Mixtral", {**GROUPED, "num_local_experts": 2}, grouped),
    "gpt2": ("GPT2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": 128},
             lambda tokens: HEADS * tokens * 64),
    "gemma": ("Gemma", {**SIZES, "num_key_value_heads": 1, "head_dim": 16}, lambda tokens: HEADS * tokens * 16),
    "falcon": ("Falcon", {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128},
               lambda tokens: HEADS * tokens * 16),
    "sliding": ("Mistral", {**GROUPED, "sliding_window": 16}, None),
    "hybrid": ("Gemma3", {**GROUPED, "head_dim": 16, "sliding_window": 16, "num_hidden_layers": 3}, None),
    "latent": ("DeepseekV3", LATENT, lambda tokens: BATCH * 2 * 4 * tokens * (16 + 8)),
    "state space": ("Mamba", {"hidden_size": 64, "state_size": 8, "num_hidden_layers": 2, "vocab_size": 128},
                    lambda tokens: BATCH * 2 * 4 * 128 * (8 + 4)),
    "encoder-decoder": ("T5", {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, "d_kv": 16,
                               "vocab_size": 128}, lambda tokens: 2 * HEADS * tokens * 64),
}  # fmt: skip
CLASSES = {"GPT2": "GPT2LMHeadModel", "T5": "T5ForConditionalGeneration"}
CONFIGS = {"Gemma3": "Gemma3TextConfig"}


def folder(path: Path, name: str, settings: Mapping[str, Any]) -> tuple[Path, Any]:
    """A folder with nothing but config.json, and the configuration."""
    config = getattr(transformers, CONFIGS.get(name, f"{name}Config"))(**settings)
    config.architectures = [CLASSES.get(name, f"{name}ForCausalLM")]
    config.save_pretrained(path)
    return path, config


def tensors(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """All tensors below attributes, lists and mappings."""
    if isinstance(value, torch.Tensor):
        yield value
    elif id(value) not in seen and (isinstance(value, (list, tuple, dict)) or hasattr(value, "__dict__")):
        seen.add(id(value))
        parts = value if isinstance(value, (list, tuple)) else dict(value if isinstance(value, dict) else vars(value))
        for part in parts.values() if isinstance(parts, dict) else parts:
            yield from () if isinstance(part, type) else tensors(part, seen)


def real_bytes(config: Any, tokens: int) -> int:
    """Bytes of the cache that a run of a model with weights returns."""
    model = getattr(transformers, config.architectures[0])._from_config(config).eval()
    ids = torch.ones(BATCH, tokens, dtype=torch.int64)
    both = {"decoder_input_ids": ids} if config.is_encoder_decoder else {}
    with torch.no_grad():
        output = model(input_ids=ids, use_cache=True, **both)
    kept = getattr(output, "past_key_values", None) or getattr(output, "cache_params", None)
    return sum({each.data_ptr(): each.nbytes for each in tensors(kept, set())}.values())


@pytest.mark.parametrize("name", MODELS)
def test_the_cache_is_that_of_a_real_run(tmp_path: Path, name: str) -> None:
    """At three contexts, within and beyond windows; and by the formula of its attention where one applies."""
    kind, settings, formula = MODELS[name]
    path, config = folder(tmp_path, kind, settings)
    for tokens in (8, 24, 40):
        cache = measure(path, serving={"context": tokens, "batch": BATCH}).kv_cache
        assert int(cache) == real_bytes(config, tokens)
        assert formula is None or int(cache) == formula(tokens)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, two key-value heads of 16, in float16."""
    path, config = folder(tmp_path_factory.mktemp("llama"), "Llama", {**GROUPED, "max_position_embeddings": 1024})
    config.dtype = "float16"
    config.save_pretrained(path)
    return path


def test_figures_of_one_model(llama: Path) -> None:
    """2·1·512·2·16·2·2 B of cache; MACs of one token: its layers, its head, and 512 + 1 keys and values."""
    numbers = measure(llama, serving={"context": 512})
    assert int(numbers.kv_cache) == 131_072
    layer = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 128
    assert int(numbers.decode_macs) == 2 * (layer + 2 * 4 * 16 * 513) + 64 * 128
    assert int(numbers.prefill_macs) == 2 * (512 * layer + 2 * 4 * 16 * 512 * 512) + 64 * 128  # logits of one token
    parts = numbers.serving_memory.parts
    assert parts["cache"] == 131_072
    assert parts["weights"] == int(numbers.weight_memory)
    assert sum(parts.values()) == int(numbers.serving_memory)


def test_another_type_of_cache_and_a_reserve(llama: Path) -> None:
    """Eight bits halve the cache; what is reserved is a part of its own."""
    plain = measure(llama, serving={"context": 512})
    other = measure(llama, serving={"context": 512, "cache_dtype": "int8", "reserve": "1 kB"})
    assert int(other.kv_cache) == 65_536
    assert int(plain.serving_memory) - int(other.serving_memory) == 65_536 - 1000


@pytest.mark.parametrize(
    ("cache_dtype", "values"), [("", 64 + 3 * 128), ("int8", 64 + 3 * 128 + 2 * 16 + 64 // 4 - 2 * 64 // 4)]
)
def test_activations_by_hand(tmp_path: Path, cache_dtype: str, values: int) -> None:
    """Values of float32 for each token, in the prefill of two layers of 64, whose network has 128, with 64 of cache.

    In the second network: the residual, what the gate gives, the other factor, their product, and the whole cache. In
    the first also the cosines and sines of a head, and half of the cache: with a cache of a byte, this is the peak.
    """
    path, _ = folder(tmp_path, "Llama", {**GROUPED, "max_position_embeddings": 1024})
    typed = {"cache_dtype": cache_dtype} if cache_dtype else {}
    parts = measure(path, serving={"context": 512, **typed}).serving_memory.parts
    assert parts["activations"] == 512 * 4 * values


@pytest.mark.parametrize("memory", [400_000, 700_000, 10**9])
def test_the_longest_context_is_the_last_that_fits(llama: Path, memory: int) -> None:
    """One token more does not fit, unless the model knows no more."""
    longest = int(measure(llama, serving={"context": 8, "memory": memory}).max_context)
    assert int(measure(llama, serving={"context": longest}).serving_memory) <= memory
    if longest == 1024:
        return
    assert int(measure(llama, serving={"context": longest + 1}).serving_memory) > memory


def test_a_page_shows_memories_behind_several_contexts(llama: Path) -> None:
    """From a half of what is asked to what the model knows, each as if that context was asked for."""
    source = ModelSource("huggingface", str(llama), serving=Serving(512, memory=10**6), base=llama.parent)
    model = measuring.measure_model(source, tables(), root=llama.parent, profile=profile)
    serving = json.loads(model.profile)["serving"]
    assert (serving["context"], serving["room"]) == (512, 10**6)
    columns, rows = serving["points"].values()
    assert [row[0] for row in rows] == [64, 128, 256, 512, 1024]
    for tokens, *amounts in rows:
        parts = measure(llama, serving={"context": tokens}).serving_memory.parts
        assert dict(zip(columns[1:], amounts, strict=True)) == parts


def test_the_search_finds_the_closed_answer() -> None:
    """Of a·n + b the longest n is (room - b) / a, rounded down, in four tries; 0 where not even one fits."""
    for a, b, room, most in ((3, 7, 100, 1000), (3, 7, 7, 1000), (1, 0, 512, 512), (2, 1, 1025, 512), (5, 0, 4, 9)):
        tries = list[int]()

        def line(tokens: int, a: int = a, b: int = b, tries: list[int] = tries) -> Measurement:
            tries.append(tokens)
            return Measurement(a * tokens + b, "B")

        assert longest_fitting(line, room, most) == max(0, min(most, (room - b) // a))
        assert len(tries) <= 4


def test_the_search_finds_the_end_of_any_growth() -> None:
    """Of steps, bends and squares, as windows and scores make them."""
    for grow in (lambda n: n * n, lambda n: min(n, 50) * 9 + n, lambda n: n // 64 * 1000, lambda n: 2 ** min(n, 60)):
        for room in (0, 1, 999, 1000, 123_456):
            found = longest_fitting(lambda n, grow=grow: Measurement(grow(n), "B"), room, 5000)
            assert found == max(n for n in range(5001) if n == 0 or grow(n) <= room)


def test_sizes_are_those_of_the_checkpoint(llama: Path, tmp_path: Path) -> None:
    """A checkpoint of other types next to the configuration says what the weights take."""
    config = transformers.AutoConfig.from_pretrained(llama)
    model = transformers.LlamaForCausalLM._from_config(config).to(torch.float32)
    model.save_pretrained(tmp_path)
    numbers = measure(tmp_path / "config.json", serving={"context": 16})
    assert int(numbers.params) == model.num_parameters()
    assert int(numbers.weight_memory) == 4 * model.num_parameters()
    assert numbers.serving_memory.parts["weights"] == 4 * model.num_parameters()


def test_a_checkpoint_of_other_names_is_whole(tmp_path: Path) -> None:
    """The hub's file of GPT-2 has "h.0.attn.c_attn.weight" without its prefix, and no head, which is tied."""
    path, config = folder(tmp_path, *MODELS["gpt2"][:2])
    model = transformers.GPT2LMHeadModel._from_config(config)
    model.transformer.save_pretrained(tmp_path / "stored")
    (tmp_path / "stored" / "config.json").write_text((path / "config.json").read_text())
    numbers = measure(tmp_path / "stored" / "config.json", serving={"context": 16})
    assert int(numbers.params) == model.num_parameters()


def test_a_checkpoint_without_a_layer_is_refused(tmp_path: Path) -> None:
    """Its numbers would be too small; the layer is named."""
    path, config = folder(tmp_path, *MODELS["llama"][:2])
    tensors = transformers.LlamaForCausalLM._from_config(config).state_dict()
    kept = {name: ("F32", tuple(value.shape)) for name, value in tensors.items() if "layers.1." not in name}
    write(path / "model.safetensors", kept)
    with pytest.raises(SourceError, match=r"lacks 'model\.layers\.1\..*: download all its files"):
        measure(path / "config.json", serving={"context": 16})


def test_what_a_lower_bound_fits_is_unknown() -> None:
    """Another type of the weights does not fit, or whether it fits is unknown."""
    unknown = (UnmeasuredOp("program", 1, "", "packed"),)
    memory = Measurement(100, "B", (), unknown, {"weights": 60, "cache": 40})
    text = serving_text("m", {"serving_memory": memory, "params": Measurement(100, "param", (), unknown)}, 300, {})
    fits = dict(re.findall(r"(float32|bfloat16|int8|int4) .* B  +(.*)", text))
    assert fits == {"float32": "does not fit", "bfloat16": "unknown", "int8": "unknown", "int4": "unknown"}


def test_what_cannot_be_served_is_refused(llama: Path, tmp_path: Path) -> None:
    """Too many tokens, an architecture that is not installed, a folder without a configuration."""
    with pytest.raises(InputError, match=r"context 2,048 is above the model's own maximum: write at most 1,024"):
        measure(llama, serving={"context": 2048})
    with pytest.raises(KeyError, match="max_context needs a bound: 'memory' is not in serving"):
        measure(llama, serving={"context": 8})["max_context"]
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["NewForCausalLM"], "model_type": "new"}))
    path, _ = folder(tmp_path / "bert", "Bert", SIZES)
    config = json.loads((path / "config.json").read_text()) | {"architectures": ["BertForMaskedLM"]}
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(TraceError, match="BertForMaskedLM returns no cache: leave out 'serving'"):
        measure(path, serving={"context": 8})
    with pytest.raises(SourceError, match=r"NewForCausalLM.* is not in transformers .*: update it"):
        measure(tmp_path)


def test_serve_prints_what_fits(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bars, other types of the weights, the largest context and batch; 1 where it does not fit, 2 for wrong words."""
    assert main(["serve", str(llama), "--context", "512", "--memory", "700kB", "--fit"]) == 1
    shown = capsys.readouterr().out
    assert "it does not fit" in shown
    found = {
        key: int(value.replace(",", "")) for key, value in re.findall(r"(context|batch) (?:of|at) .*: (.*)", shown)
    }
    longest = measure(llama, serving={"context": 8, "memory": 700_000}).max_context
    assert found == {"context": int(longest), "batch": 0}
    assert re.search(r"cache +█+░+ +131,072 B", shown)
    assert re.search(r"int4 +\d.* kB", shown)
    assert main(["serve", str(llama), "--context", "64", "--device", "l4", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["fits"] is True
    assert main(["serve", str(llama), "--context", "64", "--fit"]) == 2
    assert "--fit needs a memory: add --device NAME" in capsys.readouterr().err


SLIDING_LAYERS = {"sliding": 2, "hybrid": 3}  # Gemma 3's first full layer is its sixth


@pytest.mark.parametrize("name", ["llama", "qwen2", "mixtral", "gemma", "latent", *SLIDING_LAYERS])
def test_the_formula_is_the_cache_of_the_program(tmp_path: Path, name: str) -> None:
    """A checkpoint has config.json and no program: its cache is a formula's, and what runs is unknown.

    A sliding layer of transformers drops the oldest token of its window, which no later step reads. It keeps a count in
    eight bytes.
    """
    program, _ = folder(tmp_path / "program", MODELS[name][0], MODELS[name][1])
    path, _ = folder(tmp_path / "stored", MODELS[name][0], MODELS[name][1])
    write(path / "model.safetensors", {"norm.weight": ("F32", (64,))})
    serving = {"context": 40, "batch": BATCH}
    stored = measure(path, serving={**serving, "cache_dtype": "float32"})
    assert stored.format == "checkpoint"
    dropped = SLIDING_LAYERS.get(name, 0) * (BATCH * 2 * 2 * 16 * 4 - 8)
    assert int(stored.kv_cache) - dropped == int(measure(program, serving=serving).kv_cache)
    assert stored.kv_cache.convention == "formula"
    for key in ("serving_memory", "decode_macs", "max_context"):
        with pytest.raises(KeyError, match="a checkpoint has no operations"):
            stored[key]


def test_formulas_by_hand() -> None:
    """Gemma 3's pattern: five layers of a window of 512, one of all; Llama 3 8B and DeepSeek V3 in two bytes."""
    gemma = {"num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
             "sliding_window": 512, "layer_types": ["sliding_attention"] * 5 + ["full_attention"]}  # fmt: skip
    assert list(layer_elements(gemma, 8192)) == [512 * 512] * 5 + [8192 * 512]
    llama = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
    assert 2 * sum(layer_elements(llama, 8192)) == 1_073_741_824
    deepseek = {"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
                "kv_lora_rank": 512, "qk_rope_head_dim": 64, "hidden_size": 7168}  # fmt: skip
    assert 2 * sum(layer_elements(deepseek, 163_840)) == 11_513_364_480
    mistral = {**llama, "model_type": "mistral", "sliding_window": 4096}  # Mistral 7B v0.1
    assert 2 * sum(layer_elements(mistral, 8192)) == 536_870_912


LLAMA_8B = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
UNCOUNTED: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "Gemma 3 1B, as published": (
        {"head_dim": 256, "hidden_size": 1152, "model_type": "gemma3_text", "num_attention_heads": 4,
         "num_hidden_layers": 26, "num_key_value_heads": 1, "sliding_window": 512, "sliding_window_pattern": 6},
        "layer_types is not in its settings",
    ),
    "Gemma 2 9B, as of its GGUF file": (
        {"num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
         "hidden_size": 3584, "sliding_window": 4096}, "layer_types is not in its settings",
    ),
    "Jamba v0.1": ({**LLAMA_8B, "attn_layer_offset": 4, "attn_layer_period": 8}, "attn_layer_period says"),
    "Llama 3.2 11B Vision": ({**LLAMA_8B, "cross_attention_layers": [3, 8]}, "cross_attention_layers says"),
    "Qwen3-Next 80B": ({**LLAMA_8B, "full_attention_interval": 4}, "full_attention_interval says"),
    "too few kinds": ({**LLAMA_8B, "layer_types": ["full_attention"] * 2}, "layer_types has 2 of 32 layers"),
    "linear": ({**LLAMA_8B, "layer_types": ["linear_attention"] * 32}, "of linear_attention"),
    "no heads": ({"num_hidden_layers": 2, "state_size": 8}, "num_attention_heads is not in its settings"),
    "no size of a head": ({**LLAMA_8B, "hidden_size": None}, "hidden_size is not in its settings"),
    "more heads than values": ({**LLAMA_8B, "hidden_size": 16}, "hidden_size is less than its 32 heads"),
    "latent": ({**LLAMA_8B, "kv_lora_rank": 512}, "qk_rope_head_dim is not in its settings"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNCOUNTED)
def test_settings_that_leave_the_cache_open_have_no_formula(name: str) -> None:
    settings, why = UNCOUNTED[name]
    with pytest.raises(TraceError, match=f"no formula is known of the cache.*{why}.*: use huggingface:"):
        list(layer_elements(settings, 8192))


def test_a_checkpoint_knows_its_longest_context_by_any_name(tmp_path: Path) -> None:
    """GPT-2 calls it n_positions: 1,024, under checkpoint: as under huggingface:."""
    path, _ = folder(tmp_path, "GPT2", {})
    write(path / "model.safetensors", {"ln_f.weight": ("F32", (768,))})
    with pytest.raises(InputError, match="write at most 1,024"):
        measure(path, serving={"context": 2048})
