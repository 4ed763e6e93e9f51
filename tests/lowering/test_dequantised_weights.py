"""Integers that a model casts and scales itself are parameters where they are a weight, in every format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from pytest_modelbudget import measure
from tests.builders.marks import one_of_many

pytestmark = pytest.mark.needs_torch
OUT, IN = 16, 8
X = torch.zeros(4, IN)


class Stores(nn.Module):
    """Integers, a zero point and a scale for each row of them, and whatever else is to be stored."""

    def __init__(self, scale: tuple[int, ...] = (OUT, 1), dtype: torch.dtype = torch.int8) -> None:
        super().__init__()
        self.register_buffer("w", torch.ones(OUT, IN, dtype=dtype))
        self.register_buffer("zero", torch.ones(OUT, 1, dtype=dtype))
        self.register_buffer("scale", torch.ones(scale))
        self.register_buffer("global_scale", torch.ones(1))
        self.register_buffer("layer_scale", torch.ones(OUT))
        self.register_buffer("cache", torch.zeros(OUT, IN, dtype=dtype))
        self.weight = nn.Parameter(torch.ones(OUT, IN))


class Before(Stores):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.w.to(x.dtype) * self.scale)


class WithZero(Stores):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.scale * (self.w.to(x.dtype) - self.zero))


class Behind(Stores):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.w.to(x.dtype)) * self.scale.reshape(-1)


class Promoted(Stores):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.w * self.scale)


class ZeroOfIntegers(Stores):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, (self.w.int() - self.zero.int()).to(x.dtype) * self.scale)


class Twofold(Stores):
    """A scale of the scale, which is a parameter, and a number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.w.float() * self.scale * 2 * self.weight[:, :1])


class OfScales(Stores):
    """The scale of a scale, which are multiplied first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.w.float() * (self.scale * self.global_scale))


class Divided(Stores):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.w.float() / self.scale)


class Expanded(Stores):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.w.float() * self.scale.expand(16, 8))


class Summed(Stores):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bi,oi->bo", x, self.w.float() * self.scale)


class BehindACast(Stores):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.w.to(x.dtype)).double() * self.scale.reshape(-1)


class OfIntegers(Stores):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.aten._int_mm(x.to(torch.int8).repeat(8, 1), self.w.t())
        return product.float() * self.scale.reshape(-1)


class OfRows(Stores):
    """A scale of each row of x first, as LLM.int8() and torchao multiply them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.aten._int_mm(x.to(torch.int8).repeat(8, 1), self.w.t())
        return product.float() * x.repeat(8, 1).abs().amax(-1, keepdim=True) * self.scale.reshape(-1)


class TwiceBehind(Stores):
    """A scale of all of it behind those of its outputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.w.to(x.dtype)) * self.scale.reshape(-1) * self.global_scale


class ZeroThenBehind(Stores):
    """A zero point before the product, a scale behind it, and what scales a layer as a whole: no further scale."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.w.to(x.dtype) - self.zero) * self.scale.reshape(-1) * self.layer_scale


class BeforeAndBehind(Stores):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.w.to(x.dtype) * self.scale) * self.global_scale


class InGroups(Stores):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = self.w.float().reshape(16, 2, 4) * self.scale.reshape(16, 2, 1)
        return x @ w.reshape(16, 8).t()


class Kernel(Stores):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = self.w.float() * self.scale
        return F.conv1d(x[:, :, None], w[:, :, None])


class Rows(Stores):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(3)
        return F.embedding(rows + x.shape[0], self.w).float() * self.scale[rows]


class Literal(Stores):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.w.to(x.dtype) * 0.5)


class Unscaled(Stores):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.w.to(x.dtype))


class Mask(Stores):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight * self.w.to(x.dtype))


class Cache(Stores):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache[:4] = x.to(torch.int8)
        return F.linear(x, self.cache.to(x.dtype) * self.scale)


class Added(Stores):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight) + (self.w.to(x.dtype) * self.scale)[:4].sum(1, keepdim=True)


WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "module": lambda model: model,
    "script": torch.jit.script,
    "traced": lambda model: torch.jit.trace(model, X),
    "program": lambda model: torch.export.export(model, (X,)),
    "decomposed": lambda model: torch.export.export(model, (X,)).run_decompositions(),
}
KEPT = OUT * IN  # the float weight, which every model stores, used or not
# Decomposing takes ten times as long as all else: usually one of those whose operators get the same names.
DECOMPOSED = ("zero point", "behind", "einsum", "a product of integers", "groups", "convolution", "rows")
DECOMPOSED += ("they are written", "shifts", "masks", "remainders and a lookup", "a view of another type", "padded")


def in_ways(rows: Sequence[Any]) -> list[Any]:
    """Parameters: each of these rows in every way, but usually some of them decomposed."""
    return [
        pytest.param(
            *row.values,
            way,
            id=f"{row.id}-{way}",
            marks=one_of_many(str(row.id), DECOMPOSED if way == "decomposed" else [str(row.id)]),
        )
        for row in rows
        for way in WAYS
    ]


def measured(model: nn.Module, way: str) -> Any:
    made = WAYS[way](model.eval())
    return measure(made, None if way in ("program", "decomposed") else f"float32 4x{IN}")


# A model, and the bytes of its integers, of their scales and of their zero points.
SCALED = [
    pytest.param(Before(), OUT * IN + 4 * OUT, id="before"),
    pytest.param(Before(scale=()), OUT * IN + 4, id="one scale"),
    pytest.param(Before(dtype=torch.uint8), OUT * IN + 4 * OUT, id="uint8"),
    pytest.param(WithZero(), OUT * IN + OUT + 4 * OUT, id="zero point"),
    pytest.param(Behind(), OUT * IN + 4 * OUT, id="behind"),
    pytest.param(Promoted(), OUT * IN + 4 * OUT, id="the product casts"),
    pytest.param(ZeroOfIntegers(), OUT * IN + OUT + 4 * OUT, id="zero point of integers"),
    pytest.param(Twofold(), OUT * IN + 4 * OUT, id="two scales and a number"),
    pytest.param(OfScales(), OUT * IN + 4 * OUT + 4, id="a scale of scales"),
    pytest.param(Divided(), OUT * IN + 4 * OUT, id="divided"),
    pytest.param(Expanded(), OUT * IN + 4 * OUT, id="an expanded scale"),
    pytest.param(Summed(), OUT * IN + 4 * OUT, id="einsum"),
    pytest.param(BehindACast(), OUT * IN + 4 * OUT, id="behind a cast"),
    pytest.param(OfIntegers(), OUT * IN + 4 * OUT, id="a product of integers"),
    pytest.param(OfRows(), OUT * IN + 4 * OUT, id="a scale of rows first"),
    pytest.param(TwiceBehind(), OUT * IN + 4 * OUT + 4, id="two scales behind"),
    pytest.param(ZeroThenBehind(), OUT * IN + OUT + 4 * OUT, id="a zero point before and a scale behind"),
    pytest.param(BeforeAndBehind(), OUT * IN + 4 * OUT + 4, id="a scale before and one behind"),
    pytest.param(InGroups(scale=(OUT, 2)), OUT * IN + 4 * OUT * 2, id="groups"),
    pytest.param(Kernel(), OUT * IN + 4 * OUT, id="convolution"),
    pytest.param(Rows(), OUT * IN + 4 * OUT, id="rows"),
]


@pytest.mark.filterwarnings("ignore")  # torch's own, of scripts
@pytest.mark.parametrize(("model", "nbytes", "way"), in_ways(SCALED))
def test_integers_that_a_model_scales_itself_are_parameters(model: nn.Module, nbytes: int, way: str) -> None:
    """A byte each, with four for each scale and one for each zero point, beside the floats."""
    found = measured(model, way)
    assert found["params"].value == KEPT + OUT * IN
    assert found["weight_memory"].value == 4 * KEPT + nbytes
    assert not [note for note in found.notes if "weights that are no parameters" in note]


OTHERS = [
    pytest.param(Literal(), id="a number scales them"),
    pytest.param(Unscaled(), id="nothing scales them"),
    pytest.param(Mask(), id="they mask a weight"),
    pytest.param(Before(dtype=torch.int64), id="of 64 bits"),
    pytest.param(Cache(), id="they are written"),
    pytest.param(Added(), id="no product sums them"),
]


