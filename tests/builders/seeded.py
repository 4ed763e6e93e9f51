"""Modules that a test builds have the same weights in every run."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Which channels a ReLU shuts must not be left to chance; without torch there is nothing."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
