"""A model after its format has stopped mattering."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_modelbudget.graph.graph import Graph
from pytest_modelbudget.graph.tensor import Tensor


@dataclass(frozen=True, slots=True)
class LayerCall:
    """One call of one layer of the module tree, for the layer table.

    scope is its module path, type its class name; kernel is the window of a convolution or pool,
    () where there is none.
    """

    scope: str
    type: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    kernel: tuple[int, ...] = ()
    leaf: bool = True


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A measured model: its graph, its layers in call order, and how the graph was obtained.

    traced is "meta" (no compute), "fake" (no compute, with devices and constants kept) or "real"
    (one run on seeded inputs, where data decides the shapes); "" for formats that are read.
    notes say what a reader of the numbers must know, such as "recorded under no_grad".
    """

    graph: Graph
    format: str
    traced: str = ""
    layers: tuple[LayerCall, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """One operation or layer that a transform met.

    became says what it was changed into ("9,216 products of 64x64"), and is "" where it stayed as
    it was; why then says for what reason.
    """

    scope: str
    operation: str
    became: str = ""
    why: str = ""
