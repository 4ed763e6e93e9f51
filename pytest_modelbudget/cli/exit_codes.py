"""What the command's exit codes mean."""

from __future__ import annotations

DONE, UNMEASURED, UNUSABLE, INTERRUPTED = 0, 1, 2, 130
