"""The layer in which a model's run failed, out of the traceback: its path, and the shapes that it was given."""

import re
from types import TracebackType

import torch
from torch import nn

from pytest_modelbudget.errors import TraceError

CALL = nn.Module._call_impl.__code__  # what every call of a module goes through
# How layers say that they want one dimension more: BatchNorm2d, Conv2d and Linear, each in its own words.
LACKS_BATCH = (
    re.compile(r"expected (?P<wanted>\d)D.*got (?P<given>\d)D"),
    re.compile(r"Expected (?P<wanted>\d)D \(unbatched\)"),
)


def named_layer(failure: TraceError, model: nn.Module) -> TraceError:
    """A failure that names the innermost layer which was running, where there is one."""
    cause = failure.__cause__
    if cause is None or (found := _innermost(cause.__traceback__)) is None:
        return failure
    layer, inputs = found
    path = next((name for name, module in model.named_modules() if module is layer), "")
    if not path:
        return failure
    shapes = ", ".join("x".join(map(str, each.shape)) or "scalar" for each in inputs if isinstance(each, torch.Tensor))
    given = f", given {shapes}" if shapes else ""
    hint = ": is the first dimension, the batch, missing?" if _lacks_batch(str(cause)) else ""
    named = TraceError(f"{failure}, in the layer {path} ({type(layer).__name__}{given}){hint}")
    named.raised, named.__cause__ = failure.raised, cause
    return named


def _innermost(traceback: TracebackType | None) -> tuple[nn.Module, tuple[object, ...]] | None:
    """The last module that was called, and what it was called with."""
    found = None
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code is CALL:
            found = frame.f_locals["self"], frame.f_locals["args"]
        traceback = traceback.tb_next
    return found


def _lacks_batch(words: str) -> bool:
    """Whether a layer wants one dimension more than it was given."""
    for pattern in LACKS_BATCH:
        if match := pattern.search(words):
            counts = {key: int(value) for key, value in match.groupdict().items()}
            return counts.get("given", counts["wanted"] - 1) == counts["wanted"] - 1
    return False
