"""Names of torch that are not its public API, or that a supported version lacks: each is asked for here, once."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from inspect import signature
from operator import attrgetter, methodcaller
from traceback import walk_tb
from typing import Any

import torch
from torch import DispatchKey
from torch._ops import HigherOrderOperator, OpOverload
from torch._ops import _compute_keyset as compute_keyset
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, UnsupportedOperatorException
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as current_modes

from pytest_modelbudget.errors import TransformError

# Torch gives no types for these.
C: Any = torch._C
functorch: Any = C._functorch
JAGGED = "torch.nested._internal.nested_tensor"  # takes seconds to load
COMPILER, QUANTISERS = "torch._dynamo", "torch.ao.quantization.fx._decomposed"  # modules that take seconds to load
GUARDED = "_should_skip_dynamo"  # of a dispatch mode, whether it has a guard against compiling in it
PASS_ON = ("torch._tensor", "torch.overrides", "torch.utils._device")  # Python code that asks modes for its caller

# Of tensors and storages. Which memory is it, by its address: that of the values is 0 where there are none.
address_of: Callable[[Any], int] = attrgetter("_cdata")
base_of = attrgetter("_base")
SPARSE_PARTS = ("_values", "_indices")  # without the copy that the public ones make

# Of modules: what every one has, in its order and with what is None.
PARAMETERS, BUFFERS, SUBMODULES = "_parameters", "_buffers", "_modules"
TRANSIENT = "_non_persistent_buffers_set"  # names of buffers that no state dict has
parameters_of, buffers_of, submodules_of = map(attrgetter, (PARAMETERS, BUFFERS, SUBMODULES))
CALL, COMPILED_CALL = "_call_impl", "_compiled_call_impl"  # what every call goes through
SAVING = ("state_dict", "_save_to_state_dict", "get_extra_state")
TRUNCATED = "_no_grad_trunc_normal_"  # in torch.nn.init: of every library's trunc_normal_
LAZY_START = "_lazy_init"  # what torch calls first of most accelerators, and what fails where there is none
UNCOMPILED = "_orig_mod"  # under which torch.compile's module keeps the one that was given

# Of operators and autograd.
schema_of = attrgetter("_schema")
forward_class = attrgetter("_forward_cls")  # of a function in Python
node_number = methodcaller("_sequence_nr")
next_number: Callable[[], int] = C._autograd._get_sequence_nr
running_node: Callable[[], Any] = C._current_autograd_node

# Of TorchScript.
script_type = methodcaller("_type")
plan_anew = methodcaller("_debug_flush_compilation_cache")
optimised: Any = torch.jit.optimized_execution  # type: ignore[attr-defined]
set_profiling: tuple[Callable[[bool], bool], ...] = (C._jit_set_profiling_executor, C._jit_set_profiling_mode)

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

# Without it no operator tells of what torch.tensor makes without memory: the ends of the parts of a jagged tensor.
SEES_JAGGED = torch.__version__ >= "2.15"  # which torch compares as a version


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


def check_inputs(program: Any, nodes: Any, named: Any, ranges: Any) -> None:
    """Raise AssertionError or RuntimeError for inputs, with their paths, outside of the ranges that an export has."""
    from torch._export.utils import _check_input_constraints_for_graph  # loads the compiler, in some versions

    _check_input_constraints_for_graph(nodes, named, ranges)
    if hasattr(program, "_guards_fn"):  # which a file without example inputs lacks; of ranges it may say nothing
        program._guards_fn(*(value for _, value in named))


def module_of(program: torch.export.ExportedProgram) -> Any:
    """The module of an exported program, without its checks of inputs where this torch puts them in."""
    without = {"check_guards": False} if asks(program.module, "check_guards") else {}
    return program.module(**without)


def load_reader_of_programs() -> None:
    """Import what reads exported programs, and loads the compiler, which notes torch's functions, where they are."""
    with suppress(ModuleNotFoundError):  # before torch 2.8, where torch.export has it all
        import_module("torch.export.pt2_archive._package")


def memory_of(tensor: torch.Tensor) -> int:
    """Which memory a tensor lies in: equal for views of one another. Raises RuntimeError where there is none."""
    return address_of(tensor.untyped_storage())


def fake_mode() -> FakeTensorMode:
    """Tensors without memory, on any device."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    mode._allow_unsafe_data_ptr_access = False  # else C code gets a null address, and writes
    mode.cache_enabled = False  # else views that an operator gave before are new memory the next time
    return mode


def script_methods(script: Any) -> list[Any]:
    """The methods of a scripted module, which is Python's or C++'s."""
    inner = script._c if isinstance(script, torch.jit.ScriptModule) else script
    return [inner._get_method(name) for name in inner._method_names()]


def script_attributes(script: Any) -> Any:
    """The types of all that a scripted module holds itself, by name: of a frozen one, too."""
    return C.ConcreteModuleType.from_jit_type(script_type(script._c)).get_attributes()


def script_function(name: str, graph: Any) -> Any:
    """A graph of TorchScript as a function that no call has planned."""
    function = C._create_function_from_graph(name, graph)
    plan_anew(function)
    return function


def open_transforms() -> tuple[int, int]:
    """How many of vmap, grad and jvp are entered, and the level of forward-mode differentiation."""
    return functorch.get_dynamic_layer_stack_depth(), forward_ad._current_level


def end_transforms(then: tuple[int, int]) -> None:
    """End what a pass that failed never left: vmap and jvp are entered by nodes of an exported program."""
    depth, dual_level = then
    functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
    while forward_ad._current_level > dual_level:
        forward_ad.exit_dual_level()  # type: ignore[no-untyped-call]
    if dual_level < 0:  # no level of Python's is entered; a node enters torch's own alone
        with suppress(RuntimeError):  # it was not entered, which torch tells in no other way
            C._exit_dual_level(level=0)


def jagged_dummy() -> Any:
    """What torch makes once a process, with its first jagged tensor; None until then."""
    return getattr(sys.modules.get(JAGGED), "_dummy_instance", None)


def is_unseen_jagged(error: BaseException) -> bool:
    """Whether torch's code of jagged tensors failed, or what it calls, in a torch that does not show their parts."""
    tracebacks = (each.__traceback__ for each in (error, error.__cause__) if each and not SEES_JAGGED)
    frames = (frame for traceback in tracebacks for frame, _ in walk_tb(traceback))
    return any(frame.f_globals["__name__"].startswith(JAGGED.rpartition(".")[0]) for frame in frames)


def jagged_dummy_made_apart(had_one: bool) -> bool:
    """Return whether a pass has made that tensor; remake it. Not beforehand: that loads torch's algebra."""
    if had_one or jagged_dummy() is None:
        return False
    jagged: Any = sys.modules[JAGGED]
    jagged._dummy_instance = None
    with disable_current_modes(), torch.inference_mode(False):
        torch.nested.nested_tensor_from_jagged(torch.zeros(1), torch.tensor([0, 1]))
    return True


@contextmanager
def passed_on(names: Iterable[str], key: str) -> Iterator[None]:
    """Operators of ATen have no kernel of their own at a dispatch key in this context."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]  # torch gives no types
    try:
        for name in names:
            library.impl(name, torch.library.fallthrough_kernel, key, **OVERRIDES)
        yield
    finally:
        del library  # which takes its kernels back
