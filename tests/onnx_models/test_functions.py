"""Functions of a file's own are what ONNX Runtime makes of them where they are called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, FunctionProto, NodeProto, TensorProto, helper, numpy_helper

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.onnx_models.node_rewriting import WholeOperation, multiplies_weight, operations_of
from pytest_modelbudget.onnx_models.program import Program
from pytest_modelbudget.ops.rule import Over
from tests.builders.onnx_graphs import graph, measured, model, node, stored, value

ort = pytest.importorskip("onnxruntime")
IMAGE, Y, ROWS = value("x", 1, 1, 9, 9), value("y", None, None, None, None), value("x", 2, 8)
KERNEL = stored("w", 1, 1, 3, 3)


def function(
    name: str, given: str, made: str, *nodes: NodeProto, opset: int | None = 23, others: str = "own", **settings: Any
) -> FunctionProto:
    """A function of the domain own; a setting is an attribute with its default, or without one where it is None."""
    opsets = [helper.make_opsetid("", opset)] if opset else []
    opsets += [helper.make_opsetid(domain, 1) for domain in others.split()]
    without = [each for each, default in settings.items() if default is None]
    defaults = [helper.make_attribute(each, default) for each, default in settings.items() if default is not None]
    return helper.make_function(
        "own", name, given.split(), made.split(), nodes, opsets, attributes=without, attribute_protos=defaults
    )


def referring(made: NodeProto, name: str, to: str) -> NodeProto:
    """A node whose attribute (integers) is an attribute of the function around it."""
    made.attribute.append(AttributeProto(name=name, type=AttributeProto.INTS, ref_attr_name=to))
    return made


def calling(
    call: NodeProto, *functions: FunctionProto, inputs: Sequence[onnx.ValueInfoProto] = (IMAGE,),
    output: onnx.ValueInfoProto = Y, weights: Sequence[onnx.TensorProto] = (KERNEL,), domains: Sequence[str] = ("own",),
) -> onnx.ModelProto:  # fmt: skip
    """A model of one call."""
    return model([call], inputs, [output], weights, domains=domains, functions=functions)


def own(name: str, inputs: str, outputs: str = "y", **attributes: Any) -> NodeProto:
    """A call."""
    return node(name, inputs, outputs, domain="own", **attributes)


def result(made: onnx.ModelProto) -> tuple[int, ...]:
    """The shape that ONNX Runtime gives on ones; raises where it does not load the model."""
    ort.set_default_logger_severity(4)
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    types = {"tensor(float)": np.float32, "tensor(bool)": np.bool_}
    feeds = {each.name: np.ones(each.shape, types[each.type]) for each in session.get_inputs()}
    return tuple(session.run(None, feeds)[0].shape)


def conv(**settings: Any) -> FunctionProto:
    """A convolution by a stride of its caller."""
    return function("Conv", "x w", "y", referring(node("Conv", "x w", "y"), "strides", "s"), **settings)


def in_branches(**settings: Any) -> FunctionProto:
    """The same in both branches."""
    bodies = [
        graph([referring(node("Conv", "x w", name), "strides", "s")], [], [value(name, None, None, None, None)])
        for name in ("a", "b")
    ]
    branch = node("If", "flag", "y", then_branch=bodies[0], else_branch=bodies[1])
    return function("Conv", "x w flag", "y", branch, **settings)


TWO = conv(s=[2, 2])
# Windows of 3x3 in 9x9: 7x7 at a stride of 1, 4x4 of 2, 3x3 of 3, each of 9 MACs.
STRIDES = {
    "as called": (calling(own("Conv", "x w", s=[1, 1]), TWO), 7),
    "by default": (calling(own("Conv", "x w"), TWO), 4),
    "of a function that calls it": (
        calling(own("Outer", "x w"), function("Outer", "x w", "y", own("Conv", "x w")), TWO), 4,
    ),
    "handed on": (
        calling(
            own("Outer", "x w"),
            function("Outer", "x w", "y", referring(own("Conv", "x w"), "s", "t"), t=[3, 3]), TWO,
        ), 3,
    ),
    "beside a function that nobody calls": (
        calling(
            own("Outer", "x w"),
            function("Unused", "x w", "y", own("Outer", "x w")),
            function("Outer", "x w", "y", own("Conv", "x w")), TWO,
        ), 4,
    ),
    "without a default": (calling(own("Conv", "x w"), conv(s=None)), 7),
    "in branches": (
        calling(own("Conv", "x w flag"), in_branches(s=[2, 2]), inputs=[IMAGE, value("flag", code=TensorProto.BOOL)]),
        4,
    ),
    "of older operators": (calling(own("Conv", "x w"), conv(opset=13, s=[2, 2])), 4),
    "of newer operators": (calling(own("Conv", "x w"), conv(opset=24, s=[2, 2])), 4),
}  # fmt: skip


@pytest.mark.parametrize(("made", "side"), STRIDES.values(), ids=STRIDES)
def test_a_call_has_the_defaults_of_its_function(made: onnx.ModelProto, side: int, tmp_path: Path) -> None:
    """Where ONNX Runtime gives side · side values, each is a sum of nine products."""
    assert result(made) == (1, 1, side, side)
    found = measured(made, tmp_path)
    assert (found["macs"].value, found["macs"].complete) == (side * side * 9, True)
    assert (found["params"].value, found["params"].complete) == (9, True)


def test_an_attribute_that_is_handed_on_and_given_by_nobody_is_refused(tmp_path: Path) -> None:
    """ONNX Runtime takes the default of the inner function, and onnx's inliner none."""
    outer = function("Outer", "x w", "y", referring(own("Conv", "x w"), "s", "t"), t=None)
    made = calling(own("Outer", "x w"), outer, TWO)
    assert result(made) == (1, 1, 4, 4)
    with pytest.raises(SourceError, match="'y' calls the function own::Outer without 't', which that hands on"):
        measured(made, tmp_path)


