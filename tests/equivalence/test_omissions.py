"""What a comparison leaves out stands in one table, and each row has a pair of models that comes to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from pytest_modelbudget import check_equivalence
from pytest_modelbudget.torch_models import rewriting
from tests.builders.mutants import Mutant, off_by_one, right, verified
from tests.builders.omissions import omissions

pytestmark = pytest.mark.needs_torch

Patch = pytest.MonkeyPatch


def written(file: Path, graph: str, **stored: Any) -> Path:
    """An ONNX file of this text, with these stored tensors."""
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g {graph}')
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items())
    onnx.save(made, str(file))
    return file


def draws_integers(folder: Path, patch: Patch) -> None:
    """An input of integers that indexes nothing is 0 and 1, in the one family that it has, and the report says so."""
    file = written(folder / "a.onnx", "(int64[4] x) => (int64[4] y) { y = Add(x, x) }")
    found = check_equivalence(file, file)
    assert found.outcome == "within"
    assert {output.family for output in found.outputs} == {"integers"}
    assert any("0 and 1" in note for note in found.notes)


def overflows(folder: Path, patch: Patch) -> None:
    """Outliers of 100 times 1e37 are beyond float32's 3.4e38: smaller ones are run, and show 1 % all the same."""
    text = "(float[2, 4] x) => (float[2, 4] y) { y = Mul(x, c) }"
    good, bad = (written(folder / f"{c}.onnx", text, c=np.float32(c)) for c in (1e37, 1.01e37))
    found = check_equivalence(good, bad)
    assert found.outcome == "over"
    assert found.notes == ("inputs of scale 1 and 10 (large): the original overflows on larger ones",)
    assert check_equivalence(good, good).notes == found.notes


def is_too_large_for_256_rows(folder: Path, patch: Patch) -> None:
    """A label of 2^18 numbers: 2^20 / 2^18 = 4 calls in place of 256."""
    text = f"(float[1, {2**18}] x) => (int64[1] y) {{ y = ArgMax<axis=1, keepdims=0>(x) }}"
    file = written(folder / "a.onnx", text)
    found = check_equivalence(file, file)
    assert found.outcome == "within"
    assert found.notes == ("outputs are constant in steps: 4 calls a family; 'rows' sets more",)


def mixes_its_rows(folder: Path, patch: Patch) -> None:
    """A maximum over the batch is not what a row gives alone: the model is run row by row, and a changed one found."""
    mixes = "(float[4, 4] x) => (float[4, 4] y) {{ s = ReduceMax<axes=[0], keepdims=1>(x) t = {}(s, s) y = Add(x, t) }}"
    good, bad = (written(folder / f"{operator}.onnx", mixes.format(operator)) for operator in ("Add", "Mul"))
    assert check_equivalence(good, good).outcome == "within"
    assert check_equivalence(good, bad).outcome == "over"


def runs_in_its_own_type_alone(folder: Path, patch: Patch) -> None:
    """SampleOp is an identity that ONNX Runtime has in float32 alone; of float16 nothing is known then."""
    for dtype, outcome in (("float", "within"), ("float16", "unknown")):
        shape = f"({dtype}[2, 4] x) => ({dtype}[2, 4] y)"
        plain = written(folder / "a.onnx", f"{shape} {{ y = Relu(x) }}")
        own = written(folder / "b.onnx", f"{shape} {{ r = com.microsoft.SampleOp(x) y = Relu(r) }}")
        found = check_equivalence(plain, own)
        assert found.outcome == outcome
        assert found.notes[0].startswith("precision only: com.microsoft::SampleOp 'r' does not run in float64")


def is_mixed(folder: Path, patch: Patch) -> None:
    """A right tiling of 200 x 130 is held by mixtures of its 130 outputs; of a wrong one, nothing agrees."""
    answers: list[bool] = []
    mixes_alike = rewriting.mixes_alike

    def noted(call: Any, result: Any) -> bool:
        answers.append(mixes_alike(call, result))
        return answers[-1]

    patch.setattr(rewriting, "mixes_alike", noted)
    model = nn.Sequential(nn.Linear(200, 130))
    assert verified(model, (2, 200), right()).outcome == "within"
    assert set(answers) == {True}
    answers.clear()
    assert verified(model, (2, 200), Mutant(off_by_one, "0")).outcome == "over"
    assert False in answers


