"""Figures of timed runs and the table of operators, by hand from the events of a trace."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from pytest_modelbudget.formats.benchmark import OperatorTime, Timing
from pytest_modelbudget.metrics.measurement import Measurement, OtherPath, Share, UnmeasuredOp
from pytest_modelbudget.runners.timing import RUN_FIGURES, operators, table, with_roof


def event(name: str, begin: float, took: float, **said: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": begin, "dur": took, "tid": 1, "args": said}


def memory(at: float, nbytes: int) -> dict[str, Any]:
    return {"ph": "i", "name": "[memory]", "ts": at, "tid": 1, "args": {"Bytes": nbytes}}


# One call of 100 us: fc from 10 to 70, in it linear from 20 to 60, in that addmm from 25 to 55; then relu.
TORCH = [
    event("model_run", 0, 100),
    event("module fc", 10, 60),
    event("aten::linear", 20, 40),
    memory(22, 8),
    event("aten::addmm", 25, 30),
    memory(30, 64),
    memory(50, -16),
    event("aten::relu", 80, 5),
    {"ph": "X", "name": "other thread", "ts": 30, "dur": 9, "tid": 2},
    event("model_run", 200, 400),
    event("aten::relu", 300, 50),
]


def test_what_a_call_takes_is_shared_out_without_a_rest() -> None:
    """30 in addmm, 40 - 30 in linear, 60 - 40 of fc between operators, 100 - 60 - 5 of the model: 100 us in all."""
    found = operators({"traceEvents": TORCH}, seconds=110e-6)
    assert found == (
        OperatorTime("between operators", "", 0, 35_000),
        OperatorTime("aten::addmm", "fc", 1, 30_000, 48),
        OperatorTime("between operators", "fc", 0, 20_000),
        OperatorTime("aten::linear", "fc", 1, 10_000, 8),
        OperatorTime("aten::relu", "", 1, 5_000),
    )
    assert sum(row.ns for row in found) == 100_000


def test_the_call_that_is_nearest_to_the_median_is_shown() -> None:
    """Of 100 and 400 us the second."""
    assert sum(row.ns for row in operators(TORCH, seconds=300e-6)) == 400_000
    assert operators([event("aten::relu", 0, 5)], seconds=1.0) == ()


def test_nodes_of_onnx_runtime_have_the_name_of_their_operator() -> None:
    """A node says its operator, its module and its bytes; what the session does around it is between operators."""
    trace = [
        event("model_run", 0, 50) | {"cat": "Session"},
        event("SequentialExecutor::Execute", 5, 40) | {"cat": "Session"},
        event("/fc/Gemm_kernel_time", 10, 30, op_name="Gemm", module="fc", Bytes=24) | {"cat": "Node"},
    ]
    found = operators(trace, seconds=50e-6)
    assert found == (OperatorTime("Gemm", "fc", 1, 30_000, 24), OperatorTime("between operators", "", 0, 20_000))


def timing(*seconds: float, **others: Any) -> Timing:
    return Timing(seconds, "here", **others)


def of(key: str, timing: Timing) -> object:
    return RUN_FIGURES[key].of(timing)


def test_throughput_is_calls_a_second() -> None:
    """1 / the median: 50 for 20 ms, whatever the batch."""
    assert of("throughput", timing(0.01, 0.02, 0.5)) == 50
    assert of("latency", timing(0.01, 0.02, 0.5)) == Fraction(1, 50)


def bound(value: Fraction, *unmeasured: UnmeasuredOp) -> Measurement:
    return Measurement(value, "s", (Share("fc", value),), unmeasured)


SLOW = UnmeasuredOp("aten::foo", 1, "fc", "nothing is known of it")
ELSE = OtherPath("onnx::If", "the else_branch of If 'y'", Fraction(1, 400))
SHARES = [
    pytest.param(bound(Fraction(1, 200)), Fraction(1, 4), id="5 of 20 ms"),
    pytest.param(bound(Fraction(1, 50)), 1, id="all of it"),
    pytest.param(bound(Fraction(1, 40)), "125.0% of the roof: the profile is not this machine's", id="25 of 20 ms"),
    pytest.param(bound(Fraction(1, 200), SLOW), "no bound is known of aten::foo: nothing is known", id="unmeasured"),
    pytest.param(replace(bound(Fraction(1, 200)), others=(ELSE,)),
                 "data decide whether latency_bound is 2.50 ms or 5.00 ms", id="branches that differ"),
    pytest.param("m4 gives no rate of float32 MACs", "m4 gives no rate of float32 MACs", id="silent"),
]  # fmt: skip


@pytest.mark.parametrize(("roof", "share"), SHARES)
def test_the_share_of_the_roof(roof: Measurement | str, share: object) -> None:
    """The bound ÷ the median of 20 ms; what is above the roof, or not bounded, is unknown and says why."""
    found = of("roofline_share", timing(0.02, roof=roof))
    assert found == share or (isinstance(found, str) and str(share) in found)


def test_operators_have_shares_of_the_time_and_of_the_roof_of_their_module() -> None:
    """fc takes 40 of 50 us, of which its bound is 10: a quarter; relu's module has no bound of its own."""
    rows = (
        OperatorTime("addmm", "fc", 1, 30_000),
        OperatorTime("t", "fc", 1, 10_000),
        OperatorTime("relu", "", 1, 10_000),
    )
    found = with_roof(timing(50e-6, operators=rows), bound(Fraction(1, 100_000)))
    assert [(row.share, row.roof_share) for row in found.operators] == [
        ("0.6000", "0.2500"),
        ("0.2000", "0.2500"),
        ("0.2000", ""),
    ]
    assert table(found)[0] == "  addmm: 1 call, 30.0 us of its own, 60.0%, most in fc (25.0% of the roof)"
    assert with_roof(timing(50e-6, operators=rows), "silent").operators[0].roof_share == ""


def test_the_table_shows_the_slowest_and_sums_up_the_others() -> None:
    """Ten operators of 1 ms and two of 20 ms, one in two modules: eight lines, and one of 4 calls and 4 ms of 50."""
    slow = tuple(OperatorTime("slow0", f"m{at}", 1, 10_000_000 + at, 1000) for at in range(2))
    slow = (*slow, OperatorTime("slow1", "m2", 2, 19_999_999))
    quick = tuple(OperatorTime(f"quick{at}", "", 1, 1_000_000) for at in range(10))
    lines = table(timing(0.05, operators=(*slow, *quick)))
    assert lines[0] == "  slow0: 2 calls, 20.0 ms of its own, 40.0%, 2.00 kB, most in m1"
    assert lines[-1] == "  others: 4 calls, 4.00 ms of its own, 8.0%"
    assert len(lines) == 9
    assert table(timing(0.05)) == ()
