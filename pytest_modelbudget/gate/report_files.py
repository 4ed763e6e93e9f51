"""Report files on disk: none of an earlier run is left, and each is there whole or not at all."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pytest_modelbudget.budget.lock_file import replace_file
from pytest_modelbudget.errors import ExtensionError, user_code
from pytest_modelbudget.gate.process_state import collection_paused
from pytest_modelbudget.reports.record import Report
from pytest_modelbudget.reports.shard import Part
from pytest_modelbudget.reports.table import FileReport


def remove_reports(paths: Iterable[Path]) -> None:
    """Remove the reports of an earlier run: nobody takes them for this one's, however it ends."""
    for path in paths:
        with suppress(OSError):  # what cannot be removed cannot be written either, which is said then
            target = Path(os.path.realpath(path))
            if target.is_file():
                target.unlink()


@collection_paused()
def write_report(kind: FileReport, report: Report | Part, path: Path, name: str) -> None:
    """Write one report; name is its file as it was asked for.

    Raises ExtensionError where it cannot be rendered, and OSError where it cannot be written.
    """
    with user_code(f"rendering {kind.type} to {name}", ExtensionError):
        text = kind.render(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)


def write_whole(path: Path, text: str) -> None:
    """A report in its file, whole or not at all: a run that is killed leaves none that is cut.

    What is no plain file, or stands where nothing can take its place, such as one that is mounted, is written into.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    try:
        replace_file(path, text)
    except OSError:
        path.write_text(text, encoding="utf-8")
