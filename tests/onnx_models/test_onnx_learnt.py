"""What an ONNX file stores and computes with may have been trained: a parameter, wherever it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate.measuring import measure_model
from pytest_modelbudget.onnx_models.model import load
from pytest_modelbudget.registry import tables
from tests.builders.onnx_graphs import graph, integers, model, node, scalar, stored, value

KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
LEARNT = stored("w", 4)
# What reads w, of four elements, beside x (2, 4).
READERS: Mapping[str, Sequence[onnx.NodeProto]] = {
    "where": [node("Greater", "x x", "m"), node("Where", "m x w", "y")],
    "power": [node("Pow", "x w", "y")],
    "maximum": [node("Max", "x w", "y")],
    "minimum": [node("Min", "x w", "y")],
    "mean": [node("Mean", "x w", "y")],
    "threshold": [node("Less", "x w", "m"), node("Cast", "m", "y", to=TensorProto.FLOAT)],
    "exponential": [node("Exp", "w", "e"), node("Mul", "x e", "y")],
    "softmax": [node("Softmax", "w", "e"), node("Mul", "x e", "y")],
    "norm": [node("ReduceL2", "w", "n"), node("Div", "x n", "y")],
    "class token": [node("Flatten", "w", "u", axis=0), node("Concat", "u x", "y", axis=0)],
    "result": [node("Identity", "w", "y")],
}
MASK = np.triu(np.full((8, 8), -np.inf, np.float32), 1)
X88 = [value("x", 8, 8)]
MASKED: Mapping[str, Sequence[onnx.NodeProto]] = {
    "added": [node("Add", "x w", "y")],
    "chosen": [node("Greater", "x x", "m"), node("Where", "m x w", "y")],
    "behind a cast": [node("Cast", "w", "d", to=TensorProto.FLOAT), node("Add", "x d", "y")],
    "behind a slice": [node("Slice", "w from to", "d"), node("Add", "x d", "y")],
}
SLICE = [integers("from", 0, 0), integers("to", 8, 8)]


def params(path: Path) -> tuple[float, float]:
    """params and weight_memory of a file, both complete."""
    measured = measure_model(ModelSource("onnx", str(path)), tables(), root=path.parent)
    assert measured.failure is None
    found = [measured.measurements[key] for key in ("params", "weight_memory")]
    assert all(each.complete for each in found)
    return found[0].value, found[1].value


def saved(proto: onnx.ModelProto, folder: Path, *, beside: bool = False) -> Path:
    path = folder / "model.onnx"
    onnx.save(proto, path, save_as_external_data=beside, location="model.data", size_threshold=0)
    return path


@pytest.mark.parametrize("nodes", READERS.values(), ids=READERS)
def test_a_stored_operand_is_a_parameter_wherever_it_is_read(nodes: Sequence[onnx.NodeProto], tmp_path: Path) -> None:
    proto = model(nodes, [value("x", 2, 4)], [value("y", None)], [LEARNT])
    assert params(saved(proto, tmp_path)) == (4, 16)


STEPS = np.arange(8, dtype=np.float32) + 0.5
GRID = np.stack(np.meshgrid(STEPS, STEPS / 8, indexing="xy"), -1).reshape(1, 64, 2)
DRAWN = np.random.default_rng(0).normal(size=(1, 64, 2)).astype(np.float32)
OF_CONSTANT, OF_RESULT = "/Constant_output_0", "/Reshape_1_output_0"


@pytest.mark.parametrize("is_literal", [True, False], ids=["Constant", "simplified"])
@pytest.mark.parametrize(
    ("values", "of_literal", "of_folded"),
    [
        pytest.param(GRID, 0, 0, id="centres of cells, and those by the width"),
        pytest.param(np.repeat([8.0, 16.0], 32).reshape(1, 64, 1), 0, 64, id="strides, one axis"),
        pytest.param(np.zeros((1, 64, 2)), 0, 0, id="zeros that a sum starts with"),
        pytest.param(np.where(DRAWN > 0, -100.0, 0.0), 0, 0, id="a shifted window"),
        pytest.param(np.zeros((2,)), 2, 2, id="a fresh bias"),
        pytest.param(DRAWN, 128, 128, id="what may be trained"),
    ],
)
def test_grids_that_no_layer_owns_are_none(
    values: np.ndarray, of_literal: int, of_folded: int, is_literal: bool, tmp_path: Path
) -> None:
    """Exporters fold positions for one size of the image (ultralytics#14819, onnx#2985); what counts is listed."""
    name = OF_CONSTANT if is_literal else OF_RESULT
    tensor = numpy_helper.from_array(values.astype(np.float32), name)
    nodes = [node("Constant", "", name, value=tensor)] if is_literal else []
    nodes += [node("Relu", "x", "r"), node("Add", f"r {name}", "y")]
    proto = model(nodes, [value("x", 1, 64, 2)], [value("y", None)], [] if is_literal else [tensor])
    expected = of_literal if is_literal else of_folded
    assert params(saved(proto, tmp_path)) == (expected, 4 * expected)
    loaded = load(ModelSource("onnx", str(tmp_path / "model.onnx")), tables().ops).measured
    assert [f"params has {expected:,}" in note for note in loaded.notes] == [True] * bool(expected)


def test_a_table_of_a_layer_counts_whatever_it_holds(tmp_path: Path) -> None:
    """A fresh table of positions: 64 times 2 zeros under the name of a parameter."""
    tensor = numpy_helper.from_array(np.zeros((1, 64, 2), np.float32), "pos_embed")
    proto = model([node("Add", "x pos_embed", "y")], [value("x", 1, 64, 2)], [value("y", None)], [tensor])
    assert params(saved(proto, tmp_path)) == (128, 512)


def test_what_nobody_trains_is_none(tmp_path: Path) -> None:
    """The angles of positions, the window of a transform, the two values of a one-hot code, a scalar."""
    nodes = [
        node("RotaryEmbedding", "x cosines sines", "r"),
        node("OneHot", "labels depth values", "o", axis=-1),
        node("STFT", "signal step window", "s"),
        node("Mul", "r half", "y"),
    ]
    weights = [
        stored("cosines", 3, 4), stored("sines", 3, 4), stored("values", 2), stored("window", 16),
        scalar("depth", 5, np.int64), scalar("step", 8, np.int64), scalar("half", 0.5),
    ]  # fmt: skip
    inputs = [value("x", 1, 2, 3, 8), value("labels", 3, code=TensorProto.INT64), value("signal", 1, 64, 1)]
    outputs = [value("y", 1, 2, 3, 8), value("o", 3, 5), value("s", 1, 7, 9, 2)]
    assert params(saved(model(nodes, inputs, outputs, weights), tmp_path)) == (0, 0)


@pytest.mark.parametrize("kinds", [("PARAMETER", "BUFFER"), ("BUFFER", "PARAMETER")])
@pytest.mark.parametrize("place", ["tensor", "value"])
def test_what_the_exporter_wrote_decides(place: str, kinds: tuple[str, str], tmp_path: Path) -> None:
    """(x - mean) ⋅ scale, of 4 and 2·4 elements: one of them is the parameter, by what stands beside either."""
    proto = model(
        [node("Sub", "x mean", "s"), node("Mul", "s scale", "y")],
        [value("x", 2, 4)], [value("y", 2, 4)], [stored("mean", 4), stored("scale", 2, 4)],
    )  # fmt: skip
    proto.graph.value_info.extend([value("mean", 4), value("scale", 2, 4)])
    for at, kind in enumerate(kinds):
        beside = (proto.graph.initializer if place == "tensor" else proto.graph.value_info)[at]
        beside.metadata_props.add(key=KIND, value=kind)
    expected = sum(elements for elements, kind in zip((4, 8), kinds, strict=True) if kind == "PARAMETER")
    assert params(saved(proto, tmp_path)) == (expected, 4 * expected)


SCALED = [node("LayerNormalization", "x scale shift", "y")]
ONES, ZEROS = np.ones(4, np.float32), np.zeros(4, np.float32)


@pytest.mark.parametrize(
    ("scale", "shift", "in_text", "expected"),
    [
        pytest.param(ONES, ZEROS, "scale shift", 0, id="changes nothing"),
        pytest.param(ONES, ZEROS, "shift", 4, id="a fresh scale"),
        pytest.param(ONES, ZEROS, "", 4 + 4, id="a fresh norm"),
        pytest.param(ONES + ZEROS.cumsum() + [0, 0, 0, 1], ZEROS, "scale shift", 4, id="a scale"),
        pytest.param(ZEROS, ONES, "scale shift", 4 + 4, id="the other way round"),
    ],
)
def test_a_norm_that_learns_nothing(scale: Any, shift: Any, in_text: str, expected: int, tmp_path: Path) -> None:
    """Ones that scale and zeros that shift 4 elements, in Constant nodes, are no weights; stored ones are."""
    tensors = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in (("scale", scale), ("shift", shift))]
    constants = [node("Constant", "", tensor.name, value=tensor) for tensor in tensors if tensor.name in in_text]
    weights = [tensor for tensor in tensors if tensor.name not in in_text]
    proto = model([*constants, *SCALED], [value("x", 2, 4)], [value("y", 2, 4)], weights)
    assert params(saved(proto, tmp_path)) == (expected, 4 * expected)


