"""Operators that call functions: the dearer branch, and a body times its length."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan
from torch.nn.attention.flex_attention import flex_attention

from pytest_modelbudget import measure
from pytest_modelbudget.budget.budget import OpsLimit, Place
from pytest_modelbudget.budget.kinds import judge_limit
from pytest_modelbudget.budget.verdict import Verdict
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate.from_python import model_source
from pytest_modelbudget.gate.measuring import measure_model
from pytest_modelbudget.registry import tables
from pytest_modelbudget.torch_models import bodies
from tests.builders.micro_modules import Layer, in_three_rounds, row_by_row

pytestmark = [pytest.mark.needs_torch, pytest.mark.filterwarnings("ignore")]  # torch's compiler warns about many things
LAYER = 4 * 16 * 16


def branch(m: Any, x: torch.Tensor) -> Any:
    """One layer more, or none."""
    return torch.cond(x.sum() > 2, lambda y: m.l(m.l(y)), lambda y: y + 1, (x,))


def same(m: Any, x: torch.Tensor) -> Any:
    """The same product in both branches."""
    return torch.cond(x.sum() > 2, lambda y: y @ y.T, lambda y: -(y @ y.T), (x,))


def nested(m: Any, x: torch.Tensor) -> Any:
    """A branch within a branch: the deepest is the dearest."""

    def inner(y: torch.Tensor) -> Any:
        return torch.cond(y.sum() > 0, lambda z: m.l(m.l(z)), lambda z: z + 1, (y,))

    return torch.cond(x.sum() > 2, lambda y: y + 1, inner, (x,))


COUNTED: dict[str, tuple[Callable[[Any, torch.Tensor], Any], int]] = {
    "cond": (branch, 2 * LAYER),
    "cond, both alike": (same, 4 * 4 * 16),
    "cond in cond": (nested, 2 * LAYER),
    "scan": (row_by_row, LAYER),
    "while_loop": (in_three_rounds, 3 * LAYER),
    "associative_scan": (lambda m, x: associative_scan(torch.add, m.l(x), dim=0, combine_mode="generic"), LAYER),
    "flex_attention": (lambda m, x: flex_attention(*[m.l(x).reshape(1, 2, 4, 8)] * 3), LAYER + 2 * (2 * 4 * 4 * 8)),
}


@pytest.mark.parametrize(("forward", "macs"), COUNTED.values(), ids=list(COUNTED))
def test_bodies_are_counted(forward: Callable[[Any, torch.Tensor], Any], macs: int) -> None:
    """What the dearest path through the model multiplies."""
    measured = measure(Layer(forward), "float32 4x16")
    assert (measured["macs"].value, measured["macs"].unmeasured) == (macs, ())
    assert measured["params"].value == 16 * 16 + 16


def test_the_dearer_branch_is_said() -> None:
    """Which one it is, where they differ."""
    notes = measure(Layer(branch), "float32 4x16").notes
    assert "torch.cond is counted as its dearer branch, true" in notes


def sums(m: Any, x: torch.Tensor) -> Any:
    """One cumulative sum, or a sort, which is larger."""
    return torch.cond(x.sum() > 0, lambda y: y.cumsum(1), lambda y: torch.sort(y)[0].clone(), (x,))


def sums_in_a_branch(m: Any, x: torch.Tensor) -> Any:
    """Two layers, or an erf and then two cumulative sums or a relu."""

    def inner(y: torch.Tensor) -> Any:
        return torch.cond(y.sum() > 0, lambda z: z.cumsum(1).cumsum(0), lambda z: z.relu(), (y.erf(),))

    return torch.cond(x.sum() > 2, lambda y: m.l(m.l(y)), inner, (x,))


def sums_of_rows(m: Any, x: torch.Tensor) -> Any:
    """Four rows, each by a layer or by two cumulative sums."""

    def step(carry: torch.Tensor, row: torch.Tensor) -> Any:
        state = torch.cond(row.sum() > 0, lambda y: m.l(y), lambda y: y.cumsum(0).cumsum(0), (row,))
        return carry + state, state.clone()

    return scan(step, torch.zeros(16), x)


def verdict(forward: Callable[[Any, torch.Tensor], Any], **limit: object) -> Verdict:
    """A limit on operators, held against a layer."""
    source = model_source(Layer(forward), "float32 4x16", registry=tables(), base=Path.cwd())
    assert isinstance(source, ModelSource)
    return judge_limit(OpsLimit(Place("b.yaml", 3), **limit), measure_model(source, tables(), root=Path.cwd()))  # type: ignore[arg-type]


def test_limits_on_operators_hold_both_branches() -> None:
    """The line says in which branch an operator is that is not counted."""
    found = verdict(sums, deny=("cumulative",))
    place = "first in the model itself, in the true branch of torch.cond, which is not counted"
    assert found.reason == f"ops 1 aten::cumsum > 0   denied, {place}"
    assert verdict(sums, deny=("sort",)).outcome is Outcome.OVER
    assert verdict(sums, max={"cumulative": 1, "sort": 1}).outcome is Outcome.WITHIN


@pytest.mark.parametrize(
    ("forward", "kind", "most"),
    [
        (sums, "cumulative", 1),
        (sums_in_a_branch, "cumulative", 2),
        (sums_in_a_branch, "relu", 1),
        (sums_in_a_branch, "linear", 2),
        (sums_of_rows, "cumulative", 4 * 2),
        (sums_of_rows, "linear", 4 * 1),
    ],
)
def test_a_maximum_of_operators_holds_the_branch_with_most(
    forward: Callable[[Any, torch.Tensor], Any], kind: str, most: int
) -> None:
    """As many are within, one less is over; branches in branches and in repeated bodies, too."""
    assert verdict(forward, max={kind: most}).outcome is Outcome.WITHIN
    assert verdict(forward, max={kind: most - 1}).outcome is Outcome.OVER


def test_an_exported_program_has_both_branches() -> None:
    """As the module that it comes from."""
    exported = torch.export.export(Layer(sums), (torch.ones(4, 16),))
    source = model_source(exported, None, registry=tables(), base=Path.cwd())
    found = measure_model(source, tables(), root=Path.cwd())
    assert judge_limit(OpsLimit(Place("b.yaml", 3), deny=("cumulative",)), found).outcome is Outcome.OVER


def on_rows(m: Any, x: torch.Tensor) -> Any:
    """Two layers where there are more than 4 rows, else one."""
    return torch.cond(x.shape[0] > 4, lambda y: m.l(m.l(y)), m.l, (x,))


@pytest.mark.parametrize(("rows", "layers"), [(4, 1), (5, 2)])
@pytest.mark.parametrize("strict", [False, True])
def test_a_condition_on_sizes_takes_its_branch(rows: int, layers: int, strict: bool, tmp_path: Path) -> None:
    """In a program whose rows are open until they are given, as in the module."""
    model = Layer(on_rows).eval()
    opened = {0: torch.export.Dim.AUTO}
    program = torch.export.export(model, (torch.ones(6, 16),), dynamic_shapes=(opened,), strict=strict)
    torch.export.save(program, tmp_path / "model.pt2")
    x = f"float32 {rows}x16"
    for source in (model, tmp_path / "model.pt2"):
        measured = measure(source, x)
        assert measured["macs"].value == layers * rows * 16 * 16
        assert not [note for note in measured.notes if "dearer" in note]


def test_a_scan_over_nothing_is_refused() -> None:
    """Nothing tells how large its results are; torch itself refused it before 2.14."""
    with pytest.raises(TraceError, match=r"a scan over 0 slices: give an input with at least 1|scan dimension > 0"):
        measure(Layer(row_by_row), "float32 0x16")


@pytest.mark.parametrize("run", [bodies.scan, bodies.while_loop])
def test_options_of_the_compiler_are_refused_by_name(run: Callable[..., Any]) -> None:
    """A body that writes into what it is given is another program."""
    with pytest.raises(NotImplementedError, match="with mutated_arg_indices"):
        run(None, (), (), mutated_arg_indices="0")
