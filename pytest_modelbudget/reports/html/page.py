"""``--model-budget-report=html``: the record as one page that needs no network and no other file.

The page is written by jinja2, which escapes every word of the record, and is complete without
scripts but for the views of single models: those stand in it compressed, and are unpacked when a
reader opens one, so that a page of 500 models is small and opens as fast as one of five.

The plots are drawn by Observable Plot (with D3: 490 kB, ISC licence; plotly, ECharts, Bokeh and Vega have 1 MB):
SVG, which follows a style sheet into dark mode and onto paper, and keeps its words for search and screen readers, where
uPlot, Chart.js and Bokeh paint pixels. html/vendor has it, unchanged.
"""

import base64
import gzip
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pytest_modelbudget.budget.hardware_file import shipped_devices
from pytest_modelbudget.graph.graph import scope_text
from pytest_modelbudget.reports.checkout import Checkout
from pytest_modelbudget.reports.findings import ERROR, causes, findings, unmeasured
from pytest_modelbudget.reports.html import limit_view, model_view
from pytest_modelbudget.reports.html.limit_view import STATUSES
from pytest_modelbudget.reports.html.model_view import ModelView
from pytest_modelbudget.reports.messages import bans
from pytest_modelbudget.reports.record import NO_EVIDENCE, ModelReport, Report
from pytest_modelbudget.reports.terminal import counted
from pytest_modelbudget.units import exact, several

FILES = Path(__file__).parent
LIBRARY = ("vendor/d3-7.9.0.min.js", "vendor/plot-0.6.17.umd.min.js")
OWN_SCRIPTS = (
    "figures.js", "drawing.js", "memory_plot.js", "roofline_plot.js", "layers_plot.js", "icicle_plot.js",
    "divergence_plot.js", "arena_plot.js", "device_plot.js", "serving_plot.js", "tables.js", "overview.js", "page.js",
)  # fmt: skip
STYLES = ("page.css", "tables.css", "model.css", "media.css")
MOST_NOTICED = 50  # models with a card at the top; the table below has all
MOST_CARDS = 12  # with those of models that nobody needs to look at


def render(report: Report) -> str:
    """The page; the same bytes for the same record."""
    models = [
        ModelView(model, anchor, report.history, tuple(model.cases()), tuple(causes(model, report.base_text)))
        for model, anchor in zip(report.models, _anchors(report.models), strict=True)
    ]
    noticed = sorted((model for model in models if model.noticed), key=lambda model: STATUSES.index(model.status))
    cards = noticed[:MOST_NOTICED]
    cards += [model for model in models if not model.noticed][: max(0, MOST_CARDS - len(cards))]
    scripts = [_text(name) for name in (*LIBRARY, *OWN_SCRIPTS)]
    outcomes = Counter(case.outcome for case in report.cases())
    files: dict[str, list[ModelView]] = {}
    for model in models:
        files.setdefault(model.report.file, []).append(model)
    templates = _templates(report.checkout)
    return templates.get_template("page.html").render(
        report=report,
        unmeasured=unmeasured(report),
        verdict=verdict(report, models),
        base=_short_name(report.base),
        views=[(model.anchor, view) for model, view in zip(models, _views(models, templates), strict=True)],
        run=tuple(run(report)),
        files=files,
        cards=cards,
        left=len(models) - len(cards),
        counts={status: outcomes[status] for status in STATUSES},
        counted=counted(report),
        style="".join(map(_text, STYLES)),
        scripts=scripts,
        policy=_policy(scripts),
        licences=_text("vendor/LICENSES.txt"),
    )


def _anchors(models: Sequence[ModelReport]) -> Iterator[str]:
    """The address of each model on the page, made of its name, so that links stay right: "model-resnet18"."""
    taken: set[str] = set()
    for model in models:
        name = anchor = f"model-{re.sub('[^A-Za-z0-9_.-]+', '-', model.address.path).strip('-')}"
        number = 1
        while anchor in taken:
            number += 1
            anchor = f"{name}-{number}"
        taken.add(anchor)
        yield anchor


