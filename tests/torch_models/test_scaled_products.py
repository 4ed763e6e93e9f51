"""Products of scaled operands, whose elements are bytes with one or two values: by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_modelbudget import measure
from tests.builders.marks import since_torch

pytestmark = pytest.mark.needs_torch
ATEN = torch.ops.aten
FP4 = torch.float4_e2m1fn_x2
OUT = torch.bfloat16


def eight(*shape: int) -> torch.Tensor:
    return torch.zeros(shape).to(torch.float8_e4m3fn)


def four(*shape: int) -> torch.Tensor:
    """Two values in each element."""
    return torch.zeros(shape, dtype=torch.uint8).view(FP4)


class Product(nn.Module):
    """16 x 32 elements by 32 x 16, of weights that lie turned."""

    def __init__(self, weight: torch.Tensor, multiply: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight, self.multiply = nn.Parameter(weight, requires_grad=False), multiply

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.multiply(self.weight)


def scaled(w: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(eight(16, 32), w.t(), torch.ones(()), torch.ones(()), out_dtype=OUT)


def scaled_v2(w: torch.Tensor) -> Any:
    return ATEN._scaled_mm_v2(eight(16, 32), w.t(), [torch.ones(())], [0], [0], [torch.ones(())], [0], [0], None, OUT)


def with_bias(w: torch.Tensor) -> torch.Tensor:
    bias = torch.ones(16, dtype=OUT)
    return torch._scaled_mm(eight(16, 32), w.t(), torch.ones(()), torch.ones(()), bias, out_dtype=OUT)


def two_values(w: torch.Tensor) -> torch.Tensor:
    scales = eight(512)
    return torch._scaled_mm(four(16, 32), w.t(), scales, scales, out_dtype=OUT)


def in_groups(w: torch.Tensor) -> torch.Tensor:
    ends = torch.tensor([16, 32], dtype=torch.int32)
    return torch._scaled_grouped_mm(
        eight(32, 16), w.transpose(1, 2), torch.ones(32), torch.ones(2, 16), ends, out_dtype=OUT
    )


def in_groups_v2(w: torch.Tensor) -> Any:
    ends = torch.tensor([16, 32], dtype=torch.int32)
    scales = [torch.ones(32)], [1], [0], [torch.ones(2, 16)], [1], [0]
    return ATEN._scaled_grouped_mm_v2(eight(32, 16), w.transpose(1, 2), *scales, ends, None, OUT)


def added(w: torch.Tensor) -> Any:
    scales = [torch.ones(())], [0], [0], [torch.ones(())], [0], [0]
    return ATEN._scaled_addmm(torch.zeros(16, 16, dtype=OUT), eight(16, 32), w.t(), *scales)


ONE = 16 * 32 * 16
PRODUCTS: dict[str, tuple[torch.Tensor, Callable[[torch.Tensor], Any], int, int, int]] = {
    # what is stored, the product, its MACs, what else has FLOPs, and the bits of each value
    "scaled": (eight(16, 32), scaled, ONE, 0, 8),
    "scaled, second form": (eight(16, 32), scaled_v2, ONE, 0, 8),
    "with a bias": (eight(16, 32), with_bias, ONE, 16 * 16, 8),
    "two values in an element": (four(16, 32), two_values, 2 * ONE, 0, 4),
    "in groups of rows": (eight(2, 16, 16), in_groups, 32 * 16 * 16, 0, 8),
    "in groups, second form": (eight(2, 16, 16), in_groups_v2, 32 * 16 * 16, 0, 8),
    "added to a matrix": (eight(16, 32), added, ONE, 16 * 16, 8),
}


LATER = {"added to a matrix": since_torch("2.15", "_scaled_addmm is not there")}
CASES = [pytest.param(*case, id=name, marks=LATER.get(name, ())) for name, case in PRODUCTS.items()]


@pytest.mark.parametrize(("weight", "multiply", "macs", "others", "bits"), CASES)
def test_scaled_products(
    weight: torch.Tensor, multiply: Callable[[torch.Tensor], Any], macs: int, others: int, bits: int
) -> None:
    """Each output meets each value along k; a MAC is two FLOPs, and the bits of both values in BOPs."""
    found = measure(Product(weight, multiply), "float32 1x1")
    assert (found["macs"].value, found["macs"].unmeasured) == (macs, ())
    assert found["flops"].value == 2 * macs + others
    assert found["bops"].value == macs * bits * bits
    assert found["params"].value == weight.numel() * 8 // bits
    assert found["weight_memory"].value == weight.numel()


PACKED = {FP4: 2, torch.bits4x2: 2, torch.bits2x4: 4, torch.bits1x8: 8, torch.uint4: 1, torch.float8_e8m0fnu: 1}


@pytest.mark.parametrize(("dtype", "values"), PACKED.items(), ids=str)
def test_bytes_of_several_values(dtype: torch.dtype, values: int) -> None:
    """A parameter and a buffer of 64 bytes each: all values are parameters, and no byte is less than one."""
    model = nn.Module()
    model.forward = lambda x: x + 1  # type: ignore[method-assign]
    model.weight = nn.Parameter(torch.zeros(16, 4, dtype=torch.uint8).view(dtype), requires_grad=False)
    model.register_buffer("table", torch.zeros(64, dtype=torch.uint8).view(dtype))
    found = measure(model, "float32 1x1")
    assert found["params"].value == 64 * values
    assert (found["weight_memory"].value, found["model_size"].value) == (64, 128)


def test_two_views_of_packed_bytes_count_once() -> None:
    """The first 40 bytes, and the last 40 of 64: 64 · 2 values."""
    flat = torch.zeros(64, dtype=torch.uint8).view(FP4)
    model = nn.Module()
    model.forward = lambda x: x + 1  # type: ignore[method-assign]
    model.first, model.last = (nn.Parameter(part, requires_grad=False) for part in (flat[:40], flat[24:]))
    assert measure(model, "float32 1x1")["params"].value == 64 * 2


def test_values_beside_others_in_one_memory_count_each() -> None:
    """16 of 64 bytes are four float32, the others 48 · 2 values; and once more as bytes they are no more values."""
    flat = torch.zeros(64, dtype=torch.uint8)
    model = nn.Module()
    model.forward = lambda x: x + 1  # type: ignore[method-assign]
    parts = flat[:16].view(torch.float32), flat[16:].view(FP4), flat[32:]
    model.floats, model.packed, model.bytes = (nn.Parameter(part, requires_grad=False) for part in parts)
    found = measure(model, "float32 1x1")
    assert (found["params"].value, found["weight_memory"].value) == (4 + 48 * 2, 64)


def test_exported_products_of_two_values() -> None:
    """The same as a program; no file of torch's holds this type."""
    found = measure(torch.export.export(Product(four(16, 32), two_values), (torch.ones(1, 1),)))
    assert (found["macs"].value, found["params"].value) == (2 * ONE, 2 * 16 * 32)
