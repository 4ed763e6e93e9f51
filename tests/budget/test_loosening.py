"""What counts as loosened, change by change; what is not in the table is none."""

from __future__ import annotations

import pytest

from pytest_modelbudget.budget.budget import Budget
from pytest_modelbudget.budget.changes import loosenings
from pytest_modelbudget.metrics.table import metric_table
from tests.builders.texts import VISION, Read


def limits(text: str, model: str = "net") -> str:
    return (
        f"model_budget: 1\ndefaults: {{inputs: float32 1x3}}\nmodels:\n  {model}:\n    torch: a:b\n    limits: {text}\n"
    )


def texts(before: Budget, now: Budget | None) -> list[str]:
    found = loosenings(before, now, metric_table())
    return [each.text.removeprefix("budget loosened") for each in found]


MAX = "{params: 3.5 M}"
ENDS = "{arithmetic_intensity: {min: 30 FLOP/B}}"
GROW = "{macs: {grow: 2%, floor: 1 M}}"
OPS = "{ops: {deny: [lstm], max: {linear: 2}}}"
LOOSENED = [
    pytest.param(MAX, "{params: 4.0 M}", [" +14.3 %: params 3.5 M -> 4.0 M"], id="max raised"),
    pytest.param(MAX, "{params: 3_500_001}", [" +0.000029 %: params 3.5 M -> 3_500_001"], id="by 1"),
    pytest.param(MAX, "{macs: 1}", [": params removed, was 3.5 M"], id="metric removed"),
    pytest.param(MAX, "{params: auto}", [": max of params is auto"], id="auto"),
    pytest.param(MAX, "{params: {min: 1}}", [": max of params removed"], id="end removed"),
    pytest.param(MAX, "{params: {max: 3.5 M, level: warn}}", [": level of params error -> warn"], id="level"),
    pytest.param(
        MAX, "{params: {max: 3.5 M, allow_unmeasured: ['a::b']}}", [": params accepts a::b unmeasured"], id="unmeasured"
    ),
    pytest.param(
        ENDS,
        "{arithmetic_intensity: {min: 20 FLOP/B}}",
        [" -33.3 %: arithmetic_intensity min 30.00 FLOP/B -> 20.00 FLOP/B"],
        id="min lowered",
    ),
    pytest.param("{macs: {min: 1, max: 9}}", "{macs: {max: 9}}", [": min of macs removed"], id="min removed"),
    pytest.param(GROW, "{macs: {grow: 3%, floor: 1 M}}", [" +50.0 %: macs grow 2.0% -> 3.0%"], id="grow"),
    pytest.param(GROW, "{macs: {grow: 2%, floor: 2 M}}", [" +100.0 %: macs floor 1.00 MMAC -> 2.00 MMAC"], id="floor"),
    pytest.param(GROW, "{macs: {max: 9 G}}", [": grow of macs removed, was 2.0%"], id="grow removed"),
    pytest.param(OPS, "{ops: {max: {linear: 2}}}", [": lstm is no longer denied"], id="deny"),
    pytest.param(OPS, "{ops: {deny: [lstm], max: {linear: 3}}}", [" +50.0 %: ops linear 2 -> 3"], id="count"),
    pytest.param(OPS, "{ops: {deny: [lstm]}}", [": max of linear removed"], id="count removed"),
    pytest.param(
        "{ops: {allow: [linear]}}", "{ops: {allow: [linear, lstm]}}", [": lstm is newly allowed"], id="op allowed"
    ),
    pytest.param("{ops: {allow: [linear]}}", "{ops: {deny: [lstm]}}", [": any operation is allowed"], id="all allowed"),
]
TIGHTENED = [
    pytest.param(MAX, "{params: 3 M}", id="max lowered"),
    pytest.param(MAX, "{params: 3500 k}", id="the same in another unit"),
    pytest.param("{params: {max: 3 M, level: warn}}", "{params: 3 M}", id="level raised"),
    pytest.param("{params: auto}", MAX, id="auto filled in"),
    pytest.param(MAX, "{params: {max: 3.5 M, grow: 1%}}", id="grow added"),
    pytest.param(ENDS, "{arithmetic_intensity: {min: 40 FLOP/B}}", id="min raised"),
    pytest.param(OPS, "{ops: {deny: [lstm, gru], max: {linear: 1}}}", id="ops"),
    pytest.param("{ops: {deny: [lstm]}}", "{ops: {deny: [lstm], allow: [linear]}}", id="allow"),
]


@pytest.mark.parametrize(("before", "now", "expected"), LOOSENED)
def test_loosened(read: Read, before: str, now: str, expected: list[str]) -> None:
    """One change, one line; and back again it is a tightening, but for another metric."""
    old, new = read(limits(before)), read(limits(now))
    assert texts(old, new) == expected
    assert texts(old, old) == texts(new, new) == []


@pytest.mark.parametrize(("before", "now"), TIGHTENED)
def test_tightened(read: Read, before: str, now: str) -> None:
    """What is harder to keep, or the same, is not spoken of."""
    assert texts(read(limits(before)), read(limits(now))) == []


def test_places(read: Read) -> None:
    """A limit is announced on its own line, one that is gone on its model's, else on line 1."""
    before = read(VISION)
    now = read(VISION.replace("layer4.*: {params: 8.4 M}", "layer4.*: {macs: 1 G}").replace(
        "11.7 M", "12 M"))  # fmt: skip
    places = [(each.path, each.check, each.place.line) for each in loosenings(
        before, now, metric_table())]  # fmt: skip
    assert places == [("resnet18", "params", 9), ("resnet18", "params@layer4.*", 5)]
    gone = loosenings(before, None, metric_table())
    assert {each.place.line for each in gone} == {1}
    assert [each.path for each in gone] == [model.name for model in before.models if model.variant is None]


