"""TFLite files against closed forms and public figures: MACs, parameters, bytes, peak, arena, census."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pytest_modelbudget import measure
from pytest_modelbudget.cli.command import main
from tests.builders.project import Project
from tests.builders.tflite_files import Graph, Net, O, T, keyword_spotting, mobilenet_v2, person_detect, tflite_file

# Convolutions and the layer behind them, and a bias each: Sandler et al., 2018; Howard et al., 2017; MLPerf Tiny.
PUBLISHED = [
    # 300,774,272 MACs and 3,470,760 weights of the published network, and its 17,056 batch norms' shifts as biases;
    # 96·(112² + 56²) B in its second block, expanded and strided: executorch#17651.
    (mobilenet_v2, 300_774_272, 3_470_760 + 17_056, 96 * (112**2 + 56**2)),
    # The second block's 48²·8 B, and its product of 48²·16 B.
    (person_detect, 7_157_888, 210_706, 48**2 * (8 + 16)),
    # 25·5 positions of 64 channels, twice.
    (keyword_spotting, 64 * 125 * 40 + 4 * 125 * 64 * (9 + 64) + 64 * 12,
     64 * 41 + 4 * (64 * 10 + 64 * 65) + 12 * 65, 16_000),
]  # fmt: skip


@pytest.mark.parametrize(("net", "macs", "params", "peak"), PUBLISHED)
def test_networks_have_their_published_numbers(
    net: Callable[[], Net], macs: int, params: int, peak: int, tmp_path: Path
) -> None:
    """MACs, parameters, the peak in int8, and the size of the file."""
    path = tmp_path / "net.tflite"
    path.write_bytes(net().content())
    numbers = measure(path)
    assert [int(numbers[key]) for key in ("macs", "params", "peak_activation")] == [macs, params, peak]
    assert int(numbers["model_size"]) == path.stat().st_size
    assert numbers["macs"].complete
    assert numbers["macs"].parts == {"int8×int8": macs}
    assert int(measure(path, lower={})["activation_arena"]) == peak


F = "FLOAT32"
X, W, Y = T("x", (1, 8, 8, 4), F), T("w", (6, 3, 3, 4), F, is_stored=True), T("y", (1, 8, 8, 6), F)
OPERATORS = [
    ("CONV_2D", [X, W, Y], None, 8 * 8 * 6 * 36, 216),
    ("CONV_2D", [X, T("w", (6, 1, 1, 2), F, is_stored=True), Y], None, 8 * 8 * 6 * 2, 12),  # two groups
    ("DEPTHWISE_CONV_2D", [X, T("w", (1, 3, 3, 8), F, is_stored=True), T("y", (1, 8, 8, 8), F)], None, 8**3 * 9, 72),
    ("CONV_3D", [T("x", (1, 4, 4, 4, 2), F), T("w", (3, 3, 3, 2, 5), F, is_stored=True), T("y", (1, 4, 4, 4, 5), F)],
     None, 64 * 5 * 54, 270),
    ("TRANSPOSE_CONV", [T("s", (4,), "INT32", is_stored=True), T("w", (6, 2, 2, 4), F, is_stored=True), X,
                        T("y", (1, 16, 16, 6), F)], None, 8 * 8 * 4 * 6 * 4, 96),
    ("FULLY_CONNECTED", [X, T("w", (5, 256), F, is_stored=True), T("y", (1, 5), F)], None, 1_280, 1_280),
    ("BATCH_MATMUL", [T("x", (2, 3, 4), F), T("y", (2, 4, 5), F), T("z", (2, 3, 5), F)], None, 120, 0),
    ("BATCH_MATMUL", [T("x", (2, 3, 4), F), T("y", (2, 5, 4), F), T("z", (2, 3, 5), F)],
     ("BatchMatMulOptions", {"AdjX": False, "AdjY": True}), 120, 0),
    ("BATCH_MATMUL", [T("x", (4, 3), F), T("y", (4, 5), F, is_stored=True), T("z", (3, 5), F)],
     ("BatchMatMulOptions", {"AdjX": True, "AdjY": False}), 60, 20),
    ("ADD", [X, T("y", (4,), F, is_stored=True), T("z", (1, 8, 8, 4), F)], None, 0, 4),
    ("PRELU", [X, T("a", (1, 1, 4), F, is_stored=True), T("z", (1, 8, 8, 4), F)], None, 0, 4),
    ("RESHAPE", [X, T("s", (2,), "INT32", is_stored=True), T("z", (1, 256), F)], None, 0, 0),
    ("GATHER", [T("t", (10, 3), F, is_stored=True), T("i", (2,), "INT32"), T("z", (2, 3), F)], None, 0, 30),
    ("EMBEDDING_LOOKUP", [T("i", (2,), "INT32"), T("t", (10, 3), F, is_stored=True), T("z", (2, 3), F)], None, 0, 30),
    ("SVDF", [T("x", (1, 16), F), T("f", (8, 16), F, is_stored=True), T("t", (8, 10), F, is_stored=True),
              T("b", (4,), F, is_stored=True), T("s", (1, 80), F, variable=True), T("y", (1, 4), F)], None,
     8 * 16 + 8 * 10, 8 * 26 + 4),
]  # fmt: skip


@pytest.mark.parametrize(("name", "tensors", "options", "macs", "params"), OPERATORS)
def test_operators_cost_what_their_formulas_say(
    name: str, tensors: list[T], options: object, macs: int, params: int, tmp_path: Path
) -> None:
    """One operator over all tensors but the last, which it writes; what is not stored is given."""
    *inputs, _ = range(len(tensors))
    given = [at for at in inputs if not tensors[at].content and not tensors[at].variable]
    path = tmp_path / "net.tflite"
    op = O(name, (*inputs,), (len(tensors) - 1,), options)  # type: ignore[arg-type]
    path.write_bytes(tflite_file(Graph(tensors, [op], given, [len(tensors) - 1])))
    numbers = measure(path)
    assert (int(numbers["macs"]), numbers["macs"].complete, int(numbers["params"])) == (macs, True, params)


def test_a_lstm_multiplies_each_gate_in_each_step(tmp_path: Path) -> None:
    """Four gates of 16 x 32 and 32 x 32 in 20 steps; biases of 32, and states that are no parameters."""
    stored = [T(f"w{at}", (32, 16), F, is_stored=True) for at in range(4)]
    stored += [T(f"r{at}", (32, 32), F, is_stored=True) for at in range(4)]
    stored += [T(f"b{at}", (32,), F, is_stored=True) for at in range(4)]
    states = [T("h", (1, 32), F, variable=True), T("c", (1, 32), F, variable=True)]
    tensors = [T("x", (1, 20, 16), F), *stored, *states, T("y", (1, 20, 32), F)]
    places = (0, *range(1, 9), -1, -1, -1, *range(9, 13), -1, -1, 13, 14)
    op = O("UNIDIRECTIONAL_SEQUENCE_LSTM", places, (15,))
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite_file(Graph(tensors, [op], [0], [15])))
    numbers = measure(path)
    assert int(numbers["macs"]) == 20 * 4 * 32 * (16 + 32)
    assert int(numbers["params"]) == 4 * 32 * (16 + 32 + 1)
    assert int(numbers["flops"]) == 2 * int(numbers["macs"]) + 20 * (9 * 32 + 4 * 32)
    assert int(numbers["peak_activation"]) == 4 * 20 * (16 + 32)


def test_a_result_of_unknown_rank_is_no_scalar(tmp_path: Path) -> None:
    """A custom operator's, as TensorFlow's converter leaves it; a sum over all axes is one number, and known."""
    tensors = [T("x", (1, 4), F), T("y", (), F), T("axes", (2,), "INT32", is_stored=True), T("sum", (), F)]
    ops = [O("CUSTOM", (0,), (1,), custom="FlexUnique"), O("SUM", (0, 2), (3,))]
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite_file(Graph(tensors, ops, [0], [1, 3])))
    unmeasured = measure(path)["peak_activation"].unmeasured
    assert "the data decide the size of 'y'" in {each.why for each in unmeasured}
    assert not any("'sum'" in each.why for each in unmeasured)


def test_weights_in_variables_are_unmeasured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As TensorFlow 2.21 writes a model of Keras 3 by ``from_concrete_functions``: it has no weights."""
    tensors = [T("x", (1, 4), F), T("kernel", (), "RESOURCE"), T("read", (4, 3), F), T("y", (1, 3), F)]
    ops = [O("VAR_HANDLE", (), (1,)), O("READ_VARIABLE", (1,), (2,)), O("BATCH_MATMUL", (0, 2), (3,))]
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite_file(Graph(tensors, ops, [0], [3])))
    numbers = measure(path)
    assert {key: [each.op for each in numbers[key].unmeasured] for key in ("params", "weight_memory")} == {
        "params": ["tflite::VAR_HANDLE"], "weight_memory": ["tflite::VAR_HANDLE"],
    }  # fmt: skip
    assert int(numbers["model_size"]) == path.stat().st_size
    assert main(["show", str(path)]) == 1
    assert "weights in variables are not counted: freeze them" in capsys.readouterr().out


