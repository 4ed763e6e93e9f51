"""What counts as another model, change by change; what is not in the table is the same one."""

from __future__ import annotations

import pytest

from pytest_modelbudget.budget.budget import Budget
from pytest_modelbudget.budget.changes import ELSE, LONGEST, Redefinition, redefinitions
from pytest_modelbudget.transforms.table import transform_table
from tests.builders.texts import Read

HEAD = "model_budget: 1\ndefaults: {inputs: float32 1x3}\nmodels:\n  net:\n"
TORCH, ONNX = "    torch: a:b\n", "    onnx: net.onnx\n"
LIMITS = "    limits: {params: 1 M}\n"


def model(text: str, source: str = TORCH, limits: str = LIMITS) -> str:
    """A model that stands in lines 4 and on: its source in line 5, then the text, then limits."""
    return f"{HEAD}{source}{text}{limits}"


def key(text: str, source: str = TORCH) -> str:
    return model(f"    {text}\n", source)


def transform(text: str, held: str = "limits: {macs: 1}", limits: str = "") -> str:
    """The transform's own words stand in line 8, below the model's limits."""
    below = f"    transforms:\n      small:\n        {text}\n        {held}\n"
    return model("", limits=limits + below)


def redefined(before: Budget, now: Budget | None) -> tuple[Redefinition, ...]:
    return redefinitions(before, now, transform_table())


def texts(before: Budget, now: Budget | None) -> list[str]:
    """What is said, without the words that are always there."""
    found = redefined(before, now)
    assert all(each.text.endswith(f": {ELSE}") for each in found)
    return [each.text.removesuffix(f": {ELSE}") for each in found]


