"""A model format for tests that runs without a framework: a JSON file says what its layers and its clock give.

Of inputs x (batch, channels), "double" gives 2x, "relu" max(x, 0), "narrow" the first column alone as a row, and "odd"
log(x), which is NaN below zero. The file: {"seconds": [0.01, ...], "peak": 100, "device": "cpu"}.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.benchmark import MissingDeviceError, Plan, Timing
from pytest_modelbudget.formats.model import DrawnInputs, LayerValue, LoadedModel, Output, Run, RunnableModel, Watch
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.graph.graph import Graph
from pytest_modelbudget.graph.tensor import DType, Storage, StorageKind, dense
from pytest_modelbudget.ops.table import OpTable

LAYERS: dict[str, Any] = {
    "body.double": lambda x: 2 * x,
    "body.relu": lambda x: np.maximum(x, 0),
    "head.narrow": lambda x: x[:, 0],
    "head.odd": lambda x: np.log(x),
}


def load(source: ModelSource, rules: OpTable) -> Numbers:
    return Numbers(source)


class Numbers(RunnableModel):
    """The model in a file."""

    def __init__(self, source: ModelSource) -> None:
        self.spec: Any = source.inputs.positional[0]
        self.file: Path = source.base / str(source.target)

    @property
    def measured(self) -> LoadedModel:
        x = dense("x", self.spec.shape, DType("float32", 32), Storage("x", 4, StorageKind.ACTIVATION))
        return LoadedModel(Graph((), (x,), (x,), ()), "numbers")

    @property
    def inputs(self) -> DrawnInputs:
        return DrawnInputs({"x": self.spec}, stacks=True)

    @property
    def dtype(self) -> str:
        return ""

    def run(self, inputs: Any, watch: Watch = Watch()) -> Run:  # noqa: B008  # frozen
        assert watch.probe is not None
        for path, layer in LAYERS.items():
            kind = path.partition(".")[2].capitalize()
            if watch.probe.wants(path, (kind,), False):
                with np.errstate(invalid="ignore", divide="ignore"):
                    watch.probe.take(LayerValue(path, path, kind, "float32", layer(inputs["x"])))
        return Run((Output("0", "float32", inputs["x"]),))

    def timed(self, inputs: Any, plan: Plan) -> Timing:
        told = json.loads(self.file.read_text())
        if plan.device.value != told["device"]:
            raise MissingDeviceError("no such device here")
        if plan.memory and "peak" not in told:
            raise TransformError("nobody tells the memory")
        if plan.trace is not None:
            plan.trace.write_text(json.dumps(told.get("trace", [])))
        return Timing(tuple(told["seconds"]), told["device"], told.get("peak") if plan.memory else None)
