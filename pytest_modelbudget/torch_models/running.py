"""Torch models as they run: on values, in their own types, in float64, with operations replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from enum import Enum
from functools import cached_property, partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from pytest_modelbudget.equivalence.inputs import Specs
from pytest_modelbudget.errors import SourceError, TraceError, TransformError, user_code
from pytest_modelbudget.formats import model as models
from pytest_modelbudget.formats.benchmark import Plan, Timing
from pytest_modelbudget.formats.source import InputSpecs, TensorSpec
from pytest_modelbudget.graph.graph import Graph
from pytest_modelbudget.graph.tensor import Tensor, least_precise
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.torch_models import environment, versions
from pytest_modelbudget.torch_models.accelerators import MadeOnCPU, on_cpu
from pytest_modelbudget.torch_models.bodies import branches, failures_in_words
from pytest_modelbudget.torch_models.building import QuickFills
from pytest_modelbudget.torch_models.embedding_rows import IndexRanges, StoredReads
from pytest_modelbudget.torch_models.in_float64 import WIDER, InFloat64, in_float64, upcast
from pytest_modelbudget.torch_models.layer_outputs import ProbedValues, SeenLayers, probing
from pytest_modelbudget.torch_models.module_state import module_state_kept
from pytest_modelbudget.torch_models.outputs import content, opaque
from pytest_modelbudget.torch_models.packed_weights import packed_weights
from pytest_modelbudget.torch_models.recording import Scopes
from pytest_modelbudget.torch_models.rewriting import Compare, Rewrite, rewriting_with
from pytest_modelbudget.torch_models.tracing import NameOf, Rewriting, Subject, calling, wants_autograd
from pytest_modelbudget.torch_models.values import CallInputs, TorchValues, call_inputs, dtype_named, dtype_of, empty
from pytest_modelbudget.torch_models.versions import is_traceable_wrapper_subclass
from pytest_modelbudget.torch_models.weights import copied, is_compiled_in_place, module_tree, named_weights, redraw

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]


# What has no parts, and is the same where it is spelled alike.
PLAIN = (type(None), bool, int, str, bytes, Enum, torch.dtype, torch.device)


class TorchSource(Protocol):
    """One torch format: how a model is traced without its weights, and built with them."""

    def trace(self, model: TorchModel) -> models.LoadedModel:
        """The graph of a model of this source."""

    def training_step(self, model: TorchModel, optimizer: str) -> Graph:
        """The training step of a model of this source; raises TraceError where none is known."""

    def build(self, seed: int = 0) -> tuple[Subject, InputSpecs]:
        """A model with weights of its own copy, and its inputs."""

    def is_factory(self) -> bool:
        """Whether each build makes a new model, perhaps with other weights."""

    def surroundings(self) -> AbstractContextManager[None]:
        """The settings of torch that a model of this source is built, traced and run under."""

    def reachable(self, model: TorchModel) -> nn.Module:
        """The module that a user's code can reach, which may be the one that was built."""


