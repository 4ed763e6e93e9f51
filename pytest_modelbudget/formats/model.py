"""A model after its format has stopped mattering: what is measured of it, and how it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from pytest_modelbudget.errors import TraceError, TransformError
from pytest_modelbudget.formats.benchmark import Plan, Timing
from pytest_modelbudget.formats.source import NO_INPUTS, InputSpecs, TensorSpec
from pytest_modelbudget.graph.graph import Graph, Op
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.units import with_article

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[Any]
    Arrays = Mapping[str, Values]


@dataclass(frozen=True, init=False)
class LayerCall:
    """One call of one layer of the module tree, for the layer table.

    scope is its module path, type its class name; kernel is the window of a convolution or pool,
    () where there is none.
    """

    scope: str
    type: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    kernel: tuple[int, ...] = ()
    leaf: bool = True

    def __init__(
        self, scope: str, type: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...],
        kernel: tuple[int, ...] = (), leaf: bool = True,
    ) -> None:  # fmt: skip
        fields = self.__dict__  # as those of a Tensor
        fields["scope"], fields["type"], fields["inputs"], fields["outputs"] = scope, type, inputs, outputs
        fields["kernel"], fields["leaf"] = kernel, leaf


class Model(Protocol):
    """What is measured of a model: its graph, its layers in call order, how both were obtained.

    traced is "meta" (no compute), "fake" (no compute, with devices and constants kept) or "real"
    (one run on seeded inputs, where data decides the shapes); of an ONNX file its versions; "" of others that are read.
    notes say what a reader of the numbers must know, such as "recorded under no_grad".
    """

    @property
    def graph(self) -> Graph: ...
    @property
    def format(self) -> str: ...
    @property
    def traced(self) -> str: ...
    @property
    def layers(self) -> tuple[LayerCall, ...]: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that can be measured and not run.

    offered are example inputs that it carries, where it was given none and could not be run.
    """

    graph: Graph
    format: str
    traced: str = ""
    layers: tuple[LayerCall, ...] = ()
    notes: tuple[str, ...] = ()
    offered: InputSpecs = NO_INPUTS


@dataclass(frozen=True, slots=True)
class Change:
    """One operation or layer that a transform met.

    became says what it was changed into ("9,216 products of 64x64"), and is "" where it stayed as
    it was; why then says for what reason.
    """

    scope: str
    operation: str
    became: str = ""
    why: str = ""


# Running.


@dataclass(frozen=True, slots=True)
class DrawnInputs:
    """What is drawn for each input of a model, by name.

    stacks says that rows may be stacked along the first axis, resizes that this axis may have any
    size. no_arrays names inputs that other frameworks do not take, and why. notes say what a reader
    must know of the values.
    """

    specs: Mapping[str, TensorSpec]
    stacks: bool = False
    resizes: bool = True
    no_arrays: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a run: its name, the type that the model gives it, and its values."""

    name: str
    dtype: str
    values: Values


@dataclass(frozen=True, slots=True)
class LayerOutput:
    """What a layer gave in a run: a floating tensor, under the name that it has there.

    readers are the positions of those layers that read it, where they are known; is_output says
    that something else gets it, too: a caller, or what is no floating tensor. is_constant says that
    it does not depend on any input. A value without a name is matched by what it is alone.
    """

    name: str
    scope: str
    values: Values
    readers: tuple[int, ...] = ()
    is_output: bool = False
    is_constant: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """What a run returned, and what was seen of it on the way.

    structure spells the containers around the outputs; it is "" in a format that has none. values
    are those that were watched by name, layers the outputs of layers. is_compiled says that the model has compiled
    code, which ran as it is written.
    """

    outputs: tuple[Output, ...]
    structure: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    layers: tuple[LayerOutput, ...] = ()
    is_compiled: bool = False


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the runs of a model have reached: elements of its stored tensors, and branches of its forks.

    masks say which elements were read, by name; one of shape () says it of all of them. executed are the branches that
    ran, by their fork.
    """

    masks: dict[str, Values] = field(default_factory=dict)
    executed: dict[str, set[str]] = field(default_factory=dict)

    def read(self, name: str, mask: Values) -> None:
        """One more run has read these elements of a stored tensor."""
        known = self.masks.get(name)
        if known is None or not known.all():
            self.masks[name] = mask if known is None or mask.all() else known | mask

    def execute(self, fork: str, branch: str) -> None:
        """One more run has executed a branch of a fork."""
        self.executed.setdefault(fork, set()).add(branch)


