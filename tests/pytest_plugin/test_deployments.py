"""Models on devices in a user's repository: items, failures and reports, from a budget and a hardware file alone.

The network is 4 → 8 → 2. In int8 it stores 32 + 16 B of weights and a float32 scale for each of 8 + 2 outputs: 88 B. At
its first layer 4 + 8 B of activations are alive, at its second 8 + 2.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders.hardware import ACTIVATIONS, BOARD, WEIGHTS
from tests.builders.project import Project
from tests.builders.repository import Repository

BUDGET = """model_budget: 1
hardware: hardware.yaml
models:
  net:
    widths: net.widths
    inputs: float32 1x4
    deployments:
      board:
        device: {device}
        lower: {{dtype: int8}}
        {held}
"""


def write(project: Project, held: str = "fits: true", *, device: str = "board", **sizes: int) -> Project:
    """A budget of one deployment, and its device: as large as the network, if no other size is given."""
    known = {"flash": WEIGHTS, "sram": ACTIVATIONS + 5, **sizes}
    project.write("budgets/hardware.yaml", BOARD.format(**known))
    project.write("budgets/a.yaml", BUDGET.format(held=held, device=device))
    return project


def deployment(report: Any) -> Any:
    (model,) = report["models"]
    (found,) = model["deployments"]
    return found


def test_a_model_that_fills_its_device_fits(project: Project) -> None:
    """88 B of flash, and 17 B of sram of which 5 are reserved, are exactly enough."""
    result = write(project).run("-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["budgets/a.yaml::net::board::fits PASSED*", "1 limit: *1 within*"])


@pytest.mark.parametrize(
    ("memory", "used", "room"), [("flash", WEIGHTS, WEIGHTS - 1), ("sram", ACTIVATIONS, ACTIVATIONS - 1)]
)
def test_one_byte_too_many(project: Project, memory: str, used: int, room: int) -> None:
    """The failure names the memory, the operation at the peak, and what is alive there."""
    size = {"flash": {"flash": room}, "sram": {"sram": room + 5}}[memory]
    result = write(project, **size).run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([
        f"*{memory} {used} B > {room} B (*budgets/a.yaml:11",
        "  12 B alive during aten::linear in layer0",
        "  8  layer0, made in layer0",
        "  4  x, made in (model)",
        "fix: *",
    ])  # fmt: skip


METRICS = {
    "weight_memory": WEIGHTS,
    "macs": 4 * 8 + 8 * 2,
    "peak_activation": ACTIVATIONS,
    "peak_activation_best": ACTIVATIONS,
    "activation_arena": ACTIVATIONS,
    "array_cycles": 2 * (2 * 8 + 8 + 1 - 2),  # each layer is one pass: 2R + C + M - 2
    "array_traffic": (4 + 32 + 8) + (8 + 16 + 2),
    "latency_bound": "0.88",  # both layers wait for flash: 32 + 32 B and 16 + 8 B at 100 B/s
    "array_mapping": "0.375",  # 32 + 16 of two times 64 cells
    "array_utilisation": "0.01630",  # 48 of 46 cycles times 64 cells
}


def test_every_metric_is_that_of_the_lowered_program(project: Project) -> None:
    """Limits at the exact numbers hold, and the report has them all."""
    limits = "latency_bound: 880 ms, array_utilisation: {min: 1.63%}, array_mapping: {min: 37.5%}, " + ", ".join(
        f"{key}: {{max: {value}, min: {value}}}" for key, value in METRICS.items() if isinstance(value, int)
    )
    write(project, f"limits: {{{limits}}}\n        scopes: {{layer1: {{latency_bound: 240 ms, array_cycles: 23}}}}")
    report = project.report()
    found = deployment(report)
    assert {check["outcome"] for check in found["checks"]} == {"within"}
    assert len(found["checks"]) == len(METRICS) + 2
    assert {key: found["metrics"][key]["value"] for key in METRICS} == METRICS
    assert report["models"][0]["metrics"]["peak_activation"]["value"] == 4 * ACTIVATIONS


def test_the_report_has_arena_memories_and_lowering(project: Project) -> None:
    """Offsets as the planner gives them: the largest buffer first, the others above it."""
    found = deployment(write(project).report())
    assert (found["name"], found["device"], found["lower"]["dtype"], found["left"]) == ("board", "board", "int8", [])
    assert [tuple(row.values()) for row in found["arena"]["offsets"]] == [
        ("x", 8, 4, 0, 0), ("layer0", 0, 8, 0, 1), ("layer1", 8, 2, 1, 1),
    ]  # fmt: skip
    assert [(m["name"], m["weights"], m["activations"]) for m in found["memories"]] == [
        ("flash", WEIGHTS, 0), ("sram", 0, ACTIVATIONS),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("limit", "fix"),
    [("activation_arena: 11 B", "change the model"), ("weight_memory: 47 B", "shrink what is largest above")],
)
def test_the_fix_points_at_layers_where_some_are_named(project: Project, limit: str, fix: str) -> None:
    """An arena is no sum over layers: nothing stands above its fix, in the terminal, a comment and the page alike."""
    write(project, f"limits: {{{limit}}}")
    result = project.run("--model-budget-report=comment:comment.md", "--model-budget-report=html:page.html")
    result.assert_outcomes(failed=1)
    comment = (project.path / "comment.md").read_text()
    page = (project.path / "page.html").read_text()
    for text in (result.stdout.str(), comment, page):
        assert text.count(f"fix: {fix}, or accept: ") == 1


def test_layers_that_take_the_time_are_named(project: Project) -> None:
    """Both wait for flash, as above: 64 and 24 B at 100 B/s."""
    write(project, "limits: {latency_bound: 879 ms}").run().stdout.fnmatch_lines([
        "latency_bound 880*ms > 879*ms *", "  largest layers by latency_bound", "  640 ms  layer0", "  240 ms  layer1",
        "fix: shrink what is largest above, *",
    ])  # fmt: skip


def test_the_same_in_workers(project: Project) -> None:
    """One report, wherever its items ran."""
    write(project, "fits: true\n        limits: {activation_arena: 12 B, latency_bound: 879 ms}")
    assert project.report("-n2") == project.report()


def test_a_variant_has_deployments_of_its_own(project: Project) -> None:
    """Three rows at once need three times 12 B: the model fits, and its variant does not."""
    write(project)
    path = project.path / "budgets/a.yaml"
    variant = "    variants:\n      rows: {inputs: float32 3x4, deployments: {wide: {device: board, fits: true,\n"
    path.write_text(path.read_text() + variant + "        lower: {dtype: int8}, limits: {activation_arena: 36 B}}}}\n")
    result = project.run("-v")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines([
        "budgets/a.yaml::net::board::fits PASSED*",
        "budgets/a.yaml::net::rows::wide::fits FAILED*",
        "budgets/a.yaml::net::rows::wide::activation_arena PASSED*",
        f"*sram 36 B > {ACTIVATIONS} B (*budgets/a.yaml:13",
    ])  # fmt: skip


def test_a_model_that_cannot_be_loaded_fits_nowhere(project: Project) -> None:
    """Each of its checks is unknown, for the one reason."""
    write(project, "fits: true\n        limits: {activation_arena: 12 B}")
    project.write("budgets/net.widths", "raise")
    result = project.run()
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["net: 2 limits unknown: *first line*", "FAILED *activation_arena - see net"])


@pytest.mark.parametrize(
    ("held", "said"),
    [
        pytest.param("limits: {latency_bound: 1 s}", "latency_bound unknown: tiny gives no rate of int8 *", id="rate"),
        pytest.param("limits: {array_cycles: 9}", "array_cycles unknown: tiny has no array: add array: *", id="array"),
        pytest.param("fits: true", "fits unknown: tiny names no memory that holds weights: add one *", id="memory"),
    ],
)  # fmt: skip
def test_what_a_device_does_not_say_is_unknown(project: Project, held: str, said: str) -> None:
    """With the name of the figure, the place of the limit, and a way out; never zero."""
    write(project, held, device="tiny")
    sram = "{size: 1 kB, holds: activations, bandwidth: 1 kB/s}"
    text = BOARD.format(flash=1, sram=9) + f"  tiny: {{memories: {{sram: {sram}}}, source: made up}}\n"
    project.write("budgets/hardware.yaml", text)
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"{said}budgets/a.yaml:11"])


def test_an_operation_that_no_rule_knows(project: Project) -> None:
    """It stays in float32, four times as large, and every failure says so; what it multiplies nobody knows."""
    write(project, "fits: true\n        limits: {array_cycles: 100}", flash=4 * 48, sram=4 * ACTIVATIONS + 5)
    project.write("budgets/net.widths", "4 8 2?")
    result = project.run()
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        ["array_cycles 0 cycle or more*no rule*   2 operations left in float32, first test::mystery in layer0   *"]
    )


# The change since the base.


def changed(project: Project, **sizes: int) -> Repository:
    """A branch on which the device has other sizes."""
    repository = Repository(write(project))
    repository.commit()
    repository.branch("change")
    write(project, **sizes)
    repository.commit()
    return repository


def test_a_larger_memory_is_a_redefinition(project: Project) -> None:
    """The budget is the same text: the device that it names is another one."""
    repository = changed(project, sram=1000)
    (found,) = repository.project.report("--model-budget-base=main")["redefined"]
    assert (found["id"], found["what"], found["line"]) == ("budgets/a.yaml::net::board", "device", 9)
    assert (found["before"], found["after"]) == ("{sram.size: 17 B}", "{sram.size: 1,000 B}")


@pytest.mark.parametrize(
    ("before", "after", "what", "text"),
    [
        pytest.param("fits: true", "limits: {macs: 48}", "fits removed", "fits of net::board removed", id="fits"),
        pytest.param("limits: {activation_arena: 12 B}", "limits: {activation_arena: 24 B}", "max raised",
                     "+100.0 %: activation_arena 12 B -> 24 B", id="limit"),
    ],
)  # fmt: skip
def test_a_loosened_deployment(project: Project, before: str, after: str, what: str, text: str) -> None:
    """Its limits are limits, and so is that it fits."""
    repository = Repository(write(project, before))
    repository.commit()
    repository.branch("change")
    write(project, after)
    repository.commit()
    (found,) = repository.project.report("--model-budget-base=main")["loosened"]
    assert found["what"] == what
    assert text in found["text"]


def test_limits_of_a_deployment_are_locked_and_grow(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """12 B are locked; 16 B, of a wider input, have grown by a third."""
    for name in ("CI", "BUILD_NUMBER", "TF_BUILD"):
        monkeypatch.delenv(name, raising=False)
    write(project, "limits: {activation_arena: {grow: 10%}}")
    project.run("--model-budget-update=create")
    assert '"net::board"' in (project.path / "budgets/a.lock.json").read_text()
    assert project.run().ret == 0
    project.write("budgets/net.widths", "4 12 2")
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["activation_arena 16 B > 13 B (+33.3% vs base)   base 12 B, grow 10.0%*"])
