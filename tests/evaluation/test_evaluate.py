"""Answers to labelled data, scored one by one; data, labels and metrics that do not fit are refused in a sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pytest_modelbudget.budget.budget import Limit, Place
from pytest_modelbudget.budget.verdict import judge
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.errors import ModelBudgetError, UnmeasurableError
from pytest_modelbudget.evaluation.evaluate import DROP, Evaluated, accuracy, drop, evaluate, paired_interval
from pytest_modelbudget.formats.model import UNWATCHED, DrawnInputs, LoadedModel, Output, Run, RunnableModel, Watch
from pytest_modelbudget.formats.source import Evaluation, TensorSpec
from pytest_modelbudget.graph.graph import Graph
from pytest_modelbudget.units import quantity

EYE = np.eye(6, dtype="float32")


class Echo(RunnableModel):
    """Gives its input; runs of it are counted."""

    dtype = "float32"

    def __init__(self, *, resizes: bool = True, outputs: int = 1, gives: float | None = None) -> None:
        self.resizes, self.outputs, self.gives, self.runs = resizes, outputs, gives, 0

    @property
    def measured(self) -> LoadedModel:
        return LoadedModel(Graph((), (), ()), "echo")

    @property
    def inputs(self) -> DrawnInputs:
        return DrawnInputs({"x": TensorSpec("float32", (2, 6))}, stacks=self.resizes, resizes=self.resizes)

    def run(self, inputs: Any, watch: Watch = UNWATCHED) -> Run:
        self.runs += 1
        values = inputs["x"] if self.gives is None else np.full_like(inputs["x"], self.gives)
        return Run(tuple(Output(f"y{at}", "float32", values) for at in range(self.outputs)))


def saved(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "data.npz", **arrays)
    return "data.npz"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType("labelled_of_this_test")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


@pytest.mark.parametrize(
    ("resizes", "batch", "runs"),
    [
        pytest.param(True, 0, 2, id="64 rows a call: 64 + 36"),
        pytest.param(True, 30, 4, id="30 rows a call: 30 + 30 + 30 + 10"),
        pytest.param(False, 0, 50, id="two rows a call, which a file fixes"),
    ],
)
@pytest.mark.parametrize(("metric", "right"), [("top1", 30), ("top5", 90)])
def test_right_answers(tmp_path: Path, resizes: bool, batch: int, runs: int, metric: str, right: int) -> None:
    """Of 100 rows, 30 have the largest class as label, 60 the second and 10 the last of six."""
    values = np.tile(np.float32([6, 5, 4, 3, 2, 1]), (100, 1))
    data = saved(tmp_path, inputs=values, labels=np.repeat([0, 1, 5], [30, 60, 10]))
    model = Echo(resizes=resizes)
    answers = evaluate(model, Evaluation(data, metric, batch=batch, base=tmp_path))
    assert (accuracy(answers).unreduced, model.runs) == ((right, 100), runs)


def test_of_equal_classes_the_first_is_the_answer(tmp_path: Path) -> None:
    """As argmax has it: a model that gives one number for all classes is right for class 0 alone."""
    data = saved(tmp_path, x=np.ones((6, 6), np.float32), labels=np.arange(6))
    assert evaluate(Echo(), Evaluation(data, "top1", base=tmp_path)).values.tolist() == [1, 0, 0, 0, 0, 0]
    assert evaluate(Echo(), Evaluation(data, "top5", base=tmp_path)).values.tolist() == [1, 1, 1, 1, 1, 0]


def test_mean_squared_error(tmp_path: Path) -> None:
    """Rows that are 1 off in one of six elements: 1/6 each."""
    data = saved(tmp_path, inputs=EYE, labels=np.zeros((6, 6)))
    assert evaluate(Echo(), Evaluation(data, "mse", base=tmp_path)).values == pytest.approx([1 / 6] * 6)


def test_data_and_metric_of_a_callable(module: ModuleType) -> None:
    """Pairs come one after the other; the metric gets what the model gives, of several outputs by name."""

    def pairs() -> Iterator[tuple[Any, Any]]:
        yield EYE[:4], np.zeros(4)
        yield {"x": EYE[4:]}, np.zeros(2)

    module.pairs, module.firsts = pairs, lambda outputs, labels: outputs["y1"][:, 0] - labels  # type: ignore[attr-defined]
    evaluation = Evaluation(f"{module.__name__}:pairs", f"{module.__name__}:firsts")
    assert evaluate(Echo(outputs=2), evaluation).values.tolist() == [1, 0, 0, 0, 0, 0]


GOOD = {"inputs": EYE, "labels": np.arange(6)}


@pytest.mark.parametrize(
    ("arrays", "metric", "model", "words"),
    [
        pytest.param({"inputs": EYE}, "top1", {}, "data.npz has no array 'labels'", id="no labels"),
        pytest.param(GOOD | {"labels": np.arange(5)}, "top1", {}, "6 rows, and there are 5 labels", id="few labels"),
        pytest.param(GOOD | {"labels": np.arange(1, 7)}, "top1", {}, "the label 6 is no class", id="no such class"),
        pytest.param(GOOD | {"labels": np.ones(6)}, "top1", {}, "6 labels of float64", id="labels are no integers"),
        pytest.param(GOOD | {"labels": EYE[:, :2]}, "mse", {}, "6x6 answers and 6x2 labels", id="other labels"),
        pytest.param(GOOD | {"labels": EYE * np.nan}, "mse", {}, "returned NaN or Inf", id="labels with NaN"),
        pytest.param({"inputs": EYE[:0], "labels": np.arange(0)}, "top1", {}, "no labelled inputs", id="empty"),
        pytest.param(GOOD | {"inputs": EYE[:, :5]}, "top1", {}, "'x' of data.npz is 6x5", id="another shape"),
        pytest.param(GOOD | {"inputs": EYE * np.nan}, "top1", {}, "holds NaN or Inf", id="inputs with NaN"),
        pytest.param(GOOD | {"inputs": EYE.astype("int32")}, "top1", {}, "is int32", id="another type"),
        pytest.param({"y": EYE, "labels": np.arange(6)}, "top1", {}, "'y', which is no input", id="another name"),
        pytest.param(GOOD, "top1", {"gives": np.nan}, "gives NaN in 'y0'", id="answers are NaN"),
        pytest.param(GOOD, "top1", {"outputs": 2}, "write a metric package.module:callable", id="two outputs"),
        pytest.param(GOOD, "builtins:print", {}, "returned a NoneType: return one finite", id="a metric of nothing"),
        pytest.param(GOOD, "numpy:mean", {}, "evaluate: numpy:mean raised", id="a metric that raises"),
        pytest.param(GOOD, "builtins:max", {}, "evaluate: builtins:max raised", id="a metric of something else"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, arrays: Any, metric: str, model: dict[str, Any], words: str
) -> None:
    """In one sentence, with the file and what is wrong."""
    with pytest.raises(ModelBudgetError, match="(?s)" + words):
        evaluate(Echo(**model), Evaluation(saved(tmp_path, **arrays), metric, base=tmp_path))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        pytest.param(lambda: [(EYE, np.arange(6), 1)], "yields a tuple: yield pairs", id="three of them"),
        pytest.param(lambda: [], "holds no labelled inputs", id="nothing"),
        pytest.param(lambda: [(EYE, 3)], "the labels of .* is an int", id="labels that are no array"),
        pytest.param(lambda: 1 / 0, "raised ZeroDivisionError", id="an error"),
    ],
)
def test_callables_that_yield_something_else(module: ModuleType, made: Any, words: str) -> None:
    """What is no pair of inputs and labels is refused with its name."""
    module.made = made  # type: ignore[attr-defined]
    with pytest.raises(ModelBudgetError, match=words):
        evaluate(Echo(), Evaluation(f"{module.__name__}:made", "top1"))


def test_batches_that_a_file_does_not_take(tmp_path: Path) -> None:
    """Data that are no whole number of calls, and batches of a model that fixes its own."""
    data = saved(tmp_path, inputs=EYE[:5], labels=np.arange(5))
    with pytest.raises(ModelBudgetError, match="a multiple of its first size"):
        evaluate(Echo(resizes=False), Evaluation(data, "top1", base=tmp_path))
    with pytest.raises(ModelBudgetError, match="fixes the first axis"):
        evaluate(Echo(resizes=False), Evaluation(data, "top1", batch=5, base=tmp_path))


# Figures.


def answers(*values: float) -> Evaluated:
    return Evaluated(np.array(values, dtype=float))


def test_accuracies() -> None:
    """A pair of counts of right and wrong answers, else a mean of shares; other numbers are none."""
    assert accuracy(answers(1, 0, 1, 1)).value == Fraction(3, 4)
    assert accuracy(answers(0.5, 1)).value == Fraction(3, 4)
    with pytest.raises(UnmeasurableError, match="from 0 to 1, and the metric gives -1 to 2"):
        accuracy(answers(-1, 2))


def test_drops_of_what_has_none() -> None:
    """Shares are not lost or gained, and answers to other data are no pairs."""
    with pytest.raises(UnmeasurableError, match="right and wrong answers"):
        drop(answers(0.5), answers(1))
    with pytest.raises(UnmeasurableError, match="2 answers before the change and 1 after"):
        drop(answers(0, 1), answers(1))


def test_a_drop_is_an_interval() -> None:
    """Of 1,000 answers that all are the same, up to z²/(n + z²) may be lost elsewhere: 0.383 %."""
    same = answers(*[1] * 974, *[0] * 26)
    number = drop(same, same)
    assert float(number.value) == pytest.approx(3.841459 / 1003.841459, rel=1e-6)
    assert number.at_least == 0
    assert number.parts == {"lost": 0, "gained": 0, "answers": 1000}


@pytest.mark.parametrize(("lost", "gained", "n"), [(12, 2, 50), (3, 7, 40), (1, 0, 1000), (5, 5, 30), (0, 9, 10)])
def test_the_interval_is_where_the_score_test_keeps_a_difference(lost: int, gained: int, n: int) -> None:
    """Another algorithm: the likeliest share of gained answers by trying 200,000, and the test of Tango there."""
    for end in paired_interval(lost, gained, n):
        if abs(end) > 1 - 1e-6:
            continue  # every difference up to there is kept
        shares = np.linspace(max(0, -end), (1 - end) / 2, 200_001)[1:-1]
        likelihood = (
            lost * np.log(shares + end) + gained * np.log(shares) + (n - lost - gained) * np.log(1 - 2 * shares - end)
        )
        likeliest = shares[likelihood.argmax()]
        score = (lost - gained - n * end) / np.sqrt(n * (2 * likeliest + end * (1 - end)))
        assert abs(score) == pytest.approx(1.959964, rel=2e-3)


@pytest.mark.parametrize(("lost", "gained"), [(12, 2), (10, 4), (9, 5), (30, 15), (20, 9)])
def test_no_difference_is_within_where_mcnemar_keeps_it(lost: int, gained: int) -> None:
    """At a difference of 0 the test is McNemar's: (lost - gained)² / (lost + gained) against 3.841."""
    low, high = paired_interval(lost, gained, 100)
    assert (low <= 0 <= high) is ((lost - gained) ** 2 / (lost + gained) <= 3.841459)
    assert paired_interval(gained, lost, 100) == pytest.approx((-high, -low))


@pytest.mark.parametrize(
    ("lost", "limit", "outcome"),
    [
        pytest.param(0, "0.5 %", Outcome.WITHIN, id="the same answers: 0.383 % at most"),
        pytest.param(2, "0.5 %", Outcome.UNKNOWN, id="2 lost of 1,000: 0.05 % to 0.73 %"),
        pytest.param(2, "0.8 %", Outcome.WITHIN, id="below the upper end"),
        pytest.param(20, "1 %", Outcome.OVER, id="20 lost of 1,000: 1.3 % at least"),
    ],
)
def test_a_drop_is_judged_by_its_interval(lost: int, limit: str, outcome: Outcome) -> None:
    """Within where all of the interval is, over where nothing of it is, and unknown between."""
    number = drop(answers(*[1] * 1000), answers(*[0] * lost, *[1] * (1000 - lost)))
    verdict = judge(Limit(DROP, Place("a.yaml", 1), max=quantity(limit, "%")), number)
    assert verdict.outcome is outcome
    assert ("too few labelled answers (lost 2, gained 0, answers" in verdict.reason) is (outcome is Outcome.UNKNOWN)
