"""No file takes more time or memory than it is worth, wraps a number, or fails for the order of its nodes."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pytest_modelbudget import check_equivalence, measure
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.errors import SourceError
from tests.builders.marks import ALL_MODELS
from tests.builders.onnx_graphs import graph, integers, model, node, scalar, stored, value

INT64, INT32 = TensorProto.INT64, TensorProto.INT32


def saved(proto: onnx.ModelProto, folder: Path, name: str = "net.onnx") -> Path:
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def expanded(rows: int, *arithmetic: onnx.NodeProto, k: int = 1) -> onnx.ModelProto:
    """A row of b, expanded to the shape (m, k) that arithmetic makes of (rows, 1), times a matrix of k to 5."""
    nodes = [node("Shape", "a", "s"), *arithmetic, node("Expand", "b q", "t"), node("MatMul", "t w", "y")]
    inputs = [value("a", rows, 1), value("b", 1, 1)]
    weights = [stored("w", k, 5), integers("two", 2), integers("halves", 2, 1)]
    return model(nodes, inputs, [value("y", None, None)], weights)


SQUARES = (node("Mul", "s s", "p"), node("Mul", "p p", "q"))
WRAPPING = {
    "mul": expanded(65_536, *SQUARES),
    "to less than zero": expanded(55_110, *SQUARES),
    "add": expanded(2**62, node("Add", "s s", "q")),
    "sub": expanded(2**62, node("Neg", "s", "n"), node("Sub", "n s", "m"), node("Sub", "m s", "q")),
    "pow": expanded(65_536, node("Mul", "two two", "four"), node("Pow", "s four", "q")),
    "product of all": expanded(2**40, node("Concat", "s s", "c", axis=0), node("ReduceProd", "c", "q")),
    "sum of all": expanded(2**62, node("Concat", "s s", "c", axis=0), node("ReduceSum", "c", "q")),
    "cast": expanded(2**32, node("Cast", "s", "i", to=INT32), node("Cast", "i", "q", to=INT64)),
    "int32": expanded(
        65_536, node("Cast", "s", "i", to=INT32), node("Mul", "i i", "j"), node("Cast", "j", "q", to=INT64)
    ),
    "size": model(
        [node("Expand", "b big", "t"), node("Size", "t", "n"), node("Reshape", "n one", "q"),
         node("Expand", "b q", "u"), node("MatMul", "u w", "y")],
        [value("b", 1, 1)], [value("y", None, None)],
        [integers("big", 2**33, 2**33), integers("one", 1), stored("w", 1, 5)],
    ),
    "flatten": model(
        [node("Expand", "b big", "t"), node("Flatten", "t", "f", axis=2), node("MatMul", "f w", "y")],
        [value("b", 1, 1, 1)], [value("y", None, None)], [integers("big", 2**33, 2**33, 1), stored("w", 1, 5)],
    ),
    "tile": model(
        [node("Tile", "b big", "t"), node("MatMul", "t w", "y")],
        [value("b", 2**33, 1)], [value("y", None, None)], [integers("big", 2**31, 1), stored("w", 1, 5)],
    ),
    "concat": model(
        [node("Concat", "b b", "t", axis=0), node("MatMul", "t w", "y")],
        [value("b", 2**62, 1)], [value("y", None, None)], [stored("w", 1, 5)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("proto", WRAPPING.values(), ids=list(WRAPPING))
def test_no_zero_is_measured_of_what_leaves_64_bits(proto: onnx.ModelProto, tmp_path: Path) -> None:
    """Runtimes wrap there, and the file is broken: it is refused, unmeasured, or as large as it says."""
    try:
        macs = measure(saved(proto, tmp_path))["macs"]
    except SourceError:
        return
    assert not macs.complete or macs.value > 2**31


@pytest.mark.parametrize(
    ("proto", "macs"),
    [
        pytest.param(expanded(50_000, *SQUARES), 50_000**4 * 5, id="mul"),
        pytest.param(expanded(2**60, node("Add", "s s", "q"), k=2), 2**61 * 2 * 5, id="add"),
        pytest.param(expanded(3_000, node("Mul", "two two", "four"), node("Pow", "s four", "q")), 3_000**4 * 5),
        pytest.param(expanded(2**30, node("Cast", "s", "i", to=INT32), node("Cast", "i", "q", to=INT64)), 2**30 * 5),
        pytest.param(expanded(7, node("Div", "s halves", "q")), 3 * 5, id="a division that rounds"),
    ],
)
def test_what_fits_stays_exact(proto: onnx.ModelProto, macs: int, tmp_path: Path) -> None:
    """Large numbers are no reason to know nothing. (2^60, 1) twice is (2^61, 2)."""
    found = measure(saved(proto, tmp_path))["macs"]
    assert (found.value, found.complete) == (macs, True)


def doubled(operator: str, times: int) -> list[onnx.NodeProto]:
    """A list that every node makes twice as long."""
    operands = {"Concat": "t{0} t{0}", "Tile": "t{0} two", "Expand": "t{0} two"}[operator]
    attributes = {"axis": 0} if operator == "Concat" else {}
    return [node(operator, operands.format(i), f"t{i + 1}", **attributes) for i in range(times)]


def ending_in_a_shape(nodes: list[onnx.NodeProto], last: str, *weights: onnx.TensorProto) -> onnx.ModelProto:
    """What integers become in the end is the shape of y."""
    return model([*nodes, node("Expand", f"x {last}", "y")], [value("x", 1)], [value("y", None)], weights)


def ranged(code: int, end: float) -> onnx.ModelProto:
    """Range from 0 to the end, whose values are a shape."""
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(code))
    nodes = [node("Range", "zero end one", "r"), node("Cast", "r", "s", to=INT64)]
    weights = [scalar("zero", 0, dtype), scalar("end", end, dtype), scalar("one", 1, dtype)]
    return ending_in_a_shape(nodes, "s", *weights)


GIANT = integers("giant", 2**31)
BOMBS = {
    "range": ranged(INT64, 2**31),
    "a range of floats": ranged(TensorProto.FLOAT, 1e12),
    "expand": ending_in_a_shape([node("Expand", "one giant", "s")], "s", integers("one", 1), GIANT),
    "tile": ending_in_a_shape([node("Tile", "one giant", "s")], "s", integers("one", 1), GIANT),
    "constant of a shape": ending_in_a_shape([node("ConstantOfShape", "giant", "z"), node("Cast", "z", "s", to=INT64)],
                                             "s", GIANT),
    "pad": ending_in_a_shape([node("Pad", "one pads", "s")], "s", integers("one", 1), integers("pads", 0, 2**31)),
    "concat": ending_in_a_shape(doubled("Concat", 60), "t60", integers("t0", 1)),
    "many tiles": ending_in_a_shape(doubled("Tile", 40), "t40", integers("t0", 1), integers("two", 2)),
    "one hot": ending_in_a_shape([node("OneHot", "one deep values", "h"), node("Reshape", "h flat", "s")], "s",
                                 integers("one", 1), scalar("deep", 2**31, np.int64), integers("values", 0, 1),
                                 integers("flat", -1)),
    "gather": ending_in_a_shape(
        [node("ConstantOfShape", "many", "z", value=helper.make_tensor("", INT64, [1], [0])),
         *(node("Gather", f"g{i} z", f"g{i + 1}") for i in range(4)), node("Reshape", "g4 flat", "s")],
        "s", integers("g0", 1), integers("many", 60_000), integers("flat", -1)),
    "a loop": model(
        [node("Loop", "times - x", "y", body=graph(
            [node("Identity", "c", "c2"), node("Relu", "v", "v2")],
            [value("i", code=INT64), value("c", code=TensorProto.BOOL), value("v", 1)],
            [value("c2", code=TensorProto.BOOL), value("v2", 1)]))],
        [value("x", 1)], [value("y", 1)], [scalar("times", 2**62, np.int64)]),
}  # fmt: skip
LIMITED = """
import os, resource, sys, traceback
from pytest_modelbudget import measure
measure(sys.argv[2])  # what is loaded once is no part of it, and each file has a process that was forked from here
for path in sys.argv[3:]:
    if child := os.fork():
        print(path, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    try:
        resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), int(sys.argv[1])))
        resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
        found = measure(path)
        found["peak_activation"].value, found["params"].value
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
"""
ROOM = 2**30 + 2**29  # bytes of addresses: onnx and numpy take half a gigabyte of them


def ends_in_little(
    protos: Mapping[str, onnx.ModelProto], folder: Path, code: str = LIMITED
) -> tuple[dict[str, int], str]:
    """(name → how the process ended that worked out peak and parameters in little memory and ten seconds, errors)."""
    small = saved(model([node("Relu", "x", "y")], [value("x", 1)], [value("y", 1)]), folder, "small.onnx")
    paths = {str(saved(proto, folder, f"{number}.onnx")): name for number, (name, proto) in enumerate(protos.items())}
    command = [sys.executable, "-c", code, str(ROOM), str(small), *paths]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    ends = (line.rpartition(" ") for line in run.stdout.splitlines())
    return {paths[path]: int(status) for path, _, status in ends}, run.stderr


@pytest.mark.slow
def test_a_small_file_takes_little(tmp_path: Path) -> None:
    """What a hundred bytes ask for is measured or refused within its memory and ten seconds.

    One of each kind: a size that is stored, lists that grow node by node, an operator that makes them, and a loop.
    """
    chosen = BOMBS if ALL_MODELS else {name: BOMBS[name] for name in ("range", "concat", "one hot", "a loop")}
    ends, errors = ends_in_little(chosen, tmp_path)
    assert set(ends.values()) <= {0, 1}, errors[-2000:]


def test_the_limits_of_this_test_bite(tmp_path: Path) -> None:
    """The room that the bombs get is too little for a gigabyte, and their time for a loop without an end."""
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    small = model([node("Relu", "x", "y")], [value("x", 1)], [value("y", 1)])
    wasting = "        import numpy; numpy.ones(2**28)\n        while True: pass\n"
    wasting = wasting.replace("import", "if path.endswith('0.onnx'): import", 1)
    code = LIMITED.replace("        found = measure(path)\n", wasting).replace("(10, 10)", "(1, 1)")
    ends, errors = ends_in_little({"hoarding": small, "running": small}, tmp_path, code)
    assert ends["hoarding"] == 1
    assert "MemoryError" in errors
    assert ends["running"] in (-signal.SIGXCPU, -signal.SIGKILL)


def calling(levels: int, calls: int, *, last: str = "", inside_if: bool = False) -> onnx.ModelProto:
    """A function that calls the next so often, and that the next; the last calls an operator, or one of them."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = []
    for level in range(levels):
        callee = f"f{level + 1}" if level + 1 < levels else last
        operator, domain = (callee, "own") if callee else ("Relu", "")
        names = [f"v{i}" for i in range(calls + 1)]
        nodes = [node(operator, names[i], names[i + 1], domain=domain) for i in range(calls)]
        if inside_if:
            branches = {side: graph(nodes, [], [value(names[-1], 4)]) for side in ("then_branch", "else_branch")}
            nodes = [node("Cast", "v0", "f", to=TensorProto.BOOL), node("If", "f", "out", **branches)]
            names = ["v0", "out"]
        functions.append(helper.make_function("own", f"f{level}", ["v0"], [names[-1]], nodes, opsets))
    nodes = [node("f0", "x", "y", domain="own")]
    return model(nodes, [value("x", 4)], [value("y", 4)], opset=17, domains=["own"], functions=functions)


