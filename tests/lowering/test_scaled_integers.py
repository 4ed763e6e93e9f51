"""Integers that a model casts and scales itself are parameters where they are a weight, in every format."""

from __future__ import annotations

from collections.abc import Callable
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


def measured(model: nn.Module, way: str) -> Any:
    made = WAYS[way](model.eval())
    return measure(made, None if way in ("program", "decomposed") else f"float32 4x{IN}")


@pytest.mark.filterwarnings("ignore")  # torch's own, of scripts
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("model", "nbytes"),
    [
        pytest.param(Before(), OUT * IN + 4 * OUT, id="before"),
        pytest.param(Before(scale=()), OUT * IN + 4, id="one scale"),
        pytest.param(Before(dtype=torch.uint8), OUT * IN + 4 * OUT, id="uint8"),
        pytest.param(WithZero(), OUT * IN + OUT + 4 * OUT, id="zero point"),
        pytest.param(Behind(), OUT * IN + 4 * OUT, id="behind"),
        pytest.param(Promoted(), OUT * IN + 4 * OUT, id="the product casts"),
        pytest.param(ZeroOfIntegers(), OUT * IN + OUT + 4 * OUT, id="zero point of integers"),
        pytest.param(Twofold(), OUT * IN + 4 * OUT, id="two scales and a number"),
        pytest.param(Expanded(), OUT * IN + 4 * OUT, id="an expanded scale"),
        pytest.param(Summed(), OUT * IN + 4 * OUT, id="einsum"),
        pytest.param(BehindACast(), OUT * IN + 4 * OUT, id="behind a cast"),
        pytest.param(OfIntegers(), OUT * IN + 4 * OUT, id="a product of integers"),
        pytest.param(InGroups(scale=(OUT, 2)), OUT * IN + 4 * OUT * 2, id="groups"),
        pytest.param(Kernel(), OUT * IN + 4 * OUT, id="convolution"),
        pytest.param(Rows(), OUT * IN + 4 * OUT, id="rows"),
    ],
)
def test_integers_that_a_model_scales_itself_are_parameters(model: nn.Module, nbytes: int, way: str) -> None:
    """A byte each, with four for each scale and one for each zero point, beside the floats."""
    found = measured(model, way)
    assert found["params"].value == KEPT + OUT * IN
    assert found["weight_memory"].value == 4 * KEPT + nbytes
    assert not [note for note in found.notes if "weights that are no parameters" in note]


@pytest.mark.filterwarnings("ignore")  # torch's own, of scripts
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(Literal(), id="a number scales them"),
        pytest.param(Unscaled(), id="nothing scales them"),
        pytest.param(Mask(), id="they mask a weight"),
        pytest.param(Before(dtype=torch.int64), id="of 64 bits"),
        pytest.param(Cache(), id="they are written"),
        pytest.param(Added(), id="no product sums them"),
    ],
)
def test_other_integers_are_none(model: nn.Module, way: str) -> None:
    """A mask, a fixed filter, a cache and what is only added stay what the module says that they are: buffers."""
    found = measured(model, way)
    assert (found["params"].value, found["weight_memory"].value) == (KEPT, 4 * KEPT)


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
