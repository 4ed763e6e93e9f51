"""What the documents say is what the code does: keys, figures, blocks, options, links."""

from __future__ import annotations

import configparser
import re
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import yaml

from pytest_modelbudget.budget.read_budget import is_budget, read_budget
from pytest_modelbudget.cli.reference import USUAL
from pytest_modelbudget.graph.graph import Op, Operand
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.metrics.compute import FLOPS_CONVENTION
from pytest_modelbudget.metrics.costs import OpCost
from pytest_modelbudget.ops.table import builtin_ops
from pytest_modelbudget.registry import tables
from tests.builders import graphs
from tests.builders.documents import DOCUMENTS, ROOT, Block, blocks, from_root

README = (ROOT / "README.md").read_text(encoding="utf-8")
CONVENTIONS = (ROOT / "docs" / "conventions.md").read_text(encoding="utf-8")
_serial = count()


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next one."""
    start = text.index(f"\n## {heading}")
    end = text.find("\n## ", start + 1)
    return text[start : end if end >= 0 else len(text)]


def rows(text: str) -> Iterator[list[str]]:
    """Cells of the Markdown table rows of a text, without heading and rule."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    for line in lines[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def test_readme_lists_the_metrics_that_most_use() -> None:
    """The README's table has the keys that ``modelbudget metrics`` lists without --all."""
    cells = [cell for row in rows(section(README, "What can be limited")) for cell in row]
    assert sorted(cells[::2]) == sorted(f"`{key}`" for key in USUAL)


@pytest.mark.parametrize("block", [each for each in blocks("yaml") if is_budget(each.text) and not each.file], ids=str)
def test_budgets_in_documents_are_valid(block: Block, tmp_path: Path) -> None:
    """Every budget that a document shows is one that the reader takes, whatever is installed."""
    path = tmp_path / "budgets" / "budget.yaml"
    path.parent.mkdir()
    path.write_text(block.text, encoding="utf-8")
    for other in blocks("yaml"):
        if other.document == block.document and other.text.startswith("hardware: 1"):
            path.with_name("hardware.yaml").write_text(other.text, encoding="utf-8")
    assert read_budget(path, tables(), root=tmp_path).models


@pytest.mark.parametrize("path", DOCUMENTS, ids=from_root)
def test_links_lead_somewhere(path: Path) -> None:
    """Relative links name files that exist."""
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8"))
    gone = [t for t in targets if "://" not in t and not (path.parent / t).exists()]
    assert not gone


def test_blocks_are_of_their_language() -> None:
    """Python compiles, YAML and settings are read; tests/test_documented_blocks.py runs them."""
    for block in blocks("python"):
        compile(block.text, str(block), "exec")
    for block in blocks("yaml"):
        assert yaml.safe_load(block.text)
    for block in blocks("ini"):
        configparser.ConfigParser().read_string(block.text)


def test_shell_blocks_are_commands() -> None:
    """Each line of a block starts with a program that the documents explain, and bash can read the block."""
    texts = [block.text for block in blocks("bash")]
    subprocess.run(["bash", "-n"], input="\n".join(texts), text=True, check=True)
    programs = {line.split()[0] for text in texts for line in text.splitlines() if line and line[0] not in " #"}
    assert programs <= {"git", "modelbudget", "pip", "pre-commit", "pytest", "python", "python3", "ruff"}


def test_every_page_stands_in_the_sites_contents() -> None:
    """No document is left out of the navigation, and what it names exists or is generated."""
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"[ :]([\w/-]+\.md)$", settings, re.MULTILINE))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    generated = {"index.md", "metrics/index.md", "operations/index.md", "project/CHANGELOG.md"}
    assert named == written | generated


def test_options_in_documents_exist(pytestconfig: pytest.Config) -> None:
    """Every --model-budget option that a document names is one that pytest takes."""
    for path in DOCUMENTS:
        for option in re.findall(r"--model-budget[a-z-]*[a-z]", path.read_text(encoding="utf-8")):
            assert pytestconfig.getoption(option, default=pytest) is not pytest, option


LEGS = ("test", "onnx")


def test_ci_runs_the_readme_and_nothing_of_its_own() -> None:
    """.ci/run takes its commands from the README; .ci/zoo installs extras of the project itself, and no more."""
    script, zoo = ((ROOT / ".ci" / name).read_text(encoding="utf-8") for name in ("run", "zoo"))
    assert all(re.search(rf"\n[^#\n]*\breadme {name}\b", script) for name in LEGS)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for line in (line for line in (script + zoo).splitlines() if re.search(r"\b(pip3?|uv|conda)\b", line)):
        own = re.fullmatch(r'pip install --quiet -e "\.\[([a-z,]+)\]"', line)
        assert own is not None, line
        assert all(f"\n{extra} = [" in project for extra in own[1].split(","))
    for name in ("gate", "test", "onnx"):
        assert README.count(f"<!-- command: {name} -->\n```bash\n") == 1
    gate = re.search(r"command: gate -->\n```bash\n(.*)\n```", README)
    assert gate is not None
    assert gate[1].rpartition(" && ")[2] in script.splitlines()


