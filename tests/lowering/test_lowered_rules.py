"""What a lowering does to small networks, one rule at a time: by hand, from torch and from ONNX files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto
from torch import nn

from tests.builders.micro_modules import Apply
from tests.builders.onnx_batchnorms import LAYERS, normalised
from tests.builders.onnx_graphs import integers, model, node, scalar, stored, value
from tests.builders.programs import Program, program

pytestmark = pytest.mark.needs_torch

IMAGE = "float32 1x4x8x8"


def names(made: Program) -> list[str]:
    return [op.name.split("::")[1] for op in made.lowered.graph.ops if not op.is_view]


def reasons(made: Program) -> list[str]:
    return [step.why for step in made.lowered.left]


def saved(proto: onnx.ModelProto, folder: Path) -> Path:
    onnx.save(proto, folder / "model.onnx")
    return folder / "model.onnx"


class Twice(nn.Module):
    """One convolution run twice, with norms behind it: the same one, or one for each run."""

    def __init__(self, norms: int) -> None:
        super().__init__()
        self.conv, self.norms = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.ModuleList()
        self.norms.extend(nn.BatchNorm2d(4) for _ in range(norms))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norms[-1](self.conv(self.norms[0](self.conv(x))))


def test_a_layer_that_runs_twice_with_one_norm_has_one_folded_bias() -> None:
    """144 weights and 4 biases, each of 4 B, however often they are read."""
    made = program(Twice(1).eval(), IMAGE)
    assert (names(made), made["weight_memory"]) == (["conv2d"] * 2, 4 * (144 + 4))


def test_a_layer_that_runs_with_two_norms_keeps_both() -> None:
    """One stored weight cannot hold two scales."""
    made = program(Twice(2).eval(), IMAGE)
    assert names(made) == ["conv2d", "batch_norm"] * 2
    assert reasons(made) == ["not folded: others read the weight of 'conv', without this norm behind them"] * 2


def test_a_norm_over_another_axis_than_the_features_is_left() -> None:
    """linear 4 → 6 on rows of 6: the norm scales the rows' positions."""
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)).eval()
    assert names(program(net, "float32 2x4")) == ["linear"]
    assert reasons(program(net, "float32 2x6x4")) == ["not folded: it does not scale the feature axis of '0'"]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_norm_of_onnx_folds_into_the_layer_before(layer: str, bias: bool, tmp_path: Path) -> None:
    """Its weight stays; one bias of six channels stands for the norm's four vectors."""
    made = program(saved(normalised(layer, bias=bias), tmp_path))
    assert names(made) == [LAYERS[layer][0]]
    assert made["weight_memory"] == 4 * (np.prod(LAYERS[layer][2]) + 6)
    assert not reasons(made)


def test_a_clip_whose_bounds_are_inputs_is_fused(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "c"), node("Clip", "c low high", "d"), node("Add", "d d", "e"), node("Relu", "e", "y")]
    weights = [stored("w", 4, 4, 1, 1), scalar("low", 0.0), scalar("high", 6.0)]
    made = program(saved(model(nodes, [value("x", 1, 4, 8, 8)], [value("y", 1, 4, 8, 8)], weights), tmp_path))
    assert (names(made), reasons(made)) == (["Conv", "Add"], [])


def test_a_clip_whose_bounds_are_computed_from_constants_is_fused(tmp_path: Path) -> None:
    """As exporters write it that fold no constants: both bounds run through a Cast."""
    nodes = [
        node("Cast", "six", "high", to=TensorProto.FLOAT), node("Conv", "x w", "c"), node("Clip", "c low high", "y"),
    ]  # fmt: skip
    weights = [stored("w", 4, 4, 1, 1), scalar("low", 0.0), scalar("six", 6, np.int64)]
    made = program(saved(model(nodes, [value("x", 1, 4, 8, 8)], [value("y", 1, 4, 8, 8)], weights), tmp_path))
    assert (names(made), reasons(made)) == (["Cast", "Conv"], [])
    assert made["peak_activation"] == 2 * 4 * 4 * 64


@pytest.mark.parametrize(("dtype", "width"), [("float16", 2), ("int8", 1)])
def test_a_scale_that_is_computed_in_the_run_keeps_its_type(dtype: str, width: int, tmp_path: Path) -> None:
    """x (8), its integers, their scale in float32 and their zero point live while x is quantised."""
    nodes = [
        node("DynamicQuantizeLinear", "x", "q scale zero"), node("DequantizeLinear", "q scale zero", "a"),
        node("DequantizeLinear", "w ws wz", "b"), node("MatMul", "a b", "y"),
    ]  # fmt: skip
    weights = [stored("w", 8, 4, dtype=np.int8), scalar("ws", 0.1), scalar("wz", 0, np.int8)]
    path = saved(model(nodes, [value("x", 1, 8)], [value("y", 1, 4)], weights), tmp_path)
    assert program(path, dtype=dtype)["peak_activation"] == 8 * width + 8 * 1 + 4 + 1


