"""Mutants of what numbers and verdicts rest on: run on request, never by the suite."""
