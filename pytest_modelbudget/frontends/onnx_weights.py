"""What each stored tensor is: parameter, quantiser, buffer, constant or shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from pytest_modelbudget.frontends.onnx_uses import Use
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
            sizes = PACKED.get(use.step.name)
            if sizes and use.role == "weight":
                return prod(int(str(use.step.attributes[size])) for size in sizes)
        return None

    def _finals(self, name: str, floating: bool) -> Iterator[FinalUse]:
        """Uses of a value, those behind carriers in their place."""
        for use in self._uses.get(name, ()):
            if use.kind in CARRIERS and use.role in CARRIED:
                results = use.step.outputs if use.kind == "split" else use.step.outputs[:1]
                for result in results:
                    yield from self._finals(result, floating or use.kind == "dequantize")
            else:
                yield FinalUse(use, floating)

    def _quantises_parameter(self, use: Use) -> bool:
        """Whether this is the scale or zero point of a stored parameter."""
        if use.role in QUANTISERS:
            return not self._stored.isdisjoint(use.step.inputs[1:4])
        if use.role not in {"scale", "zero_point"}:
            return False
        given, result = use.step.inputs[0], use.step.outputs[0]
        quantised = result if use.kind == "dequantize" else given
        return given in self._stored and any(map(_is_parameter, self._finals(quantised, True)))


def _is_parameter(final: FinalUse) -> bool:
    if final.use.role in PARAMETER_ROLES:
        return True
    return final.floating and final.use.kind in LEARNT_OPERANDS