EXPORTED = "pkg.torch.export.ExportedProgram.graph_signature"
FOLDED = "pkg.onnxscript.optimizer.folded_from"
LISTED = (
    "\n# inputs\np_w: PARAMETER target='fc_w'\nb_f: BUFFER target='freq'\nx: USER_INPUT\n\n# outputs\ny: USER_OUTPUT\n"
)
OLDER = "ExportGraphSignature(input_specs=[InputSpec(kind=<InputKind.PARAMETER: 2>, target='fc_w', persistent=None)])"


@pytest.mark.parametrize(
    ("listed", "written", "expected"),
    [
        pytest.param(LISTED, "['val_0', 'x']", 0, id="of constants"),
        pytest.param(LISTED, "[]", 0, id="of nothing"),
        pytest.param(LISTED, "['fc_w', 'val_0']", 4, id="of a weight"),
        pytest.param(LISTED, "['fc_w_scaled']", 4, id="of a fused weight"),
        pytest.param(LISTED, "['freq']", 4, id="of a buffer"),
        pytest.param(LISTED, "val_0", 4, id="no list"),
        pytest.param(LISTED, None, 4, id="not folded"),
        pytest.param(OLDER, "['val_0']", 0, id="of constants, in an older list"),
        pytest.param(OLDER, "['fc_w']", 4, id="of a weight, in an older list"),
        pytest.param("p_w -> fc_w", "['val_0']", 4, id="a list that nobody knows"),
        pytest.param(None, "['val_0']", 4, id="what the module stored is not known"),
    ],
)
def test_what_was_folded_from_nothing(listed: str | None, written: str | None, expected: int, tmp_path: Path) -> None:
    """4 elements that x is multiplied with are no parameter where nothing of which they were made is the module's."""
    proto = model([node("Mul", "x w", "y")], [value("x", 2, 4)], [value("y", 2, 4)], [LEARNT])
    if listed is not None:
        proto.graph.metadata_props.add(key=EXPORTED, value=listed)
    if written is not None:
        proto.graph.value_info.append(value("w", 4))
        proto.graph.value_info[0].metadata_props.add(key=FOLDED, value=written)
    assert params(saved(proto, tmp_path)) == (expected, 4 * expected)


