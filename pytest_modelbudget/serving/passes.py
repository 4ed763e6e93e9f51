"""Prefill and decode step of a language model with its own cache, recorded as programs on tensors without memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from inspect import signature
from typing import Any

import torch
from torch import nn

from pytest_modelbudget.errors import DeviceError, TraceError
from pytest_modelbudget.formats.source import InputSpec, InputSpecs, ModelSource, Serving, TensorSpec
from pytest_modelbudget.graph.graph import Graph
from pytest_modelbudget.graph.tensor import DType
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.metrics.serving import CACHED, ServedGraph, Service
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.serving import huggingface
from pytest_modelbudget.serving.fitting import longest_fitting
from pytest_modelbudget.serving.formula import LONGEST, check_context, longest_context
from pytest_modelbudget.torch_models.building import built, converted
from pytest_modelbudget.torch_models.module import module_subject, to_eval_mode
from pytest_modelbudget.torch_models.outputs import content
from pytest_modelbudget.torch_models.recording import Scopes
from pytest_modelbudget.torch_models.tracing import traced
from pytest_modelbudget.torch_models.values import CallInputs, dtype_named, dtype_of
from pytest_modelbudget.torch_models.versions import memory_of
from pytest_modelbudget.units import with_article

CACHES = ("past_key_values", "cache_params")  # arguments of transformers' models, and attributes of what they return
IDS, DECODER_IDS, ENCODED = "input_ids", "decoder_input_ids", "encoder_outputs"
LAST_ONLY = "logits_to_keep"  # generation asks for the logits of the last token alone
WITHOUT_COMPUTING = ("meta", "fake")
FARTHEST = 8  # times the context: what a picture shows at the most


def serve(source: ModelSource, rules: OpTable, weights: Measurement) -> ServedGraph:
    """A decode step behind the context that a source is served with; weights is the memory of what is stored.

    Raises InputError for more tokens than the model knows, TraceError where no cache of it can be looked into.
    """
    serving = source.serving
    assert serving is not None, "a source that is served says how"
    model = huggingface.module(source) if source.format == huggingface.FORMAT else built(source)
    longest = _longest_context(getattr(model, "config", None))
    check_context(serving.context, longest)
    return _service(_Passes(model, source, rules), serving, weights, longest)


def _service(passes: _Passes, serving: Serving, weights: Measurement, known: int | None) -> ServedGraph:
    dtype = dtype_of(dtype_named(serving.cache_dtype)) if serving.cache_dtype else None
    most = min(known or FARTHEST * serving.context, FARTHEST * serving.context)
    shown = [max(1, most // part) for part in (16, 8, 4, 2, 1)]

    @cache
    def at(context: int) -> ServedGraph:
        prefill, kept = passes.prefill(serving.batch, context)
        behind = context if context != known else context - 1  # the one token is then the last that the model knows
        before = kept if behind == context else passes.prefill(serving.batch, behind)[1]
        decode = passes.decode(serving.batch, behind, before)
        program = CostedGraph(prefill, passes.rules)
        service = Service(
            program, tuple(_memories(kept)), weights, longest, dtype, serving.reserve,
            context=context, room=serving.memory, at=at, others=shown,
        )  # fmt: skip
        return ServedGraph(decode, passes.rules, service)

    def longest(memory: Callable[[CostedGraph], Measurement]) -> int:
        if serving.memory is None or known is None:
            lacks = "the model says no largest context" if serving.memory else "'memory' is not in serving: add 24 GB"
            raise DeviceError(f"max_context needs a bound: {lacks}")
        room = serving.memory
        return longest_fitting(lambda context: at(context).once(memory), room, known)

    return at(serving.context)


def _longest_context(config: Any) -> int | None:
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    return longest_context({name: getattr(text, name, None) for name in LONGEST})


@dataclasses.dataclass(frozen=True, slots=True)
class _Passes:
    """What records passes of one model."""

    model: nn.Module
    source: ModelSource
    rules: OpTable

    @property
    def _has_encoder(self) -> bool:
        return bool(getattr(getattr(self.model, "config", None), "is_encoder_decoder", False))

    def prefill(self, batch: int, context: int) -> tuple[Graph, Any]:
        """The program of a pass over a context, and the cache that it returns.

        A model with an encoder has as many tokens in both halves.
        """
        ids = TensorSpec("int64", (batch, context))
        named: dict[str, InputSpec] = {IDS: ids, **({DECODER_IDS: ids} if self._has_encoder else {})}
        return self._recorded(named, None)

    def decode(self, batch: int, context: int, kept: Any) -> Graph:
        """The program of one more token for each sequence, behind a cache."""
        tensors = dict(cached_tensors(kept))
        if not tensors:
            found = f"{with_article(type(kept).__name__)} without tensors" if kept is not None else "no cache"
            raise TraceError(f"{type(self.model).__name__} returns {found}: leave out 'serving'")
        specs = {path: TensorSpec(str(tensor.dtype), tuple(tensor.shape)) for path, tensor in tensors.items()}
        ids = TensorSpec("int64", (batch, 1))
        named: dict[str, InputSpec] = {IDS: ids, CACHED: specs}
        if self._has_encoder:
            config: Any = self.model.config
            dtype = str(next(self.model.parameters()).dtype)
            encoded = TensorSpec(dtype, (batch, context, int(config.hidden_size)))
            named = {DECODER_IDS: ids, ENCODED: encoded, CACHED: specs}
        return self._recorded(named, kept)[0]

    def _recorded(self, named: dict[str, InputSpec], kept: Any) -> tuple[Graph, Any]:
        """The program of a call with these inputs, and the cache that it returns; kept is one to begin with."""
        keys = signature(self.model.forward).parameters
        argument = next((name for name in CACHES if name in keys), CACHES[0])
        returned: list[Any] = []

        def run(inputs: CallInputs, scopes: Scopes) -> Any:
            to_eval_mode(self.model)
            arguments = dict(inputs.kwargs)
            given = arguments.pop(CACHED, None)
            if given is not None:
                memo = {id(tensor): given[path] for path, tensor in cached_tensors(kept)}
                arguments[argument] = deepcopy(kept, memo)
            if ENCODED in arguments:
                arguments[ENCODED] = (arguments[ENCODED],)
            arguments |= {"use_cache": True, **({LAST_ONLY: 1} if LAST_ONLY in keys else {})}
            output = self.model(**arguments)
            found = (getattr(output, name, None) for name in CACHES)
            returned.append(next((each for each in found if each is not None), None))
            return output[0], returned[-1]

        source = dataclasses.replace(self.source, format="torch", target=self.model, inputs=InputSpecs(named=named))
        dtype = converted(source.dtype)
        subject = dataclasses.replace(module_subject(self.model, source, dtype), run=run)
        graph = traced(subject, source.inputs, self.rules, dtype, ways=WITHOUT_COMPUTING).graph
        return graph, returned[-1]


def _memories(kept: Any) -> Iterator[tuple[str, int, DType]]:
    """The tensors of a cache, of those in one memory the first."""
    known = set[int]()
    for path, tensor in cached_tensors(kept):
        memory = memory_of(tensor)
        if memory not in known:
            yield path, tensor.numel() * tensor.element_size(), dtype_of(tensor.dtype)
        known.add(memory)


def cached_tensors(value: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    """(path, tensor) of each tensor in a cache: "layers.0.keys"."""
    seen = set() if seen is None else seen
    if isinstance(value, torch.Tensor):
        yield path, value
    elif value is not None and id(value) not in seen and not isinstance(value, (str, bytes)):
        seen.add(id(value))
        for key, part in content(value) or ():
            yield from cached_tensors(part, f"{path}.{key}" if path else str(key), seen)
