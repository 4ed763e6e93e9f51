"""Metrics of a language model in service: of a decode step behind a cache, which is its input, and of the prefill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction

from pytest_modelbudget.errors import ModelBudgetError
from pytest_modelbudget.graph.graph import Graph, lifetimes, live_nbytes
from pytest_modelbudget.graph.tensor import DType, nbytes_of
from pytest_modelbudget.metrics.compute import macs
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.measurement import ByFormula, Measurement, Metric, Stage, Term, summed
from pytest_modelbudget.metrics.storage import unsized_activations
from pytest_modelbudget.ops.table import OpTable


@dataclass(frozen=True, slots=True)
class Service:
    """What a model is served with, and what a pass over the whole context costs.

    cache has the name, bytes and type of each tensor that is kept, "layers.0.keys", each memory once. weights is the
    ``weight_memory`` of what is stored. cache_dtype is the type of its floating values in place of that of the program;
    reserve are bytes that something else takes. longest gives the most tokens whose memory fits; convention says how a
    cache without a program came about. context is that of the step, room a memory that it has to fit; at gives the step
    behind others, of which a picture shows some.
    """

    prefill: CostedGraph
    cache: Sequence[tuple[str, int, DType]]
    weights: Measurement
    longest: Callable[[Callable[[CostedGraph], Measurement]], int]
    cache_dtype: DType | None = None
    reserve: int = 0
    convention: str = ""
    context: int = 0
    room: int | None = None
    at: Callable[[int], CostedGraph] | None = None
    others: Sequence[int] = ()


class ServedGraph(CostedGraph):
    """A decode step, and the service that it is a part of."""

    def __init__(self, graph: Graph, rules: OpTable, service: Service) -> None:
        super().__init__(graph, rules)
        self.service = service


def _service(costed: CostedGraph) -> Service:
    assert isinstance(costed, ServedGraph), "metrics of this stage have no other graph"
    return costed.service


def kv_cache(costed: CostedGraph) -> Measurement:
    """Bytes of all tensors that the program keeps from step to step, each memory once, by layer."""
    service, own = _service(costed), _service(costed).cache_dtype
    cached = ((name.rpartition(".")[0], _as_type(nbytes, written, own)) for name, nbytes, written in service.cache)
    return summed(cached, "B", convention=service.convention or None)


def _as_type(nbytes: int, written: DType, dtype: DType | None) -> int:
    """Bytes of the same values in another type; whole numbers, which only count, keep theirs."""
    if dtype is None or written.is_integer or written.name == "bool":
        return nbytes
    return nbytes_of(int(Fraction(nbytes * 8) / written.bits), dtype)


def serving_memory(costed: CostedGraph) -> Measurement:
    """Weights, cache, what else lives at the larger peak of prefill and decode step, and what is reserved."""
    service, cache, programs = _service(costed), costed.once(kv_cache), (costed, _service(costed).prefill)
    activations = max(_peak(each.graph, service.cache_dtype) for each in programs) - int(cache.value)
    parts = {"weights": int(service.weights.value), "cache": int(cache.value), "activations": max(0, activations)}
    parts |= {"reserve": service.reserve} if service.reserve else {}
    unmeasured = (*service.weights.unmeasured, *(op for each in programs for op in unsized_activations(each.graph)))
    return Measurement(sum(parts.values()), "B", (), unmeasured, parts)


def _peak(graph: Graph, dtype: DType | None) -> int:
    """Most bytes that live at once, where the cache that is given and the one that is returned have their own type."""
    given = (each for each in graph.inputs if each.name.startswith(f"input.{CACHED}."))
    kept = {each.storage: _as_type(each.storage.nbytes, each.dtype, dtype) for each in (*given, *graph.outputs[1:])}
    alive = {replace(each, nbytes=kept.get(each, each.nbytes)): life for each, life in lifetimes(graph).items()}
    return max(live_nbytes(alive, max(len(graph.ops), 1)))


def max_context(costed: CostedGraph) -> Measurement:
    """The most tokens whose ``serving_memory`` fits; never more than the model knows."""
    return Measurement(_service(costed).longest(serving_memory), "token")


def memory_by_context(costed: CostedGraph) -> Iterator[tuple[int, Mapping[str, int | Fraction]]]:
    """(tokens, parts of ``serving_memory``) of the step, and behind other contexts that its program runs at."""
    service = _service(costed)
    for tokens in sorted({service.context, *service.others}):
        with suppress(ModelBudgetError):
            yield tokens, (service.at(tokens) if service.at else costed).once(serving_memory).parts


CACHED = "cache"  # the input of a decode step that is the cache
WHOLE = "it is one moment of the whole model"
ROWS = (  # key, unit, definition, measure, how, why not by scope, what people also say
    ("kv_cache", "B", "bytes that the program keeps from step to step", kv_cache, None, "", ("cache", "kv")),
    ("serving_memory", "B", "weights, cache, and the largest peak of prefill and decode step", serving_memory, None,
     WHOLE, ("inference_memory", "vram")),
    ("max_context", "token", "most tokens whose serving_memory fits", max_context, None, WHOLE, ("context",)),
    ("prefill_macs", "MAC", "macs of a pass over the whole context",
     lambda costed: _service(costed).prefill.once(macs), None, "", ()),
    ("decode_macs", "MAC", "macs of one token behind the cached ones", macs, ByFormula((Term("macs"),)), "",
     ("token_macs", "macs_per_token")),
)  # fmt: skip
SERVING = tuple(
    Metric(key, unit, says, of, how, why, stage=Stage.SERVED, also=also) for key, unit, says, of, how, why, also in ROWS
)
