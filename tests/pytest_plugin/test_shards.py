"""``--model-budget-shard``: a run cut by model: no limit runs twice, none is lost, and nothing is said of all."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from pytest_modelbudget.pytest_plugin.shards import dealt
from tests.builders import sharded
from tests.builders.project import Project

USAGE = pytest.ExitCode.USAGE_ERROR
IDS = {f"budgets/a.yaml::net{n}::{check}" for n in range(1, 6) for check in ("params", "macs")}


@pytest.fixture
def five(project: Project) -> Project:
    """Five models of two limits each, all within, and an ordinary test."""
    project.write("budgets/a.yaml", sharded.KEPT)
    project.write("test_ok.py", "def test_ok(): pass\n")
    return project


def judged(part: Path) -> list[str]:
    """The ids of all limits that a part has a verdict on."""
    return sorted(result["check"]["id"] for result in json.loads(part.read_text())["results"])


# How models are dealt.

DEALT = {
    # The average of 900, 500, 400 is 600, which every model costs besides: 1500, 1200 of d, 1100, 1000.
    "by MACs": ({"a": 900, "b": 500, "c": 400, "d": None}, 2, {"a": 1, "d": 2, "b": 2, "c": 1}),
    "in turn, none known": ({"c": None, "a": None, "b": None}, 2, {"a": 1, "b": 2, "c": 1}),
    "one that weighs all": ({"a": 9000, "b": 0, "c": 0}, 2, {"a": 1, "b": 2, "c": 2}),
    "free ones in turn": ({"a": 0, "b": 0, "c": 0, "d": 0}, 2, {"a": 1, "b": 2, "c": 1, "d": 2}),
    "more shards than models": ({"a": 1, "b": 2}, 7, {"b": 1, "a": 2}),
    "one shard": ({"a": 1, "b": 2}, 1, {"a": 1, "b": 1}),
    "nothing": ({}, 3, {}),
}


@pytest.mark.parametrize(("costs", "shards", "owners"), DEALT.values(), ids=DEALT)
def test_the_heaviest_goes_first_to_who_has_least(
    costs: dict[str, int | None], shards: int, owners: dict[str, int]
) -> None:
    """What nobody knows costs what the others do on average; ties go by name and number, in any order."""
    assert dealt(costs, shards) == owners
    assert dealt(dict(reversed(costs.items())), shards) == owners


def test_locks_tell_what_is_heavy(project: Project) -> None:
    """net5 has 240 MACs and comes first; variants add to their model, and stay with it."""
    project.write("budgets/a.yaml", sharded.KEPT)
    project.budget(
        "  wide:\n    widths: net.widths\n    inputs: float32 6x4\n    limits: {macs: 288 MAC}\n"
        "    variants:\n      twice: {inputs: float32 12x4, limits: {macs: 576 MAC}}\n",
        "budgets/b.yaml",
    )
    assert project.run("--model-budget-update=create").ret == 0
    _, part = sharded.run_shard(project, "1/3")
    # 288 + 576 = 864 is the heaviest of 864, 240, 192, 144, 96, 48, which are 1584, 264 on average.
    assert judged(part) == ["budgets/b.yaml::wide::macs", "budgets/b.yaml::wide::twice::macs"]
    # 264 more each: 1128 | 504 | 456, then 408 -> 864 in the third, 360 -> 864 in the second, 312 -> 1176 there.
    _, part = sharded.run_shard(project, "2/3")
    assert sorted({name.split("::")[1] for name in judged(part)}) == ["net1", "net2", "net5"]


# No limit is run twice, none is lost.

SHUFFLED = """
import random

def pytest_collection_modifyitems(items):
    random.shuffle(items)
