"""Transforms of models, and the proof that outputs stay the same."""