def test_a_folded_norm_leaves_nothing_that_only_views_read(tmp_path: Path) -> None:
    """Exporters store equal tensors once, and name them through an Identity: 16 weights and 4 biases are left."""
    nodes = [
        node("Identity", "ones", "variance"), node("Identity", "zeros", "mean"), node("Conv", "x w", "c"),
        node("BatchNormalization", "c ones zeros mean variance", "y"),
    ]  # fmt: skip
    weights = [stored("w", 4, 4, 1, 1), stored("ones", 4), stored("zeros", 4)]
    made = program(saved(model(nodes, [value("x", 1, 4, 8, 8)], [value("y", 1, 4, 8, 8)], weights), tmp_path))
    assert (made["params"], reasons(made)) == (16 + 4, [])


def test_a_residual_sum_in_place_and_its_relu_are_one() -> None:
    """x of 1 KiB, conv's result of 1 KiB that the sum lands in: as torchvision's ResNet writes it."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.norm(self.conv(x))
            out += x
            return torch.relu_(out)

    made = program(Residual().eval(), IMAGE)
    assert (names(made), reasons(made)) == (["conv2d", "add_"], [])
    assert made["peak_activation"] == 2 * 4 * 4 * 64


def test_a_depthwise_convolution_of_onnx_works_in_place(tmp_path: Path) -> None:
    """Two of them between convolutions: 4 · 64 B at once, and 8 · 64 B beside x or y where not in place."""
    nodes = [node("Conv", "x a", "b"), node("Conv", "b c", "d", group=8, pads=[1, 1, 1, 1]), node("Conv", "d e", "y")]
    weights = [stored("a", 8, 4, 1, 1), stored("c", 8, 1, 3, 3), stored("e", 4, 8, 1, 1)]
    path = saved(model(nodes, [value("x", 1, 4, 8, 8)], [value("y", 1, 4, 8, 8)], weights), tmp_path)
    assert program(path, dtype="int8")["peak_activation"] == 2 * 8 * 64
    assert program(path, dtype="int8", in_place="elementwise")["peak_activation"] == 2 * 8 * 64
    assert program(path, dtype="int8", in_place="depthwise")["peak_activation"] == (8 + 4) * 64


def test_an_operand_that_is_broadcast_lends_no_memory() -> None:
    """One row of a memory as large as the sum is read for each of its rows; the other operand is the input."""
    made = program(Apply(lambda x: x.relu()[:1] + x), "float32 8x8", in_place="elementwise")
    assert not [step for step in made.lowered.done if step.op == "aten::add"]


@pytest.mark.parametrize(
    ("build", "inputs", "why"),
    [
        pytest.param(
            lambda: nn.LSTM(4, 3), "float32 5x1x4", "stays float32: no runtime is known that has lstm on integers",
            id="recurrent",
        ),
        pytest.param(
            lambda: Apply(lambda x: torch.cumsum(x, 1)), "float32 2x4",
            "stays float32: no runtime is known that has cumulative on integers", id="a running sum",
        ),
        pytest.param(
            lambda: Apply(lambda x: torch.linalg.det(x)), "float32 3x3",
            "stays float32: no runtime is known that has solve on integers", id="a factorisation",
        ),
        pytest.param(
            lambda: Apply(lambda x: torch.mvlgamma(x, 2)), "float32 3x3",
            "stays float32: no runtime is known that has it on integers", id="an operation without a rule",
        ),
    ],
)  # fmt: skip
def test_what_has_no_integers_stays_floating(build: Any, inputs: str, why: str) -> None:
    as_written = program(build().eval(), inputs)
    made = program(build().eval(), inputs, dtype="int8")
    assert reasons(made) == [why]
    assert made["weight_memory"] == as_written["weight_memory"]
    assert made["peak_activation"] == as_written["peak_activation"]


def test_the_rest_of_a_model_is_lowered_around_what_stays() -> None:
    """linear 4 → 6 → lstm 6 → 3: 24 weights, 6 scales and biases; the lstm's 4 · 3 · (6 + 3 + 2) numbers as written."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.lstm = nn.Linear(4, 6), nn.LSTM(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(self.linear(x))[0]

    made = program(Net().eval(), "float32 5x1x4", dtype="int8")
    assert made["weight_memory"] == 24 + 2 * 4 * 6 + 4 * 4 * 3 * (6 + 3 + 2)


