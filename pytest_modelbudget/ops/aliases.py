"""Other names of the same computation, under which another format, or the same program decomposed, has an operator.

A limit that refuses ``aten::conv2d`` holds what a traced file calls ``aten::_convolution``, too. All names of a line
are of one kind: what is taken apart into other kinds (SiLU into a product and a sigmoid) is another program.
"""

from collections.abc import Callable, Mapping
from functools import cache

from pytest_modelbudget.graph.graph import Op
from pytest_modelbudget.graph.tensor import StorageKind, Tensor
from pytest_modelbudget.ops.rule import under

ANY_CONVOLUTION = "convolution _convolution _convolution.deprecated convolution_overrideable"
ANY_PRODUCT = "matmul linalg_matmul"
LINEAR = "linear mkldnn_linear"
# Each line is one computation: whoever refuses one of its names refuses all.
ALIKE = (
    LINEAR,
    ANY_PRODUCT,
    ANY_CONVOLUTION,
    "scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention _scaled_dot_product_attention_math",
    "bilinear _trilinear",
    "cdist _cdist_forward _euclidean_dist",
    "batch_norm _batch_norm_impl_index native_batch_norm _native_batch_norm_legit _native_batch_norm_legit.no_stats "
    "_native_batch_norm_legit_no_training _native_batch_norm_legit_functional _batch_norm_with_update "
    "_batch_norm_with_update_functional _batch_norm_no_update cudnn_batch_norm miopen_batch_norm",
    "layer_norm native_layer_norm",
    "group_norm native_group_norm",
    "rms_norm _fused_rms_norm",
    "_weight_norm _weight_norm_interface",
    "softmax _softmax special_softmax _safe_softmax",
    "log_softmax _log_softmax special_log_softmax",
    "lstm lstm.data",
    "gru gru.data",
    "rnn_tanh rnn_tanh.data",
    "rnn_relu rnn_relu.data",
    "dropout native_dropout",
    "max_pool1d max_pool1d_with_indices",
    "max_pool2d max_pool2d_with_indices mkldnn_max_pool2d",
    "max_pool3d max_pool3d_with_indices mkldnn_max_pool3d",
    "adaptive_avg_pool2d _adaptive_avg_pool2d mkldnn_adaptive_avg_pool2d",
    "adaptive_avg_pool3d _adaptive_avg_pool3d",
    "view reshape view_as reshape_as _unsafe_view _reshape_alias view_copy _reshape_copy",
    "transpose permute swapaxes swapdims movedim moveaxis transpose_copy permute_copy",
    "vstack row_stack",
    "inverse linalg_inv linalg_inv_ex",
    "linalg_solve linalg_solve_ex _linalg_solve_ex",
    "linalg_cholesky linalg_cholesky_ex",
    "linalg_lu_factor linalg_lu_factor_ex",
    "linalg_svd _linalg_svd",
    "linalg_eigh _linalg_eigh",
    "det linalg_det _linalg_det",
    "slogdet linalg_slogdet _linalg_slogdet",
    "cross linalg_cross",
    "nll_loss nll_loss_forward",
    "nll_loss2d nll_loss2d_forward",
    "multilabel_margin_loss multilabel_margin_loss_forward",
    "conj_physical _conj_physical",
    "polygamma special_polygamma",
    "pdist _pdist_forward",
    "embedding_bag _embedding_bag _embedding_bag_forward_only",
    "index _unsafe_index",
    "nonzero argwhere",
    "_unique2 _unique",
    "slice narrow slice_copy narrow_copy",
    "select select_copy",
    "diagonal diagonal_copy",
    "as_strided as_strided_copy",
    "unbind unbind_copy",
    "squeeze squeeze_copy",
    "unsqueeze unsqueeze_copy",
    "alias alias_copy",
    "detach detach_copy",
    "view_as_real view_as_real_copy",
    "view_as_complex view_as_complex_copy",
    "to _to_copy type_as",
    "conj _conj _conj_copy",
    "rrelu rrelu_with_noise rrelu_with_noise_functional",
    "adjoint mH",
    "split split_with_sizes chunk tensor_split unsafe_chunk unsafe_split unsafe_split_with_sizes split_copy "
    "split_with_sizes_copy",
    "cat concat concatenate",
    "expand expand_as broadcast_to expand_copy",
    "prelu _prelu_kernel",
    "sigmoid special_expit",
    "logit special_logit",
    "clamp clip",
    "abs absolute",
    "neg negative",
    "exp2 special_exp2",
    "expm1 special_expm1",
    "log1p special_log1p",
    "erf special_erf",
    "erfc special_erfc",
    "erfinv special_erfinv",
    "asin arcsin",
    "acos arccos",
    "atan arctan",
    "trunc fix",
    "sub subtract",
    "mul multiply",
    "div divide",
    "ne not_equal",
    "gt greater",
    "ge greater_equal",
    "lt less",
    "le less_equal",
    "atan2 arctan2",
    "xlogy special_xlogy",
    "bitwise_and __and__ __iand__",
    "bitwise_or __or__ __ior__",
    "bitwise_xor __xor__ __ixor__",
    "bitwise_left_shift __lshift__",
    "bitwise_right_shift __rshift__",
    "outer ger",
    "norm linalg_norm linalg_vector_norm",
    "logsumexp special_logsumexp",
    "Gelu com.microsoft::Gelu",
    "RMSNormalization SimplifiedLayerNormalization",
    "Trilu com.microsoft::Trilu",
    "LinearAttention com.microsoft::LinearAttention",
    "RotaryEmbedding com.microsoft::RotaryEmbedding",
)
# Forms of an operator, of fewer dimensions or settings, or as runtimes make it, with more in it or in another layout:
# who refuses that one refuses these, not the other way round.
MADE_OF = {
    "reshape": "flatten unflatten ravel",
    "transpose": "t numpy_T mT t_copy",
    "div": "true_divide",
    "clamp": "clamp_min clamp_max",
    "sub": "rsub",
    "repeat": "tile",
    "sort": "argsort msort",
    "pad": "constant_pad_nd _pad_circular _pad_enum reflection_pad1d reflection_pad2d reflection_pad3d "
    "replication_pad1d replication_pad2d replication_pad3d",
    "grid_sampler": "grid_sampler_2d grid_sampler_3d cudnn_grid_sampler _grid_sampler_2d_cpu_fallback",
    "norm": "frobenius_norm",
    "Conv": "com.microsoft::FusedConv com.microsoft::NhwcFusedConv com.microsoft::NhwcConv com.microsoft.nchwc::Conv",
    "Gemm": "com.microsoft::FusedGemm com.microsoft::GemmFastGelu",
    "MatMul": "com.microsoft::FusedMatMul com.microsoft::FusedMatMulActivation com.microsoft::TransposeMatMul",
    "Gelu": "com.microsoft::BiasGelu com.microsoft::FastGelu",
    "Softmax": "com.microsoft::BiasSoftmax",
    "GroupNormalization": "com.microsoft::GroupNorm com.microsoft::SkipGroupNorm",
    "LayerNormalization": "com.microsoft::SkipLayerNormalization",
    "RMSNormalization": "com.microsoft::SkipSimplifiedLayerNormalization",
    "MaxPool": "com.microsoft::NhwcMaxPool com.microsoft.nchwc::MaxPool",
    "AveragePool": "com.microsoft.nchwc::AveragePool",
    "GlobalAveragePool": "com.microsoft.nchwc::GlobalAveragePool",
    "GlobalMaxPool": "com.microsoft.nchwc::GlobalMaxPool",
}
# One operator for all dimensions, and those for some, which operands tell apart.
CONVOLUTIONS, PRODUCTS = tuple(under(ANY_CONVOLUTION)), tuple(under(ANY_PRODUCT))


