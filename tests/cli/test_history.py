"""``modelbudget history``: every figure is one that ``git show`` gives, through renames, merges and a squash."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_modelbudget.cli.command import main

Locks = dict[str, dict[str, dict[str, int]]]  # {"a": {"net": {"params": 48}}}: budgets/a.lock.json


def lock_text(models: Mapping[str, Mapping[str, int]]) -> str:
    numbers = {
        path: {name: {"value": value, "unit": "param", "with": {}} for name, value in model.items()}
        for path, model in models.items()
    }
    return json.dumps({"schema": "model-budget-lock/1", "models": numbers}, indent=1)


class Branch:
    """Commits of lock files, made by git in one call: each is one whole state of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.marks = 0
        self.tips: dict[str, int] = {}  # the last mark of each branch
        self.stream: list[str] = []

    def commit(self, locks: Locks, subject: str, *, on: str = "main", merge: int = 0, raw: str = "") -> int:
        """One commit on a branch; raw is what stands in the place of budgets/a.lock.json."""
        self.marks += 1
        lines = [f"commit refs/heads/{on}", f"mark :{self.marks}"]
        lines += [f"committer Somebody <a@b> {1_700_000_000 + 86_400 * self.marks} +0000", _data(subject)]
        lines += [f"from :{self.tips[on]}"] if on in self.tips else []
        lines += [f"merge :{merge}"] if merge else []
        lines.append("deleteall")
        files = {f"budgets/{name}.lock.json": lock_text(models) for name, models in locks.items()}
        files |= {"budgets/a.lock.json": raw} if raw else {}
        for name, text in files.items():
            lines += [f"M 100644 inline {name}", _data(text)]
        self.stream += [*lines, ""]
        self.tips[on] = self.marks
        return self.marks

    def fork(self, name: str) -> None:
        self.tips[name] = self.tips["main"]

    def write(self) -> list[str]:
        """Make them all; the names of the commits, by mark."""
        subprocess.run(["git", "init", "-q", "-b", "main"], cwd=self.path, check=True)
        words = ["git", "fast-import", "--quiet", "--export-marks=marks"]
        subprocess.run(words, cwd=self.path, input="\n".join(self.stream), text=True, check=True)
        subprocess.run(["git", "checkout", "-q", "main"], cwd=self.path, check=True)
        rows = (line.split() for line in (self.path / "marks").read_text().splitlines())
        names = {int(mark[1:]): name for mark, name in rows}
        return ["", *(names[mark] for mark in sorted(names))]


def _data(text: str) -> str:
    return f"data {len(text.encode())}\n{text}"


def shown(path: Path, commit: str) -> Locks:
    """The locks of one commit, read by hand."""
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", commit], cwd=path, capture_output=True, text=True, check=True
    )
    locks = {}
    for file in listed.stdout.split():
        text = subprocess.run(["git", "show", f"{commit}:{file}"], cwd=path, capture_output=True, text=True, check=True)
        try:
            models = json.loads(text.stdout)["models"]
        except ValueError:
            continue  # damaged there
        numbers = {name: {check: number["value"] for check, number in model.items()} for name, model in models.items()}
        locks[file.removeprefix("budgets/").removesuffix(".lock.json")] = numbers
    return locks


