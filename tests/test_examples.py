"""What examples/ and the README promise: the sample files are written, and measured alike."""

from __future__ import annotations

import copy
import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_modelbudget import check_equivalence, measure
from pytest_modelbudget.cli.command import main

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "write_sample_models.py"
OWN_PACKAGE = SCRIPT.parent / "own_package"
PARAMS = (8 * 3 * 3 * 3 + 8) + (10 * 8 + 10)
MACS = (8 * 32 * 32) * (3 * 3 * 3) + 10 * 8


@pytest.mark.slow
def test_sample_files_measure_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The TorchScript file and the exported program have the network's params and MACs."""
    write_sample_models = runpy.run_path(str(SCRIPT))["write_sample_models"]
    scripted, exported = write_sample_models(tmp_path)
    for command in (["show", str(scripted), "--input", "float32 1x3x32x32"], ["show", str(exported)]):
        capsys.readouterr()
        assert main([*command, "--format", "json"]) == 0
        totals = json.loads(capsys.readouterr().out)["totals"]
        assert (totals["params"], totals["macs"]) == (PARAMS, MACS)


def test_tiling_models(tmp_path: Path) -> None:
    """AlexNet built node by node has the published parameters and MACs; the linear layer a twin."""
    script = SCRIPT.parent / "tiling" / "write_tiling_models.py"
    paths = runpy.run_path(str(script))["write_tiling_models"](tmp_path, drawn=False)
    found = measure(paths["alexnet"], dims={"batch": 1})
    assert (found["params"].value, found["macs"].value) == (61_100_840, 714_188_480)
    twin = measure(paths["linear_tiled"])
    assert twin["macs"].value == measure(paths["linear"])["macs"].value == 128**3


def test_a_compiler_of_your_own() -> None:
    """Its tiles compute what the classifier does; one that is left out does not."""
    tiling = SCRIPT.parent / "tiling"
    model = runpy.run_path(str(tiling / "nets.py"))["classifier"]()
    compiled = runpy.run_path(str(tiling / "compiler.py"))["tiled"](copy.deepcopy(model))
    assert check_equivalence(model, compiled, "float32 8x200").outcome == "within"
    for tile in compiled[2].columns[0]:
        tile.data.zero_()
        break
    found = check_equivalence(model, compiled, "float32 8x200")
    assert found.outcome == "over"
    assert found.first_divergence is not None
    assert found.first_divergence.scope == "2"


@pytest.mark.slow
def test_a_package_of_your_own(tmp_path: Path) -> None:
    """The example's two tests and six limits pass, run as its README says."""
    project = tmp_path / "own_package"
    shutil.copytree(OWN_PACKAGE, project, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    command = [sys.executable, "-m", "pytest", "--model-budget", "-p", "no:cacheprovider"]
    run = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    assert "8 passed" in run.stdout


@pytest.mark.slow
def test_a_wider_package_of_your_own_fails(tmp_path: Path) -> None:
    """HIDDEN = 96 breaks the budget, and the first layer to blame is the GRU."""
    project = tmp_path / "own_package"
    shutil.copytree(OWN_PACKAGE, project, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    module = project / "keyword_spotter" / "__init__.py"
    module.write_text(module.read_text().replace("HIDDEN = 64", "HIDDEN = 96"))
    command = [sys.executable, "-m", "pytest", "--model-budget", "-p", "no:cacheprovider"]
    run = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    params = 96 * 40 * 3 + 96 + 2 * 3 * 96 * 96 + 2 * 3 * 96 + 12 * 96 + 12
    assert f"over by {params - 33_500:,}" in run.stdout
    assert "budgets/device.yaml:7" in run.stdout


DEVICE = SCRIPT.parent / "device"


def camera(project: Path, width: int = 16) -> subprocess.CompletedProcess[str]:
    """The example's gate, run as its README says, with a last convolution of that width."""
    shutil.copytree(DEVICE, project, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    module = project / "watcher.py"
    module.write_text(module.read_text().replace("WIDTH = 16", f"WIDTH = {width}"))
    command = [sys.executable, "-m", "pytest", "--model-budget", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_network_fills_its_device(tmp_path: Path) -> None:
    """The limit of the model as written, and four of it on the device."""
    run = camera(tmp_path / "device")
    assert run.returncode == 0, run.stdout
    assert "5 passed" in run.stdout
    assert "sram 6.14 kB" in run.stdout


@pytest.mark.slow
def test_a_wider_network_does_not_fit(tmp_path: Path) -> None:
    """A 17th channel is 16·16 B too many, at the convolution that makes it."""
    run = camera(tmp_path / "device", width=17)
    assert run.returncode == 1
    assert "over by 256 B" in run.stdout
    assert "alive during aten::conv2d in 2.0" in run.stdout
