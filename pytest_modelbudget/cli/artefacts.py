"""``modelbudget build``: what a transform of a budget made, as the file that ships, with its certificate."""

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path

from pytest_modelbudget.budget.budget import BETWEEN, Subject, Transformation
from pytest_modelbudget.budget.read_budget import read_budget
from pytest_modelbudget.cli.screen import print_text
from pytest_modelbudget.errors import InputError
from pytest_modelbudget.formats.model import Model
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.formats.user_modules import searched_first
from pytest_modelbudget.gate import transforming
from pytest_modelbudget.gate.project import importing_as_pytest, project_around
from pytest_modelbudget.registry import Tables, tables


def add_build(command: argparse.ArgumentParser) -> None:
    """Which transform, and where it is written."""
    command.add_argument("transform", metavar="BUDGET::MODEL::TRANSFORM", help="a transform of a budget file")
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help=".onnx, .pt2 or .safetensors")
    command.set_defaults(command=build)


def build(options: argparse.Namespace) -> bool:
    """Write the changed model once its claim holds, and its certificate."""
    registry, root = tables(), project_around(Path.cwd()).root
    model, change = named(options.transform, registry, root)
    with importing_as_pytest(Path.cwd()), redirect_stdout(sys.stderr):
        certificate = transforming.build(model.made, change, registry, root=root, out=options.out)
    print_text(f"wrote {options.out} and {certificate}")
    return True


def named(words: str, registry: Tables, root: Path) -> tuple[Subject[ModelSource], Subject[Transformation]]:
    """The model and the transform of BUDGET::MODEL::TRANSFORM. Raises InputError where there is no such one."""
    file, _, path = words.partition(BETWEEN)
    if not Path(file).is_file():
        raise InputError(f"{file} does not exist: write budgets/x.yaml{BETWEEN}MODEL{BETWEEN}TRANSFORM")
    known: dict[str, tuple[Subject[ModelSource], Subject[Transformation]]] = {}
    for model in read_budget(Path(file), registry, root=root).models:
        known |= {f"{model.path}{BETWEEN}{part.name}": (model, part) for part in model.transforms}
    if path not in known:
        raise InputError(f"{file} has no transform {path!r}: it has {', '.join(known) or 'none'}")
    return known[path]


def changed(words: str, registry: Tables) -> Model:
    """The model that BUDGET::MODEL::TRANSFORM makes."""
    model, part = named(words, registry, root := project_around(Path.cwd()).root)
    with searched_first(model.made.searched(root)):
        return transforming.apply_transform(model.made, part.made.transform, part.made.settings, registry).changed.model
