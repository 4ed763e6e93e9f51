"""The models of examples/zoo, named by a budget alone, against what their packages' own Python makes."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_modelbudget.budget.budget import Subject
from pytest_modelbudget.budget.kinds import judge_limit
from pytest_modelbudget.budget.read_budget import read_budget
from pytest_modelbudget.budget.verdict import Outcome
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate.measuring import measure_model
from pytest_modelbudget.registry import tables
from tests.builders.marks import needs

from .holding import Entry, counted, floats, ints

pytestmark = [
    pytest.mark.needs_torch,
    pytest.mark.zoo,
    pytest.mark.filterwarnings("ignore"),  # others' own, of every release
]

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "zoo"


def budgets() -> dict[str, Subject[ModelSource]]:
    """The example's budget, by the path of each model and variant."""
    return {
        budget.path: budget for budget in read_budget(FOLDER / "budgets" / "zoo.yaml", tables(), root=FOLDER).models
    }


def timm_resnet18() -> Any:
    import timm

    return timm.create_model("resnet18")


def bert() -> Any:
    import transformers

    config = transformers.BertConfig(
        num_hidden_layers=4, hidden_size=256, num_attention_heads=4, intermediate_size=1024
    )
    return transformers.BertModel(config)


def llama() -> Any:
    import transformers

    sizes = {"hidden_size": 256, "intermediate_size": 688, "num_attention_heads": 4, "vocab_size": 8000}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=2, use_cache=False, **sizes))


def vit() -> Any:
    import transformers

    config = transformers.ViTConfig(num_hidden_layers=2, hidden_size=192, num_attention_heads=3, intermediate_size=768)
    return transformers.ViTModel(config)


def unet() -> Any:
    import diffusers

    return diffusers.UNet2DConditionModel(
        block_out_channels=(32, 64),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=64,
        attention_head_dim=8,
    )


def clip() -> Any:
    import open_clip

    return open_clip.create_model("ViT-B-32", device=torch.get_default_device())


def digits() -> Any:
    return runpy.run_path(str(FOLDER / "digits.py"))["Digits"](hidden=64)


UNET = {"sample": floats(1, 4, 32, 32), "timestep": ints(1), "encoder_hidden_states": floats(1, 77, 64)}
MODELS = {
    "timm_resnet18": ("timm", Entry(timm_resnet18, {"x": floats(1, 3, 224, 224)})),
    "bert": ("transformers", Entry(bert, {"input_ids": ints(1, 128)})),
    # It looks whether several sequences are packed into one, which shapes alone do not say.
    "llama": ("transformers", Entry(llama, {"input_ids": ints(1, 64)}, runs=True)),
    "vit": ("transformers", Entry(vit, {"pixel_values": floats(1, 3, 224, 224)})),
    "unet": ("diffusers", Entry(unet, UNET)),
    "clip": ("open_clip", Entry(clip, {"image": floats(1, 3, 224, 224), "text": ints(1, 77)})),
    "lightning_digits": ("lightning", Entry(digits, {"image": floats(1, 1, 28, 28)})),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(package)) for name, (package, _) in MODELS.items()])
def test_a_model_is_what_its_package_makes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters and MACs are those of a second count, and every limit holds."""
    monkeypatch.syspath_prepend(str(FOLDER))
    measured, budget = measure_model(budgets()[name].made, tables(), root=FOLDER), budgets()[name]
    assert measured.failure is None
    expected = counted(MODELS[name][1])
    assert measured.measurements["params"].value == expected.params
    assert measured.measurements["macs"].value == expected.macs
    assert {judge_limit(limit, measured).outcome for limit in budget.limits} == {Outcome.WITHIN}


@needs("transformers")
def test_one_token_reads_every_weight() -> None:
    """Of the two tables it reads one row alone: at batch 1, a language model moves what it stores."""
    budget = budgets()["llama::one_token"]
    measured = measure_model(budget.made, tables(), root=FOLDER)
    assert {judge_limit(limit, measured).outcome for limit in budget.limits} == {Outcome.WITHIN}
    stored, table = measured.measurements["weight_memory"].value, 8000 * 256 * 4
    assert measured.measurements["bandwidth"].parts["weights"] >= stored - table


@needs("peft")
@needs("transformers")
def test_an_adapter_is_told_without_a_run() -> None:
    """Two layers, query and value, each 128 -> 8 -> 128 beside a layer that stays."""
    budget = budgets()["lora"]
    measured = measure_model(budget.made, tables(), root=FOLDER)
    assert measured.measurements["trainable_params"].value == 2 * 2 * (128 * 8 + 8 * 128)
    assert {judge_limit(limit, measured).outcome for limit in budget.limits} == {Outcome.WITHIN}
    assert "no inputs are given" in measured.measurements["macs"].unmeasured[0].why
