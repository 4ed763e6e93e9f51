"""Tests here build modules, and need the same weights in every run."""

from tests.builders.seeded import seeded

__all__ = ("seeded",)
