"""Language models built from their configs, against public parameter counts and closed forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
