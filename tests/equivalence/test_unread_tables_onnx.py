"""Rows, leaves and branches of ONNX models that no drawn input reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pytest_modelbudget import check_equivalence
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.formats.model import Coverage, Watch
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.onnx_models.model import OnnxFile, OnnxModel
from pytest_modelbudget.ops.table import builtin_ops

ROWS = 900
LOSSY: dict[str, Any] = {"kind": "lossy", "bounds": {"sqnr": 20}}
RNG = np.random.default_rng(0)
WORDS = RNG.standard_normal((ROWS, 8)).astype(np.float32)
PLACES = RNG.standard_normal((64, 8)).astype(np.float32)
CODES = RNG.integers(-100, 100, (ROWS, 8)).astype(np.int8)
LEVELS = RNG.integers(0, 16, (ROWS, 16)).astype(np.uint8)


def saved(path: Path, graph: str, **stored: Any) -> Path:
    """A model of this text, with these stored tensors."""
    head = '<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 3, "com.microsoft": 1]> g '
    made = onnx.parser.parse_model(head + graph)
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items())
    onnx.save(made, path)
    return path


IDS = "(int64[1, 6] ids) => (float[1, 6, 8] y)"
INT64 = np.int64
GRAPHS: dict[str, tuple[str, dict[str, Any]]] = {
    "Gather": (IDS + "{ y = Gather(e, ids) }", {"e": WORDS}),
    "Gather along another axis": (IDS + "{ t = Gather<axis=1>(e, ids) y = Transpose<perm=[1, 2, 0]>(t) }",
                                  {"e": WORDS.T.copy()}),
    "quantised": (IDS + "{ t = DequantizeLinear(e, s) y = Gather(t, ids) }", {"e": CODES, "s": np.float32(0.1)}),
    "quantised behind": (IDS + "{ t = Gather(e, ids) y = DequantizeLinear(t, s) }", {"e": CODES, "s": np.float32(0.1)}),
    "scaled": (IDS + "{ t = Mul(e, s) y = Gather(t, ids) }", {"e": WORDS, "s": np.float32(2)}),
}  # fmt: skip


def compared(
    tmp_path: Path, graph: str, stored: dict[str, Any], change: Callable[[Any], None], **claim: Any
) -> Equivalence:
    other = {name: np.array(array) for name, array in stored.items()}
    change(other)
    first, second = saved(tmp_path / "a.onnx", graph, **stored), saved(tmp_path / "b.onnx", graph, **other)
    return check_equivalence(first, second, **claim)


def last_row(stored: dict[str, Any]) -> None:
    axis = stored["e"].shape.index(ROWS)
    np.moveaxis(stored["e"], axis, 0)[-1] += 50


@pytest.mark.parametrize("claim", [{}, LOSSY], ids=["exact", "lossy"])
@pytest.mark.parametrize(("graph", "stored"), GRAPHS.values(), ids=GRAPHS)
def test_a_wrong_row_that_no_index_read_is_over(
    tmp_path: Path, graph: str, stored: dict[str, Any], claim: dict[str, Any]
) -> None:
    """One row of 900: three seeds of six indices read 18 at most."""
    found = compared(tmp_path, graph, stored, last_row, **claim)
    assert found.outcome == "over"
    assert found.reason.startswith("1 row of 'e' that no run has read differs: "), found.reason


@pytest.mark.parametrize(("graph", "stored"), GRAPHS.values(), ids=GRAPHS)
def test_equal_tables_are_within_in_silence(tmp_path: Path, graph: str, stored: dict[str, Any]) -> None:
    """Unread rows that are the same say nothing."""
    found = compared(tmp_path, graph, stored, lambda same: None)
    assert (found.outcome, [note for note in found.notes if "rows" in note]) == ("within", [])


def cut(stored: dict[str, Any], rows: int) -> None:
    axis = stored["e"].shape.index(ROWS)
    stored["e"] = np.take(stored["e"], range(rows), axis)


@pytest.mark.parametrize(("claim", "outcome"), [({}, "unknown"), (LOSSY, "within")], ids=["exact", "lossy"])
@pytest.mark.parametrize("name", ["Gather", "Gather along another axis", "quantised", "scaled"])
def test_a_table_without_its_last_row_is_not_green(
    tmp_path: Path, name: str, claim: dict[str, Any], outcome: str
) -> None:
    """The last of 900 rows, of which three seeds of six indices read 18 at most, is not there: an index of it ends."""
    graph, stored = GRAPHS[name]
    found = compared(tmp_path, graph, stored, lambda other: cut(other, ROWS - 1), **claim)
    said = "rows that no run has read are not in the other model: 899 of 900 rows of 'e' are left"
    assert found.outcome == outcome
    assert said in (found.reason if outcome == "unknown" else " ".join(found.notes))


def test_a_table_with_more_rows_is_held_to_those_that_both_have(tmp_path: Path) -> None:
    """A vocabulary that is filled up to a round number is the same, unless a row of before differs."""
    graph, stored = GRAPHS["Gather"]

    def filled(other: dict[str, Any]) -> None:
        other["e"] = np.pad(other["e"], ((0, 60), (0, 0)))

    def filled_wrongly(other: dict[str, Any]) -> None:
        last_row(other)
        filled(other)

    found = compared(tmp_path, graph, stored, filled)
    assert (found.outcome, [note for note in found.notes if "rows" in note]) == ("within", [])
    found = compared(tmp_path, graph, stored, filled_wrongly)
    assert (found.outcome, found.reason[:47]) == ("over", "1 row of 'e' that no run has read differs: 18 of"[:47])


EMBED = "(int32[1, 6] ids, int32[1, 6] kinds) => (float[1, 6, 8] y) "
EMBED += "{ y, m = com.microsoft.EmbedLayerNormalization(ids, kinds, e, places, segments, g, b) }"


def test_tables_of_a_fused_embedding(tmp_path: Path) -> None:
    """Words, places and segments of one operator are three tables: two rows, six and one are read."""
    stored = {"e": WORDS, "places": PLACES, "segments": PLACES[:40], "g": np.ones(8, "f4"), "b": np.zeros(8, "f4")}
    saved(tmp_path / "a.onnx", EMBED, **stored)
    model = OnnxModel(OnnxFile(ModelSource("onnx", "a.onnx", base=tmp_path)), builtin_ops())
    reads = Coverage()
    model.run({"ids": np.array([[3, 3, 3, 7, 7, 7]], "i4"), "kinds": np.full((1, 6), 5, "i4")}, Watch(coverage=reads))
    read = {name: list(np.flatnonzero(mask.any(1))) for name, mask in reads.masks.items()}
    assert read == {"e": [3, 7], "places": [0, 1, 2, 3, 4, 5], "segments": [5]}


BRANCHES = """(float[2, 4] x) => (float[2, 4] y) { s = ReduceSum<keepdims=0>(x) k = Greater(s, far) y = If(k) <
  then_branch = t () => (float[2, 4] u) { u = MatMul(x, a) },
  else_branch = f () => (float[2, 4] v) { v = MatMul(x, b) }> }"""


@pytest.mark.parametrize(
    ("claim", "outcome"), [pytest.param({}, "unknown", id="exact"), pytest.param(LOSSY, "within", id="lossy")]
)
def test_a_branch_that_no_input_took_is_said(tmp_path: Path, claim: dict[str, Any], outcome: str) -> None:
    """Nobody knows whether an input can take it."""
    stored = {"a": WORDS[:4, :4], "b": WORDS[4:8, :4], "far": np.float32(1e8)}
    found = compared(tmp_path, BRANCHES, stored, lambda other: other["a"].__setitem__(0, 0), **claim)
    assert found.outcome == outcome
    assert "no output shows differ: 'a'" in " ".join((found.reason, *found.notes))
    assert compared(tmp_path, BRANCHES, stored, lambda same: None, **claim).outcome == "within"


@pytest.mark.parametrize(
    ("claim", "outcome"), [pytest.param({}, "unknown", id="exact"), pytest.param(LOSSY, "within", id="lossy")]
)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
@pytest.mark.parametrize("way", ["straight", "by way of others"])
def test_a_threshold_of_a_branch_is_looked_at(
    tmp_path: Path, way: str, shape: tuple[int, ...], claim: dict[str, Any], outcome: str
) -> None:
    """1e9 in place of 1e8: no drawn input tells them apart, and somebody's may."""
    text = (
        BRANCHES
        if way == "straight"
        else BRANCHES.replace("Greater(s, far)", "Greater(s, z)").replace(
            "s = ReduceSum", "c = Abs(far) z = Neg(c) s = ReduceSum"
        )
    )
    stored = {"a": WORDS[:4, :4], "b": WORDS[4:8, :4], "far": np.full(shape, 1e8, np.float32)}
    found = compared(tmp_path, text, stored, lambda other: other["far"].fill(1e9), **claim)
    assert found.outcome == outcome
    assert "no output shows differ: 'far'" in " ".join((found.reason, *found.notes))
    same = compared(tmp_path, text, stored, lambda same: None, **claim)
    assert (same.outcome, same.notes) == ("within", ())


