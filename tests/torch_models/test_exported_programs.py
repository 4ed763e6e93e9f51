"""An exported program in memory is a model as its file is."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pytest_modelbudget import check_equivalence, measure
from pytest_modelbudget.cli.command import main
from pytest_modelbudget.errors import ModelBudgetError

pytestmark = pytest.mark.needs_torch
KEYS = ("params", "weight_memory", "macs", "flops", "peak_activation", "bandwidth", "model_size")


@pytest.fixture
def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10)).eval()


@pytest.fixture
def program(mlp: nn.Module) -> torch.export.ExportedProgram:
    return torch.export.export(mlp, (torch.ones(4, 64),))


def test_an_exported_program_has_the_numbers_of_its_file(program: torch.export.ExportedProgram, tmp_path: Path) -> None:
    """4 x (64 x 100 + 100 x 10) MACs, and every other number is the file's."""
    torch.export.save(program, tmp_path / "mlp.pt2")
    in_memory, from_file = measure(program), measure(tmp_path / "mlp.pt2")
    assert in_memory["macs"].value == 4 * (64 * 100 + 100 * 10)
    assert in_memory["params"].value == 64 * 100 + 100 + 100 * 10 + 10
    for key in KEYS:
        assert (in_memory[key].value, in_memory[key].complete) == (from_file[key].value, from_file[key].complete)


def test_an_exported_program_is_compared(mlp: nn.Module, program: torch.export.ExportedProgram) -> None:
    """With the module that it was exported from, and with one of other weights."""
    other = torch.export.export(nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10)), (torch.ones(4, 64),))
    assert check_equivalence(program, program).outcome == "within"
    assert check_equivalence(mlp, program, "float32 4x64").outcome == "within"
    assert check_equivalence(program, other).outcome == "over"


def test_an_exported_program_takes_no_arguments(program: torch.export.ExportedProgram) -> None:
    """There is nothing to call with them."""
    with pytest.raises(ModelBudgetError, match="model already"):
        measure(program, args=(1,))


class Steps(nn.Module):
    """A layer 8 -> 8 that runs once more for some counts of rows."""

    def __init__(self, again: Callable[[int], bool]) -> None:
        super().__init__()
        self.layer, self.again = nn.Linear(8, 8), again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        return self.layer(y) if self.again(x.shape[0]) else y


OTHER_SIZES: dict[str, tuple[Callable[[int], bool], object, int, str]] = {
    "more than said": (lambda n: n > 4, torch.export.Dim("b", min=2, max=4), 6, "<= 4"),
    "more than seen": (lambda n: n > 4, torch.export.Dim.AUTO, 6, "<= 4"),
    "no multiple": (lambda n: n % 4 > 0, torch.export.Dim.AUTO, 6, "% 4 <= 0"),
}


@pytest.mark.parametrize("is_file", [False, True], ids=["in memory", "file"])
@pytest.mark.parametrize(("again", "dim", "rows", "words"), OTHER_SIZES.values(), ids=OTHER_SIZES)
def test_sizes_that_another_program_has_are_refused(
    again: Callable[[int], bool], dim: object, rows: int, words: str, is_file: bool, tmp_path: Path
) -> None:
    """Of 6 rows the module has 2 x 6 x 64 MACs and the program, which torch refuses to run so, has half of them."""
    program = torch.export.export(Steps(again), (torch.zeros(4, 8),), dynamic_shapes=({0: dim},))
    torch.export.save(program, tmp_path / "steps.pt2")
    target = tmp_path / "steps.pt2" if is_file else program
    assert measure(target, "float32 4x8")["macs"].value == 4 * 64
    with pytest.raises(ModelBudgetError, match=f"exported for other sizes: .*{words}"):
        measure(target, f"float32 {rows}x8")


