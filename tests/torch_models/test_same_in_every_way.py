"""What an operator writes, where, and in which memory: one number on meta, on fake tensors and in a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_modelbudget import measure
from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.formats.source import TensorSpec
from tests.builders.micro_modules import Apply, weight
from tests.builders.torch_ways import WAYS, rows

pytestmark = pytest.mark.needs_torch

X = TensorSpec("float32", (4, 8))  # 128 B
Z = TensorSpec("complex64", (4, 4))  # 128 B
Pass = Callable[..., Any]


def into(write: Pass) -> Pass:
    """A pass that writes into a tensor of no elements, which then has the result's memory."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(0, device=x.device)
        write(x, out)
        return out

    return forward


def grown(x: torch.Tensor) -> torch.Tensor:
    """A copy in twice its memory, of which the first half is the copy."""
    return x.clone().resize_(8, 8)


def bound(x: torch.Tensor) -> torch.Tensor:
    """Another tensor's memory under the name of an empty one."""
    return torch.empty(0, device=x.device).set_(x + 1)


# a pass over x, its peak, and the bytes that its operators write
RESIZED: dict[str, tuple[Pass, int, int]] = {
    "add": (into(lambda x, out: torch.add(x, x, out=out)), 128 + 128, 128),
    "cat": (into(lambda x, out: torch.cat([x, x], out=out)), 128 + 256, 256),
    "matmul": (into(lambda x, out: torch.matmul(x, x.t(), out=out)), 128 + 64, 64),
    "exp": (into(lambda x, out: torch.exp(x, out=out)), 128 + 128, 128),
    "resize_": (into(lambda x, out: out.resize_(4, 8)), 128, 0),
    "resize_ and copy_": (into(lambda x, out: out.resize_(4, 8).copy_(x)), 128 + 128, 128),
    "resize_as_": (into(lambda x, out: out.resize_as_(x).copy_(x)), 128 + 128, 128),
    "grown": (grown, 128 + 256, 128 + 128),
    "shrunk": (lambda x: x.clone().resize_(2, 8), 128 + 128, 128),
    "set_": (bound, 128 + 128, 128),
}


@pytest.mark.parametrize(("forward", "peak", "written"), RESIZED.values(), ids=list(RESIZED))
def test_memory_that_an_operator_resizes_has_its_new_size(forward: Pass, peak: int, written: int) -> None:
    """x has 128 B; a resized tensor takes what its result does, also where it had none before."""
    for way in WAYS:
        row = rows(Apply(forward), X, way=way)
        assert (row["peak_activation"], row["total_activation"]) == (peak, written), way


