"""Each row of the table of what an ONNX file's graph leaves out has a small file that comes to the place."""

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
from pytest_modelbudget.formats.omissions import OF_ONNX_FILES
from tests.builders.onnx_bodies import chosen, in_its_body, looped

KEYS = ("params", "weight_memory", "model_size", "macs", "flops", "peak_activation", "bandwidth")
X = "(float[1, 8] x) => (float[1, 8] y)"


def read(text: str, **stored: Any) -> onnx.ModelProto:
    """A model of this text, with these stored tensors."""
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3, "own": 1]> g {text}')
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items())
    return made


def numbers(model: onnx.ModelProto, folder: Path) -> dict[str, Any]:
    """Its figures; those that are unmeasured name their operators."""
    path = folder / "net.onnx"
    path.write_bytes(model.SerializeToString())
    measured = measure(path)
    return {key: tuple(op.op for op in measured[key].unmeasured) or measured[key].value for key in KEYS}


def product(**stored: Any) -> onnx.ModelProto:
    """x (1, 8) times a weight of 8 x 8."""
    return read(f"{X} {{ y = MatMul(x, w) }}", **{"w": np.ones((8, 8), np.float32), **stored})


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
        model = read(f"{X} {{ {text} }}")
        model.functions.append(own)
        assert numbers(model, folder)["params"] == 8 * calls


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
    stored = read("(float[1, 8] x) => (float[8] y) { y = Reshape(x, s) }", s=np.array([8]))
    worked = read("(float[1, 8] x) => (float[8] y) { t = Shape(x) s = ReduceProd<keepdims=1>(t) y = Reshape(x, s) }")
    for model in (stored, worked):
        assert numbers(model, folder)["params"] == 0
        assert numbers(model, folder)["bandwidth"] == plain["bandwidth"]


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


@pytest.mark.parametrize(("row", "trial"), list(zip(OF_ONNX_FILES, TRIALS, strict=True)),
                         ids=[trial.__name__ for trial in TRIALS])  # fmt: skip
def test_class1_each_row_is_what_it_says(row: Any, trial: Callable[[Path], None], tmp_path: Path) -> None:
    """Class 1: a small file that comes to the place; a row without a trial fails when collected."""
    trial(tmp_path)