def test_a_program_in_memory_stays_dynamic() -> None:
    """Also where it is measured at the very size that it was exported with."""
    rows = torch.export.Dim("rows")
    program = torch.export.export(nn.Linear(8, 8), (torch.zeros(4, 8),), dynamic_shapes=({0: rows},))
    (symbol,) = program.range_constraints
    assert measure(program, "float32 4x8")["macs"].value == 4 * 64
    assert measure(program, dims={str(symbol): 3})["macs"].value == 3 * 64


def test_sizes_are_held_without_example_inputs_too(tmp_path: Path) -> None:
    """Files may lack them, and with them the guards that torch makes; ranges are in each."""
    program = torch.export.export(
        Steps(lambda n: n > 4), (torch.zeros(4, 8),), dynamic_shapes=({0: torch.export.Dim.AUTO},)
    )
    program._example_inputs = None
    torch.export.save(program, tmp_path / "steps.pt2")
    assert measure(tmp_path / "steps.pt2", "float32 3x8")["macs"].value == 3 * 64
    with pytest.raises(ModelBudgetError, match=r"exported for other sizes: .*<= 4, but got 6"):
        measure(tmp_path / "steps.pt2", "float32 6x8")


class Scaled(nn.Module):
    """A layer between inputs that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(
        self, x: torch.Tensor, scale: float, mask: torch.Tensor | None, *, left: bool, more: torch.Tensor
    ) -> torch.Tensor:
        return self.layer(x) * scale + more if left and mask is None else more


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
def test_a_program_takes_inputs_that_are_no_tensors(dynamic: bool) -> None:
    """A number, a truth value and None among its inputs are those that it was exported with: 3 x 64 MACs."""
    rows = {0: torch.export.Dim("b")}
    dims = {"x": rows, "scale": None, "mask": None, "left": None, "more": rows} if dynamic else None
    program = torch.export.export(
        Scaled(), (torch.zeros(3, 8), 2.0, None), {"left": True, "more": torch.zeros(3, 8)}, dynamic_shapes=dims
    )
    inputs = {"x": "float32 3x8", "more": "float32 3x8"}
    assert measure(program, inputs)["macs"].value == 3 * 64
    if dynamic:
        with pytest.raises(ModelBudgetError, match=r"'more'.*to be equal to 3, but got 1"):
            measure(program, {"x": "float32 3x8", "more": "float32 1x8"})
    else:
        assert check_equivalence(program, program).outcome == "within"


def test_a_program_with_symbols_leaves_torchs_own_trace_empty(mlp: nn.Module, tmp_path: Path) -> None:
    """pytest shows that trace beside a limit that fails: twenty lines DEBUG, none of them of the model."""
    batch = torch.export.Dim("batch")
    program = torch.export.export(mlp, (torch.ones(4, 64),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "mlp.pt2")
    lines: list[logging.LogRecord] = []
    listener = logging.Handler()
    listener.emit = lines.append  # type: ignore[method-assign]
    trace = logging.getLogger("torch.__trace")
    trace.addHandler(listener)
    try:
        assert measure(tmp_path / "mlp.pt2", "float32 3x64")["params"].value == 64 * 100 + 100 + 100 * 10 + 10
    finally:
        trace.removeHandler(listener)
    assert [line.getMessage() for line in lines] == []


class FirstRows(nn.Module):
    """n zeros beside the first n of 16 rows that it computes, or is given: ``n`` decides memory, or MACs, too."""

    def __init__(self, cuts_before: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8, bias=False)
        self.cuts_before = cuts_before

    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        y = self.layer(x[:n]) if self.cuts_before else self.layer(x)[:n]
        return y + torch.zeros(n, 8)


def with_an_open_number(cuts_before: bool) -> torch.export.ExportedProgram:
    """``FirstRows``, whose n its export leaves open."""
    shapes = {"x": None, "n": torch.export.Dim.AUTO}
    return torch.export.export(FirstRows(cuts_before).eval(), (torch.zeros(16, 8), 4), dynamic_shapes=shapes)


def open_number(program: torch.export.ExportedProgram) -> str:
    """The symbol of its last input."""
    return str([*program.graph.find_nodes(op="placeholder")][-1].meta["val"])


@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.parametrize("cuts_before", [False, True])
@pytest.mark.parametrize("kind", ["dims", "by name", "by place"])
def test_a_number_that_an_export_left_open_is_bound(tmp_path: Path, n: int, cuts_before: bool, kind: str) -> None:
    """16 rows, or n of them, by 8 x 8; at the end n x 8 floats of each operand and of the sum, beside a view's 16."""
    program = with_an_open_number(cuts_before)
    torch.export.save(program, tmp_path / "rows.pt2")
    given = {
        "dims": {"dims": {open_number(program): n}},
        "by name": {"inputs": {"n": n}},
        "by place": {"inputs": ["float32 16x8", n]},
    }[kind]
    for model in (program, tmp_path / "rows.pt2"):
        measured = measure(model, **given)  # type: ignore[arg-type]
        assert measured["macs"].value == (n if cuts_before else 16) * 8 * 8
        peak = max(16 * 8 + n * 8, 3 * n * 8) if cuts_before else max(16 * 8 + 16 * 8, 16 * 8 + 2 * n * 8)
        assert measured["peak_activation"].value == 4 * peak


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "input 'n' is a number that the export left open, {n}: bind it with dims {{{n}: 2}}, or give inputs"),
        ({"inputs": {"n": True}}, "input 'n' of the program is a whole number, {n}"),
        ({"inputs": {"n": "int64 1"}}, "input 'n' of the program is a whole number, {n}"),
        ({"inputs": {"n": 17}}, "exported for other sizes: Expected input at 'n' to be <= 16, but got 17"),
    ],
    ids=["unbound", "truth", "tensor", "out of range"],
)
def test_a_number_that_an_export_left_open_is_no_other(given: dict[str, Any], words: str) -> None:
    """Nothing is measured of a size that nobody gave."""
    program = with_an_open_number(cuts_before=False)
    with pytest.raises(ModelBudgetError, match=re.escape(words.format(n=open_number(program)))):
        measure(program, **given)


