"""What a budget file may say: every key, in explicit tables that reader and editor schema share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pytest_modelbudget.equivalence.claim import Bound, Kind
from pytest_modelbudget.formats.table import FrontEnd
from pytest_modelbudget.metrics.measurement import Metric
from pytest_modelbudget.transforms.transform import Setting, SettingForm, Transform

VERSION = 1
MARKER = "model_budget"
SUFFIXES = (".yaml", ".yml")
LARGEST = 1_000_000  # bytes of a budget file
MOST_DIMENSIONS = 16
LARGEST_SIZE = 2**63 - 1  # of one dimension, and of an integer input's value

FLOATING = ("float16", "bfloat16", "float32", "float64")
INTEGER = ("int8", "int16", "int32", "int64", "uint8")
DTYPES = (*FLOATING, *INTEGER, "bool", "complex64", "complex128")

# Metrics whose issue is still to come.
RESERVED_METRICS = ("training_macs", "peak_activation_best", "activation_arena", "latency_bound")
# Anywhere in a file, whether or not they will stand there: none of them is a slip of the pen.
RESERVED = ("fits", "hardware", "measured", "statistics")
AUTO = "auto"  # in place of a max or min that --model-budget-update=create is to fill in


class Form(str, Enum):
    """What a value looks like; each has one schema, and a reader that agrees with it."""

    VERSION = "version"
    DEFAULTS = "defaults"
    MODELS = "models"
    TARGET = "target"
    VALUES = "values"
    NAMED_VALUES = "named_values"
    INPUTS = "inputs"
    DTYPE = "dtype"
    FLOATING_DTYPE = "floating_dtype"
    SHAPE = "shape"
    INTEGER = "integer"
    DIMS = "dims"
    LIMITS = "limits"
    SCOPES = "scopes"
    VARIANTS = "variants"
    LIMIT = "limit"
    OPS_LIMIT = "ops_limit"
    QUANTITY = "quantity"
    BOUND = "bound"
    PERCENTAGE = "percentage"
    LOOSEN = "loosen"
    LEVEL = "level"
    OP_NAMES = "op_names"
    SELECTORS = "selectors"
    OP_COUNTS = "op_counts"
    TRANSFORMS = "transforms"
    TRANSFORM = "transform"
    EQUIVALENCE = "equivalence"
    KIND = "kind"
    NUMBER = "number"
    WHOLE_NUMBERS = "whole_numbers"
    FLAG = "flag"
    OUTPUT_BOUNDS = "output_bounds"


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a mapping: what its value looks like, and what it says (editors show that)."""

    key: str
    form: Form
    about: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Grammar:
    """The keys of one kind of mapping; what names it in messages ("a limit")."""

    what: str
    fields: tuple[Field, ...]
    reserved: tuple[str, ...] = ()

    def keys(self) -> list[str]:
        return [field.key for field in self.fields]


INPUTS = Field("inputs", Form.INPUTS, "one spec such as float32 1x3x224x224, a list, or by name")
DTYPE = Field("dtype", Form.FLOATING_DTYPE, "converts the model's floating-point weights")
DIMS = Field("dims", Form.DIMS, "sizes of the symbolic dimensions that the file brings")
LIMITS = Field("limits", Form.LIMITS, "metric: quantity, or metric: {max, min, grow, level}")
SCOPES = Field("scopes", Form.SCOPES, "limits on a part of the model, by a glob on module paths")
TRANSFORMS = Field("transforms", Form.TRANSFORMS, "changes to the model, and what must still hold")
ALLOWED = Field("allow_unmeasured", Form.OP_NAMES, "ops accepted without a formula: aten::foo")
LEVEL = Field("level", Form.LEVEL, "error fails the check when over, warn does not")