def test_a_view_of_memory_that_grows_is_known_again() -> None:
    """y (128 B) grows to 256 B beside x; 64 B of it are then read through a view made before, and 64 B written."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        half = y[:2]
        y.resize_(8, 8)
        return half + 1

    for way in WAYS:
        assert rows(Apply(forward), X, way=way)["peak_activation"] == 128 + 256, way


# 4 x 4 by 4 x 4: two inputs and a result of 128 B each
CONJUGATED: dict[str, Pass] = {
    "a.conj() @ b": lambda a, b: a.conj() @ b,
    "a @ b.conj()": lambda a, b: a @ b.conj(),
    "a.mH @ b": lambda a, b: a.mH @ b,
    "mm": lambda a, b: torch.mm(a.conj(), b),
    "linear": lambda a, b: F.linear(a.conj(), b),
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a.conj(), b),
    "tensordot": lambda a, b: torch.tensordot(a.conj(), b, 1),
    "inner": lambda a, b: torch.inner(a.conj(), b),
}


@pytest.mark.parametrize("forward", CONJUGATED.values(), ids=list(CONJUGATED))
def test_products_take_a_conjugated_operand_as_it_is(forward: Pass) -> None:
    """A conjugate is a view: two operands are read and one result is written, 4·4·4 MACs."""
    for way in WAYS:
        row = rows(Apply(forward), Z, Z, way=way)
        assert (row["macs"], row["bandwidth"], row["peak_activation"]) == (64, 3 * 128, 3 * 128), way


def test_other_kernels_are_given_a_copy_of_a_conjugate() -> None:
    """As torch does it for a sum: read and written 128 B, then two operands and a result."""
    for way in WAYS:
        assert rows(Apply(lambda a, b: a.conj() + b), Z, Z, way=way)["bandwidth"] == (2 + 3) * 128, way


def test_products_of_conjugates_are_copied_again_after_a_measurement() -> None:
    """What a trace changes in torch it takes back: in inference mode torch copies before a product."""

    def operators() -> list[str]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen, torch.inference_mode():
            torch.ones(2, 2, dtype=torch.complex64).conj() @ torch.ones(2, 2, dtype=torch.complex64)
        return [event.name for event in seen.events() or ()]

    before = operators()
    rows(Apply(lambda a, b: a.conj() @ b), Z, Z, way="meta")
    assert operators() == before


class Norm(nn.Module):
    """A batch norm by its operator, which gives statistics, too."""

    def __init__(self, operator: str, *settings: Any) -> None:
        super().__init__()
        self.weight, self.bias = weight(4), weight(4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("variance", torch.ones(4))
        self.operator, self.settings = getattr(torch.ops.aten, operator), settings

    def forward(self, x: torch.Tensor) -> Any:
        """x (n, 4, h, w) → the same, mean and 1 / deviation."""
        return self.operator(x, self.weight, self.bias, self.mean, self.variance, *self.settings, 0.1, 1e-5)[:3]


# 2·4·6·6 elements of 4 B; saved statistics are two of 4 elements, where they are the batch's own
@pytest.mark.parametrize(
    ("operator", "settings", "saved"),
    [
        ("native_batch_norm", (False,), 0),
        ("native_batch_norm", (True,), 2 * 4 * 4),
        ("_native_batch_norm_legit", (False,), 0),
        ("_native_batch_norm_legit_no_training", (), 0),
        ("_batch_norm_no_update", (), 0),
    ],
)
def test_statistics_are_saved_where_a_norm_works_them_out(operator: str, settings: tuple[Any, ...], saved: int) -> None:
    """Fixed ones are stored with the model, and given to nobody again."""
    for way in WAYS:
        row = rows(Norm(operator, *settings), TensorSpec("float32", (2, 4, 6, 6)), way=way)
        assert row["total_activation"] == 2 * 4 * 6 * 6 * 4 + saved, way


def by_sum(x: torch.Tensor) -> torch.Tensor:
    """A branch on what was written into zeros: of drawn inputs the sum of squares is no zero."""
    y = torch.zeros(4, 8)
    y.add_(x * x)
    return x @ x.t() if y.sum() > 0 else x


def by_list(x: torch.Tensor) -> torch.Tensor:
    """The same with integers through a view, and by a list: no square is negative."""
    y = torch.zeros(2, 8, dtype=torch.int64)
    y[0] = x[0] * x[0] >= 0
    return x @ x.t() if sum(y.tolist()[0]) > 0 else x


def by_shape(x: torch.Tensor) -> torch.Tensor:
    """A product of what an operator gave its shape."""
    y = torch.empty(0)
    torch.mul(x, 2.0, out=y)
    return y @ y.t()


@pytest.mark.parametrize(
    ("forward", "way"), [(by_sum, "real"), (by_list, "real"), (by_shape, "fake")], ids=["sum", "list", "shape"]
)
def test_values_that_were_written_over_are_not_read(forward: Pass, way: str) -> None:
    """Zeros have values on meta, until a tensor without any is written into them: 4·4·8 MACs."""
    with pytest.raises(TraceError):
        rows(Apply(forward), X, way="meta")
    measured = measure(Apply(forward), "float32 4x8")
    assert (measured["macs"].value, measured["macs"].complete, measured.traced) == (4 * 4 * 8, True, way)


def test_zeros_that_are_filled_need_no_run() -> None:
    """Masks are made so: what is computed of them has no values, either."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(4, 8)
        y[0] = x[0]
        return y @ y.t()

    assert measure(Apply(forward), "float32 4x8").traced == "meta"
    assert {way: rows(Apply(forward), X, way=way)["macs"] for way in WAYS} == dict.fromkeys(WAYS, 4 * 4 * 8)