def test_a_program_with_an_open_number_is_compared() -> None:
    """With the number that a claim's inputs give."""
    program = with_an_open_number(cuts_before=False)
    assert check_equivalence(program, program, ["float32 16x8", 5]).outcome == "within"


def test_the_command_line_binds_an_open_number_by_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it has it, and not as a budget does; it is then what a shell takes."""
    program = with_an_open_number(cuts_before=False)
    torch.export.save(program, tmp_path / "rows.pt2")
    assert main(["show", str(tmp_path / "rows.pt2")]) == 2
    told = capsys.readouterr().err.strip()
    assert told.endswith(f"the export left open, {open_number(program)}: bind it: --dims {open_number(program)}=2")
    assert main(["show", str(tmp_path / "rows.pt2"), *shlex.split(told.partition("bind it: ")[2])]) == 0


class Joined(nn.Module):
    """A layer 8 -> 8 on the rows of two inputs, to which those of a third are added."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        joined: torch.Tensor = self.layer(torch.cat([x, y]))
        return joined + z


@pytest.fixture(params=[True, False], ids=["twice", "any"])
def joined(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[str]]:
    """Its file, where y has twice the rows of x, or any number; and the symbols of what is left open."""
    rows, many = torch.export.Dim("rows", min=3, max=64), torch.export.Dim("many", min=3, max=64)
    of_y, of_z = (2 * rows, 3 * rows) if request.param else (many, torch.export.Dim.AUTO)
    given = (torch.zeros(5, 8), torch.zeros(10, 8), torch.zeros(15, 8))
    program = torch.export.export(Joined(), given, dynamic_shapes={"x": {0: rows}, "y": {0: of_y}, "z": {0: of_z}})
    torch.export.save(program, tmp_path / "joined.pt2")
    nodes = [node for node in program.graph.find_nodes(op="placeholder") if node.name in {"x", "y"}]
    symbols = [str(node.meta["val"].shape[0]) for node in nodes]
    return tmp_path / "joined.pt2", symbols[:1] if request.param else symbols


