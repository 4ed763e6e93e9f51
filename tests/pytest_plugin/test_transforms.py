"""Transforms in a user's repository: items, failures, reports, from a budget file alone."""

from __future__ import annotations

import shlex

import pytest

# Imported here, because pytester forgets what runs import anew, and torch can be imported once.
import torch
import torchvision  # noqa: F401
from torch import nn

import pytest_modelbudget.pytest_plugin.items  # noqa: F401
from tests.builders.torch_project import MACS, TorchProject

pytestmark = pytest.mark.needs_torch


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> TorchProject:
    monkeypatch.setenv("COLUMNS", "400")
    pytester.syspathinsert()
    return TorchProject(pytester)


def test_a_tiled_model_has_limits_and_a_claim(project: TorchProject) -> None:
    """2·2 products of 100 to 70 and 2 of 70 to 5; MACs as before, traffic told before and after with -vv."""
    tiled = (
        "      tiled:\n        tile_linear: {tile: 64}\n        equivalence: exact_algebra\n"
        f"        limits: {{macs: {MACS} MAC, ops: {{max: {{linear: 6}}}}}}\n"
    )
    project.run(tiled).stdout.no_fnmatch_line("*2 of 2 aten::linear changed")
    result = project.run(tiled, "nets:net", "-vv")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines([
        "within  equivalence *e-1* 1e-10*",
        "*2 of 2 aten::linear changed",
        "*bandwidth * -> * (+*%)",
        "*params, trainable_params, active_params, weight_memory, model_size,",
    ])  # fmt: skip
    transform = project.transform
    assert [(each["scope"], each["became"]) for each in transform["changes"]] == [
        ("0", "4 products of 64x64"),
        ("2", "2 products of 64x64"),
    ]
    assert transform["equivalence"]["weights"] == "drawn, seed 0"
    assert transform["equivalence"]["seeds"] == [0, 1, 2]
    families = [output["family"] for output in transform["equivalence"]["outputs"]]
    assert families == ["normal", "uniform", "large", "zeros"]
    assert transform["metrics"]["macs"]["value"] == MACS


def test_convolutions_are_tiled_by_their_channels(project: TorchProject) -> None:
    """[8, 4] cuts 20 channels to 18 into ⌈20/8⌉ · ⌈18/4⌉ products, over 3 positions and taps."""
    result = project.run(
        "      tiled:\n        tile_conv: {tile: [8, 4]}\n        equivalence: exact_algebra\n"
        "        limits: {macs: 12960 MAC, params: 1098, ops: {max: {convolution: 15}}}\n",
        "nets:convolution",
    )
    result.assert_outcomes(passed=4)
    (change,) = project.transform["changes"]
    assert (change["scope"], change["became"]) == ("1", "15 products of 8x4")
    assert project.transform["metrics"]["macs"]["value"] == 4 * 3 * 3 * 20 * 18


