"""The types of the two operands whose elements an operation multiplies, one by the other."""

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import cache, lru_cache
from math import prod

from pytest_modelbudget.graph.graph import Op, Operand
from pytest_modelbudget.graph.tensor import DType, Tensor
from pytest_modelbudget.ops.role import Role, logical_bits
from pytest_modelbudget.ops.rule import OpRule

UNKNOWN_TYPE = DType("unknown", 0)  # 0 bits stand for a width that nobody knows
Types = tuple[DType, DType]


def multiplied_types(op: Op, rule: OpRule) -> Types:
    """The type of the first operand of the contraction, and the one type that all others have.

    x · W gives those of x and W; attention those of the query, and of keys and values. Where the others
    differ, nobody knows which meets which, and the second is ``UNKNOWN_TYPE``. Keys that are not there lie packed
    behind the queries, in their type.
    """
    bound, roles = rule.bind(op), _contracted(rule, op.name)
    types: list[DType] = []
    for role in roles:
        types += _types(op, role, bound[role.word])
    first, *rest = types or [UNKNOWN_TYPE]
    if len(roles) > 1 and bound[roles[1].word] is None:
        rest.append(first)
    return first, rest[0] if len(set(rest)) == 1 else UNKNOWN_TYPE


@cache
def _contracted(rule: OpRule, name: str) -> tuple[Role, ...]:
    """The roles of the operands that are contracted."""
    assert rule.contraction is not None, "what has multiply-accumulates contracts"
    roles = {role.word: role for role in rule.roles[name]}
    return tuple(roles[word] for word in rule.contraction.of if word in roles)


def _types(op: Op, role: Role, operand: Operand) -> Sequence[DType]:
    """The element types of an operand; of the parameters of a recurrent layer, those of its matrices."""
    if operand is None:
        return ()
    if not isinstance(operand, Tensor):
        tensors = (tensor for tensor in operand if tensor is not None)
        return [_own_type(tensor.dtype) for tensor in tensors if len(tensor.shape) > 1 or not role.weight]
    if role.bits and operand.dtype.name == "uint8":
        bits = logical_bits(role, op.attributes)
        return (DType(f"{bits}-bit", bits),)
    return (_packed_type(op, operand, role.packed) if role.packed else _own_type(operand.dtype),)


@lru_cache(maxsize=256)  # types are few
def _own_type(dtype: DType) -> DType:
    """The type of the elements, and of integers on a grid the integers: int8 of qint8, uint4 of quint4x2.

    None is known of a tensor that is kept in several.
    """
    if isinstance(dtype.bits, Fraction):
        return UNKNOWN_TYPE
    if dtype.values > 1:
        return DType(dtype.name.rpartition("_x")[0] or dtype.name, int(dtype.width))
    integers = re.fullmatch(r"q(u?int\d+)(x\d+)?", dtype.name)
    return DType(integers[1], dtype.bits) if integers else dtype


def _packed_type(op: Op, weight: Tensor, packed: tuple[str, ...]) -> DType:
    """The type of elements of which several share a byte: "4-bit", as the node says it, or by bytes and elements."""
    elements = prod(int(str(op.attributes.get(name, 0))) for name in packed)
    bits = Fraction(str(op.attributes.get("bits", 0))) or Fraction(8 * weight.nbytes, elements or 1)
    return DType(f"{bits}-bit", int(bits)) if elements and bits.denominator == 1 else UNKNOWN_TYPE