def asked(path: Path, *words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(path)
    capsys.readouterr()
    code = main(["history", "--format", "json", *words])
    return code, json.loads(capsys.readouterr().out)


CONFLICT = "<<<<<<< HEAD\n{}\n=======\n{}\n>>>>>>> main\n"


class Story:
    """Two models through 200 commits, and what each number became in which commit, told by who wrote it."""

    def __init__(self, path: Path) -> None:
        self.branch = Branch(path)
        self.value = {"net": 1000, "other": 500}
        self.file = "a"
        self.truth: dict[str, list[tuple[int, int | None]]] = {"net": [], "other": []}

    def locks(self) -> Locks:
        return {self.file: {model: {"params": value} for model, value in self.value.items() if value}}

    def commit(self, subject: str, merge: int = 0) -> None:
        mark = self.branch.commit(self.locks(), subject, merge=merge)
        for model, value in self.value.items():
            points = self.truth[model]
            if (value or None) != (points[-1][1] if points else None):
                points.append((mark, value or None))

    def grow(self, model: str, by: int) -> None:
        if self.value[model]:
            self.value[model] += by

    def merge_a_side(self) -> None:
        """Three commits beside the branch, which end in what is merged."""
        self.branch.fork("side")
        for _ in range(3):
            self.value["net"] += 4
            self.branch.commit(self.locks(), "on the side", on="side")
        self.commit("merge the side", merge=self.branch.tips["side"])

    def tell(self) -> None:
        """197 commits, and three on a side branch."""
        draw = random.Random(13)
        for step in range(197):
            if step == 70:
                self.file = "vision"  # the file renamed, and a number changed at once
                self.grow("net", 5)
            elif step == 120:
                self.merge_a_side()
                continue
            elif step == 140:
                self.grow("net", 1)
                self.grow("other", 1)
            elif step in (160, 165):
                self.value["other"] = 0 if step == 160 else 777  # it is gone, and comes back
            else:
                self.grow(draw.choice(["net", "other"]), draw.choice([-7, 0, 0, 11, 130]))
            self.commit("a squash of many (#12)" if step == 140 else f"step {step}")


def test_figures_of_200_commits_are_those_that_git_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every change is told, none is invented, and each number is what its commit holds."""
    story = Story(tmp_path)
    story.tell()
    commits, truth = story.branch.write(), story.truth
    assert len(commits) == 1 + 200
    code, found = asked(tmp_path, capsys=capsys, monkeypatch=monkeypatch)
    assert code == 0
    series = {each["id"]: each for each in found["series"]}
    assert set(series) == {"budgets/vision.yaml::net::params", "budgets/vision.yaml::other::params"}
    for model in ("net", "other"):
        points = series[f"budgets/vision.yaml::{model}::params"]["points"]
        told = [(point["commit"], point["value"]) for point in points]
        assert told == [(commits[mark], value) for mark, value in truth[model]]
        for point in points:
            files = shown(tmp_path, point["commit"]).values()
            numbers = [models[model]["params"] for models in files if model in models]
            assert numbers == ([] if point["value"] is None else [point["value"]])
    # And between those commits nothing changed: the first parents, one by one, by hand.
    line = subprocess.run(
        ["git", "rev-list", "--first-parent", "--reverse", "main"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    seen: set[int] = set()
    changes = 0
    for commit in line:
        numbers = {model["params"] for models in shown(tmp_path, commit).values() for model in models.values()}
        changes += len(numbers - seen)
        seen = numbers
    assert changes == sum(value is not None for points in truth.values() for _, value in points)


def small(path: Path, *states: Locks | str) -> list[str]:
    """A branch of these states; a text stands for a damaged budgets/a.lock.json."""
    branch = Branch(path)
    for place, each in enumerate(states):
        if isinstance(each, str):
            branch.commit({}, f"commit {place}", raw=each)
        else:
            branch.commit(each, f"commit {place}")
    return branch.write()


NET, GROWN = {"a": {"net": {"params": 48}}}, {"a": {"net": {"params": 56}}}
DAMAGED = {
    "a conflict": (CONFLICT.format(lock_text(NET["a"]), lock_text(GROWN["a"])), "the marks of an unfinished merge"),
    "half a file": (lock_text(NET["a"])[:60], "no JSON"),
    "a number as a word": (lock_text(NET["a"]).replace("48", '"48"'), "no whole number"),
}


@pytest.mark.parametrize(("text", "why"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_lock_is_said_and_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    """It gives no number and ends none; and the history is not complete, which is exit code 1."""
    commits = small(tmp_path, NET, text, GROWN)
    code, found = asked(tmp_path, capsys=capsys, monkeypatch=monkeypatch)
    assert code == 1
    (skipped,) = found["skipped"]
    assert skipped["commit"] == commits[2]
    assert why in skipped["why"]
    assert [(point["commit"], point["value"]) for point in found["series"][0]["points"]] == [
        (commits[1], 48),
        (commits[3], 56),
    ]


def test_lock_files_of_others_are_passed_by(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tools write files of that name, too."""
    small(tmp_path, '{"version": 1, "dependencies": {}}')
    monkeypatch.chdir(tmp_path)
    assert main(["history"]) == 2
    assert "no commit has a lock file below this folder" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "why"), DAMAGED.values(), ids=DAMAGED)
