"""Two checkouts of this project, paired: what one of them measures slower than the other by more than a tenth.

Both measure every metric of 21 torchvision models and of the ONNX files that onnx ships, each in a process of its
own that answers in turn, either one first in every other round. Seconds are the processor's, which other work on the
machine takes little of, and the least of all rounds, since nothing makes a run too short. Nothing fails: a table
says it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

SLOWER = 1.1
SIDES = ("base", "head")


class Side:
    """One checkout, in a process that measures a model whenever it is named, and answers with seconds."""

    def __init__(self, checkout: Path) -> None:
        folder = checkout.resolve()
        if not (folder / "pytest_modelbudget").is_dir():
            raise SystemExit(f"{checkout} is no checkout of this project: it has no folder pytest_modelbudget")
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            env={**os.environ, "PYTHONPATH": str(folder)},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self, model: str) -> float | None:
        """What measuring took; None where the checkout does not measure it."""
        asks, answers = self._process.stdin, self._process.stdout
        print(model, file=asks, flush=True)
        answer = answers.readline().strip() if answers else ""
        if not answer:
            raise SystemExit(f"the process that measures {model} has died: see above")
        return None if answer == "failed" else float(answer)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def serve() -> None:
    """Answer each model that is named on standard input with the seconds that measuring it takes."""
    for line in sys.stdin:
        began = time.process_time()
        try:
            measure(line.strip())
        except Exception as error:  # noqa: BLE001  # of a checkout that may be broken: said in the table
            print(f"{line.strip()}: {error}", file=sys.stderr)
            print("failed", flush=True)
        else:
            print(time.process_time() - began, flush=True)


def measure(model: str) -> None:
    """Every metric of a torchvision model or of a file, by whatever checkout this process was given."""
    from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
    from pytest_modelbudget.gate.measuring import measure_model
    from pytest_modelbudget.registry import tables

    if model.endswith(".onnx"):
        source = ModelSource("onnx", model)
    else:
        size = 299 if model == "inception_v3" else 224
        inputs = InputSpecs((TensorSpec("float32", (1, 3, size, size)),))
        source = ModelSource("torch", f"torchvision.models:{model}", inputs)
    measured = measure_model(source, tables(), root=Path.cwd())
    if measured.failure:
        raise measured.failure


def models() -> Iterator[str]:
    """The scoreboard's torchvision models, and the files of onnx's wheel."""
    import onnx
    from vs_peers import MODELS

    yield from MODELS.split()
    yield from map(str, sorted((Path(onnx.__file__).parent / "backend" / "test" / "data" / "light").glob("*.onnx")))


def least(sides: Mapping[str, Side], names: Sequence[str], rounds: int) -> dict[tuple[str, str], float | None]:
    """The fewest seconds of each side on each model; the first round, which imports, is left out."""
    fewest: dict[tuple[str, str], float | None] = {}
    for turn in range(rounds + 1):
        for name in names:
            for side in SIDES if turn % 2 else SIDES[::-1]:
                seconds = sides[side].seconds(name)
                best = fewest.get((side, name)) if turn > 1 else seconds
                fewest[side, name] = None if seconds is None or best is None else min(seconds, best)
    return fewest


def table(fewest: Mapping[tuple[str, str], float | None], names: Sequence[str]) -> Iterator[str]:
    """Markdown: what is slower by more than a tenth, then everything in a fold."""
    rows = [(Path(name).stem, *(fewest[side, name] for side in SIDES)) for name in names]
    both = [(name, base, head) for name, base, head in rows if base is not None and head is not None]
    slower = [(name, base, head) for name, base, head in both if head > SLOWER * base]
    failed = [name for name, _, head in rows if head is None]
    heads, bases = sum(head for *_, head in both), sum(base for _, base, _ in both)
    yield "### Time to measure, head against base"
    yield ""
    yield (
        f"All {len(both)} models: {bases:.2f} s before, {heads:.2f} s now ({heads / bases - 1:+.0%})."
        if both
        else "No model was measured by both."
    )
    for name in failed:
        yield f"**{name} is not measured by head.**"
    yield ""
    yield f"**{len(slower)} slower by more than a tenth:**" if slower else "None is slower by more than a tenth."
    yield ""
    if slower:
        yield from _rows(slower)
        yield ""
    yield "<details><summary>every model</summary>"
    yield ""
    yield from _rows(both)
    yield ""
    yield "</details>"


def _rows(rows: Sequence[tuple[str, float, float]]) -> Iterator[str]:
    yield "| model | base, ms | head, ms | head ÷ base |"
    yield "|---|---|---|---|"
    for name, base, head in rows:
        yield f"| {name} | {1000 * base:.0f} | {1000 * head:.0f} | {head / base:.2f} |"


def main() -> None:
    """Print the comparison as Markdown."""
    if sys.argv[1:] == ["--serve"]:
        return serve()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path, help="a checkout of what was before")
    parser.add_argument("head", type=Path, help="a checkout of what is now")
    parser.add_argument("--rounds", type=int, default=5, help="turns of both (default 5)")
    parser.add_argument(
        "--models", nargs="+", help="torchvision names or ONNX files; without it those of the scoreboard"
    )
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds: 1 or more")
    names = options.models or list(models())
    sides = {side: Side(checkout) for side, checkout in zip(SIDES, (options.base, options.head), strict=True)}
    fewest = least(sides, names, options.rounds)
    for side in sides.values():
        side.close()
    print("\n".join(table(fewest, names)))
    return None


if __name__ == "__main__":
    main()