class TorchModel(models.RunnableModel):
    """A torch model of any format: traced for its graph, and built with its weights to be run.

    It stays as it was, whatever is done with it. A rewrite replaces operations in every run and in
    the trace; the weights are untouched.
    """

    engine = "torch"
    can_be_redrawn = True

    def __init__(
        self,
        source: TorchSource,
        rules: OpTable,
        *,
        rewrite: Rewrite | None = None,
        built: tuple[Subject, InputSpecs] | None = None,
        weights: str = models.LOADED,
        copy_of: TorchModel | None = None,
        is_exact: bool = False,
    ) -> None:
        self.source = source
        self.rules = rules
        self.rewrite = rewrite
        self.weights = weights
        self.is_exact = is_exact
        self._copy_of = copy_of
        self._unreleased = built
        self._built = built
        self._has_compiled = False
        self._unrun: tuple[Subject, InputSpecs] | None = None  # what was built and nothing has run

    @cached_property
    def measured(self) -> models.LoadedModel:
        """What is measured of it: traced once, without its weights where that can be.

        Copies with other weights or in float64 have the graph of the model as it was loaded.
        """
        return self.source.trace(self) if self._copy_of is None else self._copy_of.measured

    def training_step(self, optimizer: str) -> Graph:
        if self.rewrite is not None:
            raise TraceError("a transform has replaced operations, of which no gradient is known")
        return self.source.training_step(self, optimizer)

    @property
    def is_copy(self) -> bool:
        return self._copy_of is not None

    def rewriting(self, compare: Compare | None = None) -> Rewriting | None:
        """What replaces operations in a trace or a run."""
        if self.rewrite is None:
            return None
        return rewriting_with(self.rewrite, self.rules, compare=compare)

    def _subject_and_specs(self) -> tuple[Subject, InputSpecs]:
        if self._built is None:
            self._built = self._unrun = self.source.build()
        return self._built

    @property
    def subject(self) -> Subject:
        return self._subject_and_specs()[0]

    @property
    def specs(self) -> InputSpecs:
        return self._subject_and_specs()[1]

    @cached_property
    def inputs(self) -> models.DrawnInputs:
        specs, ranges = leaf_specs(self.specs), self._index_ranges()
        specs = {name: replace(spec, high=ranges.get(name, spec.high)) for name, spec in specs.items()}
        unknown = ", ".join(f"'{name}'" for name, spec in specs.items() if _lacks_range(spec))
        notes = (f"integers 0 and 1 for {unknown}: give the input low and high",) if unknown else ()
        return models.DrawnInputs(specs, stacks(specs), no_arrays=tuple(no_arrays(self.specs)), notes=notes)

    def _index_ranges(self) -> Mapping[str, int]:
        """The rows of the tables that integer inputs without a range ask for, seen in one run."""
        lacking = [name for name, spec in leaf_specs(self.specs).items() if _lacks_range(spec)]
        if not lacking:
            return {}

        def smallest(spec: TensorSpec) -> torch.Tensor:
            if spec.values is not None:
                return empty(spec, "cpu")
            return torch.full(spec.shape, spec.low or 0, dtype=dtype_named(spec.dtype), device="cpu")

        try:
            with self.source.surroundings():
                inputs = call_inputs(self.specs, smallest)
                named = dict(inputs.tensors())
                ranges = IndexRanges({name: named[name] for name in lacking if named[name].numel()})
                self._run(inputs, models.UNWATCHED, ranges)
        except TraceError:  # which may be no inputs of this model
            return {}
        return ranges.ranges

    @property
    def dtype(self) -> str:
        stored = (weight.tensor for weight in named_weights(module_tree(self.subject.model)))
        return least_precise({dtype_of(each.dtype).name for each in stored})

    def stored(self) -> Mapping[str, Callable[[], NDArray[Any]]]:
        tensors = {weight.name: weight.tensor for weight in named_weights(module_tree(self.subject.model))}
        tensors.update(frozen_constants(self.subject.model))
        return {name: partial(array, tensor) for name, tensor in tensors.items() if tensor.is_floating_point()}

    def release(self) -> None:
        self._built, self._unrun = self._unreleased, None

    @property
    def drawn_names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.subject.model.named_parameters())

    def is_factory(self) -> bool:
        return self.source.is_factory()

    def draws_its_weights(self) -> bool:
        """Two seeds then give different ones. Files hold theirs, and an instance has its own."""
        if not self.source.is_factory():
            return False
        mine, other = self.subject.model, self._quickly_built(seed=1)
        # A factory that sets the seed itself gives one model, whose large tensors are not those of a quick build.
        return other is not mine and _differ(mine, other) and _differ(self._quickly_built(seed=0), other)

    def _quickly_built(self, seed: int) -> nn.Module:
        """The model of a seed, whose large random tensors have one value."""
        try:
            with QuickFills():
                return self.source.build(seed=seed)[0].model
        except SourceError:  # which that may be the cause of
            return self.source.build(seed=seed)[0].model

    def redrawn(self) -> TorchModel:
        """The same with drawn weights, in the module itself where that has not run; this one then builds another."""
        built, self._unrun = self._unrun or self.source.build(), None
        if built is self._built:
            self._built = None
        redraw(built[0].model)
        return TorchModel(
            self.source, self.rules, rewrite=self.rewrite, built=built, weights=models.DRAWN, copy_of=self
        )

    def in_float64(self) -> TorchModel:
        subject, specs = self._subject_and_specs()
        with environment.reproducible(), user_code("copying the model", TransformError):
            exact = subject.over(in_float64(copied(subject.model, WIDER)))
        return TorchModel(
            self.source,
            self.rules,
            rewrite=self.rewrite,
            built=(exact, specs),
            weights=self.weights,
            copy_of=self,
            is_exact=True,
        )

    def changed(self, source: TorchSource, rewrite: Rewrite | None = None) -> TorchModel:
        """A changed model of the same kind: another source, or the same under a rewrite."""
        built = self._subject_and_specs() if source is self.source and self.is_copy else None
        return TorchModel(
            source, self.rules, rewrite=rewrite, built=built, weights=self.weights, is_exact=self.is_exact
        )

    def run(self, inputs: Arrays, watch: models.Watch = models.UNWATCHED) -> models.Run:
        try:
            with self.source.surroundings(), telling_of_meta(self.subject.model):
                call = call_of(self.specs, inputs)
                return self._run_compiled(call) if watch.compiles else self._run(call, watch)
        except TraceError as error:
            raise TransformError(str(error)) from error

    def _run_compiled(self, call: CallInputs) -> models.Run:
        """A run in which nothing watches, nor replaces anything of torch."""
        if self.rewrite is not None:
            raise TransformError("operations of compiled code are not replaced")
        subject, modules = self.subject, module_tree(self.subject.model)
        in_place = [module for _, module in modules if is_compiled_in_place(module)]
        if any(vars(module)[versions.COMPILED_CALL] == getattr(module, versions.CALL) for module in in_place):
            raise TransformError("a copy of a module loses what compile() made: give a factory")
        scopes = subject.scopes(TorchValues(), modules)
        with (
            environment.reproducible(),
            environment.silenced(),
            versions.compiled_alone(anew=not self._has_compiled),
            user_code("compiling it", TransformError),
            module_state_kept(modules, with_values=True),
            environment.under(torch.inference_mode),
        ):
            structure, tensors = result_of(subject.run(call, scopes))
            outputs = copies_of(tensors)
        self._has_compiled = True
        return models.Run(outputs, structure)

    def timed(self, inputs: Arrays, plan: Plan) -> Timing:
        """A copy of its own, called as its user would, after one run that puts it into eval mode."""
        from pytest_modelbudget.torch_models.benchmark import time_calls  # which loads torch's profiler

        subject, specs = self.source.build()
        call = call_of(specs, inputs)
        running, settings = user_code("running it", TransformError), self.source.surroundings()
        with settings, environment.reproducible(), environment.silenced(), telling_of_meta(subject.model), running:
            with on_cpu(), environment.under(torch.inference_mode):
                subject.run(call, subject.scopes(TorchValues(), module_tree(subject.model)))
            return time_calls(subject, call, plan)

    def branches(self, coverage: models.Coverage) -> models.Branches | None:
        """Those of torch.cond; literals that no module stores are known by the digests that the trace has taken."""
        if not coverage.executed:
            return None
        tables = self.tables()
        literals = {name: each for fork in self.graph.forks for name, each in fork.literals.items()}

        def name_of(tensor: Tensor) -> str:
            return tensor.storage.name if tensor.storage.name in tables else ""

        def digest_of(tensor: Tensor) -> str:
            name = tensor.storage.name
            return sha256(tables[name]().tobytes()).hexdigest() if name in tables else literals.get(name, "")

        return models.Branches(self.graph, tuple(branches(self.graph, coverage.executed)), name_of, digest_of)

    def tables(self) -> Mapping[str, Callable[[], NDArray[Any]]]:
        modules = module_tree(self.subject.model)
        weights = (*named_weights(modules), *(weight for _, weight in packed_weights(modules)))
        return {weight.name: partial(array, weight.tensor) for weight in weights}

    def _run(self, inputs: CallInputs, watch: models.Watch, mode: environment.EagerMode | None = None) -> models.Run:
        """What the model returns, in eval mode and on the CPU; without autograd where that can be.

        mode sees every operator.
        """
        try:
            return self._run_under(torch.inference_mode, inputs, watch, mode)
        except TraceError as error:
            if not wants_autograd(error):
                raise
            return self._run_under(torch.no_grad, inputs, watch, mode)

    def _run_under(
        self, grad: Any, inputs: CallInputs, watch: models.Watch, mode: environment.EagerMode | None
    ) -> models.Run:
        """One run. What it gave is copied before the model is as it was: it may be memory that the model keeps."""
        subject, self._unrun, seen = self.subject, None, None
        modules = module_tree(subject.model)
        scopes = subject.scopes(TorchValues(), modules)
        reads = None if watch.coverage is None else StoredReads(named_weights(modules), packed_weights(modules))
        arguments = upcast(inputs) if self.is_exact else inputs
        modes: list[AbstractContextManager[Any] | None] = [MadeOnCPU(), *self._changing(watch, scopes)]
        if self.is_exact:  # above a rewrite, which then works on float64 alone
            modes += [environment.default_dtype(torch.float64), InFloat64()]
        modes += [mode, reads]  # what the model does, and not what a rewrite makes of it
        if watch.layers is not None:
            given = (tensor for _, tensor in arguments.tensors())
            seen = SeenLayers(subject.model, given, of_operators=bool(watch.layers))
            modes.append(seen.watching())
        with calling(modules, scopes, grad, filter(None, modes), is_run=True) as (_, noticed):
            with failures_in_words():
                returned = subject.run(arguments, scopes)
            structure, tensors = result_of(returned)
            with versions.disable_current_modes():
                outputs = copies_of(tensors)
        if watch.coverage is not None and reads is not None:
            reads.add_to(watch.coverage, (tensor for _, tensor in tensors))
        layers = seen.outputs(tensor for _, tensor in tensors) if seen else ()
        is_compiled = bool(noticed.compiled) or any(is_compiled_in_place(module) for _, module in modules)
        return models.Run(outputs, structure, layers=layers, is_compiled=is_compiled)

    def _changing(self, watch: models.Watch, scopes: Scopes) -> Iterator[AbstractContextManager[Any]]:
        """What replaces operations of a run, or their values, in the order in which it is entered."""
        model = self.subject.model
        rewriting = self.rewriting(_compared(watch.compare) if watch.compare else None)
        if rewriting is not None:
            yield rewriting(weight_names(model), lambda: scopes.scope_of(()))
        if watch.probe is not None:
            yield probing(ProbedValues(watch.probe, array), model, scopes, self.rules, weight_names(model))


