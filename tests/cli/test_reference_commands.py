"""``modelbudget metrics`` and ``ops``: what stands in the tables, whole, in 80 columns."""

import json

import pytest

from pytest_modelbudget.budget.yaml_text import suggestion
from pytest_modelbudget.cli.command import main
from pytest_modelbudget.registry import tables


@pytest.mark.parametrize(
    "words",
    [("metrics",), ("metrics", "--all"), ("ops",), ("ops", "Conv", "softmax"), ("metrics", "macs")],
    ids=" ".join,
)
def test_the_lists_fit_80_columns(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line is wider than the terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main(words) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_every_rule_is_listed_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """As JSON: each foreign name that is measured, once, under its kind."""
    assert main(["ops", "--format", "json"]) == 0
    kinds = json.loads(capsys.readouterr().out)
    rules = [(entry["kind"], rule) for entry in kinds for rule in entry["rules"]]
    assert sorted(name for _, rule in rules for name in rule["names"]) == sorted(tables().ops)
    assert all(rule["because"] for _, rule in rules)
    assert {kind for kind, rule in rules if "onnx::Conv" in rule["names"]} == {"convolution"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(("metrics", "params"), "params (param)\n  elements of distinct parameters", id="metric"),
        pytest.param(("ops", "GEMM"), "linear\n", id="any case"),
        pytest.param(
            ("ops", "aten::relu"), "because  one operation per output element; nothing is accumulated", id="full"
        ),
        pytest.param(("ops", "onnx::Flatten"), "MACs     none", id="free"),
        pytest.param(("ops", "pdist"), "MACs     unknown, so the operation is unmeasured", id="unmeasured"),
    ],
)
def test_a_name_gives_its_rules(words: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By kind or operator, in any case."""
    assert main(words) == 0
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "guess"),
    [
        (("ops", "Convv"), "no op rule knows 'Convv': did you mean 'convolution'?"),
        (("metrics", "nope"), "nothing like it is known (modelbudget metrics --all lists them)"),
        (("metrics", "peak_memory"), "there is no metric 'peak_memory': did you mean 'peak_activation'?"),
    ],
    ids=" ".join,
)
def test_other_names_are_guessed(words: tuple[str, ...], guess: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, exit code 2."""
    assert main(words) == 2
    assert guess in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("MACs", "'macs'"),
        ("GMACs", "'macs'"),
        ("FLOPs", "'flops'"),
        ("parameters", "'params'"),
        ("size", "'model_size'"),
        ("latency", "'latency_bound'"),
        ("peak-memory", "'peak_activation'"),
        ("memory", "'weight_memory' or 'peak_activation'"),
    ],
)
def test_words_that_people_use_are_understood(word: str, meant: str) -> None:
    """Each leads to the metric that counts it; two where it may be either."""
    metrics = tables().metrics
    assert suggestion(word, metrics, {key: metric.also for key, metric in metrics.items()}) == f"did you mean {meant}?"


def test_metrics_lists_eight_and_counts_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    """``--all`` has the others, too."""
    assert main(["metrics"]) == 0
    few = capsys.readouterr().out
    assert main(["metrics", "--all"]) == 0
    every = capsys.readouterr().out
    shown = [key for key in tables().metrics if f"\n{key} (" in f"\n{few}"]
    assert len(shown) == 8
    assert f"{len(tables().metrics) - 8} more: modelbudget metrics --all" in few
    assert all(f"\n{key} (" in f"\n{every}" for key in tables().metrics)
