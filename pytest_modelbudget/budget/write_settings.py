"""Settings of transforms as a budget spells them; ``read_transforms`` reads the same values back.

Also plain values, which ``plain_values`` reads back.
"""

from __future__ import annotations

import json
import re
from typing import cast

from pytest_modelbudget.budget.plain_values import scalar
from pytest_modelbudget.transforms.transform import Setting, SettingForm

_WORD = re.compile(r"[A-Za-z_./][\w./:+-]*")


def setting_text(setting: Setting, value: object) -> str:
    """The value of a setting: "64", "[32, 64]", "ragged", '["head.*"]'."""
    if setting.form is SettingForm.TILE:
        return _tile_text(setting, cast("tuple[int | None, int, int]", value))
    return plain_text(value)


def _tile_text(setting: Setting, tile: tuple[int | None, int, int]) -> str:
    """(m, k, n) as the one number that is k and n, or as a size for each of the setting's axes."""
    m, k, n = tile
    if m is None and k == n:
        return str(k)
    sizes = dict(zip("mkn", tile, strict=True))
    return plain_text([sizes[axis] for axis in setting.axes])


def plain_text(value: object) -> str:
    """A plain value; 1, 1.0, true and "1" are four, and the order of keys is none of it."""
    if isinstance(value, str) and _WORD.fullmatch(value) and scalar(value) == value:
        return value
    return json.dumps(value, sort_keys=True)
