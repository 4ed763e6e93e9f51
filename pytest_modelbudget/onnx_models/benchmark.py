"""ONNX models on the clock: ONNX Runtime as it is deployed, with its own optimisations."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import onnx
import onnxruntime

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.benchmark import PROFILED, MissingDeviceError, Plan, Processor, Timing
from pytest_modelbudget.graph.graph import UNKNOWN_LAYER
from pytest_modelbudget.onnx_models.exporter_names import scope_of
from pytest_modelbudget.onnx_models.inputs import Feeds
from pytest_modelbudget.onnx_models.protos import all_graphs
from pytest_modelbudget.onnx_models.session import CPU, FATAL_ONLY

PROVIDERS = {Processor.CPU: CPU, Processor.CUDA: "CUDAExecutionProvider"}
RAN, BLOCKED, FUSED = "_kernel_time", "_nchwc", "fused "  # around the name of a node: timed, in blocks, with another
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
    seconds = plan.timed(lambda: _seconds(session, inputs))
    if plan.trace is not None:
        _write_trace(model, inputs, plan, plan.trace)
    return Timing(seconds, f"the CPU ({platform.machine()})" if plan.device is Processor.CPU else plan.device.value)


def _session(model: onnx.ModelProto, provider: str, threads: int, trace: Path | None = None) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = FATAL_ONLY
    options.enable_profiling, options.profile_file_prefix = trace is not None, str(trace)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[provider])


def _seconds(session: Any, inputs: Feeds) -> float:
    began = perf_counter()
    session.run(None, inputs)
    return perf_counter() - began


def _write_trace(model: onnx.ModelProto, inputs: Feeds, plan: Plan, path: Path) -> None:
    """Some more calls, by ONNX Runtime's own profiler: it writes what Chrome reads, and here each node's module."""
    with TemporaryDirectory() as folder:
        session = _session(model, PROVIDERS[plan.device], plan.threads, Path(folder, "trace"))
        for _ in range(plan.warmup + min(PROFILED, plan.repeats)):
            session.run(None, inputs)
        events = json.loads(Path(session.end_profiling()).read_bytes())
    module_of = _modules(model)
    for event in events:
        if said := event.get("args", {}) if event["cat"] == "Node" else {}:
            said["module"] = module_of(event["name"].removesuffix(RAN), said["op_name"])
            said["Bytes"] = int(said["output_size"])
    path.write_text(json.dumps(events))


def _modules(model: onnx.ModelProto) -> Callable[[str, str], str]:
    """Tells the module of a node of a session by its name and operator; that of a fused one by what it gives."""
    nodes = [node for graph in all_graphs(model.graph) for node in graph.node]
    named = {node.name: node for node in nodes if node.name}
    producers = {name: node for node in nodes for name in node.output}

    def module_of(name: str, kind: str) -> str:
        name = name.removeprefix(FUSED)
        node = named.get(name) or producers.get(name.removesuffix(BLOCKED))
        while node and node.op_type != kind and name not in named:
            node = producers.get(node.input[0]) if node.input else None
        return scope_of(node) if node else UNKNOWN_LAYER

    return module_of
