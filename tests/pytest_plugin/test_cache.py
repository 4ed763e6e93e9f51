"""Model files that sessions measure once: in one process, in workers, in processes of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders.onnx_graphs import model, node, stored, value

LIMITS = "{params: 20, macs: {max: 100}}"
WORKERS, APART = ("-n2", "--dist=loadscope"), ("--model-budget-isolate",)


class Repository:
    """A project whose three models are ONNX files: x (2, 4) · w (4, 3) are 12 parameters and 24 MACs."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.path = pytester.path
        names = ("one", "two", "three")
        (self.path / "budgets").mkdir()
        self.path.joinpath("pytest.ini").write_text("[pytest]\n")
        lines = [f"  {name}: {{onnx: {name}.onnx, limits: {LIMITS}}}" for name in names]
        self.path.joinpath("budgets", "a.yaml").write_text("\n".join(["model_budget: 1", "models:", *lines, ""]))
        for name in names:
            self.write(name, 3)

    def write(self, name: str, columns: int) -> None:
        weight = stored("w", 4, columns)
        proto = model([node("MatMul", "x w", "y")], [value("x", 2, 4)], [value("y", 2, columns)], [weight])
        self.path.joinpath("budgets", f"{name}.onnx").write_bytes(proto.SerializeToString())

    @property
    def entries(self) -> dict[Path, tuple[bytes, int]]:
        """The entries of the cache, with their bytes and the file that holds them: another one, once written again."""
        folder = self.path / ".pytest_cache" / "d" / "model-budget"
        return {path: (path.read_bytes(), path.stat().st_ino) for path in sorted(folder.glob("*"))}

    def run(self, *args: str) -> tuple[Any, list[str], int]:
        """The report without its times, what is said of the cache, and the exit code."""
        result = self.pytester.runpytest_inprocess("--model-budget", "--model-budget-json=out.json", *args)
        report = json.loads(self.path.joinpath("out.json").read_text())
        report.pop("timings")
        said = [line for line in result.outlines if "in the cache" in line]
        return report, said, int(result.ret)


@pytest.fixture
def repository(pytester: pytest.Pytester) -> Repository:
    return Repository(pytester)


@pytest.mark.parametrize(("first", "second"), [((), ()), (APART, APART), ((), WORKERS), (WORKERS, APART)])
def test_a_second_session_says_the_same(
    first: tuple[str, ...], second: tuple[str, ...], repository: Repository
) -> None:
    """However models are measured, one kind of session takes what the other kind measured."""
    fresh = repository.run(*first)
    entries = repository.entries
    assert len(entries) == 3
    assert repository.run(*second) == fresh == (fresh[0], [], 0)
    assert repository.entries == entries


def test_a_model_that_changed_is_measured_anew(repository: Repository) -> None:
    """And it alone: its limit is over as soon as its file is."""
    repository.run()
    entries = repository.entries
    repository.write("two", 6)
    report, said, code = repository.run()
    measured = {check["id"].partition("::")[2]: check["actual"] for one in report["models"] for check in one["checks"]}
    assert measured == {
        "one::params": 4 * 3, "one::macs": 2 * 4 * 3, "two::params": 4 * 6, "two::macs": 2 * 4 * 6,
        "three::params": 4 * 3, "three::macs": 2 * 4 * 3,
    }  # fmt: skip
    assert (said, code) == ([], 1)
    assert len(set(entries.items()) - set(repository.entries.items())) == 1


@pytest.mark.parametrize("args", [(), WORKERS, APART])
def test_a_damaged_cache_changes_no_number_and_is_said_once(args: tuple[str, ...], repository: Repository) -> None:
    """One entry cut, one edited and one foreign: the report is the fresh one, and the cache is whole afterwards."""
    fresh = repository.run()
    entries = repository.entries
    cut, edited, foreign = entries
    cut.write_bytes(entries[cut][0][:100])
    edited.write_bytes(entries[edited][0].replace(b'"value": 12', b'"value": 11'))
    foreign.write_bytes(b"not ours")
    report, said, code = repository.run(*args)
    assert (report, code) == (fresh[0], 0)
    (line,) = said
    assert line.startswith("model budget: damaged in the cache, and measured anew: .pytest_cache")
    assert all(path.name in line for path in entries)
    assert [content for content, _ in repository.entries.values()] == [content for content, _ in entries.values()]
    assert repository.run() == fresh


def test_without_a_cache_everything_is_measured(repository: Repository) -> None:
    """By the switch, and where pytest has no cache; nothing is written then."""
    for args in (("--model-budget-no-cache",), ("-p", "no:cacheprovider")):
        assert repository.run(*args)[2] == 0
        assert repository.entries == {}
    repository.run()
    entries = repository.entries
    repository.run("--model-budget-no-cache")
    assert repository.entries == entries


def test_the_switch_alone_is_a_usage_error(repository: Repository) -> None:
    """It does nothing without a gate."""
    result = repository.pytester.runpytest_inprocess("--model-budget-no-cache")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--model-budget-no-cache needs --model-budget*"])


@pytest.mark.parametrize(("file", "args"), [("conftest.py", ()), ("own.py", ("-p", "own"))])
def test_a_plugin_of_the_project_is_part_of_what_measures(
    repository: Repository, file: str, args: tuple[str, ...]
) -> None:
    """It may have set anything: another one, and everything is measured anew; the same one, and nothing is."""
    repository.path.joinpath("pytest.ini").write_text("[pytest]\npythonpath = .\n")
    repository.run()
    for source in ("A = 1\n", "A = 2\n"):
        entries = repository.entries
        repository.path.joinpath(file).write_text(source)
        repository.run(*args)
        assert not set(entries.items()) & set(repository.entries.items())
    entries = repository.entries
    repository.run(*args)
    assert repository.entries == entries