def test_a_threshold_that_outputs_show_is_compared_in_them(tmp_path: Path) -> None:
    """What is added to the output as well is right where that is, and one that turns the branch is over."""
    stored = {"a": WORDS[:4, :4], "b": WORDS[4:8, :4], "far": np.float32(1e8)}
    assert compared(tmp_path, BRANCHES, stored, lambda other: other["far"].fill(-1e8)).outcome == "over"
    text = BRANCHES.replace("y = If", "w = If").replace("}> }", "}> y = Add(w, far) }")
    found = compared(tmp_path, text, stored, lambda other: other["far"].fill(1e9))
    assert (found.outcome, "float64 outputs differ" in found.reason) == ("over", True)
    assert not any("far" in note for note in compared(tmp_path, text, stored, lambda same: None).notes)


def tree(path: Path, cut: float = 0.0, leaf: float = 9.0, first: str = "N") -> Path:
    """x₀ ≤ cut: 1; x₀ ≤ 1e8: 2; else a leaf that no drawn input reaches."""
    return saved(
        path,
        f"(float[{first}, 4] x) => (float[{first}, 1] y) {{ y = ai.onnx.ml.TreeEnsembleRegressor<n_targets=1, "
        "nodes_treeids=[0, 0, 0, 0, 0], nodes_nodeids=[0, 1, 2, 3, 4], nodes_featureids=[0, 0, 0, 0, 0], "
        'nodes_modes=["BRANCH_LEQ", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"], '
        f"nodes_values=[{cut}, 0.0, 100000000.0, 0.0, 0.0], nodes_truenodeids=[1, 0, 3, 0, 0], "
        "nodes_falsenodeids=[2, 0, 4, 0, 0], target_treeids=[0, 0, 0], target_nodeids=[1, 3, 4], "
        f"target_ids=[0, 0, 0], target_weights=[1.0, 2.0, {leaf}]>(x) }}",
    )