FILE = Grammar(
    "a budget file",
    (
        Field(MARKER, Form.VERSION, "the version of this format", required=True),
        Field("defaults", Form.DEFAULTS, "what models say that do not say it themselves"),
        Field("models", Form.MODELS, "every model by a name of your choice", required=True),
        Field("loosen", Form.LOOSEN, "forbid fails what loosens a limit or redefines a model"),
    ),
    reserved=RESERVED,
)
DEFAULTS = Grammar("the defaults", (INPUTS, DTYPE), reserved=("level", *RESERVED))
VARIANT = Grammar(
    "a variant",
    (INPUTS, DIMS, DTYPE, LIMITS, SCOPES, ALLOWED, TRANSFORMS),
    reserved=RESERVED,
)
LIMIT = Grammar(
    "a limit",
    (
        Field("max", Form.BOUND, "the largest value that is within, itself included"),
        Field("min", Form.BOUND, "the smallest value that is within, itself included"),
        Field("grow", Form.PERCENTAGE, "how much more than its locked value it may be"),
        Field("floor", Form.QUANTITY, "growth that is within however little grow is"),
        LEVEL,
        ALLOWED,
    ),
    reserved=RESERVED,
)
OPS_LIMIT = Grammar(
    "a limit on ops",
    (
        Field("allow", Form.SELECTORS, "the only kinds (or foreign names) that may run"),
        Field("deny", Form.SELECTORS, "kinds (or foreign names) that may not run"),
        Field("max", Form.OP_COUNTS, "how often a kind (or foreign name) may run"),
        LEVEL,
        ALLOWED,
    ),
    reserved=RESERVED,
)
SPEC = Grammar(
    "an input",
    (
        Field("dtype", Form.DTYPE, "element type", required=True),
        Field("shape", Form.SHAPE, "sizes, outermost first; [] is a scalar", required=True),
        Field("low", Form.INTEGER, "smallest integer that is drawn"),
        Field("high", Form.INTEGER, "the integer above the largest one that is drawn"),
    ),
)


def model_grammar(front_ends: Mapping[str, FrontEnd]) -> Grammar:
    """The keys of a model: one source out of the table of formats, and what it is run on."""
    rest = (INPUTS, DTYPE, DIMS, LIMITS, SCOPES, ALLOWED, TRANSFORMS)
    variants = Field("variants", Form.VARIANTS, "the same model under other inputs, own limits")
    return Grammar(
        "a model",
        (*_sources(front_ends), *ARGUMENTS, *rest, variants),
        reserved=RESERVED,
    )


ARGUMENTS = (
    Field("args", Form.VALUES, "positional arguments of the callable under torch:"),
    Field("kwargs", Form.NAMED_VALUES, "keyword arguments of the callable under torch:"),
)


def second_source_grammar(front_ends: Mapping[str, FrontEnd]) -> Grammar:
    """The keys of a model that another one is compared with."""
    return Grammar("a second model", (*_sources(front_ends), *ARGUMENTS, DTYPE), reserved=RESERVED)


def _sources(front_ends: Mapping[str, FrontEnd]) -> tuple[Field, ...]:
    return tuple(Field(each.key, Form.TARGET, each.target) for each in front_ends.values())


def limits_grammar(metrics: Mapping[str, Metric], *, scoped: bool = False) -> Grammar:
    """The keys of limits: every metric; of a part of a model, every metric that it has."""
    fields = tuple(
        Field(key, Form.OPS_LIMIT if metric.by_kind else Form.LIMIT, metric.definition)
        for key, metric in metrics.items()
        if metric.has_scopes or not scoped
    )
    return Grammar("limits", fields, reserved=(*_unless(RESERVED_METRICS, metrics), *RESERVED))


def taken_names(metrics: Mapping[str, Metric]) -> frozenset[str]:
    """Names that no variant may have, because checks have them."""
    return frozenset((*metrics, *RESERVED_METRICS, "equivalence"))


def _unless(reserved: Iterable[str], available: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(key for key in reserved if key not in available)


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
