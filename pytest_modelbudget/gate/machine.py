"""The machine that a session runs on: its memory and cores, and what its processes take of them.

Figures are read in /proc and /sys, as Linux has them.
"""

import os
from contextlib import suppress
from pathlib import Path

CGROUP_MEMORY = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of versions 2 and 1
CGROUP_CPU = "/sys/fs/cgroup/cpu.max"


def memory_of(pid: int | None) -> int:
    """Bytes that a process has for itself and not only mapped from files; 0 if that cannot be read."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    kinds = ("RssAnon", "RssShmem", "VmSwap")
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(kinds))


def machine_memory() -> int:
    """The bytes of the machine, or of its container where that has fewer; 0 where the system does not say."""
    amounts = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else []
    for file in map(Path, CGROUP_MEMORY):
        with suppress(OSError, ValueError):  # "max" is no number
            amounts.append(int(file.read_text()))
    return min(amounts, default=0)


def usable_cores() -> int:
    """The cores that this process may use, or its container where that may use fewer."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    with suppress(OSError, ValueError):
        quota, period = Path(CGROUP_CPU).read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores
