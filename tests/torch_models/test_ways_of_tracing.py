"""Meta, fake or real: which way a model is recorded, and what happens when none works."""

from __future__ import annotations

import re
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import SimpleNamespace
from typing import Any

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
    assert loaded(nn.Linear(4, 4), (2, 4)).traced == "meta"


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
    assert (model.traced, constant.tensor.shape, constant.persistent) == ("meta", (4, 3), False)


def test_shapes_worked_out_with_tensors_stay_known() -> None:
    """Arithmetic on real scalars is computed, so that no run is needed for a shape."""

    def reshaped(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(int(torch.tensor(2) * 2), -1)

    assert loaded(Apply(reshaped), (8, 2)).traced == "meta"


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
    with torch._C.DisableTorchFunction():  # else it is told what a run would tell
        is_on_meta = x.is_meta
    if is_on_meta or type(x) is not torch.Tensor:
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
        (Apply(lambda x: (y @ y.T for y in [x])), "output '0' is a generator, which cannot be looked into"),
        (Apply(lambda x: (x, (y @ y.T for y in [x]))), "output '1' is a generator, .*: return tensors, numbers"),
        (Apply(lambda x: {"a": x, "b": [map(torch.relu, [x])]}), "output 'b.0' is a map, which"),
        (Apply(lambda x: (x, torch.jit.fork(torch.relu, x))), "output '1' is a Future, which"),
        (Apply(lambda x: (x, lambda: x + 1)), "output '1' is a function, which"),
        (Apply(lambda x: SimpleNamespace(x=x, later=partial(torch.add, x))), "output 'later' is a partial, which"),
        (Apply(lambda x: (x, {"sum": x.sum})), "output '1.sum' is a builtin_function_or_method, which"),
        (Apply(lambda x: (x, Cached(x).later)), "output '1' is a method, which"),
        (Apply(lambda x: (x, {x})), "output '1' is a set, which"),
        (Apply(lambda x: (x, nn.ReLU())), "output '1' is a ReLU, which"),
        (Apply(lambda x: (x, type("Made", (), {"kept": x}))), "output '1' is a type, which"),
        (Apply(lambda x: (x, type("Made", (), {"kept": x})())), "output '1' is a Made, which"),
        (Apply(lambda x: (x, type("Made", (), {"later": property(lambda self: x + 1)})())), "output '1' is a Made, "),
    ],
    ids=[
        *("thread", "plain list", "parameter of a global", "no tensor", "generator", "generator beside", "map within"),
        *("future", "function", "attribute", "method of a tensor", "method", "set", "module", "class"),
        *("attribute of a class", "property"),
    ],
)
def test_what_the_graph_would_lack_is_refused(model: nn.Module, words: str) -> None:
    """A number that quietly leaves work or weights out is never given."""
    with pytest.raises(TraceError, match=words):
        loaded(model, (2, 4))


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


def circle(*both: torch.Tensor) -> Any:
    held = SimpleNamespace(both=both)
    held.again = [held]
    return held


def with_attribute(owner: Any, value: object) -> Any:
    owner.other = value
    return owner


class Step(Enum):
    FIRST = 1


RESULTS = {
    "tuple": lambda *both: both,
    "dict": lambda *both: dict(enumerate(both)),
    "a mapping of its own kind": lambda *both: UserDict(enumerate(both)),
    "deque": lambda *both: deque(both),
    "a list's attribute": lambda first, second: with_attribute(Listed([first]), second),
    "namespace": lambda first, second: SimpleNamespace(first=first, second=second),
    "objects in objects": lambda *both: SimpleNamespace(layers=[SimpleNamespace(kept=each) for each in both]),
    "slots": Slotted,
    "beside words and numbers": lambda *both: (*both, "x", 3, 2.5, None, Step.FIRST, torch.float32, {"y"}),
    "beside a module and a class": lambda *both: SimpleNamespace(both=both, backend=torch, kind=Cached, net=nn.ReLU()),
    "in a circle": lambda *both: circle(*both),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_all_that_is_returned_lives_to_the_end(kind: str) -> None:
    """Two results of 32 bytes each, which whoever gets them holds, beside the input and a third."""
    model = loaded(Apply(lambda x: RESULTS[kind](x + 1, x + 2)), (2, 4))
    assert len(model.graph.outputs) == 2
    assert peak_activation(CostedGraph(model.graph, builtin_ops())).value == 3 * 32


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
    assert model.traced == "meta"


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
    assert (model.traced, mac_count(model)) == ("meta", 2 * 8 * 4)
