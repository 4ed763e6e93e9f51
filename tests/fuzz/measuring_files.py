"""Measures damaged files one after the other, with bounded memory: python measuring_files.py FOLDER INPUTS.

A TorchScript file, which does not say what it takes, is measured with these inputs, and any other with its own.

A line is written before each file and one after it: refused, incomplete, measured, or what must not
be. Whoever started the process bounds its time, and knows from the last line which file hung.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

MOST_MEMORY = 12 * 2**30  # of addresses: torch maps several GiB of its own
FLOATS = (1, 10, 11, 16)  # ONNX's float32, float16, float64, bfloat16
PRODUCTS = ("Conv", "Gemm", "MatMul")


def onnx_params(path: Path) -> tuple[int, int]:
    """Least and most parameters that a file can have: what products read as a weight, and all that is stored."""
    import onnx

    model = onnx.load(path)
    stored = {t.name: math.prod(t.dims) for t in model.graph.initializer if len(t.dims)}
    floating = {t.name: stored[t.name] for t in model.graph.initializer if t.data_type in FLOATS and len(t.dims)}
    weights = {node.input[1] for node in model.graph.node if node.op_type in PRODUCTS and len(node.input) > 1}
    return sum(floating.get(name, 0) for name in weights), sum(stored.values())


def torch_params(path: Path) -> tuple[int, int]:
    """The parameters that torch itself reads from a file, which is one number."""
    import torch

    if path.suffix == ".pt2":
        program = torch.export.load(path)
        count = sum(program.state_dict[name].numel() for name in program.graph_signature.parameters)
    else:
        count = sum(parameter.numel() for parameter in torch.jit.load(path).parameters())
    return count, count


def judged(path: Path, inputs: str | None) -> dict[str, Any]:
    """What the gate says of one file, and whether its numbers can be true."""
    from pytest_modelbudget import measure
    from pytest_modelbudget.errors import ModelBudgetError

    try:
        measured = measure(path, inputs)
    except ModelBudgetError as error:
        return {"outcome": "refused" if str(error).strip() else "refused without a word"}
    incomplete = [key for key, number in measured.items() if not number.complete]
    negative = [key for key, number in measured.items() if number.value < 0]
    if negative:
        return {"outcome": "negative", "keys": negative}
    if "params" in incomplete:
        return {"outcome": "incomplete", "keys": incomplete}
    params = int(measured["params"].value)
    least, most = (onnx_params if path.suffix == ".onnx" else torch_params)(path)
    if not least <= params <= most:
        return {"outcome": "another number", "params": params, "expected": [least, most]}
    if measured["peak_activation"].complete and measured["total_activation"].complete:
        edges = int(measured["bandwidth_floor"].value)
        if measured["peak_activation"].value > measured["total_activation"].value + edges:
            return {"outcome": "peak above all"}
    return {"outcome": "incomplete" if incomplete else "measured", "params": params}


def main(folder: Path, inputs: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    warnings.simplefilter("ignore")
    for path in sorted(folder.iterdir()):
        print(json.dumps({"file": path.name}), flush=True)
        try:
            line = judged(path, inputs if path.suffix == ".pt" else None)
        except BaseException:  # noqa: BLE001  # nothing may come out but what measuring promises
            line = {"outcome": "traceback", "text": traceback.format_exc()[-2000:]}
        print(json.dumps({"file": path.name, **line}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
