"""Operations whose work depends on the data, and that contract nothing: sorts, boxes, FFTs."""

from __future__ import annotations

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.ops.op_rule import OpRule, under


def _uncontracted(kind: str, names: str, because: str, *roles: str) -> OpRule:
    """No MACs, for the reason given; the FLOP convention has no figure for it."""
    return OpRule(kind, under(names, *roles), because, flops=None)


def unseen() -> int:
    """What is done with values outside torch moves bytes that nobody sees."""
    raise UnmeasurableError(LEFT)


LEFT = "values leave torch here: what is computed with them is not seen"
SEARCHING: tuple[OpRule, ...] = (
    OpRule(
        "leaves_torch",
        under("torch::numpy torch::__array__ torch::__dlpack__", "x"),
        LEFT,
        macs=None,
        flops=None,
        writes=unseen,
    ),
    _uncontracted(
        "loss",
        "aten::mse_loss aten::smooth_l1_loss aten::huber_loss aten::soft_margin_loss",
        "differences element by element, and their mean",
        "x",
        "y",
    ),
    _uncontracted(
        "sort",
        "aten::sort aten::argsort aten::topk aten::msort aten::kthvalue aten::median "
        "aten::nanmedian aten::mode aten::quantile aten::searchsorted aten::bucketize",
        "comparisons only",
        "x",
        "y",
        "order",
    ),
    _uncontracted(
        "unique",
        "aten::_unique2 aten::_unique aten::unique_dim aten::unique_consecutive aten::bincount "
        "aten::histc aten::isin",
        "comparisons and counts only",
        "x",
        "y",
    ),
    _uncontracted(
        "nms", "torchvision::nms", "boxes are compared, not contracted", "boxes", "scores"
    ),
    _uncontracted(
        "fft",
        "aten::fft_fft aten::fft_ifft aten::fft_rfft aten::fft_irfft aten::fft_fft2 "
        "aten::fft_ifft2 aten::fft_rfft2 aten::fft_irfft2 aten::fft_fftn aten::fft_ifftn "
        "aten::fft_rfftn aten::fft_irfftn aten::_fft_r2c aten::_fft_c2r aten::_fft_c2c "
        "aten::stft aten::istft",
        "butterflies, not a contraction; a formula for one algorithm would not hold for another",
        "x",
        "window",
    ),
    _uncontracted(
        "random",
        "aten::rand aten::randn aten::randint aten::randperm aten::rand_like aten::randn_like "
        "aten::randint_like aten::bernoulli aten::bernoulli_ aten::normal aten::normal_ "
        "aten::uniform_ aten::random_ aten::exponential_ aten::multinomial aten::poisson "
        "aten::trunc_normal_",
        "numbers are drawn, not contracted",
        "x",
        "y",
        "z",
    ),
    OpRule(
        "sort",
        under("onnx::TopK", "x", "count") | under("onnx::Hardmax", "x"),
        "comparisons only",
        flops=None,
    ),
    _uncontracted("unique", "onnx::Unique", "comparisons and counts only", "x"),
    OpRule(
        "nms",
        under("onnx::NonMaxSuppression", "boxes", "scores", "count", "limit", "delta"),
        "boxes are compared, not contracted",
        flops=None,
    ),
    OpRule(
        "fft",
        under("onnx::DFT", "x", "count", "axis")
        | under("onnx::STFT", "x", "steps", "window", "count"),
        "butterflies, not a contraction; a formula for one algorithm would not hold for another",
        flops=None,
    ),
    OpRule(
        "random",
        under(
            "onnx::Bernoulli onnx::Multinomial onnx::RandomNormal onnx::RandomNormalLike "
            "onnx::RandomUniform onnx::RandomUniformLike",
            "like",
        ),
        "numbers are drawn, not contracted",
        flops=None,
    ),
)
