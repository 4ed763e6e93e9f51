"""Branches of ONNX models that no input takes: the same in both models, or nobody knows what they compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from pytest_modelbudget import check_equivalence
from pytest_modelbudget.equivalence.judgement import Equivalence
from tests.builders.onnx_bodies import BOOL, INT64
from tests.builders.onnx_graphs import FLOAT, OPSET, graph, integers, model, node, scalar, value

NEVER, SOMETIMES = 1e9, 0.0  # sums of drawn inputs are never above the first
X, Y = [value("x", 2, 8)], [value("y", 2, 8)]
RELU, NEG, KEPT = [node("Relu", "x", "t")], [node("Neg", "x", "t")], [node("Identity", "x", "e")]
CONDITION = [node("ReduceSum", "x", "s", keepdims=0), node("Greater", "s limit", "b")]
UNKNOWN = "no run took then_branch of If 'y', which is not the same in both models: give 'inputs' that take it"
Nodes = list[onnx.NodeProto]


def chosen(
    then: Nodes,
    other: Nodes = KEPT,
    limit: float = NEVER,
    before: Sequence[onnx.NodeProto] = (),
    own: Sequence[onnx.TensorProto] = (),
    **stored: Any,
) -> onnx.ModelProto:
    """If sum(x) > limit: then, else other; own tensors are the branch's, and stored ones, or numbers, the graph's."""
    branches = {
        "then_branch": graph(then, [], [value("t", 2, 8)], own),
        "else_branch": graph(other, [], [value("e", 2, 8)]),
    }
    held = {"limit": limit, **stored}
    weights = [
        each if isinstance(each, onnx.TensorProto) else scalar(name, each, "int64" if type(each) is int else "float32")
        for name, each in held.items()
    ]
    return model([*before, *CONDITION, node("If", "b", "y", **branches)], X, Y, weights)


def compared(folder: Path, *protos: onnx.ModelProto, **claim: object) -> Equivalence:
    """Two models, as files."""
    paths = [folder / "first.onnx", folder / "second.onnx"]
    for path, proto in zip(paths, protos, strict=True):
        path.write_bytes(proto.SerializeToString())
    return check_equivalence(*paths, **claim)  # type: ignore[arg-type]


def test_inputs_that_take_it_are_the_way_out(tmp_path: Path) -> None:
    """Relu(Relu(x)) is Relu(x), and Neg(x) is not."""
    np.save(tmp_path / "large.npy", np.full((2, 8), 1e9, np.float32))
    twice = [node("Relu", "x", "r"), node("Relu", "r", "t")]
    assert compared(tmp_path, chosen(RELU), chosen(twice)).outcome == "unknown"
    given = {"given": tmp_path / "large.npy"}
    assert compared(tmp_path, chosen(RELU), chosen(twice), **given).outcome == "within"
    assert compared(tmp_path, chosen(RELU), chosen(NEG), **given).outcome == "over"


@pytest.mark.parametrize(("kind", "bounds"), [("lossy", {"sqnr": 30}), ("custom", {"max_abs": 1.0})])
def test_no_claim_holds_of_what_never_ran(kind: str, bounds: dict[str, float], tmp_path: Path) -> None:
    assert compared(tmp_path, chosen(RELU), chosen(NEG), kind=kind, bounds=bounds).reason == UNKNOWN
    assert compared(tmp_path, chosen(RELU), chosen(RELU), kind=kind, bounds=bounds).outcome == "within"


def test_a_branch_that_ran_is_judged_by_its_outputs(tmp_path: Path) -> None:
    assert compared(tmp_path, chosen(RELU, limit=SOMETIMES), chosen(NEG, limit=SOMETIMES)).outcome == "over"
    twice = [node("Relu", "x", "r"), node("Relu", "r", "t")]
    found = compared(tmp_path, chosen(RELU, limit=SOMETIMES), chosen(twice, limit=SOMETIMES))
    assert (found.outcome, found.notes) == ("within", ())


def chosen_twice(second: str) -> onnx.ModelProto:
    """Relu or Neg, of which each ran, and one of the two where none did."""
    made = chosen([node("Relu", "x", "t")], [node("Neg", "x", "e")], SOMETIMES)
    made.graph.node[2].output[0] = made.graph.node[2].name = "u"
    branches = {"then_branch": graph([node(second, "x", "t2")], [], [value("t2", 2, 8)]),
                "else_branch": graph([node("Identity", "x", "e2")], [], [value("e2", 2, 8)])}  # fmt: skip
    made.graph.node.extend(
        [node("Greater", "s never", "b2"), node("If", "b2", "v", **branches), node("Add", "u v", "y")]
    )
    made.graph.initializer.append(scalar("never", NEVER, "float32"))
    return made


def test_two_branches_that_ran_elsewhere_are_two(tmp_path: Path) -> None:
    found = compared(tmp_path, chosen_twice("Relu"), chosen_twice("Neg"))
    assert (found.outcome, found.reason) == ("unknown", UNKNOWN.replace("'y'", "'v'"))
    assert compared(tmp_path, chosen_twice("Relu"), chosen_twice("Relu")).outcome == "within"


def times(name: str) -> Nodes:
    return [node("Mul", f"x {name}", "t")]


def constant(entry: float) -> Nodes:
    """The literal is called alike in the other branch."""
    made = helper.make_node("Constant", [], ["c"], value_float=entry)
    return [made, node("Mul", "x c", "t")]


ELSE = [helper.make_node("Constant", [], ["c"], value_float=1.0), node("Mul", "x c", "e")]
OWN = helper.make_opsetid("", OPSET)


def of_a_function(*nodes: onnx.NodeProto, name: str = "F") -> onnx.ModelProto:
    """What a function of the file makes of x where the sum is above a limit."""
    made = chosen([node(name, "x", "t", domain="own")])
    made.opset_import.append(helper.make_opsetid("own", 1))
    made.functions.append(helper.make_function("own", name, ["x"], ["t"], nodes, [OWN]))
    return made


TWO = [node("Relu", "x", "p"), node("Neg", "x", "q")]
CHANGES = {
    "attribute": [chosen([node("LeakyRelu", "x", "t", alpha=alpha)]) for alpha in (0.1, 0.2)],
    "wiring": (chosen([node("Abs", "p", "t")], before=TWO), chosen([node("Abs", "q", "t")], before=TWO)),
    "order of operands": (chosen([node("Sub", "p x", "t")], before=TWO), chosen([node("Sub", "x p", "t")], before=TWO)),
    "literal of another name": [
        chosen(times(name), own=[scalar(name, entry, "float32")]) for name, entry in (("a", 2.0), ("b", 3.0))
    ],
    "function": (of_a_function(*RELU), of_a_function(*NEG)),
    "literal of a function": (of_a_function(*constant(2.0)), of_a_function(*constant(3.0))),
    # of values under one name, which that branch alone reads
    "value": [
        chosen([node("Abs", "p", "t")], before=[node("Mul", "x c", "p")], c=factor) for factor in (2.0, 2.5)
    ],
    "mask": [
        chosen([node("Softmax", "p", "t")], before=[node("Greater", "x zero", "m"), node("Where", "m out zero", "p")],
               zero=0.0, out=entry)
        for entry in (-np.inf, 0.0)
    ],
    "beside a mask": [  # of -1e9 where x is above zero
        chosen([node("Softmax", "p", "t")], zero=0.0, out=-1e9, c=factor, before=[
            node("Mul", "x c", "n"), node("Greater", "x zero", "m"), node("Where", "m out n", "p")])
        for factor in (2.0, 3.0)
    ],
    "text": [  # which the branch reads as numbers again
        chosen([node("Cast", "p", "t", to=1)], c=factor,
               before=[node("Mul", "x c", "n"), node("Cast", "n", "p", to=onnx.TensorProto.STRING)])
        for factor in (2.0, 3.0)
    ],
    "shape": [  # the same numbers in other rows, along which the branch goes
        chosen([node("Softmax", "p", "r", axis=-1), node("Reshape", "r back", "t")],
               before=[node("Reshape", "x shape", "p")], shape=integers("shape", *shape), back=integers("back", 2, 8))
        for shape in ((2, 8), (8, 2))
    ],
    "type": [  # whole numbers in two types, which are divided otherwise
        chosen([node("CastLike", "c p", "d"), node("Div", "p d", "q"), node("Cast", "q", "t", to=1)], c=2.0,
               before=[node("Floor", "x", "f"), node("Cast", "f", "p", to=code)])
        for code in (FLOAT, INT64)
    ],
    "index": [  # 0 + x * 0 + an index
        chosen([node("Cast", "p", "t", to=1)], zero=0.0, at=entry, before=[
            node("Mul", "x zero", "n"), node("Cast", "n", "i", to=INT64), node("Add", "i at", "p")])
        for entry in (5, 6)
    ],
    "sequence": [  # which has no numbers of its own
        chosen([node("SequenceAt", "all zero", "t")], before=[*TWO, node("SequenceConstruct", first, "all")], zero=0)
        for first in "pq"
    ],
    "no branch any more": (chosen(RELU), model([node("Identity", "x", "y")], X, Y)),
}  # fmt: skip


@pytest.mark.parametrize("protos", CHANGES.values(), ids=CHANGES)
def test_what_makes_branches_differ(protos: Sequence[onnx.ModelProto], tmp_path: Path) -> None:
    for sides in (protos, protos[::-1]):
        found = compared(tmp_path, *sides)
        assert (found.outcome, found.reason) == ("unknown", UNKNOWN)


def test_the_name_of_a_function_makes_no_difference(tmp_path: Path) -> None:
    pair = (of_a_function(*constant(2.0), name=name) for name in ("F", "G"))
    assert compared(tmp_path, *pair).outcome == "within"


def test_a_literal_whose_name_the_other_branch_has_too(tmp_path: Path) -> None:
    """The names of stored tensors tell them apart where each has one of its own."""
    pair = (chosen(constant(entry), ELSE) for entry in (2.0, 3.0))
    assert compared(tmp_path, *pair, kind="lossy", bounds={"sqnr": 30}).reason == UNKNOWN


def renamed(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same under other names of all results and weights."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    names = {name: f"{name}_2" for name in ("p", "q", "s", "b", "t", "e", "r", "a", "limit")}
    holders = [made.graph]
    for holder in holders:
        holders += [attribute.g for each in holder.node for attribute in each.attribute if attribute.HasField("g")]
        for each in holder.node:
            each.input[:] = [names.get(name, name) for name in each.input]
            each.output[:] = [names.get(name, name) for name in each.output]
        for tensor in (*holder.initializer, *holder.output):
            tensor.name = names.get(tensor.name, tensor.name)
    return made


def test_names_make_no_difference(tmp_path: Path) -> None:
    """What stands before an untouched branch does: that Neg(Neg(x)) is x, no list of operations says."""
    proto = chosen([node("Abs", "p", "r"), node("Mul", "r a", "t")], before=TWO, own=[scalar("a", 2.0, "float32")])
    found = compared(tmp_path, proto, renamed(proto))
    assert found.outcome == "within"
    kept, negated = [node("Identity", "x", "p")], [node("Neg", "x", "n"), node("Neg", "n", "p")]
    pair = (chosen([node("Relu", "p", "t")], [node("Identity", "p", "e")], before=each) for each in (kept, negated))
    assert compared(tmp_path, *pair).reason == UNKNOWN


def test_a_name_that_another_value_has_is_no_wiring(tmp_path: Path) -> None:
    """The branch that ran reads r both times: under the name p once it is -p."""
    then, other = [node("Abs", "p", "t")], [node("Identity", "r", "e")]
    plain = [node("Add", "x one", "p"), node("Neg", "p", "r")]
    taken = [node("Sub", "minus x", "p"), node("Identity", "p", "r")]
    first, second = (chosen(then, other, before=before, one=1.0, minus=-1.0) for before in (plain, taken))
    assert compared(tmp_path, first, second).reason == UNKNOWN


def test_a_branch_in_place_of_the_other_is_the_same(tmp_path: Path) -> None:
    """If not b: e else t."""
    other = chosen(RELU)
    turned = onnx.ModelProto()
    turned.CopyFrom(other)
    choice = turned.graph.node[2]
    for attribute in choice.attribute:
        attribute.name = {"then_branch": "else_branch", "else_branch": "then_branch"}[attribute.name]
    choice.input[0] = "c"
    turned.graph.node.insert(2, node("Not", "b", "c"))
    assert compared(tmp_path, other, turned).outcome == "within"


def by_shape(then: Nodes) -> onnx.ModelProto:
    """If x has 3 rows, which it has not."""
    branches = {"then_branch": graph(then, [], [value("t", 2, 8)]), "else_branch": graph(KEPT, [], [value("e", 2, 8)])}
    asked = [node("Shape", "x", "n", end=1), node("Equal", "n three", "b"), node("If", "b", "y", **branches)]
    return model(asked, X, Y, [scalar("three", 3, "int64")])


def test_what_shapes_decide_is_no_matter_of_values(tmp_path: Path) -> None:
    assert compared(tmp_path, by_shape(RELU), by_shape(NEG)).outcome == "within"


def by_count(then: Nodes) -> onnx.ModelProto:
    """If sixteen elements of x are below -1e9: a size that values decide."""
    branches = {"then_branch": graph(then, [], [value("t", 2, 8)]), "else_branch": graph(KEPT, [], [value("e", 2, 8)])}
    found = [node("Less", "x least", "l"), node("NonZero", "l", "places"), node("Shape", "places", "n", start=1)]
    asked = [*found, node("Equal", "n sixteen", "b"), node("If", "b", "y", **branches)]
    return model(asked, X, Y, [scalar("least", -1e9, "float32"), scalar("sixteen", 16, "int64")])


def test_a_size_that_values_decide_decides_a_branch(tmp_path: Path) -> None:
    assert compared(tmp_path, by_count(RELU), by_count(NEG)).reason == UNKNOWN
    assert compared(tmp_path, by_count(RELU), by_count(RELU)).outcome == "within"


def counted(operator: str, limit: float = NEVER, *, by: str = "condition", entry: float = 1.0) -> onnx.ModelProto:
    """A Loop that runs while sum(x) > limit, or as often as that is true: once at the most."""
    steps = [node(operator, "v", "r"), node("Mul", "r w", "v2")]
    body = graph(
        [node("Not", "c", "c2"), *steps],
        [value("k", code=INT64), value("c", code=BOOL), value("v", 2, 8)],
        [value("c2", code=BOOL), value("v2", 2, 8)],
        [numpy_helper.from_array(np.full((8,), entry, np.float32), "w")],
    )
    given = {"condition": "- b x", "both": "most b x", "count": "n - x"}[by]
    loop = node("Loop", given, "y", body=body)
    weights = [scalar("limit", limit, "float32"), scalar("most", 3, "int64")]
    return model([*CONDITION, node("Cast", "b", "n", to=INT64), loop], X, Y, weights)


@pytest.mark.parametrize("by", ["condition", "both", "count"])
def test_a_loop_that_no_run_enters_is_such_a_branch(by: str, tmp_path: Path) -> None:
    found = compared(tmp_path, counted("Relu", by=by), counted("Neg", by=by))
    said = "no run took body of Loop 'y', which is not the same in both models: give 'inputs' that take it"
    assert (found.outcome, found.reason) == ("unknown", said)
    assert compared(tmp_path, counted("Relu", by=by), counted("Relu", by=by)).outcome == "within"
    weights = compared(tmp_path, *(counted("Relu", by=by, entry=entry) for entry in (1.0, 2.0)))
    assert (weights.outcome, "stored tensors that no output shows differ: 'w'" in weights.reason) == ("unknown", True)


@pytest.mark.parametrize("by", ["condition", "both", "count"])
def test_a_loop_that_runs_enter_is_judged_by_its_outputs(by: str, tmp_path: Path) -> None:
    assert compared(tmp_path, *(counted(each, SOMETIMES, by=by) for each in ("Relu", "Neg"))).outcome == "over"
    pair = (counted("Neg", SOMETIMES, by=by), counted("Neg", SOMETIMES, by=by))
    assert compared(tmp_path, *pair).notes == ()


def inner(limit: float, then: Nodes, before: Nodes = [], own: Sequence[onnx.TensorProto] = ()) -> Nodes:  # noqa: B006
    """An If whose then_branch never runs, to stand in a body; own is stored in that branch."""
    branches = {"then_branch": graph(then, [], [value("t", 2, 8)], own),
                "else_branch": graph(KEPT, [], [value("e", 2, 8)])}  # fmt: skip
    return [
        *before,
        node("ReduceSum", "x", "s2", keepdims=0),
        helper.make_node("Constant", [], ["l2"], value_float=limit),
        node("Greater", "s2 l2", "b2"),
        node("If", "b2", "i", **branches),
    ]


def in_a_branch(then: Nodes, *around: Any) -> onnx.ModelProto:
    return chosen([*inner(NEVER, then, *around), node("Identity", "i", "t")], limit=-NEVER)


def in_a_loop(then: Nodes, *around: Any) -> onnx.ModelProto:
    body = graph(
        [node("Identity", "c", "c2"), *inner(NEVER, then, *around), node("Add", "v i", "v2")],
        [value("k", code=INT64), value("c", code=BOOL), value("v", 2, 8)],
        [value("c2", code=BOOL), value("v2", 2, 8)],
    )
    return model([node("Loop", "times - x", "y", body=body)], X, Y, [scalar("times", 2, "int64")])


def loop_in_a_loop(then: Nodes) -> onnx.ModelProto:
    """The inner one runs where a state says so."""
    goes = node("Identity", "d", "d2")
    within = graph(
        [goes, *then, node("Add", "u t", "u2")],
        [value("j", code=INT64), value("d", code=BOOL), value("u", 2, 8)],
        [value("d2", code=BOOL), value("u2", 2, 8)],
    )
    body = graph(
        [node("Identity", "c", "c2"), node("ReduceSum", "v", "s2", keepdims=0), node("Greater", "s2 limit", "b2"),
         node("Cast", "b2", "n2", to=INT64), node("Loop", "n2 - v", "i", body=within)],
        [value("k", code=INT64), value("c", code=BOOL), value("v", 2, 8)],
        [value("c2", code=BOOL), value("i", 2, 8)],
    )  # fmt: skip
    weights = [scalar("times", 2, "int64"), scalar("limit", NEVER, "float32")]
    return model([node("Loop", "times - x", "y", body=body)], X, Y, weights)


def test_of_a_loop_in_a_loop_a_note_says_that_nobody_saw_it(tmp_path: Path) -> None:
    found = compared(tmp_path, loop_in_a_loop(RELU), loop_in_a_loop(NEG))
    said = "it is not seen whether a run took body of Loop 'i', which is not the same in both models"
    assert (found.outcome, found.notes) == ("within", (said,))
    assert compared(tmp_path, loop_in_a_loop(RELU), loop_in_a_loop(RELU)).notes == ()


def in_a_function(then: Nodes, *around: Any) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 18)]
    nodes = [*inner(NEVER, then, *around), node("Identity", "i", "z")]
    function = helper.make_function("own", "F", ["x"], ["z"], nodes, opsets)
    call = node("F", "x", "y", domain="own")
    return model([call], X, Y, opset=18, domains=["own"], functions=[function])


@pytest.mark.parametrize("made", [in_a_branch, in_a_loop, in_a_function], ids=lambda made: made.__name__)
def test_of_branches_in_bodies_a_note_says_that_nobody_saw_them(made: object, tmp_path: Path) -> None:
    found = compared(tmp_path, made(RELU), made(NEG))  # type: ignore[operator]
    said = "it is not seen whether a run took then_branch of If 'i', which is not the same in both models"
    assert (found.outcome, found.notes) == ("within", (said,))
    assert compared(tmp_path, made(RELU), made(RELU)).notes == ()  # type: ignore[operator]


@pytest.mark.parametrize("made", [in_a_branch, in_a_loop, in_a_function], ids=lambda made: made.__name__)
@pytest.mark.parametrize("what", ["a value", "a literal", "a weight"])
def test_of_what_such_branches_read_too(what: str, made: Callable[..., onnx.ModelProto], tmp_path: Path) -> None:
    """What stands before one in its body, and what it stores: its branch that never runs reads it alone."""
    literals = ([helper.make_node("Constant", [], ["w"], value_float=each)] for each in (2.0, 3.0))
    first, second = {
        "a value": [made([node("Abs", "p", "t")], [node(each, "x", "p")]) for each in ("Sin", "Cos")],
        "a literal": [made(times("w"), each) for each in literals],
        "a weight": [made(times("w"), [], [scalar("w", each, "float32")]) for each in (2.0, 3.0)],
    }[what]
    said = "it is not seen whether a run took then_branch of If 'i', which is not the same in both models"
    found = compared(tmp_path, first, second)
    assert (found.outcome, found.notes) == ("within", (said,))
    assert compared(tmp_path, first, first).notes == ()


def test_a_result_in_a_function_is_none_of_its_name_in_the_graph(tmp_path: Path) -> None:
    """Both models have p in the graph, on its way into a branch; the function has its own."""

    def called(operator: str) -> onnx.ModelProto:
        function = in_a_function([node("Abs", "p", "t")], [node(operator, "x", "p")])
        made = chosen([node("Abs", "p", "t")], before=[node("F", "x", "p", domain="own")])
        made.functions.extend(function.functions)
        made.opset_import.append(helper.make_opsetid("own", 1))
        made.opset_import[0].version = 18
        return made

    said = "it is not seen whether a run took then_branch of If 'i', which is not the same in both models"
    assert said in compared(tmp_path, called("Sin"), called("Cos")).notes
    assert compared(tmp_path, called("Sin"), called("Sin")).notes == ()


def test_an_inner_branch_of_one_that_never_ran_is_part_of_it(tmp_path: Path) -> None:
    pair = (chosen([*inner(NEVER, each), node("Identity", "i", "t")]) for each in (RELU, NEG))
    assert compared(tmp_path, *pair).reason == UNKNOWN


def test_weights_of_an_untouched_branch_are_held_as_they_are_stored(tmp_path: Path) -> None:
    """One that both have under one name, outside of the branch or inside: as tensors that no output shows."""
    weights = [numpy_helper.from_array(np.full((8, 8), entry, np.float32), "w") for entry in (1.0, 2.0)]
    nodes = [node("MatMul", "x w", "t")]
    for first, second in ([chosen(nodes, w=each) for each in weights], [chosen(nodes, own=[each]) for each in weights]):
        found = compared(tmp_path, first, second)
        assert (found.outcome, "stored tensors that no output shows differ: 'w'" in found.reason) == ("unknown", True)
        assert compared(tmp_path, first, first).outcome == "within"
