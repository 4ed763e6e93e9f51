"""ExecuTorch programs: planned memory, constants, delegates, and operators that run outside of these."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_modelbudget import measure
from pytest_modelbudget.cli.command import main
from pytest_modelbudget.errors import ModelBudgetError
from tests.builders.device_mutants import measured
from tests.builders.marks import TIMES
from tests.builders.project import Project
from tests.builders.pte_files import C, V, pte_file

BLOB = b"\1" * 1_000
# conv (8, 3, 3, 3) on 32x32 and its bias, then relu in the memory of the input, then a delegate.
VALUES = [
    V((1, 3, 32, 32), 0), V((8, 3, 3, 3), is_stored=True), V((8,), is_stored=True), 1, (3, 3), 0, (5, 5), 1,
    V((1, 8, 32, 32), 32_768), V((1, 8, 32, 32), 0), V((1, 10), 32_768),
]  # fmt: skip
CALLS = [
    C("aten::convolution", (0, 1, 2, 4, 4, 4, 5, 6, 7, 8, 8)),
    C("aten::relu", (8, 9, 9)),
    C("", (9, 10), delegate=0),
]


def conv_net(*, with_delegate: bool = False) -> bytes:
    if with_delegate:
        return pte_file(VALUES, CALLS, [0], [10], pool=65_536, delegates=[("XnnpackBackend", BLOB)])
    return pte_file(VALUES, CALLS[:2], [0], [9], pool=65_536)


def test_a_program_has_the_numbers_of_its_operators_and_its_plan(tmp_path: Path) -> None:
    """Each of 8·32² outputs sums 27 products; the arena is what the program plans, the size that of the file."""
    path = tmp_path / "net.pte"
    path.write_bytes(conv_net())
    numbers = measure(path)
    assert (int(numbers["macs"]), numbers["macs"].complete) == (8 * 32**2 * 27, True)
    assert (int(numbers["params"]), int(numbers["weight_memory"])) == (216 + 8, 224 * 4)
    assert int(numbers["model_size"]) == path.stat().st_size
    assert int(numbers["peak_activation"]) == 65_536
    assert int(measure(path, lower={})["activation_arena"]) == 65_536  # the relu stays where the plan has it


def test_a_delegate_is_unmeasured_by_name_and_its_bytes_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What makes up the file, and which numbers are lower bounds."""
    path = tmp_path / "net.pte"
    path.write_bytes(conv_net(with_delegate=True))
    numbers = measure(path)
    assert int(numbers["model_size"]) == path.stat().st_size
    for key in ("macs", "params", "bandwidth", "peak_activation"):
        assert [each.op for each in numbers[key].unmeasured] == ["delegate::XnnpackBackend"]
    assert numbers["macs"].value == 8 * 32**2 * 27
    assert main(["show", str(path)]) == 1  # numbers are lower bounds
    said = " ".join(capsys.readouterr().out.split())
    rest = path.stat().st_size - 1_000 - 896
    assert f"the file has delegate XnnpackBackend 1,000 B, constants 896 B, program and padding {rest:,} B" in said
    assert "memory that the program plans: 65,536 B in pool 1" in said