class Branch(NamedTuple):
    """One branch of a fork: its program, and the operations around it.

    fork and name say which of a model, place where that is for eyes: "If 'y'". executed says whether a run executed it,
    None where no run tells.
    """

    fork: str
    name: str
    place: str
    executed: bool | None
    body: Graph
    around: tuple[Op, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Branches:
    """The branches of a model that values choose, in its program.

    digest_of says what the values of a stored tensor are, "" where nobody knows. name_of is its name where tensors of
    one name are compared as they are stored if no run has read them, else "".
    """

    program: Graph
    branches: tuple[Branch, ...]
    name_of: Callable[[Tensor], str]
    digest_of: Callable[[Tensor], str]


@dataclass(frozen=True, slots=True)
class LayerValue:
    """What one call of a layer gave, or an operation where a format has no layers.

    name tells it from all others of a run; type is a module's class or an operator's name, dtype that of the model.
    """

    name: str
    scope: str
    type: str
    dtype: str
    values: Values


@dataclass(frozen=True, slots=True)
class Probe:
    """Takes values on the way, one by one, so that no more than those of one call are kept.

    wants is asked for the scope of a layer, the names of its type, and whether others lie inside of it.
    """

    wants: Callable[[str, Collection[str], bool], bool]
    take: Callable[[LayerValue], None]


@dataclass(frozen=True, slots=True)
class Watch:
    """What a run records in addition to its outputs; a model may know nothing of it.

    names are values on the way. given are values of another run, which need not be computed again.
    layers asks for the outputs of layers: of all, and where these names are asked after, of everything
    between them that may be one of those under another name. compare gets the scope of each
    operation that took another's place, what that one gives, and what this one does. coverage gets what
    the run reaches of the model, probe what layers give while it runs. compiles asks for nothing of that,
    and for compiled code as its user runs it, which is run as it is written else.
    """

    names: Collection[str] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    layers: Collection[str] | None = None
    compare: Callable[[str, Values, Values], None] | None = None
    coverage: Coverage | None = None
    probe: Probe | None = None
    compiles: bool = False


UNWATCHED = Watch()
LOADED, DRAWN = "as loaded", "drawn, seed 0"  # what a report says of the weights of a run


@dataclass(frozen=True, slots=True)
class LayerPair:
    """One changed layer, cut out of both models: its scope, and what it was and is."""

    scope: str
    original: RunnableModel
    changed: RunnableModel


def no_layers() -> Iterator[LayerPair]:
    """Layers of models that none can be cut out of: raises TransformError."""
    raise TransformError("no layer of it can be run alone")


@dataclass(frozen=True, slots=True)
class Shared:
    """What is known of two models without a run.

    given are names of values that the first hands to the second, layers the scopes, by name, of values that
    both have and compute otherwise. pairs cuts the changed layers out of both. Nothing known is nothing shared.
    """

    given: tuple[str, ...] = ()
    layers: Mapping[str, str] = field(default_factory=dict)
    pairs: Callable[[], Iterator[LayerPair]] = no_layers


NOTHING_SHARED = Shared()


class RunnableModel(ABC):
    """A model that runs on arrays by name, and so can be compared and changed.

    engine names the framework that it runs on, for transforms of that framework's models; "" leaves
    them those of its own format. weights says whether they are as loaded, or drawn; missing why
    they could not be loaded. dtype is the least precise floating type that it stores, "" where it
    has none. A model that cannot be redrawn is judged on the weights that it has. Where it runs_apart, a copy of it may
    run at the same time: a run changes nothing that both have.
    """

    engine: ClassVar[str] = ""
    weights: str = LOADED
    missing: str = ""
    can_be_redrawn: ClassVar[bool] = False
    runs_apart: ClassVar[bool] = False

    @property
    @abstractmethod
    def measured(self) -> LoadedModel:
        """What is measured of it, worked out when it is asked for."""

    @property
    def graph(self) -> Graph:
        return self.measured.graph

    @property
    def format(self) -> str:
        return self.measured.format

    @property
    def traced(self) -> str:
        return self.measured.traced

    @property
    def layers(self) -> tuple[LayerCall, ...]:
        return self.measured.layers

    @property
    def notes(self) -> tuple[str, ...]:
        return self.measured.notes

    @property
    def offered(self) -> InputSpecs:
        return self.measured.offered

    @property
    @abstractmethod
    def inputs(self) -> DrawnInputs:
        """What it is run on."""

    @property
    @abstractmethod
    def dtype(self) -> str: ...

    @abstractmethod
    def run(self, inputs: Arrays, watch: Watch = UNWATCHED) -> Run:
        """All outputs, in their order. Raises TransformError where the model cannot run."""

    def timed(self, inputs: Arrays, plan: Plan) -> Timing:
        """What its calls take on a device, as nothing but itself runs.

        Raises MissingDeviceError where that device is not there, TransformError where the model cannot run so.
        """
        raise TransformError(f"{with_article(self.format)} model is not measured where it runs: leave out 'runtime'")

    def in_float64(self) -> RunnableModel:
        """The same model, its weights and operations in float64; raises TransformError where that cannot be."""
        raise TransformError(f"{with_article(self.format)} model does not run in float64")

    def redrawn(self) -> RunnableModel:
        """The same model with other weights, drawn from seed 0 at a scale that keeps it alive."""
        raise TransformError(f"{with_article(self.format)} model cannot be redrawn")

    def is_factory(self) -> bool:
        """Whether loading it again makes another model, perhaps with other weights."""
        return False

    def draws_its_weights(self) -> bool:
        """Whether loading it fills its weights at random."""
        return False

    @property
    def drawn_names(self) -> frozenset[str]:
        """Under which names redrawing draws."""
        return frozenset()

    def stored(self) -> Mapping[str, Callable[[], Values]]:
        """What reads the values of each stored floating tensor, by name."""
        return {}

    def tables(self) -> Mapping[str, Callable[[], Values]]:
        """The same of every stored tensor that a run may read in part, integers among them."""
        return self.stored()

    def numbers(self) -> Mapping[str, Callable[[], Values]]:
        """The same of every stored tensor, and of lists that operators hold themselves."""
        return self.tables()

    def branches(self, coverage: Coverage) -> Branches | None:
        """The branches that values choose, after runs that have noted which they executed; None of a model without."""
        return None

    def differences_from(self, original: RunnableModel) -> tuple[str, ...]:
        """How its inputs and outputs are declared otherwise than the original's."""
        return ()

    def shared_with(self, original: RunnableModel) -> Shared:
        """What this model is known to share with the one that it was made from."""
        return NOTHING_SHARED

    def training_step(self, optimizer: str) -> Graph:
        """Its training step with one of ``OPTIMIZERS``; raises TraceError where none is known."""
        raise no_training_step(self.format)

    def release(self) -> None:  # noqa: B027  # most models hold nothing that can be made again
        """Forget what can be made again: weights that were built, sessions."""


def training_step(model: Model, optimizer: str) -> Graph:
    """A model's training step: forward and backward, its weights all that it holds; raises TraceError without one."""
    if model.graph.operations_unknown:
        raise TraceError(model.graph.operations_unknown)
    if isinstance(model, RunnableModel):
        return model.training_step(optimizer)
    raise no_training_step(model.format)


def no_training_step(format: str) -> TraceError:
    """Why a format has no training step: it holds what inference runs."""
    return TraceError(f"a model under {format}: has no training step: name the module itself under torch:")


def must_run(
    model: Model, so: str = "so that its outputs cannot be compared: leave out 'equivalence'"
) -> RunnableModel:
    """The model as one that runs. Raises TransformError, saying what follows, for one that can only be measured."""
    if isinstance(model, RunnableModel):
        return model
    raise TransformError(f"{with_article(model.format)} model can be measured and not run, {so}")
