"""One tracer for every torch format: meta tensors first, then fake ones, then a real run."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from pytest_modelbudget.errors import IN_SCRIPT, TraceError, is_wordless, user_code
from pytest_modelbudget.formats.model import LoadedModel
from pytest_modelbudget.formats.source import InputSpecs, TensorSpec
from pytest_modelbudget.graph.graph import Graph, Weight
from pytest_modelbudget.graph.rewrite import with_storages
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.torch_models import versions
from pytest_modelbudget.torch_models.accelerators import NO_ANSWER, asks_for_one, default_on_cpu, without_accelerators
from pytest_modelbudget.torch_models.environment import (
    Noticed,
    drawn_from,
    generator_states,
    pass_settings,
    replaced,
    under,
)
from pytest_modelbudget.torch_models.escapes import AUTOCAST, CallsOfTorch, work_unseen
from pytest_modelbudget.torch_models.example_inputs import example_inputs
from pytest_modelbudget.torch_models.failing_layer import named_layer
from pytest_modelbudget.torch_models.late_weights import (
    further_parts,
    learnt,
    with_frozen_weights,
    with_saved,
    with_stored_parameters,
    without_made_parameters,
)
from pytest_modelbudget.torch_models.module_state import ModuleState, module_state_kept
from pytest_modelbudget.torch_models.outputs import returned_tensors
from pytest_modelbudget.torch_models.packed_weights import PackedWeights
from pytest_modelbudget.torch_models.recording import BeyondError, NeedsMemoryError, Recorder, Scopes, UnseenError
from pytest_modelbudget.torch_models.script_calls import ScriptCalls
from pytest_modelbudget.torch_models.values import CallInputs, Maker, TorchValues, call_inputs, drawn, empty
from pytest_modelbudget.torch_models.weights import (
    ModuleTree,
    NamedWeight,
    copied,
    have_own_classes,
    memoryless,
    module_tree,
    named_weights,
    registered,
    replace,
    saved_beside,
    tied_where_offloaded,
    twins_by_memory,
    weights_of,
)
from pytest_modelbudget.units import some_of

NO_RUN = "not run, for want of inputs: parameters that its forward pass makes are not counted"
NAMED = 2  # operators that a note names
NO_DLPACK = "Cannot pack tensors on meta"
UNSWAPPABLE = (
    "has weakref associated with it",
    "Couldn't swap",
)  # as torch refuses to swap tensors that are known by identity here
DRAWN = "integers of {} are drawn: if they say sizes or places, give their 'values'"
NO_CUDA = "CUDA is not available"
WAYS = ("meta", "fake", "real")
NameOf = Callable[[torch.Tensor], str]  # the weight whose memory a tensor is on, or ""
ScopeNow = Callable[[], str]  # the module that is running
Rewriting = Callable[[NameOf, ScopeNow], AbstractContextManager[Any]]  # replaces operations
Places = Iterable[tuple[Any, str, Any]]  # attributes, with what stands there
AUTOGRAD_COMPLAINTS = ("nference tensor", "does not require grad", "inference_mode", "_unwrap_for_grad")


@dataclass(frozen=True, slots=True)
class Subject:
    """What a torch format hands to the tracer.

    model owns the weights; run calls it, in eval mode. scopes makes the follower of its modules.
    real gives the same subject with true weights, for a run; of_instance gives one of another instance
    of the model. keeps_weights says that nothing can be put in the place of its weights; they have no
    memory, or are met by inputs without.
    stored_from_rank is the rank from which on a file counts its tensors as stored, 0 for modules.
    frozen are paths of its scripts whose weights have become constants of the program. plain calls it as fast
    as its user would, where that is not what calling the model does. method is what is called in place of the model.
    """

    format: str
    model: nn.Module
    run: Callable[[CallInputs, Scopes], Any]
    scopes: Callable[[TorchValues, ModuleTree], Scopes]
    real: Callable[[], Subject]
    of_instance: Callable[[Any], Subject]
    keeps_weights: bool = False
    stored_from_rank: int = 0
    frozen: tuple[str, ...] = ()
    plain: Callable[[CallInputs], Any] | None = None
    method: Callable[..., Any] | None = None

    def over(self, model: nn.Module) -> Subject:
        """The same over a model with true weights: a real run is one of a copy, and of nothing else.

        What ``real`` builds anew would be the model that this one was made from.
        """
        return dataclasses.replace(self.of_instance(model), real=lambda: self.over(copied(model)))


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way of running a forward pass to record it: "meta", "fake" or "real".

    dlpack says that values leave torch by ``to_dlpack``, of which torch tells without memory alone.
    """

    way: str
    subject: Subject
    specs: InputSpecs
    rules: OpTable
    dtype: torch.dtype | None
    grad: Callable[[], AbstractContextManager[Any]] = torch.inference_mode
    notes: tuple[str, ...] = ()
    rewriting: Rewriting | None = None
    dlpack: bool = False


