"""What a budget may say under ``transforms:``, and the editor schema of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_modelbudget.budget.grammar import (
    ALLOWED,
    LIMITS,
    RESERVED,
    SCOPES,
    Field,
    Form,
    Grammar,
)
from pytest_modelbudget.equivalence.claim import Bound, Kind
from pytest_modelbudget.frontends.frontend_table import FrontEnd
from pytest_modelbudget.transforms.transform import Setting, SettingForm, Transform

Schema = dict[str, Any]

ABOUT_EQUIVALENCE = "that the outputs are still the same: exact_algebra, or {kind: lossy, sqnr: 30}"
EQUIVALENCE = Field("equivalence", Form.EQUIVALENCE, ABOUT_EQUIVALENCE)
BOUNDS: Mapping[Bound, str] = {
    Bound.MAX_ABS: "largest absolute error of an element",
    Bound.MSE: "largest mean squared error",
    Bound.SQNR: "least signal-to-quantisation-noise ratio, in dB",
    Bound.COSINE: "least cosine between the outputs",
    Bound.TOP1: "least share of rows whose largest element is the same one",
    Bound.P99_ABS: "largest absolute error of 99 % of the elements",
}
BOUND_FIELDS = tuple(Field(bound.value, Form.NUMBER, about) for bound, about in BOUNDS.items())
OUTPUT = Grammar("the bounds of an output", BOUND_FIELDS)
CLAIM = Grammar(
    "an equivalence",
    (
        Field("kind", Form.KIND, "which test decides", required=True),
        Field("seeds", Form.WHOLE_NUMBERS, "seeds of the inputs; 0, 1 and 2"),
        Field("batch", Form.WHOLE_NUMBERS, "sizes of the first dimension of inputs: [1, 3]"),
        Field("same_non_finite", Form.FLAG, "accept NaN and Inf at identical positions"),
        *BOUND_FIELDS,
        Field("outputs", Form.OUTPUT_BOUNDS, "bounds of single outputs, by name"),
    ),
)


def transform_grammar(transforms: Mapping[str, Transform]) -> Grammar:
    """The keys of one entry under transforms: one transform, what is held, and how."""
    keys = tuple(Field(each.key, Form.TRANSFORM, each.about) for each in transforms.values())
    return Grammar("a transform", (*keys, EQUIVALENCE, LIMITS, SCOPES, ALLOWED), reserved=RESERVED)


def settings_grammar(transform: Transform) -> Grammar:
    """The settings of one transform."""
    fields = tuple(
        Field(each.key, Form.VALUES, each.about, required=each.required)
        for each in transform.settings
    )
    return Grammar(f"'{transform.key}'", fields)


# The editor schema.

_NUMBER: Schema = {
    "anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^[0-9.]+([eE][-+]?[0-9]+)?%?$"}]
}
_WHOLE_NUMBERS: Schema = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
CLAIM_FORMS: Schema = {
    Form.NUMBER.value: _NUMBER,
    Form.KIND.value: {"enum": [kind.value for kind in Kind]},
    Form.WHOLE_NUMBERS.value: _WHOLE_NUMBERS,
    Form.FLAG.value: {"type": "boolean"},
}


def transform_schema(
    transforms: Mapping[str, Transform], front_ends: Mapping[str, FrontEnd]
) -> Schema:
    """Definitions of a transform and of what it may be given; other keys refer to them."""
    fields = transform_grammar(transforms).fields
    properties: Schema = {}
    for each in fields:
        if each.form is Form.TRANSFORM:
            value = _value_schema(transforms[each.key], front_ends)
            properties[each.key] = {"description": each.about, **value}
        else:
            reference = {"$ref": f"#/definitions/{each.form.value}"}
            properties[each.key] = {"description": each.about, "allOf": [reference]}
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "oneOf": [{"required": [key]} for key in transforms],
        "anyOf": [{"required": [key]} for key in ("equivalence", "limits", "scopes")],
    }


def _value_schema(transform: Transform, front_ends: Mapping[str, FrontEnd]) -> Schema:
    if transform.whole is not None:
        return _setting_schema(transform.whole, front_ends)
    schema: Schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            each.key: {"description": each.about, **_setting_schema(each, front_ends)}
            for each in transform.settings
        },
    }
    required = [each.key for each in transform.settings if each.required]
    return {**schema, "required": required} if required else schema


def _setting_schema(setting: Setting, front_ends: Mapping[str, FrontEnd]) -> Schema:
    size: Schema = {"type": "integer", "minimum": 1}
    text: Schema = {"type": "string", "minLength": 1}
    several: Schema = {"type": "array", "items": text, "minItems": 1}
    count = len(setting.axes)
    sizes: Schema = {"type": "array", "items": size, "minItems": count, "maxItems": count}
    schemas: Mapping[SettingForm, Schema] = {
        SettingForm.TILE: {"anyOf": [size, sizes]},
        SettingForm.WORD: {"enum": list(setting.words)},
        SettingForm.GLOBS: {"anyOf": [text, several]},
        SettingForm.INTEGER: {"type": "integer"},
        SettingForm.FLAG: {"type": "boolean"},
        SettingForm.TARGET: text,
        SettingForm.VALUES: {"type": "object"},
        SettingForm.SOURCE: {
            "type": "object",
            "oneOf": [{"required": [key]} for key in front_ends],
            "additionalProperties": False,
            "properties": {
                **dict.fromkeys(front_ends, text),
                "args": {"type": "array"},
                "kwargs": {"type": "object"},
                "dtype": {"$ref": "#/definitions/floating_dtype"},
            },
        },
    }
    return schemas[setting.form]
