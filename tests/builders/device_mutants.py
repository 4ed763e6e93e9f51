"""Damaged device files, measured one after the other in a process of their own: python device_mutants.py FILE COUNT.

The process prints how many were refused, the longest time of one, and by how much its memory grew at most.
"""

from __future__ import annotations

import json
import random
import resource
import struct
import subprocess
import sys
from pathlib import Path
from time import process_time
from typing import NamedTuple

from tests.builders.mutations import in_bytes


class Mutants(NamedTuple):
    """Files that were refused, the most CPU seconds of one, and the most memory beyond that of the file as it was."""

    refused: int
    seconds: float
    nbytes: int


def with_numbers(content: bytes, draw: random.Random) -> bytes:
    """One to three aligned numbers of four bytes, where offsets, lengths and sizes are."""
    made = bytearray(content)
    for _ in range(draw.randint(1, 3)):
        number = draw.choice((0, 1, 4, 7, 2**16, 2**31 - 1, 2**31, 2**32 - 4, draw.randrange(2**32)))
        struct.pack_into("<I", made, 4 * draw.randrange(2, len(content) // 4), number)
    return bytes(made)


def measured(path: Path, count: int) -> Mutants:
    """So many mutants of a file, in a process of its own. Raises AssertionError for one that ends it."""
    command = [sys.executable, "-m", "tests.builders.device_mutants", str(path), str(count)]
    folder = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    return Mutants(**json.loads(done.stdout.splitlines()[-1]))


def main(path: Path, count: int) -> None:
    from pytest_modelbudget import measure
    from pytest_modelbudget.errors import ModelBudgetError

    content, refused, longest = path.read_bytes(), 0, 0.0
    measure(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(count):
        draw, began = random.Random(f"{path.suffix} {seed}"), process_time()
        path.write_bytes((with_numbers if seed % 2 else in_bytes)(content, draw) or b"x")
        try:
            numbers = measure(path)
        except ModelBudgetError:
            refused += 1
        else:
            assert all(number.value >= 0 for number in numbers.values()), seed
        longest = max(longest, process_time() - began)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    print(json.dumps(Mutants(refused, longest, grown)._asdict()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
