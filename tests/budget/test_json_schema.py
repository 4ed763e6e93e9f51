"""The editor schema: made from the reader's tables, and of one mind with the reader."""

from __future__ import annotations

from dataclasses import replace

import pytest
from jsonschema import Draft7Validator

from pytest_modelbudget.budget.read_budget import json_schema, schema_text
from pytest_modelbudget.metrics.measurement import Measurement, Metric
from pytest_modelbudget.metrics.table import metric_table
from pytest_modelbudget.registry import tables
from tests.builders.editor import accepts
from tests.builders.texts import VISION, Problems


def test_schema_is_valid() -> None:
    """The schema is itself valid draft-07, and every reference in it leads somewhere."""
    schema = json_schema(tables())
    Draft7Validator.check_schema(schema)
    references = {
        line.strip().removeprefix('"$ref": "#/definitions/').rstrip('",')
        for line in schema_text(tables()).splitlines()
        if '"$ref"' in line
    }
    assert references <= set(schema["definitions"])


def test_new_metric() -> None:
    """A metric of an extension gets its key and its unit without more ado."""
    metric = Metric("charge", "C", "charge of one run", lambda _: Measurement(0, "C"))
    schema = Draft7Validator(json_schema(replace(tables(), metrics=metric_table([metric]))))
    budget = {"torch": "a:b", "inputs": "float32 1x3", "limits": {"charge": "3 kC"}}
    assert schema.is_valid({"model_budget": 1, "models": {"net": budget}})
    assert not accepts(VISION.replace("params: 11.7 M", "charge: 3 kC"))


GOOD = {
    "itself": ("", ""),
    "bare count": ("11.7 M", "11700000"),
    "exponent": ("11.7 M", "1e6"),
    "underscores": ("11.7 M", "11_700_000"),
    "quoted": ("11.7 M", "'11.7 M'"),
    "IEC": ("118 MB", "112 MiB"),
    "no type": ("inputs: float32 1x", "inputs: 1x"),
    "sizes as torch has them": ("float32 1x3x224x224\nmodels", "(1, 3, 224, 224)\nmodels"),
    "short type": ("    kwargs", "    dtype: bf16\n    kwargs"),
    "named inputs": ("inputs: float32 1x", "inputs:\n    x: float32 1x"),
    "spelled out": ("inputs: float32 1x3x224x224", "inputs: {dtype: float32, shape: [1, 3]}"),
    "scalar": ("1x3x224x224\nmodels", "()\nmodels"),
    "lists": ("inputs: float32 1x3x224x224", "inputs: [[float32 1x3], int64 2]"),
    "model dtype": ("    kwargs", "    dtype: bfloat16\n    kwargs"),
    "ops by name": ("deny: [lstm]", "allow: ['aten::conv2d']"),
    "allowed": ("level: error", "allow_unmeasured: [my.lib::op]"),
    "growth": ("level: error", "grow: 2%, floor: 1 MMAC"),
    "growth alone": ("max: 1.82 GMAC, level: error", "grow: 0.5%"),
    "auto": ("11.7 M", "auto"),
    "auto as an end": ("max: 118 MB", "max: auto"),
    "loosen": ("model_budget: 1", "model_budget: 1\nloosen: forbid"),
}
BAD = {
    "version": ("model_budget: 1", "model_budget: 2"),
    "unknown key": ("defaults:", "default:"),
    "unknown metric": ("params: 11.7 M", "parms: 11.7 M"),
    "wrong unit": ("1.82 GMAC", "1.82 GFLOP"),
    "wrong case": ("118 MB", "118 mb"),
    "comma": ("11.7 M", "'11,7 M'"),
    "bare float": ("11.7 M", "11.5"),
    "percentage": ("118 MB", "2%"),
    "negative": ("11.7 M", "-5"),
    "level": ("level: warn", "level: warning"),
    "no bound": ("{max: 118 MB, level: warn}", "{level: warn}"),
    "growth as a number": ("level: error", "grow: 2"),
    "growth of a ratio": ("{min: 30.5 FLOP/B", "{grow: 2%, min: 30.5 FLOP/B"),
    "loosen": ("model_budget: 1", "model_budget: 1\nloosen: never"),
    "reserved metric": ("params: 11.7 M", "latency_bound: 1 ms"),
    "reserved key": ("    kwargs", "    fits: cortex\n    kwargs"),
    "unknown format": ("torchscript:", "keras:"),
    "two sources": ("torchscript:", "exported: a.pt2, torchscript:"),
    "no source": ("torchscript:", "dtype:"),
    "no limits": (", limits: {macs: 715 MMAC}", ""),
    "empty limits": ("limits: {macs: 715 MMAC}", "limits: {}"),
    "spec": ("float32 1x3x224x224\nmodels", "float32\nmodels"),
    "dtype": ("    kwargs", "    dtype: int8\n    kwargs"),
    "dimension": ("{batch: 1, height: 64}", "{batch: -1}"),
    "model name": ("scripted:", "'a::b':"),
    "variant name": ("batch8: {inputs", "macs: {inputs"),
    "op name": ("level: error", "allow_unmeasured: [foo]"),
    "ops count": ("convolution: 20", "convolution: 2.5"),
    "peak of a scope": ("params: 8.4 M", "peak_activation: 1 MB"),
}


@pytest.mark.parametrize(("old", "new"), GOOD.values(), ids=list(GOOD))
def test_agreement_on_good(problems: Problems, old: str, new: str) -> None:
    """What the reader reads, the schema accepts."""
    text = VISION.replace(old, new, 1) if old else VISION
    assert (text != VISION) == bool(old)
    assert problems(text) == []
    assert accepts(text)


@pytest.mark.parametrize(("old", "new"), BAD.values(), ids=list(BAD))
def test_agreement_on_bad(problems: Problems, old: str, new: str) -> None:
    """What the schema of a file's keys, shapes and units rejects, the reader refuses."""
    text = VISION.replace(old, new, 1)
    assert text != VISION
    assert problems(text) != []
    assert not accepts(text)
