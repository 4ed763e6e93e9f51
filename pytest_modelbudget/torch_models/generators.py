"""The generators of random numbers that a process has: a model draws from a seed, and they are as before afterwards."""

import pickle
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy.random
import torch

OF_NUMPY = "MT19937"  # the only kind that can be seeded again
States = Mapping[str, bytes]  # of each generator whose draws are no operators


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, torch, ``random`` and ``numpy.random`` start from the seed."""
    of_torch, of_python, of_numpy = torch.get_rng_state(), random.getstate(), _numpy_state()
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if of_numpy["bit_generator"] == OF_NUMPY:
        numpy.random.seed(seed)
    try:
        yield
    finally:
        numpy.random.set_state(of_numpy)
        random.setstate(of_python)
        torch.set_rng_state(of_torch)


def states() -> States:
    """Of Python's generator and numpy's, by their names."""
    return {"random": pickle.dumps(random.getstate()), "numpy.random": pickle.dumps(_numpy_state())}


def drawn_from(before: States) -> list[str]:
    """The names of those that something was drawn from since they had these states."""
    return [name for name, state in states().items() if state != before[name]]


def _numpy_state() -> Any:
    return numpy.random.get_state(legacy=False)
