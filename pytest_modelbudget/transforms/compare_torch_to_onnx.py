"""``compare: {onnx: path}`` for a torch model: its ONNX file must compute the same."""

from __future__ import annotations

from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.equivalence.torch_beside_onnx import OnnxModels, compared
from pytest_modelbudget.frontends.model_files import existing_file
from pytest_modelbudget.frontends.model_source import ModelSource
from pytest_modelbudget.transforms.onnx_loading import measured_graph, model_with_weights
from pytest_modelbudget.transforms.transform import Job, Transformed


def transformed(job: Job) -> Transformed:
    """The file's graph, measured, and both run side by side on the weights that each one has."""
    given = job.settings["compare"]
    assert isinstance(given, ModelSource)
    path = existing_file(given, "an ONNX model")
    model = model_with_weights(path)
    loaded = measured_graph(model, path.name, given.dims, job.rules)

    def verify(claim: Claim) -> Equivalence:
        models = OnnxModels(stored=model, exact=model)
        return compared(claim, job.source, lambda original: models, may_draw=False)

    return Transformed(loaded, (), verify)
