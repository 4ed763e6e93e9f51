"""What a comparison leaves out stands in one table, which the docs print, and each row is said or harmless."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from pytest_modelbudget import check_equivalence


def written(file: Path, graph: str, opset: int = 17) -> Path:
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g {graph}'), str(file))
    return file


def test_class1_a_guessed_range_of_integers_is_said(tmp_path: Path) -> None:
    """An input of integers that indexes nothing is 0 and 1, and the report says so."""
    file = written(tmp_path / "a.onnx", "(int64[4] x) => (int64[4] y) { y = Add(x, x) }")
    result = check_equivalence(file, file)
    assert result.outcome == "within"
    assert any("0 and 1" in note for note in result.notes)


def test_class1_rows_run_as_one_are_still_each_held(tmp_path: Path) -> None:
    """A model that mixes its rows (a sum over the batch) is run row by row, and a changed one is found."""
    mixes = "(float[4, 4] x) => (float[4, 4] y) {{ s = ReduceMax<axes=[0], keepdims=1>(x) t = {}(s, s) y = Add(x, t) }}"
    first = written(tmp_path / "a.onnx", mixes.format("Add"))
    second = written(tmp_path / "b.onnx", mixes.format("Mul"))
    assert check_equivalence(first, first).outcome == "within"
    assert check_equivalence(first, second).outcome == "over"


@pytest.mark.parametrize("row", [0, 7])
def test_class1_rows_of_tables_without_a_partner_are_counted(tmp_path: Path, row: int) -> None:
    """A table that the other file keeps turned, under another name: read rows are compared, the rest is counted."""
    table = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)

    def stored(name: str, values: np.ndarray) -> str:  # type: ignore[type-arg]
        numbers = ", ".join(map(str, values.ravel()))
        return f"float[{', '.join(map(str, values.shape))}] {name} = {{{numbers}}}"

    turned = table.T.copy()
    turned[:, row] += 1.0
    first = written(
        tmp_path / "a.onnx", f"(int64[2] i) => (float[2, 3] y) <{stored('w', table)}> {{ y = Gather<axis=0>(w, i) }}"
    )
    second = written(
        tmp_path / "b.onnx",
        f"(int64[2] i) => (float[2, 3] y) <{stored('v', turned)}> "
        "{ g = Gather<axis=1>(v, i) y = Transpose<perm=[1, 0]>(g) }",
    )
    result = check_equivalence(first, second)
    assert result.outcome != "within" or any("were read" in note for note in result.notes)
