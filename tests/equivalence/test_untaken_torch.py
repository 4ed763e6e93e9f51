"""Branches of torch.cond that no input takes: the same in both models, or nobody knows what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop

from pytest_modelbudget import check_equivalence
from pytest_modelbudget.equivalence.claim import Claim, Kind
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.graph.graph import Graph
from pytest_modelbudget.ops.table import builtin_ops
from pytest_modelbudget.registry import tables
from tests.builders.marks import each_in_turn
from tests.builders.module_transforms import EXACT, applied, tiled

pytestmark = [pytest.mark.needs_torch, pytest.mark.filterwarnings("ignore")]  # torch's compiler warns about many things
NEVER, SOMETIMES = 1e9, 0.0  # sums of drawn inputs are never above the first
UNKNOWN = "no run took true branch of torch.cond #1, which is not the same in both models: give 'inputs' that take it"
Body = Callable[..., torch.Tensor]


class Net(nn.Module):
    """Two layers of one size, and what a function makes of them."""

    def __init__(self, forward: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.l, self.k = nn.Linear(8, 8), nn.Linear(8, 8)
        self._forward = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._forward(self, x)


def chosen(body: Callable[[Any, torch.Tensor], torch.Tensor], limit: float = NEVER) -> Net:
    """What a body makes of a layer's result where the sum is above a limit, else that plus one."""
    return Net(lambda m, x: torch.cond(x.sum() > limit, lambda y: body(m, y), lambda y: y + 1, (m.l(x),)))


def compared(first: object, second: object, **claim: Any) -> Equivalence:
    return check_equivalence(first, second, "float32 4x8", **claim)


def measured_graph(model: nn.Module) -> Graph:
    source = ModelSource("torch", model, InputSpecs((TensorSpec("float32", (4, 8)),)))
    return tables().formats["torch"].load(source, builtin_ops()).graph


def exported(model: nn.Module) -> torch.export.ExportedProgram:
    return torch.export.export(model, (torch.zeros(4, 8),))


def times(factor: float) -> Net:
    return chosen(lambda m, y: y * factor)


@pytest.mark.parametrize("form", [lambda model: model, exported], ids=["module", "exported"])
def test_a_branch_that_never_ran_and_differs_is_unknown(form: Callable[[nn.Module], object]) -> None:
    found = compared(form(times(2)), form(times(3)))
    assert (found.outcome, found.reason) == ("unknown", UNKNOWN)
    found = compared(form(times(2)), form(times(2)))
    assert (found.outcome, found.notes) == ("within", ())


def test_inputs_that_take_it_are_the_way_out() -> None:
    """y + y is 2 y, and 3 y is not."""
    twice = chosen(lambda m, y: y + y)
    large = {"0": torch.full((4, 8), 1e9)}
    assert compared(times(2), twice).reason == UNKNOWN
    assert compared(times(2), twice, given=[large]).outcome == "within"
    assert compared(times(2), times(3), given=[large]).outcome == "over"


def test_no_claim_holds_of_what_never_ran() -> None:
    assert compared(times(2), times(3), kind="lossy", bounds={"sqnr": 30}).reason == UNKNOWN


def test_a_branch_that_ran_is_judged_by_its_outputs() -> None:
    twice, doubled = (chosen(body, SOMETIMES) for body in (lambda m, y: y + y, lambda m, y: y * 2))
    found = compared(twice, doubled)
    assert (found.outcome, found.notes) == ("within", ())


def literal(entry: float) -> Net:
    return chosen(lambda m, y: y * torch.tensor([entry] * 8))


def closure(entry: float) -> Net:
    table = torch.full((8,), entry)
    return chosen(lambda m, y: y * table)


def wired(is_first: bool) -> Net:
    """The same body, given another of two layers' results."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        body = (lambda a, b: a * 2) if is_first else (lambda a, b: b * 2)
        return torch.cond(x.sum() > NEVER, body, lambda a, b: a + b, (m.l(x), m.k(x)))

    return Net(forward)


def wired_in_one_module(is_first: bool) -> Net:
    """The same body, given another of two values of one module."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        body = (lambda a, b: a * 2) if is_first else (lambda a, b: b * 2)
        return torch.cond(x.sum() > NEVER, body, lambda a, b: a + b, (m.l(x) + 1, m.l(x) - 1))

    return Net(forward)


