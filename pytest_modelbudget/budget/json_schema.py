"""The editor schema (JSON Schema, draft-07) of a budget file: its grammar's forms, written out.

It is coarser than the reader: it knows keys, shapes and units, not paths, op kinds or sums.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pytest_modelbudget.budget.grammar import Schema
from pytest_modelbudget.budget.read_budget import file_grammar
from pytest_modelbudget.formats.table import Format
from pytest_modelbudget.metrics.measurement import Metric
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.registry import Tables
from pytest_modelbudget.transforms.table import transform_table
from pytest_modelbudget.transforms.transform import Transform

FILE_NAME = "model-budget.schema.json"


def json_schema(
    metrics: Mapping[str, Metric], formats: Mapping[str, Format], transforms: Mapping[str, Transform] | None = None
) -> Schema:
    """The schema of budget files over these metrics and formats."""
    known = transform_table() if transforms is None else transforms
    grammar = file_grammar(Tables(OpTable(()), metrics, formats, known))
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Model budget",
        "description": "Size limits of neural networks, held by pytest --model-budget",
        **grammar.schema,
        "definitions": {name: schema for form in grammar.uses for name, schema in form.definitions()},
    }


def schema_text(
    metrics: Mapping[str, Metric], formats: Mapping[str, Format], transforms: Mapping[str, Transform] | None = None
) -> str:
    """The schema as the text of a file."""
    schema = json_schema(metrics, formats, transforms)
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
