"""What all tests share: pytest's own plugin for testing plugins, and no sign of a CI system."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]
SIGNS = (
    "CI", "BUILD_NUMBER", "TF_BUILD", "GITHUB_ACTIONS", "GITHUB_EVENT_NAME", "GITHUB_BASE_REF",
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run alike on a desk and in CI: what the plugin does there, they say themselves."""
    for sign in SIGNS:
        monkeypatch.delenv(sign, raising=False)
