"""What ONNX Runtime says of a model without its weights: its private names are used here alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import onnx
from onnx import TensorProto

from pytest_modelbudget.errors import MissingExtraError, SourceError
from pytest_modelbudget.onnx_models.protos import domain_of
from pytest_modelbudget.onnx_models.value_types import ValueType

CODES = {f"tensor({name.lower()})": code for name, code in TensorProto.DataType.items()}
PROVIDERS = ["CPUExecutionProvider"]
UNSAFE = ["TransposeOptimizer"]  # it gives results of unknown rank a wrong one
RANK = "{}::rank"  # of a value, whose shape ONNX Runtime shows as () where it knows none


class RefusedError(SourceError):
    """A model that ONNX Runtime does not load, in its own words."""


@lru_cache(maxsize=1)
def _runtime() -> tuple[Any, Any]:
    """ONNX Runtime, and what it is made of."""
    try:
        import onnxruntime
        from onnxruntime.capi import _pybind_state
    except ModuleNotFoundError as error:
        words = "working out the shapes of this model"
        raise MissingExtraError(words, package=str(error.name), extra="onnx") from error
    return onnxruntime, _pybind_state


@lru_cache(maxsize=1)
def _schemas() -> Mapping[tuple[str, str], int]:
    """The newest version of every operator that ONNX Runtime knows, by domain and name."""
    found: dict[tuple[str, str], int] = {}
    for schema in _runtime()[1].get_all_operator_schema():
        key = domain_of(schema.domain), schema.name
        found[key] = max(found.get(key, 0), schema.since_version)
    return found


def is_runtimes(domain: str, name: str) -> bool:
    """Whether ONNX Runtime knows an operator."""
    return (domain_of(domain), name) in _schemas()


@lru_cache(maxsize=1)
def newest_opset() -> int:
    """The newest version of ONNX's own operators that ONNX Runtime knows, as far as its operators say."""
    return max(version for (domain, _), version in _schemas().items() if not domain)


def _options(*, folds: bool = True) -> Any:
    runtime, _ = _runtime()
    options = runtime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads, options.inter_op_num_threads = 4, 1, 1
    levels = runtime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_BASIC if folds else levels.ORT_DISABLE_ALL
    return options


def result_types(model: onnx.ModelProto, names: Sequence[str]) -> dict[str, ValueType]:
    """Types of these values of a model, constants folded. Raises RefusedError where ONNX Runtime does not load it."""
    try:
        types = _output_types(model, names)
    except RefusedError:  # also for a further result of which its operators do not say the type
        firsts = {node.output[0] for node in model.graph.node}
        types = _output_types(model, [name for name in names if name in firsts])
    unranked = [name for name, known in types.items() if known.shape == () and not known.container]
    if unranked:
        ranks = onnx.ModelProto.FromString(model.SerializeToString())
        ranks.graph.node.extend(onnx.helper.make_node("Shape", [name], [RANK.format(name)]) for name in unranked)
        found = _output_types(ranks, [RANK.format(name) for name in unranked])
        for name in unranked:
            if found[RANK.format(name)].sizes is None:
                types[name] = ValueType(types[name].code)
    return types


def _output_types(model: onnx.ModelProto, names: Sequence[str]) -> dict[str, ValueType]:
    """The same, where a shape of () may be none: of a session, or where it lacks a kernel, of what it loads."""
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    runtime, private = _runtime()
    content = model.SerializeToString()
    try:
        outputs = runtime.InferenceSession(
            content, _options(), providers=PROVIDERS, disabled_optimizers=UNSAFE
        ).get_outputs()
    except Exception:  # noqa: BLE001  # of many classes
        try:
            outputs = private.InferenceSession(_options(folds=False), content, False, False).outputs_meta
        except Exception as error:  # of many classes, as above
            raise RefusedError(str(error)) from error
    return {output.name: _type(output) for output in outputs}


def _type(output: Any) -> ValueType:
    if output.type not in CODES:
        return ValueType(container=output.type.partition("(")[0].replace("seq", "sequence"))
    shape = tuple([size if isinstance(size, int) else size or None for size in output.shape])
    return ValueType(CODES[output.type], shape)


def constant(model: onnx.ModelProto, name: str) -> Any:
    """The value of a model that reads no input; None where ONNX Runtime does not work it out."""
    model.graph.output.append(onnx.ValueInfoProto(name=name))
    runtime, _ = _runtime()
    try:
        session = runtime.InferenceSession(model.SerializeToString(), _options(folds=False), providers=PROVIDERS)
        value = session.run(None, {})[0]
    except Exception:  # noqa: BLE001  # of many classes
        return None  # then what it decides stays unknown, and that is said
    return value if hasattr(value, "dtype") else None