def _rank(op: Op, at: int) -> int:
    """The number of axes of an operand; -1 where nobody knows it."""
    tensor = op.operands[at] if at < len(op.operands) else None
    return len(tensor.shape) if isinstance(tensor, Tensor) and not tensor.unsized else -1


def _convolution(op: Op) -> tuple[str, ...]:
    """The convolution of as many dimensions: weight (out, in, kernel ...); all where nobody knows how many."""
    known = _rank(op, 1) - 2
    form = "conv_transpose" if op.attributes.get("transposed") else "conv"
    return tuple(f"aten::{form}{d}d" for d in (1, 2, 3) if known in {d, -3})


def _product(op: Op) -> tuple[str, ...]:
    """The product of as many axes: a batch whose other operand has none is one matrix; all where nobody knows."""
    x, y = _rank(op, 0), _rank(op, 1)
    if -1 in {x, y}:
        return ("aten::mm", "aten::bmm", "aten::mv", "aten::dot")
    if 1 in {x, y}:
        return ("aten::dot" if x == y else "aten::mv",)
    return ("aten::mm" if 2 in {x, y} else "aten::bmm",)


SPECIAL: Mapping[str, Callable[[Op], tuple[str, ...]]] = {
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    **dict.fromkeys(PRODUCTS, _product),
}
# A linear layer is such a product in a decomposed program, by its shape and bias.
BY_WEIGHTS = frozenset(under(f"addmm addmv _addmm_activation mm bmm mv {ANY_PRODUCT}"))
GENERAL: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(under("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"), CONVOLUTIONS),
    **dict.fromkeys(under("mm bmm mv dot"), PRODUCTS),
}


def other_names(op: Op) -> tuple[str, ...]:
    """Other names that refuse this operation: of what it computes, and of what it computes in place."""
    name = op.name
    names = _known(name)
    if name in SPECIAL:
        names = (*names, *SPECIAL[name](op))
    if name in BY_WEIGHTS and any(tensor.storage.kind is StorageKind.PARAMETER for tensor in op.tensors()):
        names = (*names, *under(LINEAR))
    return names


@cache
def _known(name: str) -> tuple[str, ...]:
    """Those that hang on nothing but the name."""
    in_place = name.startswith("aten::") and name.endswith("_") and not name.endswith("__")
    if in_place:
        plain = name[:-1]
        others = _known(plain)
        return (plain, *others, *(f"{other}_" for other in others))
    return (*_groups().get(name, ()), *GENERAL.get(name, ()))


@cache
def _groups() -> Mapping[str, tuple[str, ...]]:
    groups: dict[str, tuple[str, ...]] = {}
    for line in ALIKE:
        names = tuple(under(line))
        groups.update({name: tuple(other for other in names if other != name) for name in names})
    for whole, parts in MADE_OF.items():
        (named,) = under(whole)
        groups.update(dict.fromkeys(under(parts), (named, *groups.get(named, ()))))
    return groups
