"""Pooling and interpolation: windows over space, weighted by nothing learnt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.role import Role
from pytest_modelbudget.ops.rule import Formula, OpRule, nothing, under

WINDOWS = "a maximum or mean of each window: no learnt weights, nothing contracted"
REQUANTISED = ("x", "x_scale", "x_zero_point", "y_scale", "y_zero_point")
TAPS = "a weighted mean of fixed neighbours: no learnt weights, nothing contracted"


def window_flops(dimensions: int) -> Callable[..., int]:
    """One operation per window element of each output."""

    def flops(*, out: Tensor, attributes: Mapping[str, object]) -> int:
        kernel = attributes.get("kernel_size") or attributes["kernel_shape"]
        sizes = [int(k) for k in kernel] if isinstance(kernel, Sequence) else [int(str(kernel))]
        if len(sizes) == 1:
            sizes *= dimensions
        return out.elements * prod(sizes)

    return flops


def one_per_input(*, x: Tensor) -> int:
    """Adaptive pooling and reductions: one operation per input element."""
    return x.elements


def one_per_tap(taps: int) -> Callable[..., int]:
    """Interpolation, as pooling: one operation per neighbour that an output is made of."""

    def flops(*, out: Tensor) -> int:
        return taps * out.elements

    return flops


def _pooling(dimensions: int) -> OpRule:
    d = f"{dimensions}d"
    names = (
        f"aten::max_pool{d} aten::max_pool{d}_with_indices aten::avg_pool{d} "
        f"aten::quantized_max_pool{d}"
    )
    return OpRule("pooling", under(names, "x"), WINDOWS, flops=window_flops(dimensions))


def _adaptive(dimensions: int) -> OpRule:
    d = f"{dimensions}d"
    names = f"aten::adaptive_max_pool{d} aten::adaptive_avg_pool{d}"
    return OpRule("adaptive_pooling", under(names, "x"), WINDOWS, flops=one_per_input)


def _interpolation(names: str, flops: Formula) -> OpRule:
    return OpRule("interpolation", under(names, "x"), TAPS, flops=flops)


def resize_flops(*, x: Tensor, out: Tensor, attributes: Mapping[str, object]) -> int:
    """Nearest neighbours are copied; else 2 per tap: 2 (linear) or 4 (cubic) a resized axis."""
    mode = str(attributes.get("mode", "nearest"))
    if mode == "nearest":
        return 0
    resized = sum(a != b for a, b in zip(x.shape, out.shape, strict=True))
    return 2 * out.elements * int((4 if mode == "cubic" else 2) ** resized)


POOLING: tuple[OpRule, ...] = (
    *(_pooling(dimensions) for dimensions in (1, 2, 3)),
    *(_adaptive(dimensions) for dimensions in (1, 2, 3)),
    OpRule("pooling", under("aten::mkldnn_max_pool2d", "x"), WINDOWS, flops=window_flops(2)),
    OpRule("pooling", under("aten::mkldnn_max_pool3d", "x"), WINDOWS, flops=window_flops(3)),
    OpRule(
        "adaptive_pooling",
        under(
            "aten::_adaptive_avg_pool2d aten::_adaptive_avg_pool3d "
            "aten::mkldnn_adaptive_avg_pool2d",
            "x",
        ),
        WINDOWS,
        flops=one_per_input,
    ),
    _interpolation(
        "aten::upsample_nearest1d aten::upsample_nearest2d aten::upsample_nearest3d "
        "aten::_upsample_nearest_exact1d aten::_upsample_nearest_exact2d "
        "aten::_upsample_nearest_exact3d",
        nothing,  # nearest neighbours are copied
    ),
    _interpolation("aten::upsample_linear1d", one_per_tap(2)),
    _interpolation("aten::upsample_bilinear2d", one_per_tap(4)),
    _interpolation("aten::upsample_trilinear3d", one_per_tap(8)),
    _interpolation("aten::upsample_bicubic2d", one_per_tap(16)),
    OpRule(
        "interpolation",
        under("aten::_upsample_bilinear2d_aa aten::_upsample_bicubic2d_aa", "x"),
        "a weighted mean whose width grows with the scale: no learnt weights",
        flops=None,
    ),
    OpRule(
        "grid_sample",
        under(
            "aten::grid_sampler aten::grid_sampler_2d aten::grid_sampler_3d "
            "aten::cudnn_grid_sampler aten::_grid_sampler_2d_cpu_fallback",
            "x",
            "grid",
        ),
        "interpolation at positions that the data gives: nothing is contracted",
        flops=None,
    ),
    OpRule(
        "region_pooling",
        under(
            "torchvision::roi_align torchvision::roi_pool torchvision::ps_roi_align "
            "torchvision::ps_roi_pool",
            "x",
            "boxes",
        ),
        "interpolation inside boxes that the data gives: nothing is contracted",
        flops=None,
    ),
    OpRule(
        "pooling",
        under(
            "onnx::MaxPool onnx::AveragePool onnx::LpPool com.microsoft::NhwcMaxPool "
            "com.microsoft.nchwc::MaxPool com.microsoft.nchwc::AveragePool",
            "x",
        )
        | under("com.microsoft::QLinearAveragePool", *REQUANTISED),
        WINDOWS,
        flops=window_flops(1),
    ),
    OpRule(
        "adaptive_pooling",
        under(
            "onnx::GlobalAveragePool onnx::GlobalMaxPool onnx::GlobalLpPool "
            "com.microsoft.nchwc::GlobalAveragePool com.microsoft.nchwc::GlobalMaxPool",
            "x",
        )
        | under("com.microsoft::QLinearGlobalAveragePool", *REQUANTISED),
        WINDOWS,
        flops=one_per_input,
    ),
    OpRule(
        "interpolation",
        under(
            "onnx::Resize",
            "x",
            Role("roi", shape=True),
            Role("resize_scales", shape=True),
            Role("sizes", shape=True),
        )
        | under(
            "onnx::Upsample com.microsoft.nchwc::Upsample", "x", Role("resize_scales", shape=True)
        ),
        TAPS,
        flops=resize_flops,
    ),
    OpRule(
        "grid_sample",
        under("onnx::GridSample com.microsoft::GridSample", "x", "grid")
        | under("onnx::AffineGrid", "theta", Role("sizes", shape=True)),
        "interpolation at positions that the data gives: nothing is contracted",
        flops=None,
    ),
    OpRule(
        "region_pooling",
        under(
            "onnx::RoiAlign onnx::MaxRoiPool com.microsoft::CropAndResize", "x", "boxes", "indices"
        ),
        "interpolation inside boxes that the data gives: nothing is contracted",
        flops=None,
    ),
)