def test_a_buffer_keeps_its_type_and_is_listed() -> None:
    net = nn.Sequential(nn.BatchNorm2d(4)).eval()
    assert (
        reasons(program(net, IMAGE, dtype="int8"))[1] == "0.running_mean stays float32: it is a buffer, and no weight"
    )


def test_attention_and_layer_norm_are_integers() -> None:
    """A block of a transformer: 4 · 16² weights and as many channels' scales and biases; norms of one scale."""
    block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True).eval()
    made = program(block, "float32 1x5x16", dtype="int8")
    weights = 4 * 16 * 16 + 2 * 16 * 32
    channels = 4 * 16 + 32 + 16
    assert made["weight_memory"] == weights + 8 * channels + 2 * (16 + 4 + 16 + 4)
    assert not reasons(made)


@pytest.mark.parametrize(("dtype", "nbytes"), [("int8", 12 + 8 * 3), ("float32", 4 * 15), ("bfloat16", 2 * 15)])
def test_a_model_in_float16_is_lowered_as_any(dtype: str, nbytes: int) -> None:
    net = nn.Linear(4, 3).half().eval()
    made = program(net, "float16 2x4", dtype=dtype)
    assert (made["weight_memory"], {op.outputs[0].dtype.name for op in made.lowered.graph.ops}) == (nbytes, {dtype})


def test_what_runs_in_a_loop_is_lowered_too(tmp_path: Path) -> None:
    """Three runs of a convolution and its relu, on a state of 4 x 8 x 8."""
    body = onnx.helper.make_graph(
        [node("Identity", "c", "d"), node("Conv", "s w", "t"), node("Relu", "t", "u")],
        "body",
        [value("i", code=TensorProto.INT64), value("c", code=TensorProto.BOOL), value("s", 1, 4, 8, 8)],
        [value("d", code=TensorProto.BOOL), value("u", 1, 4, 8, 8)],
    )
    nodes = [node("Loop", "count  x", "y", body=body)]
    weights = [integers("count", 3), stored("w", 4, 4, 1, 1)]
    nodes[0].input[:] = ["count", "", "x"]
    weights[0] = scalar("count", 3, np.int64)
    path = saved(model(nodes, [value("x", 1, 4, 8, 8)], [value("y", 1, 4, 8, 8)], weights), tmp_path)
    as_written, made = program(path, fuse_activations=()), program(path, dtype="int8")
    assert made["macs"] == as_written["macs"] == 3 * 4 * 4 * 64
    assert "Relu" in names(as_written)
    assert "Relu" not in names(made)
    assert made["weight_memory"] == 16 + 4 * 4


def test_what_reads_a_slice_of_a_stacked_result_and_writes_the_next_is_no_view(tmp_path: Path) -> None:
    """Five runs of a product and its relu, whose result is the next state and a slice: five products on a device."""
    body = onnx.helper.make_graph(
        [node("Identity", "c", "d"), node("Gemm", "s w", "t"), node("Relu", "t", "u")],
        "body",
        [value("i", code=TensorProto.INT64), value("c", code=TensorProto.BOOL), value("s", 8, 8)],
        [value("d", code=TensorProto.BOOL), value("u", 8, 8), value("u", 8, 8)],
    )
    outputs, weights = [value("y", 8, 8), value("k", 5, 8, 8)], [scalar("n", 5, np.int64), stored("w", 8, 8)]
    path = saved(model([node("Loop", "n - x", "y k", body=body)], [value("x", 8, 8)], outputs, weights), tmp_path)
    made = program(path)
    assert "Relu" not in names(made)
    assert made["bandwidth"] == 5 * 3 * 4 * 64
    assert not any(op.is_view for op in made.lowered.graph.ops if op.name == "onnx::Gemm")


def test_what_a_loop_reads_in_every_run_is_not_overwritten(tmp_path: Path) -> None:
    """exp(x) stands before the loop, whose three runs take its sigmoid: with the state and the sigmoid, 3 KiB."""
    body = onnx.helper.make_graph(
        [node("Identity", "c", "d"), node("Sigmoid", "e", "f"), node("Add", "s f", "u")],
        "body",
        [value("i", code=TensorProto.INT64), value("c", code=TensorProto.BOOL), value("s", 4, 64)],
        [value("d", code=TensorProto.BOOL), value("u", 4, 64)],
    )
    nodes = [node("Exp", "x", "e"), node("Loop", "count  x", "y", body=body)]
    nodes[1].input[:] = ["count", "", "x"]
    weights = [scalar("count", 3, np.int64)]
    path = saved(model(nodes, [value("x", 4, 64)], [value("y", 4, 64)], weights), tmp_path)
    assert program(path, in_place="elementwise")["peak_activation"] == 3 * 1024


