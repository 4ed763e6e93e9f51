"""What examples/ and the README promise: the sample files are written, and measured alike."""

from __future__ import annotations

import copy
import json
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from pytest_modelbudget import check_equivalence, measure
from pytest_modelbudget.cli.command import main

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "write_sample_models.py"
OWN_PACKAGE = SCRIPT.parent / "own_package"
DEVICE = SCRIPT.parent / "device"
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
def test_a_package_of_your_own(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example's two tests and six limits pass, run as its README says."""
    session(pytester, monkeypatch, copied(OWN_PACKAGE, pytester.path)).assert_outcomes(passed=8)


@pytest.mark.slow
def test_a_wider_package_of_your_own_fails(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """HIDDEN = 96 breaks the budget, and the first layer to blame is the GRU."""
    project = copied(OWN_PACKAGE, pytester.path)
    module = project / "keyword_spotter" / "__init__.py"
    module.write_text(module.read_text().replace("HIDDEN = 64", "HIDDEN = 96"))
    run = session(pytester, monkeypatch, project)
    assert run.ret == 1
    shown = run.stdout.str()
    params = 96 * 40 * 3 + 96 + 2 * 3 * 96 * 96 + 2 * 3 * 96 + 12 * 96 + 12
    assert f"params {params / 1000:.2f} k > 33.50 k" in shown
    assert "budgets/device.yaml::keyword_spotter" in shown


@pytest.mark.slow
def test_a_network_fills_its_device(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of the model as written, and four of it on the device."""
    run = session(pytester, monkeypatch, copied(DEVICE, pytester.path))
    run.assert_outcomes(passed=5)
    assert "sram 6.00 KiB" in run.stdout.str()


@pytest.mark.slow
def test_a_wider_network_does_not_fit(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A 17th channel is 16·16 B too many, at the last convolution, which makes it."""
    project = copied(DEVICE, pytester.path)
    module = project / "watcher.py"
    module.write_text(module.read_text().replace("WIDTH = 16", "WIDTH = 17"))
    run = session(pytester, monkeypatch, project)
    assert run.ret == 1
    shown = run.stdout.str()
    assert "sram 6.250 KiB > 6.000 KiB (+4.2%)" in shown
    assert "alive during aten::conv2d in 2.0" in shown


def copied(example: Path, folder: Path) -> Path:
    """The example as somebody has it who copies it."""
    project = folder / example.name
    shutil.copytree(example, project, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    return project


def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, project: Path) -> pytest.RunResult:
    """A session in the project, as its README says, in this process."""
    monkeypatch.chdir(project)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.syspath_prepend(project)  # as "python -m pytest" does
    return pytester.runpytest_inprocess("--model-budget", "-p", "no:cacheprovider")


def test_a_keyword_spotter_for_a_microcontroller(tmp_path: Path) -> None:
    """40 weights a filter, then four blocks of 64·9 and 64·64, on 25·5 positions; two results of them live at once."""
    script = SCRIPT.parent / "device_files" / "write_device_files.py"
    found = measure(runpy.run_path(str(script))["write_device_files"](tmp_path))
    assert int(found["macs"]) == 125 * 64 * (40 + 4 * (9 + 64)) + 64 * 12
    assert int(found["peak_activation"]) == 2 * 125 * 64


def test_a_program_of_executorch() -> None:
    """As executorch 1.5.1 wrote it: all of the network is in one delegate, and the plan has its input and result."""
    path = SCRIPT.parent / "device_files" / "wake_word.pte"
    found = measure(path)
    assert int(found["model_size"]) == path.stat().st_size == 4_400 + 1_432 + 4_160
    assert {each.op for each in found["macs"].unmeasured} == {"delegate::XnnpackBackend"}
    assert found["peak_activation"].value == 4 * (40 * 40 + 2)


@pytest.mark.slow
@pytest.mark.needs_torch
def test_exercises_of_labs(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product in 8 tiles, a net layer by layer, and one on integers; all figures stand in the file."""
    shutil.copytree(SCRIPT.parent / "lab", pytester.path / "examples" / "lab")
    monkeypatch.setattr("sys.path", [str(pytester.path), *sys.path])
    file = "examples/lab/exercises.yaml"
    result = pytester.runpytest("--model-budget", *(f"{file}::{name}" for name in ("subgraph", "mnist", "jsc_tiny")))
    result.assert_outcomes(passed=5 + 5 + 5)


def test_checkpoints_in_every_layout(tmp_path: Path) -> None:
    """Each packs one layer of 64 x 128, or stores it as it is."""
    script = SCRIPT.parent / "serving" / "write_checkpoints.py"
    paths = runpy.run_path(str(script))["write_checkpoints"](tmp_path)
    assert {int(measure(path).params) for path in paths} == {64 * 128}


def test_a_script_whose_framework_is_missing_is_left_out_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without torch the scripts of torch write nothing; one that fails is named, and fails the whole."""
    write_all = runpy.run_path(str(SCRIPT.parent / "write_all.py"))
    write, names = write_all["write"], write_all["write"].__globals__
    monkeypatch.setitem(names, "find_spec", lambda _: None)
    monkeypatch.setitem(names, "HERE", tmp_path / "write_all.py")
    (tmp_path / "write_a.py").write_text("import torch\n", encoding="utf-8")
    (tmp_path / "write_b.py").write_text("raise SystemExit('no room')\n", encoding="utf-8")
    assert write(tmp_path / "write_a.py") == 0
    assert capsys.readouterr().out == "left out write_a.py: torch is not installed\n"
    assert write(tmp_path / "write_b.py") == 1
    assert capsys.readouterr().out == "write_b.py failed:\nno room\n"
