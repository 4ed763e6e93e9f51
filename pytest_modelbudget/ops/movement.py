"""Views, copies and tensors that are made: bytes move, or nothing at all; drawing numbers alone computes something."""

from pytest_modelbudget.graph.tensor import Tensor, nbytes_of
from pytest_modelbudget.ops.role import CARRIED, CARRIED_PARTS, LIKE, TARGET, Role, shapes
from pytest_modelbudget.ops.rule import OpRule, free, nothing, under

VIEW = "a view: the same memory under another shape, nothing moves"
MOVED = "ONNX has no strides: the result is written in its own order"
VIEW_WRITTEN = "what a view shows, written into memory of its own, as a program without views has it"
COPY = "elements are copied as they are, nothing is computed"
WRITTEN = "writes the target; its old values are not read"
UNWRITTEN = "memory without values: nothing is written yet"
HANDED_ON = "tensors are handed on or copied as they are, nothing is computed"


def part_read(*, x: Tensor, out: Tensor) -> dict[str, int]:
    """A slice reads what it keeps."""
    return {"x": nbytes_of(out.elements, x.dtype)}


def diagonal_written(*, target: Tensor) -> int:
    """One element per step along the shortest dimension."""
    return nbytes_of(min(target.shape), target.dtype)


def kept_elements(*, x: Tensor) -> int:
    """What was there is copied, and the rest of larger memory left as it is."""
    return x.touched_nbytes