def test_integers_have_nothing_to_lower() -> None:
    made = program(Apply(lambda x: x + 1), "int64 2x3", dtype="int8")
    assert (made["peak_activation"], reasons(made)) == (2 * 2 * 3 * 8, [])


class Biased(nn.Module):
    """Two convolutions with one bias, and a norm behind the first."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
        self.b.bias = self.a.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.a(x)) + self.b(x)


def test_a_bias_that_another_layer_reads_takes_no_shift() -> None:
    """Two weights of 4 · 4 · 3 · 3, the bias of the second, and one of the first with the shift in it."""
    made = program(Biased().eval(), IMAGE)
    assert (names(made), made["weight_memory"]) == (["conv2d", "conv2d", "add"], 4 * (2 * 144 + 2 * 4))


def test_a_norm_whose_scale_is_computed_is_left() -> None:
    """A conditional norm: what the linear layer gives for z scales the channels."""

    class Conditional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.scale, self.norm = nn.Conv2d(4, 4, 1), nn.Linear(5, 4), nn.BatchNorm2d(4, affine=False)

        def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            scale, norm = self.scale(z), self.norm
            return nn.functional.batch_norm(self.conv(x), norm.running_mean, norm.running_var, scale, scale)

    made = program(Conditional().eval(), [IMAGE, "float32 5"])
    assert reasons(made) == ["not folded: its scale or statistics are computed, and not stored"]
    assert made["weight_memory"] == 4 * (16 + 4 + 20 + 4)


class Behind(nn.Module):
    """A convolution of 4 channels, and a function of its result and of a stored or computed tensor."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.conv, self.head, self.prelu, self.function = nn.Conv2d(4, 4, 1), nn.Linear(8, 8), nn.PReLU(4), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        other = torch.sigmoid(x)
        return self.function(self, self.conv(x), other)


NO_ACTIVATION = "is no activation: its results are not those of single elements"


@pytest.mark.parametrize(
    ("kind", "function", "why"),
    [
        pytest.param("add", lambda _, y, other: y + other, "it reads activation", id="a residual"),
        pytest.param("clamp", lambda _, y, other: torch.clamp(y, min=other), "it reads activation", id="a bound"),
        pytest.param("prelu", lambda net, y, _: net.prelu(y), "it reads prelu.weight besides", id="slopes"),
        pytest.param("linear", lambda net, y, _: net.head(y), f"linear {NO_ACTIVATION}", id="another layer"),
        pytest.param("pooling", lambda _, y, __: torch.max_pool2d(y, 2), f"pooling {NO_ACTIVATION}", id="a pool"),
    ],
)  # fmt: skip
def test_what_is_more_than_an_activation_never_fuses(kind: str, function: Any, why: str) -> None:
    """A budget may name any kind: neither operands nor MACs get lost by that."""
    as_written = program(Behind(function), IMAGE, fuse_activations=())
    made = program(Behind(function), IMAGE, fuse_activations=(kind,))
    assert reasons(made)[-1].startswith(f"not fused: {why}")
    for metric in ("macs", "params", "peak_activation"):
        assert made[metric] == as_written[metric]


def test_weights_that_are_read_in_parts_have_all_their_scales() -> None:
    """Attention of 8 features over another sequence: 3 · 8 rows in one memory, read as 8 and 16, and 8 more."""

    class Crossed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.attention(x, y, y, need_weights=False)[0]

    made = program(Crossed().eval(), ["float32 1x4x8", "float32 1x4x8"], dtype="int8")
    assert made["weight_memory"] == (24 + 8) * (8 + 4 + 4)  # a row of int8, its scale and its bias


@pytest.mark.parametrize(
    ("function", "inputs", "peak"),
    [
        pytest.param(
            lambda x: (x * 2).view(1, 4, 1, 1).expand(1, 4, 8, 8).sigmoid().tanh().sum((2, 3)), "float32 1x4",
            16 + 1024, id="of one row that is read 64 times",
        ),
        pytest.param(
            lambda x: torch.cat([x, x], 1)[:, :1].sigmoid().repeat(1, 8, 1, 1).tanh(), IMAGE,
            1024 + 2048, id="of a part of a memory, which dies there",
        ),
    ],
)  # fmt: skip
def test_a_view_lends_no_memory(function: Any, inputs: str, peak: int) -> None:
    """Neither is the result as large as what is viewed, nor does a part keep the whole."""
    assert program(Apply(function), inputs, in_place="elementwise")["peak_activation"] == peak


def test_what_is_read_through_two_views_is_not_overwritten() -> None:
    made = program(Apply(lambda x: (lambda y: y + y.t())(x * 2)), "float32 8x8", in_place="elementwise")
    assert not made.lowered.done
