"""Limits on a training step, as items: what is measured, by whom, and what is unknown with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders.project import Project
from tests.builders.repository import Repository

NETS = """
from torch import nn

def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

def normed():
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
"""
MACS = (
    (384 + 192) + 384 + 2 * 192
)  # of Linear 8 -> 16 and 16 -> 4 on 3 rows: forward, then weights, and the second input
MEMORY = (1 + 1 + 2) * 4 * 212 + 3 * 8 * 4 + 3 * 16 * 4  # and what is saved: the input, ReLU's output
FOLDED = 2 * (4 * 5 * 5) * 27  # forward, and the weight's gradient, on one image of 5x5
BUDGET = f"""model_budget: 1
defaults: {{inputs: float32 3x8}}
models:
  exact:
    torch: nets:mlp
    limits: {{training_macs: {MACS}, training_memory: {MEMORY}}}
    scopes: {{"2": {{training_macs: {3 * 192}}}}}
  sgd: {{torch: "nets:mlp", training: {{optimizer: sgd}}, limits: {{training_memory: {MEMORY - 2 * 4 * 212}}}}}
  plain: {{torch: "nets:mlp", limits: {{macs: 576}}}}
  isolated: {{torch: "nets:mlp", isolate: true, limits: {{training_macs: {MACS}}}}}
  short: {{torch: "nets:mlp", limits: {{training_memory: {MEMORY - 1}}}}}
  folded:
    torch: nets:normed
    inputs: float32 1x3x5x5
    transforms: {{gone: {{fold_batchnorm: {{}}, limits: {{training_macs: {{min: {FOLDED}, max: {FOLDED}}}}}}}}}
  tiled:
    torch: nets:mlp
    transforms: {{small: {{tile_linear: {{tile: 4, edge: ragged}}, limits: {{training_macs: 1 G, macs: 1 G}}}}}}
"""


@pytest.mark.needs_torch
def test_a_step_is_held_to_the_byte(pytester: pytest.Pytester) -> None:
    """At the limit is within and a byte below is over, whoever measures; a model of which none is asked has no step.

    Without its batch norm a convolution has the same MACs; replaced operations have no gradient that is known.
    """
    pytester.makepyfile(nets=NETS)
    (pytester.mkdir("budgets") / "a.yaml").write_text(BUDGET, encoding="utf-8")
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "--model-budget", "--model-budget-report=json:r.json"
    )
    result.assert_outcomes(passed=8, failed=2)
    result.stdout.fnmatch_lines_random([
        "training_memory 3.680 kB > 3.679 kB (*",
        "training_macs unknown: *replaced operations*",
    ])  # fmt: skip
    report: Any = json.loads((pytester.path / "r.json").read_text(encoding="utf-8"))
    models = {model["id"].rpartition("::")[2]: model["metrics"] for model in report["models"]}
    assert models["exact"]["training_memory"]["parts"] == {
        "parameters": 848, "gradients": 848, "optimizer": 1696, "saved": 288,
    }  # fmt: skip
    assert models["exact"] | models["plain"] == models["exact"]  # all other numbers are the same
    assert not {"training_macs", "training_memory"} & models["plain"].keys()


HARDWARE = """hardware: 1
devices:
  gpu: {memories: {vram: {size: SIZE B, holds: [weights, activations], reserve: 100 B}}}
"""
ON_GPU = """model_budget: 1
hardware: hardware.yaml
models:
  mlp: {torch: "nets:mlp", inputs: float32 3x8, deployments: {trainer: {device: gpu, fits: FITS}}}
  tiled:
    torch: nets:mlp
    inputs: float32 3x8
    transforms: {small: {tile_linear: {tile: 4, edge: ragged}, deployments: {trainer: {device: gpu, fits: training}}}}
