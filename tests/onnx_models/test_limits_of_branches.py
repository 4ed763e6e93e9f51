"""Limits on parts of ONNX models, and minima, where data decide which branch of an If runs.

One product of 4 x 64 by 64 x 64 in big (16,384 MACs), or two by way of 16 values and 31 sines in small (8,192 MACs).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from pytest_modelbudget.metrics.measurement import Measurement, part_of
from tests.builders.onnx_graphs import graph, measured, model, stored, value
from tests.builders.project import Project

BIG = 4 * 64 * 64
SMALL = 2 * 4 * 64 * 16
SINES = 31
ROW = 4 * 64 * 4  # bytes of 4 x 64 values
NARROW = 4 * 16 * 4
WEIGHT = 64 * 16 * 4
MOVED = (ROW + WEIGHT + NARROW) * 2 + SINES * 2 * ROW


def step(operator: str, inputs: str, output: str, scope: str) -> onnx.NodeProto:
    """A node in a scope, which its name says."""
    return helper.make_node(operator, inputs.split(), [output], name=f"/{scope}/{output}")


def branch(*nodes: onnx.NodeProto) -> onnx.GraphProto:
    """A branch that gives 4 x 64 values."""
    return graph(nodes, [], [value(nodes[-1].output[0], 4, 64)])


def chosen(name: str = "y", x: str = "x") -> onnx.NodeProto:
    """The If between both."""
    product = branch(step("MatMul", f"{x} w", f"{name}t", "big"))
    first = [step("MatMul", f"{x} v", f"{name}n", "small"), step("MatMul", f"{name}n u", f"{name}s0", "small")]
    sines = [step("Sin", f"{name}s{at}", f"{name}s{at + 1}", "small") for at in range(SINES)]
    other = branch(*first, *sines)
    return helper.make_node("If", ["flag"], [name], name=f"/{name}", then_branch=product, else_branch=other)


def net(count: int = 1) -> onnx.ModelProto:
    """A sine in head, and so many Ifs one behind the other."""
    ifs = [chosen(f"y{at}", f"y{at - 1}" if at else "z") for at in range(count)]
    inputs = [value("x", 4, 64), value("flag", code=TensorProto.BOOL)]
    weights = [stored("w", 64, 64), stored("v", 64, 16), stored("u", 16, 64)]
    return model([step("Sin", "x", "z", "head"), *ifs], inputs, [value(f"y{count - 1}", 4, 64)], weights, opset=17)


def part(numbers: Mapping[str, Measurement], key: str, glob: str) -> tuple[int | object, bool, list[str]]:
    """What is counted under a glob, whether that is all, and what is said of the rest."""
    found = part_of(numbers[key], glob)
    return found.value, found.complete, [op.why for op in found.unmeasured]


@pytest.mark.parametrize(
    ("key", "counted", "other"),
    [
        ("macs", 0, f"{SMALL / 1000:.2f} kMAC"),
        ("flops", 0, f"{(2 * SMALL + SINES * 4 * 64) / 1000:.1f} kFLOP"),
        ("total_activation", 0, f"{(NARROW + (SINES + 1) * ROW) / 1000:.1f} kB"),
        ("bandwidth", 0, f"{MOVED / 1000:.1f} kB"),
    ],
)
def test_a_part_that_only_the_other_branch_has(key: str, counted: int, other: str, tmp_path: Path) -> None:
    """None of it is counted, and its amount is said; a part before the fork has all that it had."""
    numbers = measured(net(), tmp_path)
    assert part(numbers, key, "small") == (counted, False, [f"{other} where data take the else_branch of If '/y0'"])
    assert part(numbers, key, "head")[1]
    assert part(numbers, key, "big")[1]  # where the other branch has nothing


def test_the_whole_has_most_multiply_accumulates(tmp_path: Path) -> None:
    """16,384 MACs are the most of both, and all of them; 8,192 the least."""
    macs = measured(net(), tmp_path)["macs"]
    assert (macs.value, macs.complete, macs.least) == (BIG, True, SMALL)


def test_two_forks_may_both_take_the_other_branch(tmp_path: Path) -> None:
    """Most in small where both do, and that is said; least of all."""
    macs = measured(net(2), tmp_path)["macs"]
    assert (macs.value, macs.least) == (2 * BIG, 2 * SMALL)
    (why,) = (op.why for op in part_of(macs, "small").unmeasured)
    assert (
        why == f"{2 * SMALL / 1000:.1f} kMAC where data take the else_branch of If '/y0', the else_branch of If '/y1'"
    )


def test_of_many_paths_the_parts_that_no_branch_touches_are_known(tmp_path: Path) -> None:
    """Five forks have 32 paths, of which none is tried: what big and small have of any formula is not known.

    The sine before them writes what the first one reads, and what is moved there may hang on the branch.
    """
    proto = net(5)
    proto.graph.node.insert(0, step("Sin", "x", "z0", "stem"))
    proto.graph.node[1].input[0] = "z0"
    numbers = measured(proto, tmp_path)
    assert {glob: part(numbers, "macs", glob)[1] for glob in ("stem", "big", "small")} == {
        "stem": True,
        "big": False,
        "small": False,
    }
    assert part(numbers, "flops", "stem") == (4 * 64, True, [])
    assert not part(numbers, "bandwidth", "stem")[1]


def test_what_another_path_lacks_is_said_beside_what_the_counted_one_lacks(tmp_path: Path) -> None:
    """An operator in each branch that nobody knows: who accepts the one that is counted has not seen the other."""

    def unknown(operator: str, scope: str) -> onnx.NodeProto:
        return helper.make_node(operator, ["x"], [operator], name=f"/{scope}/{operator}", domain="my")

    then = branch(unknown("A", "big"), step("MatMul", "A w", "t", "big"))
    other = branch(unknown("B", "small"), step("Add", "B x", "e", "small"))
    for each, inner in ((then, "A"), (other, "B")):
        each.value_info.append(value(inner, 4, 64))
    made = helper.make_node("If", ["flag"], ["y"], name="/y", then_branch=then, else_branch=other)
    inputs = [value("x", 4, 64), value("flag", code=TensorProto.BOOL)]
    proto = model([made], inputs, [value("y", 4, 64)], [stored("w", 64, 64)], opset=17, domains=["my"])
    macs = measured(proto, tmp_path)["macs"]
    assert macs.value == BIG
    assert [op.op for op in macs.unmeasured] == ["my::A", "onnx::If"]
    assert [op.op for op in part_of(macs, "small").unmeasured] == ["onnx::If"]


BUDGET = """
model_budget: 1
models:
  net:
    onnx: net.onnx
    limits: {{macs: {whole}}}
    scopes: {{{glob}: {{macs: {part}}}}}
