"""The editor schema (JSON Schema, draft-07) of a budget file, made from the reader's own tables.

It is coarser than the reader: it knows keys, shapes and units, not paths, op kinds or sums.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pytest_modelbudget.budget import grammar
from pytest_modelbudget.budget.budget import Level, Loosen
from pytest_modelbudget.budget.grammar import (
    CLAIM,
    CLAIM_FORMS,
    OUTPUT,
    Field,
    Form,
    Grammar,
    transform_schema,
)
from pytest_modelbudget.budget.read_limits import OP_NAME_PATTERN
from pytest_modelbudget.budget.read_source import SPEC_PATTERN, is_path_format
from pytest_modelbudget.formats.table import FrontEnd
from pytest_modelbudget.metrics.measurement import Metric
from pytest_modelbudget.transforms.table import transform_table
from pytest_modelbudget.transforms.transform import Transform
from pytest_modelbudget.units import quantity_pattern, unit_named

Schema = dict[str, Any]

FILE_NAME = "model-budget.schema.json"
_SIZE: Schema = {"type": "integer", "minimum": 0, "maximum": grammar.LARGEST_SIZE}
_BOUND: Schema = {
    "type": "integer",
    "minimum": -grammar.LARGEST_SIZE,
    "maximum": grammar.LARGEST_SIZE,
}
_NAME: Schema = {"type": "string", "pattern": r"^(?!.*(::|[\[@\r\n]))\S(.*\S)?$"}
_OP_NAMES: Schema = {
    "type": "array",
    "items": {"type": "string", "pattern": f"^{OP_NAME_PATTERN}$"},
}
_SELECTORS: Schema = {"type": "array", "items": {"type": "string"}, "minItems": 1}


def json_schema(
    metrics: Mapping[str, Metric],
    front_ends: Mapping[str, FrontEnd],
    transforms: Mapping[str, Transform] | None = None,
) -> Schema:
    """The schema of budget files over these metrics and formats."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Model budget",
        "description": "Size limits of neural networks, held by pytest --model-budget",
        **_mapping(grammar.FILE.fields),
        "definitions": {
            **_OF_FORM,
            **_limits(metrics),
            Form.DEFAULTS.value: _mapping(grammar.DEFAULTS.fields),
            "input": _one_input(),
            "model": _model(front_ends),
            "variant": {
                **_mapping(grammar.VARIANT.fields),
                **_holding("limits", "scopes", "transforms"),
            },
            Form.TRANSFORM.value: transform_schema(
                transform_table() if transforms is None else transforms, front_ends
            ),
            Form.TRANSFORMS.value: _named(
                "transform",
                {"allOf": [_NAME, {"not": {"enum": sorted(grammar.taken_names(metrics))}}]},
            ),
            **_claim(),
            Form.VARIANTS.value: _named(
                "variant",
                {"allOf": [_NAME, {"not": {"enum": sorted(grammar.taken_names(metrics))}}]},
            ),
        },
    }


def schema_text(
    metrics: Mapping[str, Metric],
    front_ends: Mapping[str, FrontEnd],
    transforms: Mapping[str, Transform] | None = None,
) -> str:
    """The schema as the text of a file."""
    return (
        json.dumps(json_schema(metrics, front_ends, transforms), indent=2, ensure_ascii=False)
        + "\n"
    )


def _ref(name: str) -> Schema:
    return {"$ref": f"#/definitions/{name}"}


def _mapping(fields: Iterable[Field]) -> Schema:
    """A mapping of known keys; draft-07 ignores what stands beside a $ref, hence allOf."""
    listed = tuple(fields)
    schema: Schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            each.key: {"description": each.about, "allOf": [_ref(each.form.value)]}
            for each in listed
        },
    }
    required = [each.key for each in listed if each.required]
    return {**schema, "required": required} if required else schema


def _named(item: str, names: Schema) -> Schema:
    """A mapping whose keys are of the user's choice."""
    return {
        "type": "object",
        "minProperties": 1,
        "propertyNames": names,
        "additionalProperties": _ref(item),
    }


def _holding(*keys: str) -> Schema:
    """That at least one of these keys is there."""
    return {"anyOf": [{"required": [key]} for key in keys]}


def _claim() -> Schema:
    """What may stand under equivalence, and its parts."""
    kinds = _ref(Form.KIND.value)
    return {
        **CLAIM_FORMS,
        "output": _mapping(OUTPUT.fields),
        Form.OUTPUT_BOUNDS.value: _named("output", {"minLength": 1}),
        Form.EQUIVALENCE.value: {"anyOf": [kinds, _mapping(CLAIM.fields)]},
    }


def _one_input() -> Schema:
    spelled_out = _mapping(grammar.SPEC.fields)
    return {"anyOf": [{"type": "string", "pattern": rf"^\s*{SPEC_PATTERN}\s*$"}, spelled_out]}


