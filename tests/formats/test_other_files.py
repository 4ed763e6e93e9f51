"""Files of formats that are not read: recognised by their first bytes, or by name, and answered with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_modelbudget import measure
from pytest_modelbudget.cli.command import main
from pytest_modelbudget.errors import ModelBudgetError
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.registry import tables
from tests.builders.project import Project

FIRST = {  # what a file called net.bin begins with
    "GGUF": (b"GGUF", "is a GGUF file, not an ONNX model: name it .gguf, and write it under checkpoint:"),
    "TFLite": (b"\x1c\0\0\0TFL3", "is a TFLite file, not an ONNX model: write it under tflite:"),
    "ExecuTorch": (b"\x1c\0\0\0ET12", "is an ExecuTorch file, not an ONNX model: write it under pte:"),
    "ONNX Runtime": (
        b"\x1c\0\0\0ORTM",
        "is an ONNX Runtime file, not an ONNX model: give the ONNX file that it was made of",
    ),
    "HDF5": (b"\x89HDF\r\n\x1a\n", "is a Keras file, not an ONNX model: convert it first: tf.lite.TFLiteConverter"),
    "TensorRT": (
        b"ftrt\0\0\0\0",
        "is a TensorRT file, not an ONNX model: give the ONNX file that its kernels were built",
    ),
    "OpenVINO": (b'<?xml version="1.0"?>\n<net', "is an OpenVINO file, not an ONNX model: give the torch module or"),
    "AOTInductor": (b"\x7fELF\2\1\1\0", "is an AOTInductor file, not an ONNX model: give the exported program that"),
}
NAMED = {
    "net.mlmodel": "is a Core ML file{}: give the torch module that it was converted from",
    "net.keras": "is a Keras file{}: convert it first: tf.lite.TFLiteConverter",
    "net.xml": "is an OpenVINO file{}: give the torch module or the ONNX file that it was converted from",
    "net.plan": "is a TensorRT file{}: give the ONNX file that its kernels were built from",
    "net.ort": "is an ONNX Runtime file{}: give the ONNX file that it was made of",
    "net.so": "is an AOTInductor file{}: give the exported program that its kernels were compiled from",
    "saved_model.pb": "is a TensorFlow file{}: convert it first: python -m tf2onnx.convert",
}
FILES = ("onnx", "torchscript", "exported", "checkpoint", "tflite", "pte", "huggingface")  # keys of files


def loaded(key: str, target: str, base: Path) -> object:
    """What a budget's key makes of a file."""
    return tables().formats[key].load(ModelSource(key, target, base=base), tables().ops).graph


@pytest.mark.parametrize("key", FIRST)
def test_first_bytes_tell_a_format(key: str, tmp_path: Path) -> None:
    """Whatever the file is called."""
    content, says = FIRST[key]
    (tmp_path / "net.bin").write_bytes(content + bytes(64))
    with pytest.raises(ModelBudgetError, match=f"^net.bin {says}"):
        loaded("onnx", "net.bin", tmp_path)


@pytest.mark.parametrize("name", NAMED)
def test_names_tell_a_format(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From Python, on the command line, and under each key of files."""
    (tmp_path / name).write_bytes(b"anything")
    with pytest.raises(ModelBudgetError, match=NAMED[name].format("")):
        measure(tmp_path / name)
    assert main(["show", str(tmp_path / name)]) == 2
    assert NAMED[name].format("") in capsys.readouterr().err
    for key in FILES:
        with pytest.raises(ModelBudgetError, match=f"{name} {NAMED[name].format(', not an? .*')}"):
            loaded(key, name, tmp_path)


@pytest.mark.parametrize("name", NAMED)
def test_a_budget_names_no_such_file_as_a_module(name: str, project: Project) -> None:
    """A file under ``torch:``, before anything is opened."""
    project.budget(f"  net:\n    torch: ../{name}\n    limits: {{params: 1 k}}\n")
    said = " ".join(project.run().stdout.str().split())
    assert f"'../{name}' {NAMED[name].format('')}" in said
    assert "budgets/a.yaml:5:12" in said


FOLDERS = {
    "net.mlpackage": ("Manifest.json", "is a Core ML file"),
    "net.mlmodelc": ("coremldata.bin", "is a Core ML file"),
    "saved": ("saved_model.pb", "is a TensorFlow file"),
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_folders_tell_a_format(folder: str, tmp_path: Path) -> None:
    """Core ML's by its name, a SavedModel by what it holds; with a format or without one."""
    file, says = FOLDERS[folder]
    (tmp_path / folder).mkdir()
    (tmp_path / folder / file).write_bytes(b"anything")
    with pytest.raises(ModelBudgetError, match=says):
        measure(tmp_path / folder)
    for key in FILES:
        with pytest.raises(ModelBudgetError, match=f"{folder} {says}, not "):
            loaded(key, folder, tmp_path)


def test_weights_next_to_their_network_are_of_openvino(tmp_path: Path) -> None:
    """net.bin is no checkpoint of torch where net.xml is there, too; and saved_model.pb alone is TensorFlow's."""
    for name in ("net.xml", "net.bin", "model.pb"):
        (tmp_path / name).write_bytes(bytes(64))
    with pytest.raises(ModelBudgetError, match=r"net.bin is an OpenVINO file, not a checkpoint: give the torch module"):
        measure(tmp_path / "net.bin")
    with pytest.raises(ModelBudgetError, match=r"model.pb is not an ONNX model, or only a part of one"):
        loaded("onnx", "model.pb", tmp_path)
