"""What each stored tensor is: parameter, quantiser, buffer, constant or shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import onnx

from pytest_modelbudget.frontends.onnx_types import attribute_values
from pytest_modelbudget.frontends.onnx_uses import Use, op_name
from pytest_modelbudget.ir.tensor import StorageKind

PARAMETER_ROLES = frozenset({
    "weight", "bias", "slope", "table", "hidden_weight", "hidden_bias", "peephole",
    "second_weight", "second_bias", "third_weight", "third_bias",
})  # fmt: skip
# Kinds whose plain operands are parameters where they are stored and floating.
LEARNT_OPERANDS = frozenset({
    "add", "sub", "mul", "div", "matmul", "einsum", "gather", "attention", "deltas",
})  # fmt: skip
STATISTICS = frozenset({"mean", "variance"})
QUANTISERS = frozenset({"weight_scale", "weight_zero_point"})
# Kinds that hand their first operand on, so that its role is that of their result.
CARRIERS = frozenset({
    "reshape", "alias", "dropout", "transpose", "slice", "split", "expand", "copy", "pad", "cat",
    "cast", "dequantize", "quantize",
})  # fmt: skip
CARRIED = frozenset({"x", "parts"})
SIGNATURE = "pkg.torch.export.graph_signature.InputSpec.kind"
# Attributes whose product is the number of logical elements of a packed weight.
PACKED = {
    "com.microsoft::MatMulNBits": ("K", "N"),
    "com.microsoft::MatMulBnb4": ("K", "N"),
}


@dataclass(frozen=True, slots=True)
class FinalUse:
    """A use at the end of a chain of carriers; floating tells what the value has become."""

    use: Use
    floating: bool


class StoredKinds:
    """Kinds of stored tensors, from the roles in which operations read them."""

    def __init__(
        self,
        uses: Mapping[str, list[Use]],
        stored: frozenset[str],
        masks: frozenset[str],
        shapes: frozenset[str],
    ) -> None:
        self._uses = uses
        self._stored = stored
        self._masks = masks
        self._shapes = shapes

    def kind(
        self, name: str, *, floating: bool, metadata: Mapping[str, str], rank: int
    ) -> StorageKind:
        """The kind of one tensor; where the exporter's metadata says it, that decides."""
        said = metadata.get(SIGNATURE, "")
        if said == "PARAMETER":
            return StorageKind.PARAMETER
        if said == "BUFFER":
            return StorageKind.BUFFER
        if name in self._shapes:
            return StorageKind.SHAPE
        finals = tuple(self._finals(name, floating))
        if name not in self._masks and rank and any(map(_is_parameter, finals)):
            return StorageKind.PARAMETER
        if any(each.use.role in STATISTICS for each in finals):
            return StorageKind.BUFFER
        if any(self._quantises_parameter(each.use) for each in finals):
            return StorageKind.QUANTISER
        return StorageKind.CONSTANT

    def packed(self, name: str) -> int | None:
        """Logical elements of a weight whose bytes hold several in a layout of their own."""
        for use in self._uses.get(name, ()):
            sizes = PACKED.get(op_name(use.node))
            if sizes and use.role == "weight":
                attributes = attribute_values(use.node)
                return prod(int(str(attributes[size])) for size in sizes)
        return None

    def _finals(self, name: str, floating: bool) -> Iterator[FinalUse]:
        """Uses of a value, those behind carriers in their place."""
        for use in self._uses.get(name, ()):
            kind = use.rule.kind if use.rule else ""
            if kind in CARRIERS and use.role in CARRIED and use.node.output:
                yield from self._finals(use.node.output[0], floating or kind == "dequantize")
                if kind == "split":
                    for other in use.node.output[1:]:
                        yield from self._finals(other, floating)
            else:
                yield FinalUse(use, floating)

    def _quantises_parameter(self, use: Use) -> bool:
        """Whether this is the scale or zero point of a stored parameter."""
        if use.role in QUANTISERS:
            return not self._stored.isdisjoint(use.node.input[1:4])
        if use.role not in {"scale", "zero_point"} or not use.rule:
            return False
        quantised = use.node.output[0] if use.rule.kind == "dequantize" else use.node.input[0]
        return use.node.input[0] in self._stored and any(
            map(_is_parameter, self._finals(quantised, True))
        )


def _is_parameter(final: FinalUse) -> bool:
    if final.use.role in PARAMETER_ROLES:
        return True
    kind = final.use.rule.kind if final.use.rule else ""
    return final.floating and kind in LEARNT_OPERANDS