def traced(
    subject: Subject,
    specs: InputSpecs,
    rules: OpTable,
    dtype: torch.dtype | None = None,
    *,
    ways: tuple[str, ...] = WAYS,
    rewriting: Rewriting | None = None,
    grad: Callable[[], AbstractContextManager[Any]] = torch.inference_mode,
) -> LoadedModel:
    """Record a forward pass, with as little computing as the model allows.

    grad says what autograd does meanwhile; rewriting makes a mode that replaces operations before
    they are recorded: the graph is then that of the rewritten model.

    Two ways that fail with the same words, raised at the same place, fail for the model's own
    reason, and that ends it; otherwise the next way is tried. Raises TraceError with the last
    failure.
    """
    failure: TraceError | None = None
    dlpack = False
    for way in ways:
        # Fake tensors stand neither for a script's weights, nor for those of a third party's classes.
        cannot_be_faked = subject.keeps_weights or have_own_classes(module_tree(subject.model))
        if way == "fake" and (isinstance(failure, NeedsMemoryError) or cannot_be_faked):
            continue
        attempt = Attempt(way, subject, specs, rules, dtype, grad, rewriting=rewriting, dlpack=dlpack)
        try:
            return _with_or_without_autograd(attempt, failure)
        except TraceError as error:
            dlpack |= NO_DLPACK in str(error.__cause__)
            if isinstance(error, (UnseenError, BeyondError)) or _is_the_models_own(error, failure):
                failure = error
                break
            failure = failure if str(error) == str(failure) else error  # the first knows the layer
    assert failure is not None
    if versions.is_unseen_jagged(failure):
        raise TraceError(versions.lacks("following jagged tensors", "2.15")) from failure
    failure = named_layer(failure, subject.model)
    integers = [f"'{name}'" for name, spec in specs.tensors() if "int" in spec.dtype and spec.values is None]
    way_out = NO_ANSWER if asks_for_one(failure.__cause__) else DRAWN.format(some_of(integers)) if integers else ""
    if way_out and failure.__cause__ is not None:
        failure.args = (f"{failure}; {way_out}",)
    if way_out or specs or subject.frozen:
        raise failure
    return stored_alone(subject, dtype, failure)


def stored_alone(subject: Subject, dtype: torch.dtype | None, failure: TraceError) -> LoadedModel:
    """What a module stores, of which no run is known, because it was given no inputs."""
    values, modules = TorchValues(), module_tree(subject.model)
    weights = tied_where_offloaded(modules)
    twins = memoryless(() if subject.keeps_weights else weights, dtype, "meta")
    stored = (*registered(weights, values, twins, subject.stored_from_rank), *PackedWeights(values).register(modules))
    stored = (*stored, *with_saved((), _saved_beside(subject, modules), values))
    offered = example_inputs(subject.model)
    way_out = f"give inputs {offered}, the model's own example" if offered else f"give inputs ({failure})"
    graph = Graph((), (), (), stored, operations_unknown=f"no inputs are given: {way_out}")
    return LoadedModel(graph, subject.format, notes=(NO_RUN,), offered=offered)


def _with_or_without_autograd(attempt: Attempt, before: TraceError | None) -> LoadedModel:
    """The model by this way; before is why an earlier one failed."""
    if attempt.way == "real":
        _must_fit(attempt.subject, before)
        attempt = dataclasses.replace(attempt, subject=attempt.subject.real())
    try:
        return _recorded(attempt)
    except TraceError as error:
        if not wants_autograd(error) or attempt.grad is not torch.inference_mode:
            raise
        note = "recorded under no_grad: the forward pass calls autograd"
        return _recorded(dataclasses.replace(attempt, grad=torch.no_grad, notes=(note,)))


def wants_autograd(error: TraceError) -> bool:
    """Whether a pass failed for what inference mode does not allow."""
    return any(words in str(error.__cause__) for words in AUTOGRAD_COMPLAINTS)


