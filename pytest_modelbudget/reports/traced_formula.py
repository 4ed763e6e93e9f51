"""A cost formula followed while it runs: the steps that its numbers took, written out.

The formula is called with operands that remember their names, and every operation on them yields
one that remembers how it came about. Nothing reads or interprets source text. Drawn once, of
``convolution_macs`` on an 8-channel result of 4 x 4 and a filter of 3 x 3 x 3::

    out.elements * prod(weight.shape[1:])
    = 128 * 27
    = 3,456
"""

from __future__ import annotations

import builtins
import operator
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from inspect import signature
from types import BuiltinFunctionType, CellType, FrameType, FunctionType
from typing import Any

SUM, PRODUCT, SIGN, POWER, WORD = range(1, 6)  # how tightly the parts of an expression hold
COMPARISON = 0
WRITTEN_OUT = ("abs", "len", "max", "min", "round")  # builtins that would forget their operands
# What a formula raises that does with an operand what no traced one can do.
LOST = (TypeError, AttributeError, LookupError, ValueError, ArithmeticError)


def formula_lines(formula: Callable[..., Any], values: Mapping[str, Any]) -> tuple[str, ...]:
    """The steps of a formula with these arguments; its name and value where they are not seen.

    Only its bare name where it hands an operand back, and so works nothing out.
    """
    name = getattr(formula, "__name__", type(formula).__name__)
    value = formula(**values)
    unseen = (name, f"= {shown(value)}")
    if not isinstance(formula, FunctionType):
        return unseen
    run = _Run(formula)
    try:
        traced = run.follow(values)
    except LOST:
        return unseen
    if type(traced) is not Traced or traced.value != value:
        return unseen
    if any(traced is operand for operand in run.operands.values()):
        return (name,)
    return (*run.lines(), *_step("", traced.written))