@pytest.mark.parametrize("first", ["N", "1", "7"])
def test_a_wrong_threshold_is_found(tmp_path: Path, first: str) -> None:
    """Two of a hundred normal rows lie between 0 and 0.05: twelve rows show none of them, 768 do."""
    good, bad = tree(tmp_path / "a.onnx", first=first), tree(tmp_path / "b.onnx", cut=0.05, first=first)
    found = check_equivalence(good, bad)
    assert found.outcome == "over"
    assert "float64 outputs differ" in found.reason
    assert any("constant in steps: " in note for note in found.notes)
    assert check_equivalence(good, good).outcome == "within"


def test_a_threshold_that_no_row_shows_is_unknown(tmp_path: Path) -> None:
    """A threshold of 1e-7 in place of 0 lies between no two rows: nobody can say that it is the same."""
    found = check_equivalence(tree(tmp_path / "a.onnx"), tree(tmp_path / "b.onnx", cut=1e-7))
    assert found.outcome == "unknown"
    assert "'y.nodes_values'" in found.reason


STUMP = """(float[N, 4] x) => (float[N, 1] y) {{ y = ai.onnx.ml.TreeEnsembleRegressor<n_targets=1,
  nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0],
  nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"], nodes_values=[{cut}, 0.0, 0.0], nodes_truenodeids=[1, 0, 0],
  nodes_falsenodeids=[2, 0, 0], target_treeids=[0, 0], target_nodeids=[1, 2], target_ids=[0, 0],
  target_weights=[1.0, 2.0]>(x) }}"""


