"""The form of a cost rule: what one kind of operation costs, under all its foreign names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from itertools import zip_longest
from math import prod
from typing import TypeVar, Union

from pytest_modelbudget.errors import ExtensionError, UnmeasurableError
from pytest_modelbudget.graph.graph import Op, Operand
from pytest_modelbudget.graph.tensor import DType, Tensor
from pytest_modelbudget.ops.role import UNDECLARED, Role, logical_bits

Formula = Callable[..., int]
RoleBytes = Callable[..., Mapping[str, int]]
Words = tuple[str | Role, ...]
Roles = Union[str, Role, tuple["Roles", ...]]  # of one operand, or of several in a row
Names = Mapping[str, Words]
Attributes = Mapping[str, object]
Maybe = Union[Tensor, None]  # an operand that may be absent
Result = TypeVar("Result")
Value = TypeVar("Value")
Made = TypeVar("Made")
Bound = Union[Operand, Attributes, tuple[Tensor, ...]]

# What a formula may ask for beside its operands' roles.
OF_THE_OP = frozenset({"outputs", "attributes"})
OUTPUT_NAMES = OF_THE_OP | {"out"}


def nothing() -> int:
    """The cost of what is free; the rule's ``because`` says why."""
    return 0


class Over(str, Enum):
    """What a contraction sums its products over."""

    FEATURES = "features"  # the last axis of a linear layer's input, in a recurrent one too
    CHANNELS = "channels"  # of a convolution, and its kernel
    ROWS = "rows"  # of a table


def always(attributes: Attributes) -> bool:
    """Whatever the attributes say."""
    return True


def in_filters(shape: Sequence[int], attributes: Attributes) -> int:
    """All but the first axis, that of the outputs: weight (n, k) or (n, k, kernel ...)."""
    return prod(shape[1:])


def in_rows(shape: Sequence[int], attributes: Attributes) -> int:
    """The last axis alone: x (..., k), and stacks of matrices (e, n, k)."""
    return shape[-1]


@dataclass(frozen=True, slots=True)
class Contraction:
    """That an operation sums products, over what, and of which operands (their roles' words).

    over is None where nobody said it: it may be anything. where says of an operation's attributes
    whether it contracts at all, which an einsum need not. fan_in says how many elements of the
    input one output sums, from the weight's shape and the attributes; fan_in_at says it of the operand
    at a place among those that are contracted, where it is not the same of each.
    """

    over: Over | None
    of: tuple[str, ...]
    where: Callable[[Attributes], bool] = always
    fan_in: Callable[[Sequence[int], Attributes], int] = in_filters
    fan_in_at: Callable[[int, Sequence[int], Attributes], int] | None = None

    def summed(self, at: int, shape: Sequence[int], attributes: Attributes) -> int:
        """How many of its elements one output sums, of the stored operand at a place among those contracted."""
        return self.fan_in_at(at, shape, attributes) if self.fan_in_at else self.fan_in(shape, attributes)