def test_a_limit_after_the_transform_breaks_alone(project: TorchProject) -> None:
    """Padding to 64x64 costs 4 · (128·128 + 128·64) MACs, more than the network itself."""
    padded = 4 * (128 * 128 + 128 * 64)
    result = project.run(
        "      tiled:\n        tile_linear: {tile: 64, edge: pad}\n"
        f"        limits: {{macs: {padded - 1} MAC, params: 7.5 k}}\n"
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([f"macs *{padded:,} MAC > {padded - 1:,} MAC * budgets/a.yaml:9"])


NO_MODULE = "layers: no module of the model matches"


def test_layers_that_are_left_out_are_told(project: TorchProject) -> None:
    """``layers`` chooses by scope, and the report lists what stayed."""
    project.run(
        "      tiled:\n        tile_linear: {tile: 64, layers: '0'}\n        equivalence: exact_algebra\n"
    ).assert_outcomes(passed=1)
    first, second = project.transform["changes"]
    assert (first["scope"], bool(first["became"])) == ("0", True)
    assert (second["scope"], second["became"]) == ("2", "")


@pytest.mark.parametrize(
    ("model", "transform", "says"),
    [
        ("nets:net", "tile_linear: {tile: 64, layers: '1'}", "*tile_linear changed nothing*"),
        ("nets:net", "tile_linear: {tile: 64, layers: head.*}", f"*{NO_MODULE} 'head.?': known are 0, 1, 2*"),
        ("nets:net", "quantize: {layers: {'00': keep}}", f"*{NO_MODULE} '00': did you mean '0'?*"),
        ("nets:convolution", "tile_conv: {tile: 4, layers: '!11'}", f"*{NO_MODULE} '11': did you mean '1'?*"),
        ("nets:Mixed", "tile_linear: {tile: 4}", "*left 1 linear operation whole*aten::bilinear*"),
    ],
)
def test_what_stays_whole_is_never_green(project: TorchProject, model: str, transform: str, says: str) -> None:
    """A glob that selects nothing or names no module, or an operation that nobody can tile, is unknown."""
    text = f"      tiled:\n        {transform}\n        equivalence: exact_algebra\n"
    spec = "        limits: {macs: 1 MMAC}\n"
    result = project.run(text + spec, model)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines([says])


def test_a_transform_from_another_package_works_from_the_budget_alone(project: TorchProject) -> None:
    """``apply`` names a function that takes and returns a module."""
    project.run("      halves: {apply: 'compiler:split', equivalence: exact_algebra}\n").assert_outcomes(passed=1)
    became = {each["scope"]: each["became"] for each in project.transform["changes"]}
    assert became == {"0": "", "1": "", "2": "Half"}


def test_new_modules_are_in_training_mode_and_no_matter(project: TorchProject) -> None:
    """What a transform makes anew has never been switched, and is run in eval mode."""
    project.run("      new: {apply: 'compiler:new_layers', equivalence: exact_algebra}\n")
    assert project.transform["equivalence"]["outcome"] == "within"


def test_a_bound_of_no_output_is_unknown(project: TorchProject) -> None:
    """A bound that is held against nothing is no bound that holds."""
    claim = "{kind: lossy, sqnr: 10, outputs: {logits: {max_abs: 1}}}"
    result = project.run(f"      small: {{quantize: {{}}, equivalence: {claim}}}\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no output is called 'logits', which has a bound: '0'*"])


def test_the_command_survives_the_shell(project: TorchProject) -> None:
    """Names are quoted for a shell: it would run what stands between backquotes."""
    text = "      a$HOME`date`: {apply: 'compiler:forgetful', equivalence: exact_algebra}\n"
    result = project.run(text)
    line = next(each for each in result.outlines if each.startswith("repeat: "))
    words = shlex.split(line.removeprefix("repeat: "))
    assert words == ["pytest", "--model-budget", "budgets/a.yaml::net::a$HOME`date`::equivalence"]
    assert line.endswith("'budgets/a.yaml::net::a$HOME`date`::equivalence'")


def test_a_wrong_transform_fails_with_its_layer_and_a_command(project: TorchProject) -> None:
    """The failure names the inputs on which it is furthest off, as its row, layer, weights, seeds, and a command."""
    result = project.run("      halves: {apply: 'compiler:forgetful', equivalence: exact_algebra}\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([
        "equivalence over: output '0', uniform inputs: float64 outputs differ by 9.6e-01 * budgets/a.yaml:7",
        "  first layer that differs: 2, by * most at [[]*[]]: * -> *",
        "  worst output element: '0', uniform inputs, most at *",
        "  weights: drawn, seed 0; inputs: seeds 0, 1, 2",
        "repeat: pytest --model-budget budgets/a.yaml::net::halves::equivalence",
        "over    net::halves::equivalence * 0.9596 1e-10",
    ])  # fmt: skip
    assert project.transform["equivalence"]["first_divergence"]["scope"] == "2"


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        ("training", "*the transform left the model in training mode*call eval() on what you*"),
        ("broken", "*calling compiler:broken raised RuntimeError: no such pass*"),
        ("wrong_kind", "*the transform returned str, not a torch.nn.Module*"),
        ("nowhere", "*compiler has no 'nowhere'*"),
    ],
)
def test_a_transform_that_fails_is_unknown_and_spares_the_model(
    project: TorchProject, transform: str, says: str
) -> None:
    """What it raises is told; a module that the user holds is bit by bit as it was."""
    import nets  # type: ignore[import-not-found]  # written above

    before = {name: value.clone() for name, value in nets.SHARED.state_dict().items()}
    text = f"      x: {{apply: 'compiler:{transform}', equivalence: exact_algebra}}\n"
    result = project.run(text, "nets:SHARED")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([says])
    after = nets.SHARED.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert all(module.training for module in nets.SHARED.modules())
    assert not any(module._forward_hooks for module in nets.SHARED.modules())
    assert isinstance(nets.SHARED, nn.Sequential)


