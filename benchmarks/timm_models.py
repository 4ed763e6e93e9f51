"""Every fifth of timm's models: all metrics of this project, beside FlopCounterMode's one number on the CPU.

Seconds are the processor's: building the model and measuring it, imports apart. A model that takes long is held beside
what no trace can do without: its own building, which in some computes, and a bare forward pass without memory.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import timm
import torch
from peers import PEERS, silently
from this_project import all_metrics

from pytest_modelbudget.formats.source import InputSpecs, ModelSource
from pytest_modelbudget.torch_models.building import built

EVERY = 5
LONG, SHORT_PASS = 1.5, 0.5  # seconds of a model beyond its building; and of the forward pass that make them too many


class Row(NamedTuple):
    """One model: seconds of this project and of the peer, and why this project gave no number."""

    name: str
    ours: float
    peer: float
    failure: str = ""


def seconds(run: Callable[[], object]) -> float:
    """Processor's seconds of a call."""
    began = time.process_time()
    run()
    return time.process_time() - began


def shape_of(name: str) -> tuple[int, ...]:
    """An image as the model's own configuration wants it."""
    config = timm.get_pretrained_cfg(name)
    return (1, *(config.input_size if config else (3, 224, 224)))


def bare(name: str) -> tuple[float, float]:
    """Seconds of building a model, weights not filled, and of a forward pass on meta tensors that nobody records."""
    source = ModelSource("torch", "timm:create_model", InputSpecs(), kwargs={"model_name": name})
    building = seconds(lambda: built(source))
    model, image = built(source).eval().to("meta"), torch.empty(shape_of(name), device="meta")
    with torch.inference_mode():
        return building, seconds(lambda: model(image))


def peer_count(name: str) -> Any:
    """What the peer says, building included; None where it crashes."""
    return silently(PEERS["FlopCounterMode"], timm.create_model(name).eval(), (torch.zeros(shape_of(name)),))


def row(name: str, *, with_peer: bool) -> Row:
    """Both tools on one model."""
    failure = ""

    def ours() -> None:
        nonlocal failure
        try:
            all_metrics("timm:create_model", (shape_of(name),), {"model_name": name})
        except Exception as error:  # noqa: BLE001  # a row of the table, whatever it is
            failure = f"{type(error).__name__}: {error}".splitlines()[0]

    return Row(name, seconds(ours), seconds(lambda: peer_count(name)) if with_peer else 0.0, failure)


def main() -> None:
    """Print the sum, the models that take long, and those without a number, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=EVERY, help=f"one of so many models ({EVERY})")
    parser.add_argument("--alone", action="store_true", help="without the peer, which takes minutes")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    all_metrics("timm:create_model", ((1, 3, 224, 224),), {"model_name": "resnet18"})  # what is loaded once
    rows = [row(name, with_peer=not options.alone) for name in timm.list_models()[:: options.every]]
    ours, peer = sum(each.ours for each in rows), sum(each.peer for each in rows)
    ratio = "" if options.alone else f"{peer / ours:.1f}"
    print("| models | without a number | this project (s) | FlopCounterMode (s) | ratio |\n|---|---|---|---|---|")
    print(f"| {len(rows)} | {sum(bool(each.failure) for each in rows)} | {ours:.1f} | {peer or '':.5} | {ratio} |\n")
    print("| model | seconds | of it building | bare pass (s) | |\n|---|---|---|---|---|")
    for each in sorted(rows, key=lambda each: -each.ours):
        if each.ours > LONG or each.failure:
            building, run = bare(each.name)
            too_long = each.ours - building > LONG and run < SHORT_PASS
            word = each.failure or ("**too long**" if too_long else "")
            print(f"| {each.name} | {each.ours:.2f} | {building:.2f} | {run:.2f} | {word} |")


if __name__ == "__main__":
    main()
