"""Operators that onnx's reference runs slowly, for nodes without a float64 kernel elsewhere."""

from __future__ import annotations

from typing import Any

from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_average_pool import AveragePool_19


class AveragePool(AveragePool_19):
    """Average pooling; windows without padding are taken as one array."""

    def _run(self, x: Any, **attributes: Any) -> tuple[Any]:  # type: ignore[override]  # by name
        plain = (
            not any(attributes.get("pads") or ())
            and attributes.get("auto_pad") in {None, "NOTSET"}
            and not attributes.get("ceil_mode")
            and set(attributes.get("dilations") or (1,)) == {1}
        )
        if not plain:
            result: tuple[Any] = super()._run(x, **attributes)  # type: ignore[no-untyped-call]
            return result
        window = tuple(attributes["kernel_shape"])
        return (_averages(x, window, attributes.get("strides") or [1] * len(window)),)


def _averages(x: Any, window: tuple[int, ...], steps: list[int]) -> Any:
    """Means of the windows over the last axes of x (batch, channels, ...)."""
    import numpy as np

    axes = tuple(range(2, 2 + len(window)))
    windows = np.lib.stride_tricks.sliding_window_view(x, window, axes)
    taken: tuple[Any, ...] = (slice(None), slice(None), *(slice(None, None, s) for s in steps))
    return windows[taken].mean(tuple(range(-len(window), 0)))


FASTER: list[type[OpRun]] = [AveragePool]