@pytest.mark.parametrize("last", ["f0", "f2"])
def test_a_circle_of_functions_is_refused(last: str, tmp_path: Path) -> None:
    """ONNX permits none."""
    with pytest.raises(SourceError, match="inlining its functions"):
        measure(saved(calling(3, 2, last=last), tmp_path))


def test_functions_that_are_called_often_are_read(tmp_path: Path) -> None:
    """2^10 calls of a Relu of four elements are 4,096 FLOPs."""
    assert measure(saved(calling(10, 2), tmp_path))["flops"].value == 2**10 * 4


def disordered() -> onnx.ModelProto:
    """y = relu(x · w) + b, from its last node to its first."""
    nodes = [node("Add", "r b", "y"), node("Relu", "m", "r"), node("MatMul", "x w", "m")]
    return model(nodes, [value("x", 2, 8)], [value("y", 2, 4)], [stored("w", 8, 4), stored("b", 4)])


def disordered_inside() -> onnx.ModelProto:
    """The same in both branches of an If, whose operand is made behind it."""
    inner = disordered().graph
    branches = {
        side: graph(inner.node, [], inner.output, inner.initializer if side == "then_branch" else [])
        for side in ("then_branch", "else_branch")
    }
    nodes = [node("If", "flag", "y", **branches), node("Cast", "n", "flag", to=TensorProto.BOOL)]
    inputs = [value("x", 2, 8), value("n", code=INT64)]
    return model(nodes, inputs, [value("y", 2, 4)], [stored("w", 8, 4), stored("b", 4)])


