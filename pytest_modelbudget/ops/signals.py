"""Signals, text and pictures: what is done to data before a network has them."""

from pytest_modelbudget.ops.role import Role, learnt_attributes, shapes
from pytest_modelbudget.ops.rule import OpRule, under

WINDOW = Role("window")
SIGNALS: tuple[OpRule, ...] = (
    OpRule(
        "fft",
        under(
            "fft_fft fft_ifft fft_rfft fft_irfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn "
            "fft_ifftn fft_rfftn fft_irfftn _fft_r2c _fft_c2r _fft_c2c stft istft",
            ("x", WINDOW),
        )
        | under("DFT", "x", shapes("count axis"))
        | under("STFT", "x", shapes("steps"), WINDOW, shapes("count")),
        "butterflies, not a contraction; a formula for one algorithm would not hold for another",
        flops=None,
    ),
    OpRule(
        "text",
        under("StringConcat StringNormalizer StringSplit RegexFullMatch", "*parts")
        | under("TfIdfVectorizer", "x", learnt_attributes("weights")),
        "text is compared, cut and counted: nothing is contracted",
        flops=None,
    ),
    OpRule(
        "image_decoder",
        under("ImageDecoder", "x"),
        "a decoder of compressed pictures: no contraction of tensors",
        flops=None,
    ),
)
