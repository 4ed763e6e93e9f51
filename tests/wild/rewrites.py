"""What other tools make of an ONNX file: simplifiers, runtimes' optimisers, converters, quantisers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

WORK = Callable[[Path, Path], None]
SILENT = 3  # ONNX Runtime's level of logging


@dataclass(frozen=True)
class Rewrite:
    """A tool, what it may do to the outputs, and which networks it is tried on."""

    work: WORK
    kind: str = "exact_algebra"
    bounds: Mapping[str, float] = field(default_factory=dict)
    families: tuple[str, ...] = ()  # of inputs, where not all are meant

    def claim(self) -> dict[str, Any]:
        """What it promises, as check_equivalence takes it."""
        families = {"families": self.families} if self.families else {}
        return {"kind": self.kind, "bounds": self.bounds, **families}


def simplified_by_onnxsim(source: Path, target: Path) -> None:
    import onnxsim

    model, checked = onnxsim.simplify(onnx.load(source))
    assert checked
    onnx.save(model, target)


def simplified_by_onnxslim(source: Path, target: Path) -> None:
    import onnxslim

    onnx.save(onnxslim.slim(onnx.load(source)), target)


def optimised(level: str) -> WORK:
    """ONNX Runtime's own optimiser, as it saves what it would run."""

    def work(source: Path, target: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
        options.optimized_model_filepath = str(target)
        options.log_severity_level = SILENT
        onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    return work


def converted(opset: int) -> WORK:
    """ONNX's own converter, to another version of the operators."""

    def work(source: Path, target: Path) -> None:
        from onnx import version_converter

        onnx.save(version_converter.convert_version(onnx.load(source), opset), target)

    return work


def composed(source: Path, target: Path) -> None:
    """Every name gets a prefix, and an Identity is merged behind the outputs."""
    from onnx import compose

    model = compose.add_prefix(onnx.load(source), "net/")
    (output,) = model.graph.output
    shape = [dim.dim_value for dim in output.type.tensor_type.shape.dim]
    value = onnx.helper.make_tensor_value_info
    tail = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["t"], ["y"], name="tail")],
        "tail",
        [value("t", onnx.TensorProto.FLOAT, shape)],
        [value("y", onnx.TensorProto.FLOAT, shape)],
    )
    opsets = list(model.opset_import)
    second = onnx.helper.make_model(tail, opset_imports=opsets, ir_version=model.ir_version)
    merged = compose.merge_models(model, second, io_map=[(output.name, "t")])
    for node in merged.graph.node:  # the claim's inputs and outputs are named as before
        for names in (node.input, node.output):
            names[:] = ["x" if name == "net/x" else name for name in names]
    merged.graph.input[0].name = "x"
    onnx.save(merged, target)


def in_half(source: Path, target: Path) -> None:
    """float16 inside and float32 at the door, as ONNX Runtime's tools for transformers write it."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


def quantised_dynamically(source: Path, target: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(source, target, weight_type=QuantType.QInt8, per_channel=True)


def quantised(form: str) -> WORK:
    """Statically, calibrated on normal samples."""

    def work(source: Path, target: Path) -> None:
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

        shape = [dim.dim_value for dim in onnx.load(source).graph.input[0].type.tensor_type.shape.dim]
        draw = np.random.default_rng(0)
        samples = iter([{"x": draw.standard_normal(shape).astype(np.float32)} for _ in range(64)])

        class Reader(CalibrationDataReader):  # type: ignore[misc]
            def get_next(self) -> object:
                return next(samples, None)

        quantize_static(source, target, Reader(), quant_format=QuantFormat[form], per_channel=True)

    return work


HALF = {"sqnr": 50.0}
INT8 = {"sqnr": 20.0}
CALIBRATED = ("normal",)  # larger inputs than those of the calibration lie outside of its grids
REWRITES: Mapping[str, Rewrite] = {
    "onnxsim": Rewrite(simplified_by_onnxsim),
    "onnxslim": Rewrite(simplified_by_onnxslim),
    "ort_basic": Rewrite(optimised("BASIC")),
    "ort_extended": Rewrite(optimised("EXTENDED")),
    "ort_all": Rewrite(optimised("ALL")),
    "opset_21": Rewrite(converted(21)),
    "compose": Rewrite(composed),
    "float16": Rewrite(in_half, "lossy", HALF),
    "int8_dynamic": Rewrite(quantised_dynamically, "lossy", INT8),
    "int8_qdq": Rewrite(quantised("QDQ"), "lossy", INT8, CALIBRATED),
    "int8_qoperator": Rewrite(quantised("QOperator"), "lossy", INT8, CALIBRATED),
}
