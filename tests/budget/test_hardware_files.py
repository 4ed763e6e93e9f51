"""What is wrong with a file of devices, or with a deployment, each in its place and with the way out."""

from __future__ import annotations

import pytest

from pytest_modelbudget.budget.hardware_file import read_devices, shipped_devices
from pytest_modelbudget.budget.yaml_text import BudgetFileError
from tests.builders.texts import HARDWARE, Problems, model


def problems_of(text: str) -> list[str]:
    """The problems of a hardware file as "line:column: message"."""
    with pytest.raises(BudgetFileError) as caught:
        read_devices(text, "h.yaml")
    return [line.removeprefix("h.yaml:") for line in str(caught.value).splitlines()]


BROKEN = [
    ("align: 1}", "align: 2147483648}", "8:45: align of 2147483648: it must be 1 to 2,147,483,647"),
    ("flash:", "'':", "5:7: '' is no name of a memory: write visible characters without '::', '[' and '@'"),
    ("flash:", "'a::b':", "5:7: 'a::b' is no name of a memory"),
    ("source: made up", "source: ''", "10:13: the source is empty: write where the figures are from"),
    ("size: 100 kB, holds: weights", "size: -1 B, holds: weights", "5:21: size: '-1 B' has a sign"),
    ("size: 100 kB, holds: weights", "size: 0 B, holds: weights", "5:21: size: '0 B' is nothing"),
    ("size: 100 kB, holds: weights", "size: 100 kB", "5:14: a memory needs the key 'holds'"),
    ("holds: weights", "holds: []", "5:36: holds is empty: name at least one"),
    ("holds: weights", "holds: code", "5:36: 'code' is no content of a memory: known are weights, activations"),
    ("holds: weights", "holds: activations", "3:3: flash and sram of m55_board hold activations: one memory alone may"),
    ("reserve: 1 kB", "reserve: 1 MB", "6:7: the memory sram has 100000 B, of which 1000000 B are reserved"),
    ("1 GMAC/s", "1 GMAC", "7:18: int8: '1 GMAC' counts MAC, but this key counts MAC/s"),
    ("int8:", "int9:", "7:12: 'int9' is no type of operands: did you mean 'int"),
    ("greedy_by_size", "greedy", "8:22: 'greedy' is no planner: did you mean 'greedy_by_"),
    ("align: 1}", "align: 0}", "8:45: align of 0: it must be 1 to 2,147,483,647"),
    ("rows: 8", "rows: 0", "9:19: rows of 0: it must be 1 to 2,147,483,647"),
    ("weight_stationary", "weight", "9:44: 'weight' is no dataflow: "),
    ("bare:", "m55_board:", "11:3: "),
    ("hardware: 1", "hardware: 2", "1:11: hardware must be 1"),
]


@pytest.mark.parametrize(("before", "after", "said"), BROKEN, ids=[after for _, after, _ in BROKEN])
def test_a_broken_hardware_file(before: str, after: str, said: str) -> None:
    """One line for each problem, where it stands."""
    first, *_ = problems_of(HARDWARE.replace(before, after, 1))
    assert first.startswith(said)


def deployment(words: str) -> str:
    return "hardware: hardware.yaml\n" + model(f"    deployments:\n      m55: {words}\n    inputs: float32 1x3")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("{device: m56_board, fits: true}", "8:21: there is no device 'm56_board': did you mean 'm55_board'?"),
        ("{device: m55_board}", "8:7: 'm55' has none of the keys fits, limits, scopes: give one"),
        ("{device: m55_board, fits: false}", "'false' is no program that has to fit: known are true, training"),
        ("{device: m55_board, fits: true, lower: {dtype: int4}}", "can be lowered to: did you mean 'int"),
        ("{device: m55_board, fits: true, lower: {in_place: yes}}", "'yes' is no way to work in place: known are none"),
        ("{device: m55_board, fits: true, lower: {layout: nhwc}}", "'layout' is no key of lower: no number"),
        ("{device: m55_board, fits: true, lower: {fuse_activations: [rellu]}}", "did you mean 'relu'?"),
        ("{device: m55_board, limits: {training_macs: 1}}", "is measured of the model as written"),
        ("{fits: true}", "a deployment needs the key 'device'"),
    ],
)  # fmt: skip
def test_a_broken_deployment(problems: Problems, words: str, said: str) -> None:
    """A typo is never green."""
    assert any(said in line for line in problems(deployment(words)))


def test_a_broken_hardware_file_is_the_only_problem(problems: Problems) -> None:
    """Which devices it has nobody knows, so none is missing."""
    text = deployment("{device: x, fits: true}").replace("hardware.yaml", "gone.yaml")
    assert problems(text) == ["1:11: there is no budgets/gone.yaml: write its path as seen from this file's folder"]


def test_shipped_devices_are_read() -> None:
    """Each memory and rate of them has its unit and its source."""
    assert len(shipped_devices()) >= 8
    assert all(device.source for device in shipped_devices().values())