class Literals(nn.Module):
    """A linear layer 8 → 8 whose results are scaled, shifted and picked by literals."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x) * torch.tensor(2.0) + torch.tensor([1.0] * 8)
        return y[torch.tensor([0, 1])] + torch.tensor(3.0)


@pytest.mark.parametrize("decomposed", [False, True])
def test_literals_of_an_exported_program_are_those_of_its_model(decomposed: bool) -> None:
    """Written are three results of 4x8 and two of 2x8: no copy of a literal is one."""
    program = torch.export.export(Literals().eval(), (torch.ones(4, 8),))
    of_module, of_program = (measure(each, "float32 4x8") for each in (Literals(), program))
    of_program = measure(program.run_decompositions()) if decomposed else of_program
    other = {"model_size"}  # the program's file stores two literals of rank 1, besides
    other |= {"ops"} if decomposed else set()  # a linear layer is two, and each literal one less
    assert of_module["total_activation"].value == 3 * 128 + 2 * 64
    numbers = [{key: each.value for key, each in of.items() if key not in other} for of in (of_module, of_program)]
    assert numbers[0] == numbers[1]


def test_a_number_that_indexing_makes_a_tensor_is_a_constant() -> None:
    """x + 1 writes 128 B, and 0.0 goes into 2 of its rows, 64 B: by which operator hangs on the device."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        y[torch.tensor([0, 1])] = 0.0
        return y

    assert {way: rows(Apply(forward), X, way=way)["total_activation"] for way in WAYS} == dict.fromkeys(WAYS, 128 + 64)


def test_a_view_of_a_constant_is_one() -> None:
    """A table 16x8 that is no buffer, of which a part is written, transposed: 128 B of x and 4·16 products of 4 B."""
    table = torch.zeros(16, 8)

    def forward(x: torch.Tensor) -> torch.Tensor:
        table[:4] = x
        return x @ table.t()

    for way in WAYS:
        assert rows(Apply(forward), X, way=way)["total_activation"] == 128 + 4 * 16 * 4, way


# what a pass makes on the device of its input, or moves there
MADE_THERE: dict[str, Pass] = {
    "zeros": lambda x: x + torch.zeros(8, device=x.device),
    "arange": lambda x: x + torch.arange(8, device=x.device),
    "a name": lambda x: x + torch.ones(8, device=str(x.device)),
    "full_like": lambda x: x + torch.full_like(x, 2.0, device=x.device),
    "new_empty": lambda x: x + x.new_empty(8, device=x.device).fill_(1),
    "tensor": lambda x: x + torch.tensor([1.0] * 8, device=x.device),
    "as_tensor": lambda x: x + torch.as_tensor(np.ones(8, np.float32), device=x.device),
    "asarray": lambda x: x + torch.asarray(np.ones(8, np.float32), device=x.device),
    "new_tensor": lambda x: x + x.new_tensor([1.0] * 8, device=x.device),
    "drawn": lambda x: x + torch.randn(8, device=x.device, generator=torch.Generator(x.device)),
    "moved": lambda x: x.to(x.device) + torch.from_numpy(np.ones(8, np.float32)).to(x.device),
    "cast and moved": lambda x: x.to(x.device, torch.float64).cpu().to(device="cpu", dtype=torch.float32) + 1,
    "out": lambda x: torch.add(x, 1, out=torch.empty(4, 8, device=x.device)),
    "a mask": lambda x: x.masked_fill(torch.ones(4, 8, dtype=torch.bool, device=x.device).tril(), 0),
    "a picked row": lambda x: x[torch.arange(2, device=x.device)] + 1,
    "a default": lambda x: made_by_default(x),
}


def made_by_default(x: torch.Tensor) -> torch.Tensor:
    with x.device:
        return x + torch.zeros(8) * torch.ones(8)


@pytest.mark.parametrize("forward", MADE_THERE.values(), ids=list(MADE_THERE))
def test_what_is_made_on_the_device_of_a_tensor_costs_the_same(forward: Pass) -> None:
    """Without memory too, where that device is another one."""
    meta, fake, real = (rows(Apply(forward), X, way=way) for way in WAYS)
    assert meta == real
    assert fake == real


# Operators made of others that give a view of x + 1
VIEWS: dict[str, Pass] = {
    "einsum": lambda x: torch.einsum("ab->ba", x + 1),
    "reshape": lambda x: (x + 1).reshape(8, 4),
    "matrix": lambda x: (x + 1).adjoint(),
}


@pytest.mark.parametrize("forward", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("way", WAYS)
def test_a_view_is_one_however_often_it_was_made_before(forward: Pass, way: str) -> None:
    """The sum is written, 128 B, in each of three measurements: fake tensors had new memory from the second on."""
    totals = [rows(Apply(forward), X, way=way)["total_activation"] for _ in range(3)]
    assert totals == [128] * 3