def is_wrong_on_the_18th_call(folder: Path, patch: Patch) -> None:
    """Twenty calls, of 0 to 19: what is wrong above 16.5 is over, and 16 calls say nothing of where."""
    text = "(float[1, 1] x) => (float[1, 1] y) { k = Greater(x, far) z = Mul(x, c) y = Where(k, z, x) }"
    calls = {"x": np.arange(20, dtype=np.float32)[:, None]}
    for far, scope in ((16.5, None), (14.5, "z")):
        sides = (written(folder / f"{c}.onnx", text, c=np.float32(c), far=np.float32(far)) for c in (2, 3))
        found = check_equivalence(*sides, given=calls, families=["given"])
        assert found.outcome == "over"
        assert (found.first_divergence and found.first_divergence.scope) == scope
        said = [note for note in found.notes if note.startswith("which layer is wrong is not known")]
        assert len(said) == (scope is None)


def has_a_table_without_a_partner(folder: Path, patch: Patch) -> None:
    """A table that the other file keeps turned, under another name: read rows are compared, the rest is counted."""
    table = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
    first = written(folder / "a.onnx", "(int64[2] i) => (float[2, 3] y) { y = Gather<axis=0>(w, i) }", w=table)
    graph = "(int64[2] i) => (float[2, 3] y) { g = Gather<axis=1>(v, i) y = Transpose<perm=[1, 0]>(g) }"
    for row in range(8):
        turned = table.T.copy()
        turned[:, row] += 1.0
        found = check_equivalence(first, written(folder / "b.onnx", graph, v=turned))
        if found.outcome == "within":
            assert any("were read, and the other model has none to compare the rest with" in x for x in found.notes)
        else:
            assert found.outcome == "over"


def chosen(branch: str, *, around: str = "{}") -> str:
    """The text of a model with a branch that sums above 1e9 take, in this one or around it."""
    inner = (
        "If (b) <then_branch = taken () => (float[4] t) { " + branch + " }, "
        "else_branch = other () => (float[4] e) { e = Identity(x) }>"
    )
    return (
        "(float[4] x) => (float[4] y) { s = ReduceSum<keepdims=0>(x) b = Greater(s, far) " + around.format(inner) + " }"
    )


def takes_no_branch(folder: Path, patch: Patch) -> None:
    """A branch that no input takes: the same in both files is within, and another one unknown."""
    relu, neg = (
        written(folder / f"{name}.onnx", chosen(f"t = {name}(x)", around="y = {}"), far=np.float32(1e9))
        for name in ("Relu", "Neg")
    )
    assert check_equivalence(relu, relu).outcome == "within"
    assert check_equivalence(relu, neg).outcome == "unknown"


class Chosen(nn.Module):
    """Scales what is large, by an if of Python."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor if x.sum() > 1e9 else x


def has_an_if_of_python(folder: Path, patch: Patch) -> None:
    """Twice or three times what is large: nobody sees it before inputs are large."""
    models = (lambda: Chosen(2.0)), (lambda: Chosen(3.0))
    found = check_equivalence(*models, "float32 1x4")
    assert (found.outcome, found.notes) == ("within", ())
    large = np.full((1, 4), 1e9, np.float32)
    assert check_equivalence(*models, "float32 1x4", given={"0": large}).outcome == "over"


def has_an_if_in_an_if(folder: Path, patch: Patch) -> None:
    """The outer one takes its then; which way the inner one goes, a note says that nobody saw."""
    outer = (
        "c = Less(s, far) y = If (c) <then_branch = within () => (float[4] u) {{ u = {} }}, "
        "else_branch = without () => (float[4] w) {{ w = Identity(x) }}>"
    )
    relu, neg = (
        written(folder / f"{name}.onnx", chosen(f"t = {name}(x)", around=outer), far=np.float32(1e9))
        for name in ("Relu", "Neg")
    )
    found = check_equivalence(relu, neg)
    assert found.outcome == "within"
    assert any("it is not seen whether a run took then_branch" in note for note in found.notes)
    assert check_equivalence(relu, relu).notes == ()


TRIALS = (
    draws_integers, overflows, is_too_large_for_256_rows, mixes_its_rows, runs_in_its_own_type_alone, is_mixed,
    is_wrong_on_the_18th_call, takes_no_branch, has_an_if_of_python, has_an_if_in_an_if,
    has_a_table_without_a_partner,
)  # fmt: skip


@pytest.mark.parametrize(
    ("row", "trial"), list(zip(omissions("Comparisons"), TRIALS, strict=True)), ids=[trial.__name__ for trial in TRIALS]
)
def test_each_row_is_what_it_says(
    row: Any, trial: Callable[[Path, Patch], None], tmp_path: Path, monkeypatch: Patch
) -> None:
    """A pair of small models that comes to the place; a row without a trial fails when collected."""
    trial(tmp_path, monkeypatch)
