"""Records for pages, of small networks made by hand: no framework is needed."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

from pytest_modelbudget.budget.budget import Place, Subject
from pytest_modelbudget.budget.kinds import judge_limit
from pytest_modelbudget.deployment.array import Array
from pytest_modelbudget.deployment.device import ArenaRules, Device, Memory
from pytest_modelbudget.formats.model import LayerCall, LoadedModel
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate import measuring
from pytest_modelbudget.gate.from_python import written_limits
from pytest_modelbudget.graph.graph import Op, Weight
from pytest_modelbudget.metrics.compute import census
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.measured_model import DeployedModel, Deployment, MeasuredModel
from pytest_modelbudget.metrics.measurement import Stage
from pytest_modelbudget.metrics.table import METRICS, metric_table
from pytest_modelbudget.registry import Tables, tables
from pytest_modelbudget.reports.build import (
    Assembly,
    Statement,
    check_report,
    deployment_report,
    model_report,
    session_report,
)
from pytest_modelbudget.reports.html import page
from pytest_modelbudget.reports.html.profile import packed, profile
from pytest_modelbudget.reports.json_records import from_json, to_json
from pytest_modelbudget.reports.record import Report
from tests.builders.graphs import costed, parameter, tensor

FILE = "budgets/a.yaml"
ODD_NAME = "a,b:c%<script>document.title='owned'</script>&amp;\"'"

# A transform whose outputs differ, as the gate records it; its metrics are the model's and more.
TILED = {
    "id": f"{FILE}::net::tiled",
    "name": "tiled",
    "changes": [
        {"scope": "block0.fc0", "operation": "linear", "became": "2 products of 4x2"},
        {"scope": "block0.fc1", "operation": "linear", "became": "", "why": "too small"},
    ],
    "checks": [
        {"id": f"{FILE}::net::tiled::equivalence", "metric": "equivalence", "limit": None,
         "actual": None, "baseline": None, "outcome": "over", "level": "error", "line": 9,
         "reason": "output 0 differs", "measured": "3.2e-4", "allowed": "1e-10"},
    ],
    "equivalence": {
        "outcome": "over",
        "kind": "exact_algebra",
        "weights": "drawn, seed 0",
        "basis": "algebra",
        "seeds": [0, 1, 2],
        "notes": ["rests on float64"],
        "reason": "output 0 differs",
        "outputs": [
            {"name": "0", "family": "normal", "dtype": "float32", "outcome": "within",
             "algebra": "3.2e-15", "max_abs": "1.1e-08"},
            {"name": "0", "family": "zeros", "dtype": "float32", "outcome": "over",
             "algebra": "3.2e-4", "max_abs": "0.5", "furthest": True,
             "worst": {"index": [0, 1], "original": "0.5", "transformed": "0"}},
        ],
        "first_divergence": {
            "scope": "block0.fc1", "error": "3.2e-4",
            "worst": {"index": [0, 1], "original": "0.5", "transformed": "0.25"},
        },
    },
}  # fmt: skip


def chain(widths: Sequence[int], *, block: int = 4, container: str = "block") -> tuple[LoadedModel, CostedGraph]:
    """Linear layers of these widths, each with a ReLU, so many to a container.

    ``chain([4, 8, 2])`` on one row: fc0 (4 -> 8), act0, fc1 (8 -> 2), act1.
    """
    x = first = tensor("x", 1, widths[0])
    ops: list[Op] = []
    weights: list[Weight] = []
    calls: list[LayerCall] = []
    for number, (wide, narrow) in enumerate(pairwise(widths)):
        inside = f"{container}{number // block}"
        scope, act = f"{inside}.fc{number}", f"{inside}.act{number}"
        weight = parameter(f"{scope}.weight", narrow, wide)
        y, z = tensor(f"y{number}", 1, narrow), tensor(f"z{number}", 1, narrow)
        ops += [Op("aten::linear", (x, weight, None), (y,), scope=scope), Op("aten::relu", (y,), (z,), scope=act)]
        weights.append(Weight(weight, trainable=True))
        calls += [LayerCall(scope, "Linear", (x,), (y,)), LayerCall(act, "ReLU", (y,), (z,))]
        x = z
    graph = costed(*ops, inputs=(first,), outputs=(x,), weights=tuple(weights))
    root = LayerCall("", "Chain", (first,), (x,), leaf=False)
    return LoadedModel(graph.graph, "torch", "meta", (root, *calls)), graph


def measured_chain(widths: Sequence[int], *, container: str = "block") -> MeasuredModel:
    """All metrics of a chain, and its profile."""
    loaded, graph = chain(widths, container=container)
    return MeasuredModel(
        loaded.format,
        loaded.traced,
        measurements={metric.key: metric.measure(graph) for metric in METRICS if metric.stage is Stage.WRITTEN},
        census=census(graph),
        profile=profile(loaded, graph),
    )


BOARD = Device(
    "board",
    (
        Memory("flash", 4096, ("weights",), bandwidth=Fraction(200)),
        Memory("sram", 1024, ("activations",), reserve=24, bandwidth=Fraction(100)),
    ),
    macs={"float32": Fraction(1000), "int8": Fraction(4000), "float16": Fraction(4000)},
    arena=ArenaRules(align=1),
    array=Array(2, 2),
)
BARE = Device("bare")  # nothing is known of it


def deployed_chain(widths: Sequence[int], device: Device, *, container: str = "block") -> DeployedModel:
    """A chain on a device, each ReLU in the layer before it, with all numbers and its profile."""
    loaded, _ = chain(widths, container=container)
    model = measuring.costed(loaded, tables(), ModelSource("torch", loaded))
    return measuring.deployed(model, Deployment(device.name, device), tables(), profile=profile)


def deployments_of(model: Mapping[str, Any], widths: Sequence[int], *, container: str = "block") -> Iterator[Any]:
    """A model's entry for its deployments on both devices."""
    for device in (BOARD, BARE):
        deployed = deployed_chain(widths, device, container=container)
        check = Subject(device.name, Place(FILE, int(model["line"])), deployed.deployment)
        yield to_json(deployment_report(f"{model['id']}::{device.name}", check, deployed))