@dataclass(frozen=True, eq=False)
class OpRule:
    """What one kind of operation costs, and what its operands are.

    names maps each foreign name to the roles of its tensor operands, in the operator's own order;
    a last role that starts with ``*`` takes all remaining ones. A plain word names a role and
    leaves open what it is (``Role.declared``). Once made, names has the words alone, and roles what
    each is. Formulas take roles by keyword, and may ask for ``out`` (the first output), ``outputs``
    and ``attributes``.

    macs: multiply-accumulates of one execution; None where no formula is known (unmeasured).
    flops: FLOPs beyond two per MAC; None where the convention gives no figure (unmeasured).
    reads: bytes read of the roles it names, where that is not the whole operand (gathers); without
        a formula, 0 of those that are declared unread.
    writes: bytes written, where that is not every output (indexed writes).
    shares_storage_of: the role whose memory the output is, for formats that do not tell.
    computes_where: the role of a flag that, where it is true, makes the output memory of its own.
    contracts: what it sums products of, and over what; ``contraction`` answers for rules that give
        none. Transforms of weights ask this of every operation, by whatever name it goes.
    because: why the formula is right, or why the op is free.

    Raises ExtensionError without a because, or where a formula asks for what is no role of some
    name, or an operand is unread under some names only.
    """

    kind: str
    names: Names
    because: str
    macs: Formula | None = nothing
    flops: Formula | None = nothing
    reads: RoleBytes | None = None
    writes: Formula | None = None
    shares_storage_of: str | None = None
    computes_where: str | None = None
    contracts: Contraction | None = None
    roles: Mapping[str, tuple[Role, ...]] = field(init=False)

    def __post_init__(self) -> None:
        roles = _of_each(self.names, lambda words: tuple(map(_role, words)))
        object.__setattr__(self, "roles", roles)
        object.__setattr__(self, "names", _of_each(roles, lambda each: tuple(role.name for role in each)))
        distinct = {id(each): (name, each) for name, each in roles.items()}.values()
        unread = frozenset(role.word for _, each in distinct for role in each if role.unread)
        asked = [_required(f) for f in (self.macs, self.flops, self.reads, self.writes) if f]
        if unread and self.reads is None:
            object.__setattr__(self, "reads", lambda: dict.fromkeys(unread, 0))
            asked.append(unread)
        if not self.because.strip():
            raise ExtensionError(f"op rule '{self.kind}' gives no reason (because=...)")
        wanted = frozenset().union(*asked) - OUTPUT_NAMES
        for name, each in distinct if wanted else ():
            missing = wanted.difference(role.word for role in each)
            if missing:
                raise ExtensionError(
                    f"op rule '{self.kind}': a formula asks for {', '.join(sorted(missing))}, "
                    f"which is no role of {name} {self.names[name]}"
                )

    def roles_of(self, name: str, count: int) -> tuple[Role, ...]:
        """The role of each of count operands; the last may take all that remain."""
        return _roles_of(self, name, count)

    @cached_property
    def contraction(self) -> Contraction | None:
        """What it sums products of: as declared, else of every operand where it has MACs at all."""
        if self.contracts is not None or self.macs in (None, nothing):
            return self.contracts
        words = {role.word for roles in self.roles.values() for role in roles if not role.shape}
        return Contraction(None, tuple(sorted(words)))

    def multiplied(self, name: str, over: Over, attributes: Attributes, count: int) -> tuple[tuple[int, Role], ...]:
        """Those of count operands whose products are summed over something, by position."""
        contraction = self.contraction
        if contraction is None or contraction.over not in {None, over}:
            return ()
        if not contraction.where(attributes):
            return ()
        roles = enumerate(self.roles_of(name, count))
        return tuple((at, role) for at, role in roles if role.word in contraction.of)

    def fully_declared(self) -> OpRule:
        """The same rule, in which a plain word says that an operand is an activation, and learnt where it is stored."""
        return replace(self, names=_of_each(self.roles, lambda roles: tuple(map(_declared, roles))))

    def bind(self, op: Op) -> dict[str, Operand]:
        """Operands of ``op`` by role; absent trailing ones are None."""
        words, rest = _words(self.names[op.name])
        operands = op.operands
        bound: dict[str, Operand] = dict(zip_longest(words, operands[: len(words)]))
        if rest:
            others = operands[len(words) :]
            flat = others[0] if len(others) == 1 and isinstance(others[0], tuple) else others
            bound[rest] = flat  # type: ignore[assignment]  # nested lists do not occur
        elif len(operands) > len(words):
            raise UnmeasurableError(f"{len(operands)} operands do not fit the roles {words}")
        return bound

    def evaluate(self, formula: Callable[..., Result], op: Op, bound: Mapping[str, Operand]) -> Result:
        """The value of one of this rule's formulas for one op."""
        wanted: dict[str, Bound] = {}
        for name in _parameters(formula):
            if name in bound:
                wanted[name] = bound[name]
            elif name == "out" and op.outputs:
                wanted[name] = op.outputs[0]
            elif name in OF_THE_OP:
                wanted[name] = getattr(op, name)
        try:
            return formula(**wanted)
        except (TypeError, AttributeError, LookupError, ValueError, ArithmeticError) as error:
            why = f"{type(error).__name__}: {error}"
            raise UnmeasurableError(f"operands do not fit the formula ({why})") from error


