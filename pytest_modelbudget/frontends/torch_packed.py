"""Weights that quantised modules keep in packed-parameter objects instead of parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from pytest_modelbudget.frontends.torch_values import TorchValues
from pytest_modelbudget.ir.graph import Operand, Weight
from pytest_modelbudget.ir.tensor import DType, Storage, StorageKind, Tensor, dense, nbytes_of

SCALE, ZERO_POINT = DType("float64", 64), DType("int64", 64)  # as torch stores both


class PackedWeights:
    """Weight and bias of every packed-parameter object, told apart by the object's address."""

    def __init__(self, values: TorchValues) -> None:
        self._values = values
        self._operands: dict[int, tuple[Operand, ...]] = {}
        self._kept: list[torch.Tensor] = []

    def operands(self, packed: torch.ScriptObject) -> tuple[Operand, ...]:
        """(weight, bias) of a packed object; () for one that no module of the model holds."""
        return self._operands.get(hash(packed), ())

    def register(self, model: nn.Module) -> tuple[Weight, ...]:
        """The weights of all packed objects of a model, in module order."""
        found: list[Weight] = []
        for path, packed in packed_objects(model):
            if hash(packed) in self._operands:
                continue
            weight, bias = packed.unpack()[:2]
            tensors = [self._parameter(f"{path}weight", weight)]
            operands: list[Operand] = [tensors[0]]
            if bias is not None:
                tensors.append(self._parameter(f"{path}bias", bias))
            operands.append(tensors[1] if bias is not None else None)
            self._operands[hash(packed)] = tuple(operands)
            found.extend(Weight(tensor) for tensor in tensors)
            found.extend(Weight(tensor) for tensor in grid_of(f"{path}weight", weight))
        return tuple(found)

    def _parameter(self, name: str, tensor: torch.Tensor) -> Tensor:
        self._kept.append(tensor)  # its storage must outlive the trace: it is the weight's name
        return self._values.value(tensor, StorageKind.PARAMETER, lambda: name)


def packed_objects(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """(path prefix, packed object) of each quantised module: "layer1.0.conv1." and its pack."""
    for name, module in model.named_modules():
        packed = getattr(module, "_packed_params", None)
        if isinstance(packed, torch.ScriptObject) and hasattr(packed, "unpack"):
            owner = name.removesuffix("._packed_params").removesuffix("_packed_params")
            yield f"{owner}." if owner else "", packed


def grid_of(name: str, weight: torch.Tensor) -> tuple[Tensor, ...]:
    """Scales and zero points of a quantised weight: one of each per channel, or one in all."""
    if not weight.is_quantized:
        return ()
    channels: tuple[int, ...] = ()
    if weight.qscheme() not in {torch.per_tensor_affine, torch.per_tensor_symmetric}:
        channels = tuple(weight.q_per_channel_scales().shape)
    return tuple(
        dense(f"{name}_{part}", channels, dtype, _quantiser(f"{name}_{part}", channels, dtype))
        for part, dtype in (("scale", SCALE), ("zero_point", ZERO_POINT))
    )


def _quantiser(name: str, shape: tuple[int, ...], dtype: DType) -> Storage:
    elements = shape[0] if shape else 1
    return Storage(name, nbytes_of(elements, dtype), StorageKind.QUANTISER)
