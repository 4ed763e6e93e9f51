"""What somebody meets who names a model for the first time: arguments that are missing, inputs without a batch."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_modelbudget import measure
from pytest_modelbudget.errors import InputError, ModelBudgetError

pytestmark = pytest.mark.needs_torch


class Classifier(nn.Module):
    def __init__(self, width: int, classes: int = 10) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3)
        self.norm = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(self.conv(x)).mean((2, 3)))


class OfABatch(nn.Module):
    def forward(self, batch: Any) -> Any:
        return batch.image.relu()


def small() -> nn.Module:
    return Classifier(8)


FLAT = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 6 * 6, 4))
MISSPELT = "'clases'. Did you mean 'classes'?" if sys.version_info >= (3, 14) else "'clases'"
TAKES = "give args or kwargs ({call: module:name} makes an object): it takes (width: 'int', classes: 'int' = 10)"
TOO_MANY = f"takes from 2 to 3 positional arguments but 4 were given: {TAKES}"
BATCH = ": is the first dimension, the batch, missing?"


@pytest.mark.parametrize(
    ("source", "inputs", "settings", "words"),
    [
        pytest.param(
            Classifier, "float32 1x3x8x8", {}, f"missing 1 required positional argument: 'width': {TAKES}", id="none"
        ),
        pytest.param(
            Classifier,
            "float32 1x3x8x8",
            {"kwargs": {"width": 8, "clases": 3}},
            f"got an unexpected keyword argument {MISSPELT}: {TAKES}",
            id="misspelt",
        ),
        pytest.param(Classifier, "float32 1x3x8x8", {"args": [1, 2, 3]}, TOO_MANY, id="too many"),
        pytest.param(small, "float32 3x8x8", {}, f"in the layer norm (BatchNorm2d, given 8x6x6){BATCH}", id="batch"),
        pytest.param(FLAT, "float32 1x8x8", {}, f"in the layer 2 (Linear, given 2x36){BATCH}", id="batch, flattened"),
        pytest.param(FLAT, "float32 1x1x9x9", {}, "in the layer 2 (Linear, given 1x98)", id="size, flattened"),
        pytest.param(
            nn.Sequential(nn.Linear(32, 4)), "float32 1x31", {}, "in the layer 0 (Linear, given 1x31)", id="features"
        ),
        pytest.param(
            small,
            "float32 8x8",
            {},
            "aten::conv2d in 'conv' is given a tensor of 2 dimensions, where it takes batch, channels and 2 more",
            id="channels",
        ),
        pytest.param(
            small,
            "float16 1x3x8x8",
            {},
            "operands of different types, float16 and float32: give inputs the type of the weights, or convert one",
            id="types",
        ),
        pytest.param(
            small,
            {"x": "float32 1x3x8x8", "mask": "float32 1x8"},
            {},
            "got an unexpected keyword argument 'mask': it takes (x: 'Any')",
            id="an input too many",
        ),
        pytest.param(
            nn.Sequential(Classifier(8), Classifier(8)),
            {"input": "float32 1x3x8x8", "mask": "float32 1x8"},
            {},
            "got an unexpected keyword argument 'mask': it takes (input)",
            id="of a module of torch's",
        ),
        pytest.param(
            OfABatch(),
            [{"image": "1x16"}],
            {},
            "the input {call: module:Class, kwargs: {…}} is an object of that class",
            id="a dict in place of an object",
        ),
        pytest.param(small, "float32 -1x3x8x8", {}, "'-1' is no size: write a real one", id="open batch"),
        pytest.param(small, "float32[N, 3, 8, 8]", {}, "'N' is no size: write a real one", id="symbol"),
        pytest.param(small, (-1, 3, 8, 8), {}, "a dimension of -1: it must be 0 to", id="open shape"),
        pytest.param("gone.onnx", None, {}, "gone.onnx does not exist in /", id="no file"),
        pytest.param("gone.onnx", None, {}, ": write it first, or give its path from there", id="no file, way out"),
    ],
)
def test_a_first_mistake_names_its_way_out(
    source: object, inputs: object, settings: dict[str, Any], words: str
) -> None:
    """The arguments that the callable takes, or the layer that refused its input, with what that was."""
    with pytest.raises(ModelBudgetError) as raised:
        measure(source, inputs, **settings)
    assert words in str(raised.value)
    assert BATCH in words or BATCH not in str(raised.value)
    assert "budget" not in str(raised.value).replace(str(Path.cwd()), "")  # which a checkout is named by
    assert "(in _call" not in str(raised.value)


SCRIPTED = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 6 * 6, 4))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("make", [torch.jit.script, lambda model: torch.jit.trace(model, torch.zeros(1, 3, 8, 8))])
@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ("float32 1x4x8x8", r"expected input\[1, 4, 8, 8\] to have 3 channels, but got 4 channels instead"),
        ("int64 1x3x8x8", "expected scalar type Long but found Float|bias type .float. should be the same"),
        ("float32 1x3x9x8", r"mat1 and mat2 shapes cannot be multiplied \(1x336 and 288x4\)"),
    ],
)
def test_a_script_is_refused_in_torchs_own_words(make: Any, inputs: str, words: str) -> None:
    """Its interpreter hands on no word of what an operator raised while it was recorded."""
    with pytest.raises(ModelBudgetError, match=words):
        measure(make(SCRIPTED), inputs)


class Chosen(nn.Linear):
    """A layer whose defaults print where they stand, or a whole tensor."""

    def forward(self, x: Any, mode: Any = object(), scale: Any = torch.arange(12.0), power: int = 2) -> Any:  # noqa: B008
        return super().forward(x)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        pytest.param(
            lambda: measure(Chosen(4, 4), {"x": "float32 1x4", "mask": "float32 1x4"}),
            "it takes (x: 'Any', mode: 'Any'=…, scale: 'Any'=…, power: 'int' = 2)", id="forward",
        ),
        pytest.param(
            lambda: measure(lambda width, of=object(): nn.Linear(width, 4), "float32 1x4"),  # noqa: B008
            "it takes (width, of=…)", id="factory",
        ),
    ],
)  # fmt: skip
def test_a_default_that_is_no_plain_word_is_not_printed(call: Any, words: str) -> None:
    """Its address would be another in every session, and a tensor is a page."""
    with pytest.raises(ModelBudgetError, match=re.escape(words)):
        call()


@pytest.mark.parametrize("args", [[{"call": "nets:net", "kwargs": {(1, 2): 3}}], [{"call": {(1, 2): 3}}]])
def test_a_key_that_is_no_word_is_an_input_error(args: Any) -> None:
    """As Python's mappings may have it, and no budget."""
    with pytest.raises(ModelBudgetError, match="cannot be read: keys must be"):
        measure(small, "float32 1x3x8x8", args=args)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"args": 64}, "measure() was given args=64: write a list of arguments, such as args=[64]"),
        ({"args": "64"}, "measure() was given args='64': write a list"),
        ({"args": {"width": 64}}, "measure() was given args={'width': 64}: write a list"),
        ({"kwargs": 2}, "measure() was given kwargs=2: write a mapping, such as kwargs={'width': 64}"),
        ({"kwargs": [1]}, "measure() was given kwargs=[1]: write a mapping"),
        ({"qdq": []}, "[] is no way to read QDQ"),
        ({"training": ["adam"]}, "training=['adam'] names no optimizer"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_an_input_error(settings: Any, words: str) -> None:
    """Neither a number nor a word is taken apart, and no traceback through this package is told."""
    with pytest.raises(InputError, match=re.escape(words)):
        measure(small, "float32 1x3x8x8", **settings)


class Applies(nn.Module):
    """A forward pass of one function."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


IMAGE, SQUARE = "float32 1x3x8x8", "float32 2x2"
KERNEL = torch.ones(4, 3, 3, 3)  # of 4 channels out of 3; transposed, of 3 out of 4


# In place, of two rows that are one
TWICE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x[:1].expand(2, 2).add_(x),
    "copy": lambda x: x[:1].expand(2, 2).copy_(x),
    "activation": lambda x: torch.relu_(x[:1].expand(2, 2)),
    "comparison": lambda x: x[:1].expand(2, 2).gt_(0.5),
    "draw": lambda x: x[:1].expand(2, 2).uniform_(),
    "part": lambda x: x[:1].expand(2, 2)[:, 1:].mul_(2),
}


@pytest.mark.parametrize(
    ("function", "inputs", "words"),
    [
        pytest.param(lambda x: torch.conv2d(x, KERNEL[:, :2]), IMAGE, "3 channels, where the weight", id="channels"),
        pytest.param(lambda x: torch.conv2d(x, KERNEL, torch.ones(5)), IMAGE, "a bias [5] for 4 channels", id="bias"),
        pytest.param(lambda x: torch.conv_transpose2d(x, KERNEL), IMAGE, "takes 4", id="channels of a transposed one"),
        pytest.param(
            lambda x: torch.conv2d(x, KERNEL),
            "float32 3x8x8x1x1",
            "a tensor of 5 dimensions, where it takes batch, channels and 2 more",
            id="rank",
        ),
        pytest.param(
            lambda x: torch.conv1d(x, KERNEL[..., 0]),
            IMAGE,
            "a tensor of 4 dimensions, where it takes batch, channels and 1 more",
            id="rank where the channels fit",
        ),
        pytest.param(
            lambda x: torch.conv2d(x, KERNEL.half()), IMAGE, "different types, float16 and float32", id="types"
        ),
        pytest.param(lambda x: torch.mm(x, torch.ones(2, 2).half()), SQUARE, "of different types", id="of a product"),
        pytest.param(lambda x: torch.softmax(x, 2), SQUARE, "dimension 2 of a tensor that has 2", id="dimension"),
        *[pytest.param(write, SQUARE, "several elements lie in one place", id=name) for name, write in TWICE.items()],
    ],
)
def test_what_torch_refuses_is_not_measured(
    function: Callable[[torch.Tensor], torch.Tensor], inputs: str, words: str
) -> None:
    """Torch raises for each on numbers, and a trace says what is wrong."""
    shape = [int(size) for size in inputs.split()[1].split("x")]
    with pytest.raises((RuntimeError, IndexError)):
        function(torch.ones(shape))
    with pytest.raises(ModelBudgetError) as raised:
        measure(Applies(function), inputs)
    assert words in str(raised.value)


@pytest.mark.filterwarnings("ignore:Use of masked_fill_ on expanded tensors")
@pytest.mark.parametrize(
    "write", [lambda x: x.fill_(1.0), lambda x: x.zero_(), lambda x: x.masked_fill_(x > 0, 1.0), lambda x: x.squeeze_()]
)
def test_what_torch_writes_twice_is_measured(write: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Two rows that are one get one value."""
    assert write(torch.ones(1, 2).expand(2, 2)).shape == (2, 2)
    assert measure(Applies(lambda x: write(x[:1].expand(2, 2))), SQUARE)["macs"].complete


def test_a_failure_of_a_factory_is_its_own() -> None:
    """A TypeError inside of it is none of the caller's arguments."""

    def broken() -> nn.Module:
        return Classifier()  # type: ignore[call-arg]

    with pytest.raises(ModelBudgetError, match="raised TypeError") as raised:
        measure(broken, "float32 1x3x8x8")
    assert "it takes" not in str(raised.value)
    assert "pytest_modelbudget" not in str(raised.value)
