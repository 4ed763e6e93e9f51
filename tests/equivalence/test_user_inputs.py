"""Inputs, families, rows and bounds of families that a claim names."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_modelbudget.equivalence.claim import Bound, Claim, Kind
from pytest_modelbudget.equivalence.inputs import FAMILIES, affordable_rows, families_of, runs_of
from pytest_modelbudget.equivalence.judgement import Decision
from pytest_modelbudget.equivalence.user_inputs import GivenInputs, given_rows
from pytest_modelbudget.errors import InputError
from pytest_modelbudget.formats.source import TensorSpec

SPECS = {"image": TensorSpec("float32", (2, 3)), "ids": TensorSpec("int64", (2,))}
IMAGE, IDS = np.arange(24, dtype=np.float32).reshape(8, 3), np.arange(8)


def written(path: Path, **arrays: Any) -> GivenInputs:
    np.savez(path / "x.npz", **arrays)
    return GivenInputs("x.npz", path)


def test_rows_of_a_file_are_calls_of_the_model(tmp_path: Path) -> None:
    """Eight rows of a model of two are four calls, in the order of the model's inputs."""
    rows, notes = given_rows(written(tmp_path, ids=IDS, image=IMAGE), SPECS)
    assert ([list(row) for row in rows], notes) == ([["image", "ids"]] * 4, ())
    assert [row["ids"].tolist() for row in rows] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert np.array_equal(np.concatenate([row["image"] for row in rows]), IMAGE)


def test_an_array_file_is_the_only_input(tmp_path: Path) -> None:
    """A .npy has no name in it."""
    np.save(tmp_path / "x.npy", IMAGE)
    rows, _ = given_rows(GivenInputs("x.npy", tmp_path), {"image": SPECS["image"]})
    assert len(rows) == 4


def test_a_scalar_input_is_given_as_it_is(tmp_path: Path) -> None:
    """What has no first axis has one call."""
    rows, _ = given_rows(written(tmp_path, t=np.float32(3)), {"t": TensorSpec("float32", ())})
    assert [row["t"].tolist() for row in rows] == [3.0]


def calls() -> Iterator[dict[str, Any]]:
    for at in range(3):
        yield {"image": IMAGE[:2] + np.float32(at), "ids": IDS[:2]}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        pytest.param(calls, 3, id="a generator function"),
        pytest.param(list(calls()), 3, id="a list of mappings"),
        pytest.param({"image": IMAGE, "ids": IDS}, 4, id="one mapping"),
        pytest.param([(IMAGE, IDS)], 4, id="in the order of the inputs"),
        pytest.param(f"{__name__}:calls", 3, id="by name"),
    ],
)
def test_a_callable_yields_mappings(source: Any, count: int) -> None:
    """Each is one call, or several in its rows."""
    rows, notes = given_rows(GivenInputs(source), SPECS)
    assert (len(rows), notes) == (count, ())


def test_a_callable_that_never_ends_is_cut_and_said() -> None:
    """1,024 calls are taken."""

    def endless() -> Iterator[Any]:
        while True:
            yield IMAGE[:2]

    rows, notes = given_rows(GivenInputs(endless), {"image": SPECS["image"]})
    assert (len(rows), notes) == (1024, ("inputs: the first 1,024 calls of a function",))


def pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object))
    return file.getvalue()


