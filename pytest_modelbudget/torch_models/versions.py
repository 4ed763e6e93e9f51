"""Names of torch that are not its public API, or that a supported version lacks: each is asked for here, once."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator, OpOverload
from torch._ops import _compute_keyset as compute_keyset
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, UnsupportedOperatorException
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes
from torch.utils._python_dispatch import _get_current_dispatch_mode as current_mode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as current_modes

from pytest_modelbudget.errors import TransformError

__all__ = (
    "DispatchKey",
    "FakeTensor",
    "FakeTensorMode",
    "HigherOrderOperator",
    "OpOverload",
    "TorchDispatchMode",
    "UnsupportedOperatorException",
    "compute_keyset",
    "current_mode",
    "current_modes",
    "disable_current_modes",
    "is_traceable_wrapper_subclass",
    "pytree",
    "suggest_memory_format",
)
# Of a later torch than the lowest: "accelerator" stands for the others.
DEVICES: tuple[Any, ...] = (
    torch.cuda, torch.xpu, torch.mtia, torch.backends.mps, *filter(None, [getattr(torch, "accelerator", None)]),
)  # fmt: skip


def asks(function: Any, name: str) -> bool:
    """Whether a function of this torch has a parameter."""
    return name in signature(function).parameters


# Of a process in which two libraries replace one kernel, an older torch refuses the second.
OVERRIDES = {"allow_override": True} if asks(torch.library.Library.impl, "allow_override") else {}

# Without it no mode is called for torch.cond and its like, whose bodies would be 0 MACs.
SEES_BODIES = hasattr(TorchDispatchMode, "supports_higher_order_operators")


def lacks(what: str, lowest: str) -> str:
    """Why something is unknown here: "torch.cond needs torch ≥ 2.10; here is 2.6.0"."""
    return f"{what} needs torch ≥ {lowest}; here is {torch.__version__.partition('+')[0]}"


def compiler_choice() -> tuple[AbstractContextManager[Any], Any, str, Callable[[Any], Any]]:
    """How calls of what ``torch.compile`` made run as they are written: a context, and (module, name, function) in it.

    Each such call asks the function by that name which compiler to use. Before torch 2.6, which has stances, it is the
    setter of the compiler, and set to none.
    """
    from torch._dynamo import eval_frame  # takes seconds to load

    setters = ("_maybe_set_eval_frame", "set_eval_frame")
    name = next(name for name in ("_callback_from_stance", *setters) if hasattr(eval_frame, name))
    own: Any = getattr(eval_frame, name)
    if name in setters:
        return nullcontext(), eval_frame, name, lambda compiler: own(None)
    return torch.compiler.set_stance("force_eager"), eval_frame, name, own


@contextmanager
def compiled_alone(*, anew: bool) -> Iterator[None]:
    """Nothing falls back to how it is written. Raises TransformError where it may; anew, where nothing is compiled."""
    from torch._dynamo import config, utils

    if said := [name for name in ("disable", "suppress_errors") if getattr(config, name)]:
        raise TransformError(f"torch._dynamo.config.{said[0]} hides what is not compiled: set it to False")
    if anew:
        torch.compiler.reset()
    graphs, limit = utils.counters["stats"]["unique_graphs"], "fail_on_recompile_limit_hit"
    with config.patch({limit: True} if hasattr(config, limit) else {}):
        yield
    if anew and utils.counters["stats"]["unique_graphs"] == graphs:
        raise TransformError("torch compiled nothing: remove torch.compile, or what turns it off")


def is_in_own_compilation() -> bool:
    """Whether torch compiles a body of its own ``cond`` or ``flex_attention`` just now; an older one does not say."""
    from torch._higher_order_ops import utils

    return bool(getattr(utils, "_in_hop_compile", bool)())


def check_input_constraints(*graph_and_inputs: Any) -> None:
    """Raise AssertionError or RuntimeError for inputs outside of the ranges that an export has."""
    from torch._export.utils import _check_input_constraints_for_graph  # loads the compiler, in some versions

    _check_input_constraints_for_graph(*graph_and_inputs)


def module_of(program: torch.export.ExportedProgram) -> Any:
    """The module of an exported program, without its checks of inputs where this torch puts them in."""
    without = {"check_guards": False} if asks(program.module, "check_guards") else {}
    return program.module(**without)


def load_reader_of_programs() -> None:
    """Import what reads exported programs, and loads the compiler, which notes torch's functions, where they are."""
    with suppress(ModuleNotFoundError):  # before torch 2.8, where torch.export has it all
        import_module("torch.export.pt2_archive._package")
