"""What the graph of an ONNX file leaves out stands in one table, and nothing else is left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from pytest_modelbudget import measure
from pytest_modelbudget.errors import SourceError
from tests.builders.omissions import omissions
from tests.builders.onnx_bodies import BOOL, INT64, chosen, in_its_body, looped, unknown
from tests.builders.onnx_graphs import graph, measured, model, node, scalar, stored, value


def at_top() -> onnx.ModelProto:
    return model([unknown("x w")], [value("x", 1, 8)], [value("y", 1, 8)], [stored("w", 8, 8)], domains=["lab"])


def in_a_branch() -> onnx.ModelProto:
    body = graph([unknown("x w")], [], [value("y", 1, 8)], [stored("w", 8, 8)])
    made = node("If", "flag", "z", then_branch=body, else_branch=body)
    inputs = [value("x", 1, 8), value("flag", code=BOOL)]
    return model([made], inputs, [value("z", 1, 8)], domains=["lab"])


def from_a_branch() -> onnx.ModelProto:
    body = graph([unknown("x w")], [], [value("y", 1, 8)])
    made = node("If", "flag", "z", then_branch=body, else_branch=body)
    inputs = [value("x", 1, 8), value("flag", code=BOOL)]
    return model([made], inputs, [value("z", 1, 8)], [stored("w", 8, 8)], domains=["lab"])


def in_a_function() -> onnx.ModelProto:
    weight = helper.make_node("Constant", [], ["w"], value=stored("w", 8, 8))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("lab", 1)]
    own = helper.make_function("own", "f", ["x"], ["y"], [weight, unknown("x w")], opsets)
    call = node("f", "x", "y", domain="own")
    return model([call], [value("x", 1, 8)], [value("y", 1, 8)], opset=17, domains=["own", "lab"], functions=[own])


def in_an_attribute() -> onnx.ModelProto:
    made = unknown("x", weight=stored("w", 8, 8))
    return model([made], [value("x", 1, 8)], [value("y", 1, 8)], domains=["lab"])


def in_attributes() -> onnx.ModelProto:
    made = unknown("x", weights=[stored("w", 4, 8), stored("v", 4, 8)])
    return model([made], [value("x", 1, 8)], [value("y", 1, 8)], domains=["lab"])


READERS = (at_top, in_a_branch, from_a_branch, in_a_function, in_an_attribute, in_attributes, in_its_body)


@pytest.mark.parametrize("make", READERS, ids=lambda make: make.__name__)
def test_what_an_unknown_operator_stores_is_never_lost(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    """64 float32 are 256 bytes of the model, and a parameter or a lower bound that names the operator."""
    path = tmp_path / "net.onnx"
    path.write_bytes(make().SerializeToString())
    found = measure(path)
    assert found["model_size"].value % 256 == 0
    assert found["model_size"].value >= 256
    assert [missing.op for missing in found["macs"].unmeasured] == ["lab::mystery"]
    if make is in_its_body:  # where a rule says what reads it
        assert (found["params"].value, found["params"].complete) == (64, True)
    else:
        assert {missing.op for missing in found["params"].unmeasured} == {"lab::mystery"}


def in_loop(inner: onnx.NodeProto, inputs: str = "times flag x") -> onnx.ModelProto:
    """A Loop of three runs around a node that gives v2."""
    body = graph(
        [node("Identity", "c", "c2"), inner],
        [value("i", code=INT64), value("c", code=BOOL), value("v", 1, 8)],
        [value("c2", code=BOOL), value("v2", 1, 8)],
    )
    made = node("Loop", inputs, "y", body=body)
    weights = [stored("w", 8, 8), scalar("times", 3, "int64"), scalar("flag", True, bool)]
    return model([made], [value("x", 1, 8)], [value("y", 1, 8)], weights)


def test_a_loop_goes_on_inside_a_loop_that_goes_on(tmp_path: Path) -> None:
    """The outer loop's condition, true in each of its 3 runs, is that of the inner one: 3 · 3 products of 8 · 8."""
    inner_body = graph(
        [node("Identity", "d", "d2"), node("MatMul", "u w", "u2")],
        [value("j", code=INT64), value("d", code=BOOL), value("u", 1, 8)],
        [value("d2", code=BOOL), value("u2", 1, 8)],
    )
    found = measured(in_loop(node("Loop", "times c v", "v2", body=inner_body)), tmp_path)["macs"]
    assert (found.value, found.complete) == (3 * 3 * 8 * 8, True)


