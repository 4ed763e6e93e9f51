"""One step of training a module: its forward pass in train mode, and the backward pass that autograd makes of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import saved_tensors_hooks as SavedTensorsHooks
from torch.utils import checkpoint

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.formats.model import LayerCall
from pytest_modelbudget.formats.source import OPTIMIZERS, InputSpecs
from pytest_modelbudget.graph.graph import Graph, Operand, Weight
from pytest_modelbudget.graph.rewrite import with_storages
from pytest_modelbudget.graph.tensor import Storage, StorageKind, Tensor, dense, nbytes_of, unsized
from pytest_modelbudget.ops.rule import UNKNOWN_TYPE
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.torch_models.environment import replaced
from pytest_modelbudget.torch_models.outputs import output_tensors
from pytest_modelbudget.torch_models.recording import Scopes
from pytest_modelbudget.torch_models.tracing import Places, Subject, traced
from pytest_modelbudget.torch_models.values import CallInputs, TorchValues, bytes_of, dtype_of
from pytest_modelbudget.torch_models.versions import forward_class, next_number, node_number, running_node
from pytest_modelbudget.torch_models.weights import ModuleTree, named_weights

STORED = frozenset({StorageKind.PARAMETER, StorageKind.QUANTISER})
# Fake tensors are told from real ones by no operator, so that both choose the same kernels; meta ones are.
WAYS = ("fake", "real")
UNSEEN = "its own saved_tensors_hooks pack tensors into something else, and how many bytes that keeps is not seen"


def training_step(
    subject: Subject, specs: InputSpecs, rules: OpTable, dtype: torch.dtype | None, optimizer: str
) -> Graph:
    """The program of one step, forward and backward; its weights are all that the step holds, at the end of the first.

    Those are parameters, a gradient for each one that the backward pass reaches, what the optimizer keeps for that,
    and the tensors that autograd saves, hooks of the model pack, or a ctx keeps, each memory once. The loss is the sum
    of all floating outputs that need a gradient. Raises TraceError where the model does not run in train mode, or none
    of its outputs needs one.
    """
    step = _Step()
    loaded = traced(step.around(subject), specs, rules, dtype, ways=WAYS, grad=torch.enable_grad)
    stored = (weight for weight in loaded.graph.weights if weight.kind in STORED)
    held = (*stored, *step.gradients(optimizer), *step.kept())
    kept = (*loaded.graph.outputs, *loaded.graph.inputs)  # by the loop around the step, until it ends
    return with_storages(replace(loaded.graph, weights=held, outputs=kept), step.homes)


@dataclass
class _Step:
    """What is known of one step while it is recorded, and afterwards; each way of recording begins anew."""

    values: TorchValues = field(default_factory=TorchValues)
    modules: ModuleTree = ()
    trainable: frozenset[str] = frozenset()
    saved: dict[Storage, tuple[str, Tensor]] = field(default_factory=dict)
    unseen: dict[str, None] = field(default_factory=dict)  # modules whose own hooks keep what nobody sees
    reached: tuple[tuple[str, torch.Tensor], ...] = ()
    homes: dict[Storage, Storage] = field(default_factory=dict)  # of results that are kept as gradients

    def around(self, subject: Subject) -> Subject:
        """The subject, each of whose runs is a step."""

        def scopes(values: TorchValues, modules: ModuleTree) -> StepScopes:
            weights = named_weights(modules)
            self.values, self.modules, self.saved, self.unseen = values, modules, {}, {}
            self.trainable = frozenset(weight.name for weight in weights if weight.is_trainable)
            return StepScopes(subject.scopes(values, modules))

        def run(inputs: CallInputs, scopes: Scopes) -> Any:
            assert isinstance(scopes, StepScopes), "those that are made above"
            with kernels_of_torch():
                return self._run(subject, inputs, scopes)

        return replace(subject, run=run, scopes=scopes, real=lambda: self.around(subject.real()))

    def _run(self, subject: Subject, inputs: CallInputs, scopes: StepScopes) -> Any:
        """Forward and backward; weights that stand for trained ones need gradients as those do."""

        def save(tensor: torch.Tensor) -> torch.Tensor:
            self._save(tensor, scopes.scope_of(()))
            return tensor

        trained = [weight for weight in named_weights(self.modules) if weight.name in self.trainable]
        for weight in trained:
            weight.tensor.requires_grad_()
            weight.tensor.grad = None
        if not isinstance(subject.model, fx.GraphModule):  # exported ones have the mode they have
            subject.model.train()
        with SavedTensorsHooks(save, lambda tensor: tensor), self._own_hooks(scopes):
            result = (subject.method or subject.model)(*inputs.args, **inputs.kwargs)
        outputs = {id(out): out for out in output_tensors(result) if out.requires_grad and out.is_floating_point()}
        if not outputs:
            raise TraceError("no floating output depends on a weight that needs a gradient: nothing would be trained")
        for node in _functions(outputs.values()):
            for tensor in output_tensors(vars(node)):
                self._save(tensor, scopes.made_in(node))
        torch.autograd.backward([out.sum() for out in outputs.values()])
        weights = {id(weight.tensor): weight for weight in trained}
        gradients = ((weight.name, weight.tensor.grad) for weight in weights.values())
        self.reached = tuple((name, gradient) for name, gradient in gradients if gradient is not None)
        return result

    def _save(self, tensor: torch.Tensor, scope: str) -> None:
        value = self.values.value(tensor)
        if value.storage.kind is not StorageKind.PARAMETER:
            self.saved.setdefault(value.storage, (scope, value))

    @contextmanager
    def _own_hooks(self, scopes: StepScopes) -> Iterator[None]:
        """What hooks of the model pack is saved in place of what autograd gives them: those alone are called.

        Checkpoints of torch keep nothing. Of other things than tensors nobody knows what they stand for.
        """
        make = SavedTensorsHooks.__init__

        def made(hooks: Any, pack: Any, unpack: Any) -> None:
            def packed(tensor: torch.Tensor) -> Any:
                kept = pack(tensor)
                tensors = list(output_tensors(kept))
                for each in tensors:
                    self._save(each, scopes.scope_of(()))
                if not tensors and type(kept).__module__ != checkpoint.__name__:
                    self.unseen[scopes.scope_of(())] = None
                return kept

            make(hooks, packed, unpack)

        with replaced([(SavedTensorsHooks, "__init__", made)]):
            yield

    def gradients(self, optimizer: str) -> Iterator[Weight]:
        """The gradient of each parameter that got one, and what the optimizer keeps for it, in its type."""
        for name, gradient in self.reached:
            held, result = _beside(name, "gradient", gradient, StorageKind.GRADIENT), self.values.known(gradient)
            self.homes |= {result.storage: held.tensor.storage} if result else {}
            yield held
            for number in range(1, OPTIMIZERS[optimizer] + 1):
                yield _beside(name, f"{optimizer} state {number}", gradient, StorageKind.OPTIMIZER)

    def kept(self) -> Iterator[Weight]:
        """What autograd saves, whole memories, under the modules that made it save them."""
        numbers: dict[str, int] = {}
        for storage, (scope, tensor) in self.saved.items():
            numbers[scope] = numbers.get(scope, 0) + 1
            name = f"{scope}.saved {numbers[scope]}".lstrip(".")
            if tensor.touched_nbytes != storage.nbytes and not storage.unsized:
                tensor = bytes_of(storage)
            yield Weight(replace(tensor, name=name), persistent=False)
        for scope in self.unseen:
            name = f"{scope}.saved by its own hooks".lstrip(".")
            memory = Storage(name, 0, StorageKind.CONSTANT, UNSEEN)
            yield Weight(unsized(name, UNKNOWN_TYPE, memory, UNSEEN), persistent=False)


def _functions(outputs: Iterable[torch.Tensor]) -> Iterator[Any]:
    """Autograd functions of Python behind some results; not torch's checkpoint, whose ctx has states of generators."""
    waiting = [out.grad_fn for out in outputs]
    seen = {None, *waiting}
    for node in waiting:  # which grows
        if isinstance(node, BackwardCFunction) and forward_class(type(node)).__module__ != checkpoint.__name__:
            yield node
        following = {function for function, _ in node.next_functions} - seen if node is not None else ()
        seen.update(following)
        waiting.extend(following)


