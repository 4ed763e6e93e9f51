"""An ONNX graph whose operations are replaced by products of tiles, and what became of each."""

from collections.abc import Callable, Sequence

from onnx import NodeProto, TensorProto

from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.onnx_models.node_rewriting import Names, Replacement, with_nodes
from pytest_modelbudget.onnx_models.program import Node, Program
from pytest_modelbudget.transforms.on_onnx import Rewritten
from pytest_modelbudget.transforms.tile.grid import Tile, became, tiles_along
from pytest_modelbudget.transforms.transform import LEFT_OUT, is_chosen

OLDEST_OPSET = 13  # from which Split and ReduceSum take sizes and axes as operands


class TiledGraph:
    """Collects what takes the place of a model's operations; the model itself is left alone."""

    def __init__(self, program: Program, tile: Tile, layers: Sequence[str]) -> None:
        self.names = Names(program.model)
        self._program = program
        self._opset = program.opsets.get("", 0)
        self._tile = tile
        self._layers = layers
        self._replacements: dict[str, Replacement] = {}
        self._changes: list[Change] = []
        self._partial_sums = 1

    def keeps(self, node: Node, why: str) -> bool:
        """Whether a node stays as it is, which is noted then; why is "" where it need not."""
        scope = node.scope
        if not is_chosen(scope, self._layers):
            why = LEFT_OUT
        elif not why and self._opset < OLDEST_OPSET:
            why = f"operator set {self._opset} is older than {OLDEST_OPSET}: convert the file first"
        if why:
            self._changes.append(Change(scope, node.operator, why=why))
        return bool(why)

    def replacement(self, node: Node, k: int, n: int, *, rows: int = 1, groups: int = 1) -> Replacement:
        """What is to take a node's place: products of k inputs to n outputs in each group."""
        into = Replacement(node, self.names.stem(node.outputs[0], "/tiles"))
        self._replacements[node.outputs[0]] = into
        what = became(self._tile, k, n, rows=rows, groups=groups)
        self._changes.append(Change(node.scope, node.operator, what))
        self._partial_sums = max(self._partial_sums, tiles_along(k, self._tile.k))
        return into

    def result(self) -> Rewritten:
        """The model with new nodes in the place of others, and without what nobody reads now."""
        nodes: list[NodeProto] = []
        tensors: list[TensorProto] = []
        for node in self._program.model.graph.node:
            into = self._replacements.get(node.output[0]) if node.output else None
            nodes.extend(into.nodes if into else (node,))
            tensors.extend(into.stored if into else ())
        return Rewritten(with_nodes(self._program, nodes, tensors), tuple(self._changes), self._partial_sums)


# Part of x, tile of the weight, and their place (k, n) → their product
Product = Callable[[str, str, int, int], str]


def column_sums(
    into: Replacement, parts: Sequence[str], tiles: Sequence[Sequence[str]], product: Product, prefix: str = ""
) -> list[str]:
    """One tile's width of outputs after the other: its products, summed in the order of K.

    parts are those of x by tiles, tiles the weight's by column and then by row.
    """
    sums = []
    for n, column in enumerate(tiles):
        total = ""
        for k, (part, weight) in enumerate(zip(parts, column, strict=True)):
            made = product(part, weight, k, n)
            total = into.node("Add", (total, made), f"{prefix}sum.k{k}.n{n}") if k else made
        sums.append(total)
    return sums


def split(into: Replacement, x: str, sizes: Sequence[int], part: str, *, axis: int) -> tuple[str, ...]:
    """Parts of a value along one axis; one part is the value itself."""
    if len(sizes) == 1:
        return (x,)
    names = [f"{part}.{each}" for each in range(len(sizes))]
    return into.split_node("Split", (x, into.integers(sizes, f"{part}.sizes")), names, axis=axis)


def joined(into: Replacement, parts: Sequence[str], part: str, *, axis: int) -> str:
    """Parts beside each other along one axis; one part is the value itself."""
    return parts[0] if len(parts) == 1 else into.node("Concat", parts, part, axis=axis)


def first_along(into: Replacement, x: str, size: int, part: str, *, axis: int) -> str:
    """The first elements of a value along one axis."""
    bounds = {"starts": [0], "ends": [size], "axes": [axis]}
    names = [into.integers(values, f"{part}.{bound}") for bound, values in bounds.items()]
    return into.node("Slice", (x, *names), part)
