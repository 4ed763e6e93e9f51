"""The scoreboard: this project beside its peers, in one process, accuracy beside time.

This project builds a model and measures every metric; each peer builds it and gives its one
number. Tools take turns on every model, so that a busy machine slows all of them alike.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import torch
import torchvision
from micro_models import MICRO_MODELS, Micro
from peers import PEERS, Counter, silently
from this_project import all_metrics
from torch import nn

from pytest_modelbudget.torch_models.building import initialisation_skipped

OURS = "this project"
MODELS = (
    "alexnet vgg16 googlenet resnet18 resnet50 resnext50_32x4d densenet121 squeezenet1_0 "
    "mobilenet_v2 mobilenet_v3_large mnasnet1_0 shufflenet_v2_x1_0 efficientnet_b0 "
    "efficientnet_v2_s regnet_y_400mf convnext_tiny inception_v3 vit_b_16 swin_t swin_v2_t maxvit_t"
)
# Their default initialisation alone takes seconds; leaving it out favours the peers.
NO_INITIALISATION = {"init_weights": False, "aux_logits": False}
KWARGS: Mapping[str, Mapping[str, object]] = {"googlenet": NO_INITIALISATION, "inception_v3": NO_INITIALISATION}
PATCHED = (torch, torch.Tensor, nn.functional)  # where peers leave their patches when they crash


@dataclass
class Cell:
    """One tool on one model: its seconds in each round, and the MACs it gave in the last."""

    seconds: list[float] = field(default_factory=list)
    macs: int | None = None


Board = dict[tuple[str, str], Cell]


@dataclass(frozen=True)
class Published:
    """What torchvision's metadata says of a model: input size and GMACs, rounded to 0.001."""

    name: str
    size: int
    gmacs: float

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, 3, self.size, self.size)


def published(name: str) -> Published:
    """The first published weights' own input size and operation count; nothing is downloaded."""
    weights = torchvision.models.get_model_weights(name)["IMAGENET1K_V1"]
    return Published(name, weights.transforms.keywords["crop_size"], weights.meta["_ops"])


@contextmanager
def unpatched() -> Iterator[None]:
    """Undo what a tool leaves patched, so that no peer's crash spoils the next one's count."""
    before = [(owner, dict(vars(owner))) for owner in PATCHED]
    try:
        yield
    finally:
        for owner, names in before:
            for name, value in names.items():
                if vars(owner).get(name) is not value:
                    setattr(owner, name, value)


def timed(cell: Cell, count: Callable[[], int | None]) -> None:
    """Run one tool once; its time counts only if it did not crash."""
    with unpatched():
        began = time.perf_counter()
        cell.macs = count()
        if cell.macs is not None:
            cell.seconds.append(time.perf_counter() - began)


def peer_count(counter: Counter, model: Published) -> int | None:
    """Build and count with one peer."""
    built = torchvision.models.get_model(model.name, **KWARGS.get(model.name, {})).eval()
    return silently(counter, built, (torch.zeros(model.shape),))


def our_count(model: Published) -> int:
    """Build and measure all metrics with this project."""
    target = f"torchvision.models:{model.name}"
    return all_metrics(target, (model.shape,), KWARGS.get(model.name, {}))


def unfilled(model: Published) -> nn.Module:
    """The model with its initialisation skipped, as this project builds it."""
    with initialisation_skipped():
        return torchvision.models.get_model(model.name, **KWARGS.get(model.name, {})).eval()


def built_alone(model: Published) -> int:
    """Build, and count nothing."""
    unfilled(model)
    return 0


def bare_pass(model: Published) -> int:
    """Build, run once on tensors without memory, and count nothing."""
    built = unfilled(model).to("meta")
    with torch.inference_mode():
        built(torch.empty(model.shape, device="meta"))
    return 0


# What a counter that runs the model without computing cannot do without, unless it replaces torch's own.
NOTHING_COUNTED: Mapping[str, Callable[[Published], int]] = {
    "built, its initialisation skipped": built_alone,
    "built so, and one bare pass on meta tensors": bare_pass,
}


def counts() -> Mapping[str, Callable[[Published], int | None]]:
    """What every tool does for one cell of the table, ours first; and what takes time with nothing counted."""
    return {OURS: our_count, **{tool: partial(peer_count, peer) for tool, peer in PEERS.items()}, **NOTHING_COUNTED}