def _compared(compare: Callable[[str, NDArray[Any], NDArray[Any]], None]) -> Compare:
    """The same comparison of tensors."""

    def compared(scope: str, before: torch.Tensor, after: torch.Tensor) -> None:
        compare(scope, array(before), array(after))

    return compared


def weight_names(model: nn.Module) -> NameOf:
    """A function that names the weight whose memory a tensor is on; "" for any other."""
    names: dict[int, str] = {}
    for weight in named_weights(module_tree(model)):
        names.setdefault(versions.memory_of(weight.tensor), weight.name)
    return lambda tensor: names.get(versions.memory_of(tensor), "")


def result_of(returned: Any) -> tuple[str, list[tuple[str, torch.Tensor]]]:
    """The containers of what a model returned, and the tensors in them with their places.

    Raises TraceError for what cannot be looked into: nobody could say that it is still the same.
    """
    outputs: list[tuple[str, torch.Tensor]] = []
    return _described(returned, "", outputs, ()), outputs


def copies_of(tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[models.Output, ...]:
    """Named tensors as outputs of a run, in memory of their own."""
    return tuple(models.Output(name, dtype_of(each.dtype).name, array(each.clone())) for name, each in tensors)


def _described(value: Any, name: str, outputs: list[tuple[str, torch.Tensor]], around: tuple[Any, ...]) -> str:
    """What a value looks like from outside; its tensors are added to outputs.

    around are the containers that it lies in.
    """
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_nested:
            kind, way = ("nested", "to_padded_tensor(0)") if value.is_nested else (str(value.layout), "to_dense()")
            what = f"output '{name or '0'}' is a {kind} tensor, whose values are not compared"
            raise TraceError(f"{what}: return what its .{way} gives")
        outputs.append((name or "0", value.detach()))
        return "tensor"
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, (float, complex)):
        dtype = torch.complex128 if isinstance(value, complex) else torch.float64
        outputs.append((name or "0", torch.tensor(value, dtype=dtype)))
        return type(value).__name__
    if any(value is outer for outer in around):
        return f"the {type(value).__name__} around it"
    parts = content(value)
    if parts is None:
        raise opaque(value, name or "0")
    around = (*around, value)
    below = ((str(key), _described(part, f"{name}.{key}" if name else str(key), outputs, around))
             for key, part in parts)  # fmt: skip
    return f"{type(value).__name__}({', '.join(f'{key}: {shown}' for key, shown in below)})"


