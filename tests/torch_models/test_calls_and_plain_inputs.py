"""Models that a budget builds by calls, runs on more than tensors, or does not run at all."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from pytest_modelbudget import measure
from pytest_modelbudget.errors import InputError, SourceError, TraceError
from pytest_modelbudget.torch_models import example_inputs
from pytest_modelbudget.torch_models.building import without_downloads
from tests.builders.marks import needs

pytestmark = pytest.mark.needs_torch


def linear(inputs: int, outputs: int) -> dict[str, object]:
    return {"call": "torch.nn:Linear", "args": [inputs, outputs]}


def made(call: nn.Module) -> nn.Module:
    """What it is called with, under a name that a call has too."""
    return call


@pytest.mark.parametrize(
    ("target", "args", "params"),
    [
        pytest.param("torch.nn:Sequential", [linear(4, 8), linear(8, 2)], 4 * 8 + 8 + 8 * 2 + 2, id="arguments"),
        pytest.param("torch.nn:ModuleList", [[linear(4, 8)]], 4 * 8 + 8, id="in a list"),
        pytest.param("torch.nn:ModuleDict", [{"fc": linear(4, 8)}], 4 * 8 + 8, id="in a mapping"),
        pytest.param(
            "torch.nn:Sequential", [{"call": "torch.nn:Sequential", "args": [linear(4, 8)]}], 4 * 8 + 8, id="in a call"
        ),
        pytest.param(
            "torch.nn:Sequential",
            [{"call": f"{__name__}:made", "kwargs": {"call": linear(4, 8)}}],
            4 * 8 + 8,
            id="an argument of that name",
        ),
        pytest.param(
            "torch.nn:Sequential",
            [{"call": f"{__name__}:made", "args": (nn.Linear(4, 8),)}],
            4 * 8 + 8,
            id="an object that no budget spells",
        ),
    ],
)
def test_a_model_is_made_of_calls(target: str, args: list[object], params: int) -> None:
    """From Python as from a budget; without inputs only what is stored is told."""
    numbers = measure(target, args=args)
    assert numbers.params.value == params
    assert set(numbers) == {"params", "trainable_params", "weight_memory", "model_size"}


@pytest.mark.parametrize(
    ("argument", "error", "says"),
    [
        pytest.param(
            {"call": "torch.nn:Liner"}, SourceError, "torch.nn has no 'Liner'; did you mean 'Linear'?", id="name"
        ),
        pytest.param(
            {"call": "torch:float32"}, SourceError, "torch:float32 is a dtype, and cannot be called", id="no callable"
        ),
        pytest.param(linear(4, -8), SourceError, "calling torch.nn:Linear raised RuntimeError", id="it raises"),
        pytest.param(
            {"call": "a:b", "argz": 1}, InputError, "unknown key 'argz' in a call: did you mean 'args'", id="key"
        ),
        pytest.param(
            {"call": "a.b"}, InputError, "'a.b' is no module:attribute: did you mean a:b", id="no name of a callable"
        ),
        pytest.param({"call": nn.Linear}, InputError, "no module:attribute", id="the callable itself"),
        pytest.param({"call": "a:b", "args": 3}, InputError, "expected args: a list of values", id="no list"),
        pytest.param({"call": "a:b", "kwargs": [3]}, InputError, "expected kwargs: a mapping", id="no mapping"),
        pytest.param({"call": "a:b", "kwargs": {"3x": 1}}, InputError, "'3x' is no name of an argument", id="no name"),
    ],
)
def test_what_cannot_be_called_says_why(argument: object, error: type[Exception], says: str) -> None:
    """The call is named, not the model around it alone."""
    with pytest.raises(error, match=says):
        measure(nn.Sequential, "float32 1x4", args=[argument])


class Repeated(nn.Module):
    """One layer, n times, with a sign that a flag decides, and whatever a dict adds."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, n: int, flag: bool, added: Any = None, way: str = "") -> torch.Tensor:
        for _ in range(n):
            x = self.fc(x)
        x = x if added is None else x + added["bias"] * added["by"]
        return x.T @ x if way == "gram" else x if flag else -x


@pytest.mark.parametrize(
    ("inputs", "macs"),
    [
        pytest.param(["float32 2x4", 3, False], 3 * 2 * 4 * 4, id="numbers and a flag"),
        pytest.param({"x": (2, 4), "n": 2, "flag": True, "added": None}, 2 * 2 * 4 * 4, id="None, a tuple of sizes"),
        pytest.param(["float32 2x4", 1, False, {"bias": "float32 2x4", "by": 2}], 2 * 4 * 4, id="a dict"),
        pytest.param(
            {"x": {"dtype": torch.float32, "shape": [2, 4]}, "n": 1, "flag": True, "way": {"plain": "gram"}},
            2 * 4 * 4 + 4 * 2 * 4, id="a text",
        ),
    ],
)  # fmt: skip
def test_inputs_that_are_no_tensors(inputs: object, macs: int) -> None:
    """The model gets them as they are."""
    assert measure(Repeated, inputs).macs.value == macs


