"""Weights in the packed objects of torch's quantised layers."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.graph.graph import Operand, Weight
from pytest_modelbudget.graph.tensor import DType, Storage, StorageKind, Tensor, dense, nbytes_of
from pytest_modelbudget.torch_models.values import TorchValues, dtype_of
from pytest_modelbudget.torch_models.versions import script_attributes, script_methods, script_type
from pytest_modelbudget.torch_models.weights import ModuleTree, NamedWeight
from pytest_modelbudget.units import with_article

SCALE, ZERO_POINT = DType("float64", 64), DType("int64", 64)  # as torch stores those of a whole tensor


Unpacked = tuple[tuple[str, "torch.Tensor | None"], ...]


def _of_layer(packed: Any) -> Unpacked:
    """One that gives back a floating weight keeps it in float16: there is no pack of another type."""
    weight, bias = packed.unpack()[:2]
    weight = weight if weight.is_quantized else weight.half()
    return ("weight", weight), ("bias", bias)


def _of_cell(packed: Any) -> Unpacked:
    """Those of the two linear packs that end the state of a recurrent one: of the input, of h."""
    products = packed.__getstate__()[0][-1]
    sides = zip(("ih", "hh"), products, strict=True)
    return tuple((f"{name}_{side}", tensor) for side, linear in sides for name, tensor in _of_layer(linear))


UNPACKERS: Mapping[str, Callable[[Any], Unpacked]] = {
    **dict.fromkeys(("Conv2dPackedParamsBase", "Conv3dPackedParamsBase", "LinearPackedParamsBase"), _of_layer),
    "EmbeddingPackedParamsBase": lambda packed: (
        ("weight", torch.ops.quantized.embedding_bag_unpack(packed)),
        ("bias", None),
    ),
    "CellParamsBase": _of_cell,
}


def packed_weights(modules: ModuleTree) -> Iterator[tuple[int, NamedWeight]]:
    """The weights of every packed object of a known kind, by the object's address; integers as what they stand for."""
    for path, packed in packed_objects(modules):
        unpack = UNPACKERS.get(_type_of(packed))
        for name, tensor in unpack(packed) if unpack else ():
            if tensor is not None:
                values = tensor.dequantize() if tensor.is_quantized else tensor
                yield hash(packed), NamedWeight(f"{path}{name}", values, True, True)


class PackedWeights:
    """The weights of every packed-parameter object, by the object's address."""

    def __init__(self, values: TorchValues) -> None:
        self._values = values
        self._operands: dict[int, tuple[Operand, ...]] = {}
        self._kept: list[torch.Tensor] = []

    def operands(self, packed: torch.ScriptObject, has_rule: bool) -> tuple[Operand, ...]:
        """(weight, bias) of a packed object, and of a recurrent one both of x and both of h.

        Of one that no module holds (), where the operator that takes it is unmeasured in any case;
        raises TraceError where a rule would miss it.
        """
        if hash(packed) not in self._operands:
            if not has_rule:
                return ()
            raise TraceError(f"an operator reads weights from {with_article(_type_of(packed))} of no module")
        return self._operands[hash(packed)]

    def register(self, modules: ModuleTree) -> tuple[Weight, ...]:
        """The weights of all packed objects of a model, in module order."""
        found: list[Weight] = []
        for path, packed in packed_objects(modules):
            if hash(packed) in self._operands:
                continue
            unpack = UNPACKERS.get(_type_of(packed))
            if unpack is None:
                raise TraceError(
                    f"{path.rstrip('.') or 'the model'} keeps weights in {with_article(_type_of(packed))}, "
                    "which cannot be read: measure the model before it is packed"
                )
            stored = [(f"{path}{name}", tensor) for name, tensor in unpack(packed)]
            operands = [None if tensor is None else self._parameter(name, tensor) for name, tensor in stored]
            self._operands[hash(packed)] = tuple(operands)
            found.extend(Weight(operand) for operand in operands if operand is not None)
            grids = (grid_of(name, tensor) for name, tensor in stored if tensor is not None)
            found.extend(Weight(tensor) for tensor in chain.from_iterable(grids))
        return tuple(found)

    def _parameter(self, name: str, tensor: torch.Tensor) -> Tensor:
        self._kept.append(tensor)  # its storage must outlive the trace: it is the weight's name
        return self._values.value(tensor, StorageKind.PARAMETER, name)


def packed_objects(modules: ModuleTree) -> Iterator[tuple[str, torch.ScriptObject]]:
    """(path prefix, object) of each packed object of a module: "layer1.0.conv1." and its pack."""
    kinds = set(map(type, chain.from_iterable([vars(module).values() for _, module in modules])))
    if not any(issubclass(kind, torch.ScriptObject) for kind in kinds):
        return  # the usual case, without a step in Python for each module; scripts hold a script object themselves
    for name, module in modules:
        owner = name.removesuffix("._packed_params").removesuffix("_packed_params")
        prefix = f"{owner}." if owner else ""
        if isinstance(module, torch.jit.ScriptModule):
            yield from ((f"{prefix}{inside}", packed) for inside, packed in _packed_in_script(module))
        else:
            yield from ((prefix, each) for each in vars(module).values() if issubclass(type(each), torch.ScriptObject))


OF_C = "__torch__.torch.classes."  # begins the names of classes that are written in C++, as TorchScript has them


def _packed_in_script(script: Any) -> Iterator[tuple[str, torch.ScriptObject]]:
    """(path prefix within it, object) of each packed object that a script holds: a frozen one has them as constants."""
    held = (getattr(script, name) for name, kind in script_attributes(script).items() if OF_C in str(kind))
    yield from (("", each) for each in held if issubclass(type(each), torch.ScriptObject))
    if hasattr(script, "training"):
        return
    methods = script_methods(script)
    constants = (node.output() for method in methods for node in method.graph.findAllNodes("prim::Constant"))
    of_classes = (value for value in constants if value.type().kind() == "ClassType")
    yield from ((f"constant_{at}.", value.toIValue()) for at, value in enumerate(of_classes))


def _type_of(packed: Any) -> str:
    """The class of a script object: "Conv2dPackedParamsBase"."""
    return str(script_type(packed).name())


def grid_of(name: str, weight: torch.Tensor) -> tuple[Tensor, ...]:
    """Scales and zero points of a quantised weight: one of each per channel, or one in all."""
    if not weight.is_quantized:
        return ()
    channels: tuple[int, ...] = ()
    types: tuple[DType, ...] = (SCALE, ZERO_POINT)
    if weight.qscheme() not in {torch.per_tensor_affine, torch.per_tensor_symmetric}:
        of_channels = (weight.q_per_channel_scales(), weight.q_per_channel_zero_points())
        channels, types = tuple(of_channels[0].shape), tuple(dtype_of(each.dtype) for each in of_channels)
    names = (f"{name}_scale", f"{name}_zero_point")
    sizes = [nbytes_of(channels[0] if channels else 1, dtype) for dtype in types]
    stored = (Storage(*each, StorageKind.QUANTISER) for each in zip(names, sizes, strict=True))
    return tuple(dense(memory.name, channels, dtype, memory) for dtype, memory in zip(types, stored, strict=True))