def test_what_no_rule_knows_is_unmeasured_by_name(tmp_path: Path) -> None:
    """Custom and Flex operators, codes of a later schema, and constants that only they read."""
    tensors = [
        T("x", (1, 4), F),
        T("k", (4, 4), F, is_stored=True),
        T("y", (1, 4), F),
        T("z", (1, 4), F),
        T("o", (1, 4), F),
    ]
    ops = [O("CUSTOM", (0, 1), (2,), custom="FlexErf"), O("CUSTOM", (2,), (3,), custom="ADD"), O(250, (3,), (4,))]
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite_file(Graph(tensors, ops, [0], [4])))
    numbers = measure(path)
    assert [each.op for each in numbers["macs"].unmeasured] == [
        "tflite.custom::FlexErf", "tflite.custom::ADD", "tflite::BUILTIN_250",
    ]  # fmt: skip
    assert [each.op for each in numbers["params"].unmeasured] == ["tflite.custom::FlexErf"]


def test_buffers_are_paid_for_once_and_may_lie_behind_the_file(tmp_path: Path) -> None:
    """Two layers with one weight of 4·4, one of them in int4; a weight beyond the flatbuffer."""
    weight, far = T("w", (4, 4), F, is_stored=True), T("far", (4, 4), "INT4", is_stored=True, scales=4, external=True)
    tensors = [T("x", (1, 4), F), weight, weight, far, *(T(f"y{at}", (1, 4), F) for at in range(3))]
    ops = [O("FULLY_CONNECTED", (0 if at == 0 else 3 + at, 1 + at), (4 + at,)) for at in range(3)]
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite_file(Graph(tensors, ops, [0], [6])))
    numbers = measure(path)
    assert int(numbers["params"]) == 16 + 16
    assert int(numbers["weight_memory"]) == 64 + 8 + 4 * 4  # and four scales
    assert int(numbers["model_size"]) == path.stat().st_size