def page_record(models: Mapping[str, tuple[MeasuredModel, Mapping[str, object]]]) -> Any:
    """The record of models by name, each with its limits as a budget spells them."""
    assembly, using, line = Assembly(), tables(), 3
    for name, (model, limits) in models.items():
        add_model(assembly, using, name, model, limits, line)
        line += 2 + len(limits)
    return to_json(assembly.report(session_report()))


def add_model(
    assembly: Assembly, using: Tables, name: str, model: MeasuredModel, limits: Mapping[str, object], line: int
) -> None:
    """One model's statements, the limits on the lines after its own."""
    model_id = f"{FILE}::{name}"
    report = model_report(model_id, Place(FILE, line), model)
    for offset, limit in enumerate(written_limits(limits, using), start=1):
        placed = replace(limit, place=Place(FILE, line + offset))
        check = check_report(f"{model_id}::{limit.metric}", judge_limit(placed, model), metric_table())
        first = {"model": report, "took": {model_id: "0.250"}} if offset == 1 else {}
        assembly.add(Statement(check=check, **first))


def small_record() -> Any:
    """Two models: one over a limit and warned of another, one within and oddly named.

    net holds 4·8 + 8·2 = 48 parameters and MACs; its peak is the 8 + 8 floats around act0.
    """
    return page_record(
        {
            "net": (
                measured_chain([4, 8, 2]),
                {"params": 40, "macs": {"max": 44, "level": "warn"}, "peak_activation": 100},
            ),
            ODD_NAME: (measured_chain([4, 4]), {"params": {"min": 10, "max": 20}}),
        }
    )


LATE = [*[8] * 38, 64, 64]
LONG_NAME = "a_container_with_a_long_name.block"


def late_peak() -> MeasuredModel:
    """A chain of 40 layers whose widest comes last, below a container with a long name."""
    return measured_chain(LATE, container=LONG_NAME)


def with_everything() -> Any:
    """The small record with all that other parts of the project may add to one."""
    record = small_record()
    (late,) = page_record({"late": (late_peak(), {"peak_activation": 600})})["models"]
    record["models"].append(late)
    net = record["models"][0]
    net["deployments"] = list(deployments_of(net, [4, 8, 2]))
    served = [{"context": tokens, "weights": 192, "cache": 2 * tokens, "activations": tokens, "reserve": 8}
              for tokens in (8, 16, 32, 64)]  # fmt: skip
    serving = json.dumps({"context": 32, "room": 300, "points": packed(served)})
    net["profile"] = f'{net["profile"][:-1]},"serving":{serving}}}'
    net["metrics"]["serving_memory"] = {**net["metrics"]["weight_memory"], "value": 296}
    late["deployments"] = list(deployments_of(late, LATE, container=LONG_NAME))
    net["checks"][0] |= {
        "baseline": 32,
        "allowed": 33,
        "blame": [
            {"scope": "block0.fc1", "name": "weight", "delta": 16, "before": None, "after": 16,
             "shape_before": None, "shape_after": [2, 8]},
            {"scope": None, "delta": 0, "count": 0},
        ],
    }  # fmt: skip
    after = {key: dict(metric) for key, metric in net["metrics"].items()}
    after["bandwidth"]["value"] *= 2
    net["transforms"] = [{**TILED, "metrics": after}]
    record["loosened"] = [
        {"file": FILE, "line": 4, "id": f"{FILE}::net::params", "percent": "14.3",
         "forbidden": True, "text": "budget loosened +14.3%: params 35 → 40"}
    ]  # fmt: skip
    record["lock"] = [{"file": "budgets/a.lock.json", "state": "stale", "text": "lock stale"}]
    record["base"] = "origin/main"
    record["broken"] = [{"id": "budgets/b.yaml::budget", "problems": ["budgets/b.yaml:1:1: no"]}]
    return record


def many_models(count: int) -> Any:
    """So many models of 40 layers each, with three limits; every seventh is over one."""
    models: dict[str, tuple[MeasuredModel, Mapping[str, object]]] = {}
    kinds = [measured_chain([16 + number, *[32] * 20]) for number in range(5)]
    for number in range(count):
        params = {"params": 100 if number % 7 == 0 else "1 M", "macs": "1 MMAC", "flops": "2 MFLOP"}
        models[f"family{number % 10}/model{number}"] = (kinds[number % 5], params)
    return page_record(models)


def render(record: Any) -> str:
    """The page of a record."""
    return page.render(from_json(Report, record))


def written(record: Any, path: Path) -> Path:
    """The page of a record, in a file."""
    path.write_text(render(record), encoding="utf-8")
    return path


class Page(HTMLParser):
    """The tags, text and scripts of a page, as a parser of HTML sees them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.blocks: list[tuple[dict[str, str | None], str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.blocks.append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            attributes, text = self.blocks[-1]
            self.blocks[-1] = (attributes, text + data)
        else:
            self.words.append(data)

    @property
    def scripts(self) -> list[str]:
        """What a browser would run."""
        return [text for attributes, text in self.blocks if "type" not in attributes]

    def views(self) -> list[Any]:
        """What the views of models are built from, unpacked."""
        packed = [text for attributes, text in self.blocks if attributes.get("type")]
        return [json.loads(gzip.decompress(base64.b64decode(text))) for text in packed]