def test_a_single_threshold_is_looked_at_too(tmp_path: Path) -> None:
    """A tree of one branch stores one threshold: 1e-7 in place of 0 lies between no two rows."""
    good, bad = (saved(tmp_path / f"{cut}.onnx", STUMP.format(cut=cut)) for cut in (0.0, 1e-7))
    found = check_equivalence(good, bad)
    assert (found.outcome, "'y.nodes_values'" in found.reason) == ("unknown", True)
    assert check_equivalence(good, good).outcome == "within"


@pytest.mark.parametrize(
    ("word", "by", "named"),
    [("BRANCH_LEQ", "BRANCH_LT", "'y.nodes_modes'"), ("BRANCH_LEQ", "BRANCH_GTE", ""),
     ("nodes_featureids=[0", "nodes_featureids=[3", "")],
)  # fmt: skip
def test_another_comparison_at_a_branch_is_not_green(tmp_path: Path, word: str, by: str, named: str) -> None:
    """x < 0.25 in place of x <= 0.25 is another answer for 0.25 alone, which no drawn row holds."""
    text = STUMP.format(cut=0.25)
    assert word in text
    good, bad = saved(tmp_path / "a.onnx", text), saved(tmp_path / "b.onnx", text.replace(word, by))
    found = check_equivalence(good, bad)
    assert found.outcome == ("unknown" if named else "over")
    assert named in found.reason
    assert check_equivalence(bad, bad).outcome == "within"


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
def test_a_single_number_of_a_branch_is_looked_at_too(shape: tuple[int, ...], tmp_path: Path) -> None:
    """No input takes the branch that multiplies with it."""
    text = BRANCHES.replace("MatMul", "Mul")
    stored = {"a": np.full(shape, 2, np.float32), "b": np.full(shape, 3, np.float32), "far": np.float32(1e8)}
    found = compared(tmp_path, text, stored, lambda other: other["a"].fill(5))
    assert (found.outcome, "'a'" in found.reason) == ("unknown", True)
    assert compared(tmp_path, text, stored, lambda same: None).outcome == "within"


def test_a_leaf_that_no_row_reached_is_looked_at(tmp_path: Path) -> None:
    """Two of three leaves are reached; the third weighs 8 in place of 9."""
    found = check_equivalence(tree(tmp_path / "a.onnx"), tree(tmp_path / "b.onnx", leaf=8.0))
    assert (found.outcome, "no output shows differ: 'y.target_weights'" in found.reason) == ("unknown", True)


def test_rows_of_a_claim_are_run(tmp_path: Path) -> None:
    """rows: 2 runs twelve rows as before, of which none lies between the thresholds."""
    good, bad = tree(tmp_path / "a.onnx"), tree(tmp_path / "b.onnx", cut=0.05)
    assert check_equivalence(good, bad, rows=2).outcome == "unknown"
    assert check_equivalence(good, bad, rows=4096, families=["normal"]).outcome == "over"


def test_a_model_that_moves_runs_no_more_rows(tmp_path: Path) -> None:
    """A matrix product moves with the last bits of its input."""
    path = saved(tmp_path / "a.onnx", "(float[N, 8] x) => (float[N, 8] y) { y = MatMul(x, w) }", w=WORDS[:8])
    found = check_equivalence(path, path)
    assert (found.outcome, found.notes) == ("within", ())