def test_delegates_of_one_backend_are_unmeasured_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a network is split by operators that a backend has not: their number, and the first of them."""
    values = [V((1, 8), 32 * at) for at in range(6)]
    calls = [C("", (at, at + 1), delegate=at) for at in range(5)]
    path = tmp_path / "net.pte"
    path.write_bytes(pte_file(values, calls, [0], [5], pool=192, delegates=[("XnnpackBackend", BLOB)] * 5))
    assert main(["show", str(path)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    where = "XnnpackBackend_0, XnnpackBackend_1, XnnpackBackend_2 and 2 more"
    assert f"unmeasured: 5 x delegate::XnnpackBackend in {where} (macs, flops, bops" in said


def test_views_that_the_program_leaves_out_share_memory(tmp_path: Path) -> None:
    """x (4, 4) as (16): read at the place where it was written; a list of tensors; a weight that is turned first."""
    values = [
        V((4, 4), 0), V((4, 4), 64), V((16,), 64), V((8,), is_stored=True), V((24,), 128), [2, 3], 0,
        V((5, 24), is_stored=True), V((24, 5), 256), (6, 6), V((5,), is_stored=True), V((1, 24), 128), V((1, 5), 0),
    ]  # fmt: skip
    calls = [
        C("aten::relu", (0, 1, 1)),
        C("aten::cat", (5, 6, 4, 4)),
        C("aten::permute_copy", (7, 9, 8, 8)),
        C("aten::addmm", (10, 11, 8, 6, 6, 12, 12)),
    ]
    path = tmp_path / "net.pte"
    path.write_bytes(pte_file(values, calls, [0], [12], pool=736))
    numbers = measure(path)
    assert int(numbers["macs"]) == 24 * 5
    assert int(numbers["params"]) == 24 * 5 + 5 + 8
    assert int(numbers["total_activation"]) == 4 * (16 + 24 + 120 + 5)


def test_lists_of_results_are_written_and_not_read(tmp_path: Path) -> None:
    """x (2, 8) split in two, as every attention layer's queries, keys and values are: the list stands in a call twice.

    The second part lies where an input was; pytorch/executorch writes both lists alike.
    """
    values = [V((2, 8), 64), V((2, 4), 0), V((2, 4), 32), [1, 2], [1, 2], (6, 6), 4, V((2, 4), 128), V((2, 8), 192), 1]
    calls = [
        C("aten::relu", (0, 8, 8)),
        C("aten::split_with_sizes_copy", (8, 5, 9, 3, 4)),
        C("aten::mul", (1, 2, 7, 7)),
    ]
    path = tmp_path / "net.pte"
    path.write_bytes(pte_file(values, calls, [0], [7], pool=256))
    numbers = measure(path)
    assert (int(numbers["params"]), numbers["params"].complete) == (0, True)
    assert int(numbers["total_activation"]) == 4 * (16 + 8 + 8 + 8)
    assert int(measure(path, lower={})["activation_arena"]) == 256


def test_a_bias_of_zeros_is_stored_with_zero_points(tmp_path: Path) -> None:
    """32 bytes of zeros are four zero points in int64 and a bias of eight: a folded batch norm in int8, as exported."""
    values = [
        V((2, 8), 0), V((4, 8), is_stored=True, dtype=1), V((4,), is_stored=True), V((4,), is_stored=True, dtype=4),
        V((4, 8), 64), V((8,), same_as=3), None, 0, -127, 127, 1, None, V((2, 8), 320), V((8, 8), is_stored=True),
    ]  # fmt: skip
    calls = [
        C("quantized_decomposed::dequantize_per_channel", (1, 2, 3, 7, 8, 9, 10, 11, 4, 4)),
        C("aten::addmm", (5, 0, 13, 10, 10, 12, 12)),
    ]
    path = tmp_path / "net.pte"
    path.write_bytes(pte_file(values, calls, [0], [4, 12], pool=384))
    assert int(measure(path)["params"]) == 32 + 8 + 64


def test_a_blob_that_delegates_share_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of both methods, which have the same blob: pytorch/executorch stores equal ones once."""
    path = tmp_path / "net.pte"
    delegates = [("XnnpackBackend", BLOB)]
    content = pte_file(VALUES, CALLS, [0], [10], pool=65_536, delegates=delegates, names=("encode", "forward"))
    path.write_bytes(content)
    assert main(["show", str(path)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    rest = len(content) - 1_000 - 896
    assert f"the file has delegate XnnpackBackend 1,000 B, constants 896 B, program and padding {rest:,} B" in said


def test_the_method_forward_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Others are named in a note."""
    path = tmp_path / "net.pte"
    path.write_bytes(pte_file(VALUES, CALLS[:2], [0], [9], pool=65_536, names=("encode", "forward")))
    assert main(["show", str(path)]) == 0
    assert "2 methods are stored: 'forward' is counted" in capsys.readouterr().out


def test_a_budget_gates_a_program(project: Project) -> None:
    """The size of the file, planned memory by a deployment, and operators that must not be left outside."""
    (project.path / "budgets/net.pte").write_bytes(conv_net(with_delegate=True))
    project.budget("""
  net:
    pte: net.pte
    limits: {model_size: 4 kB, macs: 1 MMAC, ops: {deny: [relu]}}
""")
    project.run()
    (model,) = project.report()["models"]
    assert {each["metric"]: each["outcome"] for each in model["checks"]} == {
        "model_size": "within", "macs": "unknown", "ops": "over",
    }  # fmt: skip


def test_mutants_are_refused_or_measured(tmp_path: Path) -> None:
    """Nothing but the project's errors comes out, in bounded time and memory. ``MODELBUDGET_FUZZ=20`` tries 2,000."""
    path = tmp_path / "net.pte"
    path.write_bytes(conv_net(with_delegate=True))
    mutants = measured(path, 100 * TIMES)
    assert mutants.seconds < 5
    assert mutants.nbytes < 500_000_000
    assert 0 < mutants.refused < 100 * TIMES


CASES = {
    "no program": (b"not a flatbuffer at all", "is no ExecuTorch program (ET12), or only a part of one"),
    "cut": (conv_net()[:300], "is a damaged ExecuTorch program"),
    "negative shape": (pte_file([V((1, -4), 0)], [], [0], [0]), "a tensor has the shape [1, -4]"),
    "value that is not there": (pte_file(VALUES, [C("aten::relu", (8, 99, 99))], [0], [9]), "names value 99 of 11"),
    "plan that overlaps": (
        pte_file([V((4, 4), 0), V((4, 4), 32)], [C("aten::relu", (0, 1, 1))], [0], [1], pool=96),
        "the plan puts 'relu_0_1' at 32, where another tensor lives meanwhile: export it again",
    ),
    "TFLite": (b"\0\0\0\0TFL3" + bytes(64), "is a TFLite file, not an ExecuTorch program: write it under tflite:"),
}


@pytest.mark.parametrize("key", CASES)
def test_what_is_wrong_is_one_sentence(key: str, tmp_path: Path) -> None:
    """With the file, what is wrong in it, and what to do."""
    content, says = CASES[key]
    path = tmp_path / "net.pte"
    path.write_bytes(content)
    with pytest.raises(ModelBudgetError) as error:
        measure(path)
    assert "net.pte" in str(error.value)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
