"""Two ONNX files that must agree: rearranged weights, weights rounded anew, and wrong ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.equivalence.judgement import Basis, Equivalence
from pytest_modelbudget.equivalence.outcome import Outcome
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.transforms.compare_onnx import compared_files
from pytest_modelbudget.transforms.fold_batchnorm_onnx import folded_batchnorms
from pytest_modelbudget.transforms.onnx_writing import linear_model, write_model
from pytest_modelbudget.transforms.tile_grid import Tile
from pytest_modelbudget.transforms.tile_linear_onnx import Tiling, tiled_linears

from ..equivalence.test_onnx_equivalence import change, network
from ..frontends.onnx_graphs import node
from .onnx_linears import linear
from .test_fold_batchnorm_onnx import normalised


def compared(first: onnx.ModelProto, second: onnx.ModelProto, folder: Path) -> Equivalence:
    """Two models through files."""
    paths = folder / "first.onnx", folder / "second.onnx"
    for proto, path in zip((first, second), paths, strict=True):
        write_model(proto, path)
    return compared_files(*paths, Claim(seeds=(0, 1)), {})


@pytest.mark.parametrize("pads", [False, True], ids=["ragged", "pad"])
def test_a_twin_made_elsewhere(pads: bool, tmp_path: Path) -> None:
    """A tiled file is the same model: its weights are the same numbers in other tensors."""
    proto = network("float32")
    twin = tiled_linears(proto, Tiling(Tile(None, 64, 64, pads=pads))).model
    found = compared(proto, twin, tmp_path)
    assert (found.outcome, found.basis, found.weights) == (
        Outcome.WITHIN, Basis.NETWORK, "as loaded",
    )  # fmt: skip


def test_weights_that_were_rounded_anew(tmp_path: Path) -> None:
    """A folding stored in float32 differs by its rounding: step 2 alone decides, and says so."""
    proto = normalised("Conv")
    found = compared(proto, folded_batchnorms(proto).model, tmp_path)
    assert found.outcome is Outcome.WITHIN
    assert found.basis is Basis.NOTHING
    assert found.notes == (
        "precision only: the second model stores other weights than the first",
    )  # fmt: skip


def test_one_name_for_two_values(tmp_path: Path) -> None:
    """An exporter calls a folded convolution as it called the one before its batch norm."""
    proto = normalised("Conv", bias=False)
    twin = folded_batchnorms(proto).model
    twin.graph.node[0].output[0] = "c"
    twin.graph.node.append(node("Identity", "c", "y"))
    assert proto.graph.node[0].output[0] == "c"
    found = compared(proto, twin, tmp_path)
    assert found.outcome is Outcome.WITHIN, found.reason


def test_half_types_need_step_1(tmp_path: Path) -> None:
    """In float16 rounding hides too much for step 2 alone."""
    proto = normalised("Conv", dtype="float16")
    found = compared(proto, folded_batchnorms(proto).model, tmp_path)
    assert found.outcome is Outcome.UNKNOWN
    assert "float16 alone proves nothing" in found.reason


def test_one_weight_that_differs(tmp_path: Path) -> None:
    """More than rounding explains is over, whoever made the file."""
    proto, other = network("float32"), network("float32")
    change(other, "w1", lambda values: values * np.where(values == values[3, 4], 1.5, 1.0))
    found = compared(proto, other, tmp_path)
    assert found.outcome is Outcome.OVER
    assert found.first_divergence is not None
    assert found.first_divergence.scope == "fc1"


@pytest.mark.parametrize("share", [1e-4, 1e-5, 1e-6])
def test_one_weight_that_differs_by_little_was_not_rounded(share: float, tmp_path: Path) -> None:
    """Among 11,700 that are the same, one that is off is no rounding, however little it is off."""
    proto, other = network("float32"), network("float32")
    change(other, "w1", lambda w: w * np.where(abs(w) == abs(w).max(), 1 + share, 1.0))
    found = compared(proto, other, tmp_path)
    assert (found.outcome, found.basis) == (Outcome.OVER, Basis.NETWORK)
    assert found.first_divergence is not None
    assert found.first_divergence.scope == "fc1"


def test_all_weights_off_by_one_unit_may_have_been_rounded(tmp_path: Path) -> None:
    """Each is the next number in float32: what a rounding on another way makes."""
    proto, other = network("float32"), network("float32")
    change(other, "w1", lambda values: np.nextafter(values, np.float32(0)))
    found = compared(proto, other, tmp_path)
    assert (found.outcome, found.basis) == (Outcome.WITHIN, Basis.NOTHING), found.reason


def test_layers_under_other_names(tmp_path: Path) -> None:
    """The first layer that differs is found by value where no name is the same."""
    proto, other = network("float32"), network("float32")
    change(other, "w1", lambda values: values * np.where(values == values[3, 4], 1.5, 1.0))
    kept = {"x", "fc2", "second"}
    for each in other.graph.node:
        each.name = f"renamed {each.name}"
        for names in (each.input, each.output):
            names[:] = [n if n in kept or n[0] in "wb" else f"renamed {n}" for n in names]
    found = compared(proto, other, tmp_path)
    assert found.first_divergence is not None
    assert found.first_divergence.scope == "fc1"


def test_weights_that_are_not_there(tmp_path: Path) -> None:
    """A file whose weights lie in a file that is missing cannot be compared."""
    path = tmp_path / "first.onnx"
    write_model(linear(65, 30), path, largest=0)
    assert compared_files(path, path, Claim(seeds=(0,)), {}).outcome is Outcome.WITHIN
    (tmp_path / "first.onnx.data").unlink()
    with pytest.raises(TransformError, match="lie in a file that is not there"):
        compared_files(path, path, Claim(), {})


def test_a_large_model_is_two_files(tmp_path: Path) -> None:
    """Above the size of one message the weights lie beside the graph, and are written anew."""
    path, small = tmp_path / "large.onnx", tmp_path / "small.onnx"
    proto = linear_model(4, 65, 30)
    for _ in range(2):
        write_model(proto, path, largest=1000)
    write_model(proto, small)
    onnx.checker.check_model(path, full_check=True)
    assert (tmp_path / "large.onnx.data").stat().st_size < 1.5 * 4 * (65 * 30 + 30)
    assert not (tmp_path / "small.onnx.data").exists()
    assert compared_files(path, small, Claim(seeds=(0,)), {}).outcome is Outcome.WITHIN


def test_other_inputs_are_other_models(tmp_path: Path) -> None:
    """Files that take other inputs are not the same, and nothing is run."""
    found = compared(linear_model(4, 8, 8), linear_model(4, 8, 8, dtype="float16"), tmp_path)
    assert found.outcome is Outcome.OVER
    assert "input 'x' is float16 and was float32" in found.reason
