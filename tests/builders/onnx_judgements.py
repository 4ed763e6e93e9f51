"""Judgements on two ONNX models."""

from __future__ import annotations

import onnx

from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.onnx_models.pairs import sides
from pytest_modelbudget.registry import tables
from pytest_modelbudget.transforms.on_onnx import Judge


def judged(
    original: onnx.ModelProto, twin: onnx.ModelProto, sums: int = 1, seeds: int = 1
) -> Equivalence:
    """Whether two models are the same, as exact algebra."""
    judge = Judge(
        Claim(seeds=tuple(range(seeds))), {}, lambda first: sides(first, twin, partial_sums=sums)
    )
    return judge.equivalence(original, tables().ops)
