"""Damaged model files, and graphs at random: refused, measured rightly, or said to be incomplete."""