def _is_the_models_own(error: TraceError, before: TraceError | None) -> bool:
    """Whether a failure would come back in a run: the same words, not for want of a kernel."""
    cause = error.__cause__
    # A kernel that neither meta nor fake tensors have is missing alike in both; a run has it.
    lacks_kernel = isinstance(cause, (NotImplementedError, versions.UnsupportedOperatorException))
    lacks_kernel |= "no fake impl" in str(cause)  # as custom operators say it
    lacks_kernel |= any(words in str(cause) for words in UNSWAPPABLE)
    lacks_kernel |= str(cause).startswith(IN_SCRIPT)  # which has neither the type of what failed, nor its words
    return before is not None and str(error) == str(before) and not lacks_kernel


def _must_fit(subject: Subject, before: TraceError | None) -> None:
    """A real run needs the weights in memory; one that cannot have them is refused, for what before failed for."""
    needed = sum(
        weight.tensor.numel() * weight.tensor.dtype.itemsize for weight in named_weights(module_tree(subject.model))
    )
    if not hasattr(os, "sysconf"):
        return  # a system that does not tell how much memory it has
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory // 2:
        reason = f"{named_layer(before, subject.model)}, so " if before else ""
        refusal = TraceError(
            f"{reason}the model must run, but its weights take {needed:,} B, more than half of the {memory:,} B of "
            "memory here: measure it where there is more, or a smaller one of its kind"
        )
        if before:
            refusal.raised = before.raised
        raise refusal


def _recorded(attempt: Attempt) -> LoadedModel:
    """The model as one forward pass shows it: the second, where torch had a tensor to make for the first alone."""
    had_dummy, was_made = versions.jagged_dummy() is not None, False
    try:
        loaded = _recorded_once(attempt)
    finally:
        was_made = versions.jagged_dummy_made_apart(had_dummy)
    return _recorded_once(attempt) if was_made else loaded


def _recorded_once(attempt: Attempt) -> LoadedModel:
    """The model as one forward pass shows it; everything it touched is as before afterwards."""
    subject, values, way = attempt.subject, TorchValues(), attempt.way
    modules = module_tree(subject.model)
    packed, scopes = PackedWeights(values), subject.scopes(values, modules)
    weights, beside = tuple(named_weights(modules)), _saved_beside(subject, modules)
    recorder = Recorder(
        attempt.rules, values, packed, scopes, way=way, is_script=subject.keeps_weights, modules=modules
    )
    if way == "meta" and torch.is_autocast_enabled("cpu"):
        raise TraceError(AUTOCAST)
    stage = _stage(way, () if subject.keeps_weights else weights, attempt.dtype)
    stored = (*registered(weights, values, stage.twins, subject.stored_from_rank), *packed.register(modules))
    if stage.twins and attempt.dtype is None and not subject.stored_from_rank:  # files keep attributes apart
        values.lend(partial(twins_by_memory, weights, stage.twins))
    inputs = call_inputs(attempt.specs, stage.make)
    given = tuple(values.value(t, name=f"input.{n}") for n, t in inputs.tensors())
    calls = CallsOfTorch(recorder, values, way)
    modes = [stage.mode, calls, recorder]
    if attempt.rewriting is not None:  # above the recorder, which sees what it puts in place
        modes.append(attempt.rewriting(values.weight_name, lambda: scopes.scope_of(())))
    scripts = ScriptCalls(have_memory=way == "real", note_list=recorder.leave_script)
    with calling(modules, scopes, attempt.grad, modes, scripts, work_unseen(recorder, calls)) as (state, noticed):
        replace(modules, stage.twins, state.again)
        before = generator_states()
        result = _pass(subject, inputs, scopes, recorder)
        recorder.ended()
        draws = drawn_from(before)
        returned = tuple(map(recorder.known, returned_tensors(result)))
        grown = module_tree(subject.model) if recorder.made else ()
        kept = tuple(filter(None, map(values.known, weights_of(grown))))
    if attempt.dlpack:
        recorder.leave_script("to_dlpack")
    ops, forks = tuple(recorder.ops), tuple(recorder.forks)
    constants = (*recorder.constants, *further_parts(recorder.constants, ops, returned, forks))
    rank = subject.stored_from_rank or sys.maxsize  # of the program's own tensors, which a file stores too
    of_program = (Weight(each, persistent=rank <= len(each.shape)) for each in constants)
    stored = (*stored, *with_saved(of_program, beside, values))
    graph = with_storages(Graph(ops, given, returned, stored, forks=forks), learnt(beside, values))
    if recorder.made:
        graph = with_stored_parameters(graph, recorder.made)
        graph = without_made_parameters(graph, recorder.made, kept)
    if subject.frozen:
        graph = with_frozen_weights(graph, attempt.rules, subject.frozen)
    notes = (*attempt.notes, *dict.fromkeys(recorder.notes), *_notes(way, recorder, draws, state, noticed))
    return LoadedModel(graph, subject.format, way, tuple(scopes.calls), notes)


