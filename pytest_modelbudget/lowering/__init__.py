"""Graphs as a runtime reads them: pure functions from one program to another, beside which the one written stays."""
