"""A model's answers on labelled data, one number for each, whether it is right or its error; and their figures.

Data are a .npz file with the arrays ``inputs`` and ``labels`` (of a model with several inputs, an array under each
input's name), or a callable that yields pairs of inputs and labels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import copysign, inf, sqrt
from typing import TYPE_CHECKING, Any, cast

from pytest_modelbudget.equivalence.inputs import resized
from pytest_modelbudget.equivalence.user_inputs import ALONE, array_of, cut, file_arrays, matched, named
from pytest_modelbudget.errors import InputError, TransformError, UnmeasurableError, user_code
from pytest_modelbudget.formats.model import DrawnInputs, Model, Output, must_run
from pytest_modelbudget.formats.source import Evaluation, names_attribute, resolved
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.measurement import Measurement, Metric, Stage
from pytest_modelbudget.units import with_article
from pytest_modelbudget.values.judgement import nine_digits

if TYPE_CHECKING:
    from pytest_modelbudget.formats.model import Arrays, Values

    Score = Callable[[Any, Values], Any]

INPUTS, LABELS = "inputs", "labels"  # arrays of a file
ROWS = 64  # of one call, where a model takes any number of rows
ACCURACY, DROP, ERROR = "accuracy", "accuracy_drop", "error"
LIMITED = {"min": ACCURACY, "drop": DROP, "max": ERROR}  # by each limit of ``evaluate``
DEVIATIONS = 1.959964  # of the normal distribution, between which 95 % lie


@dataclass(frozen=True, slots=True, eq=False)
class Evaluated:
    """One number for each answer, in the order of the data: 1 of a right and 0 of a wrong one, or an error.

    values has the shape (answers,), in float64.
    """

    values: Values

    @property
    def is_right_or_wrong(self) -> bool:
        """Whether each answer is right or wrong, and nothing between."""
        return bool(((self.values == 0) | (self.values == 1)).all())

    @property
    def mean(self) -> float:
        """The accuracy, or the mean error."""
        return float(self.values.mean())


def evaluate(model: Model, evaluation: Evaluation) -> Evaluated:
    """Run a model on all data, and score each answer.

    Raises InputError for data and labels that do not fit the model or its answers, TransformError for a model that does
    not run, gives NaN, or is scored with anything but one finite number for each answer.
    """
    import numpy as np

    runnable = must_run(model, "so that it has no answers: leave out 'evaluate'")
    if runnable.missing:
        raise TransformError(f"evaluate: the weights are drawn, and not the model's own: {runnable.missing}")
    score, values = score_of(evaluation.metric), []
    for inputs, labels in labelled(evaluation, runnable.inputs):
        outputs = runnable.run(inputs).outputs
        with user_code(f"evaluate: {evaluation.metric}", TransformError):
            given = score(_answers(outputs), labels)
        values.append(_numbers(given, len(labels), evaluation.metric))
    return Evaluated(np.concatenate(values))


# Data.


def labelled(evaluation: Evaluation, inputs: DrawnInputs) -> Iterator[tuple[Arrays, Values]]:
    """Inputs and labels of each call: of ``batch`` rows, and the last one of what is left.

    Without ``batch``, calls have 64 rows, or as many as a file fixes. Raises InputError for what does not fit.
    """
    specs, text = inputs.specs, evaluation.data
    if evaluation.batch and not inputs.resizes:
        raise InputError("batch: the file fixes the first axis of its inputs: export a symbol, or leave out 'batch'")
    free = evaluation.batch or (ROWS if inputs.stacks and inputs.resizes else 0)
    rows = free or max(1, *((spec.shape or (1,))[0] for spec in specs.values()))
    is_empty = True
    for given, labels in _pairs(evaluation):
        arrays, count = matched(given, specs, text), len(labels) if labels.ndim else 0
        for name, array in arrays.items():
            if array.shape[:1] != (count,):
                held = f"'{name}' of {text} has {array.shape[0] if array.ndim else 'no'} rows"
                raise InputError(f"evaluate: {held}, and there are {count} labels: give one label for each row")
        for at in range(0, count, rows):
            part = {name: array[at : at + rows] for name, array in arrays.items()}
            sizes = (min(rows, count - at),) if free else ()
            (call,) = cut(part, resized(specs, sizes)[0], text)
            yield call, labels[at : at + rows]
            is_empty = False
    if is_empty:
        raise InputError(f"evaluate: {text} holds no labelled inputs")


def _pairs(evaluation: Evaluation) -> Iterator[tuple[Arrays, Values]]:
    """Inputs by name, and labels: all of a file, or pair by pair what a callable yields."""
    text = evaluation.data
    if not names_attribute(text):
        arrays = dict(file_arrays(evaluation.base / text, text))
        if LABELS not in arrays:
            raise InputError(f"evaluate: {text} has no array '{LABELS}': write np.savez(file, inputs=..., labels=...)")
        labels = arrays.pop(LABELS)
        yield {ALONE: arrays[INPUTS]} if set(arrays) == {INPUTS} else arrays, labels
        return
    reading = f"evaluate: reading data from {text}"
    with user_code(reading, InputError):
        call: Any = resolved(text)
        pairs = iter(call())
    while True:
        with user_code(reading, InputError):
            pair = next(pairs, None)
        if pair is None:
            return
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
            kind = with_article(type(pair).__name__)
            raise InputError(f"evaluate: {text} yields {kind}: yield pairs of inputs and labels")
        yield named(pair[0], text), array_of(pair[1], f"the labels of {text}")


# Scores.


def _answers(outputs: tuple[Output, ...]) -> Any:
    """The array that a model gives, or of several outputs the arrays by name."""
    import numpy as np

    for each in outputs:
        if each.values.dtype.kind in "fc" and np.isnan(each.values).any():
            raise TransformError(f"evaluate: the model gives NaN in '{each.name}': its answers are unknown")
    return outputs[0].values if len(outputs) == 1 else {each.name: each.values for each in outputs}


def _numbers(given: Any, count: int, metric: str) -> Values:
    """What a metric gave as one finite number for each answer."""
    import numpy as np

    numbers = array_of(given, metric) if hasattr(given, "detach") else np.asarray(given)
    wanted = f"return one finite number for each of {count} answers"
    if numbers.dtype.kind not in "biuf":
        raise TransformError(f"evaluate: {metric} returned {with_article(type(given).__name__)}: {wanted}")
    if numbers.shape != (count,):
        raise TransformError(f"evaluate: {metric} returned {_sizes(numbers)}: {wanted}")
    if not np.isfinite(numbers).all():
        raise TransformError(f"evaluate: {metric} returned NaN or Inf: {wanted}")
    return numbers.astype(np.float64)


def _sizes(values: Values) -> str:
    return "x".join(map(str, values.shape)) or "one number"


def _top(most: int) -> Score:
    """Whether the label is among the largest classes; of equal ones the first is the larger."""

    def right(outputs: Any, labels: Values) -> Values:
        """outputs (rows, classes) · labels (rows,) → right (rows,)."""
        import numpy as np

        _must_be_one(outputs)
        if outputs.ndim != 2 or labels.shape != outputs.shape[:1] or labels.dtype.kind not in "iu":
            found = f"{_sizes(outputs)} answers and {_sizes(labels)} labels of {labels.dtype.name}"
            raise InputError(f"evaluate: {found}: give classes for each row, and the integer of one of them as label")
        classes = outputs.shape[1]
        if labels.size and not (labels.min() >= 0 and labels.max() < classes):
            odd = next(int(each) for each in labels if not 0 <= each < classes)
            raise InputError(f"evaluate: the label {odd} is no class: the model gives {classes}, from 0 on")
        if classes <= most:
            raise InputError(f"evaluate: one of {classes} classes is always among the first {most}: write top1")
        own = outputs[np.arange(len(labels)), labels][:, None]
        is_before = (outputs > own) | ((outputs == own) & (np.arange(classes) < labels[:, None]))
        return np.asarray(is_before.sum(axis=1) < most)

    return right


def _mse(outputs: Any, labels: Values) -> Values:
    """outputs (rows, …) · labels (rows, …) → mean squared error (rows,)."""
    import numpy as np

    _must_be_one(outputs)
    if outputs.shape != labels.shape:
        raise InputError(f"evaluate: {_sizes(outputs)} answers and {_sizes(labels)} labels: give labels of that shape")
    error = outputs.astype(np.float64) - labels
    return np.asarray((error * error).reshape(len(labels), -1).mean(axis=1))


def _must_be_one(outputs: Any) -> None:
    if isinstance(outputs, dict):
        raise InputError(f"evaluate: the model gives {', '.join(outputs)}: write a metric package.module:callable")


SCORES: Mapping[str, Score] = {"top1": _top(1), "top5": _top(5), "mse": _mse}


def score_of(metric: str) -> Score:
    """What scores the answers of a call: one of the table, or a user's callable of outputs and labels."""
    return SCORES[metric] if metric in SCORES else cast("Score", resolved(metric))


