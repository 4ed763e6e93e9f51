"""Random state is as before when a model ends; nothing else of the process is promised without torch."""

from __future__ import annotations

import random
from contextlib import suppress

import numpy as np

from pytest_modelbudget.gate.process_state import state_kept


def test_random_state_is_as_before() -> None:
    """Also after an exception."""
    before = random.getstate(), np.random.get_state()[1].tolist()
    with suppress(ValueError), state_kept():
        random.seed(9)
        np.random.seed(9)
        raise ValueError
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
