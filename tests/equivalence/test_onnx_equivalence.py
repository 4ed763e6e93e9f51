"""ONNX twins under the two-step criterion: right ones pass, and every mutant is killed."""

from __future__ import annotations

import weakref
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pytest_modelbudget.equivalence.changed import Changed
from pytest_modelbudget.equivalence.claim import Claim, Outcome
from pytest_modelbudget.equivalence.comparison import Comparison
from pytest_modelbudget.equivalence.figures import ALGEBRA
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.equivalence.runs import Pair, SharedValues, original_runs
from pytest_modelbudget.onnx_models import session
from pytest_modelbudget.onnx_models.session import OnnxRun
from pytest_modelbudget.transforms.tile.grid import Tile
from pytest_modelbudget.transforms.tile.linear_on_onnx import Tiling, tiled_linears
from tests.builders.marks import each_in_turn
from tests.builders.onnx_graphs import model, node, value
from tests.builders.onnx_judgements import in_memory, judged, judged_rewrite
from tests.builders.onnx_linears import change, find, linear, network
from tests.builders.onnx_mutants import BATCHED, UNROLLED, Place, one_channel
from tests.builders.onnx_output_mutants import DECLARED, dropout_left_on, narrow_sums
from tests.builders.torch_and_onnx_mutants import DROPOUT, NAN, OUTPUTS, SECOND, STRUCTURAL

TYPES = ("float32", "float16")
SIZES = (1, 63, 64, 65, 200, 4096)
LARGEST = (4096, 4096)  # is the second layer of AlexNet, and tried there
PAIRS = [pair for pair in product(SIZES, SIZES) if pair != LARGEST]
# Forms, leading sizes, scales of the output, and biases. Large layers are tried batched alone.
TILINGS = (
    ("unrolled", (2,), 1.0, False), ("batched", (2, 3), 1e-3, False),
    ("unrolled", (2, 3), 1e4, True), ("batched", (2,), 1e4, True),
)  # fmt: skip


def twin_of(proto: onnx.ModelProto, tiling: Tiling, seeds: int = 1) -> Equivalence:
    """The judgement on a right tiling."""
    found = tiled_linears(proto, tiling)
    return judged(proto, found.model, found.partial_sums, seeds)


@pytest.mark.parametrize(("k", "n", "dtype"), each_in_turn(PAIRS, TYPES))
def test_no_false_alarm(k: int, n: int, dtype: str) -> None:
    """Right tilings of every size are within, in either type, in both forms and ranks."""
    for seed, (form, leading, scale, bias) in enumerate(TILINGS):
        if form == "unrolled" and max(k, n) > 200:
            continue
        proto = linear(k, n, leading=leading, bias=bias, dtype=dtype, seed=seed)
        scaled(proto, scale)
        found = twin_of(proto, Tiling(Tile(None, 64, 64), form))
        assert found.outcome is Outcome.WITHIN, found.reason
        assert all(record.algebra is not None for record in found.outputs)


@pytest.mark.parametrize(("dtype", "are_smaller"), [("float32", False), ("float16", True)])
def test_smaller_inputs_are_said_aloud(dtype: str, are_smaller: bool) -> None:
    """64 inputs of about 100, by weights of 1000, end above 65,504, where float16 ends."""
    proto = linear(64, 8, leading=(2,), dtype=dtype)
    change(proto, "fc.weight", lambda values: values * 0 + 1000)
    notes = twin_of(proto, Tiling(Tile(None, 64, 64))).notes
    assert any("overflows on larger ones" in note for note in notes) is are_smaller


def scaled(proto: onnx.ModelProto, scale: float) -> None:
    """Multiply the weight, and so the output, of a layer."""
    change(proto, "fc.weight", lambda values: values * values.dtype.type(scale))


