"""Views and copies: they move bytes or nothing at all, and compute nothing."""

from __future__ import annotations

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.graph.tensor import Tensor, nbytes_of
from pytest_modelbudget.ops.role import CARRIED, CARRIED_PARTS, Role
from pytest_modelbudget.ops.rule import OpRule, free, nothing, under

VIEW = "a view: the same memory under another shape, nothing moves"
MOVED = "ONNX has no strides: the result is written in its own order"
COPY = "elements are copied as they are, nothing is computed"


def part_read(*, out: Tensor) -> dict[str, int]:
    """A slice reads what it keeps."""
    return {"x": out.nbytes}


def overwritten() -> dict[str, int]:
    """The target of a copy or fill is written and not read."""
    return {"target": 0}


def diagonal_written(*, target: Tensor) -> int:
    """One element per step along the shortest dimension."""
    return nbytes_of(min(target.shape), target.dtype)


MOVEMENT: tuple[OpRule, ...] = (
    free(
        "reshape",
        under(
            "aten::view aten::reshape aten::_unsafe_view aten::_reshape_alias aten::flatten "
            "aten::unflatten aten::view_as aten::reshape_as aten::ravel aten::squeeze "
            "aten::unsqueeze aten::squeeze_ aten::unsqueeze_ aten::view_copy "
            "aten::_reshape_copy aten::resize_",
            CARRIED,
            "like",
        ),
        "the same elements under another shape: a view, or a copy where strides forbid one",
        shares_storage_of="x",
        reads=lambda: {"like": 0},
    ),
    free(
        "transpose",
        under(
            "aten::transpose aten::permute aten::t aten::swapaxes aten::swapdims aten::movedim "
            "aten::moveaxis aten::numpy_T aten::mT aten::matrix_H aten::mH aten::adjoint "
            "aten::transpose_ aten::t_",
            CARRIED,
        ),
        VIEW,
    ),
    free(
        "slice",
        under(
            "aten::slice aten::select aten::narrow aten::split aten::split_with_sizes "
            "aten::chunk aten::unsafe_chunk aten::unsafe_split aten::unsafe_split_with_sizes "
            "aten::tensor_split aten::hsplit aten::vsplit aten::dsplit aten::unbind "
            "aten::diagonal aten::unfold aten::as_strided aten::as_strided_",
            CARRIED,
            "y",
        ),
        VIEW,
    ),
    free(
        "expand",
        under(
            "aten::expand aten::expand_as aten::broadcast_to aten::broadcast_tensors "
            "aten::meshgrid aten::atleast_1d aten::atleast_2d aten::atleast_3d",
            CARRIED,
            "like",
        ),
        "a view with stride-0 dimensions: nothing moves",
        reads=lambda: {"like": 0},
    ),
    free(
        "alias",
        under(
            "aten::alias aten::detach aten::detach_ aten::view_as_real aten::view_as_complex "
            "aten::real aten::imag aten::conj aten::_conj aten::lift aten::lift_fresh "
            "aten::lift_fresh_copy aten::positive aten::requires_grad_ aten::data "
            "aten::_neg_view aten::__identity__",
            CARRIED,
        ),
        VIEW,
        shares_storage_of="x",
    ),
    free(
        "copy",
        under(
            "aten::clone aten::contiguous aten::rot90 aten::flip aten::fliplr aten::flipud "
            "aten::roll aten::repeat aten::tile aten::repeat_interleave aten::pixel_shuffle "
            "aten::pixel_unshuffle aten::channel_shuffle aten::native_channel_shuffle "
            "aten::tril aten::triu aten::tril_ aten::triu_ aten::diag aten::diag_embed "
            "aten::block_diag aten::to_dense aten::im2col aten::unfold_copy "
            "aten::max_unpool2d aten::max_unpool3d aten::_pack_padded_sequence",
            CARRIED,
            Role("repeats", shape=True),
        ),
        COPY,
    ),
    free(
        "cat",
        under(
            "aten::cat aten::concat aten::concatenate aten::stack aten::hstack aten::vstack "
            "aten::dstack aten::column_stack aten::row_stack",
            CARRIED_PARTS,
        ),
        "reads every part and writes it into the result",
    ),
    free(
        "pad",
        under(
            "aten::pad aten::constant_pad_nd aten::_pad_circular aten::_pad_enum "
            + " ".join(
                f"aten::{mode}_pad{d}d" for mode in ("reflection", "replication") for d in (1, 2, 3)
            ),
            CARRIED,
        ),
        "reads the tensor and writes a larger one",
    ),
    free(
        "cast",
        under(
            "aten::to aten::_to_copy aten::type_as aten::_autocast_to_reduced_precision "
            "aten::_autocast_to_full_precision",
            CARRIED,
            "like",
        ),
        "the same values in another type or place; a view where nothing changes",
        reads=lambda: {"like": 0},
    ),
    free(
        "copy_into",
        under("aten::copy_", "target", "source"),
        "writes the target; its old values are not read",
        reads=overwritten,
    ),
    free(
        "fill",
        under("aten::fill_ aten::zero_", "target", "value"),
        "writes the target; its old values are not read",
        reads=overwritten,
    ),
    free(
        "fill",
        under("aten::fill_diagonal_", "target"),
        "writes the diagonal of the target",
        reads=overwritten,
        writes=diagonal_written,
    ),
    free(
        "fill",
        under("aten::fill aten::zero", "target", "value"),
        "writes a constant; the operand lends its shape",
        reads=overwritten,
    ),
    free(
        "reshape",
        under("onnx::Reshape", CARRIED, Role("shape", shape=True))
        | under("onnx::Flatten", CARRIED)
        | under("onnx::Squeeze onnx::Unsqueeze", CARRIED, Role("axes", shape=True)),
        VIEW,
        shares_storage_of="x",
    ),
    free("alias", under("onnx::Identity onnx::BitCast", CARRIED), VIEW, shares_storage_of="x"),
    free("transpose", under("onnx::Transpose", CARRIED), MOVED),
    free(
        "slice",
        under(
            "onnx::Slice",
            CARRIED,
            Role("starts", shape=True),
            Role("ends", shape=True),
            Role("axes", shape=True),
            Role("steps", shape=True),
        ),
        "copies the part that is kept, and reads no more of it",
        reads=part_read,
    ),
    free(
        "split",
        under("onnx::Split", Role("x", carried=True, into_all=True), Role("split", shape=True)),
        MOVED,
    ),
    free("expand", under("onnx::Expand", CARRIED, Role("shape", shape=True)), MOVED),
    free(
        "cat",
        under("onnx::Concat", CARRIED_PARTS),
        "reads every part and writes it into the result",
    ),
    free(
        "pad",
        under("onnx::Pad", CARRIED, Role("pads", shape=True), "value", Role("axes", shape=True))
        | under("onnx::CenterCropPad", CARRIED, Role("shape", shape=True)),
        MOVED,
    ),
    free("cast", under("onnx::Cast", CARRIED), "the same values in another type, written anew"),
    free(
        "cast",
        under("onnx::CastLike", CARRIED, "like"),
        "the same values in another type, written anew; the second operand lends that type",
        reads=lambda: {"like": 0},
    ),
    free(
        "copy",
        under("onnx::Tile", CARRIED, Role("repeats", shape=True))
        | under("onnx::Trilu com.microsoft::Trilu", CARRIED, Role("axis", shape=True))
        | under("onnx::DepthToSpace onnx::SpaceToDepth", CARRIED)
        | under("onnx::ReverseSequence", CARRIED, "lengths")
        | under("onnx::MaxUnpool", CARRIED, "indices", Role("shape", shape=True))
        | under(
            "com.microsoft.nchwc::ReorderInput com.microsoft.nchwc::ReorderOutput "
            "com.microsoft::NhwcReorder",
            CARRIED,
        ),
        COPY,
    ),
)


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
            Role("start", shape=True),
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
        | under("onnx::ConstantOfShape", Role("shape", shape=True))
        | under(
            "onnx::Range",
            Role("start", shape=True),
            Role("limit", shape=True),
            Role("delta", shape=True),
        )
        | under(
            "onnx::HannWindow onnx::HammingWindow onnx::BlackmanWindow", Role("count", shape=True)
        )
        | under(
            "onnx::MelWeightMatrix",
            Role("count", shape=True),
            Role("limit", shape=True),
            Role("start", shape=True),
            Role("delta", shape=True),
            Role("ends", shape=True),
        ),
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


