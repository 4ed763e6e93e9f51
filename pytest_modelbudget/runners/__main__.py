"""Runners that come with the project: ``python -m pytest_modelbudget.runners litert {model} {inputs} {outputs}``.

Each runs one file on the arrays of one ``.npz``, and writes another one. Names that are not the file's are taken in its
order. ``--provider`` chooses one of ONNX Runtime; ``--layers`` writes all tensors of a TFLite file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]


def litert(options: argparse.Namespace, inputs: Arrays) -> Arrays:
    """A TFLite file in LiteRT's interpreter; floats are quantised and back by the scales of the file."""
    interpreter = import_module("ai_edge_litert.interpreter").Interpreter(
        model_path=options.model, experimental_preserve_all_tensors=options.layers
    )
    details = interpreter.get_input_details()
    for detail, values in zip(details, named([each["name"] for each in details], inputs), strict=True):
        interpreter.resize_tensor_input(detail["index"], values.shape)
    interpreter.allocate_tensors()
    for detail, values in zip(details, named([each["name"] for each in details], inputs), strict=True):
        interpreter.set_tensor(detail["index"], quantised(values, detail))
    interpreter.invoke()
    wanted = interpreter.get_tensor_details() if options.layers else interpreter.get_output_details()
    found = {}
    for detail in (each for each in wanted if each["name"]):
        try:
            found[detail["name"]] = dequantised(interpreter.get_tensor(detail["index"]), detail)
        except ValueError:  # of a tensor that has no values, such as what a delegate took in
            continue
    return found


def quantised(values: Any, detail: Mapping[str, Any]) -> Any:
    """Values in the type of a tensor, by its scale and zero point where that is of integers."""
    scale, zero = detail["quantization"]
    if values.dtype.kind != "f" or not scale:
        return values.astype(detail["dtype"])
    ends = np.iinfo(detail["dtype"])
    return np.clip(np.rint(values / scale) + zero, ends.min, ends.max).astype(detail["dtype"])


def dequantised(values: Any, detail: Mapping[str, Any]) -> Any:
    """Values of a tensor as floats, where it has a scale."""
    scale, zero = detail["quantization"]
    return ((values.astype(np.float64) - zero) * scale).astype(np.float32) if scale else values


def onnxruntime(options: argparse.Namespace, inputs: Arrays) -> Arrays:
    """An ONNX file in ONNX Runtime, as it is deployed, with the provider that is asked for."""
    session = import_module("onnxruntime").InferenceSession(options.model, providers=[options.provider])
    if session.get_providers()[0] != options.provider:
        raise SystemExit(f"ONNX Runtime has no {options.provider} here: it has {', '.join(session.get_providers())}")
    names = [each.name for each in session.get_inputs()]
    values = session.run(None, dict(zip(names, named(names, inputs), strict=True)))
    return {each.name: array for each, array in zip(session.get_outputs(), values, strict=True)}


def executorch(options: argparse.Namespace, inputs: Arrays) -> Arrays:
    """A program in ExecuTorch's runtime; its outputs are called by their positions."""
    import_module("executorch.kernels.quantized")  # for programs in integers without a delegate
    torch = import_module("torch")
    program = import_module("executorch.runtime").Runtime.get().load_program(options.model)
    if "forward" not in program.method_names:
        raise SystemExit(f"the program has no method forward: it has {', '.join(sorted(program.method_names))}")
    outputs = program.load_method("forward").execute([torch.from_numpy(values) for values in inputs.values()])
    return {str(at): tensor.numpy() for at, tensor in enumerate(outputs)}


def named(names: Sequence[str], inputs: Arrays) -> list[Any]:
    """The inputs in the order of these names; in their own order where they have others."""
    if len(names) != len(inputs):
        raise SystemExit(f"the file takes {len(names)} inputs, {', '.join(names)}, and {len(inputs)} are given")
    return [inputs[name] for name in names] if set(names) == set(inputs) else [*inputs.values()]


RUNTIMES: Mapping[str, tuple[str, Callable[[argparse.Namespace, Arrays], Arrays]]] = {  # with the package of each
    "litert": ("ai-edge-litert", litert),
    "onnxruntime": ("onnxruntime", onnxruntime),
    "executorch": ("executorch", executorch),
}


def main() -> None:
    """Run one file."""
    parser = argparse.ArgumentParser(prog="python -m pytest_modelbudget.runners", description="run a model on arrays")
    parser.add_argument("runtime", choices=RUNTIMES)
    for name in ("model", "inputs", "outputs"):
        parser.add_argument(name)
    parser.add_argument("--provider", default="CPUExecutionProvider", help="of ONNX Runtime")
    parser.add_argument("--layers", action="store_true", help="write every tensor of a TFLite file")
    options = parser.parse_args()
    with np.load(options.inputs, allow_pickle=False) as loaded:
        inputs = {name: loaded[name] for name in loaded.files}
    package, run = RUNTIMES[options.runtime]
    try:
        outputs = run(options, inputs)
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}: pip install {package}") from error
    np.savez(options.outputs, **dict(outputs))


if __name__ == "__main__":
    main()
