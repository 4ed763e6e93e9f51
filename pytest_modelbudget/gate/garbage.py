"""When garbage is collected: not while a model is measured or reported, nor over what frameworks bring."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """No garbage collection while a model is measured, or said in a report.

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


@contextmanager
def loaded_as_old() -> Iterator[None]:
    """What is loaded inside is marked as old, so that only a full collection walks it.

    A framework brings hundreds of thousands of objects, which each generation would walk once, and free none.
    """
    with collection_paused():
        yield
        if not gc.get_freeze_count():  # what somebody has frozen stays so
            gc.freeze()
            gc.unfreeze()
