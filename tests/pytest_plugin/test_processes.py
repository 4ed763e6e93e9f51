"""Each model has a process of its own: good models next to unruly ones, several at a time."""

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

from pytest_modelbudget.gate import watch
from pytest_modelbudget.gate.pool import Pool
from tests.builders.documents import blocks
from tests.builders.marks import ALL_MODELS, one_of_many, usually
from tests.builders.unruly_models import DYING, GOOD, UNRULY, model_line, unruly_module

pytestmark = [pytest.mark.needs_torch, pytest.mark.slow]
if Pool(1).start == "session":
    pytest.skip("models are measured in the session's process here", allow_module_level=True)

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
    pytester: pytest.Pytester, lines: list[str], *args: str, apart: bool = False
) -> tuple[pytest.RunResult, dict[str, Any]]:
    """The gate over these models, in this process or in one of its own, and its report."""
    (pytester.path / "budgets" / "a.yaml").write_text(HEAD + "".join(lines), encoding="utf-8")
    start = pytester.runpytest_subprocess if apart else pytester.runpytest_inprocess
    result = start(
        "-p",
        "no:cacheprovider",
        "--model-budget",
        "--model-budget-lock=keep",
        "--model-budget-report=json:r.json",
        *args,
    )
    return result, json.loads((pytester.path / "r.json").read_text(encoding="utf-8"))


def of_good_models(report: dict[str, Any]) -> dict[str, str]:
    """What a report says of the good models, as text, but for where in the file they stand."""
    models = {model["id"].rpartition("::")[2]: json.dumps(model) for model in report["models"]}
    return {name: re.sub(r'"line": \d+', "", models[name]) for name in ("first", "drawn", "last")}


@pytest.mark.usefixtures("repository")
def test_good_models_are_the_same_next_to_unruly_ones(pytester: pytest.Pytester) -> None:
    """The report of a good model does not depend on other models, on their order, or on the number of workers."""
    _, report = run(pytester, list(GOOD_LINES[::-1]), "-n1")
    alone = of_good_models(report)
    assert len(UNRULY) >= 40
    others = [model_line("unruly", name) for name in UNRULY]
    first, middle, last = GOOD_LINES
    sessions = [
        ([first, *others[::2], middle, *others[1::2], last], ("--model-budget-workers=2",)),
        ([*others[::8], last, middle, first], ("-n1",)),
        ([last, *others[1::4], middle, *others[2::4], first], ("--model-budget-workers=1",)),
    ]
    for lines, args in sessions if ALL_MODELS else sessions[:1]:
        result, report = run(pytester, lines, *args)
        assert result.ret == 1, args  # some of the unruly ones raise
        assert of_good_models(report) == alone, args
        assert len(report["models"]) == len(lines)
        errors = {model["id"].rpartition("::")[2]: model.get("error", "") for model in report["models"]}
        for name in errors.keys() - {"first", "drawn", "last"}:
            assert bool(errors[name]) or not name.startswith("raises"), name


@pytest.mark.usefixtures("repository")
def test_ten_models_of_which_five_die(pytester: pytest.Pytester) -> None:
    """Five fail, each with its cause, and five are measured: exit code 1."""
    limits = {"hangs": "timeout: 5 s, ", "eats_memory": "memory: 1 GiB, "}
    dying = [model_line("dying", name, limits.get(name, "")) for name in DYING]
    good = [
        f"  good{width}: {{torch: 'good:net', kwargs: {{width: {width}}}, limits: {{params: 1 M}}}}\n"
        for width in range(5)
    ]
    lines = [line for pair in zip(dying, good, strict=True) for line in pair]
    result, report = run(pytester, lines, "--durations=0")
    assert result.ret == 1
    result.assert_outcomes(passed=5, failed=10)  # two limits each
    errors = {model["id"].rpartition("::")[2]: model.get("error", "") for model in report["models"]}
    for name, cause in CAUSES.items():
        assert cause in errors[name]
        assert errors[f"good{list(DYING).index(name)}"] == ""
    assert "in hangs, " in errors["hangs"]
    assert "in crashes, " in errors["crashes"]
    (shown,) = (block for block in blocks("text") if "the process that measured it" in block.text)
    causes = {as_documented(f"params unknown: {errors[name]}") for name in ("exits", "crashes", "hangs", "eats_memory")}
    assert set(as_documented(shown.text).splitlines()) <= causes


