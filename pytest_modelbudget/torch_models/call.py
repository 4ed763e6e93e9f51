"""One call of a model's forward pass: all that tracing and running enter around it, in one order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from torch import nn

from pytest_modelbudget.errors import TraceError, user_code
from pytest_modelbudget.torch_models.accelerators import default_on_cpu, without_accelerators
from pytest_modelbudget.torch_models.environment import Noticed, pass_settings, replaced, under
from pytest_modelbudget.torch_models.module_state import ModuleState, module_state_kept
from pytest_modelbudget.torch_models.recording import Scopes
from pytest_modelbudget.torch_models.script_calls import ScriptCalls
from pytest_modelbudget.torch_models.weights import ModuleTree

Places = Iterable[tuple[Any, str, Any]]  # attributes, with what stands there


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
