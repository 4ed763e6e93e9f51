"""Transforms, and proof that outputs are the same."""
