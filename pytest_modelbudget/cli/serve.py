"""``modelbudget serve``: whether a language model with its cache fits a memory, and how much of it would."""

import argparse
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

from pytest_modelbudget.cli.options import add_format, whole_number
from pytest_modelbudget.cli.screen import naming, print_json, print_text
from pytest_modelbudget.deployment.device import WEIGHTS
from pytest_modelbudget.errors import DeviceError, InputError
from pytest_modelbudget.formats.source import CACHE_TYPES, ModelSource, Serving, names_attribute
from pytest_modelbudget.gate import measuring
from pytest_modelbudget.gate.asked_device import asked_device
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.registry import Tables, tables
from pytest_modelbudget.reports import serving as report
from pytest_modelbudget.reports.build import metric_report
from pytest_modelbudget.reports.json_records import to_json
from pytest_modelbudget.serving.fitting import longest_fitting
from pytest_modelbudget.units import quantity

MEMORY = report.MEMORY


def add_serve(command: argparse.ArgumentParser) -> None:
    """The options of ``serve``: a model, how it is served, and the memory that it has to fit."""
    add = command.add_argument
    add("source", metavar="SOURCE", help="a folder with config.json, the file itself, or module:callable")
    add("--context", metavar="N", type=whole_number("context", least=1), required=True, help="tokens of each sequence")
    add("--batch", metavar="B", type=whole_number("batch", least=1), default=1, help="sequences (default: 1)")
    add("--cache-dtype", metavar="TYPE", choices=CACHE_TYPES, default="", help="such as int8 (default: the program's)")
    add("--device", metavar="NAME", help="a shipped device (modelbudget devices lists them), or hardware.yaml::name")
    add("--memory", metavar="SIZE", help="in place of a device: 24GB")
    add("--reserve", metavar="SIZE", default="0", help="what the engine takes besides, such as 1GB")
    add("--fit", action="store_true", help="find the longest context and the largest batch that fit")
    add("-v", "--verbose", action="store_true", help="show the whole exception where the model's code raises one")
    add_format(command)
    command.set_defaults(command=serve_model, loads_model=True)


def serve_model(options: argparse.Namespace) -> bool:
    """Print what serving takes; incomplete where it does not fit the memory that is named, or that is unknown."""
    registry, room = tables(), _room(options)
    if options.fit and room is None:
        raise InputError("--fit needs a memory: add --device NAME or --memory 24GB")
    served = Serving(options.context, options.batch, options.cache_dtype, None, int(quantity(options.reserve, "B")))
    key = "torch" if names_attribute(options.source) else "huggingface"
    source = ModelSource(key, options.source, serving=served, base=Path.cwd())
    numbers = _numbers(source, registry)
    found = _most(source, numbers, room, registry) if options.fit and room is not None else {}
    if options.format == "json":
        records = {key: to_json(metric_report(number)) for key, number in numbers.items() if number.complete}
        print_json({"memory": room, "fits": report.fits(numbers[MEMORY], room), "metrics": records, **found})
    else:
        on = options.device or options.memory
        title = f"{options.source}, {options.context:,} tokens x {options.batch:,}{f' on {on}' if on else ''}"
        print_text(report.serving_text(title, numbers, room, found))
    return numbers[MEMORY].complete if room is None else bool(report.fits(numbers[MEMORY], room))


def _room(options: argparse.Namespace) -> int | None:
    """Bytes of the memory that the command's words name; None where they name none."""
    if options.memory:
        return int(quantity(options.memory, "B"))
    if options.device is None:
        return None
    device = asked_device(options.device, tables(), base=Path.cwd())
    memory = device.holding(WEIGHTS)
    if memory is None:
        raise DeviceError(f"{device.name} names no memory that holds weights: give --memory 24GB")
    return memory.room


def _numbers(source: ModelSource, registry: Tables) -> dict[str, Measurement]:
    """All metrics of a served model; raises where its memory could not be worked out."""
    with redirect_stdout(sys.stderr), naming(str(source.target)):
        model = measuring.costed_model(source, registry, root=source.base)
    if MEMORY not in model.measurements:
        raise model.failures[MEMORY]
    return dict(model.measurements)


def _most(source: ModelSource, numbers: dict[str, Measurement], room: int, registry: Tables) -> dict[str, int]:
    """The longest context with this batch, and the largest batch at this context."""
    served, memory = source.serving, numbers[MEMORY]
    assert served is not None, "the source is served"
    longest = _numbers(replace(source, serving=replace(served, memory=room)), registry).get("max_context")
    each = max(1, int(numbers["kv_cache"].value) // served.batch)
    most = max(0, room - memory.parts["weights"]) // each

    def with_batch(batch: int) -> Measurement:
        return _numbers(replace(source, serving=replace(served, batch=batch)), registry)[MEMORY]

    batch = longest_fitting(with_batch, room, most)
    known = {} if longest is None else {f"longest context of {served.batch:,} sequences": int(longest)}
    return {**known, f"largest batch at {served.context:,} tokens": batch}