def test_locks_that_are_all_damaged_are_not_called_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    """Which commit has one, and why it holds no number."""
    commits = small(tmp_path, text)
    monkeypatch.chdir(tmp_path)
    assert main(["history"]) == 2
    said = capsys.readouterr().err
    assert f"no commit has a lock file that can be read (skipped {commits[1][:7]}: budgets/a.lock.json: " in said
    assert why in said


def models(**params: int) -> Locks:
    return {"a": {name: {"params": value} for name, value in params.items()}}


MOVES = {
    "another name": ([models(old=1), models(new=1)], {"old": [[1, None]], "new": [[1]]}),
    "a name that comes back": ([models(net=1, other=1), models(other=1), models(net=1, other=1)],
                               {"net": [[1, None, 1]], "other": [[1]]}),
    "another file": ([NET, {**models(other=1), "b": NET["a"]}, {"b": NET["a"]}],
                     {"net": [[48, None], [48]], "other": [[1, None]]}),
    "another file, as git sees it": ([{"b": NET["a"]}, NET], {"net": [[48]]}),
}  # fmt: skip


@pytest.mark.parametrize(("states", "values"), MOVES.values(), ids=MOVES)
def test_files_are_followed_and_models_are_not(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    states: list[Locks],
    values: dict[str, list[list[int | None]]],
) -> None:
    """A model under another name, or in a file that git does not see renamed, begins again."""
    small(tmp_path, *states)
    _, found = asked(tmp_path, capsys=capsys, monkeypatch=monkeypatch)
    told: dict[str, list[list[int | None]]] = {}
    for each in found["series"]:
        told.setdefault(each["model"], []).append([point["value"] for point in each["points"]])
    assert told == values


def test_a_shallow_clone_says_how_deep_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commits of three: the first change is not seen, and that is said."""
    whole, clone = tmp_path / "whole", tmp_path / "clone"
    whole.mkdir()
    small(whole, {"a": {"net": {"params": 40}}}, NET, GROWN)
    subprocess.run(["git", "clone", "-q", "--depth=2", whole.as_uri(), str(clone)], check=True)
    code, found = asked(clone, capsys=capsys, monkeypatch=monkeypatch)
    assert (code, found["shallow"]) == (1, 2)
    assert [point["value"] for point in found["series"][0]["points"]] == [48, 56]
    main(["history"])
    told = capsys.readouterr()
    assert "this clone is shallow, and reaches back 2 commits: git fetch --unshallow" in told.err
    assert "locked" not in told.out  # that was before: the oldest commit has it, and did not bring it
    assert "+8 (+16.7%)" in told.out


def test_a_shallow_clone_calls_locked_what_it_saw_locked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that came after the oldest commit, and any of the first commit of all, since a revision or not."""
    whole, clone = tmp_path / "whole", tmp_path / "clone"
    whole.mkdir()
    commits = small(whole, NET, {"a": {"net": {"params": 48}, "other": {"params": 7}}}, {"a": {"net": {"params": 50}}})
    subprocess.run(["git", "clone", "-q", "--depth=3", whole.as_uri(), str(clone)], check=True)
    monkeypatch.chdir(clone)
    main(["history"])
    net, other = capsys.readouterr().out.split("budgets/a.yaml::other")
    assert "locked" not in net
    assert "locked  " in other
    main(["history", "--since", commits[-2]])
    assert "locked " not in capsys.readouterr().out.replace("locked no more", "")