SPLIT = Role("x", carried=True, into_all=True)
MOVEMENT: tuple[OpRule, ...] = (
    free(
        "reshape",
        under(
            "view reshape _unsafe_view _reshape_alias flatten unflatten view_as reshape_as ravel "
            "squeeze unsqueeze squeeze_ unsqueeze_ view_copy squeeze_copy unsqueeze_copy _reshape_copy",
            (CARRIED, LIKE),
        ),
        "the same elements under another shape: a view, or a copy where strides forbid one",
        shares_storage_of="x",
    ),
    free(
        "reshape",
        under("Reshape tflite::RESHAPE", CARRIED, shapes("shape"))
        | under("Flatten", CARRIED)
        | under("Squeeze Unsqueeze tflite::SQUEEZE tflite::EXPAND_DIMS", CARRIED, shapes("axes")),
        VIEW,
        shares_storage_of="x",
    ),
    free(
        "transpose",
        under(
            "transpose permute t swapaxes swapdims movedim moveaxis numpy_T mT matrix_H mH adjoint transpose_ t_",
            CARRIED,
        ),
        VIEW,
    ),
    free("transpose", under("Transpose", CARRIED) | under("tflite::TRANSPOSE", CARRIED, shapes("axes")), MOVED),
    free("transpose", under("transpose_copy permute_copy t_copy", CARRIED), VIEW_WRITTEN),
    free(
        "slice",
        under(
            "slice select narrow split split_with_sizes chunk unsafe_chunk unsafe_split "
            "unsafe_split_with_sizes tensor_split hsplit vsplit dsplit unbind diagonal unfold "
            "as_strided as_strided_",
            (CARRIED, "y"),
        ),
        VIEW,
    ),
    free(
        "slice",
        under("Slice tflite::SLICE tflite::STRIDED_SLICE", CARRIED, shapes("starts ends axes steps")),
        "copies the part that is kept, and reads no more of it",
        reads=part_read,
    ),
    free(
        "slice",
        under("slice_copy select_copy narrow_copy diagonal_copy as_strided_copy", CARRIED),
        VIEW_WRITTEN,
        reads=part_read,
    ),
    free("slice", under("split_copy split_with_sizes_copy unbind_copy", CARRIED), VIEW_WRITTEN),
    free(
        "split",
        under("Split tflite::SPLIT_V tflite::UNPACK", SPLIT, shapes("split axis"))
        | under("tflite::SPLIT", shapes("axis"), SPLIT),
        MOVED,
    ),
    free(
        "expand",
        under(
            "expand expand_as broadcast_to broadcast_tensors meshgrid atleast_1d atleast_2d atleast_3d", (CARRIED, LIKE)
        ),
        "a view with stride-0 dimensions: nothing moves",
    ),
    free("expand", under("Expand tflite::BROADCAST_TO", CARRIED, shapes("shape")), MOVED),
    free("expand", under("expand_copy", CARRIED), VIEW_WRITTEN),
    free(
        "alias",
        under(
            "alias detach detach_ view_as_real view_as_complex real imag conj _conj lift "
            "lift_fresh lift_fresh_copy positive requires_grad_ data _neg_view __identity__ "
            "Identity BitCast",
            CARRIED,
        ),
        VIEW,
        shares_storage_of="x",
    ),
    free(
        "alias",
        under("alias_copy detach_copy view_as_real_copy view_as_complex_copy _conj_copy", CARRIED),
        VIEW_WRITTEN,
    ),
    free("alias", under("set_", LIKE, Role("source", unread=True)), "another memory under this name", writes=nothing),
    free(
        "copy",
        under("resize_ resize_as_ resize resize_as", CARRIED, LIKE),
        "a view, or a copy into larger memory, or memory of its own in a program without writes",
        writes=kept_elements,
    ),
    free(
        "copy",
        under(
            "clone contiguous rot90 flip fliplr flipud roll repeat tile repeat_interleave "
            "pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle tril triu tril_ "
            "triu_ diag diag_embed block_diag to_dense im2col unfold_copy max_unpool2d "
            "max_unpool3d _pack_padded_sequence Tile tflite::TILE tflite::REVERSE_V2 tflite::MATRIX_DIAG",
            (CARRIED, shapes("repeats")),
        )
        | under("Trilu com.microsoft::Trilu", CARRIED, shapes("axis"))
        | under("ReverseSequence tflite::REVERSE_SEQUENCE", CARRIED, "lengths")
        | under("tflite::SPACE_TO_BATCH_ND tflite::BATCH_TO_SPACE_ND", CARRIED, shapes("block crops"))
        | under("lu_unpack", CARRIED, "pivots")
        | under("MaxUnpool", CARRIED, "indices", shapes("shape"))
        | under(
            "DepthToSpace SpaceToDepth com.microsoft.nchwc::ReorderInput "
            "com.microsoft.nchwc::ReorderOutput com.microsoft::NhwcReorder tflite::DEPTH_TO_SPACE "
            "tflite::SPACE_TO_DEPTH tflite::READ_VARIABLE",
            CARRIED,
        ),
        COPY,
    ),
    free(
        "cat",
        under(
            "cat concat concatenate stack hstack vstack dstack column_stack row_stack Concat "
            "tflite::CONCATENATION tflite::PACK",
            CARRIED_PARTS,
        ),
        "reads every part and writes it into the result",
    ),
    free(
        "pad",
        under(
            "pad constant_pad_nd _pad_circular _pad_enum reflection_pad1d reflection_pad2d "
            "reflection_pad3d replication_pad1d replication_pad2d replication_pad3d",
            CARRIED,
        ),
        "reads the tensor and writes a larger one",
    ),
    free(
        "pad",
        under("Pad tflite::PAD tflite::PADV2 tflite::MIRROR_PAD", CARRIED, shapes("pads"), "value", shapes("axes"))
        | under("CenterCropPad", CARRIED, shapes("shape"))
        | under("com.microsoft::RestorePadding", CARRIED, "offsets")
        | under("_jagged_to_padded_dense_forward", CARRIED, "offsets"),
        MOVED,
    ),
    free(
        "pad",
        under("_padded_dense_to_jagged_forward", CARRIED, "offsets"),
        "reads the rows that are no padding, and writes them one behind the other",
        reads=part_read,
    ),
    free(
        "cast",
        under("to _to_copy type_as _autocast_to_reduced_precision _autocast_to_full_precision", (CARRIED, LIKE)),
        "the same values in another type or place; a view where nothing changes",
    ),
    free("cast", under("Cast tflite::CAST tflite::BITCAST", CARRIED), "the same values in another type, written again"),
    free(
        "cast",
        under("CastLike", CARRIED, LIKE),
        "the same values in another type, written again; the second operand lends that type",
    ),
    free("copy_into", under("copy_", TARGET, "source"), WRITTEN),
    free("copy_into", under("copy", LIKE, CARRIED), "copy_ of a program that changes nothing: its result is new"),
    free("fill", under("fill_ zero_", TARGET, "value"), WRITTEN),
    free("fill", under("fill_diagonal_", TARGET), "writes the diagonal of the target", writes=diagonal_written),
    free("fill", under("fill zero", TARGET, "value"), "writes a constant; the operand lends its shape"),
    free("allocation", under("empty empty_strided"), UNWRITTEN, writes=nothing),
    free("allocation", under("empty_like new_empty new_empty_strided empty_permuted", LIKE), UNWRITTEN, writes=nothing),
    free(
        "creation",
        under(
            "zeros ones full arange linspace logspace eye scalar_tensor tril_indices triu_indices "
            "hann_window hamming_window range _efficientzerotensor",
            shapes("start"),
            "end",
        )
        | under("Constant")
        | under("ConstantOfShape tflite::FILL", shapes("shape"), "value")
        | under("Range tflite::RANGE", shapes("start limit delta"))
        | under("HannWindow HammingWindow BlackmanWindow", shapes("count"))
        | under("MelWeightMatrix", shapes("count limit start delta ends")),
        "values known before the run are written, nothing is computed",
    ),
    free(
        "creation",
        under("zeros_like ones_like full_like new_zeros new_ones new_full EyeLike tflite::ZEROS_LIKE", LIKE),
        "the operand lends its shape and is not read",
    ),
    OpRule(
        "random",
        under(
            "rand randn randint randperm rand_like randn_like randint_like bernoulli bernoulli_ "
            "normal normal_ normal_functional uniform uniform_ random random_ exponential exponential_ geometric "
            "geometric_ log_normal log_normal_ cauchy cauchy_ multinomial poisson trunc_normal_",
            "x y z",
        )
        | under("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike", "like"),
        "numbers are drawn, not contracted",
        flops=None,
    ),
    free(
        "shape",
        under("Shape Size tflite::SHAPE tflite::RANK", LIKE),
        "the shape of a tensor is known without reading it",
    ),
    free(
        "sequence",
        under(
            "SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert "
            "SequenceLength ConcatFromSequence SplitToSequence",
            "*parts",
        ),
        HANDED_ON,
    ),
    free("optional", under("Optional OptionalGetElement OptionalHasElement", "x"), HANDED_ON),
)
