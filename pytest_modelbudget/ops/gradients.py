"""Gradients, as PyTorch's backward pass calls them: what those of a contraction contract, and that others do not.

A gradient of a linear layer or product has no operator of its own: it is two products.
"""

from math import prod

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.convolution import CONVOLUTION_OF, either_convolution_macs
from pytest_modelbudget.ops.role import WEIGHT
from pytest_modelbudget.ops.rule import Attributes, Contraction, OpRule, Over, under


def convolution_gradient_macs(*, grad: Tensor, x: Tensor, weight: Tensor, attributes: Attributes) -> int:
    """The gradients of input and weight, as far as they are asked for, each with the MACs of the convolution itself.

    x, grad and weight as input, output and weight of the convolution. Every product x · w that adds to an output
    gives its grad · w to the input's gradient, and its grad · x to the weight's, within one group as well.
    """
    mask = attributes.get("output_mask")
    if not isinstance(mask, tuple):
        raise UnmeasurableError("the call does not say which gradients it asks for (output_mask)")
    asked = sum(map(bool, mask[:2]))
    return asked * either_convolution_macs(x=x, weight=weight, out=grad, attributes=attributes)


def attention_gradient_macs(*, grad: Tensor, query: Tensor, key: Tensor, value: Tensor) -> int:
    """Five products per head, of which the first makes the scores again, which the kernel did not keep.

    query (..., h, l, e) · keyᵀ (..., s, e); grad (..., h, l, v) · valueᵀ (..., s, v); weightsᵀ · grad; and the
    gradient of the scores by key and by query: rows · s · (3·e + 2·v). Grouped queries as in the product itself.
    """
    rows = prod(grad.shape[:-1])
    return rows * key.shape[-2] * (3 * query.shape[-1] + 2 * value.shape[-1])


ELEMENT_BY_ELEMENT = (
    # activations, dropout, softmax, cumulation
    "glu_backward _prelu_kernel_backward rrelu_with_noise_backward hardshrink_backward softshrink_backward "
    "native_dropout_backward _softmax_backward_data _log_softmax_backward_data _masked_softmax_backward "
    "masked_scatter_backward "
    # losses
    "mse_loss_backward nll_loss_backward nll_loss2d_backward binary_cross_entropy_backward huber_loss_backward "
    "smooth_l1_loss_backward soft_margin_loss_backward multi_margin_loss_backward multilabel_margin_loss_backward "
    "_ctc_loss_backward "
    # normalisation
    "native_batch_norm_backward batch_norm_backward native_layer_norm_backward native_group_norm_backward "
    "_fused_rms_norm_backward _weight_norm_interface_backward "
    # quantisation on the way
    "fake_quantize_per_tensor_affine_cachemask_backward fake_quantize_per_channel_affine_cachemask_backward"
)
SPREAD = (
    # pooling
    "avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward "
    "adaptive_max_pool2d_backward adaptive_max_pool3d_backward max_pool2d_with_indices_backward "
    "max_pool3d_with_indices_backward fractional_max_pool2d_backward fractional_max_pool3d_backward "
    # interpolation and sampling
    "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward "
    "_upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward "
    "upsample_linear1d_backward upsample_bilinear2d_backward upsample_trilinear3d_backward "
    "upsample_bicubic2d_backward _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward "
    "grid_sampler_2d_backward grid_sampler_3d_backward torchvision::_roi_align_backward "
    # views, copies of a part, tables
    "select_backward slice_backward diagonal_backward unfold_backward reflection_pad1d_backward "
    "reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward replication_pad2d_backward "
    "replication_pad3d_backward embedding_dense_backward _embedding_bag_dense_backward "
    "_embedding_bag_per_sample_weights_backward"
)
ATTENTION_GRADIENT_OF = Contraction(Over.FEATURES, ("grad", "query", "key", "value"))
KEPT = "out log_sum_exp"  # what the kernel has kept

GRADIENTS: tuple[OpRule, ...] = (
    OpRule(
        "convolution_gradient",
        under("convolution_backward convolution_backward_overrideable", "grad x", WEIGHT),
        "each product of the convolution is met once more in each gradient that is asked for",
        macs=convolution_gradient_macs,
        contracts=CONVOLUTION_OF,
        flops=None,
    ),
    OpRule(
        "attention_gradient",
        under(
            "_scaled_dot_product_flash_attention_for_cpu_backward", "grad query key value", KEPT, "mask"
        )
        | under(
            "_scaled_dot_product_flash_attention_backward", "grad query key value", KEPT,
            "query_ends key_ends seed offset",
        )
        | under(
            "_scaled_dot_product_efficient_attention_backward", "grad query key value mask", KEPT, "seed offset"
        )
        | under(
            "_scaled_dot_product_cudnn_attention_backward", "grad query key value", KEPT,
            "seed offset mask query_ends key_ends",
        ),
        "a fused kernel keeps no scores: it makes them again, then the four products of its gradients",
        macs=attention_gradient_macs,
        contracts=ATTENTION_GRADIENT_OF,
        flops=None,
    ),
    OpRule(
        "gradient",
        under(ELEMENT_BY_ELEMENT, "*parts"),
        "products and sums element by element, of what is elementwise itself; none is contracted",
        flops=None,
    ),
    OpRule(
        "gradient",
        under(SPREAD, "*parts"),
        "hands each element of the gradient to those that it came from; none is contracted",
        flops=None,
    ),
)  # fmt: skip