def verdict(report: Report, models: Sequence[ModelView]) -> tuple[str, str]:
    """The status of the run, and its sentence: "5 of 24 limits fail in 2 models"."""
    cases = [case for model in models for case in model.cases]
    failing = sum(case.check.fails for case in cases)
    others = sum(finding.level == ERROR for finding in findings(report)) - failing
    red = several(sum(bool(model.causes) for model in models), "model")
    words = []
    if failing:
        words.append(f"{failing} of {several(len(cases), 'limit')} {'fails' if failing == 1 else 'fail'} in {red}")
    if others:
        words.append(several(others, "other problem" if failing else "problem"))
    return ("over", ", and ".join(words)) if words else ("within", f"{several(len(cases), 'limit')}, none fails")


def run(report: Report) -> Iterator[tuple[str, str]]:
    """What was measured, when and with what."""
    if checkout := report.checkout:
        yield from (("project", checkout.project), ("branch", checkout.branch))
    commit = report.head or (report.checkout.commit if report.checkout else "")
    yield "commit", _short_name(commit)
    if report.checkout:
        yield "committed", report.checkout.date[:16].replace("T", " ")
    base, name = _short_name(report.base), report.base_name
    yield "base", f"{name} ({base})" if base and name not in ("", base) else base or name
    yield "measured with", ", ".join(" ".join(pair) for pair in report.environment.items())


def _views(models: Sequence[ModelView], templates: Environment) -> Iterator[str]:
    """The view of each model: its markup and the numbers of its plots, compressed, as base64.

    {"markup": "<header>...", "limit": 1500000, "divergence": [[]], "profile": {...}, "deployments": [{...}]}

    null stands for a profile that is not there.
    """
    template, offered = templates.get_template("model.html"), tuple(machines())
    for before, model, after in zip((None, *models), models, (*models[1:], None), strict=False):
        markup = template.render(model=model, before=before, after=after, machines=offered)
        claims = [transform.equivalence or NO_EVIDENCE for transform in model.report.transforms]
        errors = [[(f"{each.name}, {each.family}", each.algebra) for each in claim.outputs if each.algebra is not None]
                  for claim in claims]  # fmt: skip
        profiles = (each.profile or "null" for _, each in model_view.deployments(model.report))
        view = {
            "markup": json.dumps(markup), "limit": json.dumps(model.memory_limit), "divergence": json.dumps(errors),
            "profile": model.report.profile or "null", "deployments": f"[{','.join(profiles)}]",
        }  # fmt: skip
        text = ",".join(f'"{key}":{part}' for key, part in view.items())
        yield base64.b64encode(gzip.compress(f"{{{text}}}".encode(), mtime=0)).decode()


def machines() -> Iterator[tuple[str, float, float]]:
    """(device and type, FLOP/s, B/s) of shipped devices with one memory, which two figures describe in full."""
    for device in shipped_devices().values():
        if len(device.memories) == 1 and (bandwidth := device.memories[0].bandwidth):
            floating = ((name, rate) for name, rate in device.macs.items() if "float" in name)
            yield from ((f"{device.name}, {name}", float(2 * rate), float(bandwidth)) for name, rate in floating)


def _short_name(base: str | None) -> str:
    """A revision as people write it: twelve digits of a commit are enough to find it."""
    return base[:12] if base and re.fullmatch("[0-9a-f]{40,64}", base) else base or ""


def _policy(scripts: list[str]) -> str:
    """Only these scripts run, by their hashes, and nothing is fetched from anywhere."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'"


@cache
def _text(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


def _templates(checkout: Checkout | None) -> Environment:
    """Templates that escape all text, and refuse names that are not defined."""
    templates = Environment(
        loader=FileSystemLoader(FILES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.globals |= {
        "address": checkout.address if checkout else lambda _file, _line: "", "bans": bans, "exact": exact,
        "scope_text": scope_text, "limit_view": limit_view, "model_view": model_view,
    }  # fmt: skip
    return templates