def leaf_specs(specs: InputSpecs) -> Specs:
    """The type and shape of every tensor that a model takes: "0", "1.0", "mask".

    A type that numpy has not is drawn in float32: ``call_of`` rounds to it.
    """

    def drawable(spec: TensorSpec) -> TensorSpec:
        is_narrow = dtype_named(spec.dtype).is_floating_point and spec.dtype not in NUMPY_HAS
        return replace(spec, dtype="float32") if is_narrow else spec

    return {name: drawable(spec) for name, spec in specs.tensors()}


def _lacks_range(spec: TensorSpec) -> bool:
    return "int" in spec.dtype and spec.low is None and spec.high is None


def no_arrays(specs: InputSpecs) -> Iterator[str]:
    """Inputs that are no arrays of a type that numpy has."""
    for name, spec in specs.arguments():
        if isinstance(spec, (tuple, Mapping)):
            yield f"input '{name}' is a {'list' if isinstance(spec, tuple) else 'dict'}"
        elif isinstance(spec, TensorSpec) and spec.dtype == "bfloat16":
            yield f"input '{name}' is {spec.dtype}"


NUMPY_HAS = frozenset({"float16", "float32", "float64"})
NO_VALUES = "{} lies on meta, and has no values to compute with: build the model on a CPU"


