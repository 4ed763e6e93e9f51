"""The ``modelbudget`` command."""

from pytest_modelbudget.cli.command import main, parser

__all__ = ["main", "parser"]
