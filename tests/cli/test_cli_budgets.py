"""``modelbudget init``, ``diff`` and ``explain``: numbers that hold, or a sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_modelbudget import registry
from pytest_modelbudget.budget.budget import Limit
from pytest_modelbudget.budget.read_budget import read_budget
from pytest_modelbudget.cli.command import main
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.measurement import ByFormula, Measurement, Metric, Term, shares_of
from pytest_modelbudget.registry import tables
from pytest_modelbudget.reports.explain import declared

pytestmark = pytest.mark.needs_torch

LAB = """
import torch
from torch import nn

class Small(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, bias=False)
        self.second = nn.Conv2d(width, 2, 1)
    def forward(self, x):
        return self.second(self.first(x).relu())

class Example(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
        self.example_input_array = (torch.zeros(3, 4), 2)
    def forward(self, x, times):
        for _ in range(times - 1):
            x = x + x
        return self.fc(x)

class Odd(nn.Module):
    def forward(self, x):
        return torch.cdist(x, x)
"""
SMALL = ("lab_budgets:Small", "--input", "float32 1x3x6x6")
# 3 -> 8 channels, 3x3 taps, 6x6 -> 4x4; then 8 -> 2 channels with 2 biases, 1x1 taps.
FIRST, SECOND = 8 * 3 * 3 * 3, 2 * 8
PARAMS = FIRST + SECOND + 2
MACS = (8 * 4 * 4) * (3 * 3 * 3) + (2 * 4 * 4) * 8


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module ``lab_budgets``, made the current one."""
    (tmp_path / "lab_budgets.py").write_text(LAB, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def limits(path: Path, root: Path) -> dict[str, Limit]:
    (model,) = read_budget(path, tables(), root=root).models
    return {limit.metric: limit for limit in model.limits if isinstance(limit, Limit)}


# init


@pytest.mark.parametrize(
    ("headroom", "params", "macs"),
    [
        pytest.param("0%", PARAMS, 3720, id="none"),  # 3,712 MACs, rounded up at the third digit
        pytest.param("5%", 247, 3900, id="5%"),  # 234 x 1.05 = 245.7 -> 246; 3,712 x 1.05 = 3897.6
    ],
)
def test_init_limits_what_it_measures(lab: Path, headroom: str, params: int, macs: int) -> None:
    """The written budget is one that the gate reads, and its limits are the numbers' own."""
    assert (PARAMS, MACS) == (234, 3712)
    assert main(["init", *SMALL, "--headroom", headroom, "--output", "budgets/small.yaml"]) == 0
    found = limits(lab / "budgets" / "small.yaml", lab)
    assert list(found) == ["params", "model_size", "macs", "peak_activation", "bandwidth"]
    assert found["params"].max == (params if headroom == "0%" else 246)
    assert found["macs"].max == macs


def test_init_takes_the_models_own_inputs(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where none are given; the budget says so, and other commands name them as they take them."""
    assert main(["init", "lab_budgets:Example", "--output", "own.yaml"]) == 0
    assert limits(lab / "own.yaml", lab)["macs"].max == 3 * 4 * 2
    text = (lab / "own.yaml").read_text()
    own = "    inputs: [float32 3x4, 2]\n    # The inputs are the model's own example: write those that you run.\n"
    assert own in text
    capsys.readouterr()
    assert main(["show", "lab_budgets:Example"]) == 0
    assert """inputs: ["float32 3x4", 2], the model's own example: --input gives others""" in capsys.readouterr().out
    assert main(["compare", "lab_budgets:Example", "lab_budgets:Example"]) == 2
    error = capsys.readouterr().err
    assert """needs inputs: --input '["float32 3x4", 2]', the model's own example""" in error
    assert main(["show", "lab_budgets:Example", "--input", '["float32 3x4", 2]']) == 0
    assert main(["show", "lab_budgets:Example", "--input", "x=float32 3x4", "--input", "times=2"]) == 0


def test_init_quotes_the_command_it_prints(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A path with a space in it is one word of the command."""
    assert main(["init", *SMALL, "--output", "small net.yaml"]) == 0
    assert "  pytest --model-budget 'small net.yaml'\n" in capsys.readouterr().out


def test_init_prints_where_no_file_is_named(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Five limits, whose comments have definitions and no figures; nothing is written."""
    assert main(["init", *SMALL, "--kwargs", "width=8", "--name", "a: odd #name"]) == 0
    out = capsys.readouterr().out
    assert f"params: {PARAMS} " in out
    assert f"{MACS:,}" not in out
    assert [line for line in out.splitlines()[2:] if line.lstrip().startswith("#")] == []
    (model,) = read_budget(lab / "a.yaml", tables(), root=lab, text=out).models
    assert len(model.limits) == 5
    assert '"a: odd #name":' in out
    assert not Path("budgets").exists()


def test_init_measures_no_file_outside_the_project(
    lab: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its path could not be in a budget: the error names the project's folder, before anything is read."""
    (tmp_path / "net.onnx").write_bytes(b"no model")
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    assert main(["init", "../net.onnx"]) == 2
    assert f"../net.onnx lies outside the project folder {tmp_path / 'project'}" in capsys.readouterr().err
    (tmp_path / "project" / "net.onnx").touch()
    assert main(["init", "net.onx"]) == 2
    assert "did you mean net.onnx?" in capsys.readouterr().err


def test_init_overwrites_nothing(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is there is somebody's."""
    (lab / "mine.yaml").write_text("model_budget: 1\n")
    assert main(["init", *SMALL, "--output", "mine.yaml"]) == 2
    assert "mine.yaml exists" in capsys.readouterr().err
    assert (lab / "mine.yaml").read_text() == "model_budget: 1\n"


def test_init_writes_the_lock_too(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every limit's number, with the layers that it is made of."""
    assert main(["init", *SMALL, "--output", "budgets/small.yaml"]) == 0
    assert "budgets/small.yaml and small.lock.json written; check them with\n  pytest" in capsys.readouterr().out
    (model,) = json.loads((lab / "budgets" / "small.lock.json").read_text(encoding="utf-8"))["models"].values()
    assert model.keys() == limits(lab / "budgets" / "small.yaml", lab).keys()
    assert model["macs"]["value"] == MACS
    assert [part[0] for part in model["macs"]["parts"]] == ["first", "second"]


MORE = "# ours\nmodel_budget: 1\nmodels:\n    a:{}\n{}"
LIMITS = " # kept\n        torch: lab_budgets:Small\n        inputs: float32 1x3x6x6\n        limits: {params: 300}"


@pytest.mark.parametrize("behind", ["", "defaults: {inputs: float32 2x3x6x6}\n"], ids=["last key", "another behind"])
def test_init_appends_a_model(lab: Path, behind: str) -> None:
    """Below the models that are there, as far in as they are; the lock keeps their numbers."""
    (lab / "b.yaml").write_text(MORE.format(LIMITS, behind), encoding="utf-8")
    assert main(["init", *SMALL, "--output", "b.yaml", "--append", "--name", "b"]) == 0
    text = (lab / "b.yaml").read_text(encoding="utf-8")
    assert text.startswith(MORE.format(LIMITS, "    b:\n      torch: lab_budgets:Small\n"))
    assert text.endswith(behind)
    assert main(["init", *SMALL, "--output", "b.yaml", "--append", "--name", "c"]) == 0
    assert [model.name for model in read_budget(lab / "b.yaml", tables(), root=lab).models] == ["a", "b", "c"]
    lock = json.loads((lab / "b.lock.json").read_text(encoding="utf-8"))["models"]
    assert lock.keys() == {"b", "c"}
    assert lock["b"] == lock["c"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MORE.format(LIMITS, ""), "b.yaml already has a model a: choose another --name"),
        ("model_budget: 1\nmodels: {a: {torch: x:y, limits: {params: 1}}}\n", "b.yaml: models is not one entry a line"),
        (None, "--append adds to a budget that exists"),
    ],
    ids=["same name", "in braces", "no file"],
)
def test_init_appends_to_no_other_file(
    lab: Path, text: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sentence, and the file stays as it is."""
    if text is not None:
        (lab / "b.yaml").write_text(text, encoding="utf-8")
    name = "a" if text and "ours" in text else "b"
    assert main(["init", *SMALL, "--output", "b.yaml", "--append", "--name", name]) == 2
    assert said in capsys.readouterr().err
    assert text is None or (lab / "b.yaml").read_text(encoding="utf-8") == text


def test_init_leaves_lower_bounds_as_comments(capsys: pytest.CaptureFixture[str]) -> None:
    """What is unmeasured limits nothing; the exit code says so, and the error stream why."""
    assert main(["init", "lab_budgets:Odd", "--input", "float32 4x4"]) == 1
    shown = capsys.readouterr()
    assert re.search(r"^ +# macs: no limit +# without aten::\S+: a kernel ", shown.out, re.MULTILINE)
    assert not re.search(r"macs: \d", shown.out)
    assert shown.err.startswith("unmeasured: 1 x ")


@pytest.mark.parametrize("headroom", ["5", "-5%", "five"])
def test_init_reads_a_percentage(headroom: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Anything else is refused in a sentence."""
    assert main(["init", *SMALL, f"--headroom={headroom}"]) == 2
    assert "--headroom" in capsys.readouterr().err


# explain


def test_explain_writes_the_formula_and_its_result(capsys: pytest.CaptureFixture[str]) -> None:
    """One product per output element and weight of its filter: 128 x 27."""
    assert main(["explain", "macs", *SMALL, "first"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "first: macs 3,456 MAC of 3,712 MAC (93.1%)"
    at = lines.index("macs        out.elements * prod(weight.shape[1:])")
    assert lines[at + 1] == f"= {(8 * 4 * 4) * (3 * 3 * 3):,}"
    source = r"source      convolution_macs, pytest_modelbudget/ops/convolution\.py:\d+"
    assert re.match(source, lines[at + 2])
    assert any(line.startswith("because ") for line in lines)


@pytest.mark.parametrize(
    ("metric", "scope", "line"),
    [
        pytest.param("params", "first", "8 x 3 x 3 x 3 = 216", id="params"),
        pytest.param("weight_memory", "second", "2 x 32 bits / 8 = 8 B", id="bytes"),
        pytest.param("flops", "second", f"flops       2 x {32 * 8} + {2 * 4 * 4} = 544", id="flops"),
        pytest.param("bops", "second", f"bops        {32 * 8:,} x 32 x 32 = {32 * 8 * 32 * 32:,}", id="bops"),
        pytest.param("bandwidth", "second", "weights     72 B", id="bandwidth"),
        pytest.param("total_activation", "second", "write       128 B", id="written"),
        pytest.param("peak_activation", "first", "first  512 B", id="peak"),
    ],
)
def test_explain_of_other_metrics(metric: str, scope: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights by their shapes, FLOPs by two parts, bytes by direction."""
    assert main(["explain", metric, *SMALL, scope]) == 0
    assert line in [each.strip() for each in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("metric", ["params", "weight_memory"])
def test_explain_of_a_tied_weight_says_where_it_is_counted(metric: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its zero is a claim."""
    source = "tests.builders.micro_modules:TiedWeights"
    assert main(["explain", metric, source, "--input", "int64 1x6", "head"]) == 0
    assert "it shares memory with embedding.weight, where it is counted" in capsys.readouterr().out


def test_explain_of_what_is_unmeasured(capsys: pytest.CaptureFixture[str]) -> None:
    """The op and the reason, and exit code 1."""
    assert main(["explain", "macs", "lab_budgets:Odd", "--input", "float32 4x4", "(model)"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "(model): aten::cdist (distance)" in lines
    assert any(line.startswith("  macs        unmeasured: ") for line in lines)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param(("mac", *SMALL, "first"), "did you mean 'macs'?", id="metric"),
        pytest.param(("macs", *SMALL, "frist"), "did you mean 'first'?", id="scope"),
        pytest.param(
            ("net:Small", "macs", "first"), "METRIC is before SOURCE: explain macs net:Small first", id="order"
        ),
    ],
)
def test_explain_names_what_it_does_not_know(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typo is a usage error with a guess."""
    assert main(["explain", *words]) == 2
    assert told in capsys.readouterr().err


def several(*, x: tuple[int, ...], scale: int = 3) -> int:
    """A formula of two steps."""
    first, *_ = x
    return first * scale


class Tripled:
    """A formula that is no function."""

    def __call__(self, *, x: tuple[int, ...]) -> int:
        return 3 * x[0]


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        pytest.param(several, "first, *_ = x\nreturn first * scale", id="steps"),
        pytest.param(Tripled(), "Tripled", id="no function"),
        pytest.param(eval("lambda x: x"), "<lambda>", id="no source"),
    ],
)
def test_a_formula_is_shown_as_it_is_declared(formula: Callable[..., int], text: str) -> None:
    """Without its docstring; by its name if its source is not known."""
    assert declared(formula) == text


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param(
            ("Softmax", "dim=1", "2x4"),
            ["more flops  count * x.elements", f"= {5 * 2 * 4}", "with        count = 5"],
            id="constant",
        ),
        pytest.param(
            ("MaxPool2d", "kernel_size=2", "1x2x4x4"),
            ["return out.elements * prod(sizes)", f"= {2 * 2 * 2 * 4}",
             "attributes  kernel_size=[2, 2], stride=[2, 2]", "with        dimensions = 2"],
            id="attributes",
        ),
    ],
)  # fmt: skip
def test_explain_shows_every_value_of_a_formula(
    source: tuple[str, str, str], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Attributes of the operation, and constants that a formula encloses."""
    layer, argument, shape = source
    words = [f"torch.nn:{layer}", "--kwargs", argument, "--input", f"float32 {shape}", "(model)"]
    assert main(["explain", "flops", *words]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    at = lines.index(expected[0])
    assert lines[at : at + len(expected)] == expected


def test_an_extensions_metric_is_drafted_and_explained(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a metric says of itself is all that tables, drafts, explanations and editors ask."""

    def doubled(costed: CostedGraph) -> Measurement:
        amounts = [(scope, 2 * macs) for scope, macs in costed.known(lambda cost: cost.macs)]
        return Measurement(sum(value for _, value in amounts), "MAC", shares=shares_of(amounts))

    how = ByFormula((Term("macs", times=2), Term("flops", word="the rest")))
    metric = Metric("doubled", "MAC", "twice the MACs", doubled, how=how, drafted=True)
    plain = Metric("plain", "MAC", "the same, plainly", doubled)
    extension = SimpleNamespace(METRICS=(metric, plain))
    monkeypatch.setattr(registry, "installed_extensions", lambda: (extension,))
    assert main(["init", *SMALL]) == 0
    lines = capsys.readouterr().out.splitlines()
    (drafted,) = [line for line in lines if "doubled:" in line]
    assert not any("plain" in line for line in lines)
    assert drafted.startswith("      doubled: 7.43 kMAC")
    assert drafted.endswith("# twice the MACs")
    assert main(["explain", "doubled", *SMALL, "second"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert f"doubled     2 x {32 * 8} + {2 * 4 * 4} = 544" in lines
    assert main(["explain", "plain", *SMALL, "second"]) == 0
    assert "second  512 MAC" in capsys.readouterr().out.splitlines()
    assert main(["show", *SMALL]) == 0
    assert re.search(r"^ *doubled +7,424 MAC +7\.42 kMAC", capsys.readouterr().out, re.MULTILINE)
    assert main(["schema"]) == 0
    limits = json.loads(capsys.readouterr().out)["definitions"]["limits"]["properties"]
    assert limits["doubled"]["description"] == "twice the MACs"


# diff


def report(path: Path, models: dict[str, dict[str, dict[str, int]]], **more: Any) -> str:
    """A report of models with params by layer."""
    record = {
        "schema": "model-budget-report/1",
        "selected": False,
        "models": [
            {
                "id": name,
                "transforms": [],
                "metrics": {
                    metric: {
                        "value": sum(shares.values()),
                        "unit": "param",
                        "complete": True,
                        "shares": [{"scope": s, "value": v} for s, v in shares.items()],
                        **more,
                    }
                    for metric, shares in metrics.items()
                },
            }
            for name, metrics in models.items()
        ],
    }
    path.write_text(json.dumps(record))
    return str(path)


BEFORE = {
    "a.yaml::same": {"params": {"fc": 5}},
    "a.yaml::net": {"params": {"head": 100, "body": 50, "old": 7}, "same": {"x": 1}},
    "a.yaml::gone": {"params": {"fc": 5}},
}
AFTER = {
    "a.yaml::same": {"params": {"fc": 5}},
    "a.yaml::net": {"params": {"head": 140, "body": 45, "new": 9}, "same": {"x": 1}},
    "a.yaml::added": {"params": {"fc": 6}},
}


def test_diff_sorts_layers_by_size(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """+40, +9, -7, -5 make 37 of 157; what is the same is not spoken of."""
    words = [report(lab / "base.json", BEFORE), report(lab / "head.json", AFTER)]
    assert main(["diff", *words]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "a.yaml::added (new)",
        "  params  6",
        "a.yaml::gone (gone)",
        "a.yaml::net",
        "  params  157 -> 194   +37 (+23.6%)",
        "    +40  head   100 -> 140",
        "     +9  new   0 -> 9",
        "     -7  old   7 -> 0",
        "     -5  body   50 -> 45",
    ]


def test_diff_in_markdown(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names that could be markup or a mention are text, wherever they stand."""
    base = report(lab / "base.json", {"a.yaml::n|<b>@me": {"model_size": {"fc": 1}}})
    head = report(lab / "head.json", {"a.yaml::n|<b>@me": {"model_size": {"fc": 3}}})
    assert main(["diff", base, head, "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert "### a.yaml::n&#124;&#60;b>&#64;me" in out
    assert "| model_size | 1 -> 3 | +2 (+200.0%) |" in out
    assert "<details><summary>model_size by layer</summary>" in out
    assert "| +2 | fc | 1 -> 3 |" in out


def test_diff_of_one_report_is_nothing(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No change, said in words."""
    same = report(lab / "base.json", BEFORE)
    assert main(["diff", same, same]) == 0
    assert capsys.readouterr().out == "no number changed\n"


def test_diff_sums_up_small_layers(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twenty layers are named; ten more, 1 each, are a line."""
    shares = {f"layer{n}": 2 if n < 20 else 1 for n in range(30)}
    base = report(lab / "base.json", {"a::n": {"params": {"fc": 1}}})
    head = report(lab / "head.json", {"a::n": {"params": {"fc": 1, **shares}}})
    main(["diff", base, head])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].strip() == "+10  (10 others)"
    assert len(lines) == 2 + 20 + 1


def test_diff_tells_no_difference_of_lower_bounds(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Between two lower bounds nothing is known, and the exit code says so."""
    base = report(lab / "base.json", {"a::n": {"params": {"fc": 1}}}, complete=False)
    head = report(lab / "head.json", {"a::n": {"params": {"fc": 2}}}, complete=False)
    assert main(["diff", base, head]) == 1
    assert "params  >= 1 -> >= 2   unknown: measured in part" in capsys.readouterr().out
    assert main(["diff", report(lab / "base.json", {"a::n": {"params": {"fc": 1}}}), head]) == 1
    assert "params  1 -> >= 2   unknown: measured in part" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(None, "cannot be read: No such file", id="no file"),
        pytest.param("model_budget: 1", "is no JSON", id="no JSON"),
        pytest.param('{"schema": "model-budget-report/9"}', "no report of this version", id="newer"),
        pytest.param("[]", "no report of this version", id="a list"),
    ],
)
def test_diff_reads_reports_only(lab: Path, text: str | None, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Anything else is refused in a sentence."""
    path = lab / "x.json"
    if text is not None:
        path.write_text(text)
    assert main(["diff", str(path), str(path)]) == 2
    assert told in capsys.readouterr().err
