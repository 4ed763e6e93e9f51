"""Write wake_word.pte, which is in this folder: a small network in int8 for XNNPACK, by executorch 1.5.1.

``pip install executorch==1.5.1``, then ``python export_program.py``. The weights are drawn from a seed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from executorch.exir import to_edge_transform_and_lower
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e


def wake_word() -> nn.Module:
    """40x40 features, a depthwise separable block of 16 channels, two words."""
    torch.manual_seed(0)
    stem = nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU()
    block = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.ReLU(), nn.Conv2d(16, 16, 1), nn.ReLU()
    return nn.Sequential(*stem, *block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2)).eval()


def write(path: Path) -> None:
    """Quantise, delegate and write the network."""
    example = (torch.randn(1, 1, 40, 40),)
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    prepared = prepare_pt2e(torch.export.export(wake_word(), example).module(), quantizer)
    prepared(*example)
    program = torch.export.export(convert_pt2e(prepared), example)
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    path.write_bytes(lowered.to_executorch().buffer)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("wake_word.pte"))