def _beside(parameter: str, what: str, like: torch.Tensor, kind: StorageKind) -> Weight:
    """A tensor that a step holds for a parameter: "fc.gradient of weight"."""
    owner, dot, last = parameter.rpartition(".")
    name, dtype = f"{owner}{dot}{what} of {last}", dtype_of(like.dtype)
    if like.layout is not torch.strided:
        why = "a sparse gradient: data decide how many rows it has"
        return Weight(unsized(name, dtype, Storage(name, 0, kind, why), why), persistent=False)
    storage = Storage(name, nbytes_of(like.numel(), dtype), kind)
    return Weight(dense(name, tuple(like.shape), dtype, storage), persistent=False)


@contextmanager
def kernels_of_torch() -> Iterator[None]:
    """No layer runs as one kernel of oneDNN, which machines without it, and other devices, do not have."""
    onednn: Any = torch.backends.mkldnn
    before, onednn.enabled = onednn.enabled, False
    try:
        yield
    finally:
        onednn.enabled = before


class StepScopes:
    """Scopes of a forward pass, and of its backward pass: an operator there belongs to the module of its forward one.

    Autograd numbers its nodes as the forward pass makes them, each before its operator runs.
    """

    def __init__(self, forward: Scopes) -> None:
        self._forward = forward
        self._numbers: list[int] = []
        self._made_in: list[str] = []

    @property
    def calls(self) -> list[LayerCall]:
        return self._forward.calls

    @calls.setter
    def calls(self, calls: list[LayerCall]) -> None:
        self._forward.calls = calls

    def scope_of(self, operands: tuple[Operand, ...]) -> str:
        """Path of the module that runs, or ran when the node was made that is running backward."""
        running, node = self._forward.scope_of(operands), running_node()
        if node is not None and not running:
            return self.made_in(node)
        last = next_number() - 1
        if not self._numbers or self._numbers[-1] < last:
            self._numbers.append(last)
            self._made_in.append(running)
        return running

    def made_in(self, node: Any) -> str:
        """Path of the module that ran when autograd made a node."""
        at = bisect_right(self._numbers, node_number(node))
        return self._made_in[at - 1] if at and "AccumulateGrad" not in node.name() else ""

    def replacements(self) -> Places:
        return self._forward.replacements()
