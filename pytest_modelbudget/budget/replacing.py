"""Replaces the text of a file, completely or not at all."""

from __future__ import annotations

import os
from codecs import BOM_UTF8
from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Replace the text of a file, completely or not at all. Raises OSError where it cannot be written."""
    path = Path(os.path.realpath(path))  # a link stays a link
    now = path.read_bytes() if path.exists() else None
    mark = BOM_UTF8 if now and now.startswith(BOM_UTF8) else b""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        temporary.write_bytes(mark + text.encode("utf-8"))
        if now is not None:
            temporary.chmod(path.stat().st_mode)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
