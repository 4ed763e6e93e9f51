"""``modelbudget merge``: what one run would have written, or a sentence that names the part which does not fit."""

from __future__ import annotations

import pytest

from tests.builders import sharded
from tests.builders.project import Project


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_merged_reports_are_those_of_one_run(project: Project, of: int) -> None:
    """Over, warned of, unknown, unloadable, broken, loosened, redefined, moved and stale: byte for byte."""
    sharded.changed_project(project)
    args = ("--model-budget-base=main", "--model-budget-lock=check")
    whole = sharded.one_run(project, *args)
    parts = [part for _, part in sharded.run_shards(project, of, *args)]
    assert sharded.merge(project.path, parts) == whole
    assert whole[0] == 1