@pytest.mark.filterwarnings("ignore")  # torch's own, of scripts
@pytest.mark.parametrize(("model", "way"), in_ways(OTHERS))
def test_other_integers_are_none(model: nn.Module, way: str) -> None:
    """A mask, a fixed filter, a cache and what is only added stay what the module says that they are: buffers."""
    found = measured(model, way)
    assert (found["params"].value, found["weight_memory"].value) == (KEPT, 4 * KEPT)
    assert found["params"].complete


class Packs(nn.Module):
    """Integers that hold the weights of a layer of 8 inputs and 16 outputs, and their scales."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, *, as_parameter: bool = False) -> None:
        super().__init__()
        words = torch.zeros(shape, dtype=dtype)
        if as_parameter:
            self.words = nn.Parameter(words, requires_grad=False)
        else:
            self.register_buffer("words", words)
        self.register_buffer("scale", torch.ones(OUT, 1))
        self.register_buffer("shifts", torch.arange(0, 32, 4, dtype=torch.int32))
        self.register_buffer("table", torch.linspace(-1, 1, 16))
        self.weight = nn.Parameter(torch.ones(OUT, IN))


class Shifted(Packs):
    """GPTQ's layout: eight weights of 4 bits in 32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = (self.words[:, :, None] >> self.shifts) & 15
        return F.linear(x, (w.reshape(16, 8) - 8).to(x.dtype) * self.scale)


class Masked(Packs):
    """HQQ's: the upper half of the bytes is the upper half of the rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = torch.empty(16, 8, dtype=torch.uint8)
        w[:8] = (self.words & 240) >> 4
        w[8:] = self.words & 15
        return F.linear(x, w.to(x.dtype) * self.scale)


class LookedUp(Packs):
    """Bitsandbytes': a column of bytes, of which each half picks a number from a table of 16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        halves = torch.cat([self.words // 16, self.words % 16], 1)
        return F.linear(x, self.table[halves.reshape(16, 8).long()] * self.scale)


class Palette(Packs):
    """A byte for each weight, which picks its number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.table[self.words.long()])


class Viewed(Packs):
    """Four weights of 8 bits in 32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.words.view(torch.int8).to(x.dtype) * self.scale)


class PackedMask(Packs):
    """A bit for each weight, which stays or goes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = (self.words >> torch.arange(8, dtype=torch.uint8)) & 1
        return F.linear(x, self.weight * kept)


class Positions(Packs):
    """Distances that pick rows of a table, which a product reads: there are more pairs than rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("qc,qkc->qk", x, self.weight[self.words])


class Copied(Packs):
    """Each half of the bytes is taken out of a copy of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        halves = torch.stack([self.words.int() & 15, self.words.int() >> 4], -1)
        return F.linear(x, halves.reshape(16, 8).float() * self.scale)


class Padded(Packs):
    """HQQ's three bits: ten in 32, of which the last two rows of twelve times ten are thrown away."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = torch.cat([(self.words >> (3 * at)) & 7 for at in range(10)])
        return F.linear(x, w[:16].float() * self.scale)


class Behind4(Packs):
    """BitNet's: two bits, and a scale behind the product."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = torch.cat([(self.words >> (2 * at)) & 3 for at in range(4)])
        return F.linear(x, w.float() - 1) / self.scale.reshape(-1)


class OfRows4(Packs):
    """The same behind a scale of each row of x."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = torch.cat([(self.words >> (2 * at)) & 3 for at in range(4)])
        return F.linear(x, w.float() - 1) * x.abs().amax(-1, keepdim=True) * self.scale.reshape(-1)


class ByParts(Packs):
    """A quarter of the rows at a time, as experts: each is a part of the integers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [torch.stack([each & 15, each >> 4], -1).reshape(4, 8).float() for each in self.words.split(4)]
        return torch.cat([F.linear(x, part) for part in parts], -1) * self.scale.reshape(-1)


class Repeated(Packs):
    """Each word stands there eight times before it is shifted, as compressed-tensors picks it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = (self.words.repeat_interleave(8, 1) >> self.shifts) & 15
        return F.linear(x, w.float() * self.scale)


