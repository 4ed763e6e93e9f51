"""The state of the process around measuring: random generators and torch's defaults are kept, and garbage waits."""

import gc
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def state_kept() -> Iterator[None]:
    """Random state (random, numpy, torch), grad mode, default type and default device are as before afterwards.

    Whatever else a model's code changes in the process stays: a model that is not trusted with that has one of its own.
    """
    numpy_random, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    of_python = random.getstate()
    of_numpy = numpy_random.get_state(legacy=False) if numpy_random else None
    if torch is not None:
        of_torch, grad = torch.get_rng_state(), torch.is_grad_enabled()
        dtype, device = torch.get_default_dtype(), torch.get_default_device()
    try:
        yield
    finally:
        random.setstate(of_python)
        if numpy_random:
            numpy_random.set_state(of_numpy)
        if torch is not None:
            torch.set_rng_state(of_torch)
            torch.set_grad_enabled(grad)
            torch.set_default_dtype(dtype)
            if torch.get_default_device() != device:
                torch.set_default_device(None if device.type == "cpu" else device)


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause garbage collection.

    A graph is thousands of small objects, all freed at the end by counting references; a
    collection between would walk every loaded framework for nothing (0.2 s each with torch).
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
