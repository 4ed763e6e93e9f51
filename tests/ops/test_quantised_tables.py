"""Tables that torch packs: rows of them are dequantised, and moved in the bits that they are stored in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.ao.nn.quantized as nnq
import torch.ao.nn.quantized.dynamic as nnqd
from torch import nn

from pytest_modelbudget import measure
from pytest_modelbudget.formats.source import TensorSpec

pytestmark = [
    pytest.mark.needs_torch,
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:.torch.jit"),
]
ROWS = TensorSpec("int64", (15,), low=0, high=40)
READ = 15 * 8  # elements of 15 rows of 8
OTHER = 15 * 8 + 3 * 8  # bytes of the indices, and of where bags start


def table(dtype: torch.dtype) -> torch.Tensor:
    """40 rows of 8, each with a scale and a zero point."""
    return torch.quantize_per_channel(torch.rand(40, 8), torch.rand(40), torch.zeros(40), 0, dtype)


class Bags(nn.Module):
    """Three bags of five rows, whose starts are an input."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.rows = nnq.EmbeddingBag(40, 8, _weight=table(dtype), dtype=dtype, mode="sum")

    def forward(self, at: torch.Tensor, starts: torch.Tensor, *weights: torch.Tensor) -> Any:
        return self.rows(at, starts, *weights)


STARTS = TensorSpec("int64", (3,), low=0, high=14)


@pytest.mark.parametrize(("dtype", "bits"), [(torch.quint8, 8), (torch.quint4x2, 4)])
def test_rows_of_a_packed_table_are_dequantised(dtype: torch.dtype, bits: int) -> None:
    """nnq.Embedding: a product for each element of the rows, which are read and not the table."""
    found = measure(nnq.Embedding(40, 8, _weight=table(dtype), dtype=dtype), ROWS)
    assert (found["params"].value, found["macs"].value, found["flops"].value) == (40 * 8, 0, READ)
    assert found["bandwidth"].value == READ * bits // 8 + 15 * 8 + 4 * READ
    assert all(found[key].complete for key in ("params", "macs", "flops", "bandwidth"))


@pytest.mark.parametrize(("dtype", "bits"), [(torch.quint8, 8), (torch.quint4x2, 4)])
def test_bags_of_a_packed_table_are_dequantised_and_added(dtype: torch.dtype, bits: int) -> None:
    """nnq.EmbeddingBag: a product and a sum for each element; with a weight for each row, the sum is a MAC."""
    plain = measure(Bags(dtype), [ROWS, STARTS])
    assert (plain["macs"].value, plain["flops"].value) == (0, READ + READ)
    assert plain["bandwidth"].value == READ * bits // 8 + OTHER + 4 * 3 * 8
    weighted = measure(Bags(dtype), [ROWS, STARTS, "float32 15"])
    assert (weighted["macs"].value, weighted["flops"].value) == (READ, READ + 2 * READ)
    assert weighted["macs"].parts == {f"uint{bits}×float32": READ}
    assert weighted["bandwidth"].value == plain["bandwidth"].value + 4 * 15


def frozen(model: nn.Module) -> Any:
    return torch.jit.freeze(torch.jit.script(model))


def read_again(model: nn.Module, folder: Path) -> Path:
    """A file of the frozen script, in which constants have no names."""
    frozen(model).save(folder / "frozen.pt")
    return folder / "frozen.pt"


FORMS: dict[str, Callable[[nn.Module, Path], Any]] = {
    "module": lambda model, folder: model,
    "script": lambda model, folder: torch.jit.script(model),
    "frozen": lambda model, folder: frozen(model),
    "file": read_again,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_packed_table_is_the_same_in_scripts(form: str, tmp_path: Path) -> None:
    """A byte for each element, and a scale and a zero point of four bytes for each row."""
    model = nnq.Embedding(40, 8, _weight=table(torch.quint8), dtype=torch.quint8).eval()
    found = measure(FORMS[form](model, tmp_path), ROWS)
    assert (found["params"].value, found["weight_memory"].value) == (40 * 8, 40 * 8 + 40 * (4 + 4))
    assert found["bandwidth"].value == READ + 15 * 8 + 4 * READ


@pytest.mark.parametrize("form", FORMS)
def test_packed_layers_are_the_same_in_scripts(form: str, tmp_path: Path) -> None:
    """Two layers, 8 to 4 to 2, of int8 with one scale of eight bytes and one zero point of eight; biases in float32."""
    model = nn.Sequential(nnqd.Linear(8, 4), nn.ReLU(), nnqd.Linear(4, 2)).eval()
    found = measure(FORMS[form](model, tmp_path), "float32 3x8")
    assert (found["params"].value, found["macs"].value) == (8 * 4 + 4 + 4 * 2 + 2, 3 * (8 * 4 + 4 * 2))
    assert found["weight_memory"].value == 8 * 4 + 4 * 2 + 2 * (8 + 8) + 4 * (4 + 2)


class Own(nn.Module):
    """A packed layer of 8 to 4 under a name of its own, which is run or only kept."""

    def __init__(self, *, runs: bool) -> None:
        super().__init__()
        self.runs = runs
        self.mine = nnqd.Linear(8, 4)._packed_params._packed_params

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.quantized.linear_dynamic(x, self.mine) if self.runs else x + 1


@pytest.mark.parametrize("runs", [True, False], ids=["run", "kept"])
@pytest.mark.parametrize("form", ["module", "script"])
def test_packed_weights_are_counted_under_any_name(form: str, runs: bool, tmp_path: Path) -> None:
    """4 * 8 + 4 parameters, and as many MACs for each of three rows as it has weights, where it is run."""
    found = measure(FORMS[form](Own(runs=runs).eval(), tmp_path), "float32 3x8")
    assert (found["params"].value, found["macs"].value) == (4 * 8 + 4, 3 * 4 * 8 * runs)
    assert found["weight_memory"].value == 4 * 8 + (8 + 8) + 4 * 4
