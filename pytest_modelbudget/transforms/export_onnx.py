"""``export_onnx``: the torch model as an ONNX graph, run by ONNX Runtime against torch."""

import copy
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import onnx
import torch

from pytest_modelbudget.errors import MissingExtraError, TransformError, behind, user_code
from pytest_modelbudget.formats.source import InputSpecs, TensorSpec
from pytest_modelbudget.onnx_models.model import InMemory, OnnxModel
from pytest_modelbudget.onnx_models.program import Program
from pytest_modelbudget.onnx_models.protos import opset_of
from pytest_modelbudget.torch_models.accelerators import on_cpu
from pytest_modelbudget.torch_models.environment import reproducible, silenced
from pytest_modelbudget.torch_models.running import TorchModel, telling_of_meta
from pytest_modelbudget.torch_models.tracing import Subject
from pytest_modelbudget.torch_models.values import call_inputs, drawn
from pytest_modelbudget.torch_models.versions import asks, lacks
from pytest_modelbudget.transforms.transform import Changed, Settings


def apply(model: TorchModel, settings: Settings) -> Changed:
    """The exported graph; of a float64 copy that of float64 inputs."""
    for package, extra in (("onnxruntime", "onnx"), ("onnxscript", "export")):
        if find_spec(package) is None:
            raise MissingExtraError("export_onnx", package=package, extra=extra)
    if not asks(torch.onnx.export, "kwargs"):
        raise TransformError(lacks("export_onnx", "2.5"))
    specs = model.specs.each(TensorSpec.in_float64) if model.is_exact else model.specs
    made = InMemory(Program(exported(model.subject, specs, settings["opset"]), model.rules), "the export", {})
    second = OnnxModel(made, model.rules, weights=model.weights, is_exact=model.is_exact)
    return Changed(second, made_apart=True, by_position=True, stacks=False)


def exported(subject: Subject, specs: InputSpecs, asked: object) -> onnx.ModelProto:
    """The ONNX model that torch's exporter makes of a copy of a module.

    An older operator set than that one can write is written by the exporter before it, from a trace. Raises
    TransformError where neither writes the operator set that is asked for.
    """
    generator = torch.Generator().manual_seed(0)
    inputs = call_inputs(specs, lambda spec: drawn(spec, generator))
    options: dict[str, Any] = {"verbose": False} if asked is None else {"verbose": False, "opset_version": asked}
    exporting = user_code("exporting to ONNX", TransformError)
    with reproducible(), quiet(), telling_of_meta(subject.model), exporting, on_cpu():
        model = copy.deepcopy(subject.model).eval()
        try:
            program = torch.onnx.export(model, inputs.args, kwargs=dict(inputs.kwargs), dynamo=True, **options)
        except torch.onnx.OnnxExporterError as error:
            raise cause_of(error)  # noqa: B904  # what it was made from is behind it
        if program is None:
            raise TransformError("exporting to ONNX gave no program")
        made: onnx.ModelProto = program.model_proto
        written = opset_of(made)
        if isinstance(asked, int) and asked < written:
            file = io.BytesIO()
            older: Any = torch.onnx.export  # into a file, which torch gives no type for
            older(model, inputs.args, file, kwargs=dict(inputs.kwargs), dynamo=False, **options)
            return onnx.load_model_from_string(file.getvalue())
    if asked not in (None, written):
        raise TransformError(
            f"opset is {asked}, and torch's exporter wrote operator set {written}: "
            f"ask for {written}, or leave opset out"
        )
    return made


def cause_of(error: torch.onnx.OnnxExporterError) -> BaseException:
    """What made the exporter fail: its own words name the step alone, and are the same for every model."""
    causes = [*behind(error)]
    return next((each for each in causes if not isinstance(each, torch.onnx.OnnxExporterError)), causes[-1])


@contextmanager
def quiet() -> Iterator[None]:
    """Without the exporter's own warnings and log lines."""
    with silenced(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
