"""Values on the way: what a user's own hooks see, alike from every format, on the inputs that are named."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import SystemRandom
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pytest_modelbudget.equivalence.user_inputs import GivenInputs
from pytest_modelbudget.errors import InputError, ModelBudgetError, TransformError
from pytest_modelbudget.formats.model import LayerValue, Model
from pytest_modelbudget.gate.from_python import model_source
from pytest_modelbudget.registry import tables
from pytest_modelbudget.values.capture import Captured, NamedInputs, Selection, statistics_of, weights_of
from tests.builders.torch_roads import IMAGE, SHAPE, exported, onnx_file, scripted

pytestmark = pytest.mark.needs_torch


class Net(nn.Module):
    """One ReLU is called twice, and writes in place; the second convolution has no bias, and a dead channel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3, bias=False)
        self.relu, self.head = nn.ReLU(inplace=True), nn.Sequential(nn.Flatten(), nn.Linear(80, 7))
        with torch.no_grad():
            self.second.weight[3] = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.relu(self.second(self.relu(self.first(x)))))


def net() -> nn.Module:
    torch.manual_seed(1)
    return Net().eval()


def loaded(source: object, inputs: str | None = IMAGE) -> Model:
    registry = tables()
    asked = model_source(source, inputs, registry=registry, base=Path.cwd())
    return registry.formats[asked.format].load(asked, registry.ops)


def by_hooks(model: nn.Module, rows: Any) -> Mapping[str, Any]:
    """What a user's own hooks see, "relu #2" of a second call; all calls one after the other."""
    seen: dict[str, list[Any]] = {}
    calls: Counter[str] = Counter()

    def hook(name: str) -> Callable[..., None]:
        def note(module: nn.Module, args: Any, result: torch.Tensor) -> None:
            calls[name] += 1
            seen.setdefault(name if calls[name] == 1 else f"{name} #{calls[name]}", []).append(result.numpy().copy())

        return note

    for name, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(hook(name))
    for row in rows:
        calls.clear()
        with torch.no_grad():
            model(torch.from_numpy(row))
    return {name: np.concatenate(parts) for name, parts in seen.items()}


@pytest.fixture
def given(tmp_path: Path) -> NamedInputs:
    """Three calls of two rows in a file."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((6, *SHAPE[1:])).astype(np.float32))
    return NamedInputs(GivenInputs("x.npy", tmp_path))


def rows_of(inputs: NamedInputs) -> Any:
    assert isinstance(inputs.given, GivenInputs)
    return np.load(inputs.given.base / "x.npy").reshape(3, *SHAPE)


def test_modules_give_what_hooks_see(given: NamedInputs) -> None:
    """Every leaf, each call on its own; a value that is overwritten later is that of its time."""
    model, taken = net(), dict[str, list[Any]]()

    def take(value: LayerValue) -> None:
        taken.setdefault(value.name, []).append(value.values.copy())

    captured = statistics_of(loaded(model), Selection(), given, take=take)
    hooked = by_hooks(model, rows_of(given))
    assert [layer.name for layer in captured.layers] == list(hooked)
    assert captured.calls == 3
    for layer in captured.layers:
        exact = hooked[layer.name].astype(np.float64)
        assert np.array_equal(np.concatenate(taken[layer.name]), exact)
        assert layer.shape == (2, *exact.shape[1:])
        assert layer.statistics.mean == pytest.approx(exact.mean(), rel=1e-6)
        assert layer.statistics.variance == pytest.approx(exact.var(), rel=1e-6)
        assert layer.statistics.zeros == (exact == 0).sum()


def test_a_dead_channel_is_found_in_the_call_where_it_is_dead(given: NamedInputs) -> None:
    """The ReLU's first call has four channels, its second one five, of which 3 is zero."""
    captured = statistics_of(loaded(net()), Selection(types=("ReLU",)), given)
    assert {layer.name: layer.statistics.dead for layer in captured.layers} == {"relu": (), "relu #2": (3,)}


ROADS = {
    "torchscript": (scripted, IMAGE, ("conv2d", "_convolution")),
    "exported": (exported, None, ("conv2d",)),
    "onnx": (onnx_file, None, ("Conv",)),
}


@pytest.mark.parametrize(("road", "inputs", "types"), ROADS.values(), ids=ROADS)
@pytest.mark.filterwarnings("ignore")  # of exporters
def test_every_format_gives_the_same_values(
    road: Any, inputs: str | None, types: tuple[str, ...], given: NamedInputs, tmp_path: Path
) -> None:
    """Convolutions by the name that the format has for them, and by their kind: as modules have them."""
    file = road(net(), tmp_path)
    modules = statistics_of(loaded(net()), Selection(types=("Conv2d",)), given)
    for named in (types, ("convolution",)):
        if isinstance(given.given, GivenInputs) and inputs is None:  # such files name their input
            name = next(iter(loaded(file, None).inputs.specs))  # type: ignore[attr-defined]
            np.savez(tmp_path / "x.npz", **{name: rows_of(given).reshape(6, *SHAPE[1:])})
            given = NamedInputs(GivenInputs("x.npz", tmp_path))
        others = statistics_of(loaded(file, inputs), Selection(types=named), given)
        assert [layer.shape for layer in others.layers] == [(2, 4, 6, 6), (2, 5, 4, 4)]
        for layer, module in zip(others.layers, modules.layers, strict=True):
            assert layer.scope == module.scope
            assert layer.statistics.mean == pytest.approx(module.statistics.mean, rel=1e-4)
            assert layer.statistics.max == pytest.approx(module.statistics.max, rel=1e-5)