def test_torchscript_takes_plain_inputs(tmp_path: Path) -> None:
    """As its own signature asks for them; without any, its parameters are told."""

    class Scripted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, n: int, flag: bool) -> torch.Tensor:
            for _ in range(n):
                x = self.fc(x)
            return x if flag else -x

    torch.jit.script(Scripted()).save(str(tmp_path / "n.pt"))  # type: ignore[no-untyped-call]
    assert measure(tmp_path / "n.pt", ["float32 2x4", 3, False]).macs.value == 3 * 2 * 4 * 4
    assert measure(tmp_path / "n.pt").params.value == 4 * 4 + 4


def test_a_frozen_script_is_nothing_without_a_run(tmp_path: Path) -> None:
    """Its weights are constants of the program, which a run alone meets: no zero is told."""
    torch.jit.freeze(torch.jit.script(nn.Linear(4, 4).eval())).save(str(tmp_path / "f.pt"))  # type: ignore[no-untyped-call]
    with pytest.raises(TraceError, match="missing"):
        measure(tmp_path / "f.pt")


class Carrying(nn.Module):
    """A model that carries what libraries let models carry."""

    def __init__(self, **carried: object) -> None:
        super().__init__()
        for name, value in carried.items():
            setattr(self, name, value)

    def forward(self, x: Any = None, ids: Any = None, pixel_values: Any = None) -> Any:
        raise ValueError("give inputs")


IDS = {"ids": torch.zeros(3, 5, dtype=torch.int64)}
IMAGES = SimpleNamespace(image_size=32, num_channels=1)


@pytest.mark.parametrize(
    ("carried", "offered"),
    [
        pytest.param({"example_input_array": torch.zeros(2, 4)}, '"float32 2x4"', id="lightning"),
        pytest.param({"example_input_array": (torch.zeros(2, 4), 3)}, '["float32 2x4", 3]', id="lightning, several"),
        pytest.param({"example_input_array": IDS}, '{"ids": "int64 3x5"}', id="lightning, by name"),
        pytest.param({"dummy_inputs": IDS, "main_input_name": "ids"}, '{"ids": "int64 1x5"}', id="transformers"),
        pytest.param(
            {"dummy_inputs": IDS, "main_input_name": "pixel_values", "config": IMAGES},
            '{"pixel_values": "float32 1x1x32x32"}', id="transformers, images",
        ),
        pytest.param({"default_cfg": {"input_size": (3, 8, 8)}}, '"float32 1x3x8x8"', id="timm"),
        pytest.param({"example_input_array": {"other": torch.zeros(1)}}, "[]", id="no argument of that name"),
        pytest.param({"example_input_array": object()}, "[]", id="nothing that is an input"),
        pytest.param({"example_input_array": None, "default_cfg": {}}, "[]", id="nothing"),
        pytest.param(
            {"example_input_array": torch.zeros(2, 4), "forward": max}, "[]", id="a forward pass of unknown arguments"
        ),
        pytest.param(
            {"example_input_array": torch.zeros(2, 4), "forward": None}, "[]", id="no forward pass that can be called"
        ),
    ],
)  # fmt: skip
def test_a_model_offers_its_own_inputs(carried: Mapping[str, object], offered: str) -> None:
    """In the words that a budget, the command line and Python take, where the forward pass takes them."""
    model = Carrying(**carried)
    assert str(example_inputs.example_inputs(model)) == offered
    with pytest.raises(AttributeError, match="no macs: no inputs are given: give inputs ") as raised:
        _ = measure(model).macs
    assert (f"inputs {offered}, the model's own example" in str(raised.value)) == (offered != "[]")


@needs("huggingface_hub", "test")
@pytest.mark.parametrize(("said", "is_offline"), [(None, True), ("0", False), ("1", False)])
def test_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch, said: str | None, is_offline: bool) -> None:
    """The hub is offline while a model is built, and as before afterwards; what a user sets, stays."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    if said is not None:
        monkeypatch.setenv("HF_HUB_OFFLINE", said)
    seen: list[bool] = []

    def factory() -> nn.Module:
        seen.append(constants.is_offline_mode())
        return nn.Linear(4, 2)

    assert measure(factory, "float32 1x4").params.value == 4 * 2 + 2
    assert seen == [is_offline]
    assert not constants.is_offline_mode()
    assert os.environ.get("HF_HUB_OFFLINE") == said


@needs("huggingface_hub", "test")
def test_what_is_not_there_says_how_to_get_it() -> None:
    """Only where the hub's own error stands behind a failure."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    for cause, says in ((LocalEntryNotFoundError("x"), "or set HF_HUB_OFFLINE=0"), (OSError("x"), "failed$")):
        with pytest.raises(SourceError, match=says), without_downloads():
            raise SourceError("failed") from cause


