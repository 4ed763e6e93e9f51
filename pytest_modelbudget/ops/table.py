"""Every op rule of the project, indexed by foreign name: the one list to add a family to."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache

from pytest_modelbudget.errors import ExtensionError
from pytest_modelbudget.ops.attention import ATTENTION
from pytest_modelbudget.ops.classical import CLASSICAL
from pytest_modelbudget.ops.convolution import CONVOLUTION
from pytest_modelbudget.ops.dense import DENSE, EXPERTS
from pytest_modelbudget.ops.elementwise import ELEMENTWISE, LOSSES, SORTING
from pytest_modelbudget.ops.gradients import GRADIENTS
from pytest_modelbudget.ops.indexing import EMBEDDING, INDEXING
from pytest_modelbudget.ops.linear_algebra import LINEAR_ALGEBRA
from pytest_modelbudget.ops.movement import MOVEMENT
from pytest_modelbudget.ops.normalisation import NORMALISATION
from pytest_modelbudget.ops.pooling import POOLING
from pytest_modelbudget.ops.quantised import QUANTISED
from pytest_modelbudget.ops.recurrent import RECURRENT
from pytest_modelbudget.ops.rule import OpRule
from pytest_modelbudget.ops.unseen import UNSEEN

FAMILIES: tuple[tuple[OpRule, ...], ...] = (
    ATTENTION, CLASSICAL, CONVOLUTION, DENSE, ELEMENTWISE, EMBEDDING, EXPERTS, GRADIENTS, INDEXING, LINEAR_ALGEBRA,
    LOSSES, MOVEMENT, NORMALISATION, POOLING, QUANTISED, RECURRENT, SORTING, UNSEEN,
)  # fmt: skip


class OpTable(Mapping[str, OpRule]):
    """Rules by foreign name; raises ExtensionError where two rules claim one name."""

    def __init__(self, rules: Iterable[OpRule]) -> None:
        self._by_name: dict[str, OpRule] = {}
        for rule in rules:
            for name in rule.names:
                taken = self._by_name.setdefault(name, rule)
                if taken is not rule:
                    raise ExtensionError(f"op {name} is claimed by two rules, '{taken.kind}' and '{rule.kind}'")
        self.kinds = frozenset(rule.kind for rule in self._by_name.values())

    @cached_property
    def bare_names(self) -> Mapping[str, tuple[str, ...]]:
        """The names of each kind without their domain, as others call them: {"linear": ("Gemm", ...)}."""
        names: dict[str, list[str]] = {}
        for name, rule in self._by_name.items():
            names.setdefault(rule.kind, []).append(name.rpartition("::")[2])
        return {kind: tuple(of_kind) for kind, of_kind in names.items()}

    def __getitem__(self, name: str) -> OpRule:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)


@lru_cache(maxsize=1)
def builtin_ops() -> OpTable:
    """The project's own rules: they declare every operand that is more than an activation."""
    return OpTable(rule.fully_declared() for family in FAMILIES for rule in family)
