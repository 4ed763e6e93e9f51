"""``active_params``: the parameters that one token reaches, in a mixture of experts."""

import re
from collections import Counter
from collections.abc import Iterator

from pytest_modelbudget.graph.graph import Graph, Op
from pytest_modelbudget.graph.tensor import Storage, StorageKind, Tensor
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.measurement import Measurement, Metric, summed, unmeasured_ops
from pytest_modelbudget.metrics.storage import parameter_elements, unknown_readers
from pytest_modelbudget.ops.rule import OpRule, read_in_roles

Chosen = frozenset[tuple[int, int]]  # k of n, of every choice that some memory comes from
NOTHING: Chosen = frozenset()
CHOICES = frozenset({"topk", "TopK"})
GROUPED = frozenset({"_grouped_mm", "grouped_mm_fallback", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"})
BEST = frozenset({"argmax", "ArgMax"})
LAST_NUMBER = re.compile(r"\.\d+\.(?!.*\.\d+\.)")  # of an expert in a list: "experts.3.weight"
BY_DATA = "the data decide which experts run: active_params needs them in one tensor, read by their indices"


def active_params(costed: CostedGraph) -> Measurement:
    """Elements of distinct parameters, of stacked experts those of the k of n that a token is given to."""
    found = _Mixtures(costed)
    unmeasured = (*unknown_readers(costed), *unmeasured_ops(found.unknown))
    if costed.graph.operations_unknown or found.unknown:  # then even the least is not known
        return summed([], "param", unmeasured)
    amounts = costed.once(parameter_elements)
    shares = (found.reached.get(weight.tensor.storage, (1, 1)) for weight, _ in amounts)
    parts = zip(amounts, shares, strict=True)
    return summed([(weight.scope, amount * k // n) for (weight, amount), (k, n) in parts], "param", unmeasured)


class _Mixtures:
    """Follows the indices of the largest scores to the stacked weights that are read by them."""

    def __init__(self, costed: CostedGraph) -> None:
        self.reached: dict[Storage, tuple[int, int]] = {}
        self.unknown: list[tuple[str, str, str]] = []  # operation, scope, why
        self._chosen: dict[Storage, Chosen] = {}
        self._stored = {each.tensor.storage: frozenset({each.tensor.storage}) for each in costed.graph.weights}
        self._choices: dict[str, tuple[tuple[int, int], Op]] = {}  # the last of a scope: of groups, then of experts
        for op in costed.graph.ops:
            self._follow(op, costed.ruled[op.name])
        counts = _counts_of_experts(costed.graph)
        for share, op in self._choices.values():
            if share[1] in counts and share not in self.reached.values() and share[0] < share[1]:
                self.unknown.append((op.name, op.scope, BY_DATA))

    def _follow(self, op: Op, rule: OpRule | None) -> None:
        name = op.name.rpartition("::")[2]
        if name in CHOICES and len(op.outputs) == 2:
            (x, *_), (_, indices) = op.tensors(), op.outputs
            if len(x.shape) == len(indices.shape):  # else x only leads to a size, and chooses no expert
                pairs = [pair for pair in zip(indices.shape, x.shape, strict=True) if pair[0] != pair[1]]
                self._choose(op, indices, (*pairs, (x.shape[-1], x.shape[-1]))[0])
            return
        read = [tensor for tensor in op.tensors() if not tensor.is_immediate]
        if name in BEST and read and op.outputs:
            best = op.outputs[0]
            self._choose(op, best, (1, read[0].elements // max(best.elements, 1)))
        elif rule is not None and rule.kind == "mixture_of_experts":
            experts = [tensor for role, tensor in read_in_roles(op, rule) if role.weight]
            for weight in experts:
                self._reach(op, weight, frozenset({(int(str(op.attributes.get("k", 1))), experts[0].shape[0])}))
        elif name in GROUPED:
            self._reach(op, read[1], NOTHING.union(*(self._chosen.get(each.storage, NOTHING) for each in read[2:])))
        else:
            for table, places in self._picked(op, rule):
                self._reach(op, table, places)
            self._hand_on(op, read)

    def _choose(self, op: Op, indices: Tensor, share: tuple[int, int]) -> None:
        self._chosen[indices.storage] = frozenset({share})
        self._choices[op.scope] = share, op

    def _picked(self, op: Op, rule: OpRule | None) -> Iterator[tuple[Tensor, Chosen]]:
        """Stored tables whose rows an operation picks by what was chosen, and that."""
        operands = [*read_in_roles(op, rule)] if self._chosen else []
        places = NOTHING.union(*(self._chosen.get(each.storage, NOTHING) for role, each in operands if not role.picked))
        for role, table in operands if places else ():
            if role.picked and table.storage in self._stored:
                yield table, places

    def _reach(self, op: Op, weight: Tensor, chosen: Chosen) -> None:
        """Note the share of a weight (n, ...), where exactly one choice was of n."""
        count = weight.shape[0] if weight.shape else 0
        shares = [(k, n) for k, n in chosen if n == count and 0 < k <= n]
        for memory in self._stored.get(weight.storage, ()):
            if len(shares) != 1 or self.reached.get(memory, shares[0]) != shares[0]:
                self.unknown.append((op.name, op.scope, BY_DATA))
            else:
                self.reached[memory] = shares[0]

    def _hand_on(self, op: Op, read: list[Tensor]) -> None:
        """Results of what was chosen are: whole numbers in any case, others where nothing else is in them."""
        chosen = [self._chosen.get(each.storage, NOTHING) for each in read]
        for out in op.outputs:
            if any(chosen) and (all(chosen) or out.dtype.is_integer or out.dtype.name == "bool"):
                self._chosen[out.storage] = self._chosen.get(out.storage, NOTHING).union(*chosen)
            if read and all(each.storage in self._stored for each in read):
                memories = (self._stored[each.storage] for each in read)
                self._stored.setdefault(out.storage, frozenset().union(*memories))


def _counts_of_experts(graph: Graph) -> frozenset[int]:
    """How many experts there may be: as many as a stack has matrices, be it a view, or a list weights of one form."""
    tensors = [weight.tensor for weight in graph.weights if weight.kind is StorageKind.PARAMETER]
    lists = Counter((LAST_NUMBER.sub(".*.", f".{tensor.name}"), tensor.shape) for tensor in tensors)
    read = {each for op in graph.ops for each in op.tensors() if each.storage.kind is StorageKind.PARAMETER}
    return frozenset(lists.values()) | {each.shape[0] for each in (*tensors, *read) if len(each.shape) > 2}


ACTIVE_PARAMS = Metric(
    "active_params",
    "param",
    "parameters that one token reaches: of n stacked experts k; else all",
    active_params,
    also=("activated_params", "active_parameters", "params_per_token"),
)
