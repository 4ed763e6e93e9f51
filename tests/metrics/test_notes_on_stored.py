"""Weights that are no parameters are named, in every format, as are constants that nothing registers; no other is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

from pytest_modelbudget import measure

pytestmark = pytest.mark.needs_torch


class Holds(nn.Module):
    """Buffers and attributes, and a pass over them."""

    def __init__(self, forward: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._forward = forward
        self.layer = nn.Linear(8, 8)
        self.register_buffer("ints", torch.ones(8, 8, dtype=torch.int8))
        self.register_buffer("scale", torch.ones(8, 1))
        self.register_buffer("cache", torch.zeros(4, 8), persistent=False)
        self.register_buffer("hidden", torch.ones(8, 8), persistent=False)
        self.register_buffer("frequencies", torch.ones(1, 8))
        self.plain = torch.ones(8, 8)
        self.register_buffer("flat", torch.ones(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._forward(self, x)


def cached(m: Any, x: torch.Tensor) -> torch.Tensor:
    """What comes from the input is no weight, wherever it is kept."""
    m.cache[:2] = m.layer(x)
    return x @ m.cache.t()


linear = nn.functional.linear
READ: dict[str, tuple[Callable[[Any, torch.Tensor], torch.Tensor], str]] = {
    "integers": (lambda m, x: linear(x, m.ints.float()), "ints (8x8), read by aten::linear; {0} has them"),
    "integers that a number scales": (
        lambda m, x: linear(x, m.ints.float() * 0.5),
        "ints (8x8), read by aten::linear; {0} has them",
    ),
    "a product": (lambda m, x: x @ m.ints.float().t(), "ints (8x8), read by aten::matmul; {0} has them"),
    "an einsum": (
        lambda m, x: torch.einsum("bi,oi->bo", x, m.ints.float()),
        "ints (8x8), read by aten::einsum; {0} has them",
    ),
    "unsaved": (lambda m, x: linear(x, m.hidden), "hidden (8x8), read by aten::linear; {0} lacks them"),
    "unregistered": (lambda m, x: linear(x, m.plain), "(8x8), read by aten::linear; {0} lacks them"),
    "flat": (lambda m, x: linear(x, m.flat.view(8, 8)), "flat (64), read by aten::linear; {0} has them"),
    "a table": (
        lambda m, x: m.layer(x) + nn.functional.embedding((x[:, 0] > 0).long(), m.ints).float(),
        "ints (8x8), read by aten::embedding; {0} has them",
    ),
    "a table of sums": (
        lambda m, x: m.layer(x) + nn.functional.embedding_bag((x > 0).long(), m.hidden),
        "hidden (8x8), read by aten::embedding_bag; {0} lacks them",
    ),
    "an index": (
        lambda m, x: m.layer(x) + m.ints[(x[:, 0] > 0).long()].float(),
        "ints (8x8), read by aten::index; {0} has them",
    ),
    "an index behind others": (
        lambda m, x: m.layer(x) + m.plain[:, (x[:, 0] > 0).long()].t(),
        "(8x8), read by aten::index; {0} lacks them",
    ),
    "selected rows": (
        lambda m, x: m.layer(x) + m.hidden.index_select(0, (x[:, 0] > 0).long()),
        "hidden (8x8), read by aten::index_select; {0} lacks them",
    ),
    "both": (lambda m, x: linear(linear(x, m.hidden), m.ints.float()), "{} lacks some of them"),
}
NOT_READ: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "parameters": lambda m, x: m.layer(x),
    "integers that are scaled": lambda m, x: linear(x, m.ints.float() * m.scale),
    "a scale that learns": lambda m, x: linear(x, m.ints.float() * m.layer.bias),
    "a mask": lambda m, x: m.layer(x) * m.hidden[:2],
    "a merged weight": lambda m, x: linear(x, m.layer.weight + m.hidden),
    "a cache": cached,
    "a row": lambda m, x: m.layer(x) + x * m.frequencies,
    "a diagonal": lambda m, x: linear(m.layer(x), torch.diag(m.frequencies[0])),
    "rows that are picked": lambda m, x: m.layer(x) + nn.functional.embedding(torch.arange(2), m.hidden),
    "fixed positions": lambda m, x: m.layer(x) + m.hidden[torch.arange(2)] + m.plain.index_select(0, torch.arange(2)),
    "steps of a schedule": lambda m, x: m.layer(x) + m.flat[(x[:, :1] > 0).long()],
    "rows of the input": lambda m, x: m.layer(x)[(x[:, 0] > 0).long()],
    "constants among themselves": lambda m, x: m.layer(x) + (m.hidden @ m.plain)[:2],
}


@pytest.mark.parametrize(("forward", "words"), READ.values(), ids=READ)
def test_weights_in_buffers_are_named(forward: Callable[..., torch.Tensor], words: str) -> None:
    note = measure(Holds(forward), "float32 2x8").notes[0]
    assert note.startswith("weights that are no parameters: ")
    assert note.endswith(words.format("params and weight_memory lack them, model_size"))


@pytest.mark.parametrize("forward", NOT_READ.values(), ids=NOT_READ)
def test_what_is_no_weight_is_not(forward: Callable[..., torch.Tensor]) -> None:
    notes = measure(Holds(forward), "float32 2x8").notes
    assert not [note for note in notes if note.startswith("weights that are no parameters")]


class Positions(nn.Module):
    """A linear layer, (width + 1) · 8 parameters of 4 B, and a table of positions of 16 · 8 that no buffer holds."""

    def __init__(self, width: int = 8, *, keep: Callable[[torch.Tensor], Any] = lambda table: table) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 8)
        self.kept = keep(torch.randn(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = self.kept["table"] if isinstance(self.kept, dict) else self.kept
        return self.layer(x) + table


LACKING = f"constants that no parameter or buffer holds: {16 * 8 * 4} B, read by aten::add; model_size lacks them"


@pytest.mark.parametrize("keep", [lambda table: table, lambda table: {"table": table}], ids=["attribute", "dict"])
def test_constants_that_nothing_registers_are_told(keep: Callable[[torch.Tensor], Any]) -> None:
    numbers = measure(Positions(keep=keep), "float32 2x16x8")
    assert numbers.notes == (LACKING,)
    assert numbers.model_size.value == 4 * (8 * 8 + 8)


@pytest.mark.parametrize(("width", "notes"), [(1599, (LACKING,)), (1600, ())])
def test_constants_of_less_than_a_hundredth_are_not(width: int, notes: tuple[str, ...]) -> None:
    """512 B beside 8 · 1600 · 4 = 51,200 B, and beside 32 B more."""
    assert measure(Positions(width), f"float32 2x16x{width}").notes == notes


class Scaled(nn.Module):
    """A table that stands in the code itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor([1.0, 2.0, 3.0, 4.0])