def test_other_weights_in_the_same_layer_are_a_change(project: TorchProject) -> None:
    """A pass that only turns a weight round is told, and fails with its layer."""
    result = project.run("      x: {apply: 'compiler:turned', equivalence: exact_algebra}\n")
    result.assert_outcomes(failed=1)
    became = {each["scope"]: each["became"] for each in project.transform["changes"]}
    assert became == {"0": "", "1": "", "2": "Linear with other weights"}
    assert project.transform["equivalence"]["first_divergence"]["scope"] == "2"


def test_a_lossy_claim_shows_its_noise(project: TorchProject) -> None:
    """Integers of eight bits owe 6.02·8 - 12 - 10·log10(2) = 33.2 dB, and no bound is needed."""
    result = project.run("      small: {quantize: {}, equivalence: lossy}\n")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["within  net::small::equivalence * dB *"])


def test_a_second_model_is_compared(project: TorchProject) -> None:
    """Two factories that name their weights alike get the same weights, and agree."""
    project.run(
        "      twin:\n        compare: {torch: 'nets:net'}\n        equivalence: {kind: exact_algebra, batch: [1, 3]}\n"
    ).assert_outcomes(passed=1)


def test_selection_and_workers_see_items_below_transforms(project: TorchProject) -> None:
    """``-k`` chooses them; what is left out is counted."""
    text = (
        "      tiled:\n        tile_linear: {tile: 64}\n        equivalence: exact_algebra\n"
        "        limits: {macs: 1 MMAC}\n"
    )
    result = project.run(text, "nets:net", "-k", "equivalence")
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.fnmatch_lines(["*1 of 2 limits measured, 1 skipped by -k*"])
    assert [check["metric"] for check in project.transform["checks"]] == ["equivalence"]


def test_problems_of_the_file_are_told_in_place(project: TorchProject) -> None:
    """Every slip in a transform has its line, its column and a way out."""
    result = project.run(
        "      a: {tile_linear: {tile: 0, edge: raged}, equivalence: exact}\n"
        "      b: {tile_linear: {tile: 64}, apply: 'x:y', limits: {macs: 1 MMAC}}\n"
        "      macs: {tile_linear: {tile: [1, 2]}}\n"
        "      c: {equivalence: lossy}\n"
        "      d: {apply: x.y, equivalence: {kind: lossy}}\n"
        "      f: {tile_conv: {tile: [1, 2, 3]}}\n"
        "      e: {compare: {torch: 'x:y', onnx: a.onnx},\n"
        "          equivalence: {kind: exact_algebra, mse: 1}}\n"
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines_random([
        "*7:31: a size of a tile of 0: it must be 1 to 2,147,483,648*",
        "*7:40: 'raged' is no value of edge: did you mean 'ragged'?*",
        "*7:61: 'exact' is no kind of claim*",
        "*8:36: 'apply' and 'tile_linear' exclude each other: a transform has one of them*",
        "*9:7: 'macs' is no name of a transform: checks are called so*",
        "*9:34: a tile of 2 sizes: write 64, or [[]m, k, n[]]*",
        "*10:7: 'c' has none of the keys tile_linear,*",
        "*11:18: 'x.y' is no module:attribute: did you mean x:y?*",
        "*11:23: 'lossy' declares no bound*",
        "*12:29: a tile of 3 sizes: write 64, or [[]k, n[]]*",
        "*13:35: 'onnx' and 'torch' exclude each other: a second model has one of them*",
        "*exact_algebra has a criterion of its own*",
    ])  # fmt: skip