def shown(value: object) -> str:
    """A number with its thousands apart, a sequence of them, or a word."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, (int, Fraction)):
        return f"{value:,}" if isinstance(value, int) else str(value)
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(shown, value))})"
    return str(getattr(value, "name", None) or type(value).__name__)


def _step(lead: str, written: tuple[str, str, str]) -> Iterator[str]:
    """The expression, then with its numbers, then its value; each only where it says more."""
    yield lead + written[0]
    for text in dict.fromkeys(written[1:]):
        if text != written[0]:
            yield f"{' ' * len(lead)}= {text}"


class Traced:
    """A value, the expression that it came from, and that expression with numbers filled in.

    holds says how tightly the expression binds, so that parentheses stand where they must. An
    unpacked one came out of a sequence as a whole, and its name is no step.
    """

    __slots__ = ("filled", "holds", "run", "text", "unpacked", "value")

    def __init__(
        self, value: Any, text: str, run: _Run, filled: str = "", holds: int = WORD, unpacked: bool = False
    ) -> None:
        self.value, self.text, self.run = value, text, run
        self.filled, self.holds, self.unpacked = filled or shown(value), holds, unpacked

    @property
    def written(self) -> tuple[str, str, str]:
        """The expression, the same with its numbers, and its value."""
        return self.text, self.filled, shown(self.value)

    def call_it(self, name: str) -> None:
        """Let a variable's name stand for the expression from here on."""
        self.text, self.filled, self.holds = name, shown(self.value), WORD

    @property  # type: ignore[misc]  # isinstance asks for the class of the value
    def __class__(self) -> type:
        return type(self.value)

    def __getattr__(self, name: str) -> Any:
        return self.run.remember(getattr(self.value, name), f"{self._held()}.{name}")

    def __getitem__(self, index: Any) -> Any:
        return self.run.remember(self.value[plain(index)], f"{self._held()}[{_index(index)}]")

    def __iter__(self) -> Iterator[Any]:
        for position, item in enumerate(self.value):
            yield self.run.remember(item, f"{self._held()}[{position}]", unpacked=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        value = self.value(*plain(args), **plain(kwargs))
        words = [_argument(arg) for arg in args]
        words += [f"{name}={_argument(arg)}" for name, arg in kwargs.items()]
        return self.run.remember(value, f"{self._held()}({', '.join(words)})")

    def __bool__(self) -> bool:
        is_condition = sys._getframe(1).f_code is self.run.code and type(self.value) is not tuple
        if is_condition and self.value:
            self.run.note(f"if {self.text}")
        return bool(self.value)

    def _held(self, holds: int = WORD) -> str:
        return self.text if self.holds >= holds else f"({self.text})"

    def _filled(self, holds: int) -> str:
        return self.filled if self.holds >= holds else f"({self.filled})"

    def __hash__(self) -> int:
        return hash(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __str__(self) -> str:
        return str(self.value)

    def __neg__(self) -> Traced:
        text, filled = f"-{self._held(SIGN)}", f"-{self._filled(SIGN)}"
        return Traced(-self.value, text, self.run, filled, SIGN)


def _binary(
    sign: str, holds: int, work: Callable[[Any, Any], Any], unit: int | None, swapped: bool
) -> Callable[[Traced, Any], Any]:
    """An operation on a traced value and another; unit is what leaves the other as it is."""

    def operation(self: Traced, other: Any) -> Any:
        if swapped and type(other) is int and other == unit:
            return self  # what sum() and prod() begin with
        known = other if type(other) is Traced else Traced(other, repr(other), self.run)
        left, right = (known, self) if swapped else (self, known)
        first = holds + (sign == "**")  # the one that binds from the right
        return Traced(
            work(left.value, right.value),
            f"{left._held(first)} {sign} {right._held(holds + 1)}",
            self.run,
            f"{left._filled(first)} {sign} {right._filled(holds + 1)}",
            holds,
        )

    return operation


for _name, _sign, _holds, _unit in (
    ("add", "+", SUM, 0), ("sub", "-", SUM, None), ("mul", "*", PRODUCT, 1), ("floordiv", "//", PRODUCT, None),
    ("truediv", "/", PRODUCT, None), ("mod", "%", PRODUCT, None), ("pow", "**", POWER, None),
    *((name, sign, COMPARISON, None) for name, sign in
      (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))),
):  # fmt: skip
    _work = getattr(operator, _name)
    setattr(Traced, f"__{_name}__", _binary(_sign, _holds, _work, _unit, swapped=False))
    if _holds != COMPARISON:
        setattr(Traced, f"__r{_name}__", _binary(_sign, _holds, _work, _unit, swapped=True))


def plain(value: Any) -> Any:
    """The value without what is remembered of it, also inside sequences and mappings."""
    if type(value) is Traced:
        return value.value
    if type(value) in (tuple, list):
        return type(value)(map(plain, value))
    if type(value) is dict:
        return {key: plain(item) for key, item in value.items()}
    if type(value) is slice:
        return slice(plain(value.start), plain(value.stop), plain(value.step))
    return map(plain, value) if isinstance(value, Iterator) else value


def _argument(value: Any) -> str:
    if type(value) is Traced:
        return value.text
    if isinstance(value, (tuple, list)):
        return shown(value)
    return repr(value) if isinstance(value, (int, str, type(None))) else "…"


def _index(index: Any) -> str:
    """The text between the brackets: "0", "1:", "'heads'"."""
    if type(index) is not slice:
        return _argument(index)
    ends = ["" if end is None else _argument(end) for end in (index.start, index.stop)]
    return ":".join(ends if index.step is None else [*ends, _argument(index.step)])


class _Run:
    """One run of a formula on traced operands, and what it noted on its way, line by line."""

    def __init__(self, formula: FunctionType) -> None:
        self.formula = formula
        self.code = formula.__code__
        self.operands: dict[str, Any] = {}
        self._line = 0
        self._visits: Counter[int] = Counter()
        self._noted: list[tuple[int, tuple[str, ...]]] = []
        self._seen: dict[str, Any] = {}

    def follow(self, values: Mapping[str, Any]) -> Any:
        """Run the formula on operands that remember their names; what it returns."""
        known = {name: getattr(builtins, name) for name in WRITTEN_OUT}
        known |= self.formula.__globals__
        world = {name: self._of_world(value, name) for name, value in known.items()}
        names, cells = self.code.co_freevars, self.formula.__closure__ or ()
        enclosed = tuple(
            CellType(self._of_world(cell.cell_contents, name)) for name, cell in zip(names, cells, strict=True)
        )
        copy = FunctionType(self.code, world, self.formula.__name__, None, enclosed)
        defaults = {
            name: parameter.default
            for name, parameter in signature(self.formula).parameters.items()
            if parameter.default is not parameter.empty
        }
        for name, value in {**defaults, **values}.items():
            self.operands[name] = self.remember(value, name)
        before = sys.gettrace()
        sys.settrace(self._entered)
        try:
            return copy(**self.operands)
        finally:
            sys.settrace(before)

    def remember(self, value: Any, text: str, *, unpacked: bool = False) -> Any:
        """The value with the expression that it came from; nothing and what is traced stay."""
        if value is None or type(value) is Traced:
            return value
        return Traced(value, text, self, unpacked=unpacked)

    def _of_world(self, value: Any, name: str) -> Any:
        """Functions and numbers that a formula refers to by name, under that name."""
        is_named = isinstance(value, (FunctionType, BuiltinFunctionType)) or type(value) is int
        return Traced(value, name, self) if is_named else value

    def note(self, *lines: str) -> None:
        """Keep what the present line has to say."""
        self._noted.append((self._line, lines))

    def lines(self) -> Iterator[str]:
        """All that was noted, in order; what a loop repeats is only run."""
        for line, texts in self._noted:
            if self._visits[line] < 2:  # a second visit makes it a loop
                yield from texts

    def _entered(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code is not self.code:
            return None
        self._seen = dict(frame.f_locals)
        return self._reached

    def _reached(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Before each line: note which variables the line before it has set."""
        for name, value in frame.f_locals.items():
            if value is not self._seen.get(name, self):
                self._assigned(name, value)
        self._seen = dict(frame.f_locals)
        if event == "line":
            self._line = frame.f_lineno
            self._visits[self._line] += 1
        return self._reached

    def _assigned(self, name: str, value: Any) -> None:
        if type(value) is Traced:
            if not value.unpacked:
                self.note(*_step(f"{name} = ", value.written))
            value.call_it(name)
        elif isinstance(value, (int, Fraction)):
            self.note(f"{name} = {shown(value)}")