def disordered_function() -> onnx.ModelProto:
    """The same in a function of the file's own."""
    nodes = [node("Add", "r b", "y"), node("Relu", "m", "r"), node("MatMul", "x w", "m")]
    function = helper.make_function("own", "f", ["x", "w", "b"], ["y"], nodes, [helper.make_opsetid("", 17)])
    call = [node("f", "x w b", "y", domain="own")]
    weights = [stored("w", 8, 4), stored("b", 4)]
    inputs, outputs = [value("x", 2, 8)], [value("y", 2, 4)]
    return model(call, inputs, outputs, weights, opset=17, domains=["own"], functions=[function])


def disordered_read_from_a_body() -> onnx.ModelProto:
    """A body reads a value around it that a node behind it makes."""
    body = graph([node("Add", "m b", "z")], [], [value("z", 2, 4)])
    nodes = [node("If", "flag", "y", then_branch=body, else_branch=body), node("MatMul", "x w", "m")]
    weights = [stored("w", 8, 4), stored("b", 4)]
    inputs = [value("x", 2, 8), value("flag", code=TensorProto.BOOL)]
    return model(nodes, inputs, [value("y", 2, 4)], weights)


DISORDERED: dict[str, Callable[[], onnx.ModelProto]] = {
    "nodes": disordered,
    "bodies": disordered_inside,
    "a function": disordered_function,
    "what a body reads": disordered_read_from_a_body,
}
NOTE = "nodes are not in the order in which they run: read in that order"


