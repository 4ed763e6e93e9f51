"""Quantised torch programs, of the form that pt2e leaves: the same groups, whoever wrote them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.ao.quantization.fx import _decomposed  # noqa: F401  # declares the operators
from torch.nn import functional as F

from pytest_modelbudget import measure
from pytest_modelbudget.formats.source import TensorSpec

pytestmark = pytest.mark.needs_torch
DECOMPOSED = torch.ops.quantized_decomposed
SHAPE, ELEMENTS, KERNEL, FILTERS = "float32 1x16x48x48", 16 * 48 * 48, 16 * 16 * 9, 16


def on_grid(x: torch.Tensor, scale: float = 0.1) -> torch.Tensor:
    """Quantise and dequantise, with one scale for all values."""
    grid = (scale, 0, -128, 127, torch.int8)
    return DECOMPOSED.dequantize_per_tensor(DECOMPOSED.quantize_per_tensor(x, *grid), *grid)


class Conv(nn.Module):
    """A convolution whose int8 kernel is a buffer, with a scale and a zero point a channel; its bias stays float32."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernel", torch.ones(16, 16, 3, 3, dtype=torch.int8))
        self.register_buffer("scale", torch.ones(16))
        self.register_buffer("zero_point", torch.zeros(16, dtype=torch.int64))
        self.bias = nn.Parameter(torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = (self.scale, self.zero_point, 0, -127, 127, torch.int8)
        kernel = DECOMPOSED.dequantize_per_channel(self.kernel, *grid)
        return F.conv2d(x, kernel, self.bias, padding=1)


def in_form(form: str, net: nn.Module, at: torch.Tensor, path: Path) -> object:
    """A module, or what is made of it: a file, or a frozen script."""
    if form == "frozen":
        return torch.jit.freeze(torch.jit.trace(net, at))
    if form == "script":
        torch.jit.trace(net, at).save(path / "net.pt")
        return path / "net.pt"
    if form == "export":
        torch.export.save(torch.export.export(net, (at,)), path / "net.pt2")
        return path / "net.pt2"
    return net


class ConvReluConv(nn.Module):
    """The network of the ONNX witnesses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Conv(), Conv()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = on_grid(torch.relu(self.first(on_grid(x))), 0.2)
        return on_grid(self.second(x), 0.3)


class InPlace(ConvReluConv):
    """The same, its activation written over the convolution's result, as torchvision's models do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = on_grid(torch.relu_(self.first(on_grid(x))), 0.2)
        return on_grid(self.second(x), 0.3)


class Moved(nn.Module):
    """A convolution's result permuted, quantised again on the same grid, and copied into another order."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = Conv()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = on_grid(on_grid(self.conv(on_grid(x)), 0.2).permute(0, 2, 3, 1), 0.2)
        return on_grid(x.reshape(1, -1, 16), 0.2)


class Emulated(nn.Module):
    """A grid that training emulates: its values stay floats."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fake_quantize_per_tensor_affine(F.relu(x), 0.1, 0, -128, 127)


# kernel in int8, a float32 scale and an int64 zero point a channel, the bias in float32
WEIGHTS = KERNEL + FILTERS * (4 + 8) + FILTERS * 4
IN_AND_OUT = (5 + 5) * ELEMENTS  # the first quantise and the last dequantise


def test_what_training_emulates_stays_floating() -> None:
    """Fake quantisation stores and moves float32: relu and the emulation read and write 4 bytes an element."""
    number = measure(Emulated(), SHAPE)
    assert number["ops"].parts == {"relu": 1, "fake_quantize": 1}
    assert number["bandwidth"].value == 2 * (4 + 4) * ELEMENTS


@pytest.mark.parametrize(
    ("net", "bandwidth", "census"),
    [
        pytest.param(
            ConvReluConv, IN_AND_OUT + 2 * (2 * ELEMENTS + WEIGHTS),
            {"quantize": 1, "convolution": 2, "dequantize": 1}, id="layers",
        ),
        pytest.param(
            InPlace, IN_AND_OUT + 2 * (2 * ELEMENTS + WEIGHTS),
            {"quantize": 1, "convolution": 2, "dequantize": 1}, id="in place",
        ),
        pytest.param(  # the permutation is a view, and so is the copy's result under another shape
            Moved, IN_AND_OUT + 2 * ELEMENTS + WEIGHTS,
            {"quantize": 1, "convolution": 1, "transpose": 1, "reshape": 1, "dequantize": 1}, id="views",
        ),
    ],
)  # fmt: skip
def test_groups_of_torch(net: Callable[[], nn.Module], bandwidth: int, census: dict[str, int]) -> None:
    """A traced module: bytes of each operation on integers, and no float tensor between them."""
    number = measure(net(), SHAPE)
    assert number["ops"].parts == census
    assert number["bandwidth"].value == bandwidth
    assert number["peak_activation"].value == (4 + 1) * ELEMENTS
    assert all(number[key].complete for key in ("macs", "params", "bandwidth", "peak_activation", "flops"))


def test_int8_buffers_are_parameters() -> None:
    """What is dequantised for a weight is one, wherever torch keeps it: kernels and biases, as in the ONNX file."""
    number, written = (measure(ConvReluConv(), SHAPE, qdq=qdq) for qdq in ("grouped", "as_written"))
    assert number["params"].value == 2 * (KERNEL + FILTERS)
    assert number["weight_memory"].value == number["model_size"].value == 2 * WEIGHTS
    assert written["params"].value == 2 * (KERNEL + FILTERS)
    assert written["weight_memory"].value == written["model_size"].value == 2 * WEIGHTS
    assert number["macs"].value == written["macs"].value == 2 * ELEMENTS * 16 * 9


class Rows(nn.Module):
    """Rows of a table of 40 rows of 8 integers, in floats by a scale for all, or one for each row, and handed out."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("table", torch.ones(40, 8, dtype=torch.int8))
        self.register_buffer("scale", torch.ones(40, 1))
        self.register_buffer("zero_point", torch.zeros(40, 1, dtype=torch.int64))

    def forward(self, at: torch.Tensor) -> torch.Tensor:
        grid = (-128, 127, torch.int8)
        if self.how == "whole":
            return F.embedding(at, DECOMPOSED.dequantize_per_tensor(self.table, 0.1, 0, *grid))
        if self.how == "indexed":
            return DECOMPOSED.dequantize_per_tensor(self.table[at], 0.1, 0, *grid)
        if self.how == "behind a view":
            return DECOMPOSED.dequantize_per_tensor(F.embedding(at, self.table).flatten(0, 1), 0.1, 0, *grid).relu()
        rows = F.embedding(at, self.table)
        if self.how == "by a scale a row":
            scale, zero_point = self.scale[at], self.zero_point[at]
            return DECOMPOSED.dequantize_per_token(rows, scale, zero_point, *grid, torch.float32)
        return DECOMPOSED.dequantize_per_tensor(rows, 0.1, 0, *grid)


BESIDE = 40 * 4 + 40 * 8  # bytes of a float32 scale and an int64 zero point for each row
PICKED = ("picked", "indexed", "behind a view")
HOW = ("whole", "by a scale a row", *PICKED)
FORMS = ("module", "script", "export")


@pytest.mark.parametrize("qdq", ["grouped", "as_written"])
@pytest.mark.parametrize(("how", "form"), [*product(HOW, FORMS), *product(PICKED, ["frozen"])])
def test_rows_of_a_buffer_that_are_dequantised_are_parameters(how: str, form: str, qdq: str, tmp_path: Path) -> None:
    """40 · 8 parameters of a byte in every order, form and mode; scales are bytes where they are what dequantises."""
    net, at = Rows(how).eval(), torch.zeros(1, 5, dtype=torch.long)
    found = measure(in_form(form, net, at, tmp_path), TensorSpec("int64", (1, 5), low=0, high=40), qdq=qdq)
    assert found["params"].value == 40 * 8
    assert found["weight_memory"].value == 40 * 8 + BESIDE * (how == "by a scale a row")
    assert found["model_size"].value == 40 * 8 + BESIDE * (form != "frozen")
    assert not any("no parameters" in note for note in found.notes)


@pytest.mark.parametrize("how", ["whole", "picked", "indexed"])
def test_rows_of_a_buffer_are_parameters_in_its_onnx_file(how: str, tmp_path: Path) -> None:
    """The exporter writes beside the table that torch has it in a buffer; a scale of 4 and a zero point of 1 byte."""
    path = tmp_path / "rows.onnx"
    torch.onnx.export(Rows(how).eval(), (torch.zeros(1, 5, dtype=torch.long),), path, verbose=False)
    for qdq in ("grouped", "as_written"):
        found = measure(path, qdq=qdq)
        assert (found["params"].value, found["weight_memory"].value) == (40 * 8, 40 * 8 + 4 + 1)


class OneBranch(Rows):
    """Rows that one branch of a condition on data dequantises, and the other leaves."""

    def forward(self, at: torch.Tensor) -> torch.Tensor:
        rows = F.embedding(at, self.table)

        def floats(rows: torch.Tensor) -> torch.Tensor:
            return DECOMPOSED.dequantize_per_tensor(rows, 0.1, 0, -128, 127, torch.int8).relu()

        def ones(rows: torch.Tensor) -> torch.Tensor:
            return torch.ones(rows.shape).relu().relu().relu()

        return torch.cond(at.sum() > 3, floats, ones, (rows,))


@pytest.mark.parametrize("qdq", ["grouped", "as_written"])
def test_what_one_branch_dequantises_is_a_parameter(qdq: str) -> None:
    """What the branches store is counted, whichever runs."""
    found = measure(OneBranch("").eval(), TensorSpec("int64", (1, 5), low=0, high=40), qdq=qdq)
    assert found["params"].value == 40 * 8


def test_integers_that_pick_or_are_cast_are_no_parameters() -> None:
    """A buffer of positions, cast to floats, is none: only a dequantisation says that integers stand for floats."""

    class Positions(Rows):
        def forward(self, at: torch.Tensor) -> torch.Tensor:
            rows = F.embedding(at, self.table).float()
            return rows + DECOMPOSED.dequantize_per_tensor(
                torch.zeros_like(rows).to(torch.int8), 0.1, 0, -128, 127, torch.int8
            )

    found = measure(Positions("").eval(), TensorSpec("int64", (1, 5), low=0, high=40))
    assert found["params"].value == found["weight_memory"].value == 0


def test_a_quantised_program_is_read_from_its_file(tmp_path: Path) -> None:
    """A process that never imported the operators reads the file, and finds the numbers of the module."""
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(ConvReluConv().eval(), (torch.ones(1, 16, 48, 48),)), path)
    code = f"import pytest_modelbudget as m; n = m.measure({str(path)!r}); print(*(n[k].value for k in {KEYS}))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    module = measure(ConvReluConv(), SHAPE)
    assert ran.stdout.split() == [str(module[key].value) for key in KEYS]


KEYS = ("params", "macs", "weight_memory", "peak_activation", "bandwidth")


def test_the_layer_table_shows_the_integers() -> None:
    """The first layer puts out int8: 36,864 B and not four times that."""
    from pytest_modelbudget.formats.source import ModelSource
    from pytest_modelbudget.gate.from_python import input_specs
    from pytest_modelbudget.gate.measuring import costed_model
    from pytest_modelbudget.registry import tables
    from pytest_modelbudget.reports.layer_table import layer_table

    source = ModelSource("torch", ConvReluConv, input_specs(SHAPE, tables()))
    model = costed_model(source, tables(), root=Path.cwd())
    rows = {row.scope: row for row in layer_table(model.loaded, model.costed).rows}
    assert rows["first"].output_nbytes == ELEMENTS
    assert (rows["first"].params, rows["first"].macs) == (KERNEL + FILTERS, ELEMENTS * 16 * 9)
