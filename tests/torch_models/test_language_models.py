"""Language models built from their configs, against public parameter counts and closed forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers", reason="part of the test extra")

from pytest_modelbudget import measure  # noqa: E402
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec  # noqa: E402
from pytest_modelbudget.formats.table import format_table  # noqa: E402
from pytest_modelbudget.metrics.compute import macs  # noqa: E402
from pytest_modelbudget.metrics.costs import CostedGraph  # noqa: E402
from pytest_modelbudget.metrics.storage import params  # noqa: E402
from pytest_modelbudget.ops.table import builtin_ops  # noqa: E402

pytestmark = pytest.mark.needs_torch


@dataclass(frozen=True)
class Decoder:
    """A decoder's dimensions, from which its MACs follow."""

    layers: int
    width: int
    feed_forward: int
    key_width: int
    vocabulary: int
    gates: int

    def macs(self, tokens: int) -> int:
        """Per layer q, k, v and output projections, scores and values, MLP; then the head."""
        projections = 2 * self.width * self.width + 2 * self.width * self.key_width
        attention = 2 * tokens * self.width
        mlp = self.gates * self.width * self.feed_forward
        per_token = self.layers * (projections + attention + mlp) + self.width * self.vocabulary
        return tokens * per_token


def gpt2() -> nn.Module:
    """124 M parameters; its head is its embedding table."""
    return transformers.GPT2LMHeadModel(transformers.GPT2Config())


def llama_7b() -> nn.Module:
    """Llama-2-7B."""
    return transformers.LlamaForCausalLM(transformers.LlamaConfig())


def llama_405b() -> nn.Module:
    """Llama-3-405B: 128 query heads share 8 key and value heads."""
    config = transformers.LlamaConfig(
        vocab_size=128_256,
        hidden_size=16_384,
        intermediate_size=53_248,
        num_hidden_layers=126,
        num_attention_heads=128,
        num_key_value_heads=8,
        max_position_embeddings=131_072,
    )
    return transformers.LlamaForCausalLM(config)


def measured(build: Callable[[], nn.Module], tokens: int) -> tuple[int, int]:
    """Params and MACs, both complete, on one sequence."""
    spec = TensorSpec("int64", (1, tokens), low=0, high=1000)
    source = ModelSource("torch", build, InputSpecs((spec,)))
    loaded = format_table()["torch"].load(source, builtin_ops())
    assert loaded.traced == "meta"
    graph = CostedGraph(loaded.graph, builtin_ops())
    computed = macs(graph)
    assert computed.complete
    return int(params(graph).value), int(computed.value)


DECODERS = [
    pytest.param(gpt2, Decoder(12, 768, 3072, 768, 50_257, 2), 124_439_808, 1024, id="gpt2"),
    pytest.param(llama_7b, Decoder(32, 4096, 11_008, 4096, 32_000, 3), 6_738_415_616, 2048, id="llama-2-7b"),
    pytest.param(
        llama_405b, Decoder(126, 16_384, 53_248, 8 * 128, 128_256, 3), 405_853_388_800, 8192, id="llama-3-405b"
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("build", "shape", "count", "tokens"), DECODERS)
def test_decoders(build: Callable[[], nn.Module], shape: Decoder, count: int, tokens: int) -> None:
    """Public model cards give the parameters, the dimensions give the MACs."""
    # transformers computes the logits of every position
    assert measured(build, tokens) == (count, shape.macs(tokens))


@pytest.mark.slow
def test_bert_base() -> None:
    """12 layers of width 768 on 512 tokens, and the pooler's one token."""

    def build() -> nn.Module:
        return transformers.BertModel(transformers.BertConfig())

    layer = 512 * (4 * 768**2 + 2 * 512 * 768 + 2 * 768 * 3072)
    assert measured(build, 512) == (109_482_240, 12 * layer + 768**2)


def test_experts_of_an_exported_model_multiply_as_those_of_its_module() -> None:
    """A token and layer: 768 MACs of projections, 224 of attention, 4 scores of 16, 2 experts of 3 x 16 x 32."""
    config = transformers.MixtralConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=32,
        use_cache=False,
    )
    model = transformers.MixtralForCausalLM(config).eval()
    ids = torch.zeros(1, 7, dtype=torch.int64)
    program = torch.export.export(model, (), {"input_ids": ids}, strict=False)
    experts = [node for node in program.graph.nodes if "grouped_mm" in str(node.target)]
    assert len(experts) == 4
    for numbers in (measure(model, {"input_ids": "int64 1x7"}), measure(program)):
        assert numbers.macs.complete
        assert numbers.macs.value == 7 * (2 * (768 + 224 + 4 * 16 + 2 * 3 * 16 * 32) + 16 * 50)


