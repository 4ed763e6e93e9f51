"""Files of formats that are not read: recognised by their first bytes, or by name, and answered with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_modelbudget import measure
from pytest_modelbudget.errors import ModelBudgetError
from pytest_modelbudget.formats.source import ModelSource, existing_file

FIRST = {  # what a file called net.bin begins with
    "GGUF": (b"GGUF", "is a .gguf file, not a model: name it .gguf, and write it under checkpoint:"),
    "TFLite": (b"\x1c\0\0\0TFL3", "is a .tflite file, not a model: write it under tflite:"),
    "ExecuTorch": (b"\x1c\0\0\0ET12", "is a .pte file, not a model: write it under pte:"),
    "ONNX Runtime": (b"\x1c\0\0\0ORTM", "is a .ort file, not a model: give the ONNX file that it was made of"),
    "HDF5": (b"\x89HDF\r\n\x1a\n", "is a .h5 file, not a model: write it first, with model.export"),
    "TensorRT": (b"ftrt\0\0\0\0", "is a .engine file, not a model: it holds compiled kernels: give the ONNX file"),
    "OpenVINO": (b'<?xml version="1.0"?>\n<net', "is a .xml file, not a model: give the torch module or the ONNX"),
}


@pytest.mark.parametrize("key", FIRST)
def test_first_bytes_tell_a_format(key: str, tmp_path: Path) -> None:
    """Whatever the file is called."""
    content, says = FIRST[key]
    (tmp_path / "net.bin").write_bytes(content + bytes(64))
    with pytest.raises(ModelBudgetError, match=f"^net.bin {says}"):
        existing_file(ModelSource("onnx", "net.bin", base=tmp_path), "a model")


NAMED = {
    "net.mlmodel": "give the torch module or the ONNX file that it was converted from",
    "net.keras": "write it first, with model.export",
    "net.xml": "give the torch module or the ONNX file that OpenVINO converted",
    "net.plan": "it holds compiled kernels: give the ONNX file that TensorRT built it from",
    "net.ort": "give the ONNX file that it was made of",
}


@pytest.mark.parametrize("name", NAMED)
def test_names_tell_a_format(name: str, tmp_path: Path) -> None:
    """Where no format is named, as on the command line."""
    (tmp_path / name).write_bytes(b"anything")
    with pytest.raises(ModelBudgetError, match=NAMED[name]):
        measure(tmp_path / name)


@pytest.mark.parametrize(("folder", "file"), [("net.mlpackage", "Manifest.json"), ("saved", "saved_model.pb")])
def test_folders_tell_a_format(folder: str, file: str, tmp_path: Path) -> None:
    """Core ML's by its name, a SavedModel by what it holds; with a format or without one."""
    (tmp_path / folder).mkdir()
    (tmp_path / folder / file).write_bytes(b"anything")
    says = "give the torch module" if folder.startswith("net") else "convert it first, with python -m tf2onnx.convert"
    with pytest.raises(ModelBudgetError, match=says):
        measure(tmp_path / folder)
    with pytest.raises(ModelBudgetError, match=f"is a folder, not a model: {says}"):
        existing_file(ModelSource("onnx", folder, base=tmp_path), "a model")
