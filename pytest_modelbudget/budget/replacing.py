"""A text put in a file's place, whole or not at all; and what is left where a process was killed meanwhile."""

from __future__ import annotations

import os
import re
import shutil
from codecs import BOM_UTF8
from collections.abc import Collection, Iterator
from pathlib import Path

STRAY = re.compile(r"\.(?P<name>.+)\.(?P<process>\d{1,9})\.new")  # where a file is written before it is in place
IGNORED = "# Written by an update of pytest-modelbudget that is under way, or was killed.\n*\n"


def replace_file(path: Path, text: str) -> None:
    """Put a text in a file's place, whole or not at all; OSError where it cannot be written.

    It is written in a folder of its own that git ignores: where the process is killed, nobody commits what is left.
    """
    path = Path(os.path.realpath(path))  # a link stays a link
    now = path.read_bytes() if path.exists() else None
    mark = BOM_UTF8 if now and now.startswith(BOM_UTF8) else b""
    folder = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        folder.mkdir(exist_ok=True)
        (folder / ".gitignore").write_text(IGNORED, encoding="utf-8")
        temporary = folder / path.name
        temporary.write_bytes(mark + text.encode("utf-8"))
        if now is not None:
            temporary.chmod(path.stat().st_mode)
        os.replace(temporary, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def strays(folder: Path, names: Collection[str]) -> Iterator[Path]:
    """The folders that killed updates of files of these names left in a folder; none that an update writes into now."""
    try:
        below = sorted(folder.iterdir())
    except OSError:
        return
    for path in below:
        match = STRAY.fullmatch(path.name)
        if match and match["name"] in names and path.is_dir() and not _is_running(int(match["process"])):
            yield path


def _is_running(process: int) -> bool:
    """Whether a process lives; as good as yes where nobody may ask."""
    if os.name == "nt":  # where asking ends it
        return process == os.getpid()
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
