"""Pooling and interpolation: windows over space, weighted by nothing learnt."""

from collections.abc import Callable, Sequence
from math import prod

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.role import X_SCALES, roles, shapes
from pytest_modelbudget.ops.rule import Attributes, Contraction, OpRule, Over, in_rows, nothing, under

WINDOWS = "a maximum or mean of each window: no learnt weights, nothing contracted"
REQUANTISED = ("x", X_SCALES, roles("y_scale y_zero_point"))
TAPS = "a weighted mean of fixed neighbours: no learnt weights, nothing contracted"


def window_flops(dimensions: int) -> Callable[..., int]:
    """One operation per window element of each output."""

    def flops(*, out: Tensor, attributes: Attributes) -> int:
        kernel = attributes.get("kernel_size") or attributes["kernel_shape"]
        sizes = [int(k) for k in kernel] if isinstance(kernel, Sequence) else [int(str(kernel))]
        if len(sizes) == 1:
            sizes *= dimensions
        return out.elements * prod(sizes)

    return flops


def one_per_input(*, x: Tensor) -> int:
    """Adaptive pooling and reductions: one operation per input element."""
    return x.elements


LINEAR, CUBIC = 2, 4  # neighbours along each axis that is resized


def one_per_neighbour(along_axis: int) -> Callable[..., int]:
    """Interpolation, as pooling: one operation per neighbour of each output; an axis that stays as long has one."""

    def flops(*, x: Tensor, out: Tensor) -> int:
        resized = sum(a != b for a, b in zip(x.shape, out.shape, strict=True))
        return out.elements * int(along_axis**resized)

    return flops


def resize_flops(*, x: Tensor, out: Tensor, attributes: Attributes) -> int:
    """Nearest neighbours are copied; else one per neighbour."""
    mode = str(attributes.get("mode", "nearest"))
    if mode == "nearest":
        return 0
    if attributes.get("antialias"):
        raise UnmeasurableError("an antialiased mean is as wide as the scale says: no figure in flops/1")
    return one_per_neighbour(CUBIC if mode == "cubic" else LINEAR)(x=x, out=out)


def grid_flops(*, x: Tensor, out: Tensor, attributes: Attributes) -> int:
    """One operation per neighbour, as an interpolation of as many dimensions: x (n, c, ...) → out (n, c, ...)."""
    mode = str(attributes.get("interpolation_mode", attributes.get("mode", "linear")))
    if mode in {"1", "nearest"}:
        return 0
    neighbours = 4 if mode in {"2", "cubic", "bicubic"} else 2
    return out.elements * int(neighbours ** (len(x.shape) - 2))


def affine_macs(*, theta: Tensor, out: Tensor) -> int:
    """theta (n, d, d + 1) maps points that only its shape gives → out (n, ..., d)."""
    return out.elements * theta.shape[-1]


# Operators of aten over windows of so many dimensions.
WINDOWED = {
    1: "max_pool1d max_pool1d_with_indices avg_pool1d quantized_max_pool1d",
    2: "max_pool2d max_pool2d_with_indices avg_pool2d quantized_max_pool2d mkldnn_max_pool2d",
    3: "max_pool3d max_pool3d_with_indices avg_pool3d quantized_max_pool3d mkldnn_max_pool3d",
}
FRACTIONAL = {2: "fractional_max_pool2d", 3: "fractional_max_pool3d"}  # where their windows lie is drawn
INTERPOLATED = {LINEAR: "upsample_linear1d upsample_bilinear2d upsample_trilinear3d", CUBIC: "upsample_bicubic2d"}
POOLING: tuple[OpRule, ...] = (
    *(
        OpRule("pooling", under(names, "x"), WINDOWS, flops=window_flops(dimensions))
        for dimensions, names in WINDOWED.items()
    ),
    *(
        OpRule("pooling", under(name, "x samples"), WINDOWS, flops=window_flops(dimensions))
        for dimensions, name in FRACTIONAL.items()
    ),
    OpRule(
        "pooling",
        under(
            "MaxPool AveragePool LpPool com.microsoft::NhwcMaxPool com.microsoft.nchwc::MaxPool "
            "com.microsoft.nchwc::AveragePool tflite::AVERAGE_POOL_2D tflite::MAX_POOL_2D tflite::L2_POOL_2D",
            "x",
        )
        | under("com.microsoft::QLinearAveragePool", REQUANTISED),
        WINDOWS,
        flops=window_flops(1),
    ),
    OpRule(
        "adaptive_pooling",
        under(
            "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d adaptive_avg_pool1d "
            "adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d "
            "mkldnn_adaptive_avg_pool2d GlobalAveragePool GlobalMaxPool GlobalLpPool "
            "com.microsoft.nchwc::GlobalAveragePool com.microsoft.nchwc::GlobalMaxPool",
            "x",
        )
        | under("com.microsoft::QLinearGlobalAveragePool", REQUANTISED),
        WINDOWS,
        flops=one_per_input,
    ),
    OpRule(
        "interpolation",
        under(
            "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d "
            "_upsample_nearest_exact2d _upsample_nearest_exact3d",
            "x",
        ),
        TAPS,
        flops=nothing,  # nearest neighbours are copied
    ),
    *(
        OpRule("interpolation", under(names, "x"), TAPS, flops=one_per_neighbour(along_axis))
        for along_axis, names in INTERPOLATED.items()
    ),
    OpRule(
        "interpolation",
        under("_upsample_bilinear2d_aa _upsample_bicubic2d_aa", "x"),
        "a weighted mean whose width grows with the scale: no learnt weights",
        flops=None,
    ),
    OpRule(
        "interpolation",
        under("Resize", "x", shapes("roi resize_scales sizes"))
        | under("Upsample com.microsoft.nchwc::Upsample", "x", shapes("resize_scales"))
        | under("tflite::RESIZE_BILINEAR tflite::RESIZE_NEAREST_NEIGHBOR", "x", shapes("sizes")),
        TAPS,
        flops=resize_flops,
    ),
    OpRule(
        "grid_sample",
        under(
            "grid_sampler grid_sampler_2d grid_sampler_3d cudnn_grid_sampler "
            "_grid_sampler_2d_cpu_fallback GridSample com.microsoft::GridSample",
            "x grid",
        ),
        "interpolation at positions that the data gives: nothing is contracted",
        flops=grid_flops,
    ),
    OpRule(
        "affine_grid",
        under("affine_grid_generator", "theta") | under("AffineGrid", "theta", shapes("sizes")),
        "base (points, d + 1) · thetaᵀ (d + 1, d): each coordinate is a sum of d + 1 products",
        macs=affine_macs,
        contracts=Contraction(Over.FEATURES, ("theta", "theta"), fan_in=in_rows),  # by points of its own type
    ),
    OpRule(
        "region_pooling",
        under(
            "torchvision::roi_align torchvision::roi_pool torchvision::ps_roi_align torchvision::ps_roi_pool", "x boxes"
        )
        | under("RoiAlign MaxRoiPool com.microsoft::CropAndResize", "x boxes indices"),
        "interpolation inside boxes that the data gives: nothing is contracted",
        flops=None,
    ),
)
