"""Budget files: what they ask for, how they are read, and the verdict on it."""

SUFFIXES = (".yaml", ".yml")  # of files that may be budgets
