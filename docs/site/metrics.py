"""A page for every metric, out of the table of metrics."""

import inspect

from pytest_modelbudget.metrics.measurement import ByFormula, ByTraffic, ByWeight, Metric, Stage
from pytest_modelbudget.metrics.table import metric_table

# A limit in the metric's unit, as an example: the amount says nothing.
EXAMPLES = {
    "param": "3.4 M", "B": "10 MB", "MAC": "320 MMAC", "FLOP": "650 MFLOP", "BOP": "330 GBOP",
    "FLOP/B": "{min: 5 FLOP/B}", "s": "20 ms", "J": "15 mJ", "cycle": "2 M", "%": "{min: 40%}",
    "token": "{min: 4096}",
    "op": "{deny: [lstm], max: {convolution: 60}}",
}  # fmt: skip


def pages() -> dict[str, str]:
    """The list of metrics, and a page for each."""
    table = metric_table()
    listed = "\n".join(f"| [`{key}`]({key}.md) | {each.unit} | {each.definition} |" for key, each in table.items())
    start = "# Metrics\n\nEvery key that may stand under `limits:`.\n\n| key | unit | what it is |\n|---|---|---|\n"
    return {
        "metrics/index.md": f"{start}{listed}\n",
        **{f"metrics/{key}.md": page(each) for key, each in table.items()},
    }


def page(metric: Metric) -> str:
    """What the table knows of one metric."""
    return f"""# {metric.key}

**{sentence(metric.definition)}**

{sentence(inspect.getdoc(metric.measure) or "")}

| | |
|---|---|
| unit | {metric.unit} |
| measured on | {metric.stage.value} |
| made up of | {made_of(metric)} |
| a part of a model | {f"has none: {metric.not_scoped}" if metric.not_scoped else "may be limited under `scopes:`"} |
| also called | {", ".join(metric.also) or "by no other word"} |
| `modelbudget init` | {"drafts a limit on it" if metric.drafted else "writes it as a comment"} |

```yaml
{example(metric)}```

[Conventions](../conventions.md) settle what is counted, [the budget file](../budget-format.md) what a limit may say.
"""


def made_of(metric: Metric) -> str:
    """What its shares come about by, and so what ``explain`` shows."""
    if isinstance(metric.how, ByWeight):
        return "stored tensors: `explain` lists each"
    if isinstance(metric.how, ByFormula):
        terms = " + ".join(
            f"{term.times} × {term.formula}" if term.times > 1 else term.formula for term in metric.how.terms
        )
        return f"[operations](../operations/index.md): {terms} of each; `explain` shows the formula"
    if isinstance(metric.how, ByTraffic):
        return f"bytes of each operation: {', '.join(metric.how.directions)}"
    return "the whole program"


def example(metric: Metric) -> str:
    """A budget that limits the metric where it may be limited."""
    limit = f"{metric.key}: {EXAMPLES[metric.unit]}"
    limits = f"    limits: {{{limit}}}\n"
    if metric.stage is Stage.DEPLOYED:
        limits = f"    deployments:\n      board: {{device: cortex_m55_ethos_u55, limits: {{{limit}}}}}\n"
    source = "    torch: torchvision.models:mobilenet_v2\n    inputs: float32 1x3x224x224\n"
    if metric.stage is Stage.SERVED:
        source = "    huggingface: llama/config.json\n    serving: {context: 8192, memory: 24 GB}\n"
    return f"model_budget: 1\nmodels:\n  net:\n{source}{limits}"


def sentence(text: str) -> str:
    """A text that starts and ends as sentences do; names in backquotes stay as they are."""
    text = text.replace("``", "`")
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") or not text else ".")
