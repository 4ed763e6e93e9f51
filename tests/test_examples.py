"""What examples/ and the README promise: the sample files are written, and measured alike."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from pytest_modelbudget.cli import main

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "write_sample_models.py"
PARAMS = (8 * 3 * 3 * 3 + 8) + (10 * 8 + 10)
MACS = (8 * 32 * 32) * (3 * 3 * 3) + 10 * 8


@pytest.mark.slow
def test_sample_files_measure_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The TorchScript file and the exported program have the network's params and MACs."""
    write_sample_models = runpy.run_path(str(SCRIPT))["write_sample_models"]
    scripted, exported = write_sample_models(tmp_path)
    for command in (
        ["show", str(scripted), "--input", "float32 1x3x32x32"],
        ["show", str(exported)],
    ):
        capsys.readouterr()
        assert main([*command, "--format", "json"]) == 0
        totals = json.loads(capsys.readouterr().out)["totals"]
        assert (totals["params"], totals["macs"]) == (PARAMS, MACS)
