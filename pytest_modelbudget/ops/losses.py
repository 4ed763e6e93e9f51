"""Losses that a forward pass computes: element by element or row by row, but for one with a linear layer in it."""

from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.dense import LINEAR_OF
from pytest_modelbudget.ops.role import BIAS, WEIGHT, Role
from pytest_modelbudget.ops.rule import Attributes, OpRule, under

SCALE = Role("scale")  # of classes or elements, which is given and not learnt


def linear_cross_entropy_macs(*, x: Tensor, weight: Tensor, attributes: Attributes) -> int:
    """x (n, k) · weightᵀ (classes, k), and once more for each gradient of the two that the call makes beside it."""
    asked = ("compute_input_grad", "compute_linear_weight_grad")
    return x.elements * weight.shape[0] * (1 + sum(attributes.get(name) is True for name in asked))


LOSSES: tuple[OpRule, ...] = (
    OpRule(
        "loss",
        under("mse_loss smooth_l1_loss huber_loss soft_margin_loss", "x y")
        | under("binary_cross_entropy binary_cross_entropy_with_logits", "x y", SCALE, Role("positive_scale")),
        "differences or logarithms element by element, and their mean",
        flops=None,
    ),
    OpRule(
        "loss",
        under("multi_margin_loss multilabel_margin_loss multilabel_margin_loss_forward", "x target", SCALE),
        "differences to the chosen element of each row, and their mean",
        flops=None,
    ),
    OpRule(
        "loss",
        under("_ctc_loss", "x target lengths target_lengths"),
        "sums over all alignments, step by step along each row: no pairs are contracted",
        flops=None,
    ),
    OpRule(
        "loss",
        under(
            "nll_loss nll_loss_forward nll_loss2d nll_loss2d_forward SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss",
            "x target",
            SCALE,
        ),
        "one chosen logarithm per row, weighted and added up: no pairs are contracted",
        flops=None,
    ),
    OpRule(
        "linear_cross_entropy",
        under(
            "torch_nn::_linear_cross_entropy_batch_chunked torch_nn::_linear_cross_entropy_batch_chunked_no_reduction",
            "x",
            WEIGHT,
            "target",
            BIAS,
            SCALE,
        ),
        "a linear layer and the cross entropy of its results, in chunks, with the gradients that it is asked for",
        macs=linear_cross_entropy_macs,
        contracts=LINEAR_OF,
        flops=None,
    ),
)
