"""Running torch models on values: as they are, in float64, and with operations rewritten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_modelbudget.equivalence.inputs import FAMILIES, SCALES, Output, Returned, Row, Specs, drawn
from pytest_modelbudget.errors import TraceError, TransformError
from pytest_modelbudget.formats.source import InputSpec, InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.formats.user_code import user_code
from pytest_modelbudget.graph.graph import Graph
from pytest_modelbudget.graph.tensor import least_precise
from pytest_modelbudget.ops.rule import nothing
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.torch_models import exported as torch_exported_program
from pytest_modelbudget.torch_models import module as torch_module
from pytest_modelbudget.torch_models import script as torch_script_file
from pytest_modelbudget.torch_models.building import is_an_instance
from pytest_modelbudget.torch_models.isolation import (
    buffer_values_kept,
    deterministic,
    exact_operators,
    module_state_kept,
    silenced,
    untouched_globals,
)
from pytest_modelbudget.torch_models.recording import is_taken_apart, signature, tensors_in
from pytest_modelbudget.torch_models.tracing import AUTOGRAD_COMPLAINTS, NameOf, Rewriting, Subject, output_tensors
from pytest_modelbudget.torch_models.values import STORED, CallInputs, TorchValues, call_inputs, dtype_named, dtype_of
from pytest_modelbudget.torch_models.weights import copied, module_tree, named_weights

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]


EXACT = {  # what each narrow type is computed in
    **dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64),
    **dict.fromkeys((torch.complex64, torch.complex32), torch.complex128),
}


def in_float64(model: nn.Module) -> nn.Module:
    """The same module, changed in place: weights and tensor attributes upcast exactly."""
    model.double()  # which leaves complex weights as they are
    model._apply(_widened)  # type: ignore[no-untyped-call]  # torch gives no types
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                setattr(module, name, _widened(value))
    return model


class InFloat64(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's hook
    """Turns every narrow type that an operator is given into float64, complex ones into complex128.

    A program that casts to float32 on its way, or holds float32 constants, would round there, and
    the difference between two right programs would be that rounding.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run one operator in float64."""
        if _writes(func):
            return func(*args, **(kwargs or {}))
        return func(*map(_widened, args), **{k: _widened(v) for k, v in (kwargs or {}).items()})


@cache
def _writes(func: Any) -> bool:
    return bool(func._schema.is_mutable)


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(EXACT[value.dtype]) if value.dtype in EXACT else value
    if isinstance(value, torch.dtype):
        return EXACT.get(value, value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_widened, value))
    return value


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
    pairs = zip(named_weights(module_tree(subject.model)), named_weights(module_tree(other)), strict=False)
    return other is not subject.model and any(
        mine.tensor.is_floating_point() and not torch.equal(mine.tensor, theirs.tensor) for mine, theirs in pairs
    )


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """One tensor that a model returns: where it stands in the result, and its value."""

    name: str
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class Result:
    """All that a run returned. structure spells the containers around the tensors."""

    structure: str
    outputs: tuple[OutputTensor, ...]


class Runnable:
    """A model that can be run on values, as it is stored and in float64; it stays as it was.

    rewriting replaces operations during each run; the weights are untouched. in_double makes the
    float64 twin, where that is not a copy whose weights are upcast.
    """

    def __init__(
        self, subject: Subject, rewriting: Rewriting | None = None, in_double: Callable[[], Subject] | None = None
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
        self, inputs: CallInputs, *, float64: bool = False, listening: Sequence[AbstractContextManager[Any]] = ()
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
    outputs: list[OutputTensor] = []
    structure = _described(returned, "", outputs)
    return Result(structure, tuple(outputs))


def _described(value: Any, name: str, outputs: list[OutputTensor]) -> str:
    """What a value looks like from outside; its tensors are added to outputs."""
    if isinstance(value, torch.Tensor):
        outputs.append(OutputTensor(name or "0", value.detach()))
        return "tensor"
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, (float, complex)):
        outputs.append(
            OutputTensor(
                name or "0",
                torch.tensor(value, dtype=torch.complex128 if isinstance(value, complex) else torch.float64),
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

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
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


@dataclass(frozen=True, slots=True)
class LayerOutput:
    """The first floating tensor that a layer returned.

    reads_last tells whether the layer was fed the very tensor that the one before it returned.
    """

    path: str
    value: torch.Tensor
    reads_last: bool


Layers = list[LayerOutput]  # as they end


@contextmanager
def layer_outputs(model: nn.Module, seen: Layers) -> Iterator[None]:
    """Append the output of each layer below the model to ``seen``, while the context lasts."""
    paths = {id(module): path for path, module in model.named_modules() if path}

    last: list[torch.Tensor] = []  # of the layer before, kept alive: another may not take its id

    def note(module: nn.Module, args: Any, result: Any) -> None:
        if id(module) not in paths:
            return
        reads_last = any(given is mine for given in output_tensors(args) for mine in last)
        last[:] = [tensor for tensor in output_tensors(result) if tensor.is_floating_point()]
        # A copy: an in-place operation that follows would change what was returned.
        for tensor in last[:1]:
            seen.append(LayerOutput(paths[id(module)], tensor.clone(), reads_last))

    hook = register_module_forward_hook(note)
    try:
        yield
    finally:
        hook.remove()


class TorchSide:
    """A torch model that runs on the tensors that specs describe."""

    def __init__(self, model: Runnable, specs: InputSpecs) -> None:
        self.model = model
        self.specs = specs

    def run(self, inputs: Arrays, *, float64: bool) -> Returned:
        """All tensors that the model returns, in their order."""
        try:
            result = self._result(call_of(self.specs, inputs), float64)
        except TraceError as error:
            raise TransformError(str(error)) from error
        outputs = tuple(
            Output(each.name, dtype_of(each.tensor.dtype).name, array(each.tensor)) for each in result.outputs
        )
        return Returned(outputs, result.structure)

    def _result(self, inputs: CallInputs, float64: bool) -> Result:
        return self.model.run(inputs, float64=float64)


class CountedSide(TorchSide):
    """A torch model whose runs must multiply what its graph has promised.

    exact is what runs in float64, where that is not the model's own float64 twin.
    """

    def __init__(
        self,
        model: Runnable,
        specs: InputSpecs,
        *,
        promised: Counter[Product],
        rules: OpTable,
        exact: Runnable | None = None,
    ) -> None:
        super().__init__(model, specs)
        self._exact = exact or model
        self._promised = promised
        self._rules = rules
        self._was_kept = False

    def _result(self, inputs: CallInputs, float64: bool) -> Result:
        if float64:
            return self._exact.run(inputs, float64=True)
        result, counts = self._counted(inputs)
        done = attributed(counts, self._promised)
        self._was_kept = self._was_kept or done == self._promised
        return result

    def _counted(self, inputs: CallInputs) -> tuple[Result, Counter[Product]]:
        counting = Executed(self._rules, weight_names(self.model.subject.model))
        result = self.model.run(inputs, listening=(counting,))
        return result, counting.counts

    def disagreements(self) -> Iterator[str]:
        """The first product that the graph and the runs do not count alike.

        A model may loop over its rows: where no run so far kept the promise, inputs of the very
        shapes that the graph was measured on decide.
        """
        if self._was_kept:
            return
        inputs = drawn(leaf_specs(self.specs), Row(FAMILIES[0], 0), SCALES[0])
        _, counts = self._counted(call_of(self.specs, inputs))
        executed = attributed(counts, self._promised)
        for product in sorted({*self._promised, *executed}):
            said, done = self._promised[product], executed[product]
            if said != done:
                name, shape = product
                size = f" by weights {list(shape)}" if shape else ""
                yield f"the graph has {said:,} {name}{size}, and the run executes {done:,}"
                return


def attributed(counts: Counter[Product], promised: Counter[Product]) -> Counter[Product]:
    """What a run multiplied, where products by nameless weights stand for promised ones.

    Autocast reads a copy of a weight, and quantised layers read packed ones: such a product counts
    as () and may be any that the graph has and the run lacks, of the same operator.
    """
    executed = counts.copy()
    for product in sorted(promised - counts):
        nameless = product[0], ()
        spare = executed[nameless] - promised[nameless]
        taken = min(spare, promised[product] - counts[product])
        if taken > 0:
            executed[product] += taken
            executed[nameless] -= taken
    return +executed


def leaf_specs(specs: InputSpecs) -> Specs:
    """The type and shape of every tensor that a model takes: "0", "1.0", "mask".

    A type that numpy has not is drawn in float32: ``call_of`` rounds to it.
    """
    found: dict[str, TensorSpec] = {}

    def add(name: str, spec: InputSpec) -> None:
        if isinstance(spec, TensorSpec):
            is_narrow = dtype_named(spec.dtype).is_floating_point and spec.dtype not in NUMPY_HAS
            found[name] = replace(spec, dtype="float32") if is_narrow else spec
            return
        for position, part in enumerate(spec):
            add(f"{name}.{position}", part)

    for position, spec in enumerate(specs.positional):
        add(str(position), spec)
    for name, spec in specs.named.items():
        add(name, spec)
    return found


NUMPY_HAS = frozenset({"float16", "float32", "float64"})


def stacks(specs: Specs) -> bool:
    """Whether all tensors have one first dimension, along which rows may be stacked."""
    sizes = {spec.shape[:1] for spec in specs.values()}
    return len(sizes) == 1 and sizes != {()}


def call_of(specs: InputSpecs, inputs: Arrays) -> CallInputs:
    """Arrays, in the order of ``leaf_specs``, as arguments of a torch call."""
    given = iter(inputs.values())

    def tensor(spec: TensorSpec) -> torch.Tensor:
        return torch.from_numpy(next(given).copy()).to(dtype_named(spec.dtype))

    return call_inputs(specs, tensor)


def floating_weights(model: nn.Module) -> Mapping[str, Callable[[], NDArray[Any]]]:
    """What reads the values of every stored floating tensor, by name."""
    return {
        weight.name: partial(array, weight.tensor)
        for weight in named_weights(module_tree(model))
        if weight.tensor.is_floating_point()
    }


def array(tensor: torch.Tensor) -> NDArray[Any]:
    """Values as float64, or as the integers they are; complex ones as complex128."""
    if tensor.is_floating_point():
        tensor = tensor.double()
    found: NDArray[Any] = tensor.detach().cpu().resolve_conj().numpy()
    return found