def as_documented(text: str) -> str:
    """A cause without what is another model's: where it stood, its bounds and its exit code."""
    return re.sub(r"\d+", "N", re.sub(r"\(in [^)]*\)", "(in ...)", text))


SCRIPT_HEAD = """
import os, signal, sys, time, threading
from torch import nn

"""
ODD = {
    "prints": ("print('from the factory'); os.write(2, b'raw words\\n'); raise ValueError", "raised ValueError"),
    "closes": ("os.closerange(3, 256); os.close(1); os.close(2); return nn.Linear(8, 2)", "exit code 1"),
    "spawns": ("import subprocess; subprocess.Popen(['sleep', '97531']); os._exit(3)", "with exit code 3"),
    "aborts": ("os.abort()", "ended by SIGABRT (in aborts, "),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL, as systems do that are short of memory"),
    "interrupts": ("raise KeyboardInterrupt", "raised KeyboardInterrupt (in interrupts, "),
    "leaves_thread": (
        "threading.Thread(target=time.sleep, args=(60,), name='lingering').start(); return nn.Linear(8, 2)", "",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("repository")
def test_odd_ends_have_their_cause(pytester: pytest.Pytester) -> None:
    """A signal, a grandchild, closed descriptors: the cause, or the numbers; what is printed is captured."""
    factories = "".join(f"def {name}():\n    {body}\n" for name, (body, _) in ODD.items())
    pytester.makepyfile(odd=SCRIPT_HEAD + factories)
    result, report = run(
        pytester, [model_line("odd", name) for name in ODD], "--model-budget-timeout=30s", "--model-budget-workers=1"
    )
    errors = {model["id"].rpartition("::")[2]: model.get("error", "") for model in report["models"]}
    for name, (_, cause) in ODD.items():
        assert bool(cause) is bool(errors[name]), name
        assert cause in errors[name]
    result.stdout.fnmatch_lines(["*Captured stdout call*", "from the factory", "*Captured stderr call*", "raw words"])
    assert "97531" not in subprocess.run(["ps", "-ef"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    "end",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=one_of_many("SIGTERM", ["SIGINT", "SIGKILL"])), signal.SIGKILL],
)
@pytest.mark.usefixtures("repository")
def test_no_process_outlives_its_session(pytester: pytest.Pytester, end: signal.Signals) -> None:
    """Whether the session is interrupted or killed."""
    pytester.makepyfile(
        slow="import os, time\ndef slow():\n    open('pid', 'w').write(str(os.getpid()))\n    time.sleep(100)\n"
    )
    (pytester.path / "budgets" / "a.yaml").write_text(HEAD + model_line("slow", "slow"), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "--model-budget"]
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


def is_alive(pid: int) -> bool:
    """Whether a process runs, and is not only waited for."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("workers", ["0", "1"])
@pytest.mark.usefixtures("repository")
def test_a_slow_model_is_named(
    pytester: pytest.Pytester, workers: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """While it is measured, in whichever process."""
    monkeypatch.setattr(watch, "FIRST_SECONDS", 0.5)
    monkeypatch.setattr(watch, "AGAIN_SECONDS", 0.5)
    pytester.makepyfile(slow="import time\ndef slow():\n    time.sleep(2)\n")
    run(pytester, [model_line("slow", "slow")], f"--model-budget-workers={workers}")
    text = capfd.readouterr().err
    assert "model budget: budgets/a.yaml::slow is being measured, for " in text
    assert all(len(line) <= 80 for line in text.splitlines() if "is being measured" in line)


BUDGET_KEYS = [
    ("timeout: 0 s", "timeout: '0 s' is nothing: write an amount such as 60 s"),
    ("memory: 4 gib", "memory:"),
    ("isolate: maybe", "expected true or false"),
    ("isolate: false, timeout: 5 s", "'isolate: false' wants none"),
]


@pytest.mark.parametrize(("keys", "words"), BUDGET_KEYS)
@pytest.mark.usefixtures("repository")
def test_bounds_that_hold_nothing_are_refused(pytester: pytest.Pytester, keys: str, words: str) -> None:
    """In a budget, with their place."""
    (pytester.path / "budgets" / "a.yaml").write_text(HEAD + model_line("good", "net", f"{keys}, "), encoding="utf-8")
    result = pytester.runpytest_inprocess("--model-budget", "--model-budget-report=json:r.json")
    assert result.ret == 1
    assert words in str(json.loads((pytester.path / "r.json").read_text(encoding="utf-8"))["broken"])


@pytest.mark.parametrize(
    "option", ["--model-budget-timeout=soon", "--model-budget-memory=0 B", "--model-budget-memory=4"]
)
@pytest.mark.usefixtures("repository")
def test_options_that_hold_nothing_are_usage_errors(pytester: pytest.Pytester, option: str) -> None:
    """Before anything is measured."""
    result = pytester.runpytest_inprocess("--model-budget", option)
    assert result.ret == (5 if option.endswith("=4") else 4)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model_budget_workers=yo", "model_budget_workers: 'yo' is no number: *"),
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


NETS = "from torch import nn\ndef net(width=4):\n    return nn.Linear(8, width, bias=False)\n"


@pytest.fixture
def monorepo(pytester: pytest.Pytester) -> Path:
    """Two packages, each with a nets.py: 8 · 4 parameters in a, 8 · 40 in b."""
    pytester.makeini("[pytest]\npythonpath = a b\nmodel_budget_paths = a/budgets b/budgets\n")
    for name, width in (("a", 4), ("b", 40)):
        folder = pytester.mkdir(name)
        (folder / "nets.py").write_text(NETS.replace("4", str(width)))
        (folder / "budgets").mkdir()
        line = model_line("nets", "net").replace("params: 1 M", f"params: {{max: {8 * width}, min: {8 * width}}}")
        (folder / "budgets" / f"{name}.yaml").write_text(HEAD + line, encoding="utf-8")
    return pytester.path


@pytest.mark.parametrize("folder", usually("b", ["", "b"]))
def test_packages_of_one_repository_have_modules_of_one_name(
    monorepo: Path, folder: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each budget measures the module nearest to it, from the root and from a package, and the report names it."""
    monkeypatch.chdir(monorepo / folder)
    assert pytester.runpytest_inprocess("--model-budget", "--model-budget-report=json:r.json").ret == 0
    models = json.loads(Path("r.json").read_text(encoding="utf-8"))["models"]
    expected = {"a/budgets/a.yaml::net": "a/nets.py:2", "b/budgets/b.yaml::net": "b/nets.py:2"}
    assert {model["id"]: model["defined_at"] for model in models} == expected


@pytest.mark.usefixtures("monorepo")
def test_one_process_cannot_import_two_modules_of_one_name(pytester: pytest.Pytester) -> None:
    """In the session's process the second model fails and names both files: it was green on the first one's numbers."""
    result = pytester.runpytest_inprocess("--model-budget", "--model-budget-workers=0")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.re_match_lines([".*'nets' is a/nets.py in this process, and b/nets.py for this"])


def test_a_name_that_means_two_files_is_refused(monorepo: Path, pytester: pytest.Pytester) -> None:
    """A budget at the root is as near to a/nets.py as to b/nets.py."""
    (monorepo / "top").mkdir()
    (monorepo / "top" / "t.yaml").write_text(HEAD + model_line("nets", "net"), encoding="utf-8")
    result = pytester.runpytest_inprocess("--model-budget", "top")
    result.assert_outcomes(failed=2)
    result.stdout.re_match_lines([".*'nets' can mean a/nets.py and b/nets.py, which are equally"])


@pytest.mark.usefixtures("repository")
def test_reports_are_the_same_for_every_number_of_workers(pytester: pytest.Pytester) -> None:
    """Byte for byte, apart from timings and other figures with three digits behind the point."""
    options = {"json": "r.json", "junit": "r.xml", "sarif": "r.sarif", "comment": "r.md", "html": "r.html"}
    written = [f"--model-budget-report={kind}:{file}" for kind, file in options.items()]
    texts = []
    for workers in (0, 1, 2, 4) if ALL_MODELS else (0, 2):
        result, report = run(pytester, list(GOOD_LINES), f"--model-budget-workers={workers}", *written)
        assert result.ret == 0
        del report["timings"]
        rest = {file: (pytester.path / file).read_text(encoding="utf-8") for file in [*options.values()][1:]}
        rest = {file: re.sub(r'\d+\.\d{3}\b|timestamp="[^"]*"', "", text) for file, text in rest.items()}
        texts.append((report, rest))
    assert texts[1:] == texts[:-1]


CONFTEST = """
import os, sys
import torch
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "elsewhere"))
os.environ["WIDTH"] = "5"
library = torch.library.Library("ours", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
"""
TWICE = """
import os, torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, int(os.environ["WIDTH"]), bias=False)
    def forward(self, x):
        return torch.ops.ours.twice(self.fc(x))
"""


@pytest.mark.usefixtures("repository")
def test_a_conftest_holds_in_the_process_of_a_model(pytester: pytest.Pytester) -> None:
    """Paths, variables and registered operators: 8 · 5 parameters of a module that only its path finds.

    A worker's model is one of those; that of a session without workers stands under "a test changes nothing".
    """
    pytester.makeconftest(CONFTEST)
    (pytester.mkdir("elsewhere") / "twice.py").write_text(TWICE)
    result, report = run(pytester, [model_line("twice", "Net")], "-n1", apart=True)
    assert result.ret == 0
    assert report["models"][0]["metrics"]["params"]["value"] == 8 * 5


@pytest.mark.usefixtures("repository")
def test_a_conftest_that_only_the_session_can_import_is_named(pytester: pytest.Pytester) -> None:
    """Its models are unknown, with the file, the line and the way to measure them all the same."""
    pytester.makeconftest(
        "import multiprocessing\nif multiprocessing.parent_process():\n    raise ImportError('no second import')\n"
    )
    result, report = run(pytester, [model_line("good", "net")])
    assert result.ret == 1
    error = report["models"][0]["error"]
    assert re.search(r"importing .*conftest.py in the model's own process raised ImportError: no second import", error)
    assert "'isolate: false' measures in the session's process" in error
    assert run(pytester, [model_line("good", "net", "isolate: false, ")])[0].ret == 0


@pytest.mark.usefixtures("repository")
def test_the_session_imports_no_framework(pytester: pytest.Pytester) -> None:
    """Only its children do."""
    (pytester.path / "budgets" / "a.yaml").write_text(HEAD + model_line("good", "net"), encoding="utf-8")
    script = "import pytest, sys\nassert pytest.main(['--model-budget']) == 0\nprint('imported', *sys.modules)\n"
    session = subprocess.run(
        [sys.executable, "-c", script], cwd=pytester.path, capture_output=True, text=True, check=True
    )
    (imported,) = [line.split()[1:] for line in session.stdout.splitlines() if line.startswith("imported ")]
    assert "pytest_modelbudget.gate.pool" in imported
    assert {"torch", "onnx", "onnxruntime", "numpy"} & {name.partition(".")[0] for name in imported} == set()


@pytest.mark.usefixtures("repository")
def test_without_processes_the_session_says_so_once(pytester: pytest.Pytester) -> None:
    """As in a sandbox that forbids sockets: every model is measured in the session's process."""
    pytester.makeconftest(
        "from multiprocessing import forkserver, parent_process, process\n"
        "def refused(*_):\n    raise PermissionError('seccomp')\n"
        "if not parent_process():\n    forkserver.ensure_running = process.BaseProcess.start = refused\n"
    )
    result, _ = run(pytester, [model_line("good", "net"), model_line("good", "drawn")], apart=True)
    assert result.ret == 0
    said = [line for line in result.outlines if "measured in the session's process" in line]
    assert said == [
        "model budget: no process could be forked: seccomp: "
        "models were measured in the session's process, one after another"
    ]


@pytest.mark.parametrize("workers", usually("-n0", ["-n0", "-n1"]))
@pytest.mark.usefixtures("repository")
def test_coverage_sees_the_lines_of_models(pytester: pytest.Pytester, workers: str) -> None:
    """All lines of the module ran in children; pytest-cov joins what each of them wrote."""
    pytest.importorskip("pytest_cov")
    result, _ = run(
        pytester, [model_line("good", "net"), model_line("good", "drawn")], "--cov=good", workers, apart=True
    )
    result.stdout.re_match_lines([r"good\.py +\d+ +0 +100%"])


@pytest.mark.usefixtures("repository")
def test_a_test_changes_nothing_for_models(pytester: pytest.Pytester) -> None:
    """Variables that a test sets while models are measured are its own: 8 · 5 parameters each time."""
    pytester.makeconftest(CONFTEST)
    (pytester.mkdir("elsewhere") / "twice.py").write_text(TWICE)
    pytester.makepyfile(
        test_other="import time\ndef test_other(monkeypatch):\n"
        "    monkeypatch.setenv('WIDTH', '40')\n    monkeypatch.chdir('/')\n    time.sleep(3)\n"
    )
    lines = [model_line("twice", "Net").replace("  Net:", f"  net{number}:") for number in range(4)]
    result, report = run(pytester, lines, "test_other.py", "budgets", apart=True)
    assert result.ret == 0
    assert {model["metrics"]["params"]["value"] for model in report["models"]} == {8 * 5}


def test_modules_of_namespace_packages_are_told_apart(pytester: pytest.Pytester) -> None:
    """models/nets.py in a and in b, without an __init__.py: each is right, and in one process the second is refused."""
    pytester.makeini("[pytest]\npythonpath = a b\nmodel_budget_paths = a/budgets b/budgets\n")
    for name, width in (("a", 4), ("b", 40)):
        folder = pytester.path / name
        for below in ("models", "budgets"):
            (folder / below).mkdir(parents=True)
        (folder / "models" / "nets.py").write_text(NETS.replace("4", str(width)))
        line = model_line("models.nets", "net").replace(
            "params: 1 M", f"params: {{max: {8 * width}, min: {8 * width}}}"
        )
        (folder / "budgets" / f"{name}.yaml").write_text(HEAD + line, encoding="utf-8")
    pytester.runpytest_inprocess("--model-budget").assert_outcomes(passed=4)
    result = pytester.runpytest_inprocess("--model-budget", "--model-budget-workers=0")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.re_match_lines([".*'models.nets' is a/models/nets.py in this process, and b/models/nets.py for"])


@pytest.mark.parametrize("name", usually("types.py", ["random.py", "types.py", "pickle.py"]))
@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no PYTHONSAFEPATH")
def test_a_file_named_like_a_module_of_python_does_no_harm(repository: Path, name: str) -> None:
    """The server is not started with the current folder on its path, as pytest's own script is not."""
    (repository / name).write_text("MINE = 1\n")
    (repository / "budgets" / "a.yaml").write_text(HEAD + model_line("torch.nn", "Linear", "args: [8, 2], "))
    script = "import sys; del sys.path[0]; import pytest; sys.exit(pytest.main(['--model-budget']))"
    session = subprocess.run([sys.executable, "-c", script], cwd=repository, capture_output=True, check=False)
    assert session.returncode == 0, session.stdout


KILLER = """
import os, signal, time
from torch import nn
def kills_the_server():
    os.kill(os.getppid(), signal.SIGKILL)
    return nn.Linear(8, 2)
def slow():
    time.sleep(60)
    return nn.Linear(8, 2)
def exits():
    os._exit(0)
"""


@pytest.mark.skipif(Pool(1).start != "forkserver", reason="ends the server that processes are forked from")
@pytest.mark.usefixtures("repository")
def test_a_server_that_ended_is_started_again(pytester: pytest.Pytester) -> None:
    """As when a system is short of memory: no model is measured in the session, and running ones are unknown."""
    pytester.makepyfile(killer=KILLER)
    names = ("slow", "kills_the_server", "exits")
    lines = [model_line("killer", name) for name in names] + [
        model_line("killer", "exits").replace("exits:", f"exits{number}:", 1) for number in range(3)
    ]
    lines.append(model_line("good", "net"))
    result, report = run(pytester, lines, "--model-budget-workers=2", apart=True)
    assert result.ret == 1
    outcomes = {model["id"].rpartition("::")[2]: model["checks"][0]["outcome"] for model in report["models"]}
    assert {name: outcomes[name] for name in ("slow", "net")} == {"slow": "unknown", "net": "within"}
    assert {outcomes[name] for name in outcomes if name.startswith("exits")} == {"unknown"}
