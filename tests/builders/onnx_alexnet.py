"""AlexNet as an ONNX model with drawn weights, in both types that ONNX Runtime has on a CPU."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.onnx_models.weights import redrawn
from pytest_modelbudget.registry import tables
from pytest_modelbudget.transforms.on_onnx import Rewritten
from tests.builders.marks import ALL_MODELS
from tests.builders.onnx_judgements import in_memory, judged_beside

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 4096 if ALL_MODELS else 1024  # of its linear layers
SCRIPT = ROOT / "examples" / "tiling" / "write_tiling_models.py"


def drawn_alexnet(width: int = 4096) -> onnx.ModelProto:
    """AlexNet with drawn weights, for any batch; its first two linear layers as wide as said."""
    built: onnx.ModelProto = runpy.run_path(str(SCRIPT))["alexnet"](drawn=False)
    for tensor in built.graph.initializer:
        if tensor.name.startswith("classifier"):
            tensor.dims[:] = [width if size == 4096 else size for size in tensor.dims]
    return redrawn(built, tables().ops)


def in_half(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same network stored and computed in float16."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for tensor in made.graph.initializer:
        half = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(half, tensor.name))
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return made


def judged(proto: onnx.ModelProto, twin: Rewritten) -> Equivalence:
    """One seed of each family, both steps."""
    original, claim = in_memory(proto, {"batch": 1}), Claim(seeds=(0,))
    return judged_beside(original, twin.model, claim, partial_sums=twin.partial_sums)
