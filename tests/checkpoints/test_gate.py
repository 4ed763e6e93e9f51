"""Checkpoints in budgets, lock files, drafts and tables."""

from __future__ import annotations

import json

import pytest

from pytest_modelbudget import measure
from pytest_modelbudget.cli.command import main
from tests.builders.checkpoint_files import write
from tests.builders.project import Project

BUDGET = """
  net:
    checkpoint: net
    limits: {params: 40, weight_memory: {max: 160 B, grow: 0%}, macs: 3 MAC, trainable_params: 3}
    scopes: {layers.*.fc: {params: 32}}
"""


@pytest.fixture
def net(project: Project) -> Project:
    """A folder of two layers of 4·4 and a head of 2·4, in four bytes each."""
    layers = {f"layers.{at}.fc.weight": ("F32", (4, 4)) for at in range(2)}
    write(project.path / "budgets/net/model.safetensors", {**layers, "head.weight": ("F32", (2, 4))})
    project.budget(BUDGET)
    return project


def test_a_budget_checks_what_is_stored(net: Project) -> None:
    """Within, also by a glob on tensor names; all that needs operations is unknown."""
    net.run("--model-budget-update=create")
    (model,) = net.report()["models"]
    assert {f"{each['metric']} {each.get('scope') or ''}".strip(): each["outcome"] for each in model["checks"]} == {
        "params": "within", "weight_memory": "within", "macs": "unknown", "trainable_params": "unknown",
        "params layers.*.fc": "within",
    }  # fmt: skip


def test_an_index_names_its_files_and_any_other_file_is_refused(net: Project) -> None:
    """As the hub names the file of a model in parts."""
    names = ("layers.0.fc.weight", "layers.1.fc.weight", "head.weight")
    index = {"weight_map": dict.fromkeys(names, "model.safetensors")}
    (net.path / "budgets/net/model.safetensors.index.json").write_text(json.dumps(index))
    net.budget("  net: {checkpoint: net/model.safetensors.index.json, limits: {params: 40}}\n")
    net.run()
    (model,) = net.report()["models"]
    assert [each["outcome"] for each in model["checks"]] == ["within"]
    (net.path / "budgets/net/weights.h5").write_bytes(b"weights")
    assert int(measure(net.path / "budgets/net/model.safetensors.index.json").params) == 40
    net.budget("  net: {checkpoint: net/weights.h5, limits: {params: 40}}\n")
    net.run().stdout.fnmatch_lines(["*weights.h5 is a Keras file, not a checkpoint: convert it first: *"])


def test_growth_names_the_tensor(net: Project) -> None:
    """A lock file has each tensor; a wider head is named with both of its shapes."""
    net.run("--model-budget-update=create")
    lock = json.loads((net.path / "budgets/a.lock.json").read_text())
    assert "head" in json.dumps(lock)
    layers = {f"layers.{at}.fc.weight": ("F32", (4, 4)) for at in range(2)}
    write(net.path / "budgets/net/model.safetensors", {**layers, "head.weight": ("F32", (6, 4))})
    net.run().stdout.fnmatch_lines(["*head*2x4 becomes 6x4*"])


def test_inputs_are_refused(net: Project) -> None:
    """Nothing of a checkpoint reads them."""
    net.budget("  net: {checkpoint: net, inputs: float32 1x4, limits: {params: 40}}\n")
    net.run().stdout.fnmatch_lines(["*no operations, so nothing reads inputs: give no inputs and no dims*"])


def test_commands_take_folders(
    net: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """show has types and bytes by layer, init a draft that the gate reads, compare two columns."""
    monkeypatch.chdir(net.path / "budgets")
    assert main(["show", "net", "--depth", "2"]) == 0
    shown = capsys.readouterr().out
    assert "0     float32 4x4      16  40.0%     64  40.0%" in shown
    assert "MACs" not in shown
    assert main(["init", "net"]) == 0
    assert "checkpoint: ../net" in capsys.readouterr().out
    assert main(["compare", "net", "net/model.safetensors"]) == 0
    assert "macs  " not in capsys.readouterr().out
    (net.path / "budgets/net/config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    assert main(["show", "net"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "no operations: show net/config.json, or write it under huggingface:" in shown
    assert main(["show", "net", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["layers"]
    assert [(row["scope"], row["stored"], row["bytes"]) for row in rows if row["stored"]] == [
        ("head", "float32 2x4", 32), ("layers.0.fc", "float32 4x4", 64), ("layers.1.fc", "float32 4x4", 64),
    ]  # fmt: skip


@pytest.mark.needs_torch
def test_a_program_is_compared_with_a_checkpoint(
    net: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the checkpoint does not have is unmeasured, and no bound of zero."""
    torch = pytest.importorskip("torch")

    monkeypatch.chdir(net.path / "budgets")
    program = torch.export.export(torch.nn.Linear(4, 4, bias=False), (torch.zeros(1, 4),))
    torch.export.save(program, "fc.pt2")
    assert main(["compare", "fc.pt2", "net"]) == 0
    assert main(["compare", "fc.pt2", "net", "--input", "float32 1x4"]) == 0
    fields = capsys.readouterr().out.split()
    assert "unmeasured" in fields
    assert ">=" not in fields


@pytest.mark.parametrize(("name", "is_report"), [("config.json", False), ("report.json", True)])
def test_compare_knows_a_configuration_from_a_report(
    name: str, is_report: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only a report is pointed to diff."""
    assert main(["compare", name, name]) == 2
    assert ("is a report: modelbudget diff" in capsys.readouterr().err) is is_report
