"""Replacing operations of a torch model while it runs; the model itself is untouched.

The same mode stands above the recorder, which gives the new graph, and around a run on values,
which gives the new outputs: so cost and outputs cannot disagree, and there is nothing to restore.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any, Protocol

import torch

from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.ops.role import Role
from pytest_modelbudget.ops.rule import OpRule, Over
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.torch_models.bodies import RunningMode
from pytest_modelbudget.torch_models.recording import attributes_of, is_taken_apart, signature
from pytest_modelbudget.torch_models.tracing import NameOf, Rewriting, ScopeNow
from pytest_modelbudget.torch_models.values import tensors_in
from pytest_modelbudget.torch_models.versions import memory_of, schema_of


@dataclass(frozen=True, slots=True)
class Call:
    """One operator call of a model: its name and rule (None without one), and its arguments."""

    name: str
    rule: OpRule | None
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    weight_name: NameOf
    scope_now: ScopeNow
    is_computed: Callable[[torch.Tensor], bool] = lambda tensor: False

    def is_weight(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a stored one, or was computed from such alone."""
        return bool(self.weight_name(tensor)) or self.is_computed(tensor)

    def argument(self, position: int, name: str) -> Any:
        """One argument, however it was given; None where it was not."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name)

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments by their names in the schema, defaults where none were given."""
        operator: Any = self.func
        defaults = {each.name: each.default_value for each in schema_of(operator).arguments}
        return defaults | dict(zip(defaults, self.args, strict=False)) | dict(self.kwargs)

    def multiplied(self, over: Over) -> list[tuple[Role, Any]]:
        """Operands whose products it sums over something, with their roles; lists taken apart."""
        called = signature(self.func)
        if self.rule is None or self.rule.contraction is None:
            return []
        given = [self.argument(at, name) for at, name in called.tensors_at]
        attributes = attributes_of(called, self.args, self.kwargs)
        return [
            (role, each)
            for at, role in self.rule.multiplied(self.name, over, attributes, len(given))
            for each in (given[at] if isinstance(given[at], (list, tuple)) else (given[at],))
            if each is not None
        ]

    @property
    def writes(self) -> bool:
        """Whether it writes into one of its operands, which no replacement would."""
        operator: Any = self.func
        return bool(schema_of(operator).is_mutable)

    def owner(self, weight: torch.Tensor) -> str:
        """Path of the module that owns a weight, or runs where the tensor is none."""
        name = self.weight_name(weight)
        return name.rpartition(".")[0] if name else self.scope_now()


@dataclass(frozen=True, slots=True)
class MadeOf:
    """A rewrite's answer: what an operator is made of, each of whose parts the rewrite is asked about, too."""

    run: Callable[[], Any]


Compare = Callable[[str, torch.Tensor, torch.Tensor], None]


class Rewrite(Protocol):
    """What a transform does to one operation. changes grows by one for each that it looks at.

    partial_sums is the largest number of sums per output that are rounded to the storage type.
    """

    changes: list[Change]
    partial_sums: int

    def result(self, call: Call) -> Any:
        """The replacement of the operation, what that is MadeOf, or NotImplemented to let it run as it is."""


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in one storage: sparse and nested ones do not."""
    return tensor.layout is torch.strided and not tensor.is_nested


class RewritingMode(RunningMode):
    """Lets a rewrite answer for each operator of a forward pass."""

    def __init__(self, rewrite: Rewrite, rules: OpTable, weight_name: NameOf, scope_now: ScopeNow) -> None:
        super().__init__()
        self.rewrite = rewrite
        self._rules = rules
        self._weight_name = weight_name
        self._scope_now = scope_now
        self._computed: set[int] = set()  # memory of what stored tensors alone gave

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator, what it is made of, or its replacement."""
        if is_taken_apart(func, self._rules):
            with self:
                return func.decompose(*args, **kwargs)
        name = signature(func).spelling(self._rules)
        rule = self._rules.get(name)
        call = Call(name, rule, func, args, kwargs, self._weight_name, self._scope_now, self._is_computed)
        answer = self.answer(call)
        if isinstance(answer, MadeOf):
            with self:
                answer = answer.run()
        result = func(*args, **kwargs) if answer is NotImplemented else answer
        self._note_computed(call, result)
        return result

    def _is_computed(self, tensor: torch.Tensor) -> bool:
        return has_memory(tensor) and memory_of(tensor) in self._computed

    def _note_computed(self, call: Call, result: Any) -> None:
        """Keep whether an operation read nothing but weights; memory of another result may be used again."""
        read = tensors_in([*call.args, *call.kwargs.values()])
        is_computed = bool(read) and all(has_memory(each) and call.is_weight(each) for each in read)
        for tensor in filter(has_memory, tensors_in(result)):
            memory = memory_of(tensor)
            (self._computed.add if is_computed else self._computed.discard)(memory)

    def answer(self, call: Call) -> Any:
        return self.rewrite.result(call)