# The conventions' figures, against the rules.


def tensor(*shape: int) -> Tensor:
    """A dense float32 activation on memory of its own."""
    return graphs.tensor(f"t{next(_serial)}", *shape)


def cost(name: str, *operands: Operand, out: Tensor, **attributes: object) -> OpCost:
    """What the rules say that one operation costs."""
    op = Op(name, operands, (out,), attributes)
    return graphs.costed(op, inputs=tuple(op.tensors()), outputs=(out,)).costs[0]


X = tensor(2, 3, 4, 4)  # 96 elements
Q = tensor(1, 2, 5, 4)  # 2 heads, 5 queries: 5 x 5 scores a head
LSTM_PARAMS = (tensor(32, 4), tensor(32, 8))  # 4 gates of 8 units, no biases
STATE = tensor(1, 2, 8)
STEPS = tensor(5, 2, 4)  # 5 steps, batch 2


def attention(mask: Tensor | None = None) -> int:
    found = cost("aten::scaled_dot_product_attention", Q, Q, Q, mask, out=tensor(1, 2, 5, 4)).flops
    assert isinstance(found, int)
    return found


# What the table calls it: (FLOPs beyond 2 per MAC by the rules, how many units they are for).
FLOPS_CASES = {
    "bias of linear": (cost("aten::linear", tensor(2, 3), tensor(8, 3), tensor(8), out=tensor(2, 8)).flops, 2 * 8),
    "bias of convolution": (
        cost("aten::conv2d", X, tensor(6, 3, 3, 3), tensor(6), out=tensor(2, 6, 2, 2)).flops,
        2 * 6 * 2 * 2,
    ),
    "add": (cost("aten::add", X, tensor(1), out=tensor(2, 3, 4, 4)).flops, 96),
    "mul": (cost("aten::mul", X, X, out=tensor(2, 3, 4, 4)).flops, 96),
    "relu": (cost("aten::relu", X, out=tensor(2, 3, 4, 4)).flops, 96),
    "gelu": (cost("aten::gelu", X, out=tensor(2, 3, 4, 4)).flops, 96),
    "exp": (cost("aten::exp", X, out=tensor(2, 3, 4, 4)).flops, 96),
    "comparison": (cost("aten::lt", X, X, out=tensor(2, 3, 4, 4)).flops, 96),
    "batch_norm": (cost("aten::batch_norm", X, None, None, tensor(3), tensor(3), out=tensor(2, 3, 4, 4)).flops, 96),
    "own statistics of batch_norm": (cost("aten::batch_norm", X, out=tensor(2, 3, 4, 4)).flops, 96),
    "sort": (cost("aten::sort", X, out=tensor(2, 3, 4, 4), dim=1).flops, 96 * 2),  # 3 along the axis: 2 comparisons
    "histogram": (cost("aten::histc", X, out=tensor(10)).flops, 96),
    "grid_sample": (
        cost("aten::grid_sampler", X, tensor(2, 5, 5, 2), out=tensor(2, 3, 5, 5), interpolation_mode=0).flops,
        (2 * 3 * 5 * 5) * 4,
    ),
    "weight_norm": (cost("aten::_weight_norm", X, tensor(2, 1, 1, 1), out=tensor(2, 3, 4, 4)).flops, 96),
    "interpolation": (cost("aten::upsample_bilinear2d", X, out=tensor(2, 3, 8, 8)).flops, (2 * 3 * 8 * 8) * 4),
    "layer_norm": (cost("aten::layer_norm", X, out=tensor(2, 3, 4, 4)).flops, 96),
    "group_norm": (cost("aten::group_norm", X, out=tensor(2, 3, 4, 4)).flops, 96),
    "instance_norm": (cost("aten::instance_norm", X, out=tensor(2, 3, 4, 4)).flops, 96),
    "rms_norm": (cost("aten::rms_norm", X, out=tensor(2, 3, 4, 4)).flops, 96),
    "softmax": (cost("aten::softmax", X, out=tensor(2, 3, 4, 4)).flops, 96),
    "log_softmax": (cost("aten::log_softmax", X, out=tensor(2, 3, 4, 4)).flops, 96),
    "pooling": (
        cost("aten::max_pool2d", X, out=tensor(2, 3, 2, 2), kernel_size=(2, 2)).flops,
        (2 * 3 * 2 * 2) * (2 * 2),
    ),
    "adaptive_pooling": (cost("aten::adaptive_avg_pool2d", X, out=tensor(2, 3, 1, 1)).flops, 96),
    "sum": (cost("aten::sum", X, out=tensor(2)).flops, 96),
    "mean": (cost("aten::mean", X, out=tensor(2)).flops, 96),
    "variance": (cost("aten::var", X, out=tensor(2)).flops, 96),
    "attention": (attention(), 2 * 5 * 5),
    "mask of attention": (attention(tensor(5, 5)) - attention(), 2 * 5 * 5),
    "lstm": (cost("aten::lstm", STEPS, (STATE, STATE), LSTM_PARAMS, out=tensor(5, 2, 8)).flops, 8 * 5 * 2),
    "gru": (cost("aten::gru", STEPS, STATE, (tensor(24, 4), tensor(24, 8)), out=tensor(5, 2, 8)).flops, 8 * 5 * 2),
    "rnn": (cost("aten::rnn_tanh", STEPS, STATE, (tensor(8, 4), tensor(8, 8)), out=tensor(5, 2, 8)).flops, 8 * 5 * 2),
    "quantize": (cost("aten::quantize_per_tensor", X, out=tensor(2, 3, 4, 4)).flops, 96),
    "dequantize": (cost("aten::dequantize", X, out=tensor(2, 3, 4, 4)).flops, 96),
    "reshape": (cost("aten::reshape", X, out=tensor(96)).flops, 96),
    "transpose": (cost("aten::transpose", X, out=tensor(3, 2, 4, 4)).flops, 96),
    "slice": (cost("aten::slice", X, out=tensor(1, 3, 4, 4)).flops, 48),
    "expand": (cost("aten::expand", X, out=tensor(2, 3, 4, 4)).flops, 96),
    "cat": (cost("aten::cat", (X, X), out=tensor(4, 3, 4, 4)).flops, 192),
    "pad": (cost("aten::pad", X, out=tensor(2, 3, 6, 6)).flops, 216),
    "copy": (cost("aten::clone", X, out=tensor(2, 3, 4, 4)).flops, 96),
    "cast": (cost("aten::to", X, out=tensor(2, 3, 4, 4)).flops, 96),
    "embedding": (cost("aten::embedding", tensor(9, 4), tensor(2), out=tensor(2, 4)).flops, 8),
    "gather": (cost("aten::gather", X, X, out=tensor(2, 3, 4, 4)).flops, 96),
}


def told_flops() -> list[tuple[str, int]]:
    """(what, FLOPs per unit) of the conventions' table."""
    return [
        (f"{cell.partition('`')[0]}{kind}", int(figure))
        for cell, figure, _ in rows(section(CONVENTIONS, "FLOPs"))
        for kind in re.findall(r"`([a-z_0-9]+)`", cell)
    ]


@pytest.mark.parametrize(("what", "per_unit"), told_flops())
def test_flops_are_as_the_conventions_say(what: str, per_unit: int) -> None:
    """Each figure of the page, times the units of a small tensor, is what the rule computes."""
    flops, units = FLOPS_CASES[what]
    assert flops == per_unit * units


def test_kinds_in_the_conventions_exist() -> None:
    """The page names kinds of operations by the words that reports and budgets use."""
    kinds = {
        kind
        for heading in ("One MAC", "FLOPs")
        for cell, *_ in rows(section(CONVENTIONS, heading))
        for kind in re.findall(r"`([a-z_0-9]+)`", cell)
    }
    assert kinds <= builtin_ops().kinds
    assert f"convention `{FLOPS_CONVENTION}`" in CONVENTIONS


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(
            cost(
                "aten::einsum", tensor(50, 30), tensor(30, 40), tensor(40, 2),
                out=tensor(50, 2), equation="ij,jk,kl->il",
            ),
            50 * 30 * 40 + 50 * 40 * 2,
            id="einsum",
        ),
        pytest.param(
            cost("aten::linear", tensor(2, 3), tensor(8, 3), out=tensor(2, 8)),
            (2 * 8) * 3,
            id="linear",
        ),
        pytest.param(
            cost("aten::conv2d", X, tensor(6, 3, 3, 3), out=tensor(2, 6, 2, 2)),
            (2 * 6 * 2 * 2) * 3 * (3 * 3),
            id="convolution",
        ),
        pytest.param(
            cost("aten::conv_transpose2d", X, tensor(3, 6, 2, 2), out=tensor(2, 6, 8, 8)),
            96 * 6 * (2 * 2),
            id="transposed convolution",
        ),
        pytest.param(
            cost(
                "aten::bilinear", tensor(2, 3), tensor(2, 4), tensor(5, 3, 4), out=tensor(2, 5)
            ),
            2 * (5 * 3 * 4 + 5 * 4),
            id="bilinear",
        ),
        pytest.param(
            cost("aten::scaled_dot_product_attention", Q, Q, Q, out=tensor(1, 2, 5, 4)),
            (2 * 5) * 5 * (4 + 4),
            id="attention",
        ),
        pytest.param(
            cost("aten::lstm", STEPS, (STATE, STATE), LSTM_PARAMS, out=tensor(5, 2, 8)),
            (5 * 2) * (32 * 4 + 32 * 8),
            id="lstm",
        ),
    ],
)  # fmt: skip
def test_macs_are_as_the_conventions_say(found: OpCost, expected: int) -> None:
    """The formulas of the page, on small tensors."""
    assert found.macs == expected
