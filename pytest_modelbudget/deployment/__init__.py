"""A device: its figures, the order of operations and the arena that need the least memory, its array of multipliers."""
