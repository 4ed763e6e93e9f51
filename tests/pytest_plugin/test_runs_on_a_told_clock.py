"""Runs of torch models on a clock that the model tells: their share of a roof, and their growth since the base."""

from __future__ import annotations

import pytest

from tests.builders.project import Project
from tests.builders.repository import Repository

pytestmark = [pytest.mark.needs_torch, pytest.mark.slow]
RUNTIME, AGAINST = "--model-budget-runtime", "--model-budget-base=main"
NETS = """
import torch
from torch import nn
from pytest_modelbudget.torch_models import benchmark

moments = [0.0]
benchmark.timer = lambda: moments[0]

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 8)

    def forward(self, x):
        moments[0] += SECONDS
        return self.fc(x)
"""
MODEL = "  net:\n    torch: timed_nets:Net\n    inputs: float32 1x4\n    runtime: {latency: {grow: GROW}, repeats: 1}\n"


# 4 x 8 MACs at 3,200 a second take 10 ms; the bytes take less than a microsecond.
HARDWARE = """hardware: 1
devices:
  board: {memories: {ram: {size: 1 MiB, holds: [weights, activations]BANDWIDTH}}, macs: {float32: RATE}}
"""
ROOFS = [
    pytest.param("3200 MAC/s", ", bandwidth: 1 GB/s", "50%", 0, "1 within", id="half of the roof"),
    pytest.param("3200 MAC/s", ", bandwidth: 1 GB/s", "60%", 1, "roofline_share@cpu 50.0% < 60.0%", id="too little"),
    pytest.param("1600 MAC/s", ", bandwidth: 1 GB/s", "60%", 0, "1 within", id="all of it"),
    pytest.param("800 MAC/s", ", bandwidth: 1 GB/s", "60%", 1,
                 "unknown: 200.0% of the roof: the profile is not this machine's", id="a slower machine"),
    pytest.param("3200 MAC/s", "", "60%", 1, "unknown: board gives no bandwidth of its memory ram", id="silent"),
]  # fmt: skip


@pytest.mark.parametrize(("rate", "bandwidth", "least", "code", "said"), ROOFS)
def test_the_share_of_the_roof(project: Project, rate: str, bandwidth: str, least: str, code: int, said: str) -> None:
    """The latency bound of the profile ÷ 20 ms; all of it, and no more, can be reached."""
    project.write("timed_nets.py", NETS.replace("SECONDS", "0.020"))
    project.write("budgets/boards.yaml", HARDWARE.replace("RATE", rate).replace("BANDWIDTH", bandwidth))
    project.write(
        "budgets/a.yaml",
        "model_budget: 1\nhardware: boards.yaml\nmodels:\n  net:\n    torch: timed_nets:Net\n    inputs: float32 1x4\n"
        f"    runtime: {{roofline_share: {{min: {least}}}, hardware: board, repeats: 1}}\n",
    )
    result = project.run_apart(RUNTIME, "--model-budget-lock=keep", "-v")
    assert result.ret == code, result.stdout.str()
    assert said in result.stdout.str()


@pytest.fixture
def repository(project: Project) -> Repository:
    """A base whose model takes 20 ms, and a branch from there; each side is timed in a process of its own."""
    made = Repository(project)
    made.write("timed_nets.py", NETS.replace("SECONDS", "0.020"))
    project.budget(MODEL.replace("GROW", "5%"))
    made.commit()
    made.branch("change")
    return made


def judged(repository: Repository, seconds: str, grow: str = "5%", *words: str) -> tuple[int, str]:
    """What a change to a model of so many seconds, and to such a limit, comes to."""
    repository.write("timed_nets.py", NETS.replace("SECONDS", seconds))
    repository.project.budget(MODEL.replace("GROW", grow))
    repository.commit()
    result = repository.project.run_apart(RUNTIME, "--model-budget-lock=keep", "-v", *(words or (AGAINST,)))
    return int(result.ret), result.stdout.str()


def test_a_model_that_became_slower_is_over(repository: Repository) -> None:
    """22 ms for 20 ms, against today's limit of 8 %, which was 5 %. A model that no base knows has not grown."""
    repository.project.budget(MODEL.replace("GROW", "5%").replace("net:", "other:"), "budgets/b.yaml")
    code, text = judged(repository, "0.022", "8%")
    assert code == 1
    assert "latency_growth@cpu 10.0% > 8.0%" in text
    assert "6 pairs of processes: medians of 22.0 ms, and 20.0 ms at the base; by pairs 10.0% to 10.0%" in text
    assert "budget loosened +60.0 %: latency_growth@cpu 5% -> 8%" in text
    assert "2 limits: 1 over, 0 warn, 1 within, 0 unknown" in text


def test_without_a_base_nothing_is_known(repository: Repository) -> None:
    code, text = judged(repository, "0.020", "5%", "--model-budget-update=create")
    assert code == 1
    assert "latency_growth@cpu unknown: nothing to grow from: no base is named: give --model-budget-base=BRANCH" in text
    assert not (repository.path / "budgets" / "a.lock.json").exists()


def test_a_base_that_cannot_be_timed_leaves_the_growth_unknown(repository: Repository) -> None:
    """What its model raises is shown, with the base."""
    repository.git("checkout", "-q", "main")
    repository.write("timed_nets.py", NETS.replace("moments[0] += SECONDS", "raise ValueError('no tape')"))
    repository.commit("broken")
    repository.git("checkout", "-q", "change")
    repository.git("reset", "-q", "--hard", "main")
    code, text = judged(repository, "0.020")
    assert code == 1
    assert "latency_growth@cpu unknown: main (" in text
    assert "cannot be timed: " in text
    assert "no tape" in text


def test_modules_of_the_change_are_no_base(repository: Repository) -> None:
    """A folder that the model adds to the path by its whole name has today's code on both sides: unknown, and why."""
    repository.git("checkout", "-q", "main")
    found = f"import sys; sys.path.insert(0, {str(repository.path / 'parts')!r})\nimport parts_of_net\n"
    repository.write("parts/parts_of_net.py", "")
    repository.write("timed_nets.py", found + NETS.replace("SECONDS", "0.020"))
    repository.commit("parts")
    repository.git("checkout", "-q", "change")
    repository.git("reset", "-q", "--hard", "main")
    repository.project.budget(MODEL.replace("GROW", "6%"))
    repository.commit()
    result = repository.project.run_apart(RUNTIME, "--model-budget-lock=keep", AGAINST)
    result.stdout.fnmatch_lines(["*cannot be timed: *it imports *parts_of_net.py, which is of the change*"])