@pytest.mark.parametrize("name", ["w", "fc_w"], ids=["another name", "its own name"])
@pytest.mark.parametrize(("by_torch", "expected"), [(True, 0), (False, 4)], ids=["by torch", "by another tool"])
def test_weights_that_a_tool_made_constants_are_parameters(
    by_torch: bool, expected: int, name: str, tmp_path: Path
) -> None:
    """Torch's exporter says of its Constant nodes where they come from, and makes none of what the module stored."""
    constant = node("Constant", "", name, value=LEARNT)
    if by_torch:
        constant.metadata_props.add(key="pkg.torch.onnx.fx_node", value="%mul : call_function[target=aten.mul]")
    proto = model([constant, node("Mul", f"x {name}", "y")], [value("x", 2, 4)], [value("y", 2, 4)])
    proto.graph.metadata_props.add(key=EXPORTED, value=LISTED)
    assert params(saved(proto, tmp_path)) == (expected, 4 * expected)


@pytest.mark.parametrize("beside", [False, True], ids=["inside", "beside"])
@pytest.mark.parametrize("nodes", MASKED.values(), ids=MASKED)
def test_a_mask_is_none_wherever_its_values_lie(nodes: Sequence[onnx.NodeProto], beside: bool, tmp_path: Path) -> None:
    """A bias of zeros and a table whose last value alone is another are parameters in both places."""
    for values, expected in ((MASK, 0), (np.zeros_like(MASK), 64), (np.append(MASK.ravel()[:-1], 1), 64)):
        weights = [numpy_helper.from_array(values.astype(np.float32).reshape(8, 8), "w"), *SLICE]
        path = saved(model(nodes, X88, [value("y", 8, 8)], weights), tmp_path, beside=beside)
        assert params(path) == (expected, 4 * expected)


