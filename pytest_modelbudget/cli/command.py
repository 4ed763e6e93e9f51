"""The ``modelbudget`` command: 0 done, 1 unmeasured operations, 2 usage or unreadable source."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple, NoReturn

from pytest_modelbudget.budget.lock_file import lock_schema_text
from pytest_modelbudget.budget.read_budget import schema_text
from pytest_modelbudget.budget.yaml_text import shown, suggestion
from pytest_modelbudget.cli.build import add_build, add_linear, add_search, add_tile
from pytest_modelbudget.cli.devices import add_devices, add_fit, add_serve
from pytest_modelbudget.cli.lint import add_lint
from pytest_modelbudget.cli.meant import line_meant
from pytest_modelbudget.cli.models import add_compare, add_explain, add_init, add_show
from pytest_modelbudget.cli.reference import add_metrics, add_ops
from pytest_modelbudget.cli.reports import add_diff, add_history, add_merge
from pytest_modelbudget.cli.screen import print_error, print_text
from pytest_modelbudget.cli.values import add_activations, add_weights
from pytest_modelbudget.errors import DeviceError, ModelBudgetError, SourceError, UnboundError
from pytest_modelbudget.gate.project import importing_as_pytest
from pytest_modelbudget.registry import installed_version, tables
from pytest_modelbudget.reports import record
from pytest_modelbudget.reports.show import binding

DONE, UNMEASURED, UNUSABLE, INTERRUPTED = 0, 1, 2, 130  # exit codes
EXITS = {True: DONE, False: UNMEASURED}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; what a user can mend is one sentence."""
    top, words = parser(), sys.argv[1:] if arguments is None else arguments
    if not words:
        top.print_help(sys.stderr)
        top.exit(UNUSABLE)
    if words[0] == "check" and not {"-h", "--help"}.intersection(words):
        return run_gate(words[1:])
    names = [command.name for command in COMMANDS]
    if not words[0].startswith("-") and words[0] not in names:
        top.error(f"there is no command {shown(words[0])}: {suggestion(words[0], names, SAID)}")
    options, unknown = top.parse_known_args(words)
    if unknown:
        top.error(_unrecognized(unknown, options.asked))
    return _run(options, words)


def run_gate(words: Sequence[str]) -> int:
    """Run ``pytest --model-budget`` with these words, and return its exit code."""
    import pytest  # noqa: TID251  # this command is pytest

    return int(pytest.main(["--model-budget", *words]))


def _run(options: argparse.Namespace, words: Sequence[str]) -> int:
    """The exit code of a command; whatever ends it before its end is one sentence on the error stream."""
    code = DONE
    try:
        with importing_as_pytest(Path.cwd()) if options.loads_model else nullcontext():
            outcome = options.command(options)
        code = EXITS[outcome] if isinstance(outcome, bool) else int(outcome)
        sys.stdout.flush()  # here, where a full disk can still be said in a sentence
        return code
    except ModelBudgetError as error:
        told = f"{error.why}: {binding(error.sizes)}" if isinstance(error, UnboundError) else str(error)
        code = _refuse(*(told.split("\n") if isinstance(error, DeviceError) else [told]))  # a problem a line
        if isinstance(error, SourceError) and options.loads_model and (line := line_meant(options, words)):
            print_text(f"write: {line}", stream=sys.stderr)
        if error.raised and options.loads_model:
            print_text(error.raised if options.verbose else "the whole exception: add -v", stream=sys.stderr)
        return code
    except BrokenPipeError:  # the reader of a pipe (head, less) has seen enough
        _forget_output()
        return code
    except OSError as error:  # what models raise is a ModelBudgetError: this is our own output
        _forget_output()
        file = f" {error.filename}" if error.filename else ""
        return _refuse(f"cannot write{file}: {error.strerror or error}")
    except UnicodeEncodeError as error:  # in a draft or a picture, which others read and must be whole
        letter = error.object[error.start]
        return _refuse(f"cannot write {letter!a} in {error.encoding}: set PYTHONIOENCODING=utf-8")
    except MemoryError as error:
        return _refuse(f"there is not enough memory: {error or 'ask for something smaller'}")
    except KeyboardInterrupt:
        return INTERRUPTED


