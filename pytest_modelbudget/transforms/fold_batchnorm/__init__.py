"""Batch norms as a part of the layer before them."""
