"""Write the small checkpoints that budgets/serving.yaml measures: one linear layer of 64 x 128 in each layout.

Each file is a header by the layout's own definition, and zeros; it needs no framework.
"""

from __future__ import annotations

import argparse
import json
import struct
from math import prod
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "budgets" / "models" / "checkpoints"
BITS = {"F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "U32": 32, "I8": 8, "U8": 8, "F8_E4M3": 8}
N, K, GROUP = 64, 128, 32
GROUPS = K // GROUP
Tensors = dict[str, tuple[str, tuple[int, ...]]]
LAYOUTS: dict[str, tuple[Tensors, dict[str, object]]] = {  # tensors, and what config.json says
    "bfloat16": ({"fc.weight": ("BF16", (N, K))}, {}),
    "compressed_tensors": ({
        "fc.weight_packed": ("I32", (N, K // 8)), "fc.weight_scale": ("BF16", (N, GROUPS)),
        "fc.weight_shape": ("I64", (2,)),
    }, {"quantization_config": {"config_groups": {"group_0": {"weights": {"num_bits": 4}}}}}),
    "gptq": ({
        "fc.qweight": ("I32", (K // 8, N)), "fc.qzeros": ("I32", (GROUPS, N // 8)), "fc.scales": ("F16", (GROUPS, N)),
        "fc.g_idx": ("I32", (K,)),
    }, {"quantization_config": {"bits": 4}}),
    "awq": ({
        "fc.qweight": ("I32", (K, N // 8)), "fc.qzeros": ("I32", (GROUPS, N // 8)), "fc.scales": ("F16", (GROUPS, N)),
    }, {}),
    "bitsandbytes_nf4": ({
        "fc.weight": ("U8", (N * K // 2, 1)), "fc.weight.absmax": ("F32", (N * K // 64,)),
        "fc.weight.quant_map": ("F32", (16,)), "fc.weight.quant_state.bitsandbytes__nf4": ("U8", (79,)),
    }, {}),
    "bitsandbytes_int8": ({"fc.weight": ("I8", (N, K)), "fc.SCB": ("F32", (N,))}, {}),
    "mlx": ({
        "fc.weight": ("U32", (N, K // 8)), "fc.scales": ("F16", (N, GROUPS)), "fc.biases": ("F16", (N, GROUPS)),
    }, {"quantization": {"bits": 4, "group_size": GROUP}}),
    "fp8": ({"fc.weight": ("F8_E4M3", (N, K)), "fc.weight_scale_inv": ("F32", (1, 1))}, {}),
    "mxfp4": ({"fc.weight_blocks": ("U8", (N, GROUPS, 16)), "fc.weight_scales": ("U8", (N, GROUPS))}, {}),
    "nvfp4": ({
        "fc.weight": ("U8", (N, K // 2)), "fc.weight_scale": ("F8_E4M3", (N, K // 16)),
        "fc.weight_scale_2": ("F32", ()),
    }, {}),
}  # fmt: skip
Q4_0, BLOCK, BLOCK_BYTES = 2, 32, 18  # of GGUF


def write_safetensors(path: Path, tensors: Tensors) -> None:
    """Eight bytes of length, JSON, zeros."""
    entries, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + prod(shape) * BITS[dtype] // 8
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": (begin, end)}
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(end))


def write_gguf(path: Path) -> None:
    """The layer in blocks of Q4_0, behind a header without settings."""
    name = b"fc.weight"
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", len(name)) + name
    header += struct.pack("<IQQIQ", 2, K, N, Q4_0, 0)
    path.write_bytes(header + bytes(-len(header) % 32) + bytes(N * K // BLOCK * BLOCK_BYTES))


def write_checkpoints(folder: Path) -> list[Path]:
    """Write a folder for each layout, and a GGUF file; return their paths."""
    for name, (tensors, config) in LAYOUTS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        write_safetensors(folder / name / "model.safetensors", tensors)
        (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_gguf(folder / "q4_0.gguf")
    return [*(folder / name for name in LAYOUTS), folder / "q4_0.gguf"]


def main() -> None:
    """Write the checkpoints into budgets/models/checkpoints, or into the folder that is given."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    for path in write_checkpoints(parser.parse_args().folder):
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
