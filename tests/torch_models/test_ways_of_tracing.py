"""Meta, fake or real: which way a model is recorded, and what happens when none works."""

from __future__ import annotations

import re
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import StringIO
from itertools import count
from logging import getLogger
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from pytest_modelbudget.errors import InputError, SourceError, TraceError
from pytest_modelbudget.formats.model import LoadedModel
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.formats.table import format_table
from pytest_modelbudget.metrics.compute import flops, macs
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.storage import peak_activation
from pytest_modelbudget.metrics.traffic import bandwidth
from pytest_modelbudget.ops.table import builtin_ops
from pytest_modelbudget.torch_models.results import returned_tensors
from tests.builders.micro_modules import Apply, weight

pytestmark = pytest.mark.needs_torch


def loaded(target: Any, *shapes: tuple[int, ...], dtype: str = "float32") -> LoadedModel:
    """A module recorded on inputs of these shapes."""
    specs = InputSpecs(tuple(TensorSpec(dtype, shape, 0, 4) for shape in shapes))
    model = format_table()["torch"].load(ModelSource("torch", target, specs), builtin_ops())
    model.graph  # noqa: B018  # it is recorded when its graph is asked for
    return model


def mac_count(model: LoadedModel) -> int:
    """MACs of a recorded model."""
    measured = macs(CostedGraph(model.graph, builtin_ops()))
    assert measured.complete
    return int(measured.value)


def test_a_plain_model_needs_no_computing() -> None:
    """Nothing but shapes is asked for, so meta tensors do."""
    assert loaded(nn.Linear(4, 4), (2, 4)).traced == "fake"


