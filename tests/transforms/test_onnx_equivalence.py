"""ONNX twins under the two-step criterion: right ones pass, and every mutant is killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from pytest_modelbudget.check.tables import tables
from pytest_modelbudget.transforms.claim import Claim
from pytest_modelbudget.transforms.equivalence import Equivalence
from pytest_modelbudget.transforms.onnx_sides import sides
from pytest_modelbudget.transforms.onnx_verifying import Judge
from pytest_modelbudget.transforms.outcome import Outcome
from pytest_modelbudget.transforms.tile_grid import Tile
from pytest_modelbudget.transforms.tile_linear_onnx import Tiling, tiled_linears

from ..frontends.onnx_graphs import model, node, value
from .onnx_linears import CODES, drawn, linear, operators

TYPES = ("float32", "float16")
SIZES = (1, 63, 64, 65, 200)


def judged(
    original: onnx.ModelProto, twin: onnx.ModelProto, sums: int = 1, seeds: int = 1
) -> Equivalence:
    """Whether two models are the same, as exact algebra."""
    judge = Judge(
        Claim(seeds=tuple(range(seeds))), {}, lambda first: sides(first, twin, partial_sums=sums)
    )
    return judge.equivalence(original, tables().ops)


def twin_of(proto: onnx.ModelProto, tiling: Tiling, seeds: int = 1) -> Equivalence:
    """The judgement on a right tiling."""
    found = tiled_linears(proto, tiling)
    return judged(proto, found.model, found.partial_sums, seeds)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("k", SIZES)
def test_no_false_alarm(k: int, n: int, dtype: str) -> None:
    """Right tilings of every size are within, in both types, forms and ranks."""
    for seed, (form, leading, scale) in enumerate(
        (("unrolled", (2,), 1.0), ("batched", (2, 3), 1e-3), ("unrolled", (2, 3), 1e2))
    ):
        proto = linear(k, n, leading=leading, bias=bool(seed % 2), dtype=dtype, seed=seed)
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


def change(proto: onnx.ModelProto, name: str, how: Callable[[Any], Any]) -> None:
    """Write other values, of the same type, to one stored tensor."""
    tensor = next(each for each in proto.graph.initializer if each.name == name)
    values = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(how(values.copy()).astype(values.dtype), name))


def network(dtype: str) -> onnx.ModelProto:
    """Three linear layers 200 → 130 → 90 → 70 with biases, ReLU between, and two outputs."""
    code, widths = CODES[dtype], (200, 130, 90, 70)
    nodes, weights, x = [], [], "x"
    for layer, (k, n) in enumerate(pairwise(widths)):
        names = f"{x} w{layer} b{layer}"
        nodes.append(node("Gemm", names, f"fc{layer}"))
        weight = drawn(layer, k, n, dtype=dtype) / np.sqrt(k).astype(dtype)
        weights.append(numpy_helper.from_array(weight, f"w{layer}"))
        weights.append(numpy_helper.from_array(drawn(9 + layer, n, dtype=dtype), f"b{layer}"))
        x = f"fc{layer}"
        if layer < 2:
            nodes.append(node("Relu", x, f"relu{layer}"))
            x = f"relu{layer}"
    nodes.append(node("Softmax", "relu0", "second", axis=-1))
    outputs = [value("fc2", 4, 70, code=code), value("second", 4, 130, code=code)]
    return model(nodes, [value("x", 4, 200, code=code)], outputs, weights)


def tile(k: int, n: int) -> str:
    """The name of a stored tile of the first layer."""
    return f"w0_k{k}_n{n}"


def find(proto: onnx.ModelProto, result: str) -> onnx.NodeProto:
    return next(node for node in proto.graph.node if result in node.output)


def drop_last_row_of_tiles(proto: onnx.ModelProto) -> None:
    for n in range(3):
        change(proto, tile(3, n), np.zeros_like)


def swap_tiles(proto: onnx.ModelProto) -> None:
    find(proto, "fc0/tiles.product.k0.n0").input[1] = tile(1, 0)
    find(proto, "fc0/tiles.product.k1.n0").input[1] = tile(0, 0)


def stale_accumulator(proto: onnx.ModelProto) -> None:
    find(proto, "fc0/tiles.sum.k2.n1").input[0] = "fc0/tiles.sum.k1.n0"


def other_batch_element(proto: onnx.ModelProto) -> None:
    """One tile's product is made of the rows of another batch element."""
    product = find(proto, "fc0/tiles.product.k1.n1")
    rows = numpy_helper.from_array(np.array([1, 2, 3, 0]), "rows")
    proto.graph.initializer.append(rows)
    position = list(proto.graph.node).index(product)
    taken = node("Gather", f"{product.input[0]} rows", "other_rows", axis=0)
    product.input[0] = "other_rows"
    proto.graph.node.insert(position, taken)


def off_by_one(proto: onnx.ModelProto) -> None:
    sizes = "fc0/tiles.x.sizes"
    change(proto, sizes, lambda found: np.array([63, 65, 64, 8]))
    for k, rows in ((0, 63), (1, 65)):
        for n in range(3):
            resize(proto, tile(k, n), rows)


