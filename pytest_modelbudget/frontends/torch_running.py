"""Running torch models on values: as they are, in float64, and with operations rewritten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.frontends import (
    torch_exported_program,
    torch_module,
    torch_script_file,
)
from pytest_modelbudget.frontends.model_source import InputSpecs, ModelSource
from pytest_modelbudget.frontends.torch_building import is_an_instance, untouched_globals
from pytest_modelbudget.frontends.torch_float64 import InFloat64, in_float64
from pytest_modelbudget.frontends.torch_inputs import CallInputs
from pytest_modelbudget.frontends.torch_recording import is_taken_apart, signature, tensors_in
from pytest_modelbudget.frontends.torch_tracing import (
    AUTOGRAD_COMPLAINTS,
    NameOf,
    Rewriting,
    Subject,
    exact_operators,
    silenced,
)
from pytest_modelbudget.frontends.torch_values import STORED, TorchValues, dtype_of
from pytest_modelbudget.frontends.torch_weights import (
    buffer_values_kept,
    copied,
    module_state_kept,
    module_tree,
    named_weights,
)
from pytest_modelbudget.frontends.user_code import user_code
from pytest_modelbudget.ir.graph import Graph
from pytest_modelbudget.ir.tensor import least_precise
from pytest_modelbudget.ops.op_rule import nothing
from pytest_modelbudget.ops.op_table import OpTable

Product = tuple[str, tuple[int, ...]]  # an operator, and the shape of the weight it reads
# What has no parts, and is the same where it is spelled alike.
PLAIN = (type(None), bool, int, str, bytes, Enum, torch.dtype, torch.device)


def true_subject(source: ModelSource, seed: int = 0) -> tuple[Subject, InputSpecs]:
    """A model with its weights that nobody else has, and what it is run on."""
    if source.format == "torchscript":
        return torch_script_file.true_subject(source), source.inputs
    if source.format == "exported":
        return torch_exported_program.true_subject(source)
    return torch_module.true_subject(source, seed), source.inputs


def loads_no_weights(source: ModelSource, subject: Subject) -> bool:
    """Whether a builder fills weights at random: two seeds then give different ones.

    Files hold their weights, and an instance has those that it was given.
    """
    if source.format != "torch" or is_an_instance(source):
        return False
    other = torch_module.true_subject(source, seed=1).model
    pairs = zip(
        named_weights(module_tree(subject.model)), named_weights(module_tree(other)), strict=False
    )
    return other is not subject.model and any(
        mine.tensor.is_floating_point() and not torch.equal(mine.tensor, theirs.tensor)
        for mine, theirs in pairs
    )


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor that a model returns: where it stands in the result, and its value."""

    name: str
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class Result:
    """All that a run returned. structure spells the containers around the tensors."""

    structure: str
    outputs: tuple[Output, ...]


class Runnable:
    """A model that can be run on values, as it is stored and in float64; it stays as it was.

    rewriting replaces operations during each run; the weights are untouched. in_double makes the
    float64 twin, where that is not a copy whose weights are upcast.
    """

    def __init__(
        self,
        subject: Subject,
        rewriting: Rewriting | None = None,
        in_double: Callable[[], Subject] | None = None,
    ) -> None:
        self.subject = subject
        self.rewriting = rewriting
        self._in_double = in_double
        self._exact: Subject | None = None

    def rewritten(self, rewriting: Rewriting) -> Runnable:
        """The same model, whose operations are replaced."""
        other = Runnable(self.subject, rewriting)
        other._exact = self.exact
        return other

    @property
    def exact(self) -> Subject:
        """The model with its weights upcast to float64, made at the first call."""
        if self._exact is None:
            with untouched_globals(), user_code("copying the model", TraceError):
                self._exact = self._in_double() if self._in_double else double_copy(self.subject)
        return self._exact

    def run(
        self,
        inputs: CallInputs,
        *,
        float64: bool = False,
        listening: Sequence[AbstractContextManager[Any]] = (),
    ) -> Result:
        """What the model returns, in eval mode; listening contexts see what is executed.

        Raises TraceError where the model does.
        """
        subject = self.exact if float64 else self.subject
        try:
            return self._run(subject, inputs, torch.inference_mode, float64, listening)
        except TraceError as error:
            if not any(words in str(error.__cause__) for words in AUTOGRAD_COMPLAINTS):
                raise
            return self._run(subject, inputs, torch.no_grad, float64, listening)

    def _run(
        self,
        subject: Subject,
        inputs: CallInputs,
        grad: Any,
        float64: bool,
        listening: Sequence[AbstractContextManager[Any]],
    ) -> Result:
        modules = module_tree(subject.model)
        scopes = subject.scopes(TorchValues(), modules)
        with ExitStack() as stack:
            enter = stack.enter_context
            enter(untouched_globals())
            enter(module_state_kept(modules))
            enter(buffer_values_kept(modules))
            enter(exact_operators())
            enter(deterministic())
            enter(silenced())
            enter(user_code("running the model", TraceError))
            enter(grad())
            enter(scopes.watching())
            if float64:
                torch.set_default_dtype(torch.float64)
                enter(InFloat64())  # type: ignore[no-untyped-call]  # torch's hook
            for mode in listening:
                enter(mode)
            if self.rewriting is not None:
                enter(self.rewriting(weight_names(subject.model), lambda: scopes.scope_of(())))
            return result_of(subject.run(upcast(inputs) if float64 else inputs, scopes))


