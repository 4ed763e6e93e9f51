"""Options and hooks of the pytest plugin, a few lines each."""