class ComparingMode(RewritingMode):
    """Holds what it puts in an operation's place to that one on the same input, and shows both to ``compare``.

    So an operation that is changed rightly does not differ, however wrong its input already is. One of
    which random mixtures are right is right, and is not computed whole once more; fewer rows than mixtures are.
    """

    def __init__(self, compare: Compare, *args: Any) -> None:
        super().__init__(*args)
        self._compare = compare

    def answer(self, call: Call) -> Any:
        """The replacement of an operation, once it has been compared."""
        seen = len(self.rewrite.changes)
        result = super().answer(call)
        if isinstance(result, torch.Tensor) and not (_is_tall(result) and mixes_alike(call, result)):
            scope = self.rewrite.changes[-1].scope if len(self.rewrite.changes) > seen else ""
            self._compare(scope, call.func(*call.args, **call.kwargs), result)
        return result


MIXTURES = 8
SAME = 1e-12  # a hundredth of what float64 runs may differ by: anything above is compared whole


def _is_tall(result: torch.Tensor) -> bool:
    """Whether there are more rows of outputs than mixtures, which then take less than all of them."""
    return result.dim() > 1 and prod(result.shape[:-1]) > MIXTURES


def mixes_alike(call: Call, result: torch.Tensor) -> bool:
    """Whether random mixtures of a linear operation's outputs are what the same mixtures of its weight give.

    x (..., K) · W (N, K) + b (N,) → y (..., N), and with R (MIXTURES, N) of normal draws
    y·Rᵀ = x·(R·W)ᵀ + R·b, for N / MIXTURES of the work. An error in one column or in many is expected
    at its own size; that all mixtures make a hundredth of it has a chance below 1e-15 (after
    R. Freivalds, Probabilistic machines can use less running time, 1977). False proves nothing.
    """
    if call.name != "aten::linear" or result.dtype is not torch.float64:
        return False
    x, weight, bias = (call.argument(at, name) for at, name in enumerate(("input", "weight", "bias")))
    if weight.dim() != 2 or result.shape != (*x.shape[:-1], weight.shape[0]):
        return False
    mixture = torch.randn(MIXTURES, len(weight), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    right = call.func(x, mixture @ weight, None if bias is None else mixture @ bias)
    size, error = (float(torch.linalg.vector_norm(each)) for each in (right, result @ mixture.t() - right))
    return isfinite(size) and error <= SAME * size


def rewriting_with(rewrite: Rewrite, rules: OpTable, *, compare: Compare | None = None) -> Rewriting:
    """A maker of modes over one rewrite; each run starts its list of changes anew.

    compare, where given, sees the scope of every replaced operation and its result in both models.
    """

    def mode(weight_name: NameOf, scope_now: ScopeNow) -> RewritingMode:
        rewrite.changes.clear()
        if compare is None:
            return RewritingMode(rewrite, rules, weight_name, scope_now)
        return ComparingMode(compare, rewrite, rules, weight_name, scope_now)

    return mode
