"""A model's end is its own: good models beside unruly ones, in this process and in processes of their own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_modelbudget.gate.own_process import Bounds
from tests.builders.documents import blocks
from tests.builders.unruly_models import DYING, GOOD, UNRULY, model_line, unruly_module

pytestmark = [pytest.mark.needs_torch, pytest.mark.slow]

HEAD = "model_budget: 1\ndefaults: {inputs: float32 1x8}\nmodels:\n"
GOOD_LINES = (
    "  first: {torch: 'good:net', limits: {params: 1 M, macs: 1 M}}\n",
    "  drawn: {torch: 'good:drawn', kwargs: {width: 5}, limits: {params: 1 M, model_size: 1 MB},\n"
    "    deployments: {lab: {device: lab_array, lower: {dtype: int8}, limits: {array_cycles: 1 M}}}}\n",
    "  last:\n    torch: good:net\n    kwargs: {width: 6}\n    limits: {params: 1 M}\n    transforms:\n"
    "      tiled: {tile_linear: {tile: 2, edge: ragged}, equivalence: exact_algebra, limits: {macs: 1 M}}\n",
)
CAUSES = {
    "exits": "ended itself with exit code 0",
    "crashes": "ended by SIGSEGV",
    "hangs": "was stopped after 5 s",
    "eats_memory": "needed more than 1 GiB",
    "raises": "raised ValueError: no such weights",
}


@pytest.fixture
def repository(pytester: pytest.Pytester) -> Path:
    """A project with good and with unruly factories."""
    pytester.makefile(".ini", pytest="[pytest]\n")
    pytester.makepyfile(good=GOOD, unruly=unruly_module(UNRULY), dying=unruly_module(DYING))
    pytester.mkdir("budgets")
    return pytester.path


def run(
    pytester: pytest.Pytester, lines: list[str], *args: str, apart: bool = True
) -> tuple[pytest.RunResult, dict[str, Any]]:
    """The gate over these models, and its report; in a process of its own, for whatever they do to it."""
    (pytester.path / "budgets" / "a.yaml").write_text(HEAD + "".join(lines), encoding="utf-8")
    session = pytester.runpytest_subprocess if apart else pytester.runpytest_inprocess
    result = session("-p", "no:cacheprovider", "--model-budget", "--model-budget-json=r.json", *args)
    return result, json.loads((pytester.path / "r.json").read_text(encoding="utf-8"))


def of_good_models(report: dict[str, Any]) -> dict[str, str]:
    """What a report says of the good models, as text, but for where in the file they stand."""
    models = {model["id"].rpartition("::")[2]: json.dumps(model) for model in report["models"]}
    return {name: re.sub(r'"line": \d+', "", models[name]) for name in ("first", "drawn", "last")}


# What is enough beside models elsewhere, in workers and in processes of their own: one that prints, seeds and so on.
OF_EACH_KIND = (
    "prints", "seeds", "default_dtype", "patches_linear", "enters_meta", "changes_folder", "changes_environment",
    "changes_path", "shadows_module", "filters_warnings", "replaces_stdout", "raises_exit", "raises_skip",
    "starts_thread", "recursion_limit", "signal_handlers", "traces", "logs",
)  # fmt: skip


@pytest.mark.usefixtures("repository")
def test_r10_good_models_are_the_same_beside_unruly_ones(pytester: pytest.Pytester) -> None:
    """The report of a good model knows nothing of who was measured before it, where, and in which order.

    In one process, and in processes of their own, the good ones stand before, between and behind others; workers have
    them at the end.
    """
    _, report = run(pytester, list(GOOD_LINES), apart=False)
    alone = of_good_models(report)
    assert len(UNRULY) >= 40
    others, few = ([model_line("unruly", name) for name in names] for names in (UNRULY, OF_EACH_KIND))
    first, middle, last = GOOD_LINES
    for lines, args in (
        ([first, *others[::2], middle, *others[1::2], last], ()),
        ([*few[::-1], *GOOD_LINES], ("-n1",)),
        ([last, *few[::2], middle, *few[1::2], first], ("--model-budget-isolate",)),
    ):
        result, report = run(pytester, lines, *args)
        assert result.ret == 1, args  # some of the unruly ones raise
        assert of_good_models(report) == alone, args
        assert len(report["models"]) == len(lines)
        errors = {model["id"].rpartition("::")[2]: model.get("error", "") for model in report["models"]}
        for name in errors.keys() - {"first", "drawn", "last"}:
            assert bool(errors[name]) or not name.startswith("raises"), name


@pytest.mark.usefixtures("repository")
def test_r10_ten_models_of_which_five_die(pytester: pytest.Pytester) -> None:
    """Five fail, each with its cause, and five are measured: exit code 1."""
    limits = {"hangs": "timeout: 5 s, ", "eats_memory": "memory: 1 GiB, "}
    dying = [model_line("dying", name, limits.get(name, "")) for name in DYING]
    good = [
        f"  good{width}: {{torch: 'good:net', kwargs: {{width: {width}}}, limits: {{params: 1 M}}}}\n"
        for width in range(5)
    ]
    lines = [line for pair in zip(dying, good, strict=True) for line in pair]
    result, report = run(pytester, lines, "--model-budget-isolate", "--durations=0")
    assert result.ret == 1
    result.assert_outcomes(passed=5, failed=10)  # two limits each
    errors = {model["id"].rpartition("::")[2]: model.get("error", "") for model in report["models"]}
    for name, cause in CAUSES.items():
        assert cause in errors[name]
        assert errors[f"good{list(DYING).index(name)}"] == ""
    assert "in hangs, " in errors["hangs"]
    assert "in crashes, " in errors["crashes"]
    (shown,) = (block for block in blocks("text") if "the process that measured it" in block.text)
    assert as_documented(shown.text).splitlines() == [
        as_documented(f"params unknown: {errors[name]}") for name in ("exits", "crashes", "hangs", "eats_memory")
    ]


def as_documented(text: str) -> str:
    """A cause without what is another model's: where it stood, its bounds and its exit code."""
    return re.sub(r"\d+", "N", re.sub(r"\(in [^)]*\)", "(in ...)", text))