FC0 = Place("fc0", "w0", "b0", "w1", "fc0", whole=50)
FORMS = {"unrolled": UNROLLED, "batched": BATCHED}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", STRUCTURAL)
def test_mutants_die(name: str, form: str, dtype: str) -> None:
    """Step 1 sees every structural mistake in every type, and names the layer."""
    proto = network(dtype)
    twin = tiled_linears(proto, FC0.tiling(name, form))
    assert judged(proto, twin.model, twin.partial_sums).outcome is Outcome.WITHIN
    FORMS[form][name](twin.model, FC0)
    onnx.checker.check_model(twin.model, full_check=True)
    found = judged(proto, twin.model, twin.partial_sums)
    assert found.outcome is Outcome.OVER, found.reason
    assert name == NAN or max(record.algebra or 0.0 for record in found.outputs) > 1e-5
    assert found.first_divergence is not None
    assert found.first_divergence.scope == FC0.scope


@pytest.mark.parametrize("form", FORMS)
def test_narrow_sums_die(form: str) -> None:
    """Sums in float16 are right in float64, and too coarse in float32."""
    proto = network("float32")
    twin = tiled_linears(proto, Tiling(Tile(None, 64, 64), form)).model
    narrow_sums(twin, "fc0", "float32")
    found = judged(proto, twin, 4)
    assert found.outcome is Outcome.OVER
    assert all((record.algebra or 0.0) <= ALGEBRA for record in found.outputs)
    assert max(record.precision or 0.0 for record in found.outputs) > 1
    assert getattr(found.first_divergence, "scope", None) == "fc0"


@pytest.mark.parametrize("form", FORMS)
def test_narrow_sums_die_in_half_precision(form: str) -> None:
    """A cast to eight bits stays one in a float64 run: step 1 sees it, and names the layer."""
    proto = network("float16")
    twin = tiled_linears(proto, Tiling(Tile(None, 64, 64), form)).model
    narrow_sums(twin, "fc0", "float16")
    found = judged(proto, twin, 4)
    assert found.outcome is Outcome.OVER
    assert getattr(found.first_divergence, "scope", None) == "fc0"


def second_output_wrong(proto: onnx.ModelProto) -> None:
    find(proto, "second").attribute[0].i = 0