Open = tuple[Path, list[str]]


def test_a_size_is_bound_by_what_it_is_computed_from(joined: Open) -> None:
    """4 rows and 8 (or 9) are 12 (or 13) of 8 x 8 MACs; sizes that are computed need not be bound, and may."""
    file, symbols = joined
    rows = 4 + (8 if len(symbols) == 1 else 9)
    sizes = dict(zip(symbols, (4, 9), strict=False))
    assert measure(file, dims=sizes)["macs"].value == rows * 8 * 8
    first, last = symbols[0], symbols[-1]
    whole = {f"2*{first}": 8, f"3*{first}": 12} if first == last else {" + ".join(sorted(symbols)): 13}
    assert measure(file, dims={**sizes, **whole})["macs"].value == rows * 8 * 8


def test_an_input_that_is_given_binds_the_sizes_of_others(joined: Open) -> None:
    """The first has 4 rows, and another input as many times more as the program says."""
    file, symbols = joined
    dims = dict.fromkeys(symbols[1:], 9)
    assert measure(file, {"x": "float32 4x8"}, dims=dims)["macs"].value == (13 if dims else 12) * 8 * 8


def test_all_sizes_that_are_left_open_are_named(joined: Open, capsys: pytest.CaptureFixture[str]) -> None:
    """With what each is computed from, and sizes that the program allows; the command line has its own words."""
    file, symbols = joined
    first, last = symbols[0], symbols[-1]
    with pytest.raises(ModelBudgetError) as caught:
        measure(file)
    words = str(caught.value)
    assert words.startswith(f"input 'x' has a dynamic dimension {first}, input 'y' has a dynamic dimension ")
    assert f"input 'y' has a dynamic dimension {f'2*{first}' if first == last else last}, input 'z' " in words
    dims = f"it with dims {{{first}: 3}}" if first == last else f"them with dims {{{first}: 3, {last}: 3}}"
    assert words.endswith(f": bind {dims}, or give inputs")
    assert main(["show", str(file)]) == 2
    told = capsys.readouterr().err.strip()
    assert main(["show", str(file), *shlex.split(told.partition("bind it: ")[2])]) == 0
    with pytest.raises(ModelBudgetError, match=f"no dynamic dimension 'rows': they are {', '.join(sorted(symbols))} "):
        measure(file, dims={"rows": 4})


def test_a_size_is_bound_by_what_is_no_size_itself() -> None:
    """Twice a number of rows, which no input has: 2 x 3 rows of 8 x 8 MACs."""
    half = torch.export.Dim("half", min=2, max=32)
    program = torch.export.export(nn.Linear(8, 8), (torch.zeros(8, 8),), dynamic_shapes=({0: 2 * half},))
    with pytest.raises(ModelBudgetError, match=r"dimension 2\*s\d+: bind it with dims \{s\d+: 2\}, or") as caught:
        measure(program)
    symbol = str(caught.value).partition("2*")[2].partition(":")[0]
    assert measure(program, dims={symbol: 3})["macs"].value == 2 * 3 * 8 * 8
    assert measure(program, dims={f"2*{symbol}": 6})["macs"].value == 2 * 3 * 8 * 8


def test_sizes_that_contradict_each_other_are_refused(joined: Open) -> None:
    """What dims says of a size and of what it is computed from, and what an input has, must be of one program."""
    file, (rows, *others) = joined
    bound = dict.fromkeys(others, 9)
    whole = " + ".join(sorted((rows, *others))) if others else f"2*{rows}"
    wrong: list[dict[str, Any]] = [
        {"dims": {rows: 4, whole: 9, **bound}},
        {"dims": {rows: 5, **bound}, "inputs": {"x": "float32 4x8"}},
        {"dims": {rows: 65, **bound}},
    ]
    for given in wrong:
        with pytest.raises(ModelBudgetError, match="exported for other sizes"):
            measure(file, **given)


