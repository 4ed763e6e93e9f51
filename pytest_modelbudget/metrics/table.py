"""Every metric of the project, in the order in which reports show them; and a model measured by them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pytest_modelbudget.errors import ExtensionError, ModelBudgetError
from pytest_modelbudget.metrics.compute import BOPS, FLOPS, MACS, OPS, OpCount
from pytest_modelbudget.metrics.growth import Part
from pytest_modelbudget.metrics.measurement import Measurement, Metric
from pytest_modelbudget.metrics.operations import Operation
from pytest_modelbudget.metrics.storage import MODEL_SIZE, PARAMS, PEAK_ACTIVATION, TRAINABLE_PARAMS, WEIGHT_MEMORY
from pytest_modelbudget.metrics.traffic import ARITHMETIC_INTENSITY, BANDWIDTH, BANDWIDTH_FLOOR, TOTAL_ACTIVATION
from pytest_modelbudget.metrics.training import TRAINING_MACS, TRAINING_MEMORY

METRICS: tuple[Metric, ...] = (
    PARAMS,
    TRAINABLE_PARAMS,
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
    TRAINING_MACS,
    TRAINING_MEMORY,
)


def metric_table(extra: Iterable[Metric] = ()) -> Mapping[str, Metric]:
    """Metrics by YAML key, an extension's after the project's own.

    Raises ExtensionError where a key is claimed twice.
    """
    table: dict[str, Metric] = {}
    for metric in (*METRICS, *extra):
        if metric.key in table:
            raise ExtensionError(f"metric '{metric.key}' is declared twice")
        table[metric.key] = metric
    return table


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """Every number of one model, or why there is none.

    failure is set where the model could not be loaded, and all else is then empty. failures holds the metrics that
    could not be worked out, by key. scopes are the paths of all its modules. parts, by metric, are kept only where a
    lock file is to be written or compared. profile is what a page shows beyond metrics, as JSON text, if somebody
    asked. files are those beside the model's own that the numbers depend on. seconds is wall time, for eyes only.
    """

    format: str
    traced: str = ""
    notes: tuple[str, ...] = ()
    measurements: Mapping[str, Measurement] = field(default_factory=dict)
    failures: Mapping[str, ModelBudgetError] = field(default_factory=dict)
    census: tuple[OpCount, ...] = ()
    operations: tuple[Operation, ...] = ()
    scopes: tuple[str, ...] = ()
    profile: str | None = None
    failure: ModelBudgetError | None = None
    parts: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    seconds: float = 0.0