def test_an_overload_that_calls_another_one_gets_its_defaults(tmp_path: Path) -> None:
    """ONNX Runtime 1.32 knows no overloads; 4x4 windows at a stride of 2 are what onnx's own inference gives."""
    outer, inner = function("Conv", "x w", "y", own("Conv", "x w")), conv(s=[2, 2])
    outer.overload, inner.overload, outer.node[0].overload = "outer", "inner", "inner"
    call = own("Conv", "x w")
    call.overload = "outer"
    made = calling(call, outer, inner)
    onnx.checker.check_model(made)
    assert measured(made, tmp_path)["macs"].value == 4 * 4 * 9


def test_a_function_may_import_what_its_file_does_not(tmp_path: Path) -> None:
    """16 values, each shifted and scaled."""
    scaler = node("Scaler", "x", "y", domain="ai.onnx.ml", offset=[0.0], scale=[1.0])
    made = calling(
        own("Scale", "x"), function("Scale", "x", "y", scaler, others="ai.onnx.ml"),
        inputs=[ROWS], output=value("y", 2, 8), weights=[],
    )  # fmt: skip
    assert result(made) == (2, 8)
    assert measured(made, tmp_path)["flops"].value == 16


@pytest.mark.parametrize("size", [6, 40])
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_mask_that_a_function_adds_is_no_parameter(size: int, is_inside: bool, tmp_path: Path) -> None:
    """Whichever of both stores it, and however large it is: its size · size values are no weights."""
    mask = numpy_helper.from_array(np.triu(np.full((size, size), -np.inf, np.float32), 1), "mask")
    constant = [node("Constant", "", "mask", value=mask)] if is_inside else []
    added = function("Masked", "x" if is_inside else "x mask", "y", *constant, node("Add", "x mask", "y"))
    made = calling(
        own("Masked", "x" if is_inside else "x mask"), added,
        inputs=[value("x", 2, size, size)], output=value("y", 2, size, size), weights=[] if is_inside else [mask],
    )  # fmt: skip
    found = measured(made, tmp_path)
    assert (found["params"].value, found["model_size"].value) == (0, 4 * size * size)


def relu(*nodes: NodeProto, given: str = "x", made: str = "y", **more: Any) -> onnx.ModelProto:
    """A call of a function of these nodes on x."""
    called = own("F", "x", made)
    return calling(
        called, function("F", given, made, *nodes, **more), inputs=[ROWS], output=value("y", 2, 8), weights=[W]
    )


