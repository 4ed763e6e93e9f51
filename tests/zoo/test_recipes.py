"""What the documents show of other packages' models keeps its budgets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_modelbudget.budget.read_budget import is_budget
from tests.builders.documents import blocks, of_other_packages
from tests.builders.marks import needs

pytestmark = [pytest.mark.needs_torch, pytest.mark.zoo]


@needs("timm")
@needs("transformers")
@needs("peft")
def test_recipes_keep_their_budgets(tmp_path: Path) -> None:
    """One run over all of them: 5 + 2 + 3 + 4 + 4 limits and claims of recipes, and one of the format, each within."""
    for block in filter(of_other_packages, blocks("python", "yaml")):
        assert block.file or is_budget(block.text)
        name = block.file or f"{Path(block.document).stem}.yaml"
        (tmp_path / name).write_text(block.text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "--model-budget", "-p", "no:cacheprovider", "-q", str(tmp_path)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "19 limits: 0 over, 0 warn, 19 within, 0 unknown" in ran.stdout, ran.stdout
    assert ran.returncode == 0
