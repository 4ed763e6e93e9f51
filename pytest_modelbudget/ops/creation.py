"""Tensors made from nothing but a shape or a constant: they are written, and that is all."""

from __future__ import annotations

from pytest_modelbudget.ops.op_rule import OpRule, free, nothing, under

CREATION: tuple[OpRule, ...] = (
    free(
        "allocation",
        under("aten::empty aten::empty_strided"),
        "memory without values: nothing is written yet",
        writes=nothing,
    ),
    free(
        "allocation",
        under(
            "aten::empty_like aten::new_empty aten::new_empty_strided aten::empty_permuted",
            "like",
        ),
        "memory without values: nothing is written yet",
        reads=lambda: {"like": 0},
        writes=nothing,
    ),
    free(
        "creation",
        under(
            "aten::zeros aten::ones aten::full aten::arange "
            "aten::linspace aten::logspace aten::eye aten::scalar_tensor aten::tril_indices "
            "aten::triu_indices aten::hann_window aten::hamming_window aten::range "
            "aten::_efficientzerotensor",
            "start",
            "end",
        ),
        "values known before the run are written, nothing is computed",
    ),
    free(
        "creation",
        under(
            "aten::zeros_like aten::ones_like aten::full_like aten::new_zeros aten::new_ones "
            "aten::new_full",
            "like",
        ),
        "the operand lends its shape and is not read",
        reads=lambda: {"like": 0},
    ),
    free(
        "creation",
        under("onnx::Constant")
        | under("onnx::ConstantOfShape", "shape")
        | under("onnx::Range", "start", "limit", "delta")
        | under("onnx::HannWindow onnx::HammingWindow onnx::BlackmanWindow", "count")
        | under("onnx::MelWeightMatrix", "count", "limit", "start", "delta", "ends"),
        "values known before the run are written, nothing is computed",
    ),
    free(
        "creation",
        under("onnx::EyeLike", "like"),
        "the operand lends its shape and is not read",
        reads=lambda: {"like": 0},
    ),
    free(
        "shape",
        under("onnx::Shape onnx::Size", "like"),
        "the shape of a tensor is known without reading it",
        reads=lambda: {"like": 0},
    ),
)
