"""A damaged model file is refused in words, measured with numbers that can be true, or incomplete: nothing else.

``MODELBUDGET_FUZZ=20`` tries twenty times as many, from other seeds than usual.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.builders.marks import TIMES
from tests.builders.mutations import in_bytes, in_one_member, in_structure

pytestmark = [pytest.mark.needs_torch, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SECONDS = 240 * TIMES  # for a batch: a damaged file takes some hundredths of one
IMAGE = (1, 3, 8, 8)
FINE = {"refused", "incomplete", "measured"}
Mutation = Callable[[bytes, random.Random], bytes]


def network() -> nn.Module:
    """Convolutions and a linear layer, 3·4·9 + 4 + 4·4·9 + 4 + 4·64·5 + 5 = 1,545 parameters."""
    torch.manual_seed(0)
    convolutions = (nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(4 * 64, 5)).eval()


def written(suffix: str, path: Path) -> bytes:
    """The network as a file of this format."""
    file, sample = path / f"good{suffix}", torch.zeros(IMAGE)
    if suffix == ".onnx":
        torch.onnx.export(network(), (sample,), file, dynamo=False)
    elif suffix == ".pt2":
        torch.export.save(torch.export.export(network(), (sample,)), file)
    else:
        torch.jit.save(torch.jit.trace(network(), sample), file)
    return file.read_bytes()


def outcomes(folder: Path, seconds: int) -> dict[str, dict[str, object]]:
    """What became of each file; one that ended or hung the process is named so."""
    command = [sys.executable, str(Path(__file__).with_name("measuring_files.py")), str(folder), "float32 1x3x8x8"]
    lines: dict[str, dict[str, object]] = {}
    project = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, [project, os.environ.get("PYTHONPATH", "")]))
    with (folder.parent / "lines").open("w+") as out:
        with suppress(subprocess.TimeoutExpired):  # the file that was not done is named below
            subprocess.run(
                command,
                stdout=out,
                stderr=subprocess.DEVNULL,
                timeout=seconds,
                env={**os.environ, "PYTHONPATH": paths},
                check=False,
            )
        out.seek(0)
        for line in map(json.loads, out):
            lines[line["file"]] = {"outcome": "ended or hung the process"} | line
    return lines


# Batches of (name, suffix, mutation, count), by what their process has to load.
Batch = tuple[str, str, Mutation, int]
ONNX: tuple[Batch, ...] = (("structure", ".onnx", in_structure, 60), ("bytes", ".onnx", in_bytes, 40))
TORCH: tuple[Batch, ...] = (
    ("members", ".pt", in_one_member, 10),
    ("bytes", ".pt", in_bytes, 6),
    ("members", ".pt2", in_one_member, 10),
)


@pytest.mark.parametrize("batches", [pytest.param(ONNX, id="onnx"), pytest.param(TORCH, id="torch")])
def test_damaged_files(batches: tuple[Batch, ...], tmp_path: Path) -> None:
    """All in one process with bounded memory and time; the good files are measured last."""
    folder = tmp_path / "files"
    folder.mkdir()
    good = {suffix: written(suffix, tmp_path) for suffix in {suffix for _, suffix, _, _ in batches}}
    for name, suffix, mutation, count in batches:
        for seed in range(count * TIMES):
            drawn = random.Random(f"{suffix} {seed}" if TIMES == 1 else f"{suffix} {seed} long")
            (folder / f"{name} {seed:06}{suffix}").write_bytes(mutation(good[suffix], drawn))
    for suffix, content in good.items():
        (folder / f"undamaged{suffix}").write_bytes(content)
    found = outcomes(folder, SECONDS * len(batches))
    for suffix in good:
        file = f"undamaged{suffix}"
        assert found[file] == {"file": file, "outcome": "measured", "params": 1545}
    assert {name: line for name, line in found.items() if line["outcome"] not in FINE} == {}
    assert len(found) == sum(count for *_, count in batches) * TIMES + len(good)
