"""What all tests share: pytest's own plugin for testing plugins, and no sign of a CI system."""

from __future__ import annotations

import os

import pytest

pytest_plugins = ["pytester"]


SIGNS = ("CI", "BUILD_NUMBER", "TF_BUILD")


@pytest.fixture(autouse=True)
def no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run alike on a desk and in CI: what the plugin does there, they say themselves."""
    for name in [each for each in os.environ if each in SIGNS or each.startswith("GITHUB_")]:
        monkeypatch.delenv(name)