@pytest.mark.parametrize("make", DISORDERED.values(), ids=list(DISORDERED))
def test_nodes_out_of_order_are_sorted_and_said(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    """2 x 8 times 8 x 4 is 64 MACs, whatever node stands first."""
    found = measure(saved(make(), tmp_path))
    assert (found["macs"].value, found["macs"].complete) == (2 * 8 * 4, True)
    assert NOTE in found.notes


@pytest.mark.parametrize("make", DISORDERED.values(), ids=list(DISORDERED))
def test_they_run_as_well(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    """Outputs are compared with those of the same nodes in order."""
    path = saved(make(), tmp_path)
    assert check_equivalence(path, path).outcome is Outcome.WITHIN


def test_order_decides_no_number(tmp_path: Path) -> None:
    """A file in order says nothing, and has the same numbers."""
    proto = disordered()
    straight = model(list(proto.graph.node)[::-1], proto.graph.input, proto.graph.output, proto.graph.initializer)
    first, second = measure(saved(proto, tmp_path, "a.onnx")), measure(saved(straight, tmp_path, "b.onnx"))
    assert second.notes == ()
    assert {key: number.value for key, number in first.items()} == {key: n.value for key, n in second.items()}
    assert check_equivalence(tmp_path / "a.onnx", tmp_path / "b.onnx").outcome is Outcome.WITHIN


def test_a_chain_of_any_length_is_sorted(tmp_path: Path) -> None:
    """Three thousand nodes, the last one first."""
    nodes = [node("Relu", f"v{i}", f"v{i + 1}") for i in range(3_000)][::-1]
    proto = model(nodes, [value("v0", 4)], [value("v3000", 4)])
    assert measure(saved(proto, tmp_path))["flops"].value == 3_000 * 4
