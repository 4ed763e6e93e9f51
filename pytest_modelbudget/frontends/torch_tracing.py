"""One tracer for every torch format: meta tensors first, then fake ones, then a real run."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

import torch
import torch.backends.opt_einsum as opt_einsum
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.frontends.loaded_model import LayerCall, LoadedModel
from pytest_modelbudget.frontends.model_source import InputSpecs, TensorSpec
from pytest_modelbudget.frontends.torch_building import untouched_globals
from pytest_modelbudget.frontends.torch_inputs import CallInputs, Maker, call_inputs, drawn, empty
from pytest_modelbudget.frontends.torch_packed import PackedWeights
from pytest_modelbudget.frontends.torch_recording import Recorder
from pytest_modelbudget.frontends.torch_values import TorchValues
from pytest_modelbudget.frontends.torch_weights import (
    NamedWeight,
    memoryless,
    module_state_kept,
    named_weights,
    registered,
    replace,
)
from pytest_modelbudget.frontends.user_code import user_code
from pytest_modelbudget.ir.graph import Graph, Operand, Weight
from pytest_modelbudget.ops.op_table import OpTable

WAYS = ("meta", "fake", "real")
AUTOGRAD_COMPLAINTS = ("nference tensor", "does not require grad", "inference_mode")


class WatchedScopes(Protocol):
    """Scopes of operators, followed while a trace runs."""

    calls: list[LayerCall]

    def scope_of(self, operands: tuple[Operand, ...]) -> str:
        """Path of the module that calls an operator on these operands."""

    def watching(self) -> AbstractContextManager[None]:
        """Follow the modules that run."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a torch format hands to the tracer.

    model owns the weights; run calls it, in eval mode. scopes makes the follower of its modules.
    real gives the same subject with true weights, for a run. on_meta says that its weights have
    no memory already, or may stay where they are, so that nothing is put in their place.
    stored_from_rank is the rank from which on a file counts its tensors as stored, 0 for modules.
    """

    format: str
    model: nn.Module
    run: Callable[[CallInputs, WatchedScopes], Any]
    scopes: Callable[[TorchValues], WatchedScopes]
    real: Callable[[], Subject]
    on_meta: bool = False
    stored_from_rank: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way of running a forward pass to record it."""

    traced: str  # "meta", "fake" or "real"
    grad: Callable[[], AbstractContextManager[Any]] = torch.inference_mode
    note: str = ""


def traced(
    subject: Subject,
    specs: InputSpecs,
    rules: OpTable,
    dtype: torch.dtype | None = None,
    *,
    ways: tuple[str, ...] = WAYS,
) -> LoadedModel:
    """Record a forward pass, with as little computing as the model allows.

    Two ways that fail with the same words fail for the model's own reason, and that ends it;
    otherwise the next way is tried. Raises TraceError with the last failure.
    """
    failure: TraceError | None = None
    for name in ways:
        if name == "fake" and subject.on_meta:
            continue  # a script module's weights cannot be replaced by fake ones
        try:
            return _with_or_without_autograd(Attempt(name), subject, specs, rules, dtype)
        except TraceError as error:
            if failure is not None and str(error) == str(failure):
                break
            failure = error
    assert failure is not None
    if not specs:
        raise TraceError(f"{failure}; no inputs are given: write 'inputs:'") from failure
    raise failure


def _with_or_without_autograd(
    attempt: Attempt,
    subject: Subject,
    specs: InputSpecs,
    rules: OpTable,
    dtype: torch.dtype | None,
) -> LoadedModel:
    if attempt.traced == "real":
        _must_fit(subject)
        subject = subject.real()
    try:
        return _recorded(attempt, subject, specs, rules, dtype)
    except TraceError as error:
        if not any(words in str(error.__cause__) for words in AUTOGRAD_COMPLAINTS):
            raise
        note = "recorded under no_grad: the forward pass calls autograd"
        under_no_grad = Attempt(attempt.traced, torch.no_grad, note)
        return _recorded(under_no_grad, subject, specs, rules, dtype)


def _must_fit(subject: Subject) -> None:
    """A real run needs the weights in memory; one that cannot have them is refused."""
    needed = sum(
        weight.tensor.numel() * weight.tensor.dtype.itemsize
        for weight in named_weights(subject.model)
    )
    if not hasattr(os, "sysconf"):
        return  # a system that does not tell how much memory it has
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory // 2:
        raise TraceError(
            f"data decides the shapes of this model, so it must run, but its weights take "
            f"{needed:,} B of {memory:,} B memory"
        )


