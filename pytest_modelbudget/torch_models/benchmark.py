"""Torch models on the clock: calls of the model alone, on a device, with nothing watching but the clock."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.benchmark import set_torch_threads, timer

from pytest_modelbudget.formats.benchmark import CALL, MODULE, PROFILED, MissingDeviceError, Plan, Processor, Timing
from pytest_modelbudget.graph.graph import UNKNOWN_LAYER
from pytest_modelbudget.torch_models.accelerators import CPU
from pytest_modelbudget.torch_models.environment import under
from pytest_modelbudget.torch_models.tracing import Subject
from pytest_modelbudget.torch_models.values import CallInputs
from pytest_modelbudget.torch_models.versions import memory_of
from pytest_modelbudget.torch_models.weights import ModuleTree, copied, module_tree, named_weights

Call = Callable[[], Any]
LOG_LEVEL, SILENT = "KINETO_LOG_LEVEL", "5"  # of torch's profiler, which else writes of devices that are not there


def time_calls(subject: Subject, inputs: CallInputs, plan: Plan) -> Timing:
    """Time the calls of a model that nothing else uses; on another device than the CPU, those of a copy there.

    The clock is that of torch.utils.benchmark, which waits for an accelerator. Raises MissingDeviceError.
    """
    device = _device(plan.device)
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    if device != CPU:  # with what it keeps in plain attributes, which ``to()`` leaves behind
        subject = subject.of_instance(copied(subject.model, onto=device))
    model = subject.model.to(device)
    call_on = subject.plain or (lambda inputs: (subject.method or model)(*inputs.args, **inputs.kwargs))
    there = inputs.each(lambda tensor: tensor.to(device))

    def call() -> Any:
        return call_on(there)

    with set_torch_threads(plan.threads), under(torch.inference_mode):
        for _ in range(plan.warmup):
            call()
        seconds = plan.timed(lambda: _seconds(call))
        peak = None
        if plan.memory:
            peak = _peak_on_cuda(call, device) - before if device.type == "cuda" else _peak_on_cpu(call, model, there)
        if plan.trace is not None:
            _write_trace(call, model, plan, plan.trace)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"the CPU ({platform.machine()})"
    return Timing(seconds, name, peak)


def _device(asked: Processor) -> torch.device:
    if asked is Processor.CUDA and not torch.cuda.is_available():
        raise MissingDeviceError("torch sees no CUDA device here")
    return torch.device(asked.value)


def _seconds(call: Call) -> float:
    began = timer()
    call()
    return float(timer() - began)


def _peak_on_cuda(call: Call, device: torch.device) -> int:
    """The most bytes that torch's allocator gave out at once during one call, and what it had given out before."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device))


def _peak_on_cpu(call: Call, model: nn.Module, inputs: CallInputs) -> int:
    """The same by torch's profiler, which sees each allocation of a call: weights and inputs lie there before."""
    with _profiled() as profiler:
        call()
    recorded: Any = profiler.profiler  # torch gives no types of its events
    events = (event for event in recorded.kineto_results.events() if event.name() == "[memory]")
    changes = sorted((int(event.start_ns()), int(event.nbytes())) for event in events)
    peak = max(accumulate((nbytes for _, nbytes in changes), initial=0))
    weights = (weight.tensor for weight in named_weights(module_tree(model)))
    return peak + _nbytes((*weights, *(tensor for _, tensor in inputs.tensors())))


def _nbytes(tensors: Iterable[torch.Tensor]) -> int:
    """The bytes of the memory that tensors lie in, each memory once."""
    return sum({memory_of(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}.values())


def _write_trace(call: Call, model: nn.Module, plan: Plan, path: Path) -> None:
    """Some more calls in torch's profiler, each with the modules that run in it, as far as Python calls these."""
    with _profiled() as profiler, _named(module_tree(model)):
        for _ in range(min(PROFILED, plan.repeats)):
            with record_function(CALL):
                call()
    profiler.export_chrome_trace(str(path))


@contextmanager
def _named(modules: ModuleTree) -> Iterator[None]:
    """Record each call of these modules in the profiler; scripts and graphs call their modules without Python."""
    paths, running = {id(module): path for path, module in modules}, list[record_function]()

    def begin(module: nn.Module, inputs: object) -> None:
        unknown = f".{UNKNOWN_LAYER}" if isinstance(module, (torch.jit.ScriptModule, fx.GraphModule)) else ""
        running.append(record_function(MODULE + (paths.get(id(module), "") + unknown).lstrip(".")))
        running[-1].__enter__()  # type: ignore[no-untyped-call]  # torch gives no types

    def end(module: nn.Module, inputs: object, outputs: object) -> None:
        running.pop().__exit__(None, None, None)

    hooks = (register_module_forward_pre_hook(begin), register_module_forward_hook(end, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _profiled() -> Iterator[profile]:
    """A profiler of everything that torch runs on, with every allocation."""
    known = os.environ.get(LOG_LEVEL)
    os.environ[LOG_LEVEL] = known or SILENT
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    try:
        with profile(activities=activities, profile_memory=True) as profiler:
            yield profiler
    finally:
        if known is None:
            os.environ.pop(LOG_LEVEL, None)
        else:
            os.environ[LOG_LEVEL] = known
