"""Operators that call functions: their bodies are recorded as what a model executes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import DispatchKey
from torch.utils import _pytree as pytree

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.graph.graph import Op
from pytest_modelbudget.ops.rule import nothing
from pytest_modelbudget.ops.table import OpTable

Values = Sequence[Any]


class Bodies:
    """Runs the bodies of control flow, while the recorder that owns ops and notes sees them.

    What it cannot run raises NotImplementedError, as torch's operators do that have no kernel for meta or fake tensors:
    by that the tracing knows that another way may succeed. In a real run, which is the last, it names the reason.
    """

    def __init__(self, ops: list[Op], notes: list[str], rules: OpTable, *, is_real: bool) -> None:
        self._ops = ops
        self._notes = notes
        self._rules = rules
        self._is_real = is_real

    def run(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What an operator of functions gives.

        Raises NotImplementedError for one whose body cannot be looked into.
        """
        name = operator.name()
        own: dict[str, Callable[..., Any]] = {"cond": self.cond, "while_loop": self.while_loop, "scan": self.scan}
        run = own.get(name) or operator.py_kernels.get(DispatchKey.CompositeExplicitAutograd)
        if run is None:
            # No Python kernel to record: the model is refused, with the operator's name.
            raise NotImplementedError(f"what {name} computes cannot be looked into")
        return run(*args, **kwargs)

    def cond(self, pred: Any, true: Callable[..., Any], false: Callable[..., Any], given: Values) -> Any:
        """The dearer branch: both are run, and the operations of the other one are dropped."""
        start = len(self._ops)
        branches = []
        for body in (true, false):
            result = body(*given)
            branches.append((result, self._ops[start:]))
            del self._ops[start:]
        costs = [self._cost(ops) for _, ops in branches]
        chosen = 0 if costs[0] >= costs[1] else 1
        result, ops = branches[chosen]
        self._ops += ops
        if costs[0] != costs[1]:
            taken = ("true", "false")[chosen]
            self._notes.append(f"torch.cond is counted as its dearer branch, {taken}")
        return result

    def _cost(self, ops: Sequence[Op]) -> tuple[bool, int, int]:
        """(whether something is unmeasured, multiply-accumulates, bytes of results)."""
        unmeasured, macs, nbytes = False, 0, 0
        for op in ops:
            nbytes += sum(output.nbytes for output in op.fresh_outputs) * op.times
            rule = self._rules.get(op.name)
            if rule is None or rule.macs is None:
                unmeasured = True
            elif rule.macs is not nothing:
                try:
                    macs += rule.evaluate(rule.macs, op, rule.bind(op)) * op.times
                except UnmeasurableError:
                    unmeasured = True
        return unmeasured, macs, nbytes

    def while_loop(
        self,
        condition: Callable[..., Any],
        body: Callable[..., Any],
        carried: Values,
        additional: Values = (),
        **options: Any,
    ) -> Any:
        """Each pass of the loop, as long as its condition holds: only a real run can tell."""
        if not self._is_real:
            # Without values no condition can be asked; the real run, tried next, can.
            raise NotImplementedError("data decide how often while_loop runs")
        if any(options.values()):
            # Options of torch's own compiler, not of models: refused by name, and not counted wrongly.
            raise NotImplementedError("while_loop with stacked outputs or written arguments")
        values = tuple(carried)
        while condition(*values, *additional):
            values = tuple(body(*values, *additional))
        return tuple(v.clone() if isinstance(v, torch.Tensor) else v for v in values)

    def scan(self, body: Callable[..., Any], init: Values, xs: Values, additional: Values = (), **options: Any) -> Any:
        """The body once for each slice of xs along their first axis; results are stacked.

        Without values one run stands for all of them.
        """
        length = xs[0].shape[0] if xs else 0
        if not length or any(options.values()):
            # Nothing to take one slice of, or the same options of the compiler: refused by name.
            raise NotImplementedError("scan over nothing, or with written arguments")
        start, carry, rows = len(self._ops), tuple(init), []
        for at in range(length if self._is_real else 1):
            result = body(*carry, *(x[at] for x in xs), *additional)
            flat = tuple(pytree.tree_leaves(result))
            carry = flat[: len(init)]
            rows.append(flat[len(init) :])
        if not self._is_real:
            self._ops[start:] = [dataclasses.replace(op, times=op.times * length) for op in self._ops[start:]]
            rows *= length
        return (*carry, *(torch.stack(column) for column in zip(*rows, strict=True)))
