"""What all tests share: pytest's own plugin for testing plugins, and no workflow around them."""

from __future__ import annotations

import os

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def outside_github(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that a test runs must not annotate, or write to the page of, the run around it."""
    for name in [name for name in os.environ if name.startswith("GITHUB_")]:
        monkeypatch.delenv(name)