SCRIPT_HEAD = """
import os, signal, sys, time, threading
from torch import nn

"""
ODD = {
    "prints": ("print('from the factory'); os.write(2, b'raw words\\n'); raise ValueError", "raised ValueError"),
    "closes": ("os.closerange(3, 256); os.close(1); os.close(2); return nn.Linear(8, 2)", ""),
    "forges": (
        "import glob, tempfile\n    for f in glob.glob(tempfile.gettempdir() + '/model-budget-*'):\n"
        "        open(f + '/answer-1', 'wb').write(b'half an answ')\n    time.sleep(60)",
        "gave an answer that cannot be read",
    ),
    "spawns": ("import subprocess; subprocess.Popen(['sleep', '97531']); os._exit(3)", "with exit code 3"),
    "aborts": ("os.abort()", "ended by SIGABRT (in aborts, "),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL, as systems do that are short of memory"),
    "interrupts": ("raise KeyboardInterrupt", "raised KeyboardInterrupt (in interrupts, "),
    "leaves_thread": (
        "threading.Thread(target=time.sleep, args=(60,), name='lingering').start(); return nn.Linear(8, 2)", "",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("repository")
def test_r10_odd_ends_have_their_cause(
    pytester: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage, a signal, a grandchild, closed descriptors: the cause, or the numbers; what is printed is captured."""
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("t")))  # one of them forges what it finds there
    factories = "".join(f"def {name}():\n    {body}\n" for name, (body, _) in ODD.items())
    pytester.makepyfile(odd=SCRIPT_HEAD + factories)
    result, report = run(
        pytester, [model_line("odd", name) for name in ODD], "--model-budget-isolate", "--model-budget-timeout=30s"
    )
    errors = {model["id"].rpartition("::")[2]: model.get("error", "") for model in report["models"]}
    for name, (_, cause) in ODD.items():
        assert bool(cause) is bool(errors[name]), name
        assert cause in errors[name]
    result.stdout.fnmatch_lines(["*Captured stdout call*", "from the factory", "*Captured stderr call*", "raw words"])
    assert "97531" not in subprocess.run(["ps", "-ef"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.usefixtures("repository")
def test_r10_no_process_outlives_its_session(pytester: pytest.Pytester, end: signal.Signals) -> None:
    """Whether the session is interrupted or killed."""
    pytester.makepyfile(
        slow="import os, time\ndef slow():\n    open('pid', 'w').write(str(os.getpid()))\n    time.sleep(100)\n"
    )
    (pytester.path / "budgets" / "a.yaml").write_text(HEAD + model_line("slow", "slow"), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "--model-budget", "--model-budget-isolate"]
    session = subprocess.Popen(
        command,
        cwd=pytester.path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which a job in the background ignores
    )
    file, deadline = pytester.path / "pid", time.monotonic() + 100
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    child = int(file.read_text())
    session.send_signal(end)
    assert session.wait() == (2 if end is signal.SIGINT else -end)
    while is_alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.1)


STARTERS = """
import os, subprocess, time
from torch import nn

def a_child():
    note(subprocess.Popen(["sleep", "300"]).pid)
    return nn.Linear(8, 2)

def in_a_session_of_its_own():
    note(subprocess.Popen(["sleep", "300"], start_new_session=True).pid)
    return nn.Linear(8, 2)

def a_daemon():
    first = os.fork()
    if not first:
        os.setsid()
        if not (second := os.fork()):
            time.sleep(300)
        note(second)
        os._exit(0)
    os.waitpid(first, 0)
    return nn.Linear(8, 2)

def note(pid):
    with open("pids", "a") as file:
        print(pid, file=file)
"""


@pytest.mark.usefixtures("repository")
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process that leaves its session is not found")
def test_r10_no_process_outlives_its_model(pytester: pytest.Pytester) -> None:
    """What a model starts ends with it: also what left its session, or has lost its parent."""
    pytester.makepyfile(starters=STARTERS)
    names = ("a_child", "in_a_session_of_its_own", "a_daemon")
    text = HEAD + "".join(model_line("starters", name) for name in names)
    (pytester.path / "budgets" / "a.yaml").write_text(text, encoding="utf-8")
    assert pytester.runpytest_subprocess("--model-budget", "--model-budget-isolate").ret == 0
    pids = [int(line) for line in (pytester.path / "pids").read_text().split()]
    assert len(pids) == 3
    deadline = time.monotonic() + 100
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_alive(pid: int) -> bool:
    """Whether a process runs, and is not only waited for."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.usefixtures("repository")
def test_r12_a_slow_model_is_named(pytester: pytest.Pytester) -> None:
    """While it is measured, with the line where it is."""
    pytester.makeconftest(
        "import pytest_modelbudget.gate.watch as progress\nprogress.FIRST_SECONDS = progress.AGAIN_SECONDS = 0.5\n"
    )
    pytester.makepyfile(slow="import time\ndef slow():\n    time.sleep(2)\n")
    result, _ = run(pytester, [model_line("slow", "slow")])
    text = result.stderr.str()
    assert "model budget: budgets/a.yaml::slow is being measured, for " in text
    assert "\n  (in slow, " in text  # of a line that would be longer than 80
    assert all(len(line) <= 80 for line in text.splitlines() if "is being measured" in line)


BUDGET_KEYS = [
    ("timeout: 0 s", "leaves no room for any model"),
    ("memory: 4 gib", "memory:"),
    ("isolate: maybe", "expected true or false"),
    ("isolate: false, timeout: 5 s", "'isolate: false' wants none"),
]


@pytest.mark.parametrize(("keys", "words"), BUDGET_KEYS)
@pytest.mark.usefixtures("repository")
def test_r12_bounds_that_hold_nothing_are_refused(pytester: pytest.Pytester, keys: str, words: str) -> None:
    """In a budget, with their place."""
    (pytester.path / "budgets" / "a.yaml").write_text(HEAD + model_line("good", "net", f"{keys}, "), encoding="utf-8")
    result = pytester.runpytest_inprocess("--model-budget", "--model-budget-json=r.json")
    assert result.ret == 1
    assert words in str(json.loads((pytester.path / "r.json").read_text(encoding="utf-8"))["broken"])


@pytest.mark.parametrize(
    "option", ["--model-budget-timeout=soon", "--model-budget-memory=0 B", "--model-budget-memory=4"]
)
@pytest.mark.usefixtures("repository")
def test_r12_options_that_hold_nothing_are_usage_errors(pytester: pytest.Pytester, option: str) -> None:
    """Before anything is measured."""
    result = pytester.runpytest_inprocess("--model-budget", option)
    assert result.ret == (5 if option.endswith("=4") else 4)


@pytest.mark.parametrize(("written", "told"), [("4", "4 B"), ("4 Gi", "4,294,967,296 B"), ("4 GiB", "4 GiB")])
def test_the_most_memory_is_told_with_its_unit(written: str, told: str) -> None:
    """Who forgot it sees what four of nothing means: 4 · 1024 · 1024 · 1024 bytes only with Gi."""
    assert Bounds("60 s", written).most_memory == told


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model_budget_isolate=yo", "model_budget_isolate: *yo*: write true or false"),
        ("model_budget_memory=x", "model_budget_memory: 'x' is no quantity*"),
        ("model_budget_timeout=0 s", "model_budget_timeout: 0 s leaves no room for any model"),
    ],
)
@pytest.mark.usefixtures("repository")
def test_settings_that_hold_nothing_are_usage_errors(pytester: pytest.Pytester, setting: str, words: str) -> None:
    """By the name of the setting, and once, before any file is read."""
    result = pytester.runpytest_inprocess("--model-budget", "-o", setting)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {words}"])
