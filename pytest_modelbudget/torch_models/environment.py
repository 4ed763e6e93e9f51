"""The settings that code of a model runs under: seeds, torch's defaults, operators as written, attributes replaced."""

import logging
import pickle
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy.random
import torch
import torch.backends.opt_einsum as opt_einsum

from pytest_modelbudget.torch_models import versions

SEEDABLE = "MT19937"  # the only generator of numpy that can be seeded again
States = Mapping[str, bytes]  # of each generator whose draws are no operators


ABSENT = object()


@contextmanager
def replaced(places: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Attributes, each by its owner, name and value, have these values in this context, and their own afterwards."""
    before = []
    try:
        for owner, name, value in places:
            before.append((owner, name, vars(owner).get(name, ABSENT)))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(before):
            if value is ABSENT:  # inherited, and found there again
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@contextmanager
def reproducible(seed: int = 0) -> Iterator[list[warnings.WarningMessage]]:
    """Run code of a model: torch, ``random`` and ``numpy.random`` start from the seed; yields its warnings.

    These stay silent, so that ``-W error`` makes no model unmeasurable. Random state is not restored here.
    """
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy.random.get_state(legacy=False)["bit_generator"] == SEEDABLE:
        numpy.random.seed(seed)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield warned


def generator_states() -> States:
    """Snapshots of Python's generator and numpy's, by name."""
    of_numpy = numpy.random.get_state(legacy=False)
    return {"random": pickle.dumps(random.getstate()), "numpy.random": pickle.dumps(of_numpy)}


def drawn_from(before: States) -> list[str]:
    """The names of the generators that something was drawn from since they had these states."""
    return [name for name, state in generator_states().items() if state != before[name]]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Tensors of this floating type are made in this context where none is said, as before afterwards."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def torch_as_it_starts() -> Iterator[None]:
    """Torch's own defaults for a model in a file: no autocast, no dispatch modes, float32 on the CPU."""
    without_autocast, on_cpu = torch.autocast("cpu", enabled=False), torch.device("cpu")
    with versions.disable_current_modes(), default_dtype(torch.float32), without_autocast, on_cpu:
        yield


@contextmanager
def under(grad: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """A pass under what autograd is to do; transforms that it leaves open end before that does, for they keep it."""
    with grad():
        then = versions.open_transforms()
        try:
            yield
        finally:
            versions.end_transforms(then)


@contextmanager
def silenced() -> Iterator[None]:
    """No log lines: a trace or file that fails is an answer here, not an incident.

    ``logging.disable`` would go through all loggers, of which torch has hundreds, twice.
    """
    with replaced([(logging.Logger, "handle", lambda logger, record: None)]):
        yield


class EagerMode(versions.TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's hook
    """A dispatch mode that sees every operator, without a guard against compiling around each: all of it runs eagerly.

    That guard is a call of torch's compiler for every operator, and loading it takes a second.
    """

    records = False  # whether it makes a graph of them, and knows all ways of a branch

    def __init__(self) -> None:  # torch gives no types
        super().__init__()  # type: ignore[no-untyped-call]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]


setattr(EagerMode, versions.GUARDED, classmethod(lambda cls: False))


# Made of products of matrices, which take a conjugated operand as it is; in inference mode torch copies it for them.
TAKE_CONJUGATES = ("matmul", "linear", "einsum", "tensordot", "inner", "linalg_multi_dot")


@contextmanager
def run_eagerly(calls: list[Any] | None) -> Iterator[None]:
    """Run compiled functions as they are written; each call of one is added to a list, if there is one.

    Torch compiles the bodies of its own ``cond`` or ``flex_attention`` so, too, by a backend that runs them as they are
    written.
    """
    if versions.COMPILER not in sys.modules:  # nothing is compiled, and loading it takes a second
        yield
        return
    eager, owner, name, chosen = versions.compiler_choice()

    def noted(compiler: Any) -> Any:
        if calls is not None and compiler not in (None, False) and not versions.is_in_own_compilation():
            calls.append(compiler)
        return chosen(compiler)

    is_seen = calls is not None or isinstance(eager, nullcontext)  # which leaves the choice to the function
    with eager, replaced([(owner, name, noted)] if is_seen else []):
        yield


def _swapped(put: Callable[[bool], bool]) -> Callable[[], bool]:
    """Return a getter for a switch whose setter alone tells the value before."""

    def get() -> bool:
        before = put(True)
        put(before)
        return before

    return get


def _setter(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return (lambda: getattr(owner, name)), (lambda value: setattr(owner, name, value))


deterministic: Any = torch.utils.deterministic
# How each is read and set, and its value in a pass. TorchScript's profiling executor alone runs what nobody reads.
SWITCHES: tuple[tuple[Callable[[], Any], Callable[[Any], Any], Any], ...] = (
    (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled, False),
    (*_setter(opt_einsum, "enabled"), False),
    *((_swapped(put), put, True) for put in versions.set_profiling),
)
# By the debug mode: ``torch.use_deterministic_algorithms`` imports torch's compiler.
OF_RUNS: tuple[tuple[Callable[[], Any], Callable[[Any], Any], Any], ...] = (
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, "warn"),
    (*_setter(deterministic, "fill_uninitialized_memory"), False),
)


@dataclass(frozen=True, slots=True)
class Noticed:
    """Compiled functions that a run has called, and warnings of a pass."""

    compiled: list[Any]
    warnings: list[warnings.WarningMessage]


@contextmanager
def pass_settings(*, is_run: bool) -> Iterator[Noticed]:
    """Seed 0, no logs, and operators as written: nothing compiled or fused, einsum from left to right.

    Conjugates are not copied first; a run takes deterministic algorithms where there are any.
    """
    switches = (*SWITCHES, *(OF_RUNS if is_run else ()))
    before = [get() for get, _, _ in switches]
    compiled: list[Any] = []
    try:
        for _, put, value in switches:
            put(value)
        eagerly, as_made = run_eagerly(compiled if is_run else None), versions.passed_on(TAKE_CONJUGATES, "Conjugate")
        with versions.optimised(True), as_made, reproducible() as warned, silenced(), eagerly:
            yield Noticed(compiled, warned)
    finally:
        for (_, put, _), value in zip(switches, before, strict=True):
            put(value)
