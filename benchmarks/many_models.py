"""A platform team's budgets: 500 models with 3,000 limits, by numbers of workers, and in four shards that are merged.

Prints time and memory as Markdown tables. Models are torchvision's, timm's where it is installed, networks of the
project that this writes, and ONNX files; they stand in the budgets by turns, so that memory that grows with their
number is seen to grow. Processor time is that of all processes together, also of those that models are measured in.
Linux only: memory is read in /proc.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

MODELS, FILES = 500, 10
LIMITS = ("params", "macs", "flops", "weight_memory", "peak_activation", "bandwidth")
NO_LIMIT = "1000000 T"
# Bytecode is written, as where people work.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
IMAGE = "float32 {}x3x224x224"
NETS = '''"""Networks of the project's own: convolutions or layers of neurons, as wide as they are asked to be."""
from torch import nn


def convolutions(width, depth=6):
    layers = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(depth):
        layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def neurons(width, depth=8):
    layers = [nn.Linear(64, width)]
    for _ in range(depth):
        layers += [nn.GELU(), nn.LayerNorm(width), nn.Linear(width, width)]
    return nn.Sequential(*layers)
'''
# Notes what the session's process holds once a model was measured.
CONFTEST = """
import os


def pytest_model_budget_measured(config, model_id, measurements):
    with open("/proc/self/status") as status, open(f"noted-{os.getpid()}", "a") as file:
        file.write(next(line.split()[1] for line in status if line.startswith("VmRSS:")) + "\\n")
"""
PR_SET_CHILD_SUBREAPER = 36  # of prctl(2): the server that models are forked from is waited for, too
# As many items as the budgets have limits, which do nothing: what pytest itself takes, where torch has its loggers.
EMPTY = """
import pytest, torch

class Nothing(pytest.Item):
    def runtest(self): pass

class Nodes(pytest.Collector):
    def collect(self):
        return [Nothing.from_parent(self, name=str(number)) for number in range({each})]

class Files(pytest.File):
    def collect(self):
        return [Nodes.from_parent(self, name=str(number)) for number in range({models})]

def pytest_collect_file(file_path, parent):
    return Files.from_parent(parent, path=file_path) if file_path.suffix == ".empty" else None
"""


class Run(NamedTuple):
    """A command that has ended: wall time, processor time of all its processes, and what it printed."""

    seconds: float
    processor: float
    output: str


def run(folder: Path, *command: str) -> Run:
    """A command in a folder; raises where it fails, since no limit can be broken."""
    for file in folder.glob("noted-*"):
        file.unlink()
    began = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=folder, stdout=output, stderr=subprocess.STDOUT, env=ENVIRONMENT
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds, processor = time.perf_counter() - began, usage.ru_utime + usage.ru_stime
        with suppress(ChildProcessError):
            while True:
                _, _, usage = os.wait4(-1, 0)
                processor += usage.ru_utime + usage.ru_stime
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    if status:
        raise SystemExit(f"{' '.join(command)} failed:\n{text[-2000:]}")
    return Run(seconds, processor, text)


# The project.


def torchvision_models() -> Iterator[str]:
    """The classifiers, under two batch sizes."""
    import torchvision

    for batch in (1, 2):
        for name in torchvision.models.list_models(module=torchvision.models):
            yield f'torch: "torchvision.models:{name}", inputs: {IMAGE.format(batch)}'


def timm_models() -> Iterator[str]:
    """The first hundred that take an image of that size; none where timm is not installed."""
    if find_spec("timm") is None:
        return
    import timm

    for name in [name for name in timm.list_models() if "224" in name][:100]:
        yield f'torch: "timm:create_model", args: [{name}], inputs: {IMAGE.format(1)}'


def own_models() -> Iterator[str]:
    """Networks of ever other widths."""
    for number in range(MODELS):
        kind, inputs = [("convolutions", "float32 1x3x32x32"), ("neurons", "float32 4x64")][number % 2]
        yield f'torch: "nets:{kind}", args: [{8 + number}], inputs: {inputs}'


def onnx_models(folder: Path) -> Iterator[str]:
    """Files of twelve convolutions each, with weights that differ in size."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    for number in range(100):
        width, nodes, weights, last = 8 + number, [], [], "x"
        for layer in range(12):
            shape = (width, 3 if layer == 0 else width, 3, 3)
            weights.append(numpy_helper.from_array(np.zeros(shape, np.float32), f"layer{layer}.weight"))
            nodes.append(helper.make_node("Conv", [last, f"layer{layer}.weight"], [f"c{layer}"], pads=[1] * 4))
            nodes.append(helper.make_node("Relu", [f"c{layer}"], [last := f"r{layer}"]))
        x, y = (
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in (("x", [1, 3, 32, 32]), (last, [1, width, 32, 32]))
        )
        graph = helper.make_graph(nodes, "net", [x], [y], weights)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        file = folder / "budgets" / f"net{number}.onnx"
        file.write_bytes(proto.SerializeToString())
        yield f"onnx: {file.name}"


def write_project(folder: Path, number: int) -> None:
    """Budgets over so many models, by turns of each kind, a tenth of them in each file."""
    (folder / "budgets").mkdir()
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "nets.py").write_text(NETS)
    kinds = zip_longest(torchvision_models(), timm_models(), onnx_models(folder), own_models())
    sources = [source for source in chain.from_iterable(kinds) if source][:number]
    limits = ", ".join(f"{metric}: {NO_LIMIT}" for metric in LIMITS)
    per_file = -(-len(sources) // FILES)
    for file in range(FILES):
        some = enumerate(sources[file * per_file : (file + 1) * per_file], file * per_file)
        models = [f"  model{position}: {{{source}, limits: {{{limits}}}}}" for position, source in some]
        (folder / "budgets" / f"part{file}.yaml").write_text("\n".join(["model_budget: 1", "models:", *models, ""]))


# What it costs.

GATE = ("-m", "pytest", "-q", "--model-budget")
REPORT = ("--model-budget-report=json:report.json",)
SOMEBODY = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org", "-c", "commit.gpgsign=false")


def row(name: str, ended: Run) -> str:
    """The time of a session."""
    return f"| {name} | {ended.seconds:.0f} s | {ended.processor:.1f} s |"


def memory_rows(folder: Path) -> Iterator[str]:
    """The memory of the session's process after every fifth of its models."""
    (file,) = folder.glob("noted-*")
    held = [int(kib) * 1024 for kib in file.read_text().split()]
    for fifth in range(1, 6):
        count = len(held) * fifth // 5
        yield f"| {count} | {held[count - 1] / 1e6:,.0f} MB |"


def pytest_alone(number: int) -> str:
    """The row of a session whose items do nothing."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "conftest.py").write_text(EMPTY.format(each=len(LIMITS), models=number))
        (folder / "items.empty").write_text("")
        imported = run(folder, "-c", "import torch")
        ended = run(folder, "-m", "pytest", "-q")
    taken = ended.processor - imported.processor
    return f"| pytest alone, less importing torch | {ended.seconds:.0f} s | {taken:.1f} s |"


def has_shards(folder: Path) -> bool:
    """Whether this version can cut a session into parts."""
    return "--model-budget-shard" in run(folder, "-m", "pytest", "--help").output


def beside_base(folder: Path) -> str:
    """The row of a session that compares its budgets with those of a commit, which are the same."""
    for words in (("init", "-q"), ("add", "budgets"), ("commit", "-q", "-m", "budgets")):
        subprocess.run(["git", *SOMEBODY, *words], cwd=folder, check=True)
    return row("compared with a base", run(folder, *GATE, *REPORT, "--model-budget-base=HEAD"))


def sharded(folder: Path, number: int) -> Iterator[str]:
    """Each shard alone, as on machines of their own, and their merge."""
    for shard in range(1, number + 1):
        ended = run(folder, *GATE, f"--model-budget-shard={shard}/{number}", *REPORT)
        (folder / "report.json").replace(folder / f"part{shard}.json")
        yield row(f"shard {shard} of {number}", ended)
    parts = [f"part{shard}.json" for shard in range(1, number + 1)]
    ended = run(folder, "-m", "pytest_modelbudget.cli", "merge", *parts, "--report=json:report.json")
    yield row(f"merge of {number}", ended)


def main() -> None:
    """Write the project, and print what its sessions cost."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=int, default=MODELS, help=f"how many ({MODELS})")
    asked = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_project(folder, asked.models)
        run(folder, *GATE, "--collect-only")  # which writes bytecode
        collected = run(folder, *GATE, "--collect-only")
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
        said = collected.output.strip().splitlines()[-1]
        print(f"{said}; {collected.processor:.1f} s of processor, with starting pytest")
        print("\n| session | wall | processor |")
        print("|---|---|---|")
        print(pytest_alone(asked.models), flush=True)
        print(row("as many workers as cores", run(folder, *GATE, *REPORT)), flush=True)
        memory = list(memory_rows(folder))
        for workers in (1, 0):
            ended = run(folder, *GATE, *REPORT, f"--model-budget-workers={workers}")
            print(row(f"--model-budget-workers={workers}", ended), flush=True)
        print(beside_base(folder), flush=True)
        print(row("-n2", run(folder, *GATE, *REPORT, "-n2", "--dist=loadscope")), flush=True)
        if has_shards(folder):
            for line in sharded(folder, 4):
                print(line, flush=True)
        print("\n| models measured | memory held |\n|---|---|")
        print("\n".join(memory))


if __name__ == "__main__":
    main()
