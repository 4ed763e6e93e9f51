"""Which layers of the original a mistake in a rewritten file may be blamed on: its own, or what it was fused into."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx

from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.formats.table import format_table
from pytest_modelbudget.ops.table import builtin_ops

PREFIX = "net/"  # of a composed file


def blamed(original: Path, rewritten: onnx.ModelProto, wrong: str) -> set[str]:
    """Scopes of the original whose work the wrong result does, and of those that read it.

    From the first result behind the mistake that both files have, the original is walked back to
    the last results before it that both have: what lies between was fused into the wrong node.
    """
    source = onnx.load(original)
    producers = {output: node for node in source.graph.node for output in node.output}
    behind = _behind(rewritten, wrong)
    common = [name for name in behind if name in producers]
    end = common[0] if common else source.graph.output[0].name
    before = {_bare(o) for node in rewritten.graph.node for o in node.output} - set(behind)
    region, ahead = set(), [end]
    while ahead:
        node = producers.get(ahead.pop())
        if node is None or node.output[0] in region:
            continue
        region.add(node.output[0])
        ahead.extend(name for name in node.input if name not in before)
    readers = {node.output[0] for node in source.graph.node if end in node.input}
    return _scopes(original, {*region, *readers})


def _behind(rewritten: onnx.ModelProto, wrong: str) -> list[str]:
    """The wrong result and every one that depends on it, in order of their work."""
    reached = {wrong: None}
    for node in rewritten.graph.node:
        if any(name in reached for name in node.input):
            reached.update(dict.fromkeys(node.output))
    return [_bare(name) for name in reached]


def _bare(name: str) -> str:
    return name.removeprefix(PREFIX)


def _scopes(original: Path, results: Iterable[str]) -> set[str]:
    """The scopes of the operations that make these results."""
    wanted = set(results)
    graph = format_table()["onnx"].load(ModelSource("onnx", str(original)), builtin_ops()).graph
    return {op.scope for op in graph.ops if any(output.name in wanted for output in op.outputs)}
