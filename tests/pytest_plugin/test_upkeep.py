"""What a session keeps of its models: nothing once their last limits ran, and whoever asks again is answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.project import Project
from tests.builders.torch_project import TorchProject

LIMITS = "{params: 999, macs: 999}"
MODELS = "".join(f"  net{n}: {{widths: net.widths, inputs: float32 {n}x4, limits: {LIMITS}}}\n" for n in range(1, 6))


def noting(hook: str, kind: str) -> str:
    """A conftest.py that writes down how many objects of a kind there are, each time that a hook is called."""
    return f"""
import gc
from pathlib import Path

def pytest_model_budget_{hook}():
    count = sum(type(each).__name__ == "{kind}" for each in gc.get_objects())
    with Path("alive").open("a") as file:
        file.write(f"{{count}} ")

"""


def alive(folder: Path) -> list[int]:
    return [int(count) for count in folder.joinpath("alive").read_text().split()]


@pytest.mark.parametrize(
    ("args", "models"),
    [((), 5), (("-k", "params"), 5), (("-k", "net2 or net4"), 2), (("--deselect", "budgets/a.yaml::net1::macs"), 5)],
    ids=str,
)
def test_numbers_of_one_model_are_held_at_a_time(args: tuple[str, ...], models: int, project: Project) -> None:
    """Those of the models before it are gone, whichever of their limits were selected."""
    project.budget(MODELS)
    project.configure(noting("measured", "MeasuredModel"))
    assert project.run_apart(*args).ret == 0
    assert alive(project.path) == [1] * models


def test_limits_out_of_order_measure_a_model_once(project: Project) -> None:
    """All numbers are held as long as a limit of theirs has not run: here the last of every model runs at the end."""
    project.budget(MODELS)
    project.configure(
        noting("measured", "MeasuredModel")
        + "def pytest_collection_modifyitems(items):\n    items.sort(key=lambda item: item.name == 'params')\n"
    )
    assert project.run_apart().ret == 0
    assert alive(project.path) == [1, 2, 3, 4, 5]


def test_a_source_is_kept_for_all_who_name_it(project: Project) -> None:
    """Two budgets of one source, and a variant under its inputs: loaded once; other inputs between them are another."""
    same = f"{{widths: net.widths, inputs: float32 2x4, limits: {LIMITS}}}"
    project.budget(f"  one: {same}\n  other: {{widths: net.widths, inputs: float32 3x4, limits: {LIMITS}}}\n")
    project.budget(f"  two: {same}\n", "budgets/b.yaml")
    assert project.run().ret == 0
    assert len(project.loads) == 2


@pytest.mark.parametrize("when", ["def pytest_sessionfinish(session):\n    items = session.items", "AGAIN"])
def test_whoever_asks_again_is_answered(when: str, project: Project) -> None:
    """Items that run again measure again, and judge the same."""
    again = (
        "import pytest\n@pytest.hookimpl(wrapper=True, tryfirst=True)\n"
        "def pytest_runtest_protocol(item):\n    yield\n    items = [item]"
    )
    project.budget(MODELS)
    body = "\n    for item in items:\n        item.runtest()\n        assert not item.statement.check.fails\n"
    project.configure((again if when == "AGAIN" else when) + body + "    return True\n")
    assert project.run().ret == 0
    assert len(project.loads) == 10


def test_an_items_words_are_what_their_text_says(project: Project) -> None:
    """As a worker sends them: ratios, an exception, a failure, a broken file."""
    waiver = "{to: 48, reason: for a while, until: 2099-01-31}"
    project.budget(
        "  net:\n    widths: net.widths\n    limits:\n"
        "      arithmetic_intensity: {min: 0.123456789 FLOP/B, level: warn}\n"
        f"      params: {{max: 47, waiver: {waiver}}}\n      macs: 1\n      bandwidth: 10 MB\n"
    )
    project.write("budgets/b.yaml", "model_budget: 1\nmodls: {}\n")
    project.configure(
        "import pytest\nfrom pytest_modelbudget.reports.build import Statement\n"
        "@pytest.hookimpl(tryfirst=True)\ndef pytest_runtest_logreport(report):\n"
        "    said = vars(report).get('model_budget_statement')\n    if said:\n"
        "        assert str(Statement.parse(said)) == said\n        print('equal', report.nodeid)\n"
    )
    result = project.run("-s")
    assert result.ret == 1
    assert sum("equal budgets/" in line for line in result.outlines) == 5


@pytest.mark.needs_torch
def test_a_transforms_two_models_are_gone_after_its_items(pytester: pytest.Pytester) -> None:
    """Both models are needed until the claim was judged, and no longer."""
    net = "torch: nets:net, inputs: float32 4x100"
    tiled = "{tile_linear: {tile: 64}, equivalence: exact_algebra, limits: {params: 9 k}}"
    models = "".join(f"  net{n}: {{{net}, transforms: {{tiled: {tiled}}}}}\n" for n in range(3))
    TorchProject(pytester)
    pytester.path.joinpath("budgets", "a.yaml").write_text(f"model_budget: 1\nmodels:\n{models}")
    pytester.path.joinpath("conftest.py").write_text(noting("verified", "Applied"))
    assert pytester.runpytest_subprocess("--model-budget", "--model-budget-workers=0").ret == 0
    assert alive(pytester.path) == [0, 0, 0]