def scanning(count: int | None, *lengths: int, inputs: int | None = None, **attributes: object) -> onnx.ModelProto:
    """A Scan of rows of a, b ..., of these lengths; its body adds the first row to itself."""
    names = ["a", "b", "c"][: len(lengths)]
    inner = [value(f"{name}i", 8) for name in names[:inputs]]
    body = graph([node("Add", "ai ai", "r")], inner, [value("r", 8)])
    counted = {} if count is None else {"num_scan_inputs": count}
    made = node("Scan", " ".join(names), "y", body=body, **counted, **attributes)
    outer = [value(name, length, 8) for name, length in zip(names, lengths, strict=True)]
    return model([made], outer, [value("y", None, 8)])


UNFIT = "its bodies and what it reads do not fit together"
BRANCH = graph([node("Relu", "x", "z")], [], [value("z", 1, 8)])
BROKEN = {
    "a loop that hands in too little": (
        in_loop(node("Relu", "v", "v2"), "times flag"), UNFIT,
    ),
    "a scan of two lengths": (scanning(2, 3, 4), UNFIT),
    "a scan of no number": (scanning(None, 3), "Required attribute 'num_scan_inputs' is missing"),
    "a scan of more than there is": (scanning(3, 3), UNFIT),
    "a scan of an axis that is not there": (scanning(1, 3, scan_input_axes=[7]), UNFIT),
    "a scan whose body takes less": (scanning(2, 3, 3, inputs=1), UNFIT),
    "an if of one branch": (
        model([node("If", "flag", "y", then_branch=BRANCH)], [value("x", 1, 8)], [value("y", 1, 8)],
              [scalar("flag", True, bool)]),
        "Required attribute 'else_branch' is missing",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("proto", "words"), BROKEN.values(), ids=list(BROKEN))
def test_a_node_and_its_body_at_odds_are_named(proto: onnx.ModelProto, words: str, tmp_path: Path) -> None:
    """No runtime takes such a file, so no number of it is complete; the words name the node and not our code."""
    with pytest.raises(SourceError, match=words) as raised:
        measured(proto, tmp_path)
    assert "zip()" not in str(raised.value)


KEYS = ("params", "weight_memory", "model_size", "macs", "flops", "peak_activation", "bandwidth")
X = "(float[1, 8] x) => (float[1, 8] y)"


def read(text: str, **tensors: Any) -> onnx.ModelProto:
    """A model of this text, with these stored tensors."""
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3, "own": 1]> g {text}')
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items())
    return made


def numbers(proto: onnx.ModelProto, folder: Path) -> dict[str, Any]:
    """Its figures; those that are unmeasured name their operators."""
    path = folder / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    found = measure(path)
    return {key: tuple(op.op for op in found[key].unmeasured) or found[key].value for key in KEYS}


def product(**tensors: Any) -> onnx.ModelProto:
    """x (1, 8) times a weight of 8 x 8."""
    return read(f"{X} {{ y = MatMul(x, w) }}", **{"w": np.ones((8, 8), np.float32), **tensors})


def says_where_it_comes_from(folder: Path) -> None:
    """Names and notes change no figure."""
    noted = product()
    noted.producer_name, noted.doc_string, noted.model_version = "lab", "words " * 99, 7
    noted.metadata_props.add(key="note", value="more " * 99)
    noted.graph.quantization_annotation.add(tensor_name="w")
    assert numbers(noted, folder) == numbers(product(), folder)