def wired_in_one_branch(is_first: bool) -> Net:
    """The same body, given another of two values of one module that the other branch does not read."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        first, second = x.sin(), x.cos()
        body = (lambda a, b: a * 2) if is_first else (lambda a, b: b * 2)
        ones = torch.cond(x.sum() > NEVER, body, lambda a, b: torch.ones(4, 8, dtype=a.dtype), (first, second))
        return m.l(ones + first * second)  # type: ignore[no-any-return]

    return Net(forward)


def cheap_inside(factor: float) -> Net:
    """A branch with two branches of its own, of which the cheaper one multiplies."""
    return chosen(lambda m, y: torch.cond(y.sum() > NEVER, lambda z: m.k(z), lambda z: z * factor, (y,)))


def asked_inside(is_first: bool) -> Net:
    """A branch with two branches of its own, chosen by one of two questions."""

    def body(m: Any, y: torch.Tensor) -> torch.Tensor:
        first, second = y.sum() > 0, y.sum() > 1
        inner = torch.cond(first if is_first else second, lambda z: z * 2, lambda z: z * 3, (y,))
        return inner + first * 1.0 + second * 1.0  # type: ignore[no-any-return]

    return chosen(body)


def computed_before(factor: float) -> Net:
    """A value that one branch alone reads."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        ones = lambda y: torch.ones(4, 8, dtype=y.dtype)  # noqa: E731
        return m.l(x + torch.cond(x.sum() > NEVER, lambda y: y * 2, ones, (x * factor,)))  # type: ignore[no-any-return]

    return Net(forward)


def written(write: Callable[[torch.Tensor, float], object], factor: float, *, is_given: bool) -> Net:
    """A value that is written into after it was made, before a branch reads it: given to it, or in a closure."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        ones = lambda *_: torch.ones(4, 8, dtype=x.dtype)  # noqa: E731
        y, z = m.l(x), m.l(x).clone()
        write(z, factor)
        given, body = ((z,), lambda a: a * 2) if is_given else ((y,), lambda a: a * z)
        return y + torch.cond(x.sum() > NEVER, body, ones, given)  # type: ignore[no-any-return]

    return Net(forward)


WRITES: dict[str, Callable[[torch.Tensor, float], object]] = {
    "itself": lambda z, factor: z.mul_(factor),
    "a view": lambda z, factor: z.view(-1).mul_(factor),
    "two parts": lambda z, factor: (z[0].mul_(factor), z[1:].mul_(factor)),
    "out": lambda z, factor: torch.mul(z, factor, out=z),
    "an index": lambda z, factor: z.__setitem__(slice(None), z * factor),
}


@pytest.mark.parametrize(("write", "read"), each_in_turn([(write,) for write in WRITES], ("given", "closure")))
def test_what_is_written_into_is_another_value(write: str, read: str) -> None:
    first, second = (written(WRITES[write], factor, is_given=read == "given") for factor in (2, 3))
    assert compared(first, second).reason == UNKNOWN
    assert compared(first, first).outcome == "within"


@pytest.mark.parametrize("is_given", [True, False], ids=["given", "closure"])
def test_a_buffer_that_a_pass_writes_into_is_another_value(is_given: bool) -> None:
    """Both store the same; what the branch would read is filled in the pass."""

    def filled(entry: float) -> Net:
        def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
            m.state.fill_(entry)
            ones = lambda *_: torch.ones(4, 8, dtype=x.dtype)  # noqa: E731
            given, body = ((m.state,), lambda s: s * 2) if is_given else ((x,), lambda a: a * m.state)
            return m.l(x) + torch.cond(x.sum() > NEVER, body, ones, given)  # type: ignore[no-any-return]

        net = Net(forward)
        net.register_buffer("state", torch.zeros(4, 8))
        return net

    assert compared(filled(2), filled(3)).reason == UNKNOWN
    assert compared(filled(2), filled(2)).outcome == "within"


CHANGES = {
    "what is computed before": (computed_before(2), computed_before(2.5)),
    "wiring in one branch": (wired_in_one_branch(True), wired_in_one_branch(False)),
    "the cheaper way of a branch inside": (cheap_inside(2), cheap_inside(3)),
    "what a branch inside asks": (asked_inside(True), asked_inside(False)),
    "wiring in one module": (wired_in_one_module(True), wired_in_one_module(False)),
    "literal": (literal(2), literal(3)),
    "closure": (closure(2), closure(3)),
    "wiring": (wired(True), wired(False)),
    "no branch any more": (times(2), Net(lambda m, x: m.l(x) + 1)),
}


@pytest.mark.parametrize("pair", CHANGES.values(), ids=CHANGES)
def test_what_makes_branches_differ(pair: tuple[Net, Net]) -> None:
    for first, second in (pair, pair[::-1]):
        assert compared(first, second).reason == UNKNOWN
        assert compared(first, first).outcome == "within"


def in_a_loop(factor: float, *, is_counted: bool) -> Net:
    """A branch in each of three passes, or in as many as values say, which is at most three."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        most = torch.tensor(3) if is_counted else x.sum().abs().clamp(max=3)
        body = lambda i, y: (i + 1, torch.cond(y.sum() > NEVER, lambda z: z * factor, lambda z: z + 1, (y,)))  # noqa: E731
        return while_loop(lambda i, y: i < most, body, (torch.tensor(0), m.l(x)))[1]  # type: ignore[no-any-return]

    return Net(forward)