# A mask keeps the lowest value of the type that it was made in.
LOWEST = {
    "float16": -65504.0,
    "bfloat16": float.fromhex("-0x1.fep127"),
    "float32": float.fromhex("-0x1.fffffep127"),
    "float64": float.fromhex("-0x1.fffffffffffffp1023"),
    "infinity": -np.inf,
}
CODES = {
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
}
HOLDS = {  # each type with the values of which it holds the lowest exactly
    "float16": ["float16", "infinity"],
    "bfloat16": ["bfloat16", "infinity"],
    "float32": ["float16", "bfloat16", "float32", "infinity"],
    "float64": list(LOWEST),
}


@pytest.mark.parametrize("place", ["raw", "typed", "beside"])
@pytest.mark.parametrize(("stored_as", "lowest"), [(name, value) for name in HOLDS for value in HOLDS[name]])
def test_a_mask_is_known_in_every_type(stored_as: str, lowest: str, place: str, tmp_path: Path) -> None:
    """In bytes, in the fields of its type and in another file; a table with one other value is a parameter."""
    code, size = CODES[stored_as], int(stored_as.removeprefix("b")[5:]) // 8
    for last, expected in ((0.0, 0), (-100.0, 64)):
        values = np.triu(np.full((8, 8), LOWEST[lowest]), 1)
        values[-1, 0] = last
        kept = onnx.helper.make_tensor("w", code, [8, 8], values.ravel())
        mask = kept if place == "typed" else numpy_helper.from_array(numpy_helper.to_array(kept), "w")
        ends = [value("x", 8, 8, code=code)], [value("y", 8, 8, code=code)]
        path = saved(model(MASKED["added"], *ends, [mask]), tmp_path, beside=place == "beside")
        assert params(path) == (expected, size * expected)


def test_a_mask_that_is_not_there_may_be_a_parameter(tmp_path: Path) -> None:
    proto = model(MASKED["added"], X88, [value("y", 8, 8)], [numpy_helper.from_array(MASK, "w")])
    path = saved(proto, tmp_path, beside=True)
    (tmp_path / "model.data").write_bytes(b"\0" * 8)
    assert params(path) == (64, 256)


@pytest.mark.parametrize(("start", "expected"), [(0.0, 288), (0.25, 300)], ids=["zeros", "learnt"])
def test_what_a_recurrence_starts_with(start: float, expected: int, tmp_path: Path) -> None:
    """An LSTM of 6 units on 4 features: 4·6·(4 + 6) + 8·6 = 288, and twice 6 for a start that was learnt."""
    states = [numpy_helper.from_array(np.full((1, 1, 6), start, np.float32), name) for name in ("h", "c")]
    weights = [stored("w", 1, 24, 4), stored("r", 1, 24, 6), stored("b", 1, 48), *states]
    proto = model(
        [node("LSTM", "x w r b - h c", "y", hidden_size=6)], [value("x", 5, 1, 4)], [value("y", 5, 1, 1, 6)], weights
    )
    assert params(saved(proto, tmp_path)) == (expected, 4 * expected)


