"""``compare`` for ONNX: another file in place of this one, and whether the two agree."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx

from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.equivalence.comparison import LOADED, Sides
from pytest_modelbudget.equivalence.figures import stores_other_values
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.source import ModelSource, existing_file
from pytest_modelbudget.onnx_models.files import (
    model_with_weights,
    must_be_whole,
    with_all_weights,
)
from pytest_modelbudget.onnx_models.graph_reader import measured_graph
from pytest_modelbudget.onnx_models.pairs import sides
from pytest_modelbudget.onnx_models.program import floating_arrays
from pytest_modelbudget.transforms.on_onnx import Judge
from pytest_modelbudget.transforms.transform import Job, Transformed


def transformed(job: Job) -> Transformed:
    """The model that ``compare`` names, beside the job's own."""
    other = next((each for each in job.settings.values() if isinstance(each, ModelSource)), None)
    if other is None or other.format != "onnx":
        raise TransformError("compare: an ONNX file is compared with another ONNX file")
    path = existing_file(other, "an ONNX model")
    return beside(job, model_with_weights(path), path.name, other.dims or job.source.dims)


def beside(job: Job, model: onnx.ModelProto, name: str, dims: Mapping[str, int]) -> Transformed:
    """Another file's model, measured, and held to what the job's file computes."""
    loaded = measured_graph(model, name, dims, job.rules)

    def verify(claim: Claim) -> Equivalence:
        original = with_all_weights(existing_file(job.source, "an ONNX model"))
        return compared(original, must_be_whole(model, name), claim, dims)

    return Transformed(loaded, (), verify)


def compared_files(
    original: Path, other: Path, claim: Claim, dims: Mapping[str, int]
) -> Equivalence:
    """Whether two ONNX files compute the same; each keeps the weights that it holds."""
    first, second = (with_all_weights(path) for path in (original, other))
    return compared(first, second, claim, dims)


def compared(
    original: onnx.ModelProto, other: onnx.ModelProto, claim: Claim, dims: Mapping[str, int]
) -> Equivalence:
    """Whether two models in memory compute the same."""

    def both(_: onnx.ModelProto) -> Sides:
        return sides(
            original,
            other,
            other_weights=lambda: stores_other_values(*map(floating_arrays, (original, other))),
            same_layers=False,
        )

    return Judge(claim, dims, both).kept(original, LOADED)
