"""Every error a user can meet: one tree, one sentence each, with place, cause and way out."""

from __future__ import annotations


class ModelBudgetError(Exception):
    """Anything a user can mend; its text says what is wrong and how to mend it."""


class UnitError(ModelBudgetError):
    """A quantity that cannot be read without guessing."""


class BudgetError(ModelBudgetError):
    """A budget file that does not say what it must say."""


class SourceError(ModelBudgetError):
    """A model source that names nothing, raises, or is not a model."""


class InputError(ModelBudgetError):
    """Inputs that cannot be read, or that the model refuses."""


class TraceError(ModelBudgetError):
    """A model whose operations could not be recorded."""


class MissingExtraError(ModelBudgetError):
    """A framework that the source needs and that is not installed."""

    def __init__(self, needed_for: str, *, package: str, extra: str) -> None:
        super().__init__(
            f"{needed_for} needs {package}, which is not installed: pip install 'pytest-modelbudget[{extra}]'"
        )


class GraphError(ModelBudgetError):
    """A graph that is not a valid program: a format handed over something impossible."""


class TransformError(ModelBudgetError):
    """A transform that could not be applied, or left out what it was asked to change."""


class ExtensionError(ModelBudgetError):
    """An extension whose tables cannot be joined with the project's own."""


class UnmeasurableError(ModelBudgetError):
    """Raised by a formula whose answer is not in the shapes; the op is then unmeasured."""
