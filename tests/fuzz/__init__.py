"""Damaged model files, and programs, budgets, locks and quantities at random: right, refused, or said to be incomplete.

``MODELBUDGET_FUZZ=20`` tries twenty times as many as usual.
"""
