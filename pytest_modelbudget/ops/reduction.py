"""Sums, means, extremes and scans: one FLOP per input element, nothing multiplied pairwise."""

from __future__ import annotations

from pytest_modelbudget.ops.op_rule import OpRule, under
from pytest_modelbudget.ops.pooling import REQUANTISED, one_per_input

KINDS = {
    "sum": "sum nansum",
    "mean": "mean nanmean",
    "prod": "prod",
    "variance": "var std var_mean std_mean",
    "maximum_over": "max amax min amin aminmax argmax argmin",
    "norm": "norm linalg_vector_norm linalg_norm frobenius_norm",
    "logsumexp": "logsumexp special_logsumexp",
    "any_all": "any all",
    "cumulative": "cumsum cumprod cummax cummin logcumsumexp cumsum_ cumprod_",
    "count_nonzero": "count_nonzero",
    "trace": "trace",
}

# The same kinds by their ONNX operators.
ONNX_KINDS = {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "prod": "ReduceProd",
    "maximum_over": "ReduceMax ReduceMin ArgMax ArgMin",
    "norm": "ReduceL1 ReduceL2 ReduceSumSquare",
    "logsumexp": "ReduceLogSumExp ReduceLogSum",
    "cumulative": "CumSum CumProd",
}
WHY = "one operation per input element; no pairs are multiplied"


def _family(table: dict[str, str], space: str, *roles: str) -> tuple[OpRule, ...]:
    return tuple(
        OpRule(
            kind,
            under(" ".join(f"{space}::{name}" for name in names.split()), *roles),
            WHY,
            flops=one_per_input,
        )
        for kind, names in table.items()
    )


REDUCTION: tuple[OpRule, ...] = (
    OpRule(
        "fold",
        under("aten::col2im", "x") | under("onnx::Col2Im", "x", "shape", "sizes"),
        "adds up overlapping windows: sums, no products of pairs",
        flops=one_per_input,
    ),
    *_family(KINDS, "aten", "x", "y"),
    *_family(ONNX_KINDS, "onnx", "x", "axes"),
    OpRule(
        "mean",
        under("com.microsoft::QLinearReduceMean", *REQUANTISED),
        WHY,
        flops=one_per_input,
    ),
)
