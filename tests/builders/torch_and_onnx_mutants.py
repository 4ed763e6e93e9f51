"""Every mistake that must be found in every storage type, in one layer and in AlexNet.

Tests are parametrised with these names: one that a table of mutants lacks fails.
"""

from __future__ import annotations

LAST_TILE, REMAINDER = "last tile dropped", "remainder dropped"
PADDING, FOREIGN = "padding not zero", "another layer's weights"
BATCH, NAN = "other batch element", "one NaN"

# What is wrong in one layer, which float64 runs of both models show and name.
STRUCTURAL = (
    LAST_TILE,
    REMAINDER,
    "one tile dropped",
    "bias twice",
    "no bias",
    "tiles swapped",
    "tile transposed",
    BATCH,
    "stale accumulator",
    "channel scale",
    "one weight",
    "sign",
    "off by one",
    PADDING,
    FOREIGN,
    NAN,
)
# What two outputs are not, which is told from how many there are, their order and their types.
OUTPUTS = ("outputs swapped", "output missing", "output added", "type changed")
# Tests of their own hold what is left: sums in a narrower type, and these.
SECOND, DROPOUT = "second output wrong", "dropout left on"