"""
SELECTIONS: dict[str, tuple[str, ...]] = {
    "all": (),
    "-k": ("-k", "net1 or net2 or params"),
    "--deselect": ("--deselect", "budgets/a.yaml::net2", "--deselect", "budgets/a.yaml::net3::macs"),
    "-m": ("-m", "model_budget"),
    "a file and an id": ("test_ok.py", "budgets/a.yaml::net4"),
}


@pytest.mark.parametrize("args", SELECTIONS.values(), ids=SELECTIONS)
def test_shards_share_what_is_selected(five: Project, args: tuple[str, ...]) -> None:
    """Whatever order items come in, each limit of the selection is in one part."""
    five.configure(SHUFFLED)
    whole = {check["id"] for model in five.report(*args)["models"] for check in model["checks"]}
    runs = sharded.run_shards(five, 3, *args)
    assert Counter(name for _, part in runs for name in judged(part)) == Counter(whole)
    assert {code for code, _ in runs} == {0}


def test_a_budget_that_git_does_not_know_is_told_from_another(five: Project) -> None:
    """The same ids with other amounts are another collection; other ends of lines are not."""
    text = (five.path / "budgets/a.yaml").read_text()
    collections = []
    for number, other in enumerate((text, text.replace("\n", "\r\n"), text.replace("params: ", "params: 1"))):
        (five.path / "budgets/a.yaml").write_bytes(other.encode())
        _, part = sharded.run_shard(five, f"{1 + number % 2}/2")
        collections.append(json.loads(part.read_text())["run"]["collection"])
    assert collections[0] == collections[1] != collections[2]


def test_workers_of_a_shard_share_its_part(five: Project) -> None:
    """-n deals out what a shard has: each worker cuts what it collected, before pytest-xdist asks how to deal."""
    found = [sharded.run_shard(five, f"{number}/2", "-n2", f"--dist={dist}")
             for number, dist in ((1, "loadscope"), (2, "load"))]  # fmt: skip
    assert Counter(name for _, part in found for name in judged(part)) == Counter(IDS)
    assert [code for code, _ in found] == [0, 0]
    assert sharded.merge(five.path, [part for _, part in found]) == sharded.one_run(five)


@pytest.mark.parametrize("order", ["--lf", "--ff"])
def test_shards_share_what_failed_last(project: Project, order: str) -> None:
    """--lf selects before the cut: shards of one cache share what failed, and leave to others what is theirs."""
    project.write("budgets/a.yaml", sharded.KEPT.replace("params: 48", "params: 47"))

    def run(*args: str) -> None:
        project.pytester.runpytest_inprocess("--model-budget", *args)  # with pytest's cache

    run("-q")
    parts = [project.path / f"{number}of2.json" for number in (1, 2)]
    for number, part in enumerate(parts, 1):
        run(f"--model-budget-shard={number}/2", f"--model-budget-report=json:{part}", order)
    expected = {name for name in IDS if order == "--ff" or name.endswith("params")}
    assert Counter(name for part in parts for name in judged(part)) == Counter(expected)


def test_what_stops_early_is_unanswered(project: Project) -> None:
    """-x in a shard: the limits behind it are counted, red here and in the merge."""
    project.write("budgets/a.yaml", sharded.KEPT.replace("params: 48", "params: 47"))
    runs = sharded.run_shards(project, 2, "-x")
    assert [code for code, _ in runs] == [1, 1]
    reports = [json.loads(part.read_text()) for _, part in runs]
    answered = [len(judged(part)) for _, part in runs]
    assert sum(answered) + sum(report["session"]["unanswered"] for report in reports) == len(IDS)
    assert answered == [1, 1]
    code, texts = sharded.merge(project.path, [part for _, part in runs])
    assert code == 1
    assert json.loads(texts["report.json"])["unanswered"] == len(IDS) - 2


def test_a_limit_of_a_worker_that_dies_is_in_its_part(project: Project) -> None:
    """It is unknown, as in one run, and merging finds nothing lost."""
    project.write("budgets/a.yaml", sharded.KEPT)
    project.configure(
        "\nimport os\ndef pytest_model_budget_judged(item, verdict):\n"
        "    if 'net2' in item.nodeid:\n        os._exit(0)\n"
    )
    found = [sharded.run_shard(project, f"{number}/2", "-n1") for number in (1, 2)]
    assert sorted(code for code, _ in found) == [0, 1]
    code, texts = sharded.merge(project.path, [part for _, part in found])
    assert code == 1
    checks = [check for model in json.loads(texts["report.json"])["models"] for check in model["checks"]]
    assert {check["id"] for check in checks if check["outcome"] == "unknown"} == {
        name for name in IDS if "net2" in name
    }
    assert len(checks) == len(IDS)


# What is no shard.


WRITE = "is no shard: write 1/3 for the first of three"
UNUSABLE: dict[str, tuple[tuple[str, ...], str]] = {
    **{
        f"{text!r}": ((f"--model-budget-shard={text}",), f"--model-budget-shard={text} {WRITE}")
        for text in ("0/3", "4/3", "1", "1/", "/3", "a/b", "1/0", "-1/3", "1/3/3", "1 / 3", "1/10000", "\u0661/3", "")
    },
    "an update": (
        ("--model-budget-shard=1/3", "--model-budget-update=trim"),
        "--model-budget-update needs all limits, and --model-budget-shard=1/3 measures a part of them",
    ),
    "a comment": (
        ("--model-budget-shard=1/3", "--model-budget-report=comment:c.md"),
        "--model-budget-report=comment:c.md speaks of all limits, and --model-budget-shard=1/3 measures a part of them",
    ),
}


@pytest.mark.parametrize(("args", "words"), UNUSABLE.values(), ids=UNUSABLE)
def test_what_is_no_shard_is_a_usage_error(five: Project, args: tuple[str, ...], words: str) -> None:
    """One sentence, and nothing is measured."""
    result = five.run("--model-budget-report=json:part.json", *args)
    assert (result.ret, (five.path / "part.json").exists()) == (USAGE, False)
    assert words in " ".join(result.stderr.str().split())


def test_a_check_of_locks_needs_a_part(five: Project) -> None:
    """The merge judges locks, and has nothing to read."""
    result = five.run("--model-budget-shard=1/3", "--model-budget-lock=check")
    assert result.ret == USAGE
    result.stderr.fnmatch_lines(["*--model-budget-lock is judged by modelbudget merge, *measures a part: give --m*"])


def test_the_option_needs_the_switch(five: Project) -> None:
    """As every option that does nothing without it."""
    result = five.run("--model-budget-shard=1/3", switch=False)
    assert result.ret == USAGE
    result.stderr.fnmatch_lines(["*--model-budget-shard=1/3 needs --model-budget*"])


# What a shard does not say.


def test_a_shard_judges_its_own_limits_and_says_what_it_is(project: Project) -> None:
    """The one with the broken limit is red, an empty one green; each says how much it had."""
    limited = "  {}: {{widths: net.widths, limits: {{params: {}}}}}\n"
    project.budget(limited.format("one", 47) + limited.format("two", 48))
    results = [project.run(f"--model-budget-shard={number}/3") for number in (1, 2, 3)]
    assert [result.ret for result in results] == [1, 0, 0]
    for number, (result, limits) in enumerate(zip(results, (1, 1, 0), strict=True), 1):
        line = f"model budget: shard {number}/3: {limits} of 2 limits, and modelbudget merge judges the whole"
        assert line in result.outlines
        assert "skipped by" not in result.stdout.str()


def test_a_shard_calls_no_lock_stale(project: Project) -> None:
    """With and without the check: the merge, which has all numbers, does."""
    project.write("budgets/a.yaml", sharded.KEPT)
    project.run("--model-budget-update=create")
    project.write("budgets/net.widths", "4 7 2")
    runs = sharded.run_shards(project, 2, "--model-budget-lock=check", "-k", "params")
    assert [code for code, _ in runs] == [0, 0]
    assert [json.loads(part.read_text())["session"]["lock"] for _, part in runs] == [[], []]
    code, texts = sharded.merge(project.path, [part for _, part in runs], "--annotations")
    assert code == 1
    (lock,) = json.loads(texts["report.json"])["lock"]
    assert (lock["state"], lock["fails"]) == ("stale", True)
    # 4 * 7 + 7 * 2 = 42 parameters of five models, of which a line names three
    assert "params of net1 48 -> 42, params of net2 48 -> 42, params of net3 48 -> 42 and 2 more" in lock["text"]


def test_a_part_holds_results_and_no_report_does(five: Project) -> None:
    """A part has what each item said, profiles for a page, and the run that was cut."""
    report = five.report()
    assert not {"run", "results"} & report.keys()
    assert not any("profile" in model for model in report["models"])
    _, part = sharded.run_shard(five, "1/1")
    record = json.loads(part.read_text())
    assert sum("profile" in result.get("model", {}) for result in record["results"]) == 5  # a model speaks once
    assert (record["number"], record["exit"], record["session"]["models"]) == (1, 0, [])
    assert (record["run"]["number_of_shards"], record["run"]["number_of_limits"]) == (1, 10)
    assert record["locks"] == [{"budget": "budgets/a.yaml", "file": "budgets/a.lock.json", "is_there": False}]
