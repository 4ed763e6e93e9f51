"""Judgements on ONNX models in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx

from pytest_modelbudget.equivalence.changed import Changed
from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.equivalence.comparison import compare
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.formats.model import Model
from pytest_modelbudget.onnx_models.model import InMemory, OnnxModel
from pytest_modelbudget.onnx_models.program import Program
from pytest_modelbudget.registry import tables
from pytest_modelbudget.transforms.on_onnx import Rewrite, change_graph

NO_DIMS: Mapping[str, int] = {}


def in_memory(proto: onnx.ModelProto, dims: Mapping[str, int] = NO_DIMS) -> OnnxModel:
    """A model, as a file that holds it would be read."""
    rules = tables().ops
    return OnnxModel(InMemory(Program(proto, rules), "model.onnx", dims), rules)


def judged_beside(original: OnnxModel, twin: onnx.ModelProto, claim: Claim, **known: Any) -> Equivalence:
    """Whether a twin of a model is the same, whatever weights that one has."""

    def remake(model: Model) -> Changed:
        assert isinstance(model, OnnxModel)
        return Changed(model.changed(twin), **{"upcasts": True, **known})

    return compare(original, remake, claim)


def judged(original: onnx.ModelProto, twin: onnx.ModelProto, sums: int = 1, seeds: int = 1) -> Equivalence:
    """Whether two models are the same, as exact algebra."""
    claim = Claim(seeds=tuple(range(seeds)))
    return judged_beside(in_memory(original), twin, claim, partial_sums=sums)


def judged_rewrite(
    original: OnnxModel, rewrite: Rewrite, claim: Claim, *, changes_weights: bool = False
) -> Equivalence:
    """Whether what a rewrite makes of a model is the same."""

    def remake(model: Model) -> Changed:
        assert isinstance(model, OnnxModel)
        return change_graph(model, rewrite, changes_weights=changes_weights)

    return compare(original, remake, claim)
