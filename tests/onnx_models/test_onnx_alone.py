"""A gate over ONNX files alone: it needs no torch, and leaves weights where they are."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto

from pytest_modelbudget import measure
from pytest_modelbudget.cli.command import main
from pytest_modelbudget.errors import MissingExtraError
from pytest_modelbudget.formats import table as formats_table
from pytest_modelbudget.onnx_models.reading import read_model
from pytest_modelbudget.ops.table import builtin_ops
from tests.builders.onnx_graphs import model, node, stored, value

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = runpy.run_path(str(ROOT / "examples" / "write_onnx_models.py"))
# Published parameter counts of the architectures that onnx's wheel carries.
PUBLISHED = {
    "bvlc_alexnet.onnx": 60_965_224,
    "vgg19.onnx": 143_667_240,
    "resnet50.onnx": 25_557_032,
    "squeezenet.onnx": 1_235_496,
    # 7,978,856, and the scale and shift that each batch norm has before its own Mul and Add
    "densenet121.onnx": 7_978_856 + 2 * 41_824,
}
# A session that ends red if torch came in, whoever imported it.
CONFTEST = """
import sys
def pytest_sessionfinish(session):
    heavy = {"torch", "torchvision", "onnxruntime"} & set(sys.modules)
    if heavy:
        session.exitstatus = 99
        print("imported:", heavy)
"""
BUDGET = """model_budget: 1
models:
  mobilenet_v2:
    onnx: models/mobilenet_v2.onnx
    limits: {params: 3.49 M, macs: 301 MMAC, bandwidth: 120 MB, peak_activation: 9.64 MB}
  int8:
    onnx: models/int8.onnx
    limits: {weight_memory: 43.3 kB}
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with the files of the example script."""
    SCRIPT["write_onnx_models"](tmp_path)
    return tmp_path


def test_published_architectures(written: Path) -> None:
    """The files that the script writes hold the published numbers of parameters."""
    found = {name: measure(written / name)["params"].value for name in PUBLISHED}
    assert found == PUBLISHED


def test_mobilenet_built_by_hand(written: Path) -> None:
    """MobileNetV2 written node by node has the figures of the exported one."""
    found = measure(written / "mobilenet_v2.onnx")
    figures = [found[key].value for key in ("params", "macs", "bandwidth")]
    assert figures == [3_487_816, 300_774_272, 119_435_456]


def test_int8_closed_form(written: Path) -> None:
    """Weights of 256·128 + 128·64 + 64·10 bytes, scales and biases of 4 bytes an output."""
    found = measure(written / "int8.onnx")
    weights, outputs = 256 * 128 + 128 * 64 + 64 * 10, 128 + 64 + 10
    assert found["macs"].value == weights
    assert found["params"].value == weights + outputs
    assert found["weight_memory"].value == weights + 2 * 4 * outputs


def test_a_gate_without_torch(written: Path, tmp_path: Path) -> None:
    """A whole session over ONNX budgets imports neither torch nor a run time."""
    project = tmp_path / "project"
    (project / "budgets").mkdir(parents=True)
    written_models = SCRIPT["write_onnx_models"](project / "budgets" / "models")
    assert written_models
    (project / "budgets" / "onnx.yaml").write_text(BUDGET, encoding="utf-8")
    (project / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (project / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "--model-budget", "budgets"]
    run = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, env=os.environ)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "5 limits: 0 over, 0 warn, 5 within, 0 unknown" in run.stdout


@pytest.mark.skipif("MODELBUDGET_WITHOUT_TORCH" not in os.environ, reason="torch may be here")
def test_this_environment_has_no_torch() -> None:
    """The second environment of .ci/run proves that nothing needs torch."""
    assert find_spec("torch") is None
    assert "torch" not in sys.modules


def test_without_onnx_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where onnx is missing, one sentence names the pip command."""
    path = tmp_path / "model.onnx"
    path.write_bytes(model([], [value("x", 1)], [value("x", 1)]).SerializeToString())

    def missing(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'onnx'", name="onnx")

    monkeypatch.setattr(formats_table, "import_module", missing)
    with pytest.raises(MissingExtraError, match=r"pip install 'pytest-modelbudget\[onnx\]'"):
        measure(path)


def test_show_lists_every_node(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``modelbudget show --ops`` has the census, and each node's shapes, attributes and bytes."""
    assert main(["show", str(written / "mobilenet_v2.onnx"), "--ops"]) == 0
    shown = capsys.readouterr().out
    assert "52  convolution" in shown
    gemm = shown[shown.index("classifier: onnx::Gemm") :]
    assert "1,280,000 MAC" in gemm
    assert "read 5,120 B, weights 5,124,000 B, write 4,000 B" in gemm
    assert "float32 1x1280, float32 1000x1280 (parameter)" in gemm
    assert "transB=1" in gemm


def test_weights_inside_are_not_kept(tmp_path: Path) -> None:
    """Of 4 MB of weights nothing is held while the model is measured; small shapes stay."""
    path = tmp_path / "large.onnx"
    shape = onnx.helper.make_tensor("shape", TensorProto.INT64, [2], [1, 1000])
    proto = model(
        [node("MatMul", "x w", "y"), node("Reshape", "y shape", "z")],
        [value("x", 1, 1000)], [value("z", 1, 1000)], [stored("w", 1000, 1000), shape],
    )  # fmt: skip
    path.write_bytes(proto.SerializeToString())
    assert path.stat().st_size > 4_000_000
    assert read_model(path, builtin_ops()).program.model.ByteSize() < 1000
    assert measure(path)["weight_memory"].value == 4 * 1000 * 1000


def test_three_gigabytes_beside_the_file_cost_nothing(tmp_path: Path) -> None:
    """Weights outside the file are never opened: 3 GB of them need not exist."""
    path = tmp_path / "beside.onnx"
    tensor = TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=(40_000, 20_000))
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="gone.bin")
    proto = model([node("MatMul", "x w", "y")], [value("x", 1, 40_000)], [value("y", 1, 20_000)], [tensor])
    path.write_bytes(proto.SerializeToString())
    assert measure(path)["weight_memory"].value == 4 * 40_000 * 20_000