def archive(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, content in members.items():
            made.writestr(name, content)
    return file.getvalue()


WHOLE = io.BytesIO()
np.savez(WHOLE, image=IMAGE, ids=IDS)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(None, "x.npz does not exist", id="missing"),
        pytest.param(b"", "x.npz raised BadZipFile", id="empty file"),
        pytest.param(b"hello", "x.npz raised BadZipFile", id="no archive"),
        pytest.param(WHOLE.getvalue()[:300], "x.npz raised BadZipFile", id="cut off"),
        pytest.param(archive(**{"image.npy": pickled()}), "allow_pickle=False", id="pickled"),
        pytest.param(archive(**{"image.npy": b"\x93NUMPY\x01\x00"}), "x.npz raised ValueError", id="broken array"),
        pytest.param(archive(**{"image": b"hello"}), "'image' of x.npz is a bytes", id="no array"),
        pytest.param(archive(), "no array for input 'image'", id="no members"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, content: bytes | None, says: str) -> None:
    """One sentence each; nothing is unpickled."""
    if content is not None:
        (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(InputError) as raised:
        given_rows(GivenInputs("x.npz", tmp_path), SPECS)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


NAN = np.where(IMAGE == 5, np.nan, IMAGE).astype(np.float32)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        pytest.param({"imgae": IMAGE, "ids": IDS}, "has 'imgae', which is no input: did you mean 'image'?", id="slip"),
        pytest.param({"zz": IMAGE, "ids": IDS}, "which is no input: the model takes 'image', 'ids'", id="no input"),
        pytest.param({"image": IMAGE}, "no array for input 'ids'", id="one too few"),
        pytest.param({"image": IMAGE, "ids": IDS, "more": IDS}, "has 'more', which is no input", id="one too many"),
        pytest.param({"image": IMAGE.astype("f8"), "ids": IDS}, "is float64, and the model takes float32: write "
                     "array.astype('float32')", id="type"),
        pytest.param({"image": IMAGE, "ids": IDS.astype("i4")}, "'ids' of x.npz is int32", id="integer type"),
        pytest.param({"image": IMAGE[:, :2], "ids": IDS}, "is 8x2, and the model takes 2x3", id="size"),
        pytest.param({"image": IMAGE[:7], "ids": IDS}, "is 7x3, and the model takes 2x3", id="no multiple"),
        pytest.param({"image": IMAGE[None], "ids": IDS}, "is 1x8x3", id="rank"),
        pytest.param({"image": IMAGE[:4], "ids": IDS}, "different numbers of rows", id="rows"),
        pytest.param({"image": IMAGE[:0], "ids": IDS[:0]}, "x.npz holds no inputs", id="no rows"),
        pytest.param({"image": NAN, "ids": IDS}, "'image' of x.npz holds NaN or Inf", id="NaN"),
        pytest.param({"image": np.full_like(IMAGE, np.inf), "ids": IDS}, "holds NaN or Inf", id="Inf"),
    ],
)  # fmt: skip
def test_arrays_that_are_no_inputs_say_what_fits(tmp_path: Path, arrays: dict[str, Any], says: str) -> None:
    """Names, types, sizes and values are checked before a model sees them."""
    with pytest.raises(InputError) as raised:
        given_rows(written(tmp_path, **arrays), SPECS)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        pytest.param("x.txt", "x.txt is no .npz or .npy file, and no package.module:callable", id="suffix"),
        pytest.param("no_such_module:calls", "there is no module 'no_such_module'", id="module"),
        pytest.param(f"{__name__}:cals", "did you mean 'calls'?", id="attribute"),
        pytest.param(lambda: 3, "gives an int: give mappings of input names", id="a number"),
        pytest.param(lambda: ["a"], "is a str: give mappings", id="words"),
        pytest.param(lambda: 1 // 0, "raised ZeroDivisionError", id="raises"),
        pytest.param(list, "holds no inputs", id="nothing"),
    ],
)
def test_a_source_that_gives_no_inputs_says_why(source: Any, says: str) -> None:
    """What a callable raises is a sentence, too."""
    with pytest.raises(InputError) as raised:
        given_rows(GivenInputs(source), SPECS)
    assert says in str(raised.value)


def test_families_are_those_that_are_named() -> None:
    """Given inputs are none that is drawn; integers are drawn in one way, if at all."""
    floating, whole = [SPECS["image"]], [SPECS["ids"]]
    assert families_of(floating) == FAMILIES
    assert families_of(floating, ("uniform", "given")) == ("uniform",)
    assert families_of(whole, ("uniform", "given")) == ("integers",)
    assert families_of(whole, ("given",)) == families_of(floating, ("given",)) == ()
    assert Claim().run_families == FAMILIES
    assert Claim(given=GivenInputs("x.npz")).run_families == (*FAMILIES, "given")


def test_more_calls_are_the_seeds_that_follow() -> None:
    """Four calls of a family are its two seeds and two more; zeros are the same for all, unless integers are drawn."""
    normal = [("normal", 0), ("normal", 4), ("normal", 5), ("normal", 6)]
    image, token = TensorSpec("float32", (1, 8)), TensorSpec("int64", (1, 8))
    assert runs_of(("normal", "zeros"), (0, 4), {"x": image}, 4) == [*normal, ("zeros", 0)]
    assert runs_of(("normal", "zeros"), (0, 4), {"x": image, "i": token}, 4) == [*normal, ("zeros", 0), ("zeros", 4)]
    assert runs_of(("zeros",), (0, 4), {"x": image}) == [("zeros", 0), ("zeros", 4)]
    assert runs_of((), (0,), {}, 4) == []