def double_copy(subject: Subject) -> Subject:
    """The same model, copied and upcast to float64."""
    return subject.over(in_float64(copied(subject.model)))


def weight_names(model: nn.Module) -> NameOf:
    """A function that names the weight whose memory a tensor is on; "" for any other."""
    names: dict[int, str] = {}
    for weight in named_weights(module_tree(model)):
        names.setdefault(weight.tensor.untyped_storage()._cdata, weight.name)
    return lambda tensor: names.get(tensor.untyped_storage()._cdata, "")


def stored_dtype(model: nn.Module) -> str:
    """The least precise floating type among a model's weights; "" where it has none."""
    stored = (weight.tensor for weight in named_weights(module_tree(model)))
    return least_precise({dtype_of(each.dtype).name for each in stored})


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


def upcast(inputs: CallInputs) -> CallInputs:
    """The same values in float64."""

    def exact(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.double() if value.is_floating_point() else value
        return [exact(each) for each in value] if isinstance(value, list) else value

    named = {name: exact(value) for name, value in inputs.kwargs.items()}
    return CallInputs(tuple(exact(value) for value in inputs.args), named)


def result_of(returned: Any) -> Result:
    """The tensors among what a model returned, and the containers that they stand in.

    Raises TraceError for what cannot be looked into: nobody could say that it is still the same.
    """
    outputs: list[Output] = []
    structure = _described(returned, "", outputs)
    return Result(structure, tuple(outputs))


def _described(value: Any, name: str, outputs: list[Output]) -> str:
    """What a value looks like from outside; its tensors are added to outputs."""
    if isinstance(value, torch.Tensor):
        outputs.append(Output(name or "0", value.detach()))
        return "tensor"
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, (float, complex)):
        outputs.append(
            Output(
                name or "0",
                torch.tensor(
                    value, dtype=torch.complex128 if isinstance(value, complex) else torch.float64
                ),
            )
        )
        return type(value).__name__
    parts = _parts(value)
    if parts is None:
        raise TraceError(
            f"output '{name or '0'}' is a {type(value).__name__}, which cannot be looked into: "
            "return tensors, numbers, words, lists, tuples, mappings or dataclasses"
        )
    below = ((str(key), _described(part, f"{name}.{key}" if name else str(key), outputs))
             for key, part in parts)  # fmt: skip
    return f"{type(value).__name__}({', '.join(f'{key}: {shown}' for key, shown in below)})"


def _parts(value: Any) -> list[tuple[object, Any]] | None:
    """(name, part) of a container; None for anything else."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    return None


class Executed(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's hook
    """Counts what a run multiplies: operators by name, and the shape of the weight they read."""

    def __init__(self, rules: OpTable, weight_name: NameOf) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives no types
        self.counts: Counter[Product] = Counter()
        self._rules = rules
        self._weight_name = weight_name

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operator, and count it if it multiplies."""
        if is_taken_apart(func, self._rules):
            with self:
                return func.decompose(*args, **(kwargs or {}))
        name = signature(func).spelling(self._rules)
        if multiplies(name, self._rules):
            weights = (tuple(t.shape) for t in tensors_in(args) if self._weight_name(t))
            self.counts[name, next(weights, ())] += 1
        return func(*args, **(kwargs or {}))


def products_of(graph: Graph, rules: OpTable) -> Counter[Product]:
    """What a graph says that a run multiplies, counted as Executed counts it."""
    counts: Counter[Product] = Counter()
    for op in graph.ops:
        if multiplies(op.name, rules):
            weights = (t.shape for t in op.tensors() if t.storage.kind in STORED)
            counts[op.name, next(weights, ())] += op.times
    return counts


def multiplies(name: str, rules: OpTable) -> bool:
    """Whether a rule gives this operator MACs."""
    return name in rules and rules[name].macs not in (None, nothing)