def test_what_works_with_a_constant_is_told_and_not_what_hands_it_on() -> None:
    """torch lifts a literal and detaches it, before a product reads its 16 B."""
    (note,) = measure(nn.Sequential(Scaled()), "float32 2x4").notes
    assert note == "constants that no parameter or buffer holds: 16 B, read by aten::mul in '0'; model_size lacks them"


def test_a_file_that_keeps_the_constants_has_them(tmp_path: Path) -> None:
    """A script stores every tensor that its code reads, registered or not, as does an exported program."""
    net, x, script, program = Positions().eval(), torch.zeros(2, 16, 8), tmp_path / "n.pt", tmp_path / "n.pt2"
    torch.jit.trace(net, x).save(str(script))
    torch.export.save(torch.export.export(net, (x,)), program)
    for path, inputs in ((script, "float32 2x16x8"), (program, None)):
        numbers = measure(str(path), inputs)
        assert (numbers.notes, numbers.model_size.value) == ((), 4 * (8 * 8 + 8 + 16 * 8))


class Heads(nn.Module):
    """A layer of 8 · 8 + 8 parameters, and a head of 8 · k + k that runs in training alone."""

    def __init__(self, k: int = 4) -> None:
        super().__init__()
        self.layer, self.auxiliary = nn.Linear(8, 8), nn.Linear(8, k)

    def forward(self, x: torch.Tensor) -> Any:
        return (self.layer(x), self.auxiliary(x)) if self.training else self.layer(x)


UNREAD = (
    "parameters that no counted operation reads: auxiliary.weight (4x8), auxiliary.bias (4); "
    "params and weight_memory have them, 144 B"
)