W = stored("w", 2, 8)
RELU = node("Relu", "x", "y")
REFUSED = {
    "too many operands": (relu(node("Relu", "x x", "y")), r"Node\(.*\) with schema\(::Relu:.* has input size 2"),
    "too few operands": (relu(node("MatMul", "x", "y")), r"Node\(.*\) with schema\(::MatMul:.* has input size 1"),
    "an attribute of nobody": (relu(node("Relu", "x", "y", slope=3)), "Unrecognized attribute: slope for operator"),
    "a value given twice": (relu(RELU, node("Neg", "x", "y")), "'y' is given twice"),
    "a constant without a value": (
        relu(referring(node("Constant", "", "c"), "value_ints", "c"), node("Relu", "x", "y"), c=None), "has no value",
    ),
    "operators that the file's version has not": (
        relu(node("ReduceSum", "x", "y", axes=[1]), opset=11), "Unrecognized attribute: axes for operator ReduceSum",
    ),
    "too many arguments": (
        calling(own("F", "x x"), function("F", "x", "y", RELU), inputs=[ROWS], output=value("y", 2, 8)),
        "inlining its functions",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("made", "why"), REFUSED.values(), ids=REFUSED)
def test_what_no_runtime_loads_is_refused(made: onnx.ModelProto, why: str, tmp_path: Path) -> None:
    """A function is held to what a graph is held to."""
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        result(made)
    with pytest.raises(SourceError, match=why):
        measured(made, tmp_path)


def test_a_function_that_nobody_calls_may_lack_a_value(tmp_path: Path) -> None:
    """ONNX Runtime keeps none such."""
    unused = function("Unused", "x", "y", node("Add", "x w", "y"))
    made = calling(
        own("F", "x"), function("F", "x", "y", RELU), unused, inputs=[ROWS], output=value("y", 2, 8), weights=[]
    )
    assert result(made) == (2, 8)
    assert measured(made, tmp_path)["macs"].complete


def overload(name: str, made: FunctionProto | NodeProto) -> Any:
    """A function, or a call, of an overload."""
    made.overload = name
    return made


@pytest.mark.parametrize("is_last", [False, True])
def test_every_overload_of_a_function_is_read(is_last: bool, tmp_path: Path) -> None:
    """A stored tensor of either is refused where its values were cut off, or lie outside of the model's folder."""
    outside = TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[8, 4], data_location=TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="../elsewhere")
    cut = TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[8, 4], raw_data=bytes(4))
    for held, why in ((outside, "lie outside the model's folder"), (cut, "it was damaged, or cut off")):
        product = node("Constant", "", "c", value=held), node("MatMul", "x c", "y")
        both = [
            overload("a", function("F", "x", "y", *product)),
            overload("b", function("F", "x", "y", node("Relu", "x", "y"))),
        ]
        calls = [overload("a", own("F", "x", "h")), overload("b", own("F", "h"))]
        made = model(calls, [ROWS], [value("y", 2, 4)], domains=["own"], functions=both[::-1] if is_last else both)
        with pytest.raises(SourceError, match=why):
            measured(made, tmp_path)


def test_a_call_says_which_overload_of_a_function_it_is(tmp_path: Path) -> None:
    """7 · 7 sums of nine products, and as many rectified: a convolution is found in the overload that has one."""
    both = [
        overload("a", function("F", "x w", "y", node("Conv", "x w", "y"))),
        overload("b", function("F", "x", "y", node("Relu", "x", "y"))),
    ]
    calls = [overload("a", own("F", "x w", "h")), overload("b", own("F", "h"))]
    made = model(calls, [IMAGE], [Y], [KERNEL], domains=["own"], functions=both)
    found = measured(made, tmp_path)
    assert (found["macs"].value, found["params"].value) == (7 * 7 * 9, 9)
    whole = [*operations_of(Program(made), multiplies_weight(Over.CHANNELS), lambda node, _: WholeOperation(node, ""))]
    assert [(each.node.result, each.why) for each in whole if isinstance(each, WholeOperation)] == [
        ("h", "it calls the model's own function own::F: inline that first")
    ]


@pytest.mark.parametrize("lacks", ["", "b", "z"])
def test_an_overload_that_nobody_calls_may_lack_what_it_reads(lacks: str, tmp_path: Path) -> None:
    """ONNX Runtime loads it, since it writes out what is called alone."""
    whole = overload("a", function("F", "x", "y", node("Relu", "x", "y")))
    other = overload(lacks, function("F", "x", "y", node("Add", "x lacked", "y")))
    for functions in ([whole, other], [other, whole]):
        call = overload("a", own("F", "x"))
        made = model([call], [value("x", 2, 4)], [value("y", 2, 4)], domains=["own"], functions=functions)
        assert measured(made, tmp_path)["flops"].value == 2 * 4
        call.overload = lacks
        made = model([call], [value("x", 2, 4)], [value("y", 2, 4)], domains=["own"], functions=functions)
        with pytest.raises(SourceError, match="reads 'lacked'"):
            measured(made, tmp_path)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["the dearer one first", "the dearer one last"])
def test_a_function_that_is_defined_twice_is_refused(order: Sequence[int], tmp_path: Path) -> None:
    """ONNX Runtime refuses it, too; which definition would be meant nobody can tell."""
    twice = function("F", "x", "y", node("MatMul", "x x", "a"), node("MatMul", "a x", "y"))
    once = function("F", "x", "y", node("MatMul", "x x", "y"))
    square, found = value("x", 4, 4), [(twice, once)[each] for each in order]
    made = calling(own("F", "x"), *found, inputs=[square], output=value("y", 4, 4), weights=())
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail):
        result(made)
    with pytest.raises(SourceError, match=r"two of its functions are called own::F: give each a name of its own"):
        measured(made, tmp_path)