def test_since_a_revision_tells_what_changed_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the number before, to tell the change from."""
    wide = {"a": {"net": {"params": 60}}}
    commits = small(tmp_path, NET, GROWN, wide)
    _, found = asked(tmp_path, "--since", commits[2], capsys=capsys, monkeypatch=monkeypatch)
    assert [point["value"] for point in found["series"][0]["points"]] == [56, 60]
    _, found = asked(tmp_path, "--since", "main", capsys=capsys, monkeypatch=monkeypatch)
    assert found["series"] == []


def test_the_table_tells_when_by_how_much_and_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """56 - 48 is 8, a sixth of 48; a number that never changed is counted."""
    commits = small(tmp_path, {"a": {"net": {"params": 48, "macs": 9}}}, {"a": {"net": {"params": 56, "macs": 9}}}, {})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["history", "net", "--metric", "params"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "budgets/a.yaml::net::params",
        f"  2023-11-15  {commits[1][:7]}  48  locked          commit 0",
        f"  2023-11-16  {commits[2][:7]}  56  +8 (+16.7%)     commit 1",
        f"  2023-11-17  {commits[3][:7]}   -  locked no more  commit 2",
    ]


ASKED = {
    "a name": (("net",), ["net::params", "net::params@head.*", "net::b8::params"]),
    "a path": (("net::b8",), ["net::b8::params"]),
    "an id": (("budgets/a.yaml::net::b8",), ["net::b8::params"]),
    "a file": (("budgets/a.yaml",), ["net::params", "net::params@head.*", "net::b8::params", "other::macs"]),
    "a metric": (("--metric", "params"), ["net::params", "net::params@head.*", "net::b8::params"]),
    "a check": (("--metric", "params@head.*"), ["net::params@head.*"]),
    "both": (("other", "--metric", "macs"), ["other::macs"]),
}


@pytest.mark.parametrize(("words", "ids"), ASKED.values(), ids=ASKED)
def test_numbers_are_asked_for_by_what_they_are_called(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    ids: list[str],
) -> None:
    """A model with its variants and scopes, one of these, or a metric of all."""
    numbers = {"net": {"params": 1, "params@head.*": 2}, "net::b8": {"params": 3}, "other": {"macs": 4}}
    small(tmp_path, {"a": numbers})
    _, found = asked(tmp_path, *words, capsys=capsys, monkeypatch=monkeypatch)
    assert [each["id"].removeprefix("budgets/a.yaml::") for each in found["series"]] == ids


CONFIGURED = [
    "log.diffMerges=combined",
    "log.diffMerges=off",
    "log.showRoot=false",
    "diff.renames=false",
    "diff.orderFile=gone",
]


@pytest.mark.parametrize("setting", CONFIGURED)
def test_nobodys_configuration_changes_a_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    """A merge that brought 8 of 56 parameters, the first commit, and a file that was renamed."""
    branch = Branch(tmp_path)
    branch.commit(NET, "locked")
    branch.fork("side")
    branch.commit({"a": {"net": {"params": 56}}}, "grown", on="side")
    branch.commit(NET, "beside")
    merge = branch.commit({"a": {"net": {"params": 56}}}, "merged", merge=branch.tips["side"])
    branch.commit({"b": {"net": {"params": 56}}}, "renamed")
    commits = branch.write()
    subprocess.run(["git", "config", *setting.split("=")], cwd=tmp_path, check=True)
    _, found = asked(tmp_path, capsys=capsys, monkeypatch=monkeypatch)
    (series,) = found["series"]
    points = [(point["commit"], point["value"]) for point in series["points"]]
    assert (series["file"], points) == ("budgets/b.yaml", [(commits[1], 48), (commits[merge], 56)])


WRONG = {
    "a model": (("nett",), "no commit has a model 'nett' in a lock file: did you mean 'net'?"),
    "a metric": (("--metric", "parms"), "no commit has a number 'parms' in a lock file: did you mean 'params'?"),
    "a revision": (("--since", "nowhere"), "nowhere is no commit in this clone: correct its name, or fetch it"),
    "an option": (("--since=--all",), "--all is no commit in this clone"),
}


@pytest.mark.parametrize(("words", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_word_is_one_sentence(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    message: str,
) -> None:
    """Exit code 2, and the way out."""
    small(tmp_path, NET)
    monkeypatch.chdir(tmp_path)
    assert main(["history", *words]) == 2
    assert message in capsys.readouterr().err


def test_outside_of_a_repository_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is there a history before the first commit."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert main(["history"]) == 2
    told = capsys.readouterr().err
    assert "not a git repository" in told
    assert told.endswith(": run it in a clone of the project\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert main(["history"]) == 2
    assert "there is no commit yet" in capsys.readouterr().err


def test_a_folder_has_the_history_of_what_lies_below_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With paths as they are seen from there."""
    small(tmp_path, NET, GROWN)
    _, found = asked(tmp_path / "budgets", capsys=capsys, monkeypatch=monkeypatch)
    assert [each["id"] for each in found["series"]] == ["a.yaml::net::params"]
