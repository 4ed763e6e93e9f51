"""The layers of a lowered program: their tensors are those that it has, and what vanished puts out nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from torch import nn

from pytest_modelbudget.gate import measuring
from pytest_modelbudget.gate.asked_device import asked_deployment
from pytest_modelbudget.gate.from_python import model_source
from pytest_modelbudget.registry import tables
from pytest_modelbudget.reports.layer_table import LayerTable, layer_table
from tests.builders.model_files import exported, recorded, scripted
from tests.builders.onnx_graphs import integers, model, node, stored, value
from tests.builders.programs import program

pytestmark = pytest.mark.needs_torch
IMAGE = "float32 1x3x224x224"


def net() -> nn.Module:
    """Every 56th pixel of three channels makes 4 channels of 4x4, then 64 → 5."""
    block = nn.Sequential(nn.Conv2d(3, 4, 1, stride=56, bias=False), nn.BatchNorm2d(4), nn.ReLU())
    return nn.Sequential(block, nn.Identity(), nn.Flatten(), nn.Linear(64, 5)).eval()


def lowered_layers(source: object, inputs: object = IMAGE, **lower: object) -> LayerTable:
    registry = tables()
    written = measuring.costed_model(
        model_source(source, inputs, registry=registry, base=Path.cwd()), registry, root=Path.cwd()
    )
    deployment = asked_deployment(lower, None, registry, base=Path.cwd())
    assert deployment is not None
    _, on_device = measuring.lowered_for(deployment, written, registry)
    return layer_table(on_device.loaded, on_device.costed)


def outputs(table: LayerTable) -> dict[str, int]:
    return {row.scope: row.output_nbytes for row in table.rows if row.output_nbytes is not None}


@pytest.mark.parametrize(
    ("lower", "expected"),
    [
        pytest.param(
            {"fold_batchnorm": False, "fuse_activations": []},
            {"0.0": 4 * 64, "0.1": 4 * 64, "0.2": 4 * 64, "1": 4 * 64, "2": 4 * 64, "3": 4 * 5},
            id="as written",
        ),
        pytest.param({}, {"0.0": 4 * 64, "0.1": 0, "0.2": 0, "1": 4 * 64, "2": 4 * 64, "3": 4 * 5}, id="float32"),
        pytest.param({"dtype": "int8"}, {"0.0": 64, "0.1": 0, "0.2": 0, "1": 64, "2": 64, "3": 5}, id="int8"),
        pytest.param(
            {"dtype": "int16", "io_dtype": "float32", "in_place": "elementwise", "fuse_activations": []},
            {"0.0": 2 * 64, "0.1": 0, "0.2": 2 * 64, "1": 2 * 64, "2": 2 * 64, "3": 4 * 5},
            id="int16, in place",
        ),
    ],
)
def test_what_each_layer_puts_out(lower: dict[str, object], expected: dict[str, int]) -> None:
    """A folded norm and a fused activation are part of the convolution; aliases are the tensor that they name."""
    table = lowered_layers(net, **lower)
    assert outputs(table) == expected
    assert table.total("output_nbytes") == sum(expected.values())


@pytest.mark.parametrize("written", [scripted, recorded, exported])
@pytest.mark.filterwarnings("ignore")  # exporters' own
def test_every_format_has_the_same_layers(written: Callable[[nn.Module, Path], Path], tmp_path: Path) -> None:
    """A file knows layers by their operations alone: what vanished, and what computes nothing, has no row."""
    path = written(net(), tmp_path)
    known = outputs(lowered_layers(path, IMAGE if path.suffix == ".pt" else None, dtype="int8"))
    assert {scope: nbytes for scope, nbytes in known.items() if nbytes} == {"0.0": 64, "3": 5}


def test_what_asks_for_the_shape_of_a_tensor_that_is_gone(tmp_path: Path) -> None:
    """Shape reads what the convolution made before its norm was folded: the program stays a valid one."""
    nodes = [
        node("Conv", "x w", "conv"),
        node("BatchNormalization", "conv s b m v", "norm"),
        node("Shape", "conv", "size"),
        node("Concat", "one size", "sizes", axis=0),
        node("Reshape", "norm sizes", "y"),
    ]
    weights = [stored("w", 4, 3, 1, 1), *(stored(name, 4) for name in "sbmv"), integers("one", 1)]
    file = tmp_path / "shape.onnx"
    onnx.save(model(nodes, [value("x", 1, 3, 2, 2)], [value("y", 1, 1, 4, 2, 2)], weights), file)
    made = program(file, dtype="int8")
    assert [op.name for op in made.lowered.graph.ops if not op.is_shape_computation] == ["onnx::Conv", "onnx::Reshape"]
    assert made["peak_activation"] == 3 * 4 + 4 * 4