def test_other_subgraphs_are_stored_and_not_run(tmp_path: Path) -> None:
    """Their weights count, and a note says that the first one is measured."""
    first = Graph([T("x", (1, 4), F), T("w", (4, 4), F, is_stored=True), T("y", (1, 4), F)],
                  [O("FULLY_CONNECTED", (0, 1), (2,))], [0], [2])  # fmt: skip
    second = Graph([T("x", (1, 4), F), T("v", (8, 4), F, is_stored=True), T("y", (1, 8), F)],
                   [O("FULLY_CONNECTED", (0, 1), (2,))], [0], [2])  # fmt: skip
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite_file(first, second))
    assert (int(measure(path)["macs"]), int(measure(path)["params"])) == (16, 16 + 32)


BODY = Graph([T("b", (1, 4), F), T("w", (4_000, 4), F, is_stored=True), T("h", (1, 4_000), F)],
             [O("FULLY_CONNECTED", (0, 1), (2,))], [0], [2])  # fmt: skip


@pytest.mark.parametrize("caller", ["WHILE", "IF", "CALL", "STABLEHLO_COMPOSITE"])
def test_the_memory_of_subgraphs_that_an_operator_runs_is_unknown(caller: str, tmp_path: Path) -> None:
    """The 16,000 B that lie within one are in the same arena: what the first subgraph has is a lower bound."""
    path = tmp_path / "net.tflite"
    first = Graph([T("x", (1, 4), F), T("y", (1, 4), F)], [O(caller, (0,), (1,))], [0], [1])
    path.write_bytes(tflite_file(first, BODY, BODY))
    for number in (measure(path)["peak_activation"], measure(path, lower={})["activation_arena"]):
        assert [each.op for each in number.unmeasured] == [f"tflite::{caller}"]
        assert number.value == 32


