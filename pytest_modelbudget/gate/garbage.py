"""Python's garbage collection, which would walk every loaded framework, kept from what nobody frees."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """No garbage collection while a model is measured.

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
def loaded_for_good() -> Iterator[None]:
    """What is loaded inside stays as long as the process: collections pass it over, and all else that lives by then.

    Only for processes that are the gate's own, at their beginning: what lives there in a cycle is never freed.
    """
    gc.collect()  # what waits to be freed would stay, too
    with collection_paused():
        yield
        gc.freeze()