# Figures.


def unscored(metric: str, figures: Collection[str]) -> str:
    """Why a metric does not give all of some figures, "" where it does: none gives both an error and a share."""
    if ERROR in figures and (len(figures) > 1 or metric in ("top1", "top5")):
        return "'max' is of a mean error, and a share of right answers takes 'min' and 'drop': remove one of them"
    if metric == "mse" and figures and ERROR not in figures:
        return "mse gives an error, and no share of right answers: write 'max'"
    return ""


def accuracy(answers: Evaluated) -> Measurement:
    """The share of right answers, as a pair of counts where each is right or wrong.

    Raises UnmeasurableError for a metric that gives other numbers than those from 0 to 1.
    """
    values = answers.values
    if values.min() < 0 or values.max() > 1:
        raise UnmeasurableError(
            f"an accuracy is made of numbers from 0 to 1, and the metric gives {values.min():g} to {values.max():g}: "
            "limit the error, with 'max'"
        )
    if not answers.is_right_or_wrong:
        return Measurement(nine_digits(answers.mean), "%")
    pair = int(values.sum()), len(values)
    return Measurement(Fraction(*pair), "%", unreduced=pair)


def drop(before: Evaluated, after: Evaluated) -> Measurement:
    """How much less of all answers is right after a change: the ends of a 95 % interval, on paired answers.

    The upper end is the value, and the lower one what is proved; a gain is a drop of 0. Raises UnmeasurableError for
    answers that are no right and wrong ones of the same data.
    """
    if not (before.is_right_or_wrong and after.is_right_or_wrong):
        raise UnmeasurableError("a drop is of right and wrong answers, and the metric gives other numbers: write 'min'")
    if len(before.values) != len(after.values):
        raise UnmeasurableError(f"{len(before.values)} answers before the change and {len(after.values)} after it")
    lost, gained = (int((one.values > other.values).sum()) for one, other in ((before, after), (after, before)))
    low, high = (max(0.0, end) for end in paired_interval(lost, gained, len(after.values)))
    parts = {"lost": lost, "gained": gained, "answers": len(after.values)}
    return Measurement(nine_digits(high), "%", parts=parts, at_least=nine_digits(low))


