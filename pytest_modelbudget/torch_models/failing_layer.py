"""The layer in which a model's run failed, out of the traceback: its path, what it was given, and what it takes."""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

import torch
from torch import nn

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.torch_models.versions import CALL
from pytest_modelbudget.torch_models.weights import CONVOLUTIONS

CODE_OF_CALLS = getattr(nn.Module, CALL).__code__
# How layers say that they want one dimension more: BatchNorm2d, Conv2d and Linear, each in its own words.
LACKS_BATCH = (
    re.compile(r"expected (?P<wanted>\d)D.*got (?P<given>\d)D"),
    re.compile(r"Expected (?P<wanted>\d)D \(unbatched\)"),
)


def named_layer(failure: TraceError, model: nn.Module) -> TraceError:
    """A failure that names the innermost layer which was running, where there is one, and what it takes otherwise."""
    cause = failure.__cause__
    calls = list(_calls(cause.__traceback__)) if cause else []
    if not calls:
        return failure
    layer, inputs = calls[-1]
    text = str(failure)
    name = getattr(inspect.unwrap(layer.forward), "__qualname__", "")
    was_refused = isinstance(cause, TypeError) and name and str(cause).startswith(f"{name}() ")
    if was_refused and (takes := what_it_takes(layer.forward)):
        text += f": {takes}"
    if (
        isinstance(cause, AttributeError)
        and str(cause).startswith("'dict' object ")
        and any(isinstance(each, dict) for each in inputs)
    ):
        text += ": the input {call: module:Class, kwargs: {…}} is an object of that class"
    if path := next((name for name, module in model.named_modules() if module is layer), ""):
        shapes = ", ".join("x".join(map(str, shape)) or "scalar" for shape in _shapes(inputs))
        given = f", given {shapes}" if shapes else ""
        lacks_batch = _lacks_batch(str(cause)) or _is_one_sample(_shapes(calls[0][1]), model)
        hint = ": is the first dimension, the batch, missing?" if lacks_batch else ""
        text += f", in the layer {path} ({type(layer).__name__}{given}){hint}"
    if "argument #1 'indices'" in str(cause):
        text += ': write the type of the input, as in --input "int64 1x128"'
    named = TraceError(text)
    named.raised, named.__cause__ = failure.raised, cause
    return named


PLAIN = (str, bytes, bool, int, float, type(None))
LONGEST = 40  # characters of a default that is written out


def what_it_takes(named: Callable[..., object]) -> str:
    """The parameters of a callable, as "it takes (x, scale=1)"; "" of something built in, which does not tell."""
    try:
        parameters = inspect.signature(named).parameters.values()
    except (TypeError, ValueError):
        return ""
    return f"it takes ({', '.join(map(_parameter, parameters)) or 'nothing'})"


def _parameter(parameter: inspect.Parameter) -> str:
    """Its name, and a default that is plain and short; another is "…", since what it prints may differ in each run."""
    default = parameter.default
    if default is parameter.empty or (isinstance(default, PLAIN) and len(repr(default)) <= LONGEST):
        return str(parameter)
    return f"{parameter.replace(default=parameter.empty)}=…"


def _calls(traceback: TracebackType | None) -> Iterator[tuple[nn.Module, tuple[object, ...]]]:
    """The modules that were running, outermost first, each with what it was called with."""
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code is CODE_OF_CALLS:
            yield frame.f_locals["self"], (*frame.f_locals["args"], *frame.f_locals["kwargs"].values())
        traceback = traceback.tb_next


def _shapes(inputs: Sequence[object]) -> list[torch.Size]:
    return [each.shape for each in inputs if isinstance(each, torch.Tensor)]


def _lacks_batch(words: str) -> bool:
    """Whether a layer wants one dimension more than it was given."""
    for pattern in LACKS_BATCH:
        if match := pattern.search(words):
            counts = {key: int(value) for key, value in match.groupdict().items()}
            return counts.get("given", counts["wanted"] - 1) == counts["wanted"] - 1
    return False


def _is_one_sample(shapes: Sequence[torch.Size], model: nn.Module) -> bool:
    """Whether the first input is (channels, size ...) to the first convolution: torch runs that, and fails below."""
    first = next((module for module in model.modules() if isinstance(module, CONVOLUTIONS)), None)
    if first is None or not shapes:
        return False
    return len(shapes[0]) == 1 + len(first.kernel_size) and shapes[0][0] == first.in_channels
