"""The recipes of docs/ whose models are other packages' keep the budgets that they show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.marks import needs

pytestmark = [pytest.mark.needs_torch, pytest.mark.zoo]

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ("torchvision", "timm", "hugging-face", "lora")
FENCE = r"```\w+\n(.*?)^```$"


@needs("timm")
@needs("transformers")
@needs("peft")
def test_recipes_keep_their_budgets(tmp_path: Path) -> None:
    """One run over all of them: 5 + 2 + 3 + 4 limits and claims, each within."""
    for name in RECIPES:
        text = (ROOT / "docs" / "recipes" / f"{name}.md").read_text(encoding="utf-8")
        for file, source in re.findall(rf"^<!-- file: (\S+) -->\n{FENCE}", text, re.MULTILINE | re.DOTALL):
            (tmp_path / file).write_text(source, encoding="utf-8")
        (budget,) = (block for block in re.findall(FENCE, text, re.MULTILINE | re.DOTALL) if "model_budget: 1" in block)
        (tmp_path / f"{name}.yaml").write_text(budget, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "--model-budget", "-p", "no:cacheprovider", "-q", str(tmp_path)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "14 limits: 0 over, 0 warn, 14 within, 0 unknown" in ran.stdout, ran.stdout
    assert ran.returncode == 0