def _refuse(*sentences: str) -> int:
    for sentence in sentences:
        print_error(f"modelbudget: error: {sentence}")
    return UNUSABLE


def _unrecognized(words: Sequence[str], asked: argparse.ArgumentParser) -> str:
    """What no option takes: a spec whose two words lack their quotes, mostly, or an option with a slip."""
    close = get_close_matches(words[0], re.findall(r"--[\w-]+", asked.format_usage()), 1)
    hint = f"did you mean {close[0]}?" if close else f"{asked.prog} --help has what there is"
    if not close and any(re.fullmatch(r"\d+(x\d+)+", word) for word in words):
        hint = 'write a spec in quotes: --input "int64 1x128"'
    return f"unrecognized arguments: {' '.join(words)}: {hint}"


def _forget_output() -> None:
    """Let what could not be written go, so that Python's end does not try once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Command(NamedTuple):
    """One command: what adds its options, what it is for, and words that it can be called with."""

    name: str
    add_options: Callable[[argparse.ArgumentParser], None]
    about: str
    examples: tuple[str, ...]


class Parser(argparse.ArgumentParser):
    """A parser whose errors are as wide as the terminal, and have its colour."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the words, and end with exit code 2."""
        self.print_usage(sys.stderr)
        print_error(f"{self.prog}: error: {message}")
        self.exit(UNUSABLE)


INPUT = "--input 1x3x224x224"


def parser() -> argparse.ArgumentParser:
    """Commands and their options."""
    first = "\n".join(f"  modelbudget {command.examples[0]}" for command in COMMANDS if command.name in FIRST)
    top = Parser(
        prog="modelbudget",
        description="What a neural network costs, layer by layer; check enforces its budget.",
        epilog=f"to begin with:\n{first}\n  modelbudget check",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"modelbudget {installed_version('pytest-modelbudget')}")
    top.set_defaults(loads_model=False)
    _add_commands(top, COMMANDS)
    return top


