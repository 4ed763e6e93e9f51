"""Write the two model files that budgets/ measures: a TorchScript file and an exported program.

One small network in both formats, so that its figures can be compared:
conv 3→8, 3x3 on 32x32 (padding 1): 8·32·32 · 3·9 = 221,184 MACs; linear 8→10: 80 MACs.
Parameters: (8·3·9 + 8) + (10·8 + 10) = 224 + 90 = 314.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import torch
from torch import nn

FOLDER = Path(__file__).resolve().parents[1] / "budgets" / "models"


def small_network() -> nn.Module:
    """A convolution, ReLU, global pooling and a linear layer: 1x3x32x32 → 1x10."""
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(8, 10)).eval()


def write_sample_models(folder: Path) -> tuple[Path, Path]:
    """Write both files and return their paths: TorchScript first."""
    folder.mkdir(parents=True, exist_ok=True)
    scripted, exported = folder / "small_scripted.pt", folder / "small_exported.pt2"
    torch.manual_seed(0)
    network = small_network()
    with warnings.catch_warnings():
        # TorchScript is deprecated, and still what many deployed models are stored as.
        warnings.filterwarnings("ignore", module=r"torch\.jit")
        torch.jit.script(network).save(str(scripted))
    torch.export.save(torch.export.export(network, (torch.zeros(1, 3, 32, 32),)), exported)
    return scripted, exported


def main() -> None:
    """Write the files into budgets/models, or into the folder that is given."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    for path in write_sample_models(parser.parse_args().folder):
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
