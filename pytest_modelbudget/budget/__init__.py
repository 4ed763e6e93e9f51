"""Budget files: what they ask for, how they are read, and the verdict on it."""

SUFFIXES = (".yaml", ".yml")  # of files that may be budgets
FOLDER = "budgets"  # where budgets are, if nobody says otherwise
PATHS = "model_budget_paths"  # the key of pytest's configuration that says otherwise