def test_sizes_that_the_data_decide_are_unknown(tmp_path: Path) -> None:
    """As many rows as x has values that are not 0, which the file declares as one; what has a fixed size is known."""
    tensors = [T("x", (100,), F), T("i", (1, 1), "INT64", signature=(-1, 1)), T("t", (100, 8), F, is_stored=True),
               T("g", (1, 8), F, signature=(-1, 8)), T("w", (50, 8), F, is_stored=True),
               T("y", (1, 50), F, signature=(-1, 50)), T("z", (100,), F)]  # fmt: skip
    ops = [O("WHERE", (0,), (1,)), O("GATHER", (2, 1), (3,)), O("FULLY_CONNECTED", (3, 4), (5,)), O("RELU", (0,), (6,))]
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite_file(Graph(tensors, ops, [0], [5, 6])))
    numbers = measure(path)
    assert [each.op for each in numbers["macs"].unmeasured] == ["tflite::FULLY_CONNECTED"]
    assert [each.op for each in numbers["peak_activation"].unmeasured] == [
        "tflite::WHERE", "tflite::GATHER", "tflite::FULLY_CONNECTED",
    ]  # fmt: skip
    assert numbers["peak_activation"].value == 2 * 4 * 100


def test_sizes_that_follow_from_an_open_input_are_those_it_declares(tmp_path: Path) -> None:
    """A state of zeros for each row of an open batch: as many as the batch, by its shape."""
    tensors = [T("x", (1, 4), F, signature=(-1, 4)), T("n", (2,), "INT32"), T("v", (), F, is_stored=True),
               T("h", (1, 4), F, signature=(-1, 4)), T("y", (1, 4), F, signature=(-1, 4))]  # fmt: skip
    ops = [O("SHAPE", (0,), (1,)), O("FILL", (1, 2), (3,)), O("ADD", (0, 3), (4,))]
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite_file(Graph(tensors, ops, [0], [4])))
    assert int(measure(path)["peak_activation"]) == 3 * 16


def test_a_constant_of_no_values_needs_no_buffer(tmp_path: Path) -> None:
    """The shape of a scalar, to which one value is reshaped."""
    tensors = [T("x", (1, 1), F), T("shape", (0,), "INT32"), T("y", (), F)]
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite_file(Graph(tensors, [O("RESHAPE", (0, 1), (2,))], [0], [2])))
    assert int(measure(path)["peak_activation"]) == 4 + 4