def free(
    kind: str, names: Names, because: str, *, shares_storage_of: str | None = None,
    reads: RoleBytes | None = None, writes: Formula | None = None,
) -> OpRule:  # fmt: skip
    """A rule for what computes nothing: data movement, views, bookkeeping."""
    return OpRule(kind, names, because, reads=reads, writes=writes, shares_storage_of=shares_storage_of)


def under(names: str, *roles: Roles) -> dict[str, Words]:
    """The same roles under several foreign names: ``under("linear mkldnn_linear", "x", WEIGHT)``.

    Names stand in one string, and so may words of plain roles; tuples of roles are laid out. A bare
    name is torch's (``aten::relu``), one with a capital ONNX's own (``onnx::Relu``); all others say
    their domain (``com.microsoft::Gelu``).
    """
    return dict.fromkeys(map(_in_full, names.split()), tuple(_laid_out(roles)))


def _laid_out(roles: Iterable[Roles]) -> Iterator[str | Role]:
    for role in roles:
        if isinstance(role, Role):
            yield role
        else:
            yield from role.split() if isinstance(role, str) else _laid_out(role)


def _in_full(name: str) -> str:
    if "::" in name:
        return name
    return f"{'onnx' if name[0].isupper() else 'aten'}::{name}"


def _of_each(names: Mapping[str, Value], made: Callable[[Value], Made]) -> dict[str, Made]:
    """What is made of each name's value: once for those that share one, as hundreds of names do."""
    once = {id(value): made(value) for value in {id(value): value for value in names.values()}.values()}
    return {name: once[id(value)] for name, value in names.items()}


def _role(word: str | Role) -> Role:
    return word if isinstance(word, Role) else _plain(word)


@cache
def _plain(word: str) -> Role:
    return Role(word, declared=False)


@cache
def _declared(role: Role) -> Role:
    """The same role; what was only a word is an activation, and learnt where it is stored."""
    return role if role.declared else replace(role, declared=True, learnt=True)


@cache
def _words(roles: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """The words of single operands, and that of all remaining ones; "" where there is none."""
    if roles and roles[-1].startswith("*"):
        return roles[:-1], roles[-1][1:]
    return roles, ""


@cache  # by the rule, not by its roles: those are many words to compare
def _roles_of(rule: OpRule, name: str, count: int) -> tuple[Role, ...]:
    roles, rest = rule.roles[name], UNDECLARED
    if roles and roles[-1].name.startswith("*"):
        roles, rest = roles[:-1], roles[-1]
    return (*roles, *(rest for _ in range(count - len(roles))))[:count]


def read_in_roles(op: Op, rule: OpRule | None) -> Iterator[tuple[Role, Tensor]]:
    """Each tensor among an operation's operands and its role there, lists taken apart."""
    count = len(op.operands)
    roles = rule.roles_of(op.name, count) if rule else (UNDECLARED,) * count
    for role, operand in zip(roles, op.operands, strict=True):
        for tensor in operand if isinstance(operand, tuple) else (operand,):
            if tensor is not None:
                yield role, tensor


SUMMED = (Over.FEATURES, Over.CHANNELS)  # and not rows that are picked


def contracted(op: Op, rule: OpRule | None) -> Iterator[Tensor]:
    """The operands whose products an operation sums over features or channels, lists taken apart."""
    if rule is None or rule.contraction is None:
        return
    for over in SUMMED:
        for at, _ in rule.multiplied(op.name, over, op.attributes, len(op.operands)):
            operand = op.operands[at]
            for tensor in operand if isinstance(operand, tuple) else (operand,):
                if tensor is not None:
                    yield tensor


@cache
def _parameters(formula: Callable[..., object]) -> tuple[str, ...]:
    return tuple(inspect.signature(formula).parameters)


@cache
def _required(formula: Callable[..., object]) -> frozenset[str]:
    parameters = inspect.signature(formula).parameters.values()
    return frozenset(p.name for p in parameters if p.default is p.empty)


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
    if role.bits and (role.packed or operand.dtype.name == "uint8"):
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
