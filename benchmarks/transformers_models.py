"""Models of transformers that see, hear or route: parameters and MACs beside two counts of a real run.

Built from small configs, with random weights and inputs as their processors make them; nothing is downloaded. The first
count is this script's own, of contractions that run on real tensors, and of systems that substitution solves, which
budgets count and which stand in a column of their own. The second is torch's FlopCounterMode, which has no formula of
solves, of experts' grouped products and of recurrent layers. Prints a Markdown table, and fails where a number differs
from the first, or where more than 5 % are unknown.
"""

from __future__ import annotations

import argparse
import logging
import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from pytest_modelbudget import ModelBudgetError, measure

ATEN = torch.ops.aten
Settings = Mapping[str, Any]
UNKNOWN = 0.05  # the share of models that may stay unmeasured

# Counting on real tensors.


def _rows(x: Any, weights: Any, *_: Any, **__: Any) -> int:
    """Each element of the first operand meets each column of the second."""
    return math.prod(x.shape) * weights.shape[-1]


def _added(_: Any, x: Any, weights: Any, *__: Any, **___: Any) -> int:
    return _rows(x, weights)


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Queries by keys, and what comes of it by values."""
    return math.prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def _recurrent_of_mkldnn(x: Any, inputs: Any, states: Any, *_: Any, **__: Any) -> int:
    """The same of one direction of one layer."""
    return x.shape[0] * x.shape[1] * (inputs.numel() + states.numel())


def _substituted(matrix: Any, right: Any, *_: Any, **__: Any) -> int:
    """n² · columns / 2: each unknown needs those before it."""
    return right.numel() * matrix.shape[-1] // 2


def _recurrent(x: Any, _: Any, weights: Any, *__: Any, **___: Any) -> int:
    """Every matrix of the layer, once a step."""
    return x.shape[0] * x.shape[1] * sum(weight.numel() for weight in weights if weight.dim() == 2)


COUNTED: Mapping[Any, Callable[..., int]] = {
    **dict.fromkeys((ATEN.mm, ATEN.bmm, ATEN._grouped_mm), _rows),
    **dict.fromkeys((ATEN.addmm, ATEN.baddbmm), _added),
    **dict.fromkeys((ATEN.mv, ATEN.dot), lambda x, _: math.prod(x.shape)),
    ATEN.addmv: lambda _, x, __, **___: math.prod(x.shape),
    **dict.fromkeys((ATEN.lstm, ATEN.gru), _recurrent),
    ATEN.mkldnn_rnn_layer: _recurrent_of_mkldnn,
    ATEN._scaled_dot_product_flash_attention_for_cpu: _attention,
}


class Contractions(TorchDispatchMode):
    """Adds up multiplications of the contractions that run; composed operators are taken apart first.

    Systems that substitution solves are no contractions, and counted apart: budgets count them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.macs = 0
        self.solves = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, packet = kwargs or {}, func._overloadpacket
        if (
            packet not in (*COUNTED, ATEN.convolution, ATEN.linalg_solve_triangular)
            and func is not torch.ops.prim.device.default
        ):
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        if packet is ATEN.convolution:
            x, weight, transposed = args[0], args[1], args[6]
            self.macs += (x if transposed else out).numel() * math.prod(weight.shape[1:])
        elif packet is ATEN.linalg_solve_triangular:
            self.solves += _substituted(*args, **kwargs)
        elif packet in COUNTED:
            self.macs += COUNTED[packet](*args, **kwargs)
        return out


# Small configs.

