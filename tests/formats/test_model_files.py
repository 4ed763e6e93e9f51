"""Files that are not what a budget says they are, and inputs that a file does not take."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from torch import nn

from pytest_modelbudget.errors import InputError, SourceError
from pytest_modelbudget.formats.model import Model
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.formats.table import format_table
from pytest_modelbudget.ops.table import builtin_ops
from tests.builders.model_files import export

pytestmark = pytest.mark.needs_torch

SMALL = nn.Linear(8, 4)
SPEC = TensorSpec("float32", (2, 8))


def loaded(form: str, path: Path, *specs: TensorSpec, **dims: int) -> Model:
    """A model file, read."""
    source = ModelSource(form, path.name, InputSpecs(specs), dims=dims, base=path.parent)
    model = format_table()[form].load(source, builtin_ops())
    assert model.graph is not None, "reading is what a graph is asked for"
    return model


def state_dict(path: Path) -> None:
    """What most people have."""
    torch.save(SMALL.state_dict(), path)


def script(path: Path) -> None:
    """A TorchScript file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(SMALL).save(str(path))


def program(path: Path, **options: object) -> None:
    """An exported program on 2x8."""
    exported = torch.export.export(SMALL, (torch.zeros(2, 8),), **options)  # type: ignore[arg-type]
    torch.export.save(exported, path)


def compiled(path: Path) -> None:
    """A package as AOTInductor writes it, with what it compiled and without a program."""
    with ZipFile(path, "w") as archive:
        archive.writestr("net/archive_format", "pt2")
        archive.writestr("net/data/aotinductor/model/kernel.so", b"\0")


def without(path: Path, lost: str) -> None:
    """An exported program that lacks a file."""
    program(path)
    with ZipFile(path) as archive:
        kept = [(name, archive.read(name)) for name in archive.namelist() if not name.endswith(lost)]
    with ZipFile(path, "w") as archive:
        for name, content in kept:
            archive.writestr(name, content)


def onnx_file(path: Path) -> None:
    """An ONNX file."""
    export(SMALL, torch.zeros(2, 8), path, dynamo=False)


def text(path: Path) -> None:
    """A file that is no archive."""
    path.write_text("a note about the model")


def pointer(path: Path) -> None:
    """What git leaves in a file's place where Git LFS was not asked for it."""
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")


@pytest.mark.parametrize(
    ("form", "write", "words"),
    [
        ("torchscript", state_dict, "state dict or a pickled module: write 'checkpoint:' for its sizes, or 'torch:'"),
        ("torchscript", program, "it is an exported program: write 'exported:'"),
        ("torchscript", text, "is not a TorchScript file, or only a part of one: export it again"),
        ("torchscript", pointer, "is a pointer of Git LFS: fetch it"),
        ("exported", script, "it is a TorchScript file: write 'torchscript:'"),
        ("exported", state_dict, "state dict or a pickled module"),
        ("exported", text, "is not an exported program, or only a part of one: export it again"),
        ("exported", pointer, "is a pointer of Git LFS: fetch it"),
        ("exported", compiled, "it is a package of AOTInductor, which holds compiled kernels and no operators: give"),
        ("exported", lambda path: without(path, "weight_0"), "failed locating file data/w"),
        ("exported", lambda path: path.write_bytes(b""), "is empty"),
        ("exported", lambda path: path.mkdir(), "is a folder"),
        ("torchscript", lambda path: None, "does not exist"),
    ],
)
def test_the_file_says_what_it_is(form: str, write: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    """Each mistake ends in what the file is and what to write instead."""
    path = tmp_path / "model.pt2"
    write(path)
    with pytest.raises(SourceError) as caught:
        loaded(form, path, SPEC)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("form", "write", "what"),
    [
        ("torchscript", script, "only a part of an archive"),
        ("torchscript", state_dict, "only a part of an archive"),
        ("checkpoint", state_dict, "only a part of an archive"),
        ("exported", program, "only a part of an archive"),
        ("onnx", onnx_file, "not an ONNX model, or only a part of one"),
    ],
)
def test_half_a_file_is_not_a_model(form: str, write: Callable[[Path], object], what: str, tmp_path: Path) -> None:
    """A download that broke off is told in the same words, whatever it was to be."""
    write(whole := tmp_path / "whole.pt")
    (half := tmp_path / "half.pt").write_bytes(whole.read_bytes()[:-200])
    with pytest.raises(SourceError, match=rf"^half\.pt is {what}: "):
        loaded(form, half)


@pytest.mark.parametrize(
    ("spec", "dims", "words"),
    [
        (TensorSpec("float32", (64, 8)), {}, "is float32 2x8: export it for other shapes"),
        (TensorSpec("float16", (2, 8)), {}, "is float32 2x8"),
        (TensorSpec("float32", (2, 8, 1)), {}, "is float32 2x8"),
        (SPEC, {"batch": 64}, "no dynamic dimension 'batch': there are none"),
    ],
)
def test_a_program_takes_only_what_it_was_exported_for(
    spec: TensorSpec, dims: dict[str, int], words: str, tmp_path: Path
) -> None:
    """Its own guards would refuse it, so it is not measured."""
    program(path := tmp_path / "model.pt2")
    with pytest.raises(InputError) as caught:
        loaded("exported", path, spec, **dims)
    assert words in str(caught.value)


def test_a_dynamic_dimension_is_bound_by_its_symbol(tmp_path: Path) -> None:
    """Unbound it is named; bound, or given as a shape, it is measured."""
    path = tmp_path / "model.pt2"
    program(path, dynamic_shapes={"input": {0: torch.export.Dim("batch", min=2, max=64)}})
    with pytest.raises(InputError, match="has a dynamic dimension s") as caught:
        loaded("exported", path)
    symbol = str(caught.value).partition("dynamic dimension ")[2].partition(":")[0]
    assert loaded("exported", path, **{symbol: 5}).graph.inputs[0].shape == (5, 8)
    given = TensorSpec("float32", (7, 8))
    assert loaded("exported", path, given).graph.inputs[0].shape == (7, 8)
