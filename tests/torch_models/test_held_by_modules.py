"""What modules hold beside weights, and weights beside values: in each way as in a run, and as before afterwards."""

import random
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from pytest_modelbudget import measure
from pytest_modelbudget.torch_models.weights import module_tree

pytestmark = pytest.mark.needs_torch

ONE = 3 * 8 * 8  # MACs of x (3, 8) through a matrix 8 × 8
FIRST_DRAWN = random.Random(0).random()
WAYS = ("meta", "fake", "real")


class Model(nn.Module):
    """One matrix, which a pass reads while what it holds is as it was built; way says how it can be followed."""

    def __init__(self, hold: Callable[[Any], Any], is_first: Callable[[Any], bool], way: str = "meta") -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 8))
        self.is_first, self.way = is_first, way
        hold(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.way == "real" and float(x.sum()) > 1e9:
            return x
        with torch.autocast("cpu", enabled=self.way == "fake"):  # which tensors on meta do not see
            return x @ self.w if self.is_first(self) else x * 1


class Pair(NamedTuple):
    count: torch.Tensor
    name: str


def counted(tensor: torch.Tensor) -> bool:
    """Whether this is the first time; as values of the model's own, which no pass takes for unknown."""
    tensor.add_(1)
    return bool(tensor.item() == 1)


def logged(items: Any) -> bool:
    items.append(0)
    return len(items) == 1


def holds(name: str, value: Callable[[], Any]) -> Callable[[Any], Any]:
    return lambda model: setattr(model, name, value())


def marks(name: str, value: Callable[[], Any]) -> Callable[[Any], Any]:
    return lambda model: setattr(model.w, name, value())


class Own:
    def __init__(self) -> None:
        self.count = torch.zeros(())


class Counter(nn.Module):
    """A layer with a count of its own, which holds another one in a list."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = [*inner]
        self.register_buffer("steps", torch.zeros(()))


def seeing(value: Any) -> Any:
    """Something with a list as an attribute."""
    value.seen = []
    return value


def turned(tensor: torch.Tensor) -> bool:
    """Whether a square matrix lies as it was made; it does not afterwards."""
    return bool(tensor.stride() == (2, 1)) and tensor.t_().stride() == (1, 2)


HELD: dict[str, tuple[Callable[[Any], Any], Callable[[Any], bool]]] = {
    "a list": (holds("c", lambda: [torch.zeros(())]), lambda m: counted(m.c[0])),
    "a dict": (holds("c", lambda: {"n": torch.zeros(())}), lambda m: counted(m.c["n"])),
    "a deque": (holds("c", deque), lambda m: logged(m.c)),
    "a list in a dict": (holds("c", lambda: {"n": [torch.zeros(())]}), lambda m: counted(m.c["n"][0])),
    "a tuple": (holds("c", lambda: (1, torch.zeros(()))), lambda m: counted(m.c[1])),
    "a tuple in a list": (holds("c", lambda: [(torch.zeros(()),)]), lambda m: counted(m.c[0][0])),
    "a named tuple": (holds("c", lambda: Pair(torch.zeros(()), "n")), lambda m: counted(m.c.count)),
    "a tuple in a tuple": (holds("c", lambda: (((torch.zeros(()),),),)), lambda m: counted(m.c[0][0][0])),
    "a set": (holds("c", lambda: {torch.zeros(())}), lambda m: counted(next(iter(m.c)))),
    "a square tensor": (holds("c", lambda: torch.zeros(2, 2)), lambda m: turned(m.c)),
    "a layer in a list": (holds("c", lambda: [Counter()]), lambda m: counted(m.c[0].steps)),
    "a layer in one in a dict": (
        holds("c", lambda: {"c": Counter(Counter())}), lambda m: counted(m.c["c"].inner[0].steps),
    ),
    "a list of a layer in a list": (holds("c", lambda: [seeing(Counter())]), lambda m: logged(m.c[0].seen)),
    "a list on a weight": (marks("seen", list), lambda m: logged(m.w.seen)),
    "a tensor on a weight": (marks("seen", lambda: torch.zeros(())), lambda m: counted(m.w.seen)),
}  # fmt: skip


@pytest.mark.parametrize("way", ["meta", "real"])
@pytest.mark.parametrize("kind", HELD)
def test_what_a_module_holds_is_as_before(kind: str, way: str) -> None:
    """Each measuring finds what the first one found, and a run afterwards, too."""
    model = Model(*HELD[kind], way=way).eval()
    for _ in range(3):
        assert measure(model, "float32 3x8")["macs"].value == ONE
    assert model.is_first(model)


@pytest.mark.parametrize("again", [lambda counter: counter, lambda counter: counter.view(1)], ids=["itself", "a view"])
def test_a_tensor_that_is_held_twice_is_one(again: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A counter that one part writes, and another one reads."""

    def hold(model: Any) -> None:
        model.c = torch.zeros(())
        model.same = [again(model.c)]

    model = Model(hold, lambda m: bool(m.c.add_(1).item() == m.same[0].item()))
    assert measure(model, "float32 3x8")["macs"].value == ONE


def test_a_cache_on_a_weight_is_the_models_own() -> None:
    """What a pass without memory puts there would be read by the next run."""

    class Caches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w: Any = nn.Parameter(torch.randn(8, 8))
            self.w.cache = {}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if "squared" not in self.w.cache:
                self.w.cache["squared"] = self.w @ self.w
            return torch.Tensor(x @ self.w.cache["squared"])

    model, x = Caches().eval(), torch.ones(3, 8)
    assert [measure(model, "float32 3x8")["macs"].value for _ in range(2)] == [8**3 + ONE] * 2
    assert model.w.cache == {}
    assert torch.equal(model(x), x @ (model.w @ model.w))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "where", ["list", "tuple", "dict", "object", "mark", "list of a mark", "layer in a list", "layer of one in a dict"]
)
def test_a_weight_that_is_held_once_more_is_the_same(where: str, way: str) -> None:
    """It is read from there, and counted once, as a parameter."""

    def hold(model: Any) -> None:
        own = Own()
        own.count = model.w
        model.again = {"list": [model.w], "tuple": (0, model.w), "dict": {"w": model.w}, "object": own}.get(where)
        layer = nn.Linear(8, 8, bias=False)
        layer.weight = model.w
        if where.startswith("layer"):  # as Keras keeps layers, and their weights elsewhere once more
            model.again = [layer] if where == "layer in a list" else {"a": nn.Sequential(layer)}
        if where == "mark":
            model.w.same = model.w
        elif where == "list of a mark":
            model.w.same = [model.w]

    def again(model: Any) -> Any:
        found = {"list": 0, "tuple": 1, "dict": "w"}.get(where)
        if found is not None:
            return model.again[found]
        if where == "object":
            return model.again.count
        if where.startswith("layer"):
            return (model.again[0] if where == "layer in a list" else model.again["a"][0]).weight
        return model.w.same if where == "mark" else model.w.same[0]

    class Reads(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).float() @ again(self)

    model = Reads(hold, lambda model: True, way)
    measured = measure(model, "float32 3x8")
    assert (measured.traced, measured["macs"].value, measured["params"].value) == (way, 2 * ONE, 64)
    assert measured["bandwidth"].complete
    assert again(model) is model.w