class Cut(nn.Module):
    """A layer on as many steps as the first integer says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        cut: torch.Tensor = self.layer(x[:, : int(sizes.reshape(-1)[0])])
        return cut


class Packed(nn.Module):
    """An LSTM over sequences of these lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(8, 16, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.layer(packed)[1][0]  # type: ignore[no-any-return]  # torch types it as Any


SIZES = {
    "values": (Cut, "float32 2x10x8", {"values": [[3, 9]]}, 2 * 3 * 8 * 16),
    "values of a type": (Cut, "float32 2x10x8", {"dtype": "uint8", "values": [4]}, 2 * 4 * 8 * 16),
    "one number": (Cut, "float32 2x10x8", {"dtype": "int32", "values": 5}, 2 * 5 * 8 * 16),
    "a tensor": (Cut, "float32 2x10x8", torch.tensor([[6]]), 2 * 6 * 8 * 16),
    "a scripted model": (lambda: torch.jit.script(Cut()), "float32 2x10x8", torch.tensor([7]), 2 * 7 * 8 * 16),
    # gates · hidden · (input + hidden) for each of 7 + 3 + 5 steps
    "lengths": (Packed, "float32 3x7x8", torch.tensor([7, 3, 5]), 15 * 4 * 16 * (8 + 16)),
}


@pytest.mark.parametrize(("net", "x", "sizes", "macs"), SIZES.values(), ids=list(SIZES))
def test_integers_that_mean_sizes(net: Any, x: str, sizes: object, macs: int) -> None:
    """torchtitan#4057: ``image_grid_thw``, lengths, offsets; at most 64 in a tensor are taken as they are."""
    assert measure(net, [x, sizes])["macs"].value == macs


class Parts(nn.Module):
    """Rows in parts of these lengths."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        return x.split(lengths.tolist())


def test_more_integers_than_are_taken_as_they_are_name_the_key() -> None:
    """72 lengths of 1 to 3 that make up 144 rows: drawn ones make up others."""
    lengths = torch.tensor([1, 2, 3] * 24)
    with pytest.raises(TraceError, match="; integers of '1' are drawn: if they say sizes or places, give their 'val"):
        measure(Parts(), ["float32 144x8", lengths])
    assert measure(Parts(), ["float32 144x8", {"values": lengths.tolist()}])["macs"].value == 0


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"dtype": "int64", "values": [[1, 8], [8]]}, "rows of several lengths"),
        ({"dtype": "int64", "values": [1.5]}, "1.5 under 'values' is no integer"),
        ({"dtype": "uint8", "values": [300]}, "300 is no uint8: write integers from 0 to 255"),
        ({"dtype": "float32", "values": [3]}, "'float32' is no type of integers"),
        ({"dtype": "int64", "values": [3], "low": 1}, "unknown key 'low'"),
    ],
)
def test_values_that_are_none_say_why(spec: object, says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        measure(Cut, ["float32 2x10x8", spec])


class Positions(nn.Module):
    """Rows of a table of 16 by positions, which another function makes."""

    def __init__(self, places: Any) -> None:
        super().__init__()
        self.places, self.table, self.row = places, nn.Embedding(16, 8), nn.Parameter(torch.zeros(16, 8))

    def forward(self, x: torch.Tensor) -> Any:
        return self.places(self, x)


def steps(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(x.shape[1], device=x.device)


def written(x: torch.Tensor, how: Any) -> torch.Tensor:
    places = steps(x)
    how(places, x)
    return places


PLACES = {  # how they are made, and the longest x that they fit
    "a range": (lambda net, x: net.table(steps(x)), 16),
    "a range from 2": (lambda net, x: net.row[steps(x) + 2], 14),
    "a sum of ones": (lambda net, x: net.table(torch.ones(1, x.shape[1], device=x.device).cumsum(1).long()), 15),
    "words that are no padding": (lambda net, x: net.table((x[..., 0].long().ne(1).int().cumsum(1)).long()), 15),
    "gathered": (lambda net, x: net.row.gather(0, steps(x)[:, None].expand(-1, 8)), 16),
    "limited": (lambda net, x: net.table(steps(x).clamp(max=15)), 99),
    "limited in place": (lambda net, x: net.table(written(x, lambda at, _: at.clamp_(max=15))), 99),
    "written by data": (lambda net, x: net.table(written(x, lambda at, by: at.copy_(by[0, :, 0].long()))), 99),
    "a part written": (lambda net, x: net.table(written(x, lambda at, _: at[1:].zero_())), 99),
    "of data": (lambda net, x: net.table(x[0, :, 0].long()), 99),
}


@pytest.mark.parametrize(("places", "most"), PLACES.values(), ids=list(PLACES))
def test_positions_behind_the_last_row_are_refused(places: Any, most: int) -> None:
    """GPT-2 on 2,048 words: the real call raises IndexError. What data decide is no claim."""
    assert measure(Positions(places), f"float32 1x{most}x8")["params"].complete
    if most < 99:
        beyond = r"(table|row) has 16 rows, and the inputs reach row 16: this call would fail"
        with pytest.raises(TraceError, match=beyond):
            measure(Positions(places), f"float32 1x{most + 1}x8")
