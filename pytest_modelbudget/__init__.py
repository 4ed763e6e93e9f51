"""Budgets for neural networks: measure, judge, and fail the change that breaks a limit."""