def stacks(specs: Specs) -> bool:
    """Whether all tensors have one first dimension, along which rows may be stacked."""
    sizes = {spec.shape[:1] for spec in specs.values()}
    return len(sizes) == 1 and sizes != {()}


def call_of(specs: InputSpecs, inputs: Arrays) -> CallInputs:
    """Arrays, in the order of ``leaf_specs``, as arguments of a torch call."""
    values = iter(inputs.values())

    def tensor(spec: TensorSpec) -> torch.Tensor:
        return torch.from_numpy(next(values).copy()).to(dtype_named(spec.dtype))

    return call_inputs(specs, tensor)


@contextmanager
def telling_of_meta(model: nn.Module) -> Iterator[None]:
    """Say of a model that fails where it is run, and that has weights on meta, that these have no values."""
    try:
        yield
    except (TraceError, TransformError) as error:
        weights = named_weights(module_tree(model))
        name = next((f"'{weight.name}'" for weight in weights if weight.tensor.is_meta), "")
        if not name:
            raise
        raise TransformError(NO_VALUES.format(name)) from error


def frozen_constants(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors from rank 1 on that freezing has written into a script's program."""
    if not isinstance(model, torch.jit.ScriptModule) or hasattr(model, "training"):
        return
    graph: Any = model.inlined_graph  # which owns its nodes
    for number, node in enumerate(graph.findAllNodes("prim::Constant")):
        if node.hasAttribute("value") and node.kindOf("value") == "t" and node.t("value").dim():
            yield f"constant.{number}", node.t("value")


def array(tensor: torch.Tensor) -> NDArray[Any]:
    """Values as float64, or as the integers they are; complex ones as complex128.

    Quantised tensors, and wrappers that know how, give the numbers that they stand for. Raises TransformError for a
    tensor on meta.
    """
    if tensor.is_meta:
        raise TransformError(NO_VALUES.format("a tensor"))
    if tensor.is_quantized or is_traceable_wrapper_subclass(tensor):
        tensor = tensor.dequantize()
    if tensor.is_floating_point():
        tensor = tensor.double()
    values: NDArray[Any] = tensor.detach().cpu().resolve_conj().numpy()
    return values


def _differ(first: nn.Module, second: nn.Module) -> bool:
    """Whether a floating weight has other values in the second model; on meta none has any."""
    weights = (named_weights(module_tree(model)) for model in (first, second))
    return any(
        one.tensor.is_floating_point() and not one.tensor.is_meta and not torch.equal(one.tensor, other.tensor)
        for one, other in zip(*weights, strict=False)
    )
