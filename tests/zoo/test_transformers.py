"""Models of transformers, built from configs of two small layers: text, experts, state spaces, images, sound."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest

from pytest_modelbudget.formats.source import TensorSpec
from tests.builders.marks import needs

from .holding import Difference, Entry, Unmeasured, counted, floats, ints, measured

pytestmark = [
    pytest.mark.needs_torch,
    pytest.mark.zoo,
    pytest.mark.filterwarnings("ignore"),  # others' own, of every release
    needs("transformers"),
]

# Each config takes of these what it has.
SMALL: Mapping[str, int | bool] = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embedding_size", "word_embed_proj_dim"), 32
    ),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "ffn_dim", "n_inner"), 48),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "decoder_attention_heads"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 24),
    **{"head_dim": 8, "d_kv": 8, "num_key_value_heads": 2, "num_experts_per_tok": 2, "sliding_window": 8},
    **{"max_position_embeddings": 64, "n_positions": 64, "vocab_size": 96, "image_size": 64, "patch_size": 16},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "use_cache": False},
}
LATENT = {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "kv_lora_rank": 16, "q_lora_rank": 16}
DEEPSEEK = {**LATENT, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
# What these need besides, or in another size.
BESIDES: Mapping[str, Mapping[str, Any]] = {
    "codegen": {"rotary_dim": 4},
    "deepseek_v2": {**DEEPSEEK, "first_k_dense_replace": 1},
    "deepseek_v3": {**DEEPSEEK, "first_k_dense_replace": 1},
    "falcon": {"head_dim": None},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 4},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 16, "chunk_size": 8},
    "whisper": {"max_source_positions": 32},
}

TEXT = """albert bert convbert deberta deberta-v2 electra falcon falcon_mamba fnet gemma gemma2 gemma3_text gpt2
    gpt_bigcode gpt_neo gpt_neox gptj lfm2 llama longformer mamba mamba2 modernbert mpt nystromformer olmo2
    opt phi phi3 qwen3 recurrent_gemma rwkv squeezebert stablelm big_bird bloom cohere2"""
EXPERTS = "deepseek_v2 deepseek_v3 gpt_oss granitemoe jamba minimax mixtral olmoe qwen2_moe qwen3_moe"
TRANSLATORS = "bart led m2m_100 switch_transformers t5"
IMAGES = "beit clip_vision_model dinov2 dinov3_vit ijepa mobilenet_v2 poolformer pvt_v2 segformer vit vit_mae yolos"
SOUND = "hubert sew wav2vec2 wavlm"

# Counted here with a sum over one element, which torch's einsum makes a plain product: 512 x 512 x 1 a layer.
BANDED = Difference("a mask's chunks are contracted over a size of 1", macs=2 * 512 * 512)
DIFFERS = {"longformer": BANDED, "led": BANDED}

ROUTED = Unmeasured("the best experts are looked for: flops/1 has no figure for sorting")
UNMEASURED: Mapping[str, Unmeasured] = {
    **dict.fromkeys(EXPERTS.split(), ROUTED),
    **dict.fromkeys(SOUND.split(), Unmeasured("a kernel is normed: flops/1 has no figure for weight norm")),
    "fnet": Unmeasured("it mixes tokens by a Fourier transform, for which flops/1 has no figure"),
    "vit_mae": Unmeasured("patches are masked by chance: flops/1 has no figure for random numbers"),
}


def made(name: str) -> Any:
    """The model without a head, of the small config."""
    import transformers

    full = transformers.AutoConfig.for_model(name)
    kinds = (int, bool, type(None))
    small = {key: value for key, value in SMALL.items() if isinstance(getattr(full, key, ""), kinds)}
    settings = {**small, **BESIDES.get(name, {})}
    settings = {key: value for key, value in settings.items() if value is not None}
    return transformers.AutoModel.from_config(transformers.AutoConfig.for_model(name, **settings))


def entry(name: str, *, runs: bool, **inputs: TensorSpec) -> Any:
    """A row of the table of tests."""
    known = {"differs": DIFFERS.get(name, Entry.differs), "unmeasured": UNMEASURED.get(name, Entry.unmeasured)}
    return pytest.param(Entry(partial(made, name), MappingProxyType(inputs), runs=runs, **known), id=name)


MODELS = [
    *(entry(name, runs=True, input_ids=ints(1, 16)) for name in [*TEXT.split(), *EXPERTS.split()]),
    *(entry(name, runs=True, input_ids=ints(1, 16), decoder_input_ids=ints(1, 8)) for name in TRANSLATORS.split()),
    *(entry(name, runs=False, pixel_values=floats(1, 3, 64, 64)) for name in IMAGES.split()),
    *(entry(name, runs=False, input_values=floats(1, 4000)) for name in SOUND.split()),
    entry("whisper", runs=True, input_features=floats(1, 80, 64), decoder_input_ids=ints(1, 8)),
]


@pytest.mark.parametrize("model", MODELS)
def test_transformers(model: Entry) -> None:
    """Parameters and MACs as counted a second time; nothing unmeasured but what the table names."""
    assert measured(model) == counted(model)


def test_of_many_kinds() -> None:
    """At least forty configs."""
    assert len({parameters.id for parameters in MODELS}) == len(MODELS) >= 40