@pytest.mark.parametrize(
    ("shape", "rows"), [((1, 4), 256), ((1, 3, 224, 224), 2**20 // (3 * 224 * 224)), ((), 256), ((1, 2**21), 0)]
)
def test_rows_of_large_inputs_are_fewer(shape: tuple[int, ...], rows: int) -> None:
    """256, or as many as have 2^20 elements."""
    assert affordable_rows({"x": TensorSpec("float32", shape)}) == rows


def lossy(**words: Any) -> Claim:
    return Claim(Kind.LOSSY, {Bound.SQNR: Fraction(30)}, **words)


LARGE = {"large": {Bound.SQNR: 5}}
GIVEN = GivenInputs("x.npz")


@pytest.mark.parametrize(
    ("before", "now", "is_weaker"),
    [
        pytest.param({}, {"families": ("normal",)}, True, id="fewer families"),
        pytest.param({"families": ("normal",)}, {}, False, id="all families"),
        pytest.param({"families": ("normal",)}, {"families": ("uniform",)}, True, id="another family"),
        pytest.param({}, {"of_family": LARGE}, True, id="a lower bound of a family"),
        pytest.param({"of_family": LARGE}, {}, False, id="the bound of all"),
        pytest.param({}, {"of_family": {"large": {Bound.SQNR: 40}}}, False, id="a higher bound of a family"),
        pytest.param({"families": ("normal",)}, {"families": ("normal",), "of_family": LARGE}, False,
                     id="a bound of a family that was not run"),
        pytest.param({"rows": 256}, {"rows": 100}, True, id="fewer rows"),
        pytest.param({"rows": 256}, {}, True, id="no rows"),
        pytest.param({}, {"rows": 256}, False, id="more rows"),
        pytest.param({"given": GIVEN}, {}, True, id="no inputs"),
        pytest.param({"given": GIVEN}, {"given": GivenInputs("y.npz")}, True, id="other inputs"),
        pytest.param({}, {"given": GIVEN}, False, id="inputs beside"),
        pytest.param({}, {"given": GIVEN, "families": ("given",)}, True, id="inputs in place"),
    ],
)  # fmt: skip
def test_a_claim_on_fewer_or_other_inputs_is_weaker(before: Any, now: Any, is_weaker: bool) -> None:
    """What may let pass what did not pass is a loosened limit."""
    assert lossy(**now).is_weaker_than(lossy(**before)) is is_weaker


@pytest.mark.parametrize(
    ("bound", "value", "held", "used", "text"),
    [
        pytest.param(Bound.SQNR, 44.61, 30, 30 / 44.61, "SQNR 44.6 dB, bound 30, family uniform", id="sqnr"),
        pytest.param(Bound.SQNR, -3.0, 30, float("inf"), "SQNR -3.0 dB, bound 30, family uniform", id="less than 0 dB"),
        pytest.param(Bound.SQNR, float("inf"), 30, 0.0, "SQNR inf dB, bound 30, family uniform", id="equal"),
        pytest.param(Bound.MAX_ABS, 0.318, 0.5, 0.636, "max_abs 0.318, bound 0.5, family uniform", id="max_abs"),
        pytest.param(Bound.COSINE, 0.5, 0.75, 2.0, "cosine 0.5, bound 0.75, family uniform", id="cosine"),
        pytest.param(Bound.TOP1, 1.0, 1.0, 0.0, "top1 1, bound 1, family uniform", id="top1"),
        pytest.param(Bound.MSE, 0.0, 0, 0.0, "mse 0, bound 0, family uniform", id="nothing of nothing"),
        pytest.param(Bound.MSE, 1.0, 0, float("inf"), "mse 1, bound 0, family uniform", id="something of nothing"),
    ],
)
def test_the_bound_that_decided_is_shown(bound: Bound, value: float, held: Any, used: float, text: str) -> None:
    """Of several bounds the one decides of which the largest share is used up."""
    decision = Decision(bound, value, held, "uniform")
    assert decision.used == pytest.approx(used)
    assert decision.text == text
