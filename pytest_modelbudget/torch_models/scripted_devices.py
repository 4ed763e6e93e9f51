"""What TorchScript asks of its tensors without an operator.

Of their device its interpreter is given the answer of a run; of lists of their values it is said that they leave.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from pytest_modelbudget.torch_models.accelerators import CPU, is_accelerator
from pytest_modelbudget.torch_models.escapes import ATTRIBUTES
from pytest_modelbudget.torch_models.patching import replaced
from pytest_modelbudget.torch_models.recording import NeedsMemoryError, Recorder
from pytest_modelbudget.torch_models.script_plans import CALLED, in_order, inlined

ANSWERS = {f"prim::{name}": answer for name, answer in ATTRIBUTES.items()}
DEVICE = "DeviceObjType"
HANDED_IN = frozenset({"InterfaceType", "ClassType", "FunctionType"})
LISTED = "prim::tolist"  # which reads memory without an operator: at address 0 it would end the process
OF_INTERFACES = ("prim::CallMethod", "prim::CallFunction")  # calls that are left when all that is known is inlined


class ScriptCalls:
    """Calls what is scripted and branches on a device, or names one, in a form that has the answers in it."""

    def __init__(self, answers: Mapping[str, object]) -> None:
        self._answers = answers
        self._forms: dict[int, tuple[Any, Any]] = {}  # by what is called, which is kept: itself, and its form

    def instead_of(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """A call of what is scripted."""

        def call(called: Any, *args: Any, **kwargs: Any) -> Any:
            if id(called) not in self._forms:
                self._forms[id(called)] = called, with_answers(called, self._answers)
            form = self._forms[id(called)][1]
            arguments = None if form is None else in_order(called, args, kwargs)
            return own(called, *args, **kwargs) if arguments is None else form(*arguments)

        return call


def with_answers(called: Any, answers: Mapping[str, object]) -> Any:
    """A scripted function or method with these answers in it, and the CPU for accelerators; None where it needs none.

    Raises NeedsMemoryError where what asks is no part of it: a fork, or what is called by an interface; and where a
    tensor becomes a list.
    """
    graph = inlined(called.graph.copy())
    if answers:
        _refuse_unanswered(called, graph)
    if not any(graph.findAllNodes(kind) for kind in answers) and not any(_named_devices(graph)):
        return None
    named = list(_named_devices(graph))
    for node in named:
        with graph.insert_point_guard(node):
            node.output().replaceAllUsesWith(graph.insertConstant(CPU))
        node.destroy()
    asked = [node for kind in answers for node in graph.findAllNodes(kind)]
    branches = [(node, use) for node in asked for use in node.output().uses() if not _makes_tensor(use.user)]
    for node, use in branches:
        with graph.insert_point_guard(node):
            use.user.replaceInput(use.offset, graph.insertConstant(answers[node.kind()]))
    return torch._C._create_function_from_graph(called.name, graph) if branches or named else None


def _named_devices(graph: Any) -> Iterator[Any]:
    """Nodes of a graph that give an accelerator which it names, or a device that its module keeps."""
    for node in graph.findAllNodes("prim::Constant"):
        if node.output().type().kind() == DEVICE and node.hasAttribute("value") and is_accelerator(node.s("value")):
            yield node
    yield from (node for node in graph.findAllNodes("prim::GetAttr") if node.output().type().kind() == DEVICE)


def _refuse_unanswered(called: Any, graph: Any) -> None:
    """Raise NeedsMemoryError for what asks where no answer can be put."""
    if graph.findAllNodes(LISTED):
        raise NeedsMemoryError(f"{called.name} makes a list of a tensor's values")
    if any(graph.findAllNodes(kind) for kind in OF_INTERFACES) and _may_be_asked_behind(called):
        raise NeedsMemoryError(f"{called.name} calls by an interface what may ask for the device or a list of tensors")


def _may_be_asked_behind(called: Any) -> bool:
    """Whether what is called by an interface may ask: a part of the owner that does, or anything that is handed in."""
    if not isinstance(called, torch._C.ScriptMethod):
        return True
    given = called.schema.arguments[1:]
    return any(each.type.kind() in HANDED_IN for each in given) or any(map(_asks, _methods(called.owner)))


def _methods(module: Any) -> Iterator[Any]:
    """The graph of every method of a scripted module, and of those within it."""
    yield from (inlined(module._get_method(name).graph.copy()) for name in module._method_names())
    for _, within in torch._C.ModuleDict(module).items():
        yield from _methods(within)


def _asks(graph: Any) -> bool:
    """Whether a graph asks for a device or a list of values."""
    return any(graph.findAllNodes(kind) for kind in (*ANSWERS, LISTED))


def makes_lists(called: Any) -> bool:
    """Whether a scripted function or method may make lists of numbers that are no sizes and places."""
    graph = inlined(called.graph.copy())
    is_open = isinstance(called, torch._C.ScriptMethod) and any(graph.findAllNodes(kind) for kind in OF_INTERFACES)
    return _has_lists(graph) or (is_open and any(map(_has_lists, _methods(called.owner))))


def _has_lists(graph: Any) -> bool:
    """Whether a graph makes lists of such numbers."""
    made = [str(node.output().type()) for node in graph.findAllNodes(LISTED)]
    return any("float" in of or "complex" in of for of in made)


def _makes_tensor(node: Any) -> bool:
    """Whether a node takes a device to make a tensor there: without memory, where its others have none."""
    return bool(node.kind().startswith("aten::") and [str(out.type()) for out in node.outputs()] == ["Tensor"])


@contextmanager
def scripts_as_on_cpu(*, have_memory: bool) -> Iterator[None]:
    """What is scripted and called in this context runs on the CPU; tensors without memory are found there, too."""
    calls = ScriptCalls({} if have_memory else ANSWERS)
    with replaced([(called, "__call__", calls.instead_of(called.__call__)) for called in CALLED]):
        yield


@contextmanager
def lists_of_scripts(recorder: Recorder) -> Iterator[None]:
    """Every call of what is scripted and makes lists of values is noted: what it computes with them is not seen."""
    known: dict[int, tuple[Any, bool]] = {}  # by what is called, which is kept

    def watched(own: Callable[..., Any]) -> Callable[..., Any]:
        def call(called: Any, *args: Any, **kwargs: Any) -> Any:
            if id(called) not in known:
                known[id(called)] = called, makes_lists(called)
            if known[id(called)][1]:
                recorder.leave_script()
            return own(called, *args, **kwargs)

        return call

    with replaced([(called, "__call__", watched(called.__call__)) for called in CALLED]):
        yield
