"""Every metric of the project, in the order in which reports show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pytest_modelbudget.errors import ExtensionError
from pytest_modelbudget.metrics.active import ACTIVE_PARAMS
from pytest_modelbudget.metrics.compute import BOPS, FLOPS, MACS, OPS
from pytest_modelbudget.metrics.measurement import Metric
from pytest_modelbudget.metrics.on_device import ON_DEVICE
from pytest_modelbudget.metrics.serving import SERVING
from pytest_modelbudget.metrics.storage import MODEL_SIZE, PARAMS, PEAK_ACTIVATION, TRAINABLE_PARAMS, WEIGHT_MEMORY
from pytest_modelbudget.metrics.traffic import ARITHMETIC_INTENSITY, BANDWIDTH, BANDWIDTH_FLOOR, TOTAL_ACTIVATION
from pytest_modelbudget.metrics.training import TRAINING_MACS, TRAINING_MEMORY

METRICS: tuple[Metric, ...] = (
    PARAMS,
    TRAINABLE_PARAMS,
    ACTIVE_PARAMS,
    WEIGHT_MEMORY,
    MODEL_SIZE,
    MACS,
    FLOPS,
    BOPS,
    PEAK_ACTIVATION,
    TOTAL_ACTIVATION,
    BANDWIDTH,
    BANDWIDTH_FLOOR,
    ARITHMETIC_INTENSITY,
    OPS,
    *ON_DEVICE,
    TRAINING_MACS,
    TRAINING_MEMORY,
    *SERVING,
)


def metric_table(extra: Iterable[Metric] = ()) -> Mapping[str, Metric]:
    """Metrics by YAML key, an extension's after the project's own."""
    table: dict[str, Metric] = {}
    for metric in (*METRICS, *extra):
        if metric.key in table:
            raise ExtensionError(f"metric '{metric.key}' is declared twice")
        table[metric.key] = metric
    return table