@contextmanager
def calling(
    modules: ModuleTree,
    scopes: Scopes,
    grad: Callable[[], AbstractContextManager[Any]],
    modes: Iterable[AbstractContextManager[Any]],
    scripts: ScriptCalls | None = None,
    others: Places = (),
    *,
    is_run: bool = False,
) -> Iterator[tuple[ModuleState, Noticed]]:
    """The context of one pass: the model's state is kept, and torch runs as written, on the CPU, under these modes.

    modes are entered in their order, the innermost last; others are further attributes that are replaced. is_run says
    that buffers have their values again afterwards.
    """
    spread: Places = ((module, "device_ids", []) for _, module in modules if isinstance(module, nn.DataParallel))
    scripts = scripts or ScriptCalls(have_memory=True, note_list=lambda: None)
    places = (*scopes.replacements(), *scripts.replacements(), *without_accelerators(), *spread, *others)
    with (
        module_state_kept(modules, with_values=is_run) as state,
        pass_settings(is_run=is_run) as noticed,
        user_code("running the model", TraceError),
        under(grad),
        replaced(places),
        ExitStack() as stack,
    ):
        for mode in (default_on_cpu(), *modes):
            stack.enter_context(mode)
        yield state, noticed


def _pass(subject: Subject, inputs: CallInputs, scopes: Scopes, recorder: Recorder) -> Any:
    """What the model gives; what an operator raised, too, of which the interpreter of TorchScript keeps no word."""
    try:
        return subject.run(inputs, scopes)
    except RuntimeError as error:
        if recorder.raised is None or not is_wordless(error):
            raise
        # Where the interpreter was called names the layer.
        raise recorder.raised.with_traceback(error.__traceback__) from recorder.raised.__cause__ or error


def _notes(way: str, recorder: Recorder, draws: Sequence[str], state: ModuleState, noticed: Noticed) -> Iterator[str]:
    """What a reader must know: another pass may cost more, which has other inputs, draws or state."""
    if any(str(each.message).startswith(NO_CUDA) for each in noticed.warnings):  # torch sees no device
        yield "torch.autocast of cuda casts nothing here: counted as in a run on a CPU"
    decisions = some_of(recorder.decisions, NAMED)
    if way == "real" and not decisions:
        yield "counted in a run on one drawn input, seed 0"
    elif way == "real":
        yield (
            f"data decide the path of this model ({decisions}): "
            "counted on one drawn input, seed 0; another may cost more"
        )
    elif decisions and recorder.has_drawn:
        draws = (*draws, "torch.default_generator")
    if draws:
        named = ", ".join(draws)
        yield f"the forward pass draws from {named}: counted on one draw, seed 0; another may cost more"
    if state.changed:
        names = some_of(state.changed, NAMED)
        yield f"the forward pass changes {names}: counted on its first call; a later one may cost more"


def _saved_beside(subject: Subject, modules: ModuleTree) -> Mapping[str, torch.Tensor]:
    """What a module saves in addition to its weights; of a file all is known."""
    return {} if subject.keeps_weights or subject.stored_from_rank else saved_beside(modules)


@dataclass(frozen=True, slots=True)
class Stage:
    """What a forward pass runs on: stand-ins for the weights, inputs, and a mode around it."""

    twins: Mapping[int, torch.Tensor]
    make: Maker
    mode: AbstractContextManager[Any]


def _stage(way: str, weights: tuple[NamedWeight, ...], dtype: torch.dtype | None) -> Stage:
    """Stand-ins for these weights, and what the forward pass runs on with them."""
    if way == "real":
        generator = torch.Generator().manual_seed(0)
        return Stage({}, lambda spec: drawn(spec, generator), nullcontext())
    if way == "fake":
        mode = versions.fake_mode()
        with mode:
            twins = memoryless(weights, dtype, "cpu")

        def make(spec: TensorSpec) -> torch.Tensor:
            with mode:
                return empty(spec, "cpu")

        return Stage(twins, make, mode)
    return Stage(memoryless(weights, dtype, "meta"), lambda spec: empty(spec, "meta"), nullcontext())