RUN_TIME_MUTANTS = {
    SECOND: (second_output_wrong, "second"),
    DROPOUT: (lambda proto: dropout_left_on(proto, "relu1"), "fc2"),
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", RUN_TIME_MUTANTS)
def test_what_only_shows_in_a_run_dies(name: str, dtype: str) -> None:
    """Another axis of the second output's Softmax, and half of what the last layer is fed."""
    proto = network(dtype)
    twin = tiled_linears(proto, Tiling(Tile(None, 64, 64))).model
    mutate, scope = RUN_TIME_MUTANTS[name]
    mutate(twin)
    found = judged(proto, twin, 4)
    assert found.outcome is Outcome.OVER
    assert getattr(found.first_divergence, "scope", None) == scope


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", [*OUTPUTS, "output renamed"])
def test_other_outputs_fail(name: str, dtype: str) -> None:
    """Outputs of another type, name, number or order are not the same outputs."""
    proto = network(dtype)
    twin = tiled_linears(proto, Tiling(Tile(None, 64, 64))).model
    mutate, said = DECLARED[name]
    mutate(twin)
    found = judged(proto, twin, 4)
    assert found.outcome is Outcome.OVER
    assert said.format(first="fc2", dtype=dtype) in found.reason


@pytest.mark.parametrize("dtype", TYPES)
def test_what_an_activation_hides_dies(dtype: str) -> None:
    """A channel that is off in every run still is a wrong channel: layers are looked at too."""
    proto = network(dtype)
    change(proto, "b0", lambda values: np.where(np.arange(130) == 3, -6000, values))
    twin = tiled_linears(proto, Tiling(Tile(None, 64, 64))).model
    change(twin, FC0.tile(0, 0), one_channel)
    proto.graph.output.pop()
    twin.graph.output.pop()
    found = judged(proto, twin, 4)
    assert found.outcome is Outcome.OVER
    seen = {record.name for record in found.outputs if record.outcome is Outcome.OVER}
    assert seen == {"fc0"}
    assert found.first_divergence is not None
    assert found.first_divergence.scope == "fc0"


def test_a_weight_of_an_untouched_layer_that_an_activation_hides_dies() -> None:
    """A layer whose node stayed is looked at too where a tensor that it reads is another one."""
    proto = network("float32")
    change(proto, "b0", lambda values: np.where(np.arange(130) == 3, -6000, values))
    twin = tiled_linears(proto, Tiling(Tile(None, 64, 64), layers=("fc2",))).model
    change(twin, "w0", lambda values: np.where(np.arange(130) == 3, -values, values))
    proto.graph.output.pop()
    twin.graph.output.pop()
    found = judged(proto, twin, 4)
    assert found.outcome is Outcome.OVER
    assert getattr(found.first_divergence, "scope", None) == "fc0"


def test_a_network_that_ignores_its_input_is_redrawn() -> None:
    """Weights of zero prove nothing: others are drawn, and the report says so."""
    proto = linear(130, 70)
    change(proto, "fc.weight", np.zeros_like)
    tiling = Tiling(Tile(None, 64, 64))
    found = judged_rewrite(in_memory(proto), lambda each: tiled_linears(each, tiling), Claim(seeds=(0,)))
    assert (found.outcome, found.weights) == (Outcome.WITHIN, "drawn, seed 0")


def test_a_constant_reference_is_unknown() -> None:
    """A network whose output never moves shows nothing, whatever its weights are."""
    nodes = [node("Mul", "x zero", "z"), node("Add", "z one", "y")]
    stored = [numpy_helper.from_array(np.array(number, np.float32), name) for name, number in (("zero", 0), ("one", 1))]
    proto = model(nodes, [value("x", 3)], [value("y", 3)], stored)
    found = judged(proto, proto)
    assert found.outcome is Outcome.UNKNOWN
    assert "do not move" in found.reason


def test_float64_values_are_kept_until_they_are_read() -> None:
    """Those that were read are gone at once, and so are those of one scale of inputs."""
    model = in_memory(linear(64, 8)).in_float64()
    inputs = {"x": np.full((3, 64), 1, np.float32)}
    values = SharedValues(model, ("y",))
    kept = weakref.ref(values.run(inputs).outputs[0].values)
    assert kept() is not None
    assert kept() is values.take(inputs)["y"]
    assert kept() is None
    again = weakref.ref(values.run(inputs).outputs[0].values)
    values = SharedValues(model, ("y",))  # of the next scale
    assert again() is None


def test_a_search_prepares_its_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more looks for a divergence and one for rounding, on however many inputs.

    The runs of the original, of which both look at the one value that is handed on, are there already.
    """
    made: Counter[str] = Counter()

    class Counted(OnnxRun):
        def __init__(self, *models: onnx.ModelProto, **options: Any) -> None:
            made["runs"] += 1
            super().__init__(*models, **options)

    proto = linear(64, 8)
    original = in_memory(proto)
    pair = Pair(original, Changed(original.changed(proto), upcasts=True), lambda model: changed)
    changed = pair.changed
    comparison = Comparison(Claim(seeds=(0,)), pair, original_runs(Claim(seeds=(0,)), pair))
    monkeypatch.setattr(session, "OnnxRun", Counted)
    for size in range(1, 5):
        inputs = {"x": np.full((3, 64), size, np.float32)}
        assert comparison.divergence(inputs)[0] is None
        assert comparison.rounding(inputs)[0] is None
    assert made["runs"] == 1 + 1


def test_nodes_before_the_first_change_are_run_once_in_each_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """The changed file runs from the value that both have."""
    made: Counter[tuple[bool, frozenset[str]]] = Counter()

    class Noted(OnnxRun):
        def __init__(self, *models: onnx.ModelProto, **options: Any) -> None:
            made[options["float64"], options["given"]] += 1
            super().__init__(*models, **options)

    monkeypatch.setattr(session, "OnnxRun", Noted)
    proto = linear(64, 8)
    proto.graph.node[0].input[0] = "positive"
    proto.graph.node.insert(0, node("Relu", "x", "positive"))
    found = judged_rewrite(
        in_memory(proto), lambda whole: tiled_linears(whole, Tiling(Tile(None, 32, 8))), Claim(seeds=(0,))
    )
    assert found.outcome is Outcome.WITHIN, found.reason
    whole, handed = frozenset[str](), frozenset({"positive"})
    assert made == {(True, whole): 1, (False, whole): 1, (True, handed): 1, (False, handed): 1}