def test_a_model_that_casts_is_traced_with_fake_tensors() -> None:
    """Tensors on meta do not see autocast."""

    def cast(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu"):
            return x @ m.w

    model = loaded(Apply(cast, w=weight(4, 3)), (2, 4))
    assert (model.traced, mac_count(model)) == ("fake", 2 * 4 * 3)


def test_a_model_whose_data_decides_is_run() -> None:
    """A branch on a value needs the value: a real run on seeded inputs."""

    def by_sign(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (x.abs() if x.sum() > 0 else -x) @ m.w

    model = loaded(Apply(by_sign, w=weight(4, 3)), (2, 4))
    assert (model.traced, mac_count(model)) == ("real", 2 * 4 * 3)


def test_a_real_run_draws_the_same_inputs_each_time() -> None:
    """What the data decides is the same in every run: the count of positive elements."""
    keep_positive = Apply(lambda m, x: x[x > 0][:, None] @ m.w, w=weight(1, 3))
    first, second = (mac_count(loaded(keep_positive, (64,))) for _ in range(2))
    assert first == second > 0


def test_a_forward_pass_that_calls_autograd_is_recorded_under_no_grad() -> None:
    """inference_mode forbids it, and the record says that it was done without."""

    def gradient(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x.clone().requires_grad_()
            (grad,) = torch.autograd.grad((x @ m.w).sum(), x)
        return grad

    model = loaded(Apply(gradient, w=weight(4, 3)), (2, 4))
    assert model.notes == ("recorded under no_grad: the forward pass calls autograd",)


@dataclass
class Answer:
    """What a model of a library returns."""

    scores: torch.Tensor
    more: tuple[torch.Tensor, ...]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x, y: (x, [y]),
        lambda x, y: {"scores": x, "more": (y,)},
        lambda x, y: OrderedDict(scores=x, more=y),
        lambda x, y: Answer(x, (y,)),
    ],
    ids=["tuple", "dict", "ordered dict", "dataclass"],
)
def test_outputs_are_found_in_any_container(wrap: Any) -> None:
    """Both results live to the end, whatever holds them."""
    model = loaded(Apply(lambda x: wrap(x + 1, x * 2)), (2, 4))
    assert len(model.graph.outputs) == 2


def test_lists_of_tensors_are_one_argument() -> None:
    """Detectors take a list of images of different sizes."""
    images = (TensorSpec("float32", (3, 4)), TensorSpec("float32", (5, 4)))
    source = ModelSource("torch", Apply(lambda m, xs: [x @ m.w for x in xs], w=weight(4, 2)), InputSpecs((images,)))
    model = format_table()["torch"].load(source, builtin_ops())
    assert mac_count(model) == (3 + 5) * 4 * 2


def test_a_tensor_that_is_no_parameter_is_a_constant() -> None:
    """It is read as a weight is, and is no parameter; meta and real tensors meet."""
    table = torch.randn(4, 3)
    model = loaded(Apply(lambda x: x @ table), (2, 4))
    (constant,) = [w for w in model.graph.weights if w.kind.value == "constant"]
    assert (model.traced, constant.tensor.shape, constant.persistent) == ("fake", (4, 3), False)


def test_shapes_worked_out_with_tensors_stay_known() -> None:
    """Arithmetic on real scalars is computed, so that no run is needed for a shape."""

    def reshaped(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(int(torch.tensor(2) * 2), -1)

    assert loaded(Apply(reshaped), (8, 2)).traced == "fake"


class LazyModel(nn.Module):
    """A module whose shape comes with its first input."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.LazyLinear(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


def failing_factory() -> nn.Module:
    """A factory with a mistake in it."""
    raise KeyError("checkpoint")


HERE = __name__


@pytest.mark.parametrize(
    ("target", "error", "words"),
    [
        ("nowhere.at.all:model", SourceError, "no module 'nowhere'"),
        ("torchvision.models:resnet19", SourceError, "did you mean 'resnet18'"),
        ("torchvision.models", SourceError, "not module:callable"),
        ("torch:float32", SourceError, "not a module or a callable"),
        ("torch:nn", SourceError, "torch:nn is a Python module: name a callable in it that builds the model"),
        ("torch:zeros", SourceError, "calling torch:zeros raised TypeError"),
        ("builtins:dict", SourceError, "returned dict"),
        (failing_factory, SourceError, "raised KeyError: 'checkpoint' (in failing_factory"),
        (nn.Linear(3, 3), TraceError, "same reduction dim"),
        (LazyModel, TraceError, "fc.weight has no shape yet"),
        (Apply(lambda x: exit(3)), TraceError, "raised SystemExit: 3"),
        (Apply(lambda x, y: x), TraceError, "missing 1 required positional argument: 'y'"),
    ],
)
def test_errors_name_the_place_and_the_cause(target: Any, error: type[Exception], words: str) -> None:
    """Whatever a model raises becomes one sentence."""
    with pytest.raises(error) as caught:
        loaded(target, (2, 4))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_element_type_is_an_input_error() -> None:
    """float23 is no type of torch."""
    with pytest.raises(InputError, match="'float23' is no element type"):
        loaded(nn.Linear(4, 4), (2, 4), dtype="float23")


def _asks_for_a_value(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


def _writes_into_numpy(x: torch.Tensor) -> torch.Tensor:
    x.numpy()[:] = 0
    return x


def _needs_no_memory_alone(x: torch.Tensor) -> torch.Tensor:
    if torch._C.TensorBase.is_meta.__get__(x) or type(x) is not torch.Tensor:
        raise ValueError(f"no kernel for a {type(x).__name__}")
    return x


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        pytest.param(_asks_for_a_value, r"GuardOnDataDependentSymNode|DataDependentOutput|_local_scalar", id="a value"),
        pytest.param(_writes_into_numpy, "numpy", id="numpy"),
        pytest.param(_needs_no_memory_alone, "raised ValueError: no kernel for a FakeTensor", id="its own words"),
    ],
)
def test_a_model_that_needs_a_run_and_does_not_fit_is_refused(
    forward: Callable[[torch.Tensor], torch.Tensor], why: str
) -> None:
    """40 TB of weights: said, not tried, with what kept it from being followed without a run."""

    class Huge(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.empty(1).expand(10**13))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return forward(x)

    with pytest.raises(TraceError, match="must run, but its weights take 40,000,000,000,000 B") as caught:
        loaded(Huge(), (2, 4))
    assert re.search(why, str(caught.value))
    assert "measure it where there is more" in str(caught.value)


def by_numpy(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A product that numpy computes."""
    return torch.from_numpy(x.numpy() @ m.w.detach().numpy())


def test_values_that_leave_torch_are_not_zero_macs() -> None:
    """What numpy computes is not seen, so MACs, FLOPs and traffic are unmeasured, and say so."""
    model = loaded(Apply(by_numpy, w=weight(4, 3)), (2, 4))
    graph = CostedGraph(model.graph, builtin_ops())
    for metric in (macs(graph), flops(graph), bandwidth(graph)):
        assert any("values leave torch" in each.why for each in metric.unmeasured)


def in_a_thread(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A product that another thread computes."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.matmul, x, m.w).result() + 1


OUTSIDE = torch.ones(4, 3)


class Hoarder(nn.Module):
    """Layers in a plain list, of which its parameters() know nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(4, 4)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[0](x)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Apply(in_a_thread, w=weight(4, 3)), "does its forward pass compute in another thread"),
        (Hoarder(), "keep layers in nn.ModuleList"),
        (
            Apply(lambda x: x @ nn.Parameter(OUTSIDE)),
            "a weight as an attribute of a module, made before the forward pass",
        ),
        (Apply(lambda x: "none"), "returns a str in which there is no tensor"),
        (Apply(lambda x: (y @ y.T for y in [x])), "returns a generator, and what that gives is computed only when"),
        (Apply(lambda x: (x, (y @ y.T for y in [x]))), "returns a generator, and .* return a list or a tuple"),
        (Apply(lambda x: {"a": x, "b": [map(torch.relu, [x])]}), "returns a map, and "),
        (Apply(lambda x: (x, torch.jit.fork(torch.relu, x))), "returns a Future, and "),
        (Apply(lambda x: (x, zip([x], [x]))), "returns a zip, and "),  # noqa: B905
        (Apply(lambda x: (x, map(abs, [1]))), "returns a map, and "),
        (Apply(lambda x: (x, lambda: x + 1)), "returns a function, and what that gives is computed only when"),
        (Apply(lambda x: (x, lambda other=x: other @ other.T)), "returns a function, and "),
        (Apply(lambda x: SimpleNamespace(x=x, later=partial(torch.add, x))), "returns a partial, and "),
        (Apply(lambda x: (x, {"sum": x.sum})), "returns a builtin_function_or_method, and "),
        (Apply(lambda x: (x, Cached(x).later)), "returns a method, and "),
        (Apply(lambda x: (x, lambda: lambda: [x])), "returns a function, and "),
        (Apply(lambda x: (x, with_attribute(lambda: 3, x))), "returns a function, and "),
        (Apply(lambda x: (x, with_attribute(partial(max, 2), x))), "returns a partial, and "),
        (Apply(lambda x: (x, type("Made", (), {"later": lambda self: x + 1}))), "returns a function, and "),
        (Apply(lambda x: (x, type("Made", (), {"later": lambda self: x + 1})())), "returns a function, and "),
        (Apply(lambda x: (x, type("Made", (), {"later": property(lambda self: x + 1)})())), "returns a function, and "),
        (Apply(lambda x: (x, type("Made", (), {"later": staticmethod(lambda: x + 1)}))), "returns a function, and "),
        (Apply(lambda x: (x, partial(Slotted.__init__, type("Made", (), {"kept": x})))), "returns a partial, and "),
        (Apply(lambda x: (x, type("Made", (), {"later": (y @ y.T for y in [x])}))), "returns a generator, and "),
        (Apply(lambda x: (x, type("Made", (), {"later": with_generators_within()}))), "returns a generator, and "),
        (Apply(lambda x: (x, type("Made", (), {"later": with_an_import()}))), "returns a generator, and "),
        (Apply(lambda x: (LATEST.append(x + 1), x, lambda: LATEST[-1] * 2)), "returns a function, and "),
    ],
    ids=[
        *(
            "thread",
            "plain list",
            "parameter of a global",
            "no tensor",
            "generator",
            "generator beside",
            "map within",
            "future",
            "zip",
        ),
        *("map of numbers", "function", "default", "partial", "method of a tensor", "method", "function in another"),
        *("attribute", "attribute of a partial"),
        *(
            "of a class",
            "of an object's class",
            "property",
            "static",
            "beside a class",
            "generator of a class",
            "generator in that",
            "generator that imports",
            "global",
        ),
    ],
)
def test_what_the_graph_would_lack_is_refused(model: nn.Module, words: str) -> None:
    """A number that quietly leaves work or weights out is never given."""
    with pytest.raises(TraceError, match=words):
        loaded(model, (2, 4))


LATEST: list[torch.Tensor] = []


class Puts(nn.Module):
    """Puts what was computed on itself or a layer, as it is or in a list, and returns what reads it there."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.layer, self.steps = where, nn.Linear(4, 4), torch.ones(4)
        self.register_buffer("seen", torch.zeros(4))

    def later(self) -> Any:
        return self.steps, self.seen

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x)
        match self.where:
            case "itself":
                self.kept = y
            case "a list":
                self.kept = [y]
            case "a layer":
                self.layer.kept = y
            case "a buffer":
                self.seen = y
        return y, self.later


@pytest.mark.parametrize("where", ["itself", "a list", "a layer", "a buffer"])
def test_a_function_of_what_the_pass_put_on_a_module_is_refused(where: str) -> None:
    """It computes more of it when somebody calls it; a constant and a buffer of the model are parts of that."""
    with pytest.raises(TraceError, match="what that gives is computed only when"):
        loaded(Puts(where), (2, 4))
    assert len(loaded(Puts("nowhere"), (2, 4)).graph.outputs) == 1


class Cached:
    """Keeps what was computed, for a method that computes more."""

    def __init__(self, kept: torch.Tensor) -> None:
        self.kept = kept

    def later(self) -> torch.Tensor:
        return self.kept @ self.kept.T


class Slotted:
    __slots__ = ("first", "second")

    def __init__(self, first: torch.Tensor, second: torch.Tensor) -> None:
        self.first, self.second = first, second


class Listed(list[torch.Tensor]):
    pass


def with_attribute(owner: Any, value: object) -> Any:
    owner.other = value
    return owner


class Unready:
    """What a library puts into classes to be built later, as pydantic does: without a dictionary, and loud."""

    __slots__ = ("built",)

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name}: not built yet")


class UnreadyMapping(Mapping[str, Any]):
    """Alike."""

    def __getitem__(self, name: str) -> Any:
        raise RuntimeError("not built yet")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("not built yet")

    def __len__(self) -> int:
        raise RuntimeError("not built yet")


class Lazy:
    """A class of a library, older than the pass."""

    validator, schema = Unready(), UnreadyMapping()


def noted() -> Any:
    """A new class that notes its objects, whose methods know the class by super()."""

    class Noted:
        objects: ClassVar[list[Any]] = []

        def __init__(self, *held: object) -> None:
            super().__init__()
            self.held = held
            self.objects.append(self)

    return Noted


def numbers() -> Iterator[int]:
    yield from count()


def with_generators_within() -> Iterator[torch.Tensor]:
    yield from (torch.ones(3, 4) @ torch.ones(4, 3) for _ in range(1))


def with_an_import() -> Iterator[Any]:
    import statistics

    yield statistics.fmean([1.0])


class Named:
    """A class that was there before the pass, and keeps what its objects are named by."""

    numbers, words, spelled = numbers(), (f"no. {number}" for number in count()), map("no. {}".format, count())

    def __init__(self, *held: object) -> None:
        self.held = held


class Constants:
    """A class that was there before the pass: what it holds is no result, and its method no promise."""

    kept, layers = torch.ones(3), [torch.ones(3)]

    def three(self, of: torch.Tensor = OUTSIDE) -> torch.Tensor:
        return of * 3


RESULTS = {
    "tuple": lambda *both: both,
    "dict": lambda *both: dict(enumerate(both)),
    "values of a dict": lambda *both: dict(enumerate(both)).values(),
    "items of a dict": lambda *both: dict(enumerate(both)).items(),
    "items of dicts": lambda *both: [{"only": each}.items() for each in both],
    "deque": lambda *both: deque(both),
    "a list's attribute": lambda first, second: with_attribute(Listed([first]), second),
    "an attribute that is an item": lambda first, second: with_attribute(Listed([first, second]), second),
    "namespace": lambda first, second: SimpleNamespace(first=first, second=second),
    "slots": Slotted,
    "a class": lambda first, second: (first, type("Made", (), {"kept": second})),
    "a class's list": lambda first, second: (first, type("Made", (), {"kept": [second]})),
    "the class of an object": lambda first, second: (first, type("Made", (), {"kept": second})()),
    "a class above it": lambda first, second: (first, type("Under", (type("Over", (), {"kept": second}),), {})),
    "a class's mapping": lambda first, second: (first, type("Made", (), {"kept": MappingProxyType({"": second})})),
    "a class's own kind of mapping": lambda first, second: (first, type("Made", (), {"kept": UserDict({"": second})})),
    "a class within a class": lambda first, second: (
        first,
        type("Around", (), {"Made": type("Made", (), {"kept": second})}),
    ),
    "a class of classes": lambda first, second: (first, type("Kind", (type,), {"kept": second})("Made", (), {})),
    "a layer's class": lambda first, second: (first, type("Made", (nn.ReLU,), {"kept": second})()),
    "a tuple's class": lambda first, second: type("Made", (tuple,), {"kept": second})((first,)),
    "beside classes": lambda *both: (*both, Cached, torch.Tensor, dict, Constants, Constants()),
    "of a class that notes them": lambda *both: noted()(*both),
    "beside iterators of names": Named,
    "beside what is not ready": lambda *both: SimpleNamespace(both=both, lazy=Lazy(), unready=Unready()),
    "beside a module": lambda *both: SimpleNamespace(both=both, backend=torch),
    "beside a log": lambda *both: SimpleNamespace(both=both, log=getLogger()),
    "beside a counter": lambda *both: SimpleNamespace(both=both, names=count()),
    "beside iterators of numbers": lambda *both: SimpleNamespace(both=both, these=[iter([1]), zip("ab", range(2))]),  # noqa: B905
    "beside functions": lambda *both: (*both, len, torch.relu, lambda: 3, partial(max, 2)),
    "beside functions that count": lambda *both: (*both, partial(next, count()), iter("ab").__next__),
    "beside a function of a weight": lambda *both: (*both, partial(torch.mul, nn.Parameter(torch.ones(1)))),
    "beside a layer's method": lambda *both: (*both, nn.ReLU().forward),
    "beside a file": lambda *both: SimpleNamespace(both=both, file=StringIO()),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_all_that_is_returned_lives_to_the_end(kind: str) -> None:
    """Two results of 32 bytes each, which whoever gets them holds, beside the input and a third."""
    model = loaded(Apply(lambda x: RESULTS[kind](x + 1, x + 2)), (2, 4))
    assert len(model.graph.outputs) == 2
    assert peak_activation(CostedGraph(model.graph, builtin_ops())).value == 3 * 32


def test_what_many_methods_reach_is_looked_into_once() -> None:
    """Ten methods close over one list, in which each tensor is asked for once."""
    held, asked = [torch.ones(1), torch.ones(1)], list[torch.Tensor]()
    kind = type("Kind", (), {f"method{at}": lambda self: held for at in range(10)})

    def is_made(tensor: torch.Tensor) -> bool:
        asked.append(tensor)
        return False

    returned_tensors((torch.ones(2), kind), is_made)
    assert list(map(id, asked)) == list(map(id, held))


def test_a_custom_operator_without_a_fake_kernel_is_run() -> None:
    """It fails alike on meta and fake tensors, for want of a kernel and not for its own reason."""

    @torch.library.custom_op("modelbudget_tests::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    model = loaded(Apply(lambda x: double(x) @ x.T), (2, 4))
    assert model.traced == "real"
    (missing,) = macs(CostedGraph(model.graph, builtin_ops())).unmeasured
    assert (missing.op, missing.why) == ("modelbudget_tests::double", "no rule")


def test_messages_are_the_same_in_every_run() -> None:
    """Addresses of objects are left out of them."""

    def fail(x: torch.Tensor) -> torch.Tensor:
        raise ValueError(f"odd {object()}")

    with pytest.raises(TraceError, match=r"odd <object object> \(in fail, "):
        loaded(Apply(fail), (2, 4))


@pytest.mark.parametrize(
    ("model", "shape", "dtype", "words"),
    [
        (nn.Linear(4, 4), (2, 4), "float16", "float16 and float32"),
        (nn.Linear(4, 4), (2, 4), "int64", "float32 and int64"),
        (nn.ConvTranspose2d(3, 4, 3), (1, 5, 8, 8), "float32", "5 channels"),
        (nn.Conv1d(4, 6, 3), (1, 5, 8), "float32", "5 channels"),
        (Apply(lambda x: torch.softmax(x, 5)), (2, 4), "float32", "dimension 5 of"),
        (Apply(lambda x: torch.cat([x, x], 3)), (2, 4), "float32", "Dimension out of range"),
        (Apply(torch.clamp), (2, 4), "float32", "min and max are none"),
        (
            Apply(lambda x: nn.functional.scaled_dot_product_attention(x, x, x, torch.zeros(7, 7))),
            (1, 2, 3, 4),
            "float32",
            "7",
        ),
    ],
    ids=["half", "integers", "transposed", "channels", "softmax", "cat", "clamp", "mask"],
)
def test_what_torch_refuses_is_not_measured(model: nn.Module, shape: tuple[int, ...], dtype: str, words: str) -> None:
    """Meta kernels let some of these pass; a model that cannot run has no numbers."""
    with pytest.raises(TraceError) as caught:
        loaded(model, shape, dtype=dtype)
    assert words in str(caught.value)


@pytest.mark.parametrize("literal", [[1, 2], [0]])
def test_a_literal_is_a_constant_under_fake_tensors_too(literal: list[int]) -> None:
    """Rows 8 B long that a list picks of x 4x2: neither the list nor a copy of it is an activation."""

    def pick(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu"):  # which tensors on meta do not see
            return x[literal]

    model = loaded(Apply(pick), (4, 2))
    assert model.traced == "fake"
    assert [weight.kind.value for weight in model.graph.weights] == ["constant"]
    peak = peak_activation(CostedGraph(model.graph, builtin_ops()))
    assert peak.value == 4 * 2 * 4 + len(literal) * 8


def test_a_literal_on_the_inputs_device_is_a_constant() -> None:
    """torch.tensor(..., device=x.device) makes a tensor that no operator made, and needs no run."""
    model = loaded(Apply(lambda x: x + torch.tensor([1.0, 2.0], device=x.device)), (4, 2))
    assert model.traced == "fake"


class CompiledInside(nn.Module):
    """A module of whose parts one is compiled, with no way back to eager."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.compile(nn.Linear(8, 4), backend="eager", fullgraph=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x).relu()


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: torch.compile(nn.Linear(8, 4)), id="the whole"),
        pytest.param(CompiledInside, id="a part, as one graph"),
    ],
)
def test_a_compiled_model_is_measured_as_written(build: Any) -> None:
    """torch.compile changes how a model runs, not what it costs: nothing is compiled here."""
    model = loaded(build, (2, 8))
    assert (model.traced, mac_count(model)) == ("fake", 2 * 8 * 4)
