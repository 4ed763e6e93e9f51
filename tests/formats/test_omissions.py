"""What graphs and comparisons leave out is listed in one place, with reasons."""

import pytest

from pytest_modelbudget.formats.omissions import OF_COMPARISONS, OF_ONNX_FILES, OF_TORCH_MODELS, Omission


@pytest.mark.parametrize(
    ("omissions", "places"),
    [
        (OF_TORCH_MODELS, {"recorder", "doors", "weights", "layers"}),
        (OF_ONNX_FILES, {"file", "reader", "inference"}),
        (OF_COMPARISONS, {"inputs", "runs", "layers", "branches", "stored tensors"}),
    ],
    ids=["torch models", "ONNX files", "comparisons"],
)
def test_class1_every_row_has_a_place_and_a_reason(omissions: tuple[Omission, ...], places: set[str]) -> None:
    """What is left out without a reason is a hole."""
    assert {row.place for row in omissions} == places
    assert all(row.what and len(row.because.split()) > 4 for row in omissions)