class Pushed(nn.Module):
    """A linear layer, and how its result moves as the input does (forward-mode automatic differentiation)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        moved: torch.Tensor = torch.func.jvp(self.layer, (x,), (x,))[1]
        return moved


class Mapped(Pushed):
    """The same layer, called row by row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = torch.vmap(self.layer)(x)
        return rows


def test_an_exported_program_may_push_forward() -> None:
    """Its MACs are those that PyTorch's counter sees in a run of the module."""
    x = torch.ones(3, 8)
    with FlopCounterMode(display=False) as counter:
        Pushed()(x)
    exported = measure(torch.export.export(Pushed().eval(), (x,), strict=False))
    assert exported.macs.complete
    assert exported.macs.value == counter.get_total_flops() // 2


@pytest.mark.parametrize("model", [Pushed, Mapped])
def test_a_program_that_fails_within_a_transform_leaves_the_next_model_alone(model: type[nn.Module]) -> None:
    """vmap and jvp are entered by one node and left by another: behind a failure, 3 rows x 8 x 12 MACs are counted."""
    x = torch.ones(3, 8)
    program = torch.export.export(model().eval(), (x,), strict=False)
    product = next(node for node in program.graph.nodes if node.target is torch.ops.aten.linear.default)
    with program.graph.inserting_before(product):
        program.graph.call_function(torch.ops.aten.view.default, (product.args[0], [7]))
    program.graph_module.recompile()
    with pytest.raises(ModelBudgetError, match="shape"):
        measure(program)
    assert torch._C._functorch.maybe_current_level() is None
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
    assert measure(nn.Linear(8, 12), "float32 3x8").macs.value == 3 * 8 * 12
    assert measure(Pushed(), "float32 3x8").macs.complete


class Cached(nn.Module):
    """A part of a buffer is written, and all of it multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(32, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache[:3] = x
        return self.cache @ x.t()


@pytest.mark.parametrize(
    ("model", "shape", "macs"),
    [
        pytest.param(lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), (1, 2, 8, 8), 64 * 4 * 2 * 9,
                     id="a circular pad"),
        pytest.param(Cached, (3, 4), 32 * 4 * 3, id="a cache"),
    ],
)  # fmt: skip
def test_a_decomposed_program_that_writes_a_part_is_complete(
    model: Callable[[], nn.Module], shape: tuple[int, ...], macs: int
) -> None:
    """What it wrote in place is aten::copy and slice_scatter there, which multiply nothing."""
    program = torch.export.export(model().eval(), (torch.ones(shape),)).run_decompositions()
    assert any(node.target is torch.ops.aten.copy.default for node in program.graph.nodes)
    numbers = measure(program)
    assert numbers.macs.complete
    assert numbers.macs.value == macs
    assert numbers.flops.value == 2 * macs + (64 * 4 if shape[0] == 1 else 0)


def test_a_decomposed_program_of_train_mode_has_the_costs_of_its_batch_norm() -> None:
    """2 x 4 x 4 x 4 outputs, 18 products each, a bias, 5 FLOPs of the norm, and one for the count of batches."""
    program = torch.export.export(
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)).train(), (torch.ones(2, 2, 6, 6),)
    )
    for numbers in (measure(program), measure(program.run_decompositions())):
        assert numbers.macs.complete
        assert numbers.macs.value == 128 * 18
        assert numbers.flops.value == 2 * 128 * 18 + 128 + 5 * 128 + 1


class Pooled(nn.Module):
    """Rows are weighed by a vector that is learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.query


