"""Operators that call functions: their bodies are recorded as what a model executes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Protocol, Union

import torch

from pytest_modelbudget.errors import ModelBudgetError, UnmeasurableError, is_wordless
from pytest_modelbudget.formats.model import Branch
from pytest_modelbudget.graph.graph import Fork, Graph, Op, way
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.rule import nothing
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.torch_models import versions
from pytest_modelbudget.torch_models.environment import EagerMode
from pytest_modelbudget.torch_models.values import TorchValues, is_on_meta, tensors_in

Values = Sequence[Any]
COND = "torch::cond"
TRUE, FALSE = "true branch", "false branch"


class Seen(Protocol):
    """What a recorder has seen, which grows while bodies run."""

    ops: list[Op]
    notes: list[str]
    forks: list[Fork]
    constants: list[Tensor]
    literals: list[torch.Tensor]


class Bodies:
    """Runs the bodies of control flow, while their recorder sees them.

    What it cannot run raises NotImplementedError, as torch's operators do that have no kernel for meta or fake tensors:
    by that the tracing knows that another way may succeed. In a real run, which is the last, it names the reason.
    """

    def __init__(self, seen: Seen, rules: OpTable, values: TorchValues, *, is_real: bool) -> None:
        self._ops = seen.ops
        self._notes = seen.notes
        self._forks = seen.forks
        self._constants, self._literals = seen.constants, seen.literals
        self._digests: list[str] = []  # of the first of these
        self._start = 0  # where the list of operations begins that stands in one body
        self._rules = rules
        self._values = values
        self._is_real = is_real

    def run(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What an operator of functions gives.

        Raises NotImplementedError for one whose body cannot be looked into.
        """
        own: dict[str, Callable[..., Any]] = {"cond": self.cond, "while_loop": self.while_loop, "scan": scan}
        return _in_python(operator, own)(*args, **kwargs)

    def cond(self, pred: Any, true: Callable[..., Any], false: Callable[..., Any], given: Values) -> Any:
        """The dearer branch: both are run, and the operations of the other one are those of a fork.

        Of a condition that is no tensor, such as one on sizes, the branch that it takes.
        """
        if not isinstance(pred, torch.Tensor):
            return (true if pred else false)(*given)
        results, ways = {}, {}
        start, ops, forks = self._start, len(self._ops), len(self._forks)
        for name, body in ((TRUE, true), (FALSE, false)):
            self._start = ops
            results[name] = body(*given)
            ways[name] = way(self._ops[ops:], self._known(results[name]), self._forks[forks:])
            del self._ops[ops:], self._forks[forks:]
        self._start = start
        costs = {name: self._cost(each.ops) for name, each in ways.items()}
        taken = max(costs, key=lambda name: costs[name])
        self._ops += ways[taken].ops
        condition, after = self._values.known(pred), ops - start
        self._digests += map(digest, self._literals[len(self._digests) :])
        met = zip(self._constants, self._digests, strict=True)
        literals = {constant.storage.name: values for constant, values in met}
        self._forks.append(Fork(COND, "torch.cond", ways, taken, condition=condition, after=after, literals=literals))
        if costs[TRUE] != costs[FALSE]:
            self._notes.append(f"torch.cond is counted as its dearer branch, {taken.partition(' ')[0]}")
        return results[taken]

    def _known(self, result: Any) -> list[Tensor]:
        """The values that a body gives, as far as it or the code before it has made them."""
        values = map(self._values.known, tensors_in(versions.pytree.tree_leaves(result)))
        return [value for value in values if value is not None]

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

    def while_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Each pass of the loop, as long as its condition holds: only a real run can tell."""
        if not self._is_real:
            # Without values no condition can be asked; the real run, tried next, can.
            raise NotImplementedError("data decide how often while_loop runs")
        return while_loop(*args, **kwargs)


def digest(tensor: torch.Tensor) -> str:
    """The values of a tensor in a few letters; "" where it has none."""
    if (
        tensor.layout is not torch.strided
        or tensor.is_quantized
        or is_on_meta(tensor)
        or isinstance(tensor, versions.FakeTensor)
    ):
        return ""
    with versions.disable_current_modes():
        values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return sha256(repr((tensor.dtype, tensor.shape)).encode() + values.numpy().tobytes()).hexdigest()


Reason = Union[ModelBudgetError, None]


@contextmanager
def failures_in_words() -> Iterator[None]:
    """Raise what an operator raised, of which the interpreter of TorchScript keeps no word, or what a mode says of it.

    Of modes around this, which see every operator.
    """
    try:
        yield
    except RuntimeError as error:
        modes = [mode for mode in versions.current_modes() if isinstance(mode, RunningMode)]
        failed = [(mode.raised, mode.reason) for mode in modes]
        for raised, reason in failed:
            if reason is not None and (raised is error or is_wordless(error)):
                raise reason from error
        for raised, _ in failed:
            if raised is not None and is_wordless(error):
                raise raised.with_traceback(error.__traceback__) from raised.__cause__ or error
        raise


class RunningMode(EagerMode, ABC):
    """A mode that sees the operators of a run, and as every mode around it those in the bodies of control flow."""

    supports_higher_order_operators = True
    raised: BaseException | None = None  # the last of one that torch ran
    reason: Reason = None  # of that one

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        try:
            return self._ran(func, args, kwargs)
        except BaseException as error:
            self.raised, self.reason = error, self.why(func, args, kwargs or {}, error)
            raise

    def why(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: BaseException) -> Reason:
        """What the mode knows of an operator that failed, more than torch says; None where it knows nothing."""
        return None

    def _ran(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        if type(func) is versions.OpOverload or not isinstance(func, versions.HigherOrderOperator):
            return self.operator(func, args, kwargs or {})
        if any(isinstance(mode, EagerMode) and mode.records for mode in versions.current_modes()):
            return func(*map(self._in_sight, args), **(kwargs or {}))  # it is the recorder that runs bodies
        with self:
            return _in_python(func, {"cond": self.cond, "while_loop": while_loop, "scan": scan})(
                *args, **(kwargs or {})
            )

    def cond(self, pred: Any, true: Callable[..., Any], false: Callable[..., Any], given: Values) -> Any:
        return (true if pred else false)(*given)

    def _in_sight(self, value: Any) -> Any:
        """A body that runs below this mode; any other argument as it is."""
        if isinstance(value, (tuple, list)):
            return type(value)(map(self._in_sight, value))
        if not callable(value) or isinstance(value, torch.Tensor):
            return value

        def body(*args: Any, **kwargs: Any) -> Any:
            with self:
                return value(*args, **kwargs)

        return body

    @abstractmethod
    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator that has no bodies."""