@pytest.mark.parametrize(("bits", "row"), [(4, 16), (2, 8), (8, 32)])
def test_a_packed_table_counts_its_rows_as_they_are_read(bits: int, row: int, tmp_path: Path) -> None:
    """30 rows of 32 elements in 4, 2 or 8 bits, packed into bytes, with two float32 scales a row."""
    weights: list[Any] = [numpy_helper.from_array(np.ones((30, row), np.uint8), "w"), stored("scales", 30, 2)]
    said = {} if bits == 4 else {"bits": bits}  # 4 where nothing is said
    gather = node(
        "GatherBlockQuantized", "w at scales", "y", domain="com.microsoft", block_size=16, quantize_axis=1, **said
    )
    proto = model(
        [gather], [value("at", 3, code=TensorProto.INT64)], [value("y", 3, 32)], weights, domains=["com.microsoft"]
    )
    assert params(saved(proto, tmp_path)) == (30 * 32, 30 * row + 30 * 2 * 4)


def test_a_mask_without_values_may_be_a_parameter(tmp_path: Path) -> None:
    """A file that was stripped of its weights tells nothing of them."""
    mask = numpy_helper.from_array(MASK, "w")
    mask.raw_data = b""
    path = tmp_path / "model.onnx"
    path.write_bytes(model(MASKED["added"], X88, [value("y", 8, 8)], [mask]).SerializeToString())
    assert params(path) == (64, 256)


@pytest.mark.parametrize("first", ["mask", "learnt"])
def test_branches_may_store_others_under_one_name(first: str, tmp_path: Path) -> None:
    """One holds a mask and the other a learnt table: in either order, the 64 of that are not lost."""
    weights = {"mask": numpy_helper.from_array(MASK, "w"), "learnt": stored("w", 8, 8)}
    orders = (first, *({*weights} - {first}))
    then, other = (graph([node("Add", "x w", "z")], [], [value("z", 8, 8)], [weights[name]]) for name in orders)
    nodes = [node("If", "flag", "y", then_branch=then, else_branch=other)]
    proto = model(nodes, [*X88, value("flag", code=TensorProto.BOOL)], [value("y", 8, 8)])
    assert params(saved(proto, tmp_path))[0] >= 64


@pytest.mark.parametrize("beside", [False, True], ids=["inside", "beside"])
def test_a_table_without_elements_is_no_parameter(beside: bool, tmp_path: Path) -> None:
    empty = numpy_helper.from_array(np.ones((0, 8), np.float32), "w")
    path = saved(model(MASKED["added"], [value("x", 0, 8)], [value("y", 0, 8)], [empty]), tmp_path, beside=beside)
    assert params(path) == (0, 0)


ROWS = [integers("at", 0, 2)]
SCATTERS: Mapping[str, Sequence[onnx.NodeProto]] = {
    "rows": [node("Unsqueeze", "at one", "i"), node("ScatterND", "z i x", "y")],
    "elements": [
        node("Unsqueeze", "at one", "i"), node("Expand", "i size", "e"), node("ScatterElements", "z e x", "y", axis=0)
    ],
    "sums of elements": [
        node("Unsqueeze", "at one", "i"), node("Expand", "i size", "e"),
        node("ScatterElements", "z e x", "y", axis=0, reduction="add"),
    ],
    "behind a branch": [
        node("Unsqueeze", "at one", "i"),
        node(
            "If", "c", "target", then_branch=graph([node("Identity", "z", "t")], [], [value("t", 4, 8)]),
            else_branch=graph([node("Neg", "z", "e")], [], [value("e", 4, 8)]),
        ),
        node("ScatterND", "target i x", "y"),
    ],
}  # fmt: skip
STARTS = [(0.0, 0), (0.25, 1)]


def filled(name: str, entry: float, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.full(shape, entry, np.float32), name)


@pytest.mark.parametrize(("entry", "count"), STARTS, ids=["zeros", "learnt"])
@pytest.mark.parametrize("nodes", SCATTERS.values(), ids=SCATTERS)
def test_what_a_scatter_writes_into(nodes: Sequence[onnx.NodeProto], entry: float, count: int, tmp_path: Path) -> None:
    """Zeros are what torch.zeros() gave, folded; any other table of 4 x 8 may have been learnt."""
    weights = [*ROWS, integers("one", 1), integers("size", 2, 8), filled("z", entry, 4, 8), scalar("c", True, np.bool_)]
    proto = model(nodes, [value("x", 2, 8)], [value("y", 4, 8)], weights)
    assert params(saved(proto, tmp_path)) == (count * 32, count * 4 * 32)