def test_a_branch_in_a_loop() -> None:
    found = compared(in_a_loop(2, is_counted=True), in_a_loop(3, is_counted=True))
    named = "no run took true branch of torch.cond #1, true branch of torch.cond #2 and 1 more, which"
    assert (found.outcome, found.reason.startswith(named)) == ("unknown", True)
    assert compared(in_a_loop(2, is_counted=True), in_a_loop(2, is_counted=True)).outcome == "within"


def test_of_calls_that_values_count_a_note_says_that_nobody_knows_which_they_are() -> None:
    found = compared(in_a_loop(2, is_counted=False), in_a_loop(3, is_counted=False))
    said = "it is not seen whether a run took true branch of torch.cond #1, which is not the same in both models"
    assert (found.outcome, found.notes) == ("within", (said,))
    assert compared(in_a_loop(2, is_counted=False), in_a_loop(2, is_counted=False)).notes == ()


def test_a_branch_in_a_branch() -> None:
    """One in a branch that ran is told by itself; one in a branch that never ran is part of that."""

    def nested(outer: float, factor: float) -> Net:
        return chosen(lambda m, y: torch.cond(y.sum() > NEVER, lambda z: z * factor, lambda z: z + 2, (y,)), outer)

    found = compared(nested(-NEVER, 2), nested(-NEVER, 3))
    inner = "no run took true branch of torch.cond #1, true branch, 1"
    assert (found.outcome, found.reason.startswith(inner)) == ("unknown", True)
    assert compared(nested(NEVER, 2), nested(NEVER, 3)).reason == UNKNOWN
    assert compared(nested(-NEVER, 2), nested(-NEVER, 2)).outcome == "within"


@pytest.mark.parametrize("layers", [1, 3])
def test_wiring_in_a_branch_that_ran_and_is_not_counted(layers: int) -> None:
    """The way that is counted has layers; what the other one makes is told apart as well."""

    def nested(is_first: bool) -> Net:
        def below(y: torch.Tensor) -> torch.Tensor:
            body = (lambda a, b: a * 2) if is_first else (lambda a, b: b * 2)
            return torch.cond(y.sum() > NEVER, body, lambda a, b: a + b, (y.sin(), y.cos()))  # type: ignore[no-any-return]

        def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > -NEVER, below, lambda y: m.k(m.k(m.k(y))) if layers > 1 else m.k(y), (m.l(x),))

        return Net(forward)

    inner = "no run took true branch of torch.cond #1, true branch, 1"
    for first, second in ((nested(True), nested(False)), (nested(False), nested(True))):
        assert compared(first, second).reason.startswith(inner)
        assert compared(first, first).outcome == "within"