def test_parameters_that_nothing_reads_are_named(tmp_path: Path) -> None:
    """4 · (8 · 4 + 4) B in a module, in a script and in an exported program; a trace keeps none of them."""
    net, x = Heads().eval(), torch.zeros(2, 8)
    script, trace, program = tmp_path / "script.pt", tmp_path / "trace.pt", tmp_path / "n.pt2"
    torch.jit.script(net).save(str(script))
    torch.jit.trace(net, x).save(str(trace))
    torch.export.save(torch.export.export(net, (x,)), program)
    for source, inputs in ((net, "float32 2x8"), (str(script), "float32 2x8"), (str(program), None)):
        numbers = measure(source, inputs)
        assert (numbers.notes, numbers.params.value) == ((UNREAD,), 8 * 8 + 8 + 8 * 4 + 4)
    kept = measure(str(trace), "float32 2x8")
    assert (kept.notes != ()) == (kept.params.value > 8 * 8 + 8)


def test_a_sparse_parameter_is_not_called_unread() -> None:
    """Which tensor an operator on sparse ones reads is not known."""

    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.eye(8).to_sparse())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(self.w, x.t())

    assert measure(Sparse(), "float32 2x8").notes == ()


def test_a_number_that_nothing_reads_is_named_as_one() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.log_scale = nn.Parameter(torch.tensor(1.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    (note,) = measure(Scaled(), "float32 2x8").notes
    assert "reads: log_scale (scalar); " in note


def test_weights_of_a_loop_of_unknown_length_are_not_called_unread(tmp_path: Path) -> None:
    """Its body, which multiplies by them, is not written out."""
    floats, number, flag = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("MatMul", ["h", "w"], ["next"]), helper.make_node("Identity", ["on"], ["goes_on"])],
        "body",
        [value("step", number, []), value("on", flag, []), value("h", floats, [2, 8])],
        [value("goes_on", flag, []), value("next", floats, [2, 8])],
    )
    loop = helper.make_node("Loop", ["times", "", "x"], ["y"], body=body)
    weight = numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    ends = ([value("x", floats, [2, 8]), value("times", number, [])], [value("y", floats, [2, 8])])
    path = tmp_path / "loop.onnx"
    onnx.save(
        helper.make_model(helper.make_graph([loop], "g", *ends, [weight]), opset_imports=[helper.make_opsetid("", 20)]),
        path,
    )
    numbers = measure(str(path))
    assert (numbers.params.value, numbers.macs.complete, numbers.notes) == (64, False, ())


def test_parameters_that_are_read_or_given_out_are_not() -> None:
    class Gives(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read, self.given = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))
            self.tied = self.read

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + self.read[:4].sum(), self.given

    assert measure(Gives(), "float32 2x8").notes == ()


@pytest.mark.parametrize(("k", "notes"), [(1, 1), (0, 0)], ids=["a hundredth", "less"])
def test_a_share_of_less_than_a_hundredth_is_no_note(k: int, notes: int) -> None:
    """9 of 900 elements, and 9 of 909."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Linear(8, 99 + 1 - k, bias=True), nn.Linear(8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    assert len(measure(Wide(), "float32 2x8").notes) == notes


def test_a_model_without_a_pass_has_no_such_note() -> None:
    """Nothing is known of what reads them."""
    assert not [note for note in measure(Heads()).notes if "reads" in note]


def test_literals_and_buffers_are_no_such_constants() -> None:
    """A number, and a buffer that is not saved: its owner said so."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.layer(x) * torch.tensor(0.5) + m.hidden[:2]

    assert measure(Holds(forward), "float32 2x8").notes == ()


def test_an_onnx_weight_behind_arithmetic_is_named(tmp_path: Path) -> None:
    """Integers that are cast and scaled by nodes of their own."""
    nodes = [
        helper.make_node("Cast", ["ints"], ["floats"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["floats", "scale"], ["weight"]),
        helper.make_node("MatMul", ["x", "weight"], ["y"]),
    ]
    held = [
        numpy_helper.from_array(np.ones((8, 8), np.int8), "ints"),
        numpy_helper.from_array(np.ones((), np.float32), "scale"),
    ]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 8]) for name in "xy"]
    made = helper.make_model(
        helper.make_graph(nodes, "g", ends[:1], ends[1:], held), opset_imports=[helper.make_opsetid("", 20)]
    )
    path = tmp_path / "ints.onnx"
    onnx.save(made, path)
    (note,) = measure(str(path)).notes
    assert "ints (8x8), read by onnx::MatMul in 'y'; params and weight_memory lack them, model_size has them" in note
