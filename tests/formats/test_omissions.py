"""What graphs and comparisons leave out is listed in one place, with reasons."""

import pytest

from tests.builders.omissions import omissions


@pytest.mark.parametrize(
    ("heading", "places"),
    [
        ("Torch models", {"recorder", "doors", "weights", "layers"}),
        ("ONNX files", {"file", "reader", "inference"}),
        ("Comparisons", {"inputs", "runs", "layers", "branches", "stored tensors"}),
    ],
)
def test_class1_every_row_has_a_place_and_a_reason(heading: str, places: set[str]) -> None:
    """What is left out without a reason is a hole."""
    rows = omissions(heading)
    assert {row.place for row in rows} == places
    assert all(row.what and len(row.because.split()) > 4 for row in rows)
