"""Weights that quantised modules keep in packed-parameter objects instead of parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.frontends.torch_values import TorchValues
from pytest_modelbudget.frontends.torch_weights import CONTENTLESS, ModuleTree
from pytest_modelbudget.ir.graph import Operand, Weight
from pytest_modelbudget.ir.tensor import DType, Storage, StorageKind, Tensor, dense, nbytes_of

SCALE, ZERO_POINT = DType("float64", 64), DType("int64", 64)  # as torch stores both


Unpacked = tuple[torch.Tensor, "torch.Tensor | None"]
UNPACKERS: Mapping[str, Callable[[Any], Unpacked]] = {
    **dict.fromkeys(
        (
            "Conv2dPackedParamsBase",
            "Conv3dPackedParamsBase",
            "LinearPackedParamsBase",
        ),
        lambda packed: packed.unpack()[:2],
    ),
    "EmbeddingPackedParamsBase": lambda packed: (
        torch.ops.quantized.embedding_bag_unpack(packed),
        None,
    ),
}


class PackedWeights:
    """Weight and bias of every packed-parameter object, told apart by the object's address."""

    def __init__(self, values: TorchValues) -> None:
        self._values = values
        self._operands: dict[int, tuple[Operand, ...]] = {}
        self._kept: list[torch.Tensor] = []

    def operands(self, packed: torch.ScriptObject) -> tuple[Operand, ...]:
        """(weight, bias) of a packed object; raises TraceError for one that no module holds."""
        if hash(packed) not in self._operands:
            raise TraceError(f"an operator reads weights from a {_type_of(packed)} of no module")
        return self._operands[hash(packed)]

    def register(self, modules: ModuleTree) -> tuple[Weight, ...]:
        """The weights of all packed objects of a model, in module order.

        Raises TraceError for an object that cannot be read: its weights would be left out.
        """
        found: list[Weight] = []
        for path, packed in packed_objects(modules):
            if hash(packed) in self._operands:
                continue
            unpack = UNPACKERS.get(_type_of(packed))
            if unpack is None:
                raise TraceError(
                    f"{path.rstrip('.') or 'the model'} keeps weights in a {_type_of(packed)}, "
                    "which cannot be read: measure the model before it is packed"
                )
            weight, bias = unpack(packed)
            tensors = [self._parameter(f"{path}weight", weight)]
            if bias is not None:
                tensors.append(self._parameter(f"{path}bias", bias))
            self._operands[hash(packed)] = (tensors[0], tensors[1] if bias is not None else None)
            found.extend(Weight(tensor) for tensor in tensors)
            found.extend(Weight(tensor) for tensor in grid_of(f"{path}weight", weight))
        return tuple(found)

    def _parameter(self, name: str, tensor: torch.Tensor) -> Tensor:
        self._kept.append(tensor)  # its storage must outlive the trace: it is the weight's name
        return self._values.value(tensor, StorageKind.PARAMETER, lambda: name)


def packed_objects(modules: ModuleTree) -> Iterator[tuple[str, torch.ScriptObject]]:
    """(path prefix, object) of each packed object of a module: "layer1.0.conv1." and its pack."""
    for name, module in modules:
        if isinstance(module, torch.jit.ScriptModule):  # whose own attributes are script objects
            attributes = [getattr(module, "_packed_params", None)]
        else:
            attributes = list(vars(module).values())
        for attribute in attributes:
            if type(attribute) not in CONTENTLESS and isinstance(attribute, torch.ScriptObject):
                owner = name.removesuffix("._packed_params").removesuffix("_packed_params")
                yield f"{owner}." if owner else "", attribute


def _type_of(packed: Any) -> str:
    """The class of a script object: "Conv2dPackedParamsBase"."""
    return str(packed._type().name())


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
