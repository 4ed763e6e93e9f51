"""No downloads while a model is imported or built: a gate measures without weights, and never waits for a network."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pytest_modelbudget.errors import SourceError, behind
from pytest_modelbudget.torch_models.patching import replaced

HUB = "huggingface_hub"
ASKED = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")  # a user's own word, whatever it says


@contextmanager
def without_downloads() -> Iterator[None]:
    """The Hugging Face hub gives what is in its cache, as under HF_HUB_OFFLINE=1, unless the user has set that.

    The setting and not the variable: the hub reads that once, and would stay offline for what runs after the gate.
    Raises SourceError, with the way out, where something was asked for that is not there.
    """
    if any(name in os.environ for name in ASKED) or find_spec(HUB) is None:
        yield
        return
    constants: Any = import_module(f"{HUB}.constants")
    try:
        with replaced([(constants, "HF_HUB_OFFLINE", True)]):
            yield
    except SourceError as error:
        if not _asked_the_hub(error):
            raise
        way_out = "the gate downloads nothing: build it from a config, or set HF_HUB_OFFLINE=0"
        raise SourceError(f"{error}; {way_out}") from error.__cause__


def _asked_the_hub(error: BaseException) -> bool:
    """Whether an error of the hub's own stands behind this one."""
    return any(type(each).__module__.partition(".")[0] == HUB for each in behind(error))