def _model(front_ends: Mapping[str, FrontEnd]) -> Schema:
    """A model: one source; arguments under callables only; something to hold."""
    sources = []
    for key, front_end in front_ends.items():
        others = [other for other in front_ends if other != key]
        if is_path_format(front_end):
            others += ["args", "kwargs", "dtype"]
        if not front_end.brings_inputs:
            others.append("dims")
        absent = [{"required": [other]} for other in others]
        sources.append({"required": [key], "not": {"anyOf": absent}})
    return {
        **_mapping(grammar.model_grammar(front_ends).fields),
        "allOf": [{"oneOf": sources}, _holding("limits", "scopes", "variants", "transforms")],
    }


def _limits(metrics: Mapping[str, Metric]) -> Schema:
    """Limits of whole models and of scopes, and one definition for each unit of a limit."""
    whole = grammar.limits_grammar(metrics)
    scoped = grammar.limits_grammar(metrics, scoped=True)
    return {
        **{_limit_name(each): _limit(each) for each in metrics.values() if not each.by_kind},
        Form.OPS_LIMIT.value: {
            **_mapping(grammar.OPS_LIMIT.fields), **_holding("allow", "deny", "max")
        },
        Form.LIMITS.value: _limits_mapping(whole, metrics),
        "scoped_limits": _limits_mapping(scoped, metrics),
        Form.SCOPES.value: _named("scoped_limits", {"pattern": r"^(?!.*(::|@))\S(.*\S)?$"}),
    }  # fmt: skip


def _limit_name(metric: Metric) -> str:
    if metric.by_kind:
        return Form.OPS_LIMIT.value
    return f"limit_in_{metric.unit.replace('/', '_per_')}"


def _limits_mapping(limits: Grammar, metrics: Mapping[str, Metric]) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "minProperties": 1,
        "properties": {
            each.key: {
                "description": each.about,
                "allOf": [_ref(_limit_name(metrics[each.key]))],
            }
            for each in limits.fields
        },
    }


def _limit(metric: Metric) -> Schema:
    forms: list[Schema] = [
        {"type": "integer", "minimum": 0},
        {"type": "string", "pattern": quantity_pattern(metric.unit)},
    ]
    bound = {"anyOf": [*forms, {"const": grammar.AUTO}]}
    mapping = _mapping(grammar.LIMIT.fields)
    for each in grammar.LIMIT.fields:
        if each.form in (Form.BOUND, Form.QUANTITY):
            value = bound if each.form is Form.BOUND else {"anyOf": forms}
            mapping["properties"][each.key] = {"description": each.about, **value}
    mapping["dependencies"] = {"floor": ["grow"]}
    ends = ["max", "min", "grow"]
    if not unit_named(metric.unit).whole:
        del mapping["properties"]["grow"], mapping["properties"]["floor"]
        ends.remove("grow")
    return {"anyOf": [bound, {**mapping, **_holding(*ends)}]}


# What each form of value is, but for those that are made from tables above.
_OF_FORM: Schema = {
    Form.VERSION.value: {"const": grammar.VERSION},
    Form.MODELS.value: _named("model", _NAME),
    Form.TARGET.value: {"type": "string", "minLength": 1},
    Form.VALUES.value: {"type": "array"},
    Form.NAMED_VALUES.value: {"type": "object"},
    Form.INPUTS.value: {
        "anyOf": [
            _ref("input"),
            {"type": "array", "items": _ref("argument")},
            {
                "type": "object",
                "minProperties": 1,
                "not": {"anyOf": [{"required": ["dtype"]}, {"required": ["shape"]}]},
                "additionalProperties": _ref("argument"),
            },
        ]
    },
    "argument": {"anyOf": [_ref("input"), {"type": "array", "items": _ref("argument")}]},
    Form.DTYPE.value: {"enum": list(grammar.DTYPES)},
    Form.FLOATING_DTYPE.value: {"enum": list(grammar.FLOATING)},
    Form.SHAPE.value: {
        "anyOf": [
            {"type": "array", "items": _SIZE, "maxItems": grammar.MOST_DIMENSIONS},
            {"type": "string", "pattern": "^[0-9]+(x[0-9]+)*$"},
            _SIZE,
        ]
    },
    Form.INTEGER.value: _BOUND,
    Form.DIMS.value: {"type": "object", "minProperties": 1, "additionalProperties": _SIZE},
    Form.LEVEL.value: {"enum": [level.value for level in Level]},
    Form.LOOSEN.value: {"enum": [loosen.value for loosen in Loosen]},
    Form.PERCENTAGE.value: {"type": "string", "pattern": quantity_pattern("%")},
    Form.OP_NAMES.value: _OP_NAMES,
    Form.SELECTORS.value: _SELECTORS,
    Form.OP_COUNTS.value: {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": quantity_pattern("op")},
            ]
        },
    },
}
