"""Operators that onnx's reference runs slowly or rounds to float32, in float64."""

from __future__ import annotations

from math import erf, pi
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


class Erf(OpRun):
    """The error function; onnx's own gives float32 values whatever it is fed."""

    op_domain = ""

    def _run(self, x: Any) -> tuple[Any]:
        return (_erf(x),)


class Gelu(OpRun):
    """x·Φ(x), or its approximation by tanh. Source: ONNX operator Gelu."""

    op_domain = ""

    def _run(self, x: Any, approximate: str = "none") -> tuple[Any]:
        return (x * (0.5 + 0.5 * _bell(x, approximate)),)


def _bell(x: Any, approximate: str) -> Any:
    """2·Φ(x) - 1."""
    import numpy as np

    if approximate == "tanh":
        return np.tanh((2 / pi) ** 0.5 * (x + 0.044715 * x**3))
    return _erf(x / 2**0.5)


def _erf(x: Any) -> Any:
    import numpy as np

    values = np.fromiter(map(erf, x.ravel().tolist()), np.float64, x.size)
    return values.reshape(x.shape).astype(x.dtype)


def _averages(x: Any, window: tuple[int, ...], steps: list[int]) -> Any:
    """Means of the windows over the last axes of x (batch, channels, ...)."""
    import numpy as np

    axes = tuple(range(2, 2 + len(window)))
    windows = np.lib.stride_tricks.sliding_window_view(x, window, axes)
    taken: tuple[Any, ...] = (slice(None), slice(None), *(slice(None, None, s) for s in steps))
    return windows[taken].mean(tuple(range(-len(window), 0)))


OWN_OPERATORS: list[type[OpRun]] = [AveragePool, Erf, Gelu]
