"""Arenas of TFLite files equal those of TensorFlow Lite Micro itself, which mcufit has in WebAssembly for node."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from shutil import which

import pytest

from pytest_modelbudget import measure
from tests.builders.marks import needs
from tests.builders.tflite_files import Net, keyword_spotting, person_detect

pytestmark = [needs("mcufit", "wild"), pytest.mark.skipif(which("node") is None, reason="TFLM runs in node")]


@pytest.mark.parametrize("net", [person_detect, keyword_spotting])
def test_the_arena_is_that_of_the_runtime(net: Callable[[], Net], tmp_path: Path) -> None:
    """The memory that TFLM gives activations, after it has placed all of them; no kernel here needs scratch memory."""
    parser = import_module("mcufit.parsing.tflite_parser").TFLiteModelParser()
    runtime = import_module("mcufit.estimation.wasm").WasmArenaEstimator("node")
    path = tmp_path / "net.tflite"
    path.write_bytes(net().content())
    arena = measure(path, lower={})["activation_arena"].value
    assert arena == runtime.estimate(parser.parse(path)).peak_activation_bytes