class Named(nn.Parameter):
    pass


class Functional(nn.Parameter):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class Plain(torch.Tensor):
    pass


CLASSES: dict[str, tuple[Callable[[], Any], Callable[[Any], bool]]] = {
    "a parameter's": (lambda: Named(torch.randn(8, 8)), lambda w: type(w) is Named),
    "with functions": (lambda: Functional(torch.randn(8, 8)), lambda w: isinstance(w, Functional)),
    "of the values": (lambda: nn.Parameter(torch.randn(8, 8).as_subclass(Plain)), lambda w: isinstance(w, Plain)),
}


@pytest.mark.parametrize("kind", CLASSES)
def test_a_weight_has_its_own_class(kind: str) -> None:
    made, is_own = CLASSES[kind]
    measured = measure(Model(holds("w", made), lambda m: is_own(m.w)), "float32 3x8")
    assert (measured.traced, measured["macs"].value, measured["params"].value) == ("meta", ONE, 64)


@pytest.mark.parametrize("way", ["fake", "real"])
@pytest.mark.parametrize("kind", ["a parameter's", "with functions"])
def test_a_model_with_weights_of_own_classes_is_run(kind: str, way: str) -> None:
    """No fake tensor has such a class; torch copies no values of another class."""
    made, is_own = CLASSES[kind]
    measured = measure(Model(holds("w", made), lambda m: is_own(m.w), way), "float32 3x8")
    assert (measured.traced, measured["macs"].value, measured["params"].value) == ("real", ONE, 64)


class Renamed(nn.Sequential):
    """Names the layers within it anew."""

    def named_modules(self, memo: Any = None, prefix: str = "", remove_duplicate: bool = True) -> Any:
        for path, module in super().named_modules(memo, prefix, remove_duplicate):
            yield path.replace("0", "zero"), module


def nested(kind: type[nn.Sequential]) -> nn.Module:
    """A layer at three places, None, and layers of a class in others."""
    shared = nn.Linear(2, 2)
    model = nn.Sequential(kind(nn.Sequential(nn.ReLU(), shared), nn.Tanh()), shared)
    model.register_module("nothing", None)
    model.add_module("again", kind(shared, nn.Sequential()))
    return model


@pytest.mark.parametrize(
    "model",
    [
        *map(nested, (nn.Sequential, Renamed)),
        nn.TransformerEncoderLayer(4, 2),
        nn.ModuleDict({"a": nn.ReLU(), "b": nn.GRU(1, 1)}),
    ],
    ids=lambda model: type(model).__name__,
)
def test_modules_are_named_as_torch_names_them(model: nn.Module) -> None:
    """Outer ones first, each once, by the first of its paths."""
    assert module_tree(model) == tuple(model.named_modules())


def test_a_buffer_has_its_own_class() -> None:
    def hold(model: Any) -> None:
        model.register_buffer("table", torch.randn(8, 8).as_subclass(Plain))

    model = Model(hold, lambda m: isinstance(m.table, Plain))
    assert measure(model, "float32 3x8")["macs"].value == ONE


@pytest.mark.parametrize("way", WAYS)
def test_a_mark_on_a_weight_is_there_in_each_way(way: str) -> None:
    model = Model(marks("axis", lambda: 1), lambda m: getattr(m.w, "axis", 0) == 1, way)
    measured = measure(model, "float32 3x8")
    assert (measured.traced, measured["macs"].value) == (way, ONE)