class Mixture(nn.Module):
    """2 of 4 experts of 8 x 8, their scores, and a head of 8 x 3."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.head = nn.Linear(8, 4, bias=False), nn.Linear(8, 3, bias=False)
        self.experts = nn.Parameter(torch.zeros(4, 8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.scores(x).softmax(-1).topk(2)
        return self.head(self.mixed(x, weights, chosen))  # type: ignore[no-any-return]

    def mixed(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        return (weights[..., None] * torch.einsum("td,tkde->tke", x, self.experts[chosen])).sum(1)


class Looped(Mixture):
    """The same with experts that the data call: torch.where, a mask, or their number."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.by = by

    def mixed(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        result = torch.zeros_like(x)
        for at, expert in enumerate(self.experts):
            hit = (chosen == at).any(-1)
            if self.by == "a mask":
                result[hit] += x[hit] @ expert
            elif self.by == "a number" and int(chosen[0, 0]) == at:
                result = x @ expert
            elif self.by == "places":
                (rows,) = torch.where(hit)
                result.index_add_(0, rows, x[rows] @ expert)
        return result


class Listed(nn.Module):
    """The same in a list of layers, the scores of no other class."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.experts = nn.Linear(8, 4), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.scores(x).topk(1).indices.flatten().tolist()
        return torch.stack([self.experts[at](row) for at, row in zip(chosen, x, strict=True)])


class Best(Looped):
    """The best one alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.mixed(x, x, self.scores(x).argmax(-1, keepdim=True)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "active"),
    [
        pytest.param(Mixture(), 32 + 2 * 64 + 24, id="experts of one tensor"),
        pytest.param(nn.Linear(8, 4, bias=False), 32, id="none"),
        pytest.param(Looped("a mask"), None, id="a mask"),
        pytest.param(Looped("a number"), None, id="a number"),
        pytest.param(Looped("places"), None, id="places"),
        pytest.param(Best("places"), None, id="the best"),
        pytest.param(Listed(), None, id="a list"),
    ],
)
def test_active_params_are_those_that_a_token_reaches(model: nn.Module, active: int | None) -> None:
    """Asked for in mteb#3948 and torchtitan#4819; a loop over experts is unknown by name."""
    found = measure(model, "float32 5x8")["active_params"]
    assert (found.value, found.complete) == (active or 0, active is not None)
    assert active is not None or "which experts run" in found.unmeasured[0].why


SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4}
OF_8 = {"num_experts_per_tok": 2, "max_position_embeddings": 32, "num_key_value_heads": 4}
LATENT = {"qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4, "kv_lora_rank": 8, "q_lora_rank": 8}
EXPERT = 3 * 16 * 24  # gate, up and down
# A kind, what its config says besides, and the parameters of the experts that a token does not reach.
MIXTURES = [
    pytest.param("mixtral", {"num_local_experts": 8, "intermediate_size": 24}, 3 * 6 * EXPERT, id="Mixtral"),
    pytest.param(
        "qwen2_moe",
        {"num_experts": 8, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40, "mlp_only_layers": [0]},
        2 * 6 * EXPERT,
        id="a shared expert, and a dense first layer",
    ),
    pytest.param("olmoe", {"num_experts": 8, "intermediate_size": 24}, 3 * 6 * EXPERT, id="OLMoE"),
    pytest.param("granitemoe", {"num_local_experts": 8, "intermediate_size": 24}, 3 * 6 * EXPERT, id="GraniteMoE"),
    pytest.param(
        "deepseek_v3",
        {"n_routed_experts": 8, "moe_intermediate_size": 24, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
         **LATENT},
        2 * 6 * EXPERT,
        id="groups of experts first, and one that all share",
    ),
    pytest.param(  # with biases
        "gpt_oss",
        {"num_local_experts": 8, "intermediate_size": 24, "head_dim": 4},
        3 * 6 * (EXPERT + 2 * 24 + 16),
        id="gpt-oss",
    ),
]  # fmt: skip


@pytest.mark.parametrize("way", ["grouped_mm", "batched_mm"])
@pytest.mark.parametrize(("kind", "settings", "elsewhere"), MIXTURES)
def test_active_params_of_a_mixture_of_transformers(
    kind: str, settings: dict[str, Any], elsewhere: int, way: str
) -> None:
    """2 of 8 experts in each layer that has some; all that is beside them."""
    config = transformers.AutoConfig.for_model(kind, **SIZES, **OF_8, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config, experts_implementation=way).eval()
    found = measure(model, {"input_ids": "int64 1x7"})["active_params"]
    assert (found.value, found.complete) == (sum(map(torch.numel, model.parameters())) - elsewhere, True)


def test_experts_behind_one_another_in_a_matrix_are_unknown() -> None:
    """DBRX keeps them so, and loops over those that data have chosen."""
    config = transformers.DbrxConfig(
        vocab_size=50, d_model=16, n_layers=1, n_heads=4, max_seq_len=32,
        attn_config={"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8},
        ffn_config={"hidden_size": 16, "ffn_hidden_size": 24, "moe_num_experts": 8, "moe_top_k": 2},
    )  # fmt: skip
    model = transformers.DbrxForCausalLM(config).eval()
    found = measure(model, {"input_ids": "int64 1x7"})["active_params"]
    assert not found.complete
    assert "which experts run" in found.unmeasured[0].why
