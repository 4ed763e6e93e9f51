"""A repository that has nothing to do with budgets does not notice the plugin."""

from __future__ import annotations

import re

import pytest

from tests.builders.project import LEAN

FRAMEWORKS = "torch onnx onnxruntime numpy yaml ruamel jinja2"
SESSION = {
    "test_own.py": "def test_own(): pass\n",
    "budgets/stray.yaml": "a: [1\n",
    "budgets/marked.yaml": "model_budget: 1\nmodels: {a: {}}\n",
    "config.yml": "model_budget_is_not_this: true\n",
    "test_scenario.yaml": "- step: 1\n",
    "pytest.ini": "[pytest]\naddopts = --strict-markers --strict-config\n",
}


NINE = pytest.mark.skipif(pytest.version_tuple < (9,), reason="earlier ones collect and rewrite other files here")


@pytest.fixture
def stranger(pytester: pytest.Pytester) -> pytest.Pytester:
    for name, text in SESSION.items():
        path = pytester.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return pytester


@pytest.mark.parametrize(
    "args", [(), ("-v",), ("--co", "-q"), pytest.param((".", "budgets"), marks=NINE), ("-rA", "-Werror")]
)
def test_a_stranger_sees_no_difference(stranger: pytest.Pytester, args: tuple[str, ...]) -> None:
    """Plain pytest prints and returns the same with and without the plugin."""
    outputs = []
    for without in ((), ("-p", "no:modelbudget")):
        result = stranger.runpytest_inprocess("-p", "no:cacheprovider", *without, *args)
        text = re.sub(r"=* ?(.*) in [0-9.]+s ?=*", r"\1", result.stdout.str())  # padded by length
        text = re.sub(r", modelbudget-[^\s,]+|modelbudget-[^\s,]+, ", "", text)
        outputs.append((int(result.ret), text, result.stderr.str()))
    assert outputs[0] == outputs[1]


def test_a_plain_session_imports_nothing_heavy(stranger: pytest.Pytester) -> None:
    """With the plugin installed and not asked, no framework and no type of ours is loaded."""
    stranger.makepyfile(
        test_own=f"""
        import sys

        def test_own():
            assert not set("{FRAMEWORKS}".split()) & set(sys.modules)
            ours = {{name for name in sys.modules if name.startswith("pytest_modelbudget.")}}
            assert ours == {{
                "pytest_modelbudget.budget",
                "pytest_modelbudget.pytest_plugin",
                "pytest_modelbudget.pytest_plugin.options",
                "pytest_modelbudget.pytest_plugin.hookspecs",
                "pytest_modelbudget.reports",
                "pytest_modelbudget.reports.table",
            }}
        """
    )
    result = stranger.runpytest_subprocess(*LEAN)
    result.assert_outcomes(passed=1)


@NINE
def test_a_session_that_measures_imports_modules_as_they_were_compiled(pytester: pytest.Pytester) -> None:
    """None of ours is rewritten but the few that came before the switch was read; a conftest's own assertions are."""
    pytester.makefile(".yaml", budget="model_budget: 1\nmodels: {a: {safetensors: none, limits: {params: 1}}}\n")
    pytester.makeconftest(
        """
        import sys

        def pytest_sessionfinish():
            loaders = {name: type(module.__loader__).__name__ for name, module in sys.modules.items()
                       if name.startswith("pytest_modelbudget.")}
            rewritten = sorted(name for name, loader in loaders.items() if loader == "AssertionRewritingHook")
            print("rewritten", [name.rpartition(".")[2] for name in rewritten], "of", len(loaders))
            print("conftest", type(sys.modules["conftest"].__loader__).__name__)

        FINDERS = list(sys.meta_path)

        def pytest_unconfigure():
            sys.meta_path[:] = FINDERS  # without the one that was added since
        """
    )
    result = pytester.runpytest_subprocess("--model-budget", "budget.yaml", "-s")
    assert "Traceback" not in result.stderr.str()
    result.stdout.fnmatch_lines(["*rewritten *'hookspecs'*of *", "conftest AssertionRewritingHook"])
    line = next(line for line in result.outlines if "rewritten [" in line)
    assert "gate" not in line
    assert "grammar'" not in line
    assert int(line.rpartition(" ")[2]) > 60
