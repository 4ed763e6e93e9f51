"""An operator on meta tensors is run once for operands that look alike, and gives what its kernel gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_modelbudget import measure
from pytest_modelbudget.formats.source import TensorSpec
from pytest_modelbudget.torch_models.environment import default_dtype
from pytest_modelbudget.torch_models.repeats import Repeats
from pytest_modelbudget.torch_models.values import TorchValues, tensors_in
from tests.builders.torch_ways import WAYS, rows

pytestmark = pytest.mark.needs_torch

ATEN = torch.ops.aten
KEPT: list[Any] = []  # TorchScript knows operators by their addresses, for ever: none may be freed
META = torch.device("meta")


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A dense tensor without memory."""
    return torch.empty(shape, dtype=dtype, device=META)


def run(repeats: Repeats, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an operator that is run where it was not before, as the recorder does."""
    key = repeats.key(id(func), args, kwargs)
    if (repeat := repeats.known.get(key)) is not None:
        return repeat.run()
    result = func(*args, **kwargs)
    if key is not None:
        repeats.note(key, result, tensors_in((args, tuple(kwargs.values()))), {})
    return result


X = meta(2, 4, 6)

# operator, its arguments, and arguments that differ in one thing from which the result differs
LIKE_AND_UNLIKE = [
    (ATEN.mul.Tensor, (X, X), (X, meta(4, 6, dtype=torch.float64))),
    (ATEN.mul.Tensor, (X, X), (X.transpose(1, 2), X.transpose(1, 2))),
    (ATEN.mul.Tensor, (X, X), (X, meta(3, 1, 1, 1))),
    (ATEN.mul.Scalar, (meta(3, dtype=torch.int64), 1), (meta(3, dtype=torch.int64), 1.0)),
    (ATEN.add.Scalar, (meta(3, dtype=torch.bool), True), (meta(3, dtype=torch.bool), 1)),
    (ATEN.sum.dim_IntList, (X, [1]), (X, [1], True)),
    (ATEN.sum.dim_IntList, (X, [1]), (X, [-1])),
    (ATEN.cat.default, ([X, X], 1), ([X, X, X], 1)),
    (ATEN.index.Tensor, (X, [None, meta(5, dtype=torch.int64)]), (X, [meta(5, dtype=torch.int64), None])),
    (ATEN.linalg_vector_norm.default, (X, 2.0, [-1], True), (X, 2.0, [-1], False)),
    (ATEN.reshape.default, (X.transpose(1, 2), [2, 24]), (X.transpose(1, 2), [48])),
    (ATEN.roll.default, (X, [1], [1]), (X.long(), [1], [1])),
    (ATEN.slice_scatter.default, (X, X[:1], 0, 0, 1), (meta(9, 4, 6)[7:], X[:1], 0, 0, 1)),
    (ATEN.select_scatter.default, (X, X[0], 0, 1), (meta(3, 4, 6)[:2], X[0], 0, 1)),
    (ATEN.diagonal_scatter.default, (meta(3, 3), meta(3)), (meta(10).as_strided((3, 3), (3, 1), 1), meta(3))),
]


@pytest.mark.parametrize(("batch_first", "batch"), [(True, 5), (False, 3)])
def test_several_results_are_repeated_too(batch_first: bool, batch: int) -> None:
    """An LSTM of 8 features in both directions: outputs of 2 x 4, and hidden states and cells of each direction."""
    func, repeats = ATEN.lstm.input, Repeats(TorchValues())
    states = [meta(2, batch, 4), meta(2, batch, 4)]
    weights = [meta(16, 8), meta(16, 4), meta(16), meta(16)] * 2
    called, calls = counted(func)
    args = (meta(5, 3, 8), states, weights, True, 1, 0.0, False, True, batch_first)
    once, again = (run(repeats, called, args, {}) for _ in range(2))
    assert len(calls) == 1
    assert type(again) is tuple
    assert [look(result) for result in again] == [look(result) for result in once]
    assert [tuple(result.shape) for result in again] == [(5, 3, 8), (2, batch, 4), (2, batch, 4)]
    assert len({result.untyped_storage()._cdata for result in (*once, *again)}) == 6


def counted(func: Callable[..., Any]) -> tuple[Callable[..., Any], list[int]]:
    """A function, and how often it was called."""
    calls: list[int] = []

    def called(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return func(*args, **kwargs)

    return called, calls


def look(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Shape, strides, type, and bytes of memory."""
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.untyped_storage().nbytes()


@pytest.mark.parametrize(("func", "first", "other"), LIKE_AND_UNLIKE)
def test_a_repeat_looks_as_the_kernel_makes_it(func: Any, first: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    """Twice these and once those: two kernels run, and each result is the one of a fresh call, on memory of its own."""
    repeats, (called, calls) = Repeats(TorchValues()), counted(func)
    results = [run(repeats, called, args, {}) for args in (first, first, other)]
    assert len(calls) == 2
    assert [look(result) for result in results] == [look(func(*args)) for args in (first, first, other)]
    assert len({result.untyped_storage()._cdata for result in results}) == 3


@pytest.mark.parametrize(
    ("func", "args"),
    [
        pytest.param(ATEN.reshape.default, (X, [2, 24]), id="a view of its operand"),
        pytest.param(ATEN.contiguous.default, (X,), id="its operand itself"),
        pytest.param(ATEN.dropout.default, (X, 0.5, False), id="its operand under another operator"),
        pytest.param(ATEN.split.Tensor, (X, 1, 0), id="several results"),
        pytest.param(ATEN.narrow_copy.default, (torch.view_as_complex(meta(3, 2)), 0, 0, 1), id="complex numbers"),
        pytest.param(ATEN.mul.Tensor, (torch.ones(2), torch.ones(2)), id="tensors with values"),
        pytest.param(
            torch.zeros_like,
            (torch.sparse_coo_tensor(size=(3, 3), device="meta", check_invariants=False),),
            id="a sparse tensor",
        ),
    ],
)
def test_what_looks_do_not_tell_is_run_each_time(func: Any, args: tuple[Any, ...]) -> None:
    """Views, lists of results, and operands that hide values, parts or signs."""
    repeats, (called, calls) = Repeats(TorchValues()), counted(func)
    for _ in range(3):
        run(repeats, called, args, {})
    assert len(calls) == 3


class Writing(torch.nn.Module):
    """Writes two rows into a copy of x, and into one of four rows of a larger tensor."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first

    def forward(self, x: torch.Tensor, larger: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = larger[self.first : self.first + 4]
        return tuple(torch.slice_scatter(into, x[:2], 0, 0, 2) for into in (x, rows))


@pytest.mark.parametrize("first", [0, 40, 96])
@pytest.mark.parametrize("way", WAYS)
def test_the_memory_around_a_view_is_part_of_the_look(way: str, first: int) -> None:
    """slice_scatter copies all of it: beside x, of 4 x 6 floats, and larger, of 100 x 6, are one of each at the end."""
    x, larger = 4 * 6 * 4, 100 * 6 * 4
    row = rows(Writing(first), TensorSpec("float32", (4, 6)), TensorSpec("float32", (100, 6)), way=way)
    assert row["peak_activation"] == 2 * x + 2 * larger


class Padding(torch.nn.Module):
    """Adds nested tensors that hang on no input, and pads the sum."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ragged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
        return torch.nested.to_padded_tensor(ragged + ragged, 0.0) @ x


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_without_shapes_take_no_run() -> None:
    """Two rows of 4 x 3, by 3 x 5: 2 x 4 x 3 x 5 MACs, without a kernel's run on a drawn x."""
    measured = measure(Padding(), "float32 3x5")
    assert measured["macs"].value == 2 * 4 * 3 * 5
    assert not any("in a run" in note for note in measured.notes)


def test_the_default_type_is_part_of_the_look() -> None:
    """An integer tensor divided is of the default type, which a forward pass may change between two calls."""
    repeats, args = Repeats(TorchValues()), (meta(3, dtype=torch.int64), 2)
    assert run(repeats, ATEN.div.Tensor, args, {}).dtype == torch.float32
    with default_dtype(torch.float64):
        assert run(repeats, ATEN.div.Tensor, args, {}).dtype == torch.float64


def test_named_arguments_count() -> None:
    """dtype= is one of them."""
    repeats = Repeats(TorchValues())
    types = [run(repeats, ATEN.sum.dim_IntList, (X, [1]), {"dtype": d}).dtype for d in (None, torch.float64, None)]
    assert types == [torch.float32, torch.float64, torch.float32]


def test_somebodys_own_operator_is_asked_each_time() -> None:
    """Its function for tensors without memory may remember: this one gives 1, then 2, then 3 elements of 4 bytes."""
    calls: list[int] = []
    with torch.library._scoped_library("repeats_test", "DEF") as library:
        library.define("grow(Tensor x) -> Tensor")

        @torch.library.register_fake("repeats_test::grow", lib=library)
        def grow(x: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return x.new_empty(len(calls))

        class Growing(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                KEPT.append(torch.ops.repeats_test.grow)
                parts = [torch.ops.repeats_test.grow(x) for _ in range(3)]
                return torch.cat(parts)

        measured = measure(Growing(), "float32 2")
    assert measured["total_activation"].value == 4 * (1 + 2 + 3) + 4 * 6
