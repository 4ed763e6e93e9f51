"""The command as a whole: its version, its help, its colours, and where it finds a project's modules."""

from __future__ import annotations

import io
import re
import shlex
import sys
from pathlib import Path

import pytest

from pytest_modelbudget.cli import screen
from pytest_modelbudget.cli.command import COMMANDS, SCHEMAS, main, parser
from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.gate.project import importing_as_pytest, project_around
from pytest_modelbudget.registry import installed_version

EXAMPLES = [example for command in COMMANDS for example in command.examples]


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_of_the_help_is_a_command(example: str) -> None:
    """It names options that exist, in the order that they take."""
    options = parser().parse_args(shlex.split(example.replace("\\\n", "")))
    assert callable(options.command)


@pytest.mark.parametrize("words", [(), *((command.name,) for command in COMMANDS)], ids=lambda words: " ".join(words))
def test_help_fits_80_columns_and_has_examples(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the command itself, and of each of its commands."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert max(map(len, text.splitlines())) <= 80
    assert f"  modelbudget {' '.join(words)}" in text[text.index("\n\n") :]


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    """As its metadata have it."""
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"modelbudget {installed_version('pytest-modelbudget')}\n"


def test_alone_it_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Each with a line; the exit code is that of a command which is missing."""
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    listed = capsys.readouterr().err.split()
    assert [word for command in COMMANDS for word in (command.name, *command.about.split()) if word not in listed] == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(
            "init m:f --input float32 1x3x8x8", ': 1x3x8x8: write a spec in quotes: --input "int64', id="quotes"
        ),
        pytest.param("init m:f --imput 3", ": --imput 3: did you mean --input?", id="a slip"),
        pytest.param("init m:f --zzz 3", ": --zzz 3: modelbudget init --help has what there is", id="no option"),
        pytest.param("shwo m:f", "there is no command 'shwo': did you mean 'show'?", id="a command's slip"),
        pytest.param("measure m:f", "there is no command 'measure': did you mean 'show'?", id="another tool's word"),
        pytest.param("m:f", "there is no command 'm:f': known are show, compare, explain, ", id="no command"),
        pytest.param(
            "init m:f --output budgets", "end it in .yaml, such as budgets/budgets.yaml", id="a folder's name"
        ),
        pytest.param("init m:f --output sizes/a", "end it in .yaml, such as budgets/a.yaml", id="no suffix"),
        pytest.param(
            "show m:f --input 1X3X8X8", "--input: '1X3X8X8' is no input: did you mean float32 1x3x8x8?", id="sizes"
        ),
        pytest.param("schema lcok", "argument WHICH: invalid choice: 'lcok' (choose from ", id="no schema"),
        pytest.param("show m:f --input float_1", "'float_1' is no input", id="no type"),
        pytest.param("show m:f --input 'float 2'", "'float' is no element type: did you mean 'float32'?", id="float"),
        pytest.param("show m:f --input 'Half 2'", "did you mean 'float16'?", id="half"),
        pytest.param("show m:f --input 'long 2'", "did you mean 'int64'?", id="long"),
    ],
)
def test_slips_on_the_command_line(words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is exit code 2, with the way out."""
    with pytest.raises(SystemExit, match=r"^2$"):  # by argparse, or by us
        sys.exit(main(shlex.split(words)))
    assert says in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "expected"),
    [
        pytest.param(Terminal(), {}, "\x1b[32mit fits\x1b[0m\n", id="terminal"),
        pytest.param(Terminal(), {"NO_COLOR": "1"}, "it fits\n", id="NO_COLOR"),
        pytest.param(Terminal(), {"TERM": "dumb"}, "it fits\n", id="dumb"),
        pytest.param(io.StringIO(), {}, "it fits\n", id="pipe"),
    ],
)
def test_only_a_terminal_is_coloured(
    stream: io.StringIO, environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none where somebody asks for no colour."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    screen.print_text("it fits", stream=stream)
    assert stream.getvalue() == expected


@pytest.mark.parametrize(("word", "meant"), [("nets", "nets:CALLABLE"), ("lib/nets", "lib.nets:CALLABLE")])
def test_a_module_alone_lacks_its_callable(
    word: str, meant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is said where there is such a file; of another word nobody knows what it is."""
    monkeypatch.chdir(tmp_path)
    assert main(["show", word]) == 2
    assert "did you mean" not in capsys.readouterr().err
    file = tmp_path / f"{word}.py"
    file.parent.mkdir(exist_ok=True)
    file.touch()
    assert main(["show", word]) == 2
    assert capsys.readouterr().err.endswith(f"did you mean {meant}?\n")


@pytest.mark.parametrize("words", ["explain macs no_such_folder/no_such_model.onnx '(model)'", "shouw net.onnx"])
def test_an_error_is_as_wide_as_the_terminal(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours and argparse's; in a log it stays one line, which a search finds."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    with pytest.raises(SystemExit, match=r"^2$"):
        sys.exit(main(shlex.split(words)))
    (in_a_log,) = (line for line in capsys.readouterr().err.splitlines() if "error:" in line)
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    with pytest.raises(SystemExit, match=r"^2$"):
        sys.exit(main(shlex.split(words)))
    lines = shown.getvalue().splitlines()
    folded = lines[next(at for at, line in enumerate(lines) if "error:" in line) :]
    assert len(in_a_log) > 40 >= max(map(len, folded))
    assert " ".join(line.strip() for line in folded) == in_a_log


LAYOUTS = {
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["src", "tools"]\n',
    "pyproject.toml ": '[tool.pytest]\npythonpath = ["src", "tools"]\n',
    "pytest.toml": '[pytest]\npythonpath = ["src", "tools"]\n',
    "pytest.ini": "[pytest]\npythonpath = src tools\n",
    ".pytest.ini": "[pytest]\npythonpath =\n  src\n  tools\n",
    "tox.ini": "[tox]\nx = %(y)s\n[pytest]\npythonpath = src tools\n",
    "setup.cfg": "[tool:pytest]\npythonpath = src tools\n",
}


@pytest.mark.parametrize("file", LAYOUTS)
def test_modules_are_found_where_pytest_finds_them(file: str, tmp_path: Path) -> None:
    """Whichever file configures it, from any folder below."""
    (tmp_path / file.strip()).write_text(LAYOUTS[file], encoding="utf-8")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    project = project_around(below)
    assert (project.root, project.pythonpath) == (tmp_path, (tmp_path / "src", tmp_path / "tools"))
    assert project.budgets == (tmp_path / "budgets",)
    before = list(sys.path)
    with importing_as_pytest(below):
        assert sys.path[:4] == [str(path) for path in (below, tmp_path, tmp_path / "src", tmp_path / "tools")]
    assert sys.path == before


def test_the_nearest_configuration_counts(tmp_path: Path) -> None:
    """An empty pytest.ini is one; a pyproject.toml that says nothing of pytest is none."""
    (tmp_path / "pyproject.toml").write_text(LAYOUTS["pyproject.toml"], encoding="utf-8")
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "pyproject.toml").write_text("[project]\nname = 'x'\n", encoding="utf-8")
    assert project_around(inner).root == tmp_path
    (inner / "pytest.ini").write_text("", encoding="utf-8")
    assert project_around(inner).root == inner
    assert not project_around(inner).pythonpath


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("[tool.pytest\n", "pyproject.toml, which .* by, cannot be read: .*line 1", id="syntax"),
        pytest.param("[tool.pytest]\npythonpath = true\n", "pyproject.toml, .*: 'bool' object is not", id="no list"),
        pytest.param('[tool.pytest]\npythonpath = "\'src"\n', "pyproject.toml, .*: No closing", id="a quote"),
    ],
)
def test_a_broken_configuration_is_one_sentence(text: str, words: str, tmp_path: Path) -> None:
    """It names the file, and where in it."""
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    with pytest.raises(SourceError, match=words):
        project_around(tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["show", "net.onnx", "--depth=-1"], "--depth: '-1' is no depth: write 0, 1, 2 ...", id="depth"),
        pytest.param(
            ["activations", "net.onnx", "--seeds", "a"], "--seeds: 'a' is no seed: write 0, 1, 2 ...", id="seeds"
        ),
        pytest.param(["lab", "linear", "--seed=-1"], "--seed: '-1' is no seed: write 0, 1, 2 ...", id="seed"),
        pytest.param(["lab", "linear", "--m", "0"], "--m: '0' is no size: write 1, 2, 3 ...", id="rows"),
        pytest.param(
            ["lab", "tile", "net.onnx", "--tile", "6.0"], "--tile: '6.0' is no size: write 1, 2, 3 ...", id="tile"
        ),
    ],
)
def test_what_is_no_whole_number(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every option that takes a whole number says what it calls that, and from which one on."""
    with pytest.raises(SystemExit) as usage:
        main(words)
    assert usage.value.code == 2
    assert f"error: argument {said}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "written"),
    [
        pytest.param(["ops", "matmul"], 0, r"x (..., k) \xb7 y (k, ...)", id="text"),
        pytest.param(["ops", "matmul", "--format", "json"], 0, r"x (..., k) \u00b7 y (k, ...)", id="JSON"),
        pytest.param(["schema"], 2, "", id="what others read"),
    ],
)
def test_a_stream_that_lacks_letters(
    words: list[str], code: int, written: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As pipes on Windows do: a text is written in those it has, and what must be whole is refused in a sentence."""
    monkeypatch.setitem(SCHEMAS, "budget", lambda: '{"title": "→"}')
    with io.TextIOWrapper(io.BytesIO(), encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(words) == code
        stream.seek(0)
        assert written in stream.read()
    refusal = r"modelbudget: error: cannot write '\\\w+' in ascii: set PYTHONIOENCODING=utf-8\n"
    assert re.fullmatch(refusal if code else "", capsys.readouterr().err)