def test_a_branch_that_ran_elsewhere_is_another_on_another_value() -> None:
    """Its body needs no proof where it ran; what enters it here does."""

    def twice(is_first: bool) -> Net:
        def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
            double, ones = (lambda y: y * 2), (lambda y: torch.ones(4, 8, dtype=y.dtype))
            first, second = x.sin(), x.cos()
            ran = torch.cond(x.sum() > -NEVER, double, ones, (x,))
            return m.l(
                ran + torch.cond(x.sum() > NEVER, double, ones, (first if is_first else second,)) + first * second
            )  # type: ignore[no-any-return]

        return Net(forward)

    for first, second in ((twice(True), twice(False)), (twice(False), twice(True))):
        assert compared(first, second).reason == UNKNOWN.replace("#1", "#2")
        assert compared(first, first).outcome == "within"


def chosen_twice(second: float | None) -> Net:
    """2 y or 3 y, of which each ran, and one of the two where none did, if at all."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        ones = lambda y: torch.ones(4, 8, dtype=y.dtype)  # noqa: E731
        y = torch.cond(x.sum() > SOMETIMES, lambda y: y * 2, lambda y: y * 3, (x,))
        rare = ones(x) if second is None else torch.cond(x.sum() > NEVER, lambda y: y * second, ones, (x,))
        return m.l(y + rare)  # type: ignore[no-any-return]

    return Net(forward)


@pytest.mark.parametrize("other", [3, None], ids=["another", "none"])
def test_two_branches_that_ran_elsewhere_are_two(other: float | None) -> None:
    """That outputs have shown what each of them does says nothing of one in place of the other."""
    for first, second in ((chosen_twice(2), chosen_twice(other)), (chosen_twice(other), chosen_twice(2))):
        assert compared(first, second).reason == UNKNOWN.replace("#1", "#2")
        assert compared(first, first).outcome == "within"


def test_a_change_that_ran_elsewhere_in_both_needs_no_proof() -> None:
    """y + y is 2 y, as the first of two branches has shown."""

    def twice(double: Body) -> Net:
        def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
            ones = lambda y: torch.ones(4, 8, dtype=y.dtype)  # noqa: E731
            often, never = (torch.cond(x.sum() > limit, double, ones, (x,)) for limit in (-NEVER, NEVER))
            return m.l(often + never)  # type: ignore[no-any-return]

        return Net(forward)

    assert compared(twice(lambda y: y * 2), twice(lambda y: y + y)).outcome == "within"


def layers(limit: float) -> Net:
    """A layer in each branch."""
    return Net(lambda m, x: torch.cond(x.sum() > limit, lambda y: m.l(y), lambda y: m.k(y), (x,)))


def test_what_transforms_change_in_a_branch_that_never_ran_is_unknown() -> None:
    lossy = Claim(Kind.LOSSY, seeds=(0,))
    specs = InputSpecs((TensorSpec("float32", (4, 8)),))
    one = Net(lambda m, x: torch.cond(x.sum() > NEVER, lambda y: m.l(y), lambda y: y + 1, (x,)))
    assert tiled(ModelSource("torch", one, specs), (None, 4, 4)).verify(EXACT).reason == UNKNOWN
    for limit, outcome in ((NEVER, "unknown"), (SOMETIMES, "within")):
        done = tiled(ModelSource("torch", layers(limit), specs), (None, 4, 4)).verify(EXACT)
        assert (done.outcome, done.reason == UNKNOWN) == (outcome, outcome == "unknown")
        done = applied("quantize", layers(limit), (4, 8)).verify(lossy)
        assert (done.outcome, done.reason == UNKNOWN) == (outcome, outcome == "unknown")


def test_a_transform_beside_an_untouched_branch_needs_no_proof_of_it() -> None:
    """The layer that is tiled leads to nothing that the branch reads; where it does, nobody knows what enters."""
    spec = InputSpecs((TensorSpec("float32", (4, 8)),))
    beside = Net(lambda m, x: m.l(x) + torch.cond(x.sum() > NEVER, lambda y: y * 2, lambda y: y + 1, (x,)))
    found = tiled(ModelSource("torch", beside, spec), (None, 4, 4)).verify(EXACT)
    assert (found.outcome, found.notes) == ("within", ())
    assert tiled(ModelSource("torch", times(2), spec), (None, 4, 4)).verify(EXACT).reason == UNKNOWN


def test_an_export_of_a_branch_that_never_ran_is_unknown() -> None:
    pytest.importorskip("onnxscript")
    for limit, outcome in ((NEVER, "unknown"), (SOMETIMES, "within")):
        assert applied("export_onnx", layers(limit), (4, 8)).verify(EXACT).outcome == outcome
