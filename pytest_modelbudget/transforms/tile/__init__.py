"""Linear operations and convolutions as products of tiles."""