# A layout, its integers, and the bytes of what dequantises them: 4 for each of 16 scales, and for numbers of a table.
PACKED = [
    pytest.param(Shifted, (OUT, 1), torch.int32, 4 * OUT, id="shifts"),
    pytest.param(Masked, (OUT // 2, IN), torch.uint8, 4 * OUT, id="masks"),
    pytest.param(LookedUp, (OUT * IN // 2, 1), torch.uint8, 4 * OUT + 4 * 16, id="remainders and a lookup"),
    pytest.param(Palette, (OUT, IN), torch.uint8, 4 * 16, id="a lookup"),
    pytest.param(Viewed, (OUT, IN // 4), torch.int32, 4 * OUT, id="a view of another type"),
    pytest.param(Copied, (OUT, IN // 2), torch.uint8, 4 * OUT, id="copies"),
    pytest.param(Padded, (2, IN), torch.int32, 4 * OUT, id="padded"),
    pytest.param(Behind4, (OUT // 4, IN), torch.uint8, 4 * OUT, id="a scale behind"),
    pytest.param(OfRows4, (OUT // 4, IN), torch.uint8, 4 * OUT, id="a scale of rows first"),
    pytest.param(ByParts, (OUT, IN // 2), torch.uint8, 4 * OUT, id="part by part"),
    pytest.param(Repeated, (OUT, 1), torch.int32, 4 * OUT, id="repeated words"),
]
WRITES_SLICES = (Masked,)  # which exporters write as scatters
NO_SCRIPTS = (Viewed, ByParts, Padded, Behind4, OfRows4)  # TorchScript has no views of another type, nor such loops
KINDS = ("parameter", "buffer")
PACKED_IN_WAYS = [
    row for row in in_ways(PACKED) if row.values[-1] not in ("script", "traced") or row.values[0] not in NO_SCRIPTS
]
PACKED_AS = [
    pytest.param(*row.values, kind, id=f"{row.id}-{kind}", marks=[*row.marks, one_of_many(kind, [KINDS[turn % 2]])])
    for turn, row in enumerate(PACKED_IN_WAYS)
    for kind in KINDS
]


@pytest.mark.filterwarnings("ignore")  # torch's own, of scripts
@pytest.mark.parametrize(("model", "shape", "dtype", "beside", "way", "kind"), PACKED_AS)
def test_packed_integers_are_as_many_weights_as_a_product_reads(
    model: type[Packs], shape: tuple[int, ...], dtype: torch.dtype, beside: int, way: str, kind: str
) -> None:
    """128 weights (peft#1020, hqq#149, huggingface.js#1770), and their scales; or an unknown number, by name."""
    words = torch.zeros(shape, dtype=dtype)
    found = measured(model(shape, dtype, as_parameter=kind == "parameter"), way)
    assert found["trainable_params"].complete
    assert found["model_size"].complete
    if model in WRITES_SLICES and way == "decomposed":
        assert [f"words' ({dtype})".replace("torch.", "") in op.why for op in found["params"].unmeasured] == [True]
        return
    assert (found["params"].value, found["params"].complete) == (KEPT + OUT * IN, True)
    weight_memory = found["weight_memory"]
    assert (weight_memory.value, weight_memory.complete) == (4 * KEPT + words.nbytes + beside, True)


class OfCompressedTensors(nn.Module):
    """Eight weights of 4 bits in an int32, in groups of 4 with a scale each, which says that it learns (0.20)."""

    def __init__(self, scale: str) -> None:
        super().__init__()
        self.weight_packed = nn.Parameter(torch.zeros(OUT, IN // 8, dtype=torch.int32), requires_grad=False)
        setattr(self, scale, nn.Parameter(torch.ones(OUT, IN // 4)))
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shifts = torch.arange(0, 32, 4, dtype=torch.int32)
        weight = ((self.weight_packed.unsqueeze(-1) >> shifts) & 15).reshape(OUT, IN // 4, 4).to(x.dtype)
        return F.linear(x, (weight * getattr(self, self.scale).unsqueeze(-1)).reshape(OUT, IN))


@pytest.mark.parametrize(("scale", "learnt"), [("weight_scale", 0), ("magnitude", OUT * IN // 4)])
def test_a_named_scale_of_a_packed_weight_is_no_parameter(scale: str, learnt: int) -> None:
    """Not even where it needs a gradient; what has a name of its own, and learns, is one."""
    found = measure(OfCompressedTensors(scale), X)
    assert (found["params"].value, found["params"].complete) == (OUT * IN + learnt, True)
    assert found["weight_memory"].value == OUT * IN // 2 + 4 * OUT * IN // 4


class TwoPlanes(Packs):
    """Six bits: four of a weight in one memory, two in another."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__(shape, dtype)
        self.register_buffer("high", torch.zeros(OUT, IN // 4, dtype=torch.uint8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = torch.stack([self.words & 15, self.words >> 4], -1).reshape(16, 8)
        high = torch.stack([(self.high >> (2 * at)) & 3 for at in range(4)], -1).reshape(16, 8)
        return F.linear(x, (low | (high << 4)).float() * self.scale)


class JoinedFirst(Packs):
    """Two memories behind one another, taken apart as one."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__(shape, dtype)
        self.register_buffer("more", torch.zeros(shape, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = torch.cat([self.words, self.more])
        return F.linear(x, torch.stack([words & 15, words >> 4], -1).reshape(32, 8).float())


@pytest.mark.parametrize("model", [TwoPlanes, JoinedFirst])
def test_weights_of_several_memories_are_an_unknown_number(model: type[Packs]) -> None:
    """Of which product shows no part; the message names them, and nobody trains them."""
    found = measured(model((OUT, IN // 2), torch.uint8), "module")
    for key in ("params", "weight_memory"):
        assert found[key].sign == ">= "
        assert any("words' (uint8)" in op.why for op in found[key].unmeasured)
    assert found["trainable_params"].complete


class Rows4(Packs):
    """A packed table, whose rows the inputs pick before they are unpacked."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        picked = x.argmax(-1)
        rows = (self.words[picked][..., None] >> self.shifts) & 15
        return F.linear(rows.reshape(-1, 8).float() * self.scale[picked], self.weight)


def test_rows_of_packed_integers_are_parameters() -> None:
    """16 rows of eight weights in 32 bits."""
    found = measured(Rows4((OUT, 1), torch.int32), "module")
    assert (found["params"].value, found["params"].complete) == (KEPT + OUT * IN, True)
    assert found["weight_memory"].value == 4 * KEPT + 4 * OUT + 4 * OUT


@pytest.mark.parametrize(  # indices that are a parameter look as codes of a codebook do
    ("model", "shape", "dtype", "as_parameter"),
    [
        pytest.param(PackedMask, (OUT, 1), torch.uint8, True, id="a parameter that masks a weight"),
        pytest.param(PackedMask, (OUT, 1), torch.uint8, False, id="a buffer that masks a weight"),
        pytest.param(Positions, (4, IN * OUT), torch.int64, False, id="a buffer of indices of rows"),
    ],
)
def test_integers_beside_a_weight_are_none(
    model: type[Packs], shape: tuple[int, ...], dtype: torch.dtype, as_parameter: bool
) -> None:
    """Bits that mask a weight of as many elements, and indices of a table of parameters."""
    found = measured(model(shape, dtype, as_parameter=as_parameter), "module")
    assert found["params"].value == KEPT + as_parameter * torch.Size(shape).numel()
    assert found["params"].complete


class Unknown(Packs):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.packing.product(x, self.words)  # type: ignore[no-any-return]  # torch gives no types


@pytest.mark.parametrize(
    ("shape", "dtype", "as_parameter", "is_open"),
    [
        pytest.param((OUT, 1), torch.int32, True, True, id="parameter"),
        pytest.param((OUT, IN // 2), torch.uint8, False, True, id="buffer"),
        pytest.param((2, OUT), torch.int64, False, False, id="a buffer of indices"),
        pytest.param((OUT,), torch.int32, False, False, id="a buffer of one dimension"),
    ],
)
def test_integers_of_an_operator_without_a_rule(
    shape: tuple[int, ...], dtype: torch.dtype, as_parameter: bool, is_open: bool
) -> None:
    """An operator that nobody knows may unpack what it reads."""
    with torch.library._scoped_library("packing", "FRAGMENT") as library:
        library.define("product(Tensor x, Tensor words) -> Tensor")
        library.impl("product", lambda x, words: x.new_empty(x.shape[0], OUT), "CompositeExplicitAutograd")
        found = measured(Unknown(shape, dtype, as_parameter=as_parameter), "module")
    assert found["params"].complete is not is_open


@pytest.mark.parametrize(
    ("model", "shape", "dtype", "as_parameter"),
    [
        pytest.param(*row.values[:3], as_parameter, id=f"{row.id}-{'parameter' if as_parameter else 'buffer'}")
        for row in PACKED
        for as_parameter in (True, False)
        if as_parameter or 1 not in row.values[1]  # a row of integers in a buffer may be anything
    ],
)
def test_packed_integers_without_a_run(
    model: type[Packs], shape: tuple[int, ...], dtype: torch.dtype, as_parameter: bool
) -> None:
    """No operation shows how they are read."""
    found = measure(model(shape, dtype, as_parameter=as_parameter))
    with pytest.raises(KeyError, match="'words' may hold several weights in each integer: no inputs are given"):
        found["params"]


class Int8(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.zeros(64, 32, dtype=torch.int8))
        self.register_buffer("scales", torch.ones(64, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._weight_int8pack_mm(x, self.w, self.scales)  # type: ignore[no-any-return]


class Int4(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(torch.zeros(64, 32, dtype=torch.int32), 1)
        self.register_buffer("w", packed)
        self.register_buffer("scales", torch.ones(1, 64, 2, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.w, 32, self.scales)  # type: ignore[no-any-return]


class Opaque(nn.Module):
    """A weight (64, 32) of 4 bits, scales and a bias in one row of floats, as the kernel for CPUs wants it."""

    def __init__(self) -> None:
        super().__init__()
        parts = torch.zeros(64, 16, dtype=torch.uint8), torch.ones(64, 1), torch.zeros(64)
        packed = torch.ops.aten._dyn_quant_pack_4bit_weight(*parts, 32, 32, 64)
        self.register_buffer("w", packed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._dyn_quant_matmul_4bit(x.float(), self.w, 32, 32, 64)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "nbytes"),
    [
        pytest.param(Opaque(), Opaque().w.nbytes, id="4 bits in floats"),
        pytest.param(Int8(), 64 * 32 + 2 * 64, id="8 bits"),
        pytest.param(Int4(), 64 * 32 // 2 + 2 * 64 * 2, id="4 bits, with zero points"),
    ],
)
def test_a_product_shows_how_many_weights_it_unpacks(model: nn.Module, nbytes: int) -> None:
    """64 outputs of 32 inputs, whatever their bytes."""
    found = measure(model, "bfloat16 4x32")
    assert (found["params"].value, found["params"].complete) == (64 * 32, True)
    assert (found["weight_memory"].value, found["weight_memory"].complete) == (nbytes, True)


FORMS = {
    "before": [("Cast", "w", "f"), ("Mul", "f s", "d"), ("MatMul", "x d", "y")],
    "behind": [("Cast", "w", "f"), ("MatMul", "x f", "m"), ("Mul", "m s", "y")],
    "zero point": [
        ("Cast", "w", "f"), ("Cast", "z", "g"), ("Sub", "f g", "e"), ("Mul", "e s", "d"), ("MatMul", "x d", "y"),
    ],
    "unscaled": [("Cast", "w", "f"), ("MatMul", "x f", "m"), ("Mul", "m x", "y")],
}  # fmt: skip


@pytest.mark.parametrize(("form", "is_weight"), [(form, form != "unscaled") for form in FORMS])
def test_onnx_files_say_the_same(form: str, is_weight: bool, tmp_path: Path) -> None:
    """8 x 8 integers; a scale that a file multiplies with is a parameter, as any floating operand of one is."""
    nodes = [
        helper.make_node(kind, read.split(), [made], **({"to": TensorProto.FLOAT} if kind == "Cast" else {}))
        for kind, read, made in FORMS[form]
    ]
    stored = {
        "w": np.ones((IN, IN), np.int8), "z": np.ones((1, IN), np.int8), "s": np.ones((1, IN), np.float32),
    }  # fmt: skip
    read = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "scaled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, IN])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(values, name) for name, values in stored.items() if name in read],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "scaled.onnx")
    found = measure(tmp_path / "scaled.onnx")
    assert found["params"].value == is_weight * (IN * IN + IN)
    assert found["weight_memory"].value == is_weight * (IN * IN + 4 * IN + (form == "zero point") * IN)


PACKED_FORMS: dict[str, list[Any]] = {
    "shifts": [
        helper.make_node("BitShift", ["w", "four"], ["high"], direction="RIGHT"),
        helper.make_node("BitwiseAnd", ["w", "low_bits"], ["low"]),
        helper.make_node("Concat", ["high", "low"], ["c"], axis=0),
        helper.make_node("Cast", ["c"], ["d"], to=TensorProto.FLOAT),
    ],
    "a lookup": [
        helper.make_node("Concat", ["w", "w"], ["c"], axis=0),
        helper.make_node("Cast", ["c"], ["places"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "places"], ["d"]),
    ],
}


@pytest.mark.parametrize(("form", "expected"), [("shifts", 64), ("a lookup", 32 + 16)])
def test_packed_integers_of_onnx_files(form: str, expected: int, tmp_path: Path) -> None:
    """4 x 8 bytes that stand for 8 x 8 weights; read twice they stay as many, beside a table of 16."""
    nodes = [*PACKED_FORMS[form], helper.make_node("MatMul", ["x", "d"], ["y"])]
    stored = {
        "w": np.ones((IN // 2, IN), np.uint8), "four": np.array(4, np.uint8), "low_bits": np.array(15, np.uint8),
        "table": np.ones(16, np.float32),
    }  # fmt: skip
    read = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "packed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, IN])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(values, name) for name, values in stored.items() if name in read],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "packed.onnx")
    found = measure(tmp_path / "packed.onnx")
    assert (found["params"].value, found["params"].complete) == (expected, True)


class OfBitsandbytes(nn.Module):
    """A weight (64, 32) as bitsandbytes packs it, with scales of blocks of 64, and a code book: its own attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(64 * 32 // 2, 1, dtype=torch.uint8), requires_grad=False)
        self.absmax, self.code = torch.ones(32), torch.ones(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        args = (x, self.weight.t(), [64, 32], self.absmax, self.code, 64)
        return torch.ops.bitsandbytes.gemv_4bit(*args)  # type: ignore[no-any-return]  # torch gives no types


class Repacked(OfBitsandbytes):
    """The same in another order of its halves, as its kernel for CPUs wants them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        halves = torch.stack([self.weight & 15, self.weight >> 4], -1).reshape(64, 32)
        packed = (halves[:, 16:] << 4) | halves[:, :16]
        args = (x, packed, [64, 32], self.absmax, self.code, 64)
        return torch.ops.bitsandbytes.gemv_4bit(*args)  # type: ignore[no-any-return]


class State:
    """Scales and a code book, in an object that a weight carries."""

    def __init__(self) -> None:
        self.absmax, self.code, self.offset = torch.ones(32), torch.ones(16), torch.tensor(0.5)


class Saves(OfBitsandbytes):
    """The same with its own state dict, which has the scales, a copy of the codes, and 79 bytes of words.

    Their offset is one float of rank 0, which a state dict has among the words (bitsandbytes' nested absmax).

    A call keeps the scales in another type, and makes what it computes of the values.
    """

    def __init__(self) -> None:
        super().__init__()
        del self.absmax, self.code
        self.weight.quant_state = State()  # type: ignore[attr-defined]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        state = self.weight.quant_state  # type: ignore[attr-defined]
        beside = {"absmax": state.absmax, "code": state.code.clone(), "words": torch.zeros(79, dtype=torch.uint8)}
        destination.update({f"{prefix}weight.{key}": value for key, value in beside.items()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.weight.quant_state  # type: ignore[attr-defined]
        args = (x, self.weight.t(), [64, 32], state.absmax + state.offset, state.code, 64)
        state.absmax = state.absmax.bfloat16()
        assert float(x.sum()) is not None
        return torch.ops.bitsandbytes.gemv_4bit(*args)  # type: ignore[no-any-return]


@pytest.mark.parametrize("given", [Saves, Saves()], ids=["factory", "instance"])
def test_a_state_dict_of_its_own_is_the_size_of_a_model(given: Any) -> None:
    """Scales and codes are in both numbers, what only the state dict has in one; an instance stays as it was."""
    with torch.library._scoped_library("bitsandbytes", "FRAGMENT") as library:
        library.define(
            "gemv_4bit(Tensor A, Tensor B, int[] shapeB, Tensor absmax, Tensor code, int blocksize) -> Tensor"
        )
        library.impl("gemv_4bit", lambda x, w, shape, *rest: x.new_empty(4, shape[0]), "CompositeExplicitAutograd")
        found = measure(given, "float32 4x32")
    beside = 4 * 32 + 4 * 16
    assert found["weight_memory"].value == 64 * 32 // 2 + beside + 4
    assert found["model_size"].value == 64 * 32 // 2 + beside + 4 + 79
    assert measure(given)["model_size"].value == 64 * 32 // 2 + beside + 79
    if isinstance(given, Saves):
        assert given.weight.quant_state.absmax.dtype is torch.float32  # type: ignore[attr-defined]


class Shaped(Copied):
    """Compressed-tensors' layout, which keeps the sizes of the weight in a parameter."""

    def __init__(self) -> None:
        super().__init__((OUT, IN // 2), torch.uint8)
        self.sizes = nn.Parameter(torch.tensor([OUT, IN]), requires_grad=False)


def test_a_record_of_sizes_is_bytes_alone() -> None:
    """As in its checkpoints (huggingface.js#1770): two integers of 64 bits."""
    found = measured(Shaped(), "module")
    assert found["params"].value == KEPT + OUT * IN
    assert found["weight_memory"].value == 4 * KEPT + OUT * IN // 2 + 4 * OUT + 16


class OfHQQ(Packs):
    """A bias in a plain attribute, which learns and which a state dict of its own has (hqq#149)."""

    def __init__(self) -> None:
        super().__init__((OUT, IN // 2), torch.uint8)
        self.bias = nn.Parameter(torch.ones(OUT)) * 1

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {**super().state_dict(*args, **kwargs), "bias": self.bias}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        halves = torch.stack([self.words & 15, self.words >> 4], -1)
        return F.linear(x, halves.reshape(16, 8).float() * self.scale) + self.bias


def test_what_learns_in_a_state_dict_is_a_parameter() -> None:
    found = measured(OfHQQ(), "module")
    assert found["params"].value == KEPT + OUT * IN + OUT
    assert found["weight_memory"].value == 4 * KEPT + OUT * IN // 2 + 4 * OUT + 4 * OUT


@pytest.mark.parametrize("model", [OfBitsandbytes, Repacked])
def test_operators_of_bitsandbytes_have_packed_weights(model: type[nn.Module]) -> None:
    """64 outputs of 32 inputs for 4 rows (peft#1020, unsloth#2855); half a byte each, 32 scales and 16 codes."""
    with torch.library._scoped_library("bitsandbytes", "FRAGMENT") as library:
        library.define(
            "gemv_4bit(Tensor A, Tensor B, int[] shapeB, Tensor absmax, Tensor code, int blocksize) -> Tensor"
        )
        library.impl("gemv_4bit", lambda x, w, shape, *rest: x.new_empty(4, shape[0]), "CompositeExplicitAutograd")
        found = measure(model(), "float32 4x32")
    assert found["macs"].value == 4 * 64 * 32
    assert (found["params"].value, found["params"].complete) == (64 * 32, True)
    assert found["weight_memory"].value == found["model_size"].value == 64 * 32 // 2 + 4 * 32 + 4 * 16


def test_what_repacks_integers_for_floats_is_an_unknown_number() -> None:
    """Halves of a byte that become bytes again: how many stand for one weight is not known."""

    class Bytes(OfBitsandbytes):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ ((self.weight[:512] << 4) | self.weight[512:]).reshape(32, 16).float()

    assert not measure(Bytes(), "float32 4x32")["params"].complete