def _add_commands(above: argparse.ArgumentParser, commands: Iterable[Command]) -> None:
    """Add a parser for each command, with its examples."""
    parsers = above.add_subparsers(required=True, metavar="COMMAND")
    for name, add_options, about, examples in commands:
        lines = "\n".join(f"  {above.prog} {example}" for example in examples)
        one = parsers.add_parser(
            name, help=about, description=f"{about[0].upper()}{about[1:]}.", epilog=f"examples:\n{lines}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        one.set_defaults(asked=one)
        add_options(one)


def add_check(command: argparse.ArgumentParser) -> None:
    """The options of ``check``: pytest's, which reads them itself."""
    text = "budget files, or folders with them (default: where pytest looks), and any option of pytest"
    command.add_argument("paths", metavar="PATH", nargs="*", help=text)
    command.set_defaults(command=lambda options: run_gate(options.paths))


def add_lab(command: argparse.ArgumentParser) -> None:
    """The commands of ``lab``: the two writers of ONNX files."""
    _add_commands(command, LAB)


def add_schema(command: argparse.ArgumentParser) -> None:
    """The options of ``schema``: the JSON Schema of budget files, for editors, of JSON reports, or of lock files."""
    text = f"{', '.join(SCHEMAS)} (default: budget)"
    command.add_argument("of", metavar="WHICH", nargs="?", choices=tuple(SCHEMAS), default="budget", help=text)
    command.set_defaults(command=lambda options: print(SCHEMAS[options.of]().rstrip()) is None)


SCHEMAS = {"budget": lambda: schema_text(tables()), "report": record.schema_text, "lock": lock_schema_text}


LAB = (
    Command("linear", add_linear, "write one linear layer as an ONNX file", (
        "linear --m 128 --k 256 --n 64 --out linear.onnx",
    )),
    Command("tile", add_tile, "write an ONNX file's twin in tiles", (
        "tile linear.onnx --tile 64 --out tiled.onnx",
    )),
)  # fmt: skip
FIRST = ("show", "init")  # what to begin with
# Words that other tools have for a command.
SAID = {
    "show": ("measure", "profile", "summary", "count", "layers", "params", "macs", "flops"),
    "explain": ("why",),
    "init": ("new", "create"),
    "check": ("gate", "run", "test", "verify"),
    "lint": ("validate",),
    "lab": ("linear", "tile"),
    "devices": ("hardware", "boards"),
    "diff": ("reports",),
    "compare": ("versus",),
    "history": ("log",),
}
COMMANDS = (
    Command("show", add_show, "a model's layer table and totals", (
        f"show torchvision.models:alexnet {INPUT}",
        "show mynets:Net --kwargs width=64 --input 'float32 1x3x32x32'",
        "show model.onnx --dims batch=1 --ops",
        "show model.onnx --vary batch=1,8,64",
    )),
    Command("compare", add_compare, "two models side by side", (
        f"compare torchvision.models:resnet18 torchvision.models:resnet34 \\\n      {INPUT}",
    )),
    Command("explain", add_explain, "an operation's formula, operands and result", (
        f"explain macs torchvision.models:resnet18 layer4.0.conv1 \\\n      {INPUT}",
        "explain peak_activation model.onnx '(model)'",
    )),
    Command("init", add_init, "a budget with what a model measures as limits", (
        f"init torchvision.models:mobilenet_v2 \\\n      {INPUT} --headroom 5% --output budgets/mobile.yaml",
        "init model.onnx --dims batch=1 --output budgets/model.yaml",
    )),
    Command("check", add_check, "run the gate: pytest --model-budget, with the same exit codes", (
        "check",
        "check budgets/mobile.yaml",
    )),
    Command("build", add_build, "the file that ships of a transform", ("build budgets/x.yaml::m::tiled --out m.onnx",)),
    Command("lint", add_lint, "whether budgets can be read, without a model", (
        "lint",
        "lint budgets/mobile.yaml",
    )),
    Command("fit", add_fit, "whether a model fits a device", (
        f"fit torchvision.models:resnet18 {INPUT} \\\n      --device cortex_m55_ethos_u55 --lower dtype=int8",
        "fit model.onnx --device hardware.yaml::board --plan plan.json",
    )),
    Command("serve", add_serve, "whether a language model with its cache fits a memory", (
        "serve ./llama --context 8192 --batch 4 --device l4 --fit",
    )),
    Command("devices", add_devices, "devices and their figures, each with its source", (
        "devices cortex_m4",
        "devices --hardware hardware.yaml",
    )),
    Command("metrics", add_metrics, "what a budget may limit, with units and definitions", (
        "metrics --all",
        "metrics macs peak_activation",
    )),
    Command("ops", add_ops, "kinds of operations: their names, costs and reasons", (
        "ops",
        "ops Conv aten::linear",
    )),
    Command("diff", add_diff, "what changed between two JSON reports", (
        "diff base.json head.json --format markdown",
    )),
    Command("activations", add_activations, "values on a model's way, and their statistics", (
        "activations model.onnx --types Conv --given digits.npz --stats",
    )),
    Command("weights", add_weights, "a model's stored values, and their statistics", (
        f'weights torchvision.models:alexnet {INPUT} \\\n      --layers "features.*" --stats',
    )),
    Command("search", add_search, "bits for each layer that keep a bound", ("search b.yaml::m --keep 'sqnr 20'",)),
    Command("history", add_history, "when locked numbers changed, and by how much", (
        "history mobilenet_v2 --metric params --since v1.0",
    )),
    Command("merge", add_merge, "one run's reports from the parts of its shards", (
        "merge part-1.json part-2.json --report junit --report html",
    )),
    Command("lab", add_lab, "write ONNX files: one linear layer, or a tiled copy of a file", (
        "lab linear --m 128 --k 256 --n 64 --out linear.onnx",
        "lab tile linear.onnx --tile 64 --out tiled.onnx",
    )),
    Command("schema", add_schema, "the JSON Schema of a budget, a report or a lock file", (
        "schema",
        "schema report",
        "schema lock",
    )),
)  # fmt: skip
