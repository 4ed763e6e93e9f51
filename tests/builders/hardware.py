"""A device and a network of 4 → 8 → 2 that fills it, worked by hand.

In int8 it stores 32 + 16 B of weights and a float32 scale for each of 8 + 2 outputs: 88 B. At its first layer 4 + 8 B
of activations are alive, at its second 8 + 2.
"""

WEIGHTS, ACTIVATIONS = 32 + 16 + 4 * (8 + 2), 4 + 8
BOARD = """hardware: 1
devices:
  board:
    memories:
      flash: {{size: {flash} B, holds: weights, bandwidth: 100 B/s}}
      sram: {{size: {sram} B, holds: activations, reserve: 5 B, bandwidth: 1 kB/s}}
    macs: {{int8: 1 kMAC/s}}
    arena: {{align: 1}}
    array: {{rows: 8, columns: 8}}
    source: made up
"""