def trains(folder: Path) -> None:
    """What a training graph stores, 64 numbers, is in none of the figures of inference."""
    trained = product()
    algorithm = trained.training_info.add().algorithm
    algorithm.initializer.append(numpy_helper.from_array(np.ones((8, 8), np.float32), "momentum"))
    assert numbers(trained, folder) == numbers(product(), folder)


def calls_no_function(folder: Path) -> None:
    """A function's constant of 8 counts once for each of no, one and two calls."""
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.ones(8, np.float32)))
    add = helper.make_node("Add", ["a", "c"], ["b"])
    own = helper.make_function("own", "f", ["a"], ["b"], [constant, add], [helper.make_opsetid("", 17)])
    for text, calls in (("y = Relu(x)", 0), ("y = own.f(x)", 1), ("z = own.f(x) y = own.f(z)", 2)):
        made = read(f"{X} {{ {text} }}")
        made.functions.append(own)
        assert numbers(made, folder)["params"] == 8 * calls


def stores_many_values(folder: Path) -> None:
    """512 ones or 512 zeros are the same figures."""
    one, other = (read(f"{X} {{ z = MatMul(x, w) y = MatMul(z, v) }}", w=np.full((8, 64), n, np.float32),
                       v=np.full((64, 8), n, np.float32)) for n in (0, 1))  # fmt: skip
    assert numbers(one, folder) == numbers(other, folder)
    assert numbers(one, folder)["params"] == 2 * 512


def stores_text_and_places(folder: Path) -> None:
    """Of a sparse weight of 8 x 8 with 3 values, 3 parameters; of a stored text, none."""
    sparse = read(f"{X} {{ y = MatMul(x, w) }}")
    values = numpy_helper.from_array(np.ones(3, np.float32), "w")
    places = numpy_helper.from_array(np.array([0, 9, 63], np.int64), "places")
    sparse.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [8, 8]))
    assert (numbers(sparse, folder)["params"], numbers(sparse, folder)["model_size"]) == (3, 3 * 4)
    worded = product()
    worded.graph.initializer.append(helper.make_tensor("words", onnx.TensorProto.STRING, [2], [b"a" * 99, b"b"]))
    assert numbers(worded, folder)["model_size"] == numbers(product(), folder)["model_size"]


def writes_constants(folder: Path) -> None:
    """A weight in a Constant node is one in an initialiser."""
    made = read(f"{X} {{ y = MatMul(x, w) }}")
    weight = numpy_helper.from_array(np.ones((8, 8), np.float32))
    made.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=weight))
    assert numbers(made, folder) == numbers(product(), folder)


def says_how_large(folder: Path) -> None:
    """A shape that is stored, and one that nodes work out, are neither parameters nor traffic."""
    plain = numbers(read("(float[1, 8] x) => (float[8] y) { y = Flatten<axis=0>(x) }"), folder)
    in_file = read("(float[1, 8] x) => (float[8] y) { y = Reshape(x, s) }", s=np.array([8]))
    worked = read("(float[1, 8] x) => (float[8] y) { t = Shape(x) s = ReduceProd<keepdims=1>(t) y = Reshape(x, s) }")
    for made in (in_file, worked):
        assert numbers(made, folder)["params"] == 0
        assert numbers(made, folder)["bandwidth"] == plain["bandwidth"]


def takes_one_branch(folder: Path) -> None:
    """8 x 4 or 8 x 6 by a known condition, the dearer by an unknown one; both are stored."""
    for flag, macs in ((True, 8 * 4), (False, 8 * 6), (None, 8 * 6)):
        found = numbers(chosen(flag=flag), folder)
        assert (found["macs"], found["params"]) == (macs, 8 * 4 + 8 * 6)