NO_LAYER = [
    pytest.param(Selection(types=("Conv2D",)), r"'\*' of type Conv2D gave numbers: did you mean 'Conv2d'", id="type"),
    pytest.param(Selection(("haed.*",)), "did you mean 'head.1'", id="path"),
    pytest.param(Selection(("second", "haed.*")), r"no layer 'haed.\*' gave numbers: did you mean 'head.1'", id="one"),
    pytest.param(Selection(("features.*",), ("GELU",)), "it has layers of type Conv2d, ReLU, Flatten", id="neither"),
]  # fmt: skip


@pytest.mark.parametrize(("selection", "words"), NO_LAYER)
def test_what_matches_nothing_is_refused(selection: Selection, words: str) -> None:
    """Nothing that was seen is not green: the message names what there is."""
    with pytest.raises(InputError, match=words):
        statistics_of(loaded(net()), selection, NamedInputs())


def test_a_type_that_matches_nothing_beside_others_is_told() -> None:
    """Also where only the glob has none of it; a limit is unknown then."""
    assert statistics_of(loaded(net()), Selection(types=("Conv2d", "ReLU")), NamedInputs()).unseen == ""
    found = statistics_of(loaded(net()), Selection(types=("Conv2d", "RELU")), NamedInputs())
    assert found.unseen == "no layer '*' of type RELU gave numbers: did you mean 'ReLU'?"
    found = statistics_of(loaded(net()), Selection(("first",), ("Conv2d", "ReLU")), NamedInputs())
    assert found.unseen.startswith("no layer 'first' of type ReLU gave numbers")


@pytest.mark.parametrize("glob", ["frist", "frist.*"])
def test_stored_tensors_of_no_module_are_refused(glob: str) -> None:
    """With the module that has nearly that name."""
    with pytest.raises(InputError, match="did you mean 'first'"):
        weights_of(loaded(net()), (glob,))


class Restless(nn.Module):
    """Scales by what a generator draws that nobody can seed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(x * SystemRandom().uniform(1, 2))


def test_other_values_at_the_second_run_are_refused() -> None:
    """A quantile of two different runs would be that of neither."""
    with pytest.raises(TransformError, match="make it deterministic"):
        statistics_of(loaded(Restless()), Selection(), NamedInputs())


def test_memory_does_not_grow_with_the_number_of_calls() -> None:
    """Acceptance: eighteen drawn calls take what six do, to a tenth."""
    model = loaded(net(), "float32 16x3x8x8")

    statistics_of(model, Selection(), NamedInputs(seeds=(0, 1)))  # what is loaded once

    def peak(calls: int) -> int:
        tracemalloc.start()
        statistics_of(model, Selection(), NamedInputs(seeds=tuple(range(calls))))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(18) <= 1.1 * peak(6)


def weights(source: object, *layers: str, inputs: str | None = IMAGE) -> Captured:
    return weights_of(loaded(source, inputs), layers or ("*",))


@pytest.mark.filterwarnings("ignore")  # of exporters
def test_stored_values_are_those_that_are_stored(tmp_path: Path) -> None:
    """Means and zeros of each tensor, by torch; the file has them alike."""
    model = net()
    own = {name: parameter.detach().double().numpy() for name, parameter in model.named_parameters()}
    for found in (weights(model), weights(onnx_file(model, tmp_path), "first", "second", "head", inputs=None)):
        for layer in found.layers:
            exact = own[layer.name]
            assert layer.shape == exact.shape
            assert layer.dtype == "float32"
            assert layer.statistics.mean == pytest.approx(exact.mean(), rel=1e-6)
            assert layer.statistics.zeros == (exact == 0).sum()
        assert {layer.name: layer.statistics.dead for layer in found.layers}["second.weight"] == (3,)


class OfOtherKinds(nn.Module):
    """A layer, the same weight once more, and parameters that have no distribution."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.tied = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.tied.weight = self.layer.weight
        self.scale = nn.Parameter(torch.ones(()))
        self.turned = nn.Parameter(torch.ones(3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tied(self.layer(x)) * self.scale


def test_parameters_without_a_row_are_named() -> None:
    """A single value and complex ones are counted by params; of those that a glob asks for."""
    seen = weights(OfOtherKinds(), inputs="float32 2x4")
    assert {row.name for row in seen.layers} == {"layer.weight", "layer.bias", "tied.weight"}
    assert seen.notes == ("2 parameter tensors skipped: 'scale', 'turned'",)
    assert weights(OfOtherKinds(), "layer", inputs="float32 2x4").notes == ()


def test_no_stored_value_of_such_a_name() -> None:
    with pytest.raises(ModelBudgetError, match=r"did you mean 'second\.weight'"):
        weights(net(), "secnd.weight")
