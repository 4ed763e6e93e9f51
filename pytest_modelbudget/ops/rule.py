"""The form of a cost rule: what one kind of operation costs, under all its foreign names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeVar, Union

from pytest_modelbudget.errors import ExtensionError, UnmeasurableError
from pytest_modelbudget.graph.graph import Op, Operand
from pytest_modelbudget.graph.tensor import Tensor

Formula = Callable[..., int]
RoleBytes = Callable[..., Mapping[str, int]]
Names = Mapping[str, tuple[str, ...]]
Result = TypeVar("Result")
Bound = Union[Operand, Mapping[str, object], tuple[Tensor, ...]]

# What a formula may ask for beside its operands' roles.
OF_THE_OP = frozenset({"outputs", "attributes"})
OUTPUT_NAMES = OF_THE_OP | {"out"}


def nothing() -> int:
    """The cost of what is free; the rule's ``because`` says why."""
    return 0


@dataclass(frozen=True, eq=False)
class OpRule:
    """What one kind of operation costs.

    names maps each foreign name to the roles of its tensor operands, in the operator's own order;
    a last role that starts with ``*`` takes all remaining ones. Formulas take roles by keyword,
    and may ask for ``out`` (the first output), ``outputs`` and ``attributes``.

    macs: multiply-accumulates of one execution; None where no formula is known (unmeasured).
    flops: FLOPs beyond two per MAC; None where the convention gives no figure (unmeasured).
    reads: bytes read of the roles it names, where that is not the whole operand (gathers).
    writes: bytes written, where that is not every output (indexed writes).
    shares_storage_of: the role whose memory the output is, for formats that do not tell.
    because: why the formula is right, or why the op is free.

    Raises ExtensionError without a because, or where a formula asks for what is no role.
    """

    kind: str
    names: Names
    because: str
    macs: Formula | None = nothing
    flops: Formula | None = nothing
    reads: RoleBytes | None = None
    writes: Formula | None = None
    shares_storage_of: str | None = None

    def __post_init__(self) -> None:
        if not self.because.strip():
            raise ExtensionError(f"op rule '{self.kind}' gives no reason (because=...)")
        for name, roles in self.names.items():
            known = {role.lstrip("*") for role in roles} | OUTPUT_NAMES
            for formula in (self.macs, self.flops, self.reads, self.writes):
                missing = _required(formula) - known if formula else frozenset()
                if missing:
                    raise ExtensionError(
                        f"op rule '{self.kind}': a formula asks for {', '.join(sorted(missing))}, "
                        f"which is no role of {name} {roles}"
                    )

    def bind(self, op: Op) -> dict[str, Operand]:
        """Operands of ``op`` by role; absent trailing ones are None.

        Raises UnmeasurableError where there are more operands than roles.
        """
        roles = self.names[op.name]
        bound: dict[str, Operand] = dict.fromkeys(_bare(roles))
        operands = op.operands
        if roles and roles[-1].startswith("*"):
            last = len(roles) - 1
            rest = operands[last:]
            flat = rest[0] if len(rest) == 1 and isinstance(rest[0], tuple) else rest
            bound[roles[-1][1:]] = flat  # type: ignore[assignment]  # nested lists do not occur
            roles, operands = roles[:last], operands[:last]
        if len(operands) > len(roles):
            raise UnmeasurableError(f"{len(operands)} operands do not fit the roles {roles}")
        bound.update(zip(roles, operands))  # noqa: B905  # trailing operands may be absent
        return bound

    def evaluate(
        self, formula: Callable[..., Result], op: Op, bound: Mapping[str, Operand]
    ) -> Result:
        """The value of one of this rule's formulas for one op.

        Raises UnmeasurableError where the formula does, or cannot be worked out.
        """
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
    kind: str,
    names: Names,
    because: str,
    *,
    shares_storage_of: str | None = None,
    reads: RoleBytes | None = None,
    writes: Formula | None = None,
) -> OpRule:
    """A rule for what computes nothing: data movement, views, bookkeeping."""
    return OpRule(
        kind, names, because, reads=reads, writes=writes, shares_storage_of=shares_storage_of
    )


def under(names: str, *roles: str) -> dict[str, tuple[str, ...]]:
    """The same roles under several foreign names, written in one string."""
    return dict.fromkeys(names.split(), roles)


@cache
def _bare(roles: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(role.lstrip("*") for role in roles)


@cache
def _parameters(formula: Callable[..., object]) -> tuple[str, ...]:
    return tuple(inspect.signature(formula).parameters)


@cache
def _required(formula: Callable[..., object]) -> frozenset[str]:
    parameters = inspect.signature(formula).parameters.values()
    return frozenset(p.name for p in parameters if p.default is p.empty)