"""


def checks(
    project: Project, tmp_path: Path, *args: str, whole: str, glob: str, part: str
) -> dict[str, dict[str, object]]:
    """The checks of a run over that budget, by name."""
    path = project.write("budgets/net.yaml", BUDGET.format(whole=whole, glob=glob, part=part))
    path.with_name("net.onnx").write_bytes(net().SerializeToString())
    project.run("budgets/net.yaml", f"--model-budget-report=json:{tmp_path / 'report.json'}", *args)
    (found,) = json.loads((tmp_path / "report.json").read_text())["models"]
    return {check["id"].rpartition("::")[2]: check for check in found["checks"]}


def test_a_user_is_told_the_branch(project: Project, tmp_path: Path) -> None:
    """The minimum with the least that it was held against, and the part with how much the other branch has."""
    found = checks(project, tmp_path, whole="{min: 10 k, max: 20 k}", glob="small", part="9 k")
    short = found["macs"]
    assert (short["outcome"], short["actual"], short["least"], short["complete"]) == ("over", BIG, SMALL, True)
    assert short["reason"] == ("macs 8.192 kMAC < 10.00 kMAC (-18.1%) where data take the else_branch of If '/y0'")
    assert "update" not in short  # none writes what was not counted
    kept = found["macs@small"]
    assert (kept["outcome"], kept["actual"], kept["most"], kept["complete"]) == ("within", 0, SMALL, False)
    assert kept["reason"] == (
        "macs of small 8.192 kMAC < 9.000 kMAC (9.0% left) where data take the else_branch of If '/y0'"
    )


@pytest.mark.parametrize(("most", "outcome"), [(SMALL, "within"), (SMALL - 1, "over")])
def test_a_part_is_held_against_the_branch_with_most_of_it(
    most: int, outcome: str, project: Project, tmp_path: Path
) -> None:
    """The exit code follows; nothing of it is counted."""
    found = checks(project, tmp_path, whole=str(BIG), glob="small", part=str(most))
    assert {name: check["outcome"] for name, check in found.items()} == {"macs": "within", "macs@small": outcome}


def test_what_is_kept_on_both_paths_is_within(project: Project, tmp_path: Path) -> None:
    """Exactly the least, and exactly what is counted of a part with most there."""
    found = checks(project, tmp_path, whole=f"{{min: {SMALL}, max: {BIG}}}", glob="big", part=str(BIG))
    assert {name: check["outcome"] for name, check in found.items()} == {"macs": "within", "macs@big": "within"}


def test_create_locks_no_zero_of_a_part(project: Project, tmp_path: Path) -> None:
    """The whole is locked; a part that another branch has more of is not, and neither is a minimum made up."""
    create = "--model-budget-update=create"
    found = checks(project, tmp_path, create, whole="auto", glob="small", part="auto")
    assert {name: check["outcome"] for name, check in found.items()} == {"macs": "within", "macs@small": "unknown"}
    locked = json.loads((project.path / "budgets/net.lock.json").read_text())["models"]["net"]
    assert {name: entry["value"] for name, entry in locked.items()} == {"macs": BIG}
    found = checks(project, tmp_path, create, whole="{min: auto}", glob="big", part=str(BIG))
    assert found["macs"]["outcome"] == "unknown"
    assert str(found["macs"]["reason"]).endswith(f"data may take branches with less: write {SMALL:,} MAC")