def never_loops(folder: Path) -> None:
    """A loop of no round multiplies nothing, and stores its weight."""
    assert (numbers(looped(0), folder)["macs"], numbers(looped(0), folder)["params"]) == (0, 8 * 8)


def has_a_body_without_a_rule(folder: Path) -> None:
    """The operator is unmeasured, and what its body stores counts."""
    found = numbers(in_its_body(), folder)
    assert (found["macs"], found["params"]) == (("lab::mystery",), 64)


def has_numbers_in_attributes(folder: Path) -> None:
    """A slope is a setting, and no parameter; 8 coefficients of a linear model are 8 parameters and 8 MACs."""
    assert numbers(read(f"{X} {{ y = LeakyRelu<alpha=0.3>(x) }}"), folder)["params"] == 0
    linear = "ai.onnx.ml.LinearRegressor<coefficients=[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], targets=1>(x)"
    found = numbers(read(f"(float[1, 8] x) => (float[1, 1] y) {{ y = {linear} }}"), folder)
    assert (found["params"], found["macs"]) == (8, 8)


def drops_a_mask(folder: Path) -> None:
    """A Dropout with a second result is one without."""
    one, two = (read(f"{X} {{ z = Relu(x) {made} = Dropout(z) y = Relu(a) }}") for made in ("a", "a, mask"))
    assert numbers(one, folder) == numbers(two, folder)


def makes_what_nobody_reads(folder: Path) -> None:
    """A result that nobody reads is written, and is in memory while it is made alone: x, u, 32 B each, then x and y."""
    unread = numbers(read(f"{X} {{ u = Exp(x) y = Relu(x) }}"), folder)
    alone = numbers(read(f"{X} {{ y = Relu(x) }}"), folder)
    assert unread["flops"] == alone["flops"] + 8
    assert unread["peak_activation"] == alone["peak_activation"] == 2 * 8 * 4


def feeds_what_is_stored(folder: Path) -> None:
    """An initialiser that is an input, too, is stored, and no activation."""
    fed = product()
    fed.graph.input.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [8, 8]))
    assert numbers(fed, folder) == numbers(product(), folder)


def shapes_by_many_values(folder: Path) -> None:
    """The sum of so many ones is a size: of 65,537 nobody works them out."""
    text = (
        "(float[1, 8] x) => (float[N, 8] y) {{ o = ConstantOfShape<value=int64[1] one {{1}}>(n) {} y = Expand(x, s) }}"
    )
    sums = "t = ReduceSum<keepdims=1>(o) s = Concat<axis=0>(t, e)"
    made = read(text.format(sums), n=np.array([65_537]), e=np.array([8]))
    found = numbers(made, folder)
    assert found["bandwidth"] == ("onnx::Expand",)


def leaves_64_bits(folder: Path) -> None:
    """2^62 times 4 is 0 in 64 bits."""
    text = "(float[1, 8] x) => (float[N, 8] y) { t = Mul(a, b) s = Concat<axis=0>(t, e) y = Expand(x, s) }"
    with pytest.raises(SourceError, match="Integer overflow in Mul"):
        numbers(read(text, a=np.array([2**62]), b=np.array([4]), e=np.array([8])), folder)


TRIALS = (
    says_where_it_comes_from, trains, calls_no_function, stores_many_values, stores_text_and_places,
    writes_constants, says_how_large, takes_one_branch, never_loops, has_a_body_without_a_rule,
    has_numbers_in_attributes, drops_a_mask, makes_what_nobody_reads, feeds_what_is_stored,
    shapes_by_many_values, leaves_64_bits,
)  # fmt: skip


@pytest.mark.parametrize(("row", "trial"), list(zip(omissions("ONNX files"), TRIALS, strict=True)),
                         ids=[trial.__name__ for trial in TRIALS])  # fmt: skip
def test_each_row_is_what_it_says(row: Any, trial: Callable[[Path], None], tmp_path: Path) -> None:
    """A small file that comes to the place; a row without a trial fails when collected."""
    trial(tmp_path)