def test_scales_of_blocks_are_a_tensor_of_the_file(tmp_path: Path) -> None:
    """A table of 10·32 in int4 with two float16 scales a row: values are parameters, scales weight memory."""
    tensors = [T("i", (2,), "INT32"), T("t", (10, 32), "INT4", is_stored=True, scaled_by=3), T("y", (2, 32), F),
               T("s", (10, 2), "FLOAT16", is_stored=True)]  # fmt: skip
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite_file(Graph(tensors, [O("EMBEDDING_LOOKUP", (0, 1), (2,))], [0], [2])))
    numbers = measure(path)
    assert (int(numbers["params"]), int(numbers["weight_memory"])) == (320, 320 // 2 + 20 * 2)
    assert int(numbers["model_size"]) == path.stat().st_size


def test_open_sizes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A batch that the file leaves open counts as it is declared, and the table says so."""
    tensors = [T("images", (1, 4), F, signature=(-1, 4)), T("w", (4, 4), F, is_stored=True), T("y", (1, 4), F)]
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite_file(Graph(tensors, [O("FULLY_CONNECTED", (0, 1), (2,))], [0], [2])))
    assert main(["show", str(path)]) == 0
    assert "the file leaves sizes of images open: counted as it declares them" in capsys.readouterr().out


def test_a_budget_gates_a_file(project: Project) -> None:
    """Limits, a scope, operators that are refused, and a deployment with its arena."""
    (project.path / "budgets/kws.tflite").write_bytes(keyword_spotting().content())
    project.budget("""
  kws:
    tflite: kws.tflite
    limits: {macs: 2.66 MMAC, params: 22.7 k, ops: {deny: ["tflite::SOFTMAX"]}}
    scopes: {fully_connected_10: {params: 780}}
    deployments:
      board: {device: cortex_m4, fits: true, limits: {activation_arena: 16 kB}}
""")
    project.run("--model-budget-update=create")
    (model,) = project.report()["models"]
    found = {f"{each['metric']} {each.get('scope') or ''}".strip(): each["outcome"] for each in model["checks"]}
    assert found.pop("ops") == "over"
    assert set(found.values()) == {"within"}


PLANS = {  # offsets of x, a, b, y: 64 B each; int32 version, subgraph, count, offsets
    "as TFLM would": ([-1, -1, -1, -1], 128),
    "apart": ([0, 64, 128, 192], 256),
    "some": ([192, -1, -1, -1], 256),
}


@pytest.mark.parametrize("key", PLANS)
def test_an_offline_plan_is_followed(key: str, tmp_path: Path) -> None:
    """A chain of three: two buffers are enough unless the plan says otherwise."""
    offsets, arena = PLANS[key]
    path = tmp_path / "net.tflite"
    path.write_bytes(_chain(offsets))
    assert int(measure(path, lower={})["activation_arena"]) == arena


def _chain(offsets: list[int]) -> bytes:
    tensors = [T(name, (1, 64)) for name in "xaby"]
    ops = [O("RELU", (at,), (at + 1,)) for at in range(3)]
    plan = np.array([1, 0, len(offsets), *offsets], np.int32).tobytes()
    return tflite_file(Graph(tensors, ops, [0], [3]), metadata={"OfflineMemoryAllocation": plan})


def tflm_arena(sizes: list[int], lives: list[tuple[int, int]]) -> int:
    """The greedy planner of TensorFlow Lite Micro, as greedy_memory_planner.cc has it, over aligned sizes.

    Largest first, in their order where equal; each goes into the first gap between buffers that live meanwhile and are
    sorted by offset.
    """
    aligned = [-(-size // 16) * 16 for size in sizes]
    order = sorted(range(len(sizes)), key=lambda at: -aligned[at])
    offsets: dict[int, int] = {}
    for at in order:
        first, last = lives[at]
        others = sorted((offsets[o], aligned[o]) for o in offsets if lives[o][0] <= last and first <= lives[o][1])
        end = 0
        for offset, size in others:
            if offset - end >= aligned[at]:
                break
            end = max(end, offset + size)
        offsets[at] = end
    return max(offsets[at] + aligned[at] for at in offsets)


@pytest.mark.parametrize("seed", range(20))
def test_the_arena_is_that_of_tflm(seed: int, tmp_path: Path) -> None:
    """Random programs of two operands an operator; TFLM rounds the end up to 16 B, too."""
    draw = np.random.default_rng(seed)
    count = 30
    tensors = [T(f"t{at}", (1, int(draw.integers(1, 200)))) for at in range(count + 1)]
    reads = [sorted({at, int(draw.integers(0, at + 1))}) for at in range(count)]
    ops = [O("CUSTOM", (*read,), (at + 1,), custom="any") for at, read in enumerate(reads)]
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite_file(Graph(tensors, ops, [0], [count])))
    last = [max([at for at, read in enumerate(reads) if tensor in read], default=0) for tensor in range(count + 1)]
    last[count] = count - 1
    lives = [(max(tensor - 1, 0), last[tensor]) for tensor in range(count + 1)]
    arena = int(measure(path, lower={})["activation_arena"])
    assert -(-arena // 16) * 16 == tflm_arena([tensor.shape[1] for tensor in tensors], lives)