def _recorded(
    attempt: Attempt,
    subject: Subject,
    specs: InputSpecs,
    rules: OpTable,
    dtype: torch.dtype | None,
) -> LoadedModel:
    weights = tuple(named_weights(subject.model))
    values = TorchValues()
    packed = PackedWeights(values)
    scopes = subject.scopes(values)
    recorder = Recorder(rules, values, packed, scopes, on_meta=attempt.traced == "meta")
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(untouched_globals())
        enter(module_state_kept(subject.model))
        enter(exact_operators())
        stage = _stage(attempt.traced, () if subject.on_meta else weights, dtype)
        stored = (
            *registered(weights, values, stage.twins, subject.stored_from_rank),
            *packed.register(subject.model),
        )
        inputs = call_inputs(specs, stage.make)
        graph_inputs = tuple(values.value(t, name=_named(n)) for n, t in inputs.tensors())
        enter(user_code("running the model", TraceError))
        replace(subject.model, stage.twins)
        enter(silenced("torch._subclasses.fake_tensor"))
        enter(stage.mode)
        enter(attempt.grad())
        enter(scopes.watching())
        enter(recorder)
        result = subject.run(inputs, scopes)
    outputs = tuple(recorder.known(tensor) for tensor in output_tensors(result))
    in_file = subject.stored_from_rank > 0
    constants = tuple(Weight(c, persistent=in_file and bool(c.shape)) for c in recorder.constants)
    return LoadedModel(
        Graph(tuple(recorder.ops), graph_inputs, outputs, (*stored, *constants)),
        subject.format,
        attempt.traced,
        tuple(scopes.calls),
        (attempt.note,) if attempt.note else (),
    )


@dataclass(frozen=True, slots=True)
class Stage:
    """What a forward pass runs on: stand-ins for the weights, inputs, and a mode around it."""

    twins: Mapping[int, torch.Tensor]
    make: Maker
    mode: AbstractContextManager[Any]


def _stage(traced: str, weights: tuple[NamedWeight, ...], dtype: torch.dtype | None) -> Stage:
    """Stand-ins for these weights, and what the forward pass runs on with them."""
    if traced == "real":
        generator = torch.Generator().manual_seed(0)
        return Stage({}, lambda spec: drawn(spec, generator), nullcontext())
    if traced == "fake":
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        with mode:
            twins = memoryless(weights, dtype, "cpu")

        def make(spec: TensorSpec) -> torch.Tensor:
            with mode:
                return empty(spec, "cpu")

        return Stage(twins, make, mode)
    return Stage(
        memoryless(weights, dtype, "meta"), lambda spec: empty(spec, "meta"), nullcontext()
    )


@contextmanager
def silenced(logger_name: str) -> Iterator[None]:
    """No log lines: a failing fake trace is an answer here, not an incident."""
    logger = logging.getLogger(logger_name)
    was = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = was


@contextmanager
def exact_operators() -> Iterator[None]:
    """Operators run as written: no fused attention fast path, einsum from left to right."""
    fast_path, reordering = torch.backends.mha.get_fastpath_enabled(), opt_einsum.enabled
    torch.backends.mha.set_fastpath_enabled(False)
    opt_einsum.enabled = False
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        opt_einsum.enabled = reordering


def _named(name: str) -> Callable[[], str]:
    return lambda: f"input.{name}"


def output_tensors(result: Any) -> Iterator[torch.Tensor]:
    """Every tensor a caller gets: in lists, mappings, dataclasses and attributes of objects."""
    seen: set[int] = set()

    def found(value: Any) -> Iterator[torch.Tensor]:
        if isinstance(value, torch.Tensor):
            yield value
            return
        if value is None or isinstance(value, (str, bytes, int, float, type)) or id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, Mapping):
            parts = list(value.values())
        elif isinstance(value, (list, tuple, set, frozenset)):
            parts = list(value)
        elif is_dataclass(value):
            parts = [getattr(value, field.name) for field in fields(value)]
        else:
            parts = list(getattr(value, "__dict__", {}).values())
        for part in parts:
            yield from found(part)

    yield from found(result)