def test_a_dropped_variant_is_a_dropped_model(read: Read) -> None:
    """It is announced where its model stands."""
    text = VISION.replace("limits: {macs: 715 MMAC}", "limits: {macs: 1}, variants: {x: {limits: "
                          "{macs: 1}}}")  # fmt: skip
    (found,) = loosenings(read(text), read(VISION.replace("715 MMAC", "1")), metric_table())
    assert (found.path, found.what, found.place.line) == ("scripted::x", "model dropped", 18)
    assert found.text == "budget loosened: model scripted::x dropped with 1 limit"


def test_all_that_a_dropped_model_is_held_to_is_counted(read: Read) -> None:
    """2 limits of its own; of the transform one and its claim; of the deployment one and that it fits."""
    text = (
        "model_budget: 1\nmodels:\n  net:\n    torch: a:b\n    inputs: float32 1x3\n"
        "    limits: {params: 1, macs: 1}\n"
        "    transforms: {tiled: {tile_linear: {tile: 64}, limits: {macs: 1}, equivalence: exact_algebra}}\n"
        "    deployments: {chip: {device: cortex_m4, fits: true, limits: {activation_arena: 36 kB}}}\n"
    )
    assert texts(read(text), None) == [f": model net dropped with {2 + 2 + 2} limits"]


def claimed(equivalence: str, transform: str = "tiled: {tile_linear: {tile: 64}") -> str:
    """A model with a transform that is held to a claim, or to none."""
    claim = f", equivalence: {equivalence}" if equivalence else ""
    return (
        "model_budget: 1\nmodels:\n  net:\n    torch: a:b\n    inputs: float32 1x3\n"
        f"    transforms:\n      {transform}, limits: {{macs: 1}}{claim}}}\n"
    )


LESS = "asks for less"


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        pytest.param("exact_algebra", "", "removed, was exact_algebra", id="removed"),
        pytest.param("exact_algebra", "{kind: lossy, sqnr: 30}", "exact_algebra -> lossy", id="another kind"),
        pytest.param("{kind: lossy, sqnr: 30}", "{kind: lossy, sqnr: 20}", LESS, id="a lower minimum"),
        pytest.param("{kind: lossy, sqnr: 30}", "{kind: lossy, sqnr: 40}", "", id="tighter"),
        pytest.param("{kind: lossy, sqnr: 30}", "exact_algebra", "", id="a stricter kind"),
        pytest.param("", "exact_algebra", "", id="added"),
        pytest.param(
            "{kind: lossy, sqnr: 9}", "{kind: lossy, sqnr: 9, families: [normal]}", LESS, id="E4: fewer families"
        ),
        pytest.param(
            "{kind: lossy, sqnr: 9}", "{kind: lossy, sqnr: 9, family_bounds: {large: {sqnr: 1}}}", LESS,
            id="E4: a lower bound of a family",
        ),
        pytest.param("{kind: lossy, sqnr: 9, rows: 256}", "{kind: lossy, sqnr: 9}", LESS, id="E4: fewer rows"),
        pytest.param(
            "{kind: lossy, sqnr: 9, inputs: a.npz}", "{kind: lossy, sqnr: 9, inputs: b.npz}",
            "applies to other inputs than a.npz", id="E4: other inputs",
        ),
        pytest.param(
            "{kind: lossy, sqnr: 9}", "{kind: lossy, sqnr: 9, inputs: b.npz, rows: 9}", "",
            id="E4: more inputs and rows",
        ),
    ],
)  # fmt: skip
def test_claims(read: Read, before: str, now: str, said: str) -> None:
    """A claim about outputs is a limit too: it may not go, nor hold less, unsaid."""
    expected = [f": equivalence of net::tiled {said}"] if said else []
    assert texts(read(claimed(before)), read(claimed(now))) == expected


def test_a_file_that_ships_no_longer(read: Read) -> None:
    """A transform is held to it; another file is none that is gone."""
    held = "tiled: {tile_linear: {tile: 64}, shipped: ../build/m.onnx"
    assert texts(read(claimed("exact_algebra", held)), read(claimed("exact_algebra"))) == [
        ": shipped of net::tiled removed, was ../build/m.onnx"
    ]
    assert texts(read(claimed("exact_algebra", held)), read(claimed("exact_algebra", held.replace("m.", "n.")))) == []


def test_a_step_that_is_gone(read: Read) -> None:
    """Its claim goes with it; the steps behind it are others by name."""
    two = claimed("exact_algebra", "tiled: {steps: [fold_batchnorm, {tile: {products: 8}}]")
    one = claimed("exact_algebra", "tiled: {steps: [fold_batchnorm]")
    assert texts(read(two), read(one)) == [": transform net::tiled.2-tile dropped with 1 limit"]


@pytest.mark.parametrize(
    ("now", "said"),
    [
        pytest.param("{kind: lossy, sqnr: 1}", LESS, id="a bound for the quantiser's own"),
        pytest.param("{kind: lossy, outputs: {y: {max_abs: 9}}}", LESS, id="a bound of one output for it"),
        pytest.param("{kind: lossy, seeds: [0, 1, 2, 3]}", "", id="the quantiser's own, on more runs"),
        pytest.param("exact_algebra", "", id="nothing may be lost"),
    ],
)
def test_claims_with_a_transform_s_own_bounds(read: Read, now: str, said: str) -> None:
    """The quantiser brings bounds, which lossy alone holds."""
    old, new = (read(claimed(claim, "small: {quantize: {}")) for claim in ("lossy", now))
    assert texts(old, new) == ([f": equivalence of net::small {said}"] if said else [])