def paired_interval(lost: int, gained: int, answers: int) -> tuple[float, float]:
    """Tango's score interval, 95 %, of the difference of two shares of the same answers: (lost - gained) / answers.

    A difference is within where its score test keeps it: T(d) = (lost - gained - n·d) / sqrt(n·(2·q + d·(1 - d))),
    with q the likeliest share of gained ones under d. T falls with d, so each end is found by halving.
    T. Tango, Statistics in Medicine 17 (1998), 891-908.
    """
    n = answers

    def score(d: float) -> float:
        linear = (2 * n - lost + gained) * d - lost - gained
        likeliest = (sqrt(max(0.0, linear**2 + 8 * n * gained * d * (1 - d))) - linear) / (4 * n)
        variance = n * (2 * likeliest + d * (1 - d))
        rest = lost - gained - n * d
        return rest / sqrt(variance) if variance > 0 else copysign(inf, rest) if rest else 0.0

    def end(limit: float) -> float:
        low, high = -1.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if score(middle) > limit else (low, middle)
        return (low + high) / 2

    return end(DEVIATIONS), end(-DEVIATIONS)


def _never(costed: CostedGraph) -> Measurement:
    raise UnmeasurableError("answers are of a model that runs, and no graph has them")


EVALUATED = tuple(
    Metric(key, unit, about, _never, not_scoped="answers are the whole model's", stage=Stage.EVALUATED, also=also)
    for key, unit, about, also in (
        (ACCURACY, "%", "share of labelled data with a right answer", ("top1", "top5")),
        (DROP, "%", "how much less is right than before a transform, at most", ("drop",)),
        (ERROR, "", "mean error of the answers to labelled data", ("mse", "loss")),
    )
)
