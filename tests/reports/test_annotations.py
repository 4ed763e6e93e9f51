"""Annotations: on their line, escaped, ten of a kind at most, and none twice."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest

from pytest_modelbudget.reports.annotations import commands
from tests.builders.records import Record, broken, check, grown, lock, loosened, model, over, report, transformed

COMMAND = re.compile(r"::(?P<kind>\w+) (?P<properties>[^:]*)::(?P<message>.*)")


def read(command: str) -> dict[str, str]:
    """A command as the runner of GitHub Actions reads it: split first, unescaped then."""
    matched = COMMAND.fullmatch(command)
    assert matched, command
    pairs = (pair.split("=", 1) for pair in matched["properties"].split(","))
    told = {"kind": matched["kind"], "message": matched["message"], **dict(pairs)}
    return {key: unquote(value) for key, value in told.items()}


def test_growth_stands_on_the_line_of_its_limit_with_the_layers() -> None:
    """One line names the layer, its old and new shape, and by how much it grew."""
    (command,) = commands(report(grown()))
    assert read(command) == {
        "kind": "error",
        "file": "budgets/mobile.yaml",
        "line": "8",
        "title": "mobilenet_v2 / params",
        "message": "params 3.729 M > 3.510 M (+6.4%)\n  classifier.1   1000x1280 becomes 1175x1280\n  and 2 others",
    }


def test_without_a_baseline_the_largest_layers_are_named() -> None:
    """The shares of the number, largest first."""
    (command,) = commands(report(model(over())))
    assert read(command)["message"].splitlines()[1:] == [
        "  largest layers by params",
        "  25  classifier.1",
        "  15  features.0",
    ]


def test_a_name_is_escaped() -> None:
    """Signs that end a property or a command are the runner's to read, and not ours to break."""
    (command,) = commands(report(model(over(), of="a,b:c%")))
    assert "title=a%2Cb%3Ac%25 / params::" in command
    assert read(command)["title"] == "a,b:c% / params"


def test_an_error_of_many_lines_is_one_command() -> None:
    """A user's exception cannot start a line of its own, and so no command."""
    reason = "params unknown: raised\r\n::set-output name=x::y\n100%"
    (command,) = commands(report(model(check(outcome="unknown", reason=reason))))
    assert "\n" not in command
    assert read(command)["message"].startswith("params unknown: raised ::set-output name=x::y 100%")


@pytest.mark.parametrize(("failures", "annotations", "rest"), [(10, 10, 0), (12, 10, 3)])
def test_github_keeps_ten(failures: int, annotations: int, rest: int) -> None:
    """Of more than ten the nine worst are told, and one says how many more there are."""
    models = (model(over(by=n), of=f"net{n}") for n in range(1, failures + 1))
    told = [read(command) for command in commands(report(*models))]
    assert len(told) == annotations
    worst = [f"net{n} / params" for n in range(failures, failures - 9, -1)]
    assert [each["title"] for each in told[:9]] == worst
    if rest:
        assert told[-1]["title"] == f"model budget: and {rest} more"
        assert [line.split(" ")[0] for line in told[-1]["message"].splitlines()] == [
            "net3", "net2", "net1",
        ]  # fmt: skip


def test_a_model_that_cannot_be_loaded_is_told_once() -> None:
    """On its own line, and not once for each of its limits."""
    limits = (check(name, outcome="unknown", actual=None, line=9) for name in ("params", "macs"))
    (command,) = commands(report(model(*limits, error="nets has no 'Net'")))
    told = read(command)
    assert (told["line"], told["title"]) == ("3", "net")
    assert told["message"] == "nets has no 'Net'\n2 limits are unknown for it"


def test_errors_and_warnings_are_counted_apart() -> None:
    """Ten of each: 12 warnings do not push out an error."""
    warned = (model(over(level="warn"), of=f"net{n}") for n in range(12))
    kinds = [read(command)["kind"] for command in commands(report(*warned, model(over())))]
    assert kinds == ["error"] + ["warning"] * 10


def test_hundreds_more_stay_one_annotation_of_fair_length() -> None:
    """The tenth names thirty, and counts the others."""
    models = (model(over(), of=f"net{n}") for n in range(500))
    last = read(commands(report(*models))[-1])
    assert last["title"] == "model budget: and 491 more"
    assert last["message"].splitlines()[-1] == "and 461 more"


@pytest.mark.parametrize(("forbidden", "kind"), [(False, "warning"), (True, "error")])
def test_a_loosened_limit_is_told_on_its_line(forbidden: bool, kind: str) -> None:
    """Whether it is allowed or not."""
    (command,) = commands(report(model(check()), loosened=[loosened(forbidden=forbidden)]))
    assert read(command) == {
        "kind": kind,
        "file": "budgets/mobile.yaml",
        "line": "8",
        "title": "net / params / loosened",
        "message": "budget loosened +14.3 %: params 3.5 M -> 4.0 M",
    }


def test_a_lock_file_is_annotated_where_it_fails() -> None:
    """Only with the option that makes it fail."""
    (command,) = commands(report(model(check()), lock=[lock(), lock(fails=True)]))
    assert read(command)["file"] == "budgets/mobile.lock.json"


def test_limits_without_an_answer_are_an_error() -> None:
    """They have no line to stand on."""
    assert commands(report(unanswered=2)) == [
        "::error title=model budget::2 limits skipped or stopped, and so not measured"
    ]


def test_every_problem_of_a_broken_file_has_its_line() -> None:
    """Place and text are told apart, also where the place is in another file."""
    record = report(broken=[broken("budgets/bad.yaml:4:38: did you mean 'params'?", "no place")])
    told = [read(command) for command in commands(record)]
    assert [(each["file"], each["line"], each["message"]) for each in told] == [
        ("budgets/bad.yaml", "4", "did you mean 'params'?"),
        ("budgets/bad.yaml", "1", "no place"),
    ]


def test_transforms_fail_like_models() -> None:
    """Their limits and their equivalence are annotated, as is what comes twice, once."""
    record = report(transformed(), loosened=[loosened(), loosened()])
    told = [read(command) for command in commands(record)]
    assert told[0]["message"].splitlines()[1].startswith("  first layer that differs: classifier.1")
    titles = [each["title"] for each in told]
    assert titles == ["net / tiled / equivalence", "net / tiled / macs", "net / params / loosened"]


def test_what_another_plugin_annotates_is_left_to_it() -> None:
    """By node id: others still have their annotation."""
    first, second = model(over(), of="first"), model(over(), of="second")
    shown = {first["checks"][0]["id"]}
    (command,) = commands(report(first, second), annotated=shown)
    assert read(command)["title"] == "second / params"


def test_files_are_named_from_the_top_of_the_checkout() -> None:
    """GitHub looks for them there, wherever rootdir is."""
    (command,) = commands(report(model(over())), root="packages/nets")
    assert read(command)["file"] == "packages/nets/budgets/mobile.yaml"


def test_nothing_is_said_of_what_is_within() -> None:
    """No annotation without a reason."""
    record: Record = report(model(check()))
    assert commands(record) == []
