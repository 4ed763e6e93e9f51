"""Inputs in named tuples, dataclasses and ordered dicts reach a model as such, and lists and dicts as before."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from pytest_modelbudget import ModelBudgetError, check_equivalence, measure
from pytest_modelbudget.torch_models.example_inputs import example_inputs

pytestmark = pytest.mark.needs_torch
ROWS, WIDTH = 4, 8
SPEC = f"float32 {ROWS}x{WIDTH}"
MACS = ROWS * WIDTH * WIDTH  # of one layer


class Pair(NamedTuple):
    x: Any
    steps: Any = 1


class Grid(NamedTuple):
    height: int
    width: int


@dataclass
class Batch:
    x: Any
    steps: Any = 1
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows = self.x.shape[0]


@dataclass(frozen=True)
class Frozen:
    __slots__ = ("x",)
    x: Any


@dataclass
class Narrow:
    """Takes no more than 3 rows."""

    x: Any

    def __post_init__(self) -> None:
        if self.x.shape[0] > 3:
            raise ValueError("too many rows")


class Reads(nn.Module):
    """One layer on the tensor that a container holds, which must be of its kind."""

    def __init__(self, kind: type, get: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.kind, self.get = kind, get

    def forward(self, held: Any) -> torch.Tensor:
        assert type(held) is self.kind, type(held)
        return self.layer(self.get(held))  # type: ignore[no-any-return]  # of a module


def drawn() -> torch.Tensor:
    return torch.ones(ROWS, WIDTH)


# What is declared, the kind in which the model gets it, and where the tensor is.
WAYS: dict[str, tuple[Any, type, Callable[[Any], torch.Tensor]]] = {
    "named tuple": (Pair(SPEC), Pair, lambda held: held.x),
    "named tuple of a tensor": (Pair(drawn()), Pair, lambda held: held.x),
    "named tuple in one": (Pair(Pair(SPEC, 3), Grid(2, 3)), Pair, lambda held: held.x.x + held.steps.width),
    "named tuple in a list": ([Pair(SPEC)], list, lambda held: held[0].x),
    "named tuple in a dict": ({"a": Pair(SPEC)}, dict, lambda held: held["a"].x),
    "dataclass": (Batch(drawn()), Batch, lambda held: held.x[: held.rows]),
    "frozen dataclass with slots": (Frozen(SPEC), Frozen, lambda held: held.x),
    "dataclass in one": (Frozen({"a": Frozen(Pair(SPEC))}), Frozen, lambda held: held.x["a"].x.x),
    "ordered dict": (OrderedDict(b=1, a=SPEC), OrderedDict, lambda held: held["a"] + held["b"]),
    "ordered dict in a dataclass": (
        Frozen(OrderedDict(a=SPEC)), Frozen, lambda held: held.x.popitem(last=False)[1],
    ),
    "list": ([SPEC], list, lambda held: held[0]),
    "tuple": ((SPEC, 1), list, lambda held: held[0]),
    "dict": ({"x": SPEC}, dict, lambda held: held["x"]),
}  # fmt: skip


@pytest.mark.parametrize("by_name", [False, True], ids=["by place", "by name"])
@pytest.mark.parametrize(("given", "kind", "get"), WAYS.values(), ids=WAYS)
def test_a_container_reaches_the_model_as_it_was_declared(
    given: Any, kind: type, get: Callable[[Any], torch.Tensor], by_name: bool
) -> None:
    """Where it is measured, and where it is run and compared."""
    model = Reads(kind, get)
    inputs = {"held": given} if by_name else [given]
    assert measure(model, inputs)["macs"].value == MACS
    found = check_equivalence(model, model, inputs)
    assert found.outcome == "within", found.reason


def test_a_dataclass_alone_is_one_input() -> None:
    """As a tensor alone is; a named tuple is several inputs, as any tuple, and one of numbers the sizes of one."""
    assert measure(Reads(Frozen, lambda held: held.x), Frozen(SPEC))["macs"].value == MACS
    assert measure(nn.Bilinear(WIDTH, WIDTH, 2), Pair(SPEC, SPEC))["params"].value == WIDTH * WIDTH * 2 + 2
    assert measure(nn.Linear(WIDTH, WIDTH), Grid(ROWS, WIDTH))["macs"].value == MACS


class Scripted(nn.Module):
    """A layer whose script takes a named tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, held: Tensors) -> torch.Tensor:
        y: torch.Tensor = self.layer(held.x)
        return y


class Tensors(NamedTuple):
    x: torch.Tensor


def test_a_script_takes_a_named_tuple() -> None:
    """Of its own class, as it took a list before."""
    assert measure(torch.jit.script(Scripted()), [Tensors(SPEC)])["macs"].value == MACS  # type: ignore[arg-type]


def test_a_record_that_refuses_its_values_is_an_error_in_one_sentence() -> None:
    """The class has its own say when an input is made."""
    record = Narrow(torch.ones(3, WIDTH))
    record.x = SPEC
    with pytest.raises(ModelBudgetError, match=r"an input of Narrow raised ValueError: too many rows"):
        measure(Reads(Narrow, lambda held: held.x), record)
    with pytest.raises(ModelBudgetError, match="is no input"):
        measure(Reads(Frozen, lambda held: held.x), [Frozen(object())])