HANDED_ON = "tensors are handed on or copied as they are, nothing is computed"


def as_often_as_data_say() -> int:
    """Raises: how often the body runs is not known before the run."""
    raise UnmeasurableError("its body runs as often as the data say")


def _body(kind: str, name: str, because: str) -> OpRule:
    """A node whose body is written out where its count is known, and unmeasured where it is not."""
    return OpRule(
        kind, under(name, "*parts"), because, macs=None, flops=None, writes=as_often_as_data_say
    )


CONTAINERS: tuple[OpRule, ...] = (
    free(
        "sequence",
        under(
            "onnx::SequenceAt onnx::SequenceConstruct onnx::SequenceEmpty onnx::SequenceErase "
            "onnx::SequenceInsert onnx::SequenceLength onnx::ConcatFromSequence "
            "onnx::SplitToSequence",
            "*parts",
        ),
        HANDED_ON,
    ),
    free(
        "optional",
        under("onnx::Optional onnx::OptionalGetElement onnx::OptionalHasElement", "x"),
        HANDED_ON,
    ),
    _body("loop", "onnx::Loop", "its trip count is not known before the run"),
    _body("loop", "onnx::Scan", "the length that it scans is not known before the run"),
    _body("if", "onnx::If", "neither of its branches could be read"),
    _body("loop", "onnx::SequenceMap", "its body runs once per entry of a sequence"),
    OpRule(
        "text",
        under(
            "onnx::StringConcat onnx::StringNormalizer onnx::StringSplit onnx::RegexFullMatch "
            "onnx::TfIdfVectorizer",
            "*parts",
        ),
        "text is compared, cut and counted: nothing is contracted",
        flops=None,
    ),
    OpRule(
        "image_decoder",
        under("onnx::ImageDecoder", "x"),
        "a decoder of compressed pictures: no contraction of tensors",
        flops=None,
    ),
    OpRule(
        "loss",
        under(
            "onnx::SoftmaxCrossEntropyLoss onnx::NegativeLogLikelihoodLoss", "x", "target", "scale"
        ),
        "one chosen logarithm per row, weighted and added up: no pairs are contracted",
        flops=None,
    ),
    OpRule(
        "determinant",
        under("onnx::Det com.microsoft::Inverse", "x"),
        "an elimination whose products depend on the kernel: no closed form holds for all",
        macs=None,
        flops=None,
    ),
)
