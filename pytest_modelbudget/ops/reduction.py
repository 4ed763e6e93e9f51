"""Sums, means, extremes and scans: one FLOP per input element, nothing multiplied pairwise."""

from __future__ import annotations

from pytest_modelbudget.ops.op_rule import OpRule, under
from pytest_modelbudget.ops.pooling import one_per_input

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

FOLD = OpRule(
    "fold",
    under("aten::col2im", "x"),
    "adds up overlapping windows: sums, no products of pairs",
    flops=one_per_input,
)
REDUCTION: tuple[OpRule, ...] = (
    FOLD,
    *(
        OpRule(
            kind,
            under(" ".join(f"aten::{name}" for name in names.split()), "x", "y"),
            "one operation per input element; no pairs are multiplied",
            flops=one_per_input,
        )
        for kind, names in KINDS.items()
    ),
)