def real_models(names: Sequence[str], rounds: int) -> Board:
    """All tools on all models, tools in rotating order."""
    models = [published(name) for name in names]
    tools = list(counts().items())
    board: Board = {(tool, name): Cell() for tool, _ in tools for name in names}
    for turn in range(rounds):
        for number, model in enumerate(models):
            shift = (turn + number) % len(tools)
            for tool, count in tools[shift:] + tools[:shift]:
                timed(board[tool, model.name], partial(count, model))
    return board


def micro_count(tool: str, micro: Micro) -> int | None:
    """One tool on one small model."""
    if tool == OURS:
        return all_metrics(micro.build, micro.shapes, {})
    inputs = tuple(torch.zeros(shape) for shape in micro.shapes)
    with unpatched():
        return silently(PEERS[tool], micro.build().eval(), inputs)


def deviation(macs: int | None, gmacs: float) -> str:
    """How far from the published figure: "exact" to its three decimals, else in percent."""
    if macs is None:
        return "crash"
    if round(macs / 1e9, 3) == gmacs:
        return "exact"
    return f"{100 * (macs / 1e9 / gmacs - 1):+.1f} %"


def totals_table(board: Board, names: Sequence[str]) -> Iterator[str]:
    """Markdown: per tool the sum of its medians, the ratio to ours, and how many are right."""
    ours = seconds_of(board, OURS, names)
    figures = {name: published(name).gmacs for name in names}
    yield f"| tool | seconds, {len(names)} models | times ours | exact | crashes | furthest off |"
    yield "|---|---|---|---|---|---|"
    for tool in (OURS, *PEERS):
        cells = {name: board[tool, name] for name in names}
        said = {name: deviation(cell.macs, figures[name]) for name, cell in cells.items()}
        ran = [cell for cell in cells.values() if cell.seconds]
        seconds = sum(median(cell.seconds) for cell in ran)
        off = {name: text for name, text in said.items() if text.endswith("%")}
        worst = max(off, key=lambda name: abs(float(off[name].split()[0])), default=None)
        times = f"{seconds:.2f} | {seconds / ours:.1f}" if ran else "never ran | "
        yield (
            f"| {tool} | {times} | "
            f"{sum(text == 'exact' for text in said.values())} | {len(cells) - len(ran)} | "
            f"{f'{off[worst]} ({worst})' if worst else ''} |"
        )


def seconds_of(board: Board, tool: str, names: Sequence[str]) -> float:
    """The sum of a tool's medians."""
    return sum(median(board[tool, name].seconds) for name in names)


def nothing_table(board: Board, names: Sequence[str]) -> Iterator[str]:
    """Markdown: what building and running take where nothing is counted, and how that compares with all metrics."""
    ours = seconds_of(board, OURS, names)
    yield f"| nothing counted | seconds, {len(names)} models | times ours |"
    yield "|---|---|---|"
    for what in NOTHING_COUNTED:
        seconds = seconds_of(board, what, names)
        yield f"| {what} | {seconds:.2f} | {seconds / ours:.1f} |"


def models_table(board: Board, names: Sequence[str]) -> Iterator[str]:
    """Markdown: milliseconds and deviation of every tool on every model."""
    yield "| model | GMACs published | " + " | ".join((OURS, *PEERS)) + " |"
    yield "|---" * (len(PEERS) + 3) + "|"
    for name in names:
        gmacs = published(name).gmacs
        cells = [board[tool, name] for tool in (OURS, *PEERS)]
        texts = [
            f"{1000 * median(cell.seconds):.0f} ms, {deviation(cell.macs, gmacs)}" if cell.seconds else "crash"
            for cell in cells
        ]
        yield f"| {name} | {gmacs} | {' | '.join(texts)} |"


def micro_table() -> Iterator[str]:
    """Markdown: MACs that every tool gives for models with a closed form; wrong ones in bold."""
    yield "| model | true MACs | " + " | ".join((OURS, *PEERS)) + " |"
    yield "|---" * (len(PEERS) + 3) + "|"
    for micro in MICRO_MODELS:
        counts = [micro_count(tool, micro) for tool in (OURS, *PEERS)]
        texts = ["crash" if n is None else str(n) if n == micro.macs else f"**{n}**" for n in counts]
        yield f"| {micro.name} | {micro.macs} | {' | '.join(texts)} |"


def main() -> None:
    """Print the scoreboard as Markdown."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="medians are over these (default 3)")
    parser.add_argument("--models", nargs="+", default=MODELS.split(), help="torchvision names")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    micro = list(micro_table())  # first: it also imports every tool, which no time includes
    board = real_models(options.models, options.rounds)
    tables = [each(board, options.models) for each in (totals_table, nothing_table, models_table)]
    for table in (*tables, micro):
        print("\n".join(table), end="\n\n")


if __name__ == "__main__":
    main()
