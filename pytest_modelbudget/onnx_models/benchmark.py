"""ONNX models on the clock: ONNX Runtime as it is deployed, with its own optimisations."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import onnx
import onnxruntime

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.benchmark import MissingDeviceError, Plan, Processor, Timing
from pytest_modelbudget.onnx_models.inputs import Feeds
from pytest_modelbudget.onnx_models.session import CPU, FATAL_ONLY

PROVIDERS = {Processor.CPU: CPU, Processor.CUDA: "CUDAExecutionProvider"}
NO_MEMORY = "ONNX Runtime does not say how much memory a call holds: limit peak_activation and weight_memory instead"


def time_calls(model: onnx.ModelProto, inputs: Feeds, plan: Plan) -> Timing:
    """What the calls of one session take, from arrays to arrays."""
    provider = PROVIDERS[plan.device]
    if provider not in onnxruntime.get_available_providers():
        raise MissingDeviceError(f"the installed ONNX Runtime has no {provider}")
    if plan.memory:
        raise TransformError(NO_MEMORY)
    session = _session(model, provider, plan.threads)
    if provider not in session.get_providers():  # built in, and not usable here
        raise MissingDeviceError(f"ONNX Runtime's {provider} finds no device here")
    for _ in range(plan.warmup):
        session.run(None, inputs)
    seconds = tuple(_seconds(session, inputs) for _ in range(plan.repeats))
    if plan.trace is not None:
        _write_trace(model, inputs, provider, plan.threads, plan.trace)
    name = f"the CPU ({platform.machine()})" if plan.device is Processor.CPU else plan.device.value
    return Timing(seconds, name)


def _session(
    model: onnx.ModelProto, provider: str, threads: int, trace: Path | None = None
) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = FATAL_ONLY
    if trace is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(trace)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[provider])


def _seconds(session: onnxruntime.InferenceSession, inputs: Feeds) -> float:
    began = perf_counter()
    session.run(None, inputs)
    return perf_counter() - began


def _write_trace(model: onnx.ModelProto, inputs: Feeds, provider: str, threads: int, path: Path) -> None:
    """One more call, by ONNX Runtime's own profiler: it writes what Chrome reads."""
    with TemporaryDirectory() as folder:
        session = _session(model, provider, threads, Path(folder, "trace"))
        session.run(None, inputs)
        shutil.move(session.end_profiling(), path)
