"""The comments of a draft, renewed: the figures behind its limits, the limits that are comments, the first line.

A limit that is a comment is one in a block of limits, as ``modelbudget init`` writes it::

    # flops: 1.44 GFLOP                 # 1,430,168,424 FLOP: 2 x macs plus everything elementwise
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pytest_modelbudget.budget.yaml_text import Block, Node, node_at, scalar_at, tree
from pytest_modelbudget.errors import UnitError
from pytest_modelbudget.units import Number, exact, quantity, readable, snug_quantity

Keys = tuple[str, ...]
Splice = tuple[int, int, str]

_FIGURE = r"[ \t}}]*#[ \t]*((?:>= )?\d[\d,]*(?:\.\d+)?{unit})(?=:|[ \t\r]*$|[ \t\r]*\n)"
_HEAD = re.compile(r"# Measured with (.+?)(?=(?:, and [^;\n]*)?; rounded up)")  # the first line of a draft
_UNHELD = re.compile(
    r"^(?P<indent> *)# (?P<limit>(?P<metric>\w+): \S.*?)(?P<gap> {2,})# (?P<figure>[^:\n]*)(?=:|$)", re.MULTILINE
)
_KINDS = re.compile(r"^(?P<indent> *)# (?P<metric>\w+): \{max: \{(?P<kinds>[^{}\n]*)\}\}$", re.MULTILINE)
_WRITTEN = re.compile(r"\w+: (?:\{(?P<end>max|min): )?(?P<quantity>[^{},:]+)\}?")


@dataclass(frozen=True, slots=True)
class Measured:
    """One number, exactly, and its unit; parts are what it is the sum of, such as kinds of operations."""

    value: Number
    unit: str
    parts: Mapping[str, int] = field(default_factory=dict)

    @property
    def figure(self) -> str:
        """As drafts write it behind a limit: "2,553,607 param"."""
        return exact(self.value, self.unit) if isinstance(self.value, int) else readable(self.value, self.unit)


@dataclass(frozen=True, slots=True)
class Comments:
    """What the comments of a draft are to say.

    held are numbers by the keys of a scalar: its figure takes the place of one in that unit which the comment behind it
    begins with. unheld are those of every metric, by the keys of a block of limits: a limit that is a comment there has
    the new figure, and another quantity where it would be broken; one by kind has the new counts. versions ("torch
    2.15.0") are those of the first line, which speaks of all limits, and stays where the number of one is not known.
    """

    held: Mapping[Keys, Measured] = field(default_factory=dict)
    unheld: Mapping[Keys, Mapping[str, Measured]] = field(default_factory=dict)
    versions: str = ""


def renewed(text: str, file: str, comments: Comments) -> str:
    """The text of a budget file with these comments; comments of people are as they were."""
    root, _ = tree(text, file)
    unheld = list(_unheld(text, root, comments))
    splices = [*_held(text, root, comments), *unheld]
    is_all_known = len(unheld) == len(_UNHELD.findall(text)) + len(_KINDS.findall(text))
    if comments.versions and is_all_known and (head := _HEAD.match(text)):
        splices.append((*head.span(1), comments.versions))
    for start, end, new in sorted(splices, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _held(text: str, root: Node, comments: Comments) -> Iterator[Splice]:
    """The figure behind each limit, right where its scalar ends."""
    for keys, measured in comments.held.items():
        _, _, unit = measured.figure.partition(" ")
        pattern = re.compile(_FIGURE.format(unit=re.escape(f" {unit}") if unit else ""))
        if (scalar := scalar_at(root, keys)) and (behind := pattern.match(text, scalar.span[1])):
            yield (*behind.span(1), measured.figure)


def _unheld(text: str, root: Node, comments: Comments) -> Iterator[Splice]:
    """Each limit that is a comment among those of a block, in the column of that block."""
    for keys, numbers in comments.unheld.items():
        block = node_at(root, keys)
        if not isinstance(block, Block) or text[block.span[0]] == "{":
            continue
        indent = " " * (block.entries[0][0].place.column - 1)
        span = _lines_of(block, indent, text)
        for line in _KINDS.finditer(text, *span):
            if line["indent"] == indent and (counted := numbers.get(line["metric"])):
                yield *line.span("kinds"), ", ".join(f"{kind}: {count}" for kind, count in counted.parts.items())
        for line in _UNHELD.finditer(text, *span):
            measured, limit = numbers.get(line["metric"]), line["limit"]
            if line["indent"] == indent and measured and (now := _limit_now(limit, measured)):
                gap = " " * max(2, len(limit) + len(line["gap"]) - len(now))
                yield line.start("limit"), line.end("figure"), f"{now}{gap}# {measured.figure}"


def _lines_of(block: Block, indent: str, text: str) -> tuple[int, int]:
    """Where the lines of a block begin and end, with the comments above and below its entries."""
    first = text.rfind("\n", 0, block.span[0]) + 1
    below = re.compile(rf"(?:{indent}.*(?:\n|\Z)|[ \t]*\n)+").match(text, first)
    while text.startswith(f"{indent}#", above := text.rfind("\n", 0, first - 1) + 1):
        first = above
    return first, below.end() if below else first


def _limit_now(limit: str, measured: Measured) -> str:
    """A limit that holds: as it is written, or with the quantity that fix would give it; "" of what is no limit."""
    written = _WRITTEN.fullmatch(limit)
    try:
        if written is None:
            return ""
        is_least, text = written["end"] == "min", written["quantity"].strip()
        amount = quantity(text, measured.unit, round_up=is_least)
    except UnitError:
        return ""
    if measured.value >= amount if is_least else measured.value <= amount:
        return limit
    return limit.replace(text, snug_quantity(measured.value, measured.unit, like=text, down=is_least))