"""
# While ReLU's gradient is worked out live the input, ReLU's output and its gradient, the result, and the output of the
# model; of these the first two are saved.
TEMPORARIES = 2 * 3 * 16 * 4 + 3 * 4 * 4


def written(folder: Path, fits: str, size: int) -> None:
    """Both networks, and a GPU of that size."""
    (folder / "nets.py").write_text(NETS, encoding="utf-8")
    (folder / "budgets").mkdir(exist_ok=True)
    (folder / "budgets/hardware.yaml").write_text(HARDWARE.replace("SIZE", str(size)), encoding="utf-8")
    (folder / "budgets/a.yaml").write_text(ON_GPU.replace("FITS", fits), encoding="utf-8")


@pytest.mark.needs_torch
@pytest.mark.parametrize("missing", [0, 1])
def test_a_step_fits_a_device_to_the_byte(pytester: pytest.Pytester, missing: int) -> None:
    """Exactly full fits; a byte less does not, and the failure names what takes most of it, the largest first."""
    written(pytester.path, "training", 100 + MEMORY + TEMPORARIES - missing)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--model-budget", "-k", "mlp")
    result.assert_outcomes(passed=1 - missing, failed=missing)
    if missing:
        result.stdout.fnmatch_lines([
            "fits over: vram 4.112 kB > 4.111 kB*", "  parts of a training step", "  1,696  optimizer",
            "    848  parameters", "    848  gradients", "    432  temporaries", "    288  saved",
            "  720 B alive during aten::threshold_backward in 1",
        ])  # fmt: skip


@pytest.mark.needs_torch
def test_a_step_that_is_not_known_fits_nowhere(pytester: pytest.Pytester) -> None:
    """Operations that a transform replaced have no gradient that is known."""
    written(pytester.path, "training", 10_000)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--model-budget", "-k", "tiled")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["tiled / small / trainer: 1 limit unknown: *replaced operations*"])


@pytest.mark.parametrize(
    ("fits", "words"),
    [
        ("training, lower: {dtype: int8}", "a training step is not lowered: remove 'lower'"),
        ("false", "'false' is no program that has to fit: known are true, training"),
        ("trained", "'trained' is no program that has to fit: did you mean 'training'?"),
    ],
)
def test_what_is_no_step_is_refused(project: Project, fits: str, words: str) -> None:
    """Nothing lowers a step, and other words mean nothing."""
    written(project.path, fits, 10_000)
    result = project.run()
    result.stdout.fnmatch_lines([f"*{words}*"])


def test_a_device_that_need_no_longer_train_is_loosened(project: Project) -> None:
    """A step needs more than a pass, so that it fits says more."""
    written(project.path, "training", 10_000)
    repository = Repository(project)
    repository.commit()
    repository.branch("change")
    written(project.path, "true", 10_000)
    repository.commit()
    (found,) = project.report("--model-budget-base=main", "-k", "nothing")["loosened"]
    assert (found["what"], found["before"], found["after"]) == ("fits weakened", "training", "true")


def test_a_file_has_no_step(project: Project) -> None:
    """Unknown, in one line with the reason; the other limits of the model are judged."""
    project.budget("  net: {widths: net.widths, limits: {training_macs: 1 G, macs: 48}}\n")
    result = project.run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*training_macs unknown: a model under widths: has no training step*"])


def test_a_test_asks_for_a_step_with_an_option(project: Project) -> None:
    """A limit on what nobody has measured is unknown, and says how it is asked for; a typo names the optimizers."""
    project.write(
        "test_net.py",
        "from pathlib import Path\nNET = Path('budgets/net.widths')\n"
        "def test_unasked(model_budget):\n    model_budget(NET, 'float32 1x4').within(training_macs=1)\n"
        "def test_typo(model_budget):\n    model_budget(NET, 'float32 1x4', training='adm').within(macs=48)\n",
    )
    result = project.run(switch=False)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        ["*training_macs unknown: it is measured where*training='adam'*", "*sgd, momentum, adam*"]
    )
