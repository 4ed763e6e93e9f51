"""The JSON Schema (draft-07) of a lock file: what ``read_lock`` takes, as far as a schema can say it.

What it cannot say: that no key stands there twice, that a pair is the value that it was rounded to, and of which units
only whole numbers exist.
"""

import json
from typing import Any

from pytest_modelbudget.budget.lock_file import DECIMAL, MOST, SCHEMA

COUNT = {"type": "integer", "minimum": 0, "maximum": MOST}
WORD_OR_NULL = {"type": ["string", "null"]}
SHAPE = {"anyOf": [{"type": "array", "items": COUNT}, {"type": "null"}]}
PART: dict[str, Any] = {
    "description": "A layer or stored tensor that the number is made of: scope, tensor or null, value, shape or null.",
    "type": "array",
    "items": [{"type": "string"}, WORD_OR_NULL, COUNT, SHAPE],
    "minItems": 4,
    "maxItems": 4,
}
NUMBER: dict[str, Any] = {
    "description": "One measured number: a count, or a ratio as a decimal and the exact pair that it was made from.",
    "type": "object",
    "properties": {
        "value": {"anyOf": [COUNT, {"type": "string", "pattern": f"^{DECIMAL.pattern}$"}]},
        "unit": {"type": "string"},
        "exact": {"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2},
        "with": {
            "description": "Versions of the frameworks that it was measured with.",
            "type": "object",
            "additionalProperties": {"type": "string"},
        },
        "parts": {"description": "Its largest parts, the largest first.", "type": "array", "items": PART},
        "cut": {"description": "How many smaller parts were left out.", **COUNT},
    },
    "required": ["value", "unit", "with"],
    "additionalProperties": False,
}


def lock_schema_text() -> str:
    """The schema as the text of a file."""
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Model budget lock",
        "description": "What was measured when somebody last said so, by model, and by name of the limit.",
        "type": "object",
        "properties": {
            "schema": {"const": SCHEMA},
            "models": {
                "type": "object",
                "additionalProperties": {"type": "object", "additionalProperties": {"$ref": "#/definitions/number"}},
            },
        },
        "required": ["schema", "models"],
        "additionalProperties": False,
        "definitions": {"number": NUMBER},
    }
    return json.dumps(schema, indent=2) + "\n"