def _in_python(operator: Any, own: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    """The function that runs the bodies of an operator: one of these, or its kernel in Python.

    Raises NotImplementedError where it has none, as torch does of a missing kernel: the next way of tracing is tried.
    """
    name = operator.name()
    run = own.get(name) or operator.py_kernels.get(versions.DispatchKey.CompositeExplicitAutograd)
    if run is None:
        # Bodies that run out of sight would be 0 MACs: the model is refused by the operator's name.
        raise NotImplementedError(f"what {name} computes cannot be looked into")
    return run


def _refuse_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise NotImplementedError, by name, for options: torch's compiler alone gives them."""
    given = [option for option, value in options.items() if value]
    if given:
        # An option that is passed over would be another program.
        raise NotImplementedError(f"{name} with {', '.join(given)}")


def while_loop(
    condition: Callable[..., Any], body: Callable[..., Any], carried: Values, additional: Values = (), **options: Any
) -> Any:
    """Each pass of the loop, as long as its condition holds."""
    _refuse_options("while_loop", options)
    values, has_run = tuple(carried), False
    while condition(*values, *additional):
        values, has_run = tuple(body(*values, *additional)), True
    return values if has_run else tuple(v.clone() if isinstance(v, torch.Tensor) else v for v in values)


def scan(body: Callable[..., Any], init: Values, xs: Values, additional: Values = (), **options: Any) -> Any:
    """The body once for each slice of xs along their first axis; results are stacked."""
    _refuse_options("scan", options)
    if not xs:
        return tuple(init)
    if not xs[0].shape[0]:
        # How large its results are, only a run of the body tells, and none would be counted.
        raise NotImplementedError("a scan over 0 slices: give an input with at least 1")
    carry, rows = tuple(init), []
    for at in range(xs[0].shape[0]):
        result = body(*carry, *(x[at] for x in xs), *additional)
        flat = tuple(versions.pytree.tree_leaves(result))
        carry = flat[: len(init)]
        rows.append(flat[len(init) :])
    return (*carry, *(torch.stack(column) for column in zip(*rows, strict=True)))


class ExecutedBranches(RunningMode, ABC):
    """A mode that notes which branches of torch.cond a run executes, by its calls in the order of a trace."""

    def __init__(self) -> None:
        super().__init__()
        self.executed: list[tuple[str, str]] = []  # a call and its branch
        self._before, self._calls = "", 0  # how the names of calls begin here, and how many there were

    def cond(self, pred: Any, true: Callable[..., Any], false: Callable[..., Any], given: Values) -> Any:
        """The branch that the data choose."""
        before, calls, is_true = self._before, self._calls + 1, bool(pred)
        call, branch = f"{before}{calls}", TRUE if is_true else FALSE
        self.executed.append((call, branch))
        self._before, self._calls = f"{call}, {branch}, ", 0
        try:
            return super().cond(is_true, true, false, given)
        finally:
            self._before, self._calls = before, calls


def branches(graph: Graph, executed: Mapping[str, set[str]]) -> Iterator[Branch]:
    """Both branches of every torch.cond of a trace, after runs that have noted which they executed."""

    def below(forks: Sequence[Fork], around: tuple[Op, ...], before: str) -> Iterator[Branch]:
        conds = [fork for fork in forks if fork.operator == COND]
        is_told = f"{before}{len(conds) + 1}" not in executed  # else runs call more of them
        for at, fork in enumerate(conds, 1):
            call = f"{before}{at}"
            for name, body in fork.ways.items():
                ran = name in executed.get(call, ()) if is_told else None
                yield Branch(call, name, f"torch.cond #{call}", ran, body, around)
                if ran:
                    inlined = name == fork.counted
                    yield from below(body.forks, around if inlined else around + body.ops, f"{call}, {name}, ")

    yield from below(graph.forks, graph.ops, "")