def test_a_product_by_a_vector_is_no_contraction_where_a_decomposition_took_it_apart() -> None:
    """24 MACs as the module has it; as 24 products and the sum of 3 rows of 8, 48 FLOPs either way."""
    program = torch.export.export(Pooled().eval(), (torch.ones(3, 8),))
    assert [measure(each).macs.value for each in (program, program.run_decompositions())] == [24, 0]
    assert [measure(each).flops.value for each in (program, program.run_decompositions())] == [48, 24 + 24]


class Gridded(nn.Module):
    """Places of 4 x 4 samples under a map of two rows."""

    def forward(self, theta: torch.Tensor) -> torch.Tensor:
        return nn.functional.affine_grid(theta, (1, 3, 4, 4), align_corners=False)


def test_an_affine_grid_is_no_contraction_where_a_decomposition_took_it_apart() -> None:
    """16 places of 3 numbers by 3 x 2, as the module has it; products and a sum of them otherwise."""
    program = torch.export.export(Gridded().eval(), (torch.ones(1, 2, 3),))
    assert [measure(each).macs.value for each in (program, program.run_decompositions())] == [16 * 3 * 2, 0]


class Attended(nn.Module):
    """Two heads of x (2, 4, 16) attend, and lie side by side again for each place and sample."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.view(2, 4, 2, 8).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(x, x, x).permute(2, 0, 1, 3).reshape(4, 2, 16)


def test_a_decomposed_program_copies_where_the_layout_of_attention_needed_no_copy() -> None:
    """Heads lie so already on the CPU of an export, which has no copy; row-major heads are written, and copied."""
    program = torch.export.export(Attended().eval(), (torch.ones(2, 4, 16),)).run_decompositions({})
    assert torch.ops.aten.clone.default not in [node.target for node in program.graph.nodes]
    for numbers in (measure(program), measure(Attended(), "float32 2x4x16")):
        assert numbers.macs.value == 2 * (2 * 2 * 4 * 4 * 8)
        assert numbers.total_activation.value == 2 * (2 * 4 * 16 * 4)


def test_a_view_of_other_sizes_is_refused_in_a_program() -> None:
    """Of a transposed tensor, too, which no copy gives 7 elements."""
    program = torch.export.export(Attended().eval(), (torch.ones(2, 4, 16),)).run_decompositions({})
    view = [node for node in program.graph.nodes if node.target is torch.ops.aten.view.default][-1]
    view.args = (view.args[0], [7])
    program.graph_module.recompile()
    with pytest.raises(ModelBudgetError, match="shape '\\[7\\]' is invalid"):
        measure(program)


class Region(nn.Module):
    """A layer in a region of autocast, and one on what that gives outside of it."""

    def __init__(self, device: str, enabled: bool) -> None:
        super().__init__()
        self.inside, self.outside = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.device, self.enabled = device, enabled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.enabled):
            y = self.inside(x)
        return self.outside(y.float())


@pytest.mark.filterwarnings("ignore:.*Disabling autocast")
@pytest.mark.parametrize(
    ("device", "enabled", "bits"),
    [("cuda", False, 32), ("cuda", True, 32), ("xpu", False, 32), ("cpu", False, 32), ("cpu", True, 16)],
)
def test_a_region_of_autocast_casts_as_in_its_module(device: str, enabled: bool, bits: int, tmp_path: Path) -> None:
    """4 x 8 x 8 MACs inside, of bfloat16 where the CPU's autocast is on, and as many of float32 behind it."""
    model = Region(device, enabled).eval()
    program = torch.export.export(model, (torch.ones(4, 8),))
    torch.export.save(program, tmp_path / "region.pt2")
    for source in (model, program, tmp_path / "region.pt2"):
        measured = measure(source, "float32 4x8")
        assert measured["macs"].value == 2 * 4 * 8 * 8
        assert measured["bops"].value == 4 * 8 * 8 * (bits**2 + 32**2)
    assert check_equivalence(model, program, "float32 4x8").outcome == "within"
