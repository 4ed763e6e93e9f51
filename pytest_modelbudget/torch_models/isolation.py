"""Guards around foreign torch code: what it may change is as before when it ends."""

import logging
import os
import random
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.backends.opt_einsum as opt_einsum
from torch import nn

from pytest_modelbudget.torch_models.weights import CONTAINERS, CONTENTLESS, ModuleTree


@contextmanager
def untouched_globals(seed: int = 0) -> Iterator[None]:
    """Random generators, default type, grad mode and folder are as before afterwards.

    Inside, torch and ``random`` start from ``seed``, so that a build or run always draws the
    same; and a model's warnings stay silent, so that ``-W error`` does not make a model
    unmeasurable.
    """
    torch_state, random_state = torch.get_rng_state(), random.getstate()
    numpy_random = sys.modules.get("numpy.random")
    numpy_state = numpy_random.get_state() if numpy_random else None
    default_dtype, grad, folder = torch.get_default_dtype(), torch.is_grad_enabled(), Path.cwd()
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.chdir(folder)
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(default_dtype)
        if numpy_random:
            numpy_random.set_state(numpy_state)
        random.setstate(random_state)
        torch.set_rng_state(torch_state)


@contextmanager
def module_state_kept(modules: ModuleTree) -> Iterator[None]:
    """Attributes, flags, parameters, buffers and hooks of every module are as before afterwards.

    A forward pass may set any of them: a cache, a counter, a weight that a hook computes. Tensors
    that are mere attributes are lent as copies, because it may also write into them.
    """
    kept = []
    for _, module in modules:
        attributes = vars(module)
        filled, empty = containers(attributes)
        kept.append((attributes, attributes.copy(), [(e, e.copy()) for e in filled], empty))
        for name, value in attributes.items():
            if type(value) not in CONTENTLESS and isinstance(value, torch.Tensor):
                attributes[name] = value.clone()
    try:
        yield
    finally:
        for attributes, before, content, empty in kept:
            for container in empty:
                if container:
                    container.clear()
            for container, items in content:
                _restore(container, items)
            _restore(attributes, before)


def _renormed(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The table of an embedding with ``max_norm``, which shortens the rows that a run reads."""
    if not isinstance(module, torch.jit.ScriptModule) and getattr(module, "max_norm", None) is not None:
        yield from ((name, table.detach()) for name, table in module._parameters.items() if table is not None)


@contextmanager
def buffer_values_kept(modules: ModuleTree) -> Iterator[None]:
    """Buffers have the values and memory that they had, also where a run writes into them.

    Which tensors a module holds is left to ``module_state_kept``, but for TorchScript, whose
    buffers are no Python attributes.
    """
    kept = [
        (module, name, buffer, buffer.detach(), buffer.clone())
        for _, module in modules
        for name, buffer in (*module._buffers.items(), *_renormed(module))
        if buffer is not None and _can_be_written(buffer)
    ]
    try:
        yield
    finally:
        with torch.inference_mode():  # where inference tensors may be written, too
            for module, name, buffer, memory, before in kept:
                if not torch.equal(memory, before):
                    memory.copy_(before)
                if buffer.data_ptr() != memory.data_ptr() or buffer.shape != memory.shape:
                    buffer.data = memory  # given other memory through the same attribute
                is_script = isinstance(module, torch.jit.ScriptModule)
                if is_script and module._buffers[name] is not buffer:
                    setattr(module, name, buffer)


def _can_be_written(buffer: torch.Tensor) -> bool:
    """Whether this is plain memory, each element on its own; torch writes into no expanded one."""
    if type(buffer) is not torch.Tensor or buffer.layout is not torch.strided:
        return False
    return all(step or size < 2 for size, step in zip(buffer.shape, buffer.stride(), strict=True))


def containers(attributes: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Filled and empty dicts, lists and sets among these values, nested ones too, each once."""
    filled: dict[int, Any] = {}
    empty: list[Any] = []
    waiting: list[Any] = [attributes]
    while waiting:
        within = waiting.pop()
        for value in within.values() if isinstance(within, dict) else within:
            if type(value) in CONTENTLESS or not isinstance(value, CONTAINERS):
                continue
            if not value:
                empty.append(value)
            elif id(value) not in filled:
                filled[id(value)] = value
                waiting.append(value)
    return list(filled.values()), empty


def _restore(container: Any, items: Any) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(items)
    else:
        container.update(items)


@contextmanager
def silenced() -> Iterator[None]:
    """No log lines: a trace or file that fails is an answer here, not an incident."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def exact_operators() -> Iterator[None]:
    """Operators run as written: nothing compiled or fused, einsum from left to right."""
    fast_path, reordering = torch.backends.mha.get_fastpath_enabled(), opt_einsum.enabled
    torch.backends.mha.set_fastpath_enabled(False)
    opt_einsum.enabled = False
    # What was never loaded compiled nothing, and takes a second to load.
    is_compiling = "torch._dynamo" in sys.modules
    eager = torch.compiler.set_stance("force_eager") if is_compiling else nullcontext()
    try:
        with eager:
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        opt_einsum.enabled = reordering


@contextmanager
def deterministic() -> Iterator[None]:
    """Deterministic algorithms where there are any, as before afterwards.

    By the debug mode: ``torch.use_deterministic_algorithms`` imports torch's compiler.
    """
    mode = torch.get_deterministic_debug_mode()
    filling = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.utils.deterministic.fill_uninitialized_memory = filling  # type: ignore[attr-defined]