def resize(proto: onnx.ModelProto, name: str, rows: int) -> None:
    tensor = next(each for each in proto.graph.initializer if each.name == name)
    values = numpy_helper.to_array(tensor)
    resized = np.resize(values, (rows, values.shape[1]))
    tensor.CopyFrom(numpy_helper.from_array(resized, name))


def bias_twice(proto: onnx.ModelProto) -> None:
    change(proto, "b0", lambda values: 2 * values)


def one_weight(values: Any) -> Any:
    values[5, 7] *= 1.01
    return values


def one_channel(values: Any) -> Any:
    values[:, 3] *= 1.01
    return values


MUTANTS: Mapping[str, Callable[[onnx.ModelProto], None]] = {
    "last row of tiles dropped": drop_last_row_of_tiles,
    "one tile dropped": lambda proto: change(proto, tile(1, 1), np.zeros_like),
    "bias twice": bias_twice,
    "no bias": lambda proto: change(proto, "b0", np.zeros_like),
    "two tiles swapped": swap_tiles,
    "one tile transposed": lambda proto: change(proto, tile(1, 1), np.transpose),
    "another batch element": other_batch_element,
    "stale accumulator": stale_accumulator,
    "one channel's scale": lambda proto: change(proto, tile(0, 0), one_channel),
    "one weight": lambda proto: change(proto, tile(0, 0), one_weight),
    "sign of one tile": lambda proto: change(proto, tile(2, 1), np.negative),
    "off by one": off_by_one,
    "another layer's weights": lambda proto: change(
        proto, tile(0, 0), lambda _: drawn(50, 64, 64) / 14
    ),
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("mutate", MUTANTS.values(), ids=MUTANTS.keys())
def test_mutants_die(mutate: Callable[[onnx.ModelProto], None], dtype: str) -> None:
    """Step 1 sees every structural mistake in every type, and names the layer."""
    proto = network(dtype)
    twin = tiled_linears(proto, Tiling(Tile(None, 64, 64))).model
    assert judged(proto, twin, 4).outcome is Outcome.WITHIN
    mutate(twin)
    onnx.checker.check_model(twin, full_check=True)
    found = judged(proto, twin, 4)
    assert found.outcome is Outcome.OVER, found.reason
    assert max(record.algebra or 0.0 for record in found.outputs) > 1e-5
    assert found.first_divergence is not None
    assert found.first_divergence.scope == "fc0"


@pytest.mark.parametrize("dtype", TYPES)
def test_padding_that_is_not_zero_dies(dtype: str) -> None:
    """What stands behind the edge of x meets what stands behind the edge of W."""
    proto = linear(65, 130, dtype=dtype)
    twin = tiled_linears(proto, Tiling(Tile(None, 64, 64, pads=True))).model
    assert judged(proto, twin, 2).outcome is Outcome.WITHIN
    pad = next(node for node in twin.graph.node if node.op_type == "Pad")
    pad.attribute.append(onnx.helper.make_attribute("mode", "edge"))
    change(twin, "fc.weight_k1_n0", np.ones_like)
    found = judged(proto, twin, 2)
    assert found.outcome is Outcome.OVER
    assert found.first_divergence is not None
    assert found.first_divergence.scope == "y"


def half_precision_sums(proto: onnx.ModelProto) -> None:
    """Every sum of the first layer is rounded to float16 on its way."""
    nodes = []
    for each in proto.graph.node:
        nodes.append(each)
        if each.op_type == "Add" and each.output[0].startswith("fc0/tiles.sum"):
            result = each.output[0]
            each.output[0] = f"{result}.wide"
            nodes.append(node("Cast", f"{result}.wide", f"{result}.half", to=TensorProto.FLOAT16))
            nodes.append(node("Cast", f"{result}.half", result, to=TensorProto.FLOAT))
    found = [onnx.NodeProto.FromString(each.SerializeToString()) for each in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(found)


def not_a_number(proto: onnx.ModelProto) -> None:
    change(proto, "b2", lambda values: np.where(np.arange(len(values)) == 3, np.nan, values))


def second_output_wrong(proto: onnx.ModelProto) -> None:
    find(proto, "second").attribute[0].i = 0


def dropout_left_on(proto: onnx.ModelProto) -> None:
    """The last layer's input loses half of its elements, others in each run."""
    last = next(each for each in proto.graph.node if each.input[0] == "relu1")
    proto.graph.initializer.extend(
        [
            numpy_helper.from_array(np.array(0.5, np.float32), "ratio"),
            numpy_helper.from_array(np.array(True), "training"),
        ]
    )
    position = list(proto.graph.node).index(last)
    last.input[0] = "dropped"
    proto.graph.node.insert(position, node("Dropout", "relu1 ratio training", "dropped"))


RUN_TIME_MUTANTS = {
    "half-precision sums": half_precision_sums,
    "one NaN": not_a_number,
    "second output wrong": second_output_wrong,
    "dropout left on": dropout_left_on,
}


@pytest.mark.parametrize("mutate", RUN_TIME_MUTANTS.values(), ids=RUN_TIME_MUTANTS.keys())
def test_what_only_shows_in_a_run_dies(mutate: Callable[[onnx.ModelProto], None]) -> None:
    """Rounding in a smaller type is seen by step 2, the others by either."""
    proto = network("float32")
    twin = tiled_linears(proto, Tiling(Tile(None, 64, 64))).model
    mutate(twin)
    assert judged(proto, twin, 4).outcome is Outcome.OVER


def swap_outputs(proto: onnx.ModelProto) -> None:
    first, second = (onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in outputs(proto))
    del proto.graph.output[:]
    proto.graph.output.extend([second, first])


def outputs(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    return list(proto.graph.output)


def add_output(proto: onnx.ModelProto) -> None:
    proto.graph.output.append(value("relu0", 4, 130))


def change_type(proto: onnx.ModelProto) -> None:
    find(proto, "second").output[0] = "narrow"
    proto.graph.node.append(node("Cast", "narrow", "second", to=TensorProto.DOUBLE))
    proto.graph.output[1].type.tensor_type.elem_type = TensorProto.DOUBLE


def rename(proto: onnx.ModelProto) -> None:
    find(proto, "second").output[0] = "renamed"
    proto.graph.output[1].name = "renamed"


STRUCTURE = {
    "order": (swap_outputs, "outputs are 'second', 'fc2' and were 'fc2', 'second'"),
    "missing": (lambda proto: proto.graph.output.pop(), "outputs are 'fc2' and were 'fc2'"),
    "added": (add_output, "'relu0' and were"),
    "type": (change_type, "output 'second' is float64 and was float32"),
    "name": (rename, "'renamed' and were 'fc2', 'second'"),
}


@pytest.mark.parametrize(("mutate", "said"), STRUCTURE.values(), ids=STRUCTURE.keys())
def test_other_outputs_fail(mutate: Callable[[onnx.ModelProto], None], said: str) -> None:
    """Outputs of another type, name, number or order are not the same outputs."""
    proto = network("float32")
    twin = tiled_linears(proto, Tiling(Tile(None, 64, 64))).model
    mutate(twin)
    found = judged(proto, twin, 4)
    assert found.outcome is Outcome.OVER
    assert said in found.reason


@pytest.mark.parametrize("dtype", TYPES)
def test_what_an_activation_hides_dies(dtype: str) -> None:
    """A channel that is off in every run still is a wrong channel: layers are looked at too."""
    proto = network(dtype)
    change(proto, "b0", lambda values: np.where(np.arange(130) == 3, -6000, values))
    twin = tiled_linears(proto, Tiling(Tile(None, 64, 64))).model
    change(twin, tile(0, 0), one_channel)
    proto.graph.output.pop()
    twin.graph.output.pop()
    found = judged(proto, twin, 4)
    assert found.outcome is Outcome.OVER
    seen = {record.name for record in found.outputs if record.outcome is Outcome.OVER}
    assert seen == {"fc0"}
    assert found.first_divergence is not None
    assert found.first_divergence.scope == "fc0"


def test_a_graph_that_is_not_what_runs() -> None:
    """Costs told of another number of products than are executed are no costs of this model."""
    proto = network("float32")
    found = tiled_linears(proto, Tiling(Tile(None, 64, 64)))
    right = Counter(operators(found.model))["MatMul"]
    for promised, outcome in ((right, Outcome.WITHIN), (right - 1, Outcome.OVER)):
        counts = Counter({"onnx::MatMul": promised})
        judge = Judge(
            Claim(seeds=(0,)),
            {},
            lambda first, counts=counts: sides(first, found.model, partial_sums=4, promised=counts),
        )
        result = judge.equivalence(proto, tables().ops)
        assert result.outcome is outcome
    assert f"the graph has {right - 1} onnx::MatMul, and the run executes {right}" in result.reason


def test_a_network_that_ignores_its_input_is_redrawn() -> None:
    """Weights of zero prove nothing: others are drawn, and the report says so."""
    proto = linear(130, 70)
    change(proto, "fc.weight", np.zeros_like)
    tiling = Tiling(Tile(None, 64, 64))
    judge = Judge(Claim(seeds=(0,)), {}, lambda m: sides(m, tiled_linears(m, tiling).model))
    found = judge.equivalence(proto, tables().ops)
    assert (found.outcome, found.weights) == (Outcome.WITHIN, "drawn, seed 0")


def test_a_constant_reference_is_unknown() -> None:
    """A network whose output never moves shows nothing, whatever its weights are."""
    nodes = [node("Mul", "x zero", "z"), node("Add", "z one", "y")]
    stored = [
        numpy_helper.from_array(np.array(number, np.float32), name)
        for name, number in (("zero", 0), ("one", 1))
    ]
    proto = model(nodes, [value("x", 3)], [value("y", 3)], stored)
    found = judged(proto, proto)
    assert found.outcome is Outcome.UNKNOWN
    assert "do not move" in found.reason
