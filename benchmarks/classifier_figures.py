"""The figures of torchvision's 80 classifiers with the torch that is installed, as JSON.

python benchmarks/classifier_figures.py --out FILE writes them; with --compare FILE..., prints what differs from others.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import torchvision

from pytest_modelbudget import measure

METRICS = ("params", "weight_memory", "macs", "peak_activation", "total_activation", "bandwidth")
SIZES = {"inception_v3": 299}  # of images that are not 224x224
SLOW_TO_FILL = ("googlenet", "inception_v3")


def figures(name: str) -> dict[str, int | str]:
    """Each metric of one classifier on one image, as the number or the words that measuring ended with."""
    size = SIZES.get(name, 224)
    kwargs = {"init_weights": False} if name in SLOW_TO_FILL else {}
    measured = measure(f"torchvision.models:{name}", f"float32 1x3x{size}x{size}", kwargs=kwargs)
    return {metric: int(measured[metric].value) if measured[metric].complete else "unknown" for metric in METRICS}


def main() -> None:
    """Write the figures of all classifiers, or compare files of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compare", type=Path, nargs="*", default=())
    options = parser.parse_args()
    if options.out:
        names = torchvision.models.list_models(module=torchvision.models)
        found = {name: figures(name) for name in names}
        options.out.write_text(json.dumps({"torch": torch.__version__, "figures": found}, indent=1), encoding="utf-8")
        print(f"{len(found)} classifiers with torch {torch.__version__}")
    first, *others = [json.loads(file.read_text(encoding="utf-8")) for file in options.compare] or [{}]
    for other in others:
        print(f"torch {first['torch']} and {other['torch']}:")
        same = first["figures"].keys() & other["figures"].keys()
        differing = {
            (name, metric): (figure, other["figures"][name][metric])
            for name in sorted(same)
            for metric, figure in first["figures"][name].items()
            if other["figures"][name][metric] != figure
        }
        for (name, metric), (one, another) in differing.items():
            print(f"  {name} {metric}: {one} and {another}")
        print(f"  {len(same)} classifiers, {len(differing)} figures differ")


if __name__ == "__main__":
    main()