def test_a_model_that_carries_such_an_example_is_offered_it() -> None:
    """As it is spelled for a budget, which has lists and dicts."""
    model = Reads(Batch, lambda held: held.x)
    model.example_input_array = (Batch(drawn()), Pair(drawn()))  # type: ignore[assignment]
    model.forward = lambda first, second: None  # type: ignore[method-assign,assignment]
    assert str(example_inputs(model)) == f'[{{"x": "{SPEC}", "steps": 1}}, ["{SPEC}", 1]]'


class Graph:
    """As PyG's ``Data``: a store behind attributes, and a class that is no mapping."""

    def __init__(self, **parts: Any) -> None:
        self._store = dict(parts)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_store"][name]
        except KeyError as error:
            raise AttributeError(name) from error


class Named(UserDict[str, Any]):
    """As a tokenizer's output: a mapping of arguments."""


class Table(MutableMapping[str, Any]):
    """As a TensorDict: a mapping of a class of its own, with a shape and a type."""

    shape, dtype = (ROWS,), torch.float32

    def __init__(self, **parts: Any) -> None:
        self.parts = parts

    def __getitem__(self, key: str) -> Any:
        return self.parts[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.parts[key] = value

    def __delitem__(self, key: str) -> None:
        del self.parts[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)


class ReadsObjects(nn.Module):
    """One layer on each x that its arguments hold, an attribute, a key, or in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, batch: Any) -> Any:
        parts = batch if isinstance(batch, list) else [batch]
        return [self.layer(part["x"] if isinstance(part, Mapping) else part.x) for part in parts]


def table(**parts: Any) -> Table:
    return Table(**parts)


X = torch.rand(ROWS, WIDTH)
OBJECTS = {
    "an object of any class": (Graph(x=X, edges=torch.zeros(2, 70, dtype=torch.long)), MACS),
    "two of them in a list": ([[Graph(x=X), Graph(x=X)]], 2 * MACS),
    "a mapping of its own class": (table(x=X), MACS),
    "within another object": (Graph(x=X, more=Graph(y=X)), MACS),
    "what a call makes of a spec": ({"call": f"{__name__}:Graph", "kwargs": {"x": SPEC}}, MACS),
    "what a call makes, as one of several": ([{"call": f"{__name__}:table", "kwargs": {"x": SPEC}}], MACS),
}


@pytest.mark.parametrize(("given", "macs"), OBJECTS.values(), ids=list(OBJECTS))
def test_objects_that_hold_tensors_are_inputs(given: Any, macs: int) -> None:
    """flops-counter.pytorch#136: PyG's Data, TensorDict, NestedTensor; the model gets another one of the same class."""
    assert measure(ReadsObjects(), given)["macs"].value == macs
    assert check_equivalence(ReadsObjects, ReadsObjects, given, seeds=(0,)).outcome == "within"


def test_a_mapping_of_arguments_stays_one() -> None:
    """What a tokenizer gives names the arguments."""
    assert measure(nn.Linear(WIDTH, WIDTH), Named(input=X))["macs"].value == MACS


class OnDisk(Graph):
    """One whose class reads a file when it is pickled."""

    def __reduce__(self) -> Any:
        raise FileNotFoundError("graph.bin")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        pytest.param(Graph(x=3), "a Graph is no input", id="no tensors"),
        pytest.param(Graph(x=X, lock=Lock()), "a Graph is no input", id="what does not pickle"),
        pytest.param(OnDisk(x=X), "pickling an OnDisk raised FileNotFoundError: graph.bin", id="what fails"),
    ],
)
def test_objects_that_are_no_inputs(given: Any, says: str) -> None:
    with pytest.raises(ModelBudgetError, match=says):
        measure(ReadsObjects(), given)


class Towers(nn.Module):
    """Two towers; forward runs both."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.text(self.image(x))

    def image_features(self, x: torch.Tensor) -> torch.Tensor:
        return self.image(x)  # type: ignore[no-any-return]  # torch types a call as Any

    def tower(self) -> nn.Module:
        return self.text


def test_a_method_of_a_module_is_measured_as_that_method() -> None:
    """CLIP#143: one tower; params are those of the module. A training step: forward, and dW, as x needs no gradient."""
    towers = Towers()
    found = measure(towers.image_features, SPEC, training="sgd")
    whole = sum(parameter.numel() for parameter in towers.parameters())
    assert (found["macs"].value, found["params"].value, found["training_macs"].value) == (MACS, whole, 2 * MACS)
    assert check_equivalence(towers.image_features, towers.image, SPEC, seeds=(0,)).outcome == "within"
    assert check_equivalence(towers.image_features, nn.Identity(), SPEC, seeds=(0,)).outcome == "over"


def test_a_method_that_takes_no_inputs_makes_the_model() -> None:
    assert measure(Towers().tower, SPEC)["macs"].value == 2 * MACS


class Engine(nn.Module):
    """A module around something that is not copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.layer = Lock(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]  # torch types a call as Any


def test_an_instance_that_cannot_be_copied_says_what_to_give() -> None:
    """onnxruntime#643: a session, a lock or a socket behind a module."""
    with pytest.raises(ModelBudgetError, match=r"cannot pickle.*give a factory"):
        check_equivalence(nn.Linear(WIDTH, WIDTH), Engine(), SPEC)