IMAGE, AUDIO, VOCABULARY = 90, 91, 96  # tokens that stand for what is seen and heard
SMALL: Settings = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "projection_dim", "out_hidden_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers", "depth"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(
        ("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "ffn_dim", "ffn_hidden_size"), 48
    ),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("decoder_attention_heads", "attention_heads"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "intermediate_size_mlp"), 24),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "num_key_value_heads", "num_global_layers"), 2),
    **{"head_dim": 8, "d_kv": 8, "sliding_window": 8, "max_position_embeddings": 64, "vocab_size": VOCABULARY},
    **{"image_size": 32, "patch_size": 8, "num_mel_bins": 16, "mm_tokens_per_image": 16, "image_seq_length": 16},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "use_cache": False},
    **{"image_token_id": IMAGE, "image_token_index": IMAGE, "audio_token_id": AUDIO, "audio_token_index": AUDIO},
    **{"max_source_positions": 32, "vision_feature_layer": -1, "video_token_id": 92, "max_target_positions": 64},
    **{"vision_start_token_id": 93, "vision_end_token_id": 94, "image_start_token_id": 93, "image_end_token_id": 94},
}
LATENT = {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "kv_lora_rank": 16, "q_lora_rank": 16}
DEEPSEEK = {**LATENT, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0, "mrope_section": [1, 1, 2]}
IN_SECTIONS = {"text_config": {"rope_parameters": SECTIONS}}
DEEPSTACK = {**IN_SECTIONS, "vision_config": {"deepstack_visual_indexes": [0], "num_position_embeddings": 16}}
SEAMLESS = {
    **dict.fromkeys(("speech_encoder_layers", "t2u_encoder_layers", "t2u_decoder_layers"), 2),
    **dict.fromkeys(
        ("speech_encoder_attention_heads", "t2u_encoder_attention_heads", "t2u_decoder_attention_heads"), 4
    ),
    **dict.fromkeys(("speech_encoder_intermediate_size", "t2u_encoder_ffn_dim", "t2u_decoder_ffn_dim"), 48),
    **{"t2u_vocab_size": VOCABULARY, "unit_hifi_gan_vocab_size": VOCABULARY, "upsample_initial_channel": 32},
    **{"unit_embed_dim": 16, "spkr_embed_dim": 16, "lang_embed_dim": 16, "char_vocab_size": VOCABULARY},
}
# What these need besides, or in another size.
BESIDES: Mapping[str, Settings] = {
    **dict.fromkeys(("qwen2_5_vl", "glm4v", "glm4v_moe", "glm46v", "paddleocr_vl", "glm_ocr"), IN_SECTIONS),
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), DEEPSTACK),
    "qwen2_vl": {**IN_SECTIONS, "vision_config": {"hidden_size": 32, "embed_dim": 32}},
    "ernie4_5_vl_moe": {"text_config": {"rope_parameters": SECTIONS, "moe_intermediate_size": [24, 16]}},
    "deepseek_v2": {**DEEPSEEK, "num_experts_per_tok": 2},
    "deepseek_v3": DEEPSEEK,
    "internvl": {"vision_config": {"image_size": [32, 32], "patch_size": [8, 8]}, "image_seq_length": 4},
    "granitemoehybrid": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "shared_intermediate_size": 24},
    "qwen3_next": {
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "shared_expert_intermediate_size": 24,
    },
    "audio-spectrogram-transformer": {"max_length": 64, "frequency_stride": 8, "time_stride": 8},
    "aya_vision": {"downsample_factor": 2},
    "vipllava": {"vision_feature_layers": [-1, -2]},
    "llava_next": {"image_grid_pinpoints": [[32, 32]]},
    "idefics2": {"perceiver_config": {"resampler_n_latents": 8, "resampler_n_heads": 4, "resampler_head_dim": 8}},
    "voxtral": {"audio_token_id": AUDIO, "audio_config": {"intermediate_size": 128}},
    "hunyuan_v1_moe": {"head_dim": 8, "moe_topk": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {**LATENT, "num_key_value_heads": 4, "head_dim": 8},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "dbrx": {
        "n_heads": 4,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "blip-2": {"num_query_tokens": 8, "image_token_index": IMAGE},
    "xclip": {"vision_config": {"mit_hidden_size": 32, "mit_intermediate_size": 48, "mit_num_attention_heads": 4}},
    "clvp": {key: {"hidden_size": 64, "num_attention_heads": 2} for key in ("text_config", "speech_config")},
    "fast_vlm": {
        "vision_config": {"architecture": "fastvit_t8", "hidden_size": 768, "model_args": {"inference_mode": True}}
    },
    "perception_lm": {
        "vision_config": {
            "architecture": "vit_pe_lang_large_patch14_448",
            "model_args": {"embed_dim": 32, "depth": 2, "num_heads": 4, "img_size": [28, 28], "ref_feat_shape": [2, 2]},
        }
    },
    "align": {
        "projection_dim": 320,
        "vision_config": {"width_coefficient": 1.0, "depth_coefficient": 0.2, "hidden_dim": 1280},
    },
    "bridgetower": {"hidden_size": 64, **{key: {"hidden_size": 64} for key in ("text_config", "vision_config")}},
    "llama4": {
        "text_config": {"attention_chunk_size": 32},
        "vision_config": {
            "intermediate_size": 128,
            "vision_output_dim": 32,
            "projector_input_dim": 32,
            "projector_output_dim": 32,
        },
    },
    "mllama": {
        "text_config": {"cross_attention_layers": [1], "vocab_size": VOCABULARY},
        "vision_config": {
            "intermediate_layers_indices": [0, 1],
            "vision_output_dim": 96,
            "max_num_tiles": 1,
            "supported_aspect_ratios": [[1, 1]],
        },
    },
    **dict.fromkeys(("seamless_m4t", "seamless_m4t_v2"), SEAMLESS),
    "mimi": {
        **{"num_filters": 4, "codebook_size": 16, "codebook_dim": 8, "vector_quantization_hidden_dimension": 8},
        **{"num_quantizers": 4, "upsample_groups": 32, "num_key_value_heads": 4, "upsampling_ratios": [4, 2]},
    },
    "clap": {
        "audio_config": {
            "spec_size": 64,
            "num_mel_bins": 16,
            "patch_embeds_hidden_size": 16,
            "depths": [1, 1],
            "num_attention_heads": [2, 4],
            "hidden_size": 32,
            "patch_size": 4,
            "window_size": 4,
        }
    },
}


def shrunk(full: Any, besides: Settings) -> dict[str, Any]:
    """The settings of a small config of that kind, and of the configs in it."""
    settings: dict[str, Any] = {}
    for key in full.to_dict():
        value = getattr(full, key, None)
        if isinstance(value, transformers.PretrainedConfig):
            settings[key] = {"model_type": value.model_type, **shrunk(value, besides.get(key, {}))}
        elif key in SMALL and isinstance(value, int):
            settings[key] = SMALL[key]
    nested = {key for key, value in settings.items() if isinstance(value, dict)}
    return {**settings, **{key: value for key, value in besides.items() if key not in nested}}


def config_of(name: str) -> Any:
    """A config that shrinks the kind's own."""
    settings = shrunk(transformers.AutoConfig.for_model(name), BESIDES.get(name, {}))
    return transformers.AutoConfig.for_model(name, **settings)


def made(name: str) -> Any:
    """The model without a head, of the small config."""
    torch.manual_seed(0)
    return transformers.AutoModel.from_config(config_of(name)).eval()


# Inputs as processors make them.

Inputs = dict[str, Any]
IMAGE_SIZES = {"image_sizes": {"values": [[32, 32]]}}
TILES = {  # one image of one tile, which every word may look at
    "aspect_ratio_ids": {"values": [[1]]},
    "aspect_ratio_mask": {"values": [[[1]]]},
    "cross_attention_mask": torch.ones(1, 14, 1, 1).long(),
}


def text(*special: int, length: int = 12) -> Inputs:
    """Words, special tokens among them."""
    tokens = torch.tensor([[1, *special, *range(3, 3 + length)]])
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def image(size: int = 32, count: int = 1) -> torch.Tensor:
    """Images that a processor has scaled."""
    return torch.randn(count, 3, size, size)


def seen_in_text(tokens: int) -> Inputs:
    """An image whose features take the place of so many tokens."""
    return {**text(*[IMAGE] * tokens), "pixel_values": image()}


def patches(width: int) -> Inputs:
    """An image of 4 x 6 patches that a processor has cut, of which four make a token."""
    inputs = {**text(93, *[IMAGE] * 6, 94), "pixel_values": torch.randn(24, width)}
    marks = (inputs["input_ids"] == IMAGE).long()
    return {**inputs, "image_grid_thw": {"values": [[1, 4, 6]]}, "mm_token_type_ids": marks}


def cut_patches() -> Inputs:
    """The same, each patch an image of its own."""
    return {**patches(1), "pixel_values": torch.randn(24, 3, 8, 8)}


def features(frames: int = 64, *, transposed: bool = False) -> torch.Tensor:
    """Mel bins over time."""
    return torch.randn(1, frames, 16) if transposed else torch.randn(1, 16, frames)


def heard_in_text(tokens: int, **mask: torch.Tensor) -> Inputs:
    """Sound whose features take the place of so many tokens."""
    return {**text(*[AUDIO] * tokens), "input_features": features(), **mask}


def samples() -> Inputs:
    """A quarter of a second, none of it padding."""
    return {"input_values": torch.randn(1, 4000), "attention_mask": torch.ones(1, 4000, dtype=torch.long)}


def written_beside(**inputs: torch.Tensor) -> Inputs:
    """What a decoder has written so far, beside other inputs."""
    return {**inputs, "decoder_input_ids": torch.tensor([[1, 3, 4, 5, 6, 7, 8, 9]])}


PAIRS = """clip chinese_clip altclip blip siglip flava groupvit owlvit owlv2 metaclip_2 vilt git
    clipseg"""
VIDEO = 8  # frames
FOUR_BY_FOUR = "llava vipllava paligemma gemma3 ovis2 janus deepseek_vl"
GRIDS = "qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe qwen3_5 qwen3_5_moe glm4v glm4v_moe glm46v glm_ocr"
WAVES = "wav2vec2 hubert wavlm sew sew-d unispeech unispeech-sat data2vec-audio wav2vec2-conformer"
EXPERTS = """mixtral qwen2_moe qwen3_moe olmoe gpt_oss deepseek_v2 deepseek_v3 glm4_moe ernie4_5_moe granitemoe
    granitemoeshared granitemoehybrid phimoe jetmoe flex_olmo minimax minimax_m2 hunyuan_v1_moe lfm2_moe jamba
    afmoe solar_open qwen3_next exaone_moe longcat_flash dots1 dbrx"""
MODELS: Mapping[str, Callable[[], Inputs]] = {
    **dict.fromkeys(PAIRS.split(), lambda: {**text(), "pixel_values": image()}),
    **dict.fromkeys(FOUR_BY_FOUR.split(), lambda: seen_in_text(16)),
    **dict.fromkeys(("internvl", "cohere2_vision", "aya_vision"), lambda: seen_in_text(4)),
    "got_ocr2": lambda: seen_in_text(1),
    "mistral3": lambda: {**seen_in_text(4), **IMAGE_SIZES},
    "llava_next": lambda: {**seen_in_text(36), "pixel_values": image(count=2)[None], **IMAGE_SIZES},
    "idefics3": lambda: {**text(*[IMAGE] * 4), "pixel_values": image()[None]},
    "smolvlm": lambda: {**text(*[IMAGE] * 4), "pixel_values": image()[None]},
    "idefics2": lambda: {**text(*[IMAGE] * 8), "pixel_values": image()[None]},
    **dict.fromkeys(GRIDS.split(), lambda: patches(3 * 2 * 8 * 8)),
    "ernie4_5_vl_moe": lambda: patches(3 * 8 * 8),
    "paddleocr_vl": cut_patches,
    "video_llama_3": lambda: {**patches(3 * 8 * 8), "image_merge_sizes": {"values": [2]}},
    "whisper": lambda: written_beside(input_features=features()),
    "speech_to_text": lambda: written_beside(input_features=torch.randn(1, 64, 80)),
    "audio-spectrogram-transformer": lambda: {"input_values": torch.randn(1, 64, 16)},
    "wav2vec2-bert": lambda: {"input_features": torch.randn(1, 40, 160), "attention_mask": torch.ones(1, 40).long()},
    "moonshine": lambda: written_beside(input_values=torch.randn(1, 4000)),
    "parakeet_encoder": lambda: {"input_features": torch.randn(1, 64, 16), "attention_mask": torch.ones(1, 64).long()},
    "qwen2_audio": lambda: heard_in_text(16, feature_attention_mask=torch.ones(1, 64).long()),
    "audioflamingo3": lambda: heard_in_text(16, input_features_mask=torch.ones(1, 64).long()),
    "voxtral": lambda: heard_in_text(8),
    "blip-2": lambda: seen_in_text(8),
    "align": lambda: {**text(), "pixel_values": image(64)},
    "xclip": lambda: {**text(), "pixel_values": image(count=VIDEO)[None]},
    "bridgetower": lambda: {**text(), "pixel_values": image(), "pixel_mask": torch.ones(1, 32, 32).long()},
    "llama4": lambda: seen_in_text(4),
    "fast_vlm": lambda: {**seen_in_text(4), "pixel_values": image(64)},
    "perception_lm": lambda: {**seen_in_text(4), "pixel_values": image(28)[None]},
    "mllama": lambda: {**text(IMAGE), "pixel_values": image()[None, None], **TILES},
    "clvp": lambda: {**text(), "input_features": torch.randn(1, 80, 64)},
    "clap": lambda: {**text(), "input_features": torch.randn(1, 1, 64, 16), "is_longer": {"values": [[0]]}},
    **dict.fromkeys(("seamless_m4t", "seamless_m4t_v2"), lambda: written_beside(**text())),
    "speecht5": lambda: {"input_values": torch.randn(1, 20, 32), "decoder_input_values": torch.randn(1, 8, 32)},
    **dict.fromkeys(("encodec", "dac", "mimi"), lambda: {"input_values": torch.randn(1, 1, 4000)}),
    **dict.fromkeys(WAVES.split(), samples),
    **dict.fromkeys(EXPERTS.split(), text),
}


# Comparing.


class Row(NamedTuple):
    """A model: parameters and MACs here, by the count of contractions, of solves and by torch, and the verdict."""

    model: str
    params: str
    macs: str
    contractions: str
    solves: str
    flop_counter: str
    verdict: str


def tensors(inputs: Inputs) -> Inputs:
    """Inputs as the model takes them; those given by value as tensors."""
    return {key: torch.tensor(value["values"]) if isinstance(value, dict) else value for key, value in inputs.items()}


class Counts(NamedTuple):
    """A real run: parameters, MACs of contractions and of solves, and torch's count, None where that fails."""

    params: int
    contractions: int
    solves: int
    flop_counter: int | None


def counted(name: str) -> Counts:
    """The independent numbers of a model."""
    model, inputs = made(name), tensors(MODELS[name]())
    with torch.no_grad(), Contractions() as ran:
        model(**inputs)
    flops = FlopCounterMode(display=False)
    peer = None
    with suppress(AssertionError), torch.no_grad(), flops:  # its tracker of modules breaks where gradients are expected
        model(**inputs)
        peer = flops.get_total_flops() // 2
    params = sum(one.numel() for one in model.parameters())
    return Counts(params, ran.macs, ran.solves, peer)


def compared(name: str) -> Row:
    """One row of the table."""
    real = counted(name)
    others = tuple("-" if count is None else f"{count:,}" for count in real[1:])
    try:
        numbers = measure(lambda: made(name), MODELS[name]())
    except ModelBudgetError as failure:
        return Row(name, "", "", *others, f"unknown: {failure}".replace("\n", " ")[:400])
    params, macs = numbers["params"], numbers["macs"]
    verdict = "equal" if (params.value, macs.value) == (real.params, real.contractions + real.solves) else "WRONG"
    if not (params.complete and macs.complete):
        verdict = f"unknown: {macs}"
    return Row(name, f"{int(params.value):,}", f"{int(macs.value):,}", *others, verdict)


def main() -> None:
    """Print the table, and how many of its models have which verdict."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", help="names of models (all)")
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    print("| model | params | macs | contractions | solves | flop counter | verdict |\n|---|--:|--:|--:|--:|--:|---|")
    rows = []
    for name in parser.parse_args().models or MODELS:
        rows.append(compared(name))
        print(f"| {' | '.join(rows[-1])} |", flush=True)
    counts = {word: sum(row.verdict.startswith(word) for row in rows) for word in ("equal", "unknown", "WRONG")}
    print(f"\n{len(rows)} models: {counts}")
    raise SystemExit(counts["WRONG"] > 0 or counts["unknown"] > len(rows) * UNKNOWN)


if __name__ == "__main__":
    main()