LONG = "0, " * 40
REDEFINED = [
    pytest.param(
        key("inputs: float32 1x3x224x224"), key("inputs: float32 1x3x112x112"),
        "inputs float32 1x3x224x224 -> float32 1x3x112x112", id="shape",
    ),
    pytest.param(
        key("inputs: float32 1x3"), key("inputs: float16 1x3"),
        "inputs float32 1x3 -> float16 1x3", id="type of an input",
    ),
    pytest.param(
        key("inputs: [float32 1, int8 2]"), key("inputs: [int8 2, float32 1]"),
        "inputs [float32 1, int8 2] -> [int8 2, float32 1]", id="order of positional inputs",
    ),
    pytest.param(
        key("inputs: [float32 1, int8 2]"), key("inputs: [[float32 1, int8 2]]"),
        "inputs [float32 1, int8 2] -> [[float32 1, int8 2]]", id="two inputs, or one list",
    ),
    pytest.param(
        key("inputs: {x: int64 1x128, mask: int64 1x128}"),
        key("inputs: {x: int64 1x64, mask: int64 1x128}"),
        "inputs {x: int64 1x128} -> {x: int64 1x64}", id="one input by name",
    ),
    pytest.param(
        key("inputs: {dtype: int64, shape: [1, 2], high: 9}"), key("inputs: int64 1x2"),
        'inputs {"dtype": "int64", "shape": [1, 2], "high": 9} -> int64 1x2', id="range",
    ),
    pytest.param(
        model(""), key("inputs: float32 2x3"), "inputs float32 1x3 -> float32 2x3", id="no default"
    ),
    pytest.param(
        model(""), model("").replace("1x3", "2x3"), "inputs float32 1x3 -> float32 2x3",
        id="another default",
    ),
    pytest.param(model(""), key("dtype: bfloat16"), "dtype none -> bfloat16", id="dtype"),
    pytest.param(
        key("kwargs: {width: 1.0, depth: 3}"), key("kwargs: {depth: 3, width: 0.5}"),
        "kwargs {width: 1.0} -> {width: 0.5}", id="one of two arguments",
    ),
    pytest.param(
        key("kwargs: {a: 1, b: 1, c: 1}"), key("kwargs: {a: true, b: 1.0, c: '1'}"),
        'kwargs {a: 1, b: 1, c: 1} -> {a: true, b: 1.0, c: "1"}', id="equal in Python",
    ),
    pytest.param(
        model(""), key("kwargs: {weights: ~}"), "kwargs none -> {weights: null}", id="null argument"
    ),
    pytest.param(key("args: [3]"), key("args: ['3']"), 'args [3] -> ["3"]', id="another type"),
    pytest.param(
        key(f"args: [a, {LONG} 1]"), key(f"args: [a, {LONG} 2]"),
        "args … 0, 0, 0, 1] -> … 0, 0, 0, 2]", id="long, and 10 signs before they part",
    ),
    pytest.param(
        key("dims: {batch: 8, height: 64}", ONNX), key("dims: {height: 64, batch: 1}", ONNX),
        "dims {batch: 8} -> {batch: 1}", id="dims",
    ),
    pytest.param(model("", ONNX), key("qdq: as_written", ONNX), "qdq none -> as_written", id="qdq"),
    pytest.param(
        key("training: {optimizer: adam}"), key("training: {optimizer: sgd}"),
        "training none -> {optimizer: sgd}", id="optimizer",
    ),
    pytest.param(
        model(""), model("", "    torch: a:c\n"), "source torch a:b -> torch a:c", id="target"
    ),
    pytest.param(
        model("", ONNX), model("", "    onnx: small.onnx\n"),
        "source onnx net.onnx -> onnx small.onnx", id="file",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("before", "now", "expected"), REDEFINED)
def test_redefined(read: Read, before: str, now: str, expected: str) -> None:
    """One key, one line; and back again it is one too, the other way round."""
    old, new = read(before), read(now)
    assert texts(old, new) == [f"model changed: {expected}"]
    assert len(texts(new, old)) == 1
    assert texts(old, old) == texts(new, new) == []


SAME = [
    pytest.param(key("inputs: float32 1x4"), key("inputs: ['float32[1, 4]']"), id="brackets"),
    pytest.param(
        key("inputs: float32 1x4"), key("inputs: {shape: [1, 4], dtype: float32}"), id="spelled out"
    ),
    pytest.param(key("inputs: float32 1x3"), model(""), id="the default, written or not"),
    pytest.param(
        key("inputs: {x: int8 1, y: int8 2}"), key("inputs: {y: int8 2, x: int8 1}"), id="names"
    ),
    pytest.param(
        key("kwargs: {a: {b: 1, c: 2}, d: e}"), key("kwargs: {'d': \"e\", a: {c: 2, b: 1}}"),
        id="order and quotes",
    ),
    pytest.param(key("args: [.nan, 0x10]"), key("args:\n    - .NaN\n    - 16"), id="numbers"),
    pytest.param(key("kwargs: {}"), model(""), id="nothing in two words"),
    pytest.param(model("", ONNX), model("", "    onnx: ./net.onnx\n"), id="path"),
    pytest.param(
        model("", ONNX), model("", ONNX).replace("float32 1x3", "float32 9x9"),
        id="a default that a file leaves alone",
    ),
    pytest.param(
        transform("tile_linear: {tile: 64, edge: ragged, layers: '*'}"),
        transform("tile_linear: {layers: ['*'], tile: 64}"), id="defaults of settings",
    ),
    pytest.param(
        transform("tile_conv: {tile: 64}"), transform("tile_conv: {tile: [64, 64]}"),
        id="a square tile",
    ),
    pytest.param(
        model(""), model("", "    torch: a:c\n", "    limits: {macs: 1 M}\n"), id="no limit stays"
    ),
    pytest.param(model(""), model("", "    torch: a:c\n").replace("net:", "new:"), id="renamed"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "now"), SAME)
def test_the_same(read: Read, before: str, now: str) -> None:
    """Another spelling, and a model that nothing was held of, are not spoken of."""
    assert texts(read(before), read(now)) == texts(read(now), read(before)) == []


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        pytest.param(
            transform("tile_linear: {tile: 64}"), transform("tile_linear: {tile: [1, 64, 64]}"),
            "tile 64 -> [1, 64, 64]", id="tile",
        ),
        pytest.param(
            transform("tile_conv: {tile: [64, 32]}"), transform("tile_conv: {tile: [64, 16]}"),
            "tile [64, 32] -> [64, 16]", id="output channels of a tile",
        ),
        pytest.param(
            transform("tile_conv: {tile: 64}"), transform("tile_conv: {tile: [64, 1]}"),
            "tile 64 -> [64, 1]", id="input and output channels",
        ),
        pytest.param(
            transform("quantize: {weights: {bits: 4}, granularity: tensor}"),
            transform("quantize: {weights: {bits: 4}}"), "granularity tensor -> channel", id="to the default",
        ),
        pytest.param(
            transform("quantize: {layers: {head: keep}}"), transform("quantize: {}"),
            "layers {head: keep} -> none", id="layers",
        ),
        pytest.param(
            transform("apply: a:small"), transform("apply: a:large"), "apply a:small -> a:large",
            id="callable",
        ),
        pytest.param(
            transform("compare: {torch: a:c, kwargs: {width: 1}}"),
            transform("compare: {kwargs: {width: 2}, torch: a:c}"),
            "compare {kwargs width: 1} -> {kwargs width: 2}", id="second model",
        ),
        pytest.param(
            transform("steps: [fold_batchnorm, {tile: {products: 8}}]"),
            transform("steps: [fold_batchnorm, {tile: {products: 4}}]"),
            "steps {2 tile: {products: 8, edge: ragged, layers: [\"*\"]}} -> "
            "{2 tile: {products: 4, edge: ragged, layers: [\"*\"]}}", id="a step",
        ),
        pytest.param(
            transform("export_onnx: {}"), transform("export_onnx: {opset: 20}"),
            "opset none -> 20", id="a setting without a default",
        ),
        pytest.param(
            transform("quantize: {weights: {bits: 4}}", "equivalence: lossy"),
            transform("fold_batchnorm: {}", "equivalence: exact_algebra"),
            "quantize -> fold_batchnorm", id="another one, held to a claim",
        ),
    ],
)  # fmt: skip
def test_redefined_transforms(read: Read, before: str, now: str, expected: str) -> None:
    """What is done to a model is declared too; it stands on the transform's own line."""
    (found,) = redefined(read(before), read(now))
    assert found.text == f"transform changed: {expected}: {ELSE}"
    assert (found.path, found.place.line) == ("net::small", 8)