@pytest.mark.parametrize(("entry", "count"), STARTS, ids=["zeros", "learnt"])
@pytest.mark.parametrize("operator", ["Loop", "Scan", "Scan in a Loop"])
def test_what_a_loop_starts_with(operator: str, entry: float, count: int, tmp_path: Path) -> None:
    """8 elements that rounds of a layer of 64 weights start with."""
    row, whole = value("r", 1, 8), value("x", 5, 1, 8)
    step = [node("MatMul", "s w", "t"), node("Add", "t r", "u")]
    body = graph(step, [value("s", 1, 8), row], [value("u", 1, 8)])
    scan = node("Scan", "z x" if operator == "Scan" else "h x", "y", body=body, num_scan_inputs=1)
    counted = [value("i", code=TensorProto.INT64), value("c", code=TensorProto.BOOL)]
    go_on, goes = node("Identity", "c", "d"), value("d", code=TensorProto.BOOL)
    rounds = {
        "Loop": graph([go_on, node("MatMul", "h w", "u")], [*counted, value("h", 1, 8)], [goes, value("u", 1, 8)]),
        "Scan in a Loop": graph([go_on, scan], [*counted, value("h", 1, 8)], [goes, value("y", 1, 8)]),
    }
    made = scan if operator == "Scan" else node("Loop", "n - z", "last", body=rounds[operator])
    weights = [filled("z", entry, 1, 8), stored("w", 8, 8), scalar("n", 3, np.int64)]
    proto = model([made], [whole], [value(made.output[0], 1, 8)], weights)
    assert params(saved(proto, tmp_path))[0] == 64 + 8 * count


def test_zeros_that_a_role_of_a_weight_reads_are_a_parameter(tmp_path: Path) -> None:
    """A fresh bias, although a scatter writes into a copy of it."""
    nodes = [node("LayerNormalization", "x g z", "n"), node("ScatterElements", "z at n", "y", axis=0)]
    weights = [stored("g", 4), filled("z", 0.0, 4), integers("at", 3, 2, 1, 0)]
    proto = model(nodes, [value("x", 4)], [value("y", 4)], weights)
    assert params(saved(proto, tmp_path)) == (8, 32)


STARTED = {
    "recurrence": node("GRU", "x w r - - z", "o last", hidden_size=8),
    "loop": node(
        "Loop", "n - z", "last",
        body=graph(
            [node("Identity", "c", "d"), node("MatMul", "h v", "u")],
            [value("i", code=TensorProto.INT64), value("c", code=TensorProto.BOOL), value("h", 1, 2, 8)],
            [value("d", code=TensorProto.BOOL), value("u", 1, 2, 8)],
        ),
    ),
}  # fmt: skip
WEIGHTS_OF = {"recurrence": [stored("w", 1, 24, 4), stored("r", 1, 24, 8)], "loop": [stored("v", 8, 8)]}
FILLED_TWICE = {"zeros": np.zeros((1, 2, 8), np.float32), "mask": MASK[None, :2]}


@pytest.mark.parametrize("is_read_first", [True, False], ids=["read first", "read last"])
@pytest.mark.parametrize("entries", FILLED_TWICE.values(), ids=FILLED_TWICE)
@pytest.mark.parametrize(("started", "count"), [("recurrence", 24 * 4 + 24 * 8), ("loop", 8 * 8)])
def test_what_starts_and_is_added_is_told_in_any_order_of_nodes(
    started: str, count: int, entries: Any, is_read_first: bool, tmp_path: Path
) -> None:
    """Zeros that a recurrence starts with, or a mask: either tells of a table, whichever node comes last."""
    nodes = [STARTED[started], node("Add", "q z", "s")]
    last = node("Mul", "s last", "y")
    weights = [*WEIGHTS_OF[started], numpy_helper.from_array(entries, "z"), scalar("n", 3, np.int64)]
    inputs = [value("x", 3, 2, 4), value("q", 1, 2, 8)]
    proto = model([*(nodes[::-1] if is_read_first else nodes), last], inputs, [value("y", 1, 2, 8)], weights)
    assert params(saved(proto, tmp_path))[0] == count
