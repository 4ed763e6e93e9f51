"""A lowered program is the same one from every format, and as small as other tools make it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import nn

from pytest_modelbudget.deployment.arena import buffers_of
from tests.builders.model_files import SHAPE, export, exported, recorded, scripted
from tests.builders.programs import IMAGE, Program, program
from tests.builders.quantised_nets import NETS, quantised_files

pytestmark = [pytest.mark.needs_torch, pytest.mark.filterwarnings("ignore")]  # exporters' own

Written = Callable[[nn.Module, Path], Path]


def onnx_file(**options: Any) -> Written:
    def written(model: nn.Module, folder: Path) -> Path:
        path = folder / "model.onnx"
        export(model, torch.zeros(SHAPE), path, dynamo=False, **options)
        return path

    return written


FORMATS: Mapping[str, Written] = {
    "scripted": scripted,
    "traced": recorded,
    "exported": exported,
    "ONNX, folded by the exporter": onnx_file(),
    "ONNX, norms as they are": onnx_file(do_constant_folding=False, training=torch.onnx.TrainingMode.PRESERVE),
}
# What is asked for, and bytes of memory at the peak.
LOWERINGS: tuple[tuple[dict[str, Any], int], ...] = (
    ({}, 4 * 96 * (112**2 + 56**2)),
    ({"dtype": "int8"}, 96 * (112**2 + 56**2)),
    ({"dtype": "int8", "in_place": "depthwise"}, 112**2 * (16 + 96)),
)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_mobilenet_v2_from_every_format(form: str, tmp_path: Path) -> None:
    path = FORMATS[form](torchvision.models.mobilenet_v2().eval(), tmp_path)
    inputs = IMAGE if path.suffix == ".pt" else None
    for lowering, peak in LOWERINGS:
        lowered = program(path, inputs, **lowering)
        assert lowered["peak_activation"] == peak, lowering
        assert lowered["macs"] == 300_774_272
        assert not lowered.lowered.left


# Zero points of a byte that a QDQ file stores beside the scales: one for each output channel of a weight.
ZERO_POINTS = {
    "conv_relu_conv": 16 + 16,
    "residual": 8 + 8 + 8 + 4,
    "depthwise": 8 + 16 + 10,
    "branches": 6 + 6 + 4,
    "attention": 4 * 16 + 32 + 5,  # and one for each bias that is added by itself
}


def sizes(made: Program, *, edges_inside: bool) -> list[int]:
    return sorted(buffer.nbytes for buffer in buffers_of(made.lowered.graph, edges_inside=edges_inside))


@pytest.mark.parametrize("net", NETS)
def test_int8_is_as_small_as_the_file_that_onnx_runtime_quantises(net: str, tmp_path: Path) -> None:
    """The float file lowered, and the QDQ file that another tool makes of it: the same buffers, weights and scales.

    The file's own edges are floating, and its first and last tensors of integers stand for them.
    """
    files = quantised_files(net, tmp_path, per_channel=True)
    lowered, quantised = program(files["float"], dtype="int8"), program(files["QDQ"])
    assert sizes(lowered, edges_inside=True) == sizes(quantised, edges_inside=False)
    assert lowered["weight_memory"] + ZERO_POINTS[net] == quantised["weight_memory"]
    assert lowered["macs"] == quantised["macs"]
    assert not lowered.lowered.left


OF_RANK_0 = {"attention": 5}  # zero points of whole tensors are parts of instructions, and move nothing


@pytest.mark.parametrize("net", NETS)
def test_int8_moves_what_the_quantised_file_moves(net: str, tmp_path: Path) -> None:
    """The same bytes as of the QDQ file that ONNX Runtime's quantiser writes, but for what quantises its edges."""
    files = quantised_files(net, tmp_path, per_channel=True)
    lowered, quantised = program(files["float"], dtype="int8"), program(files["QDQ"])
    inner = [cost.traffic for cost in quantised.costed.costs if cost.kind not in {"quantize", "dequantize"}]
    assert lowered["bandwidth"] + ZERO_POINTS[net] - OF_RANK_0.get(net, 0) == sum(each.total for each in inner)
