"""Models as costed graphs, as they are written and lowered for a device; and what must be true of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_modelbudget.deployment.products import products
from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.gate import measuring
from pytest_modelbudget.gate.from_python import model_source
from pytest_modelbudget.graph.graph import Graph, lifetimes, live_nbytes
from pytest_modelbudget.lowering.lowered import Lowered, Lowering, lowered
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.registry import tables

IMAGE = "float32 1x3x224x224"
# Kinds that have MACs and are no matrix product of known sizes, and why.
NO_PRODUCTS = {
    "lstm": "each step waits for the one before",
    "gru": "each step waits for the one before",
    "rnn": "each step waits for the one before",
    "lstm_cell": "a step of a layer",
    "gru_cell": "a step of a layer",
    "rnn_cell": "a step of a layer",
    "linear_attention": "a state that each step adds to",
    "local_attention": "the data choose keys",
    "unpadded_attention": "the data say how long each sequence is",
    "embedding_bag": "bags of different sizes, which the data decide",
    "mixture_of_experts": "how many rows each expert has, the data decide",
    "solve": "substitutions wait for one another",
    "attention_gradient": "of a training step, which no deployment runs",
    "convolution_gradient": "of a training step, which no deployment runs",
}


@dataclass(frozen=True)
class Program:
    """A lowered model, and its numbers by metric."""

    lowered: Lowered
    costed: CostedGraph

    def __getitem__(self, metric: str) -> int:
        measurement = tables().metrics[metric].of(self.costed)
        assert measurement.complete
        return int(measurement.value)


def costed(source: object, inputs: object = None) -> CostedGraph:
    """A model's operations with their costs."""
    asked = model_source(source, inputs, registry=tables(), base=Path.cwd())
    return measuring.costed_model(asked, tables(), root=Path.cwd()).costed


def program(source: object, inputs: object = None, **lowering: object) -> Program:
    """A model lowered with these settings."""
    written = costed(source, inputs)
    result = lowered(written.graph, written.rules, Lowering(**lowering))  # type: ignore[arg-type]
    return Program(result, CostedGraph(result.graph, written.rules))


def peak(graph: Graph) -> int:
    """The most bytes that live at once."""
    return max(live_nbytes(lifetimes(graph), positions=max(len(graph.ops), 1)))


def assert_same_macs(costed: CostedGraph) -> None:
    """Each operation's products have its MACs; only what the table names has none."""
    for cost in costed.costs:
        try:
            macs = sum(product.macs for product in products(cost.op, costed.rules))
        except UnmeasurableError:
            assert cost.kind in NO_PRODUCTS or not isinstance(cost.macs, int)
        else:
            assert macs == cost.macs, cost.op
