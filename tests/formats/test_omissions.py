"""What graphs and comparisons leave out stands in one place, with reasons, and the docs print it."""

from pathlib import Path

import pytest

from pytest_modelbudget.formats.omissions import OF_COMPARISONS, OF_ONNX_FILES, OF_TORCH_MODELS, Omission

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("omissions", "page", "word", "places"),
    [
        (OF_TORCH_MODELS, "conventions.md", "by", {"recorder", "doors", "weights", "layers"}),
        (OF_ONNX_FILES, "conventions.md", "in", {"file", "reader", "inference"}),
        (OF_COMPARISONS, "transforms.md", "of", {"inputs", "runs", "layers", "branches", "stored tensors"}),
    ],
    ids=["torch models", "ONNX files", "comparisons"],
)
def test_class1_the_docs_print_every_row(
    omissions: tuple[Omission, ...], page: str, word: str, places: set[str]
) -> None:
    """Word for word, and no other; what is left out without a reason is a hole."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    start = lines.index(f"| {word} | left out | because |") + 2
    assert lines[start : lines.index("", start)] == [f"| {r.place} | {r.what} | {r.because} |" for r in omissions]
    assert {row.place for row in omissions} == places
    assert all(row.what and len(row.because.split()) > 4 for row in omissions)