def place(found: Redefinition) -> tuple[str, str, int]:
    return found.path, found.what, found.place.line


def test_places(read: Read) -> None:
    """A key is told of on its own line, the default's if that is taken; one that is gone, above."""
    text = "    args: [3]\n    dtype: float16\n"
    before = read(model(text))
    now = read(model("    dtype: float32\n    kwargs: {a: 1}\n").replace("1x3", "2x3"))
    found = sorted(map(place, redefined(before, now)), key=lambda each: each[-1])
    assert found == [
        ("net", "inputs", 2), ("net", "args", 5), ("net", "dtype", 6), ("net", "kwargs", 7)
    ]  # fmt: skip


VARIANTS = "    variants:\n" + "".join(
    f"      b{size}: {{inputs: float32 {size}x3, limits: {{macs: 1}}}}\n" for size in (2, 4)
)


@pytest.mark.parametrize("limits", [LIMITS, ""], ids=["limited", "not limited"])
def test_what_variants_share_is_told_once(read: Read, limits: str) -> None:
    """As their model's; what is a variant's own is told as its own."""
    before = read(model("", limits=limits + VARIANTS))
    now = read(model("", "    torch: a:c\n", limits + VARIANTS.replace("4x3", "5x3")))
    line = 5 + bool(limits) + 3
    assert list(map(place, redefined(before, now))) == [
        ("net", "source", 5), ("net::b4", "inputs", line)
    ]  # fmt: skip


def test_limits_on_transforms_are_limits_on_the_model(read: Read) -> None:
    """Where a model is held to nothing else, its inputs are told of all the same."""
    before = transform("tile_linear: {tile: 64}")
    (found,) = redefined(read(before), read(before.replace("1x3", "2x3")))
    assert place(found) == ("net", "inputs", 2)


def test_nothing_is_left_to_redefine(read: Read) -> None:
    """A file that is gone holds nothing; that is told as loosened."""
    assert redefined(read(model("")), None) == ()


@pytest.mark.parametrize("limits", [LIMITS, ""], ids=["limited", "not limited"])
def test_a_transform_in_the_place_of_a_variant(read: Read, limits: str) -> None:
    """And a variant in the place of a transform: limits on the path stay, on something else."""
    small = "    variants:\n      small: {inputs: float32 2x3, limits: {macs: 1}}\n"
    variant = read(model("", limits=limits + small))
    tiled = read(transform("tile_linear: {tile: 64}", limits=limits))
    line = 5 + bool(limits) + 2
    for before, now, told, shown in (
        (variant, tiled, "none -> tile_linear", line + 1),
        (tiled, variant, "tile_linear -> none", line),
    ):
        (found,) = redefined(before, now)
        assert found.text == f"transform changed: {told}: {ELSE}"
        assert place(found) == ("net::small", "transform", shown)


def test_texts_are_short(read: Read) -> None:
    """Whatever a budget holds, a message shows where two values part, on one line."""
    first, second = ("x" * 300 + "\\n" + end for end in ("a" * 300, "b" * 300))
    (found,) = redefined(read(key(f'args: ["{first}"]')), read(key(f'args: ["{second}"]')))
    assert found.before != found.after
    for text in (found.before, found.after):
        assert text is not None
        assert len(text) <= LONGEST + 2
        assert text.isprintable()
