"""Own shape functions give what torch's kernels give, or step aside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from pytest_modelbudget.torch_models.shapes import ARITHMETIC, BINARY, COMPARED, IN_PLACE, SHAPES, UNARY

pytestmark = pytest.mark.needs_torch

DENSE = torch.randn(2, 4, 6, 8)
PERMUTED = DENSE.permute(0, 2, 3, 1)
WHOLE = torch.arange(1, 385).reshape(2, 4, 6, 8)
CHANNELS_LAST = DENSE.to(memory_format=torch.channels_last)
# Row-major and channels last at once: pooled images (2, 4, 1, 1) with strides (4, 1, 4, 4), and those of one channel.
POOLED = torch.rand(2, 1, 1, 4).permute(0, 3, 1, 2)
GRAY = torch.rand(2, 6, 8, 1).permute(0, 3, 1, 2)
OFFSETS = torch.tensor([10, 20, 60, 80], dtype=torch.int32)  # of groups of rows


def conv(*weight: int, x: torch.Tensor = DENSE, bias: bool = True, **options: Any) -> Any:
    """Arguments of a convolution."""
    arguments = (x, torch.randn(weight), torch.randn(weight[0]) if bias else None)
    return (*arguments, *options.values())


def recurrent(kind: str, *, packed: bool = False, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """An operator and its arguments, as nn.LSTM, nn.GRU and nn.RNN call it, over three steps of two sequences."""
    layer = getattr(torch.nn, kind.partition("_")[0].upper())(5, 4, dtype=dtype, **options)
    rows = layer.num_layers * (1 + layer.bidirectional)
    states = [torch.zeros(rows, 2, layer.proj_size or 4, dtype=dtype), torch.zeros(rows, 2, 4, dtype=dtype)]
    state = states if kind == "lstm" else states[0]
    x = torch.randn(2, 3, 5) if layer.batch_first else torch.randn(3, 2, 5)
    given = (torch.randn(5, 5).to(dtype), torch.tensor([2, 2, 1]), state) if packed else (x.to(dtype), state)
    ways = (layer.bias, layer.num_layers, 0.0, False, layer.bidirectional, *(() if packed else (layer.batch_first,)))
    weights = [weight.detach() for weight in layer._flat_weights]
    return f"aten::{kind}", (*given, weights, *ways)


def changed(case: tuple[str, tuple[Any, ...]], place: int, value: Any) -> tuple[str, tuple[Any, ...]]:
    """The same case with another argument."""
    name, arguments = case
    return name, (*arguments[:place], value, *arguments[place + 1 :])


PLAIN = UNARY.split()

# operator, its arguments
CASES = [
    *((f"aten::{name}", (x,)) for name in PLAIN
      for x in (DENSE, PERMUTED, DENSE.half(), DENSE[:, :0], POOLED, GRAY)),
    *((f"aten::{name}", (x,)) for name in IN_PLACE.split() for x in (DENSE, PERMUTED)),
    ("aten::clamp", (DENSE, 0.0, 1.0)),
    ("aten::clamp", (DENSE, torch.zeros(3, 1, 1, 1, 1))),
    ("aten::clamp_min", (DENSE, 0.5)),
    ("aten::clamp_min", (DENSE, torch.zeros(3, 1, 4, 6, 8))),
    ("aten::softmax", (DENSE, -1)),
    ("aten::softmax", (DENSE, -1, torch.float64)),
    *((f"aten::{name}", pair) for name in " ".join((BINARY, ARITHMETIC, COMPARED)).split() for pair in (
        (DENSE, DENSE), (DENSE, 2.0), (DENSE, 2), (DENSE, DENSE[:, :, :1, :1].contiguous()),
        (DENSE[0, 0], DENSE), (DENSE[:, :1].contiguous(), DENSE[:1, :, :1].contiguous()),
        (DENSE, PERMUTED.permute(0, 3, 1, 2)), (CHANNELS_LAST, CHANNELS_LAST),
        (DENSE, DENSE.half()), (DENSE.long(), 2.0), (DENSE, DENSE.long()),
        (WHOLE, WHOLE), (WHOLE, 3), (WHOLE, WHOLE[:, :1]), (WHOLE[0], WHOLE), (WHOLE.byte(), 3), (WHOLE.int(), WHOLE),
        (torch.randn(1, 1), torch.randn(1)), (DENSE, DENSE[:, :1, :, :1].clone().expand(DENSE.shape)),
        (DENSE, DENSE[:, :, :1, :1].transpose(0, 1).expand(4, 2, 6, 8).transpose(0, 1)),
        (DENSE[:, :1, :1].contiguous(), DENSE[:, :, :1].expand(2, 4, 6, 8)),
        *((x, y) for x in (POOLED, GRAY) for y in (2.0, x, x[:1], torch.rand(()), torch.rand(x.shape))),
        (torch.rand(2, 4, 1, 1), POOLED[:1]), (torch.rand(2, 4, 6, 1), GRAY[:, :, :, :1].transpose(1, 3)),
    )),
    *((f"aten::{name}_", pair) for name in ("add", "mul") for pair in (
        (DENSE, DENSE), (DENSE, 3.0), (DENSE, DENSE[0]), (PERMUTED, PERMUTED),
    )),
    ("aten::pow", (2.0, DENSE)),
    ("aten::rsub", (DENSE, 1, 2)),
    *((f"aten::{name}", pair) for name in ("maximum", "minimum") for pair in (
        (DENSE, DENSE), (DENSE, DENSE[0]), (DENSE, PERMUTED.permute(0, 3, 1, 2)), (DENSE, DENSE.half()),
        (POOLED, POOLED), (POOLED, torch.rand(())))),
    *(("aten::cumsum", (x, dim)) for x in (DENSE, DENSE.half(), PERMUTED, WHOLE, WHOLE.int(), DENSE > 0)
      for dim in (0, -1)),
    *((f"aten::{name}", (x, *rest)) for name in ("mean", "sum")
      for x in (DENSE, PERMUTED, DENSE.half(), DENSE[0, 0, 0, 0], POOLED, GRAY)
      for rest in ((), ([-1],), ([1, 3], True), ([-1, 0], False), ([],), ((), True))),
    *(("aten::sum", (x, [1])) for x in (DENSE.long(), DENSE > 0)),
    *(("aten::linalg_vector_norm", (x, order, *rest)) for x in (DENSE, PERMUTED, DENSE.half()) for order in (2, 1.5)
      for rest in ((), (None, True), ([],), ([-1],), ([1, 2], True))),
    *((f"aten::{name}", (x, *rest)) for name in ("var", "std") for x in (DENSE, PERMUTED, DENSE.half())
      for rest in ((), ([],), ([-1],), ([1, 3], False), ([1, 3], True, True), (True,))),
    *(("aten::group_norm", (x, groups, weight, weight))
      for x in (DENSE, CHANNELS_LAST, DENSE[:, :, 0, 0].contiguous(), POOLED)
      for groups in (1, 2, 4) for weight in (None, torch.rand(4))),
    *((f"aten::{name}", (x, -1)) for name in ("softmax", "log_softmax") for x in (DENSE, POOLED, GRAY)),
    ("aten::rms_norm", (DENSE, [8], torch.rand(8))),
    *((f"aten::{name}_norm", (x, x.shape[at:])) for name in ("rms", "layer") for at in (1, 2)
      for x in (PERMUTED, DENSE.permute(0, 3, 1, 2), POOLED, GRAY)),
    ("aten::where", (DENSE > 0, DENSE, DENSE)),
    ("aten::where", (DENSE[:, :1] > 0, DENSE, DENSE[0])),
    ("aten::where", (DENSE[:, :1].contiguous() > 0, DENSE, torch.randn(()))),
    ("aten::where", (DENSE > 0, PERMUTED.permute(0, 3, 1, 2), DENSE)),
    ("aten::where", (DENSE > 0, DENSE, DENSE.half())),
    *(("aten::where", (x > 0, x, y)) for x in (POOLED, GRAY) for y in (x, torch.rand(()), x[:1])),
    ("aten::where", (torch.rand(2, 1) > 0, torch.rand(1, 3), torch.rand(1))),
    ("aten::adaptive_avg_pool2d", (DENSE, [1, 1])),
    ("aten::adaptive_avg_pool2d", (DENSE, [3, 5])),
    *(("aten::adaptive_avg_pool2d", (x, [size, size])) for x in (CHANNELS_LAST, POOLED, GRAY) for size in (1, 3)),
    *(("aten::batch_norm", (x, *(torch.rand(x.shape[1]),) * 4, False, 0.1, 1e-5, False))
      for x in (DENSE, CHANNELS_LAST, DENSE[0], POOLED, GRAY)),
    ("aten::batch_norm", (DENSE, None, None, torch.rand(4), torch.rand(4), False, 0.1, 1e-5, True)),
    *((f"aten::{name}", (x, *options)) for name in ("max_pool2d", "avg_pool2d")
      for x in (DENSE, CHANNELS_LAST, DENSE[0], GRAY)
      for options in (([2, 2],), ([3, 2], [2, 1]), ([3], [2], [1]), ([3, 3], [], [1, 0]), ([7, 3], [1], [0]))),
    *((f"aten::{name}", (torch.randn(1, 2, height, 11), [kernel], [stride], [pad], *rest))
      for name, rest in (("max_pool2d", ([1], True)), ("avg_pool2d", (True,)))
      for height in range(3, 9) for kernel in (2, 3) for stride in (1, 2, 3, 4) for pad in (0, 1)),
    ("aten::max_pool2d", (DENSE, [2], [1], [0], [2])),
    ("aten::avg_pool2d", (DENSE, [2], [1], [0], False, True, 3)),
    *(("aten::roll", (x, shifts, dims)) for x in (DENSE, PERMUTED, DENSE.long())
      for shifts, dims in (([1], [1]), ([2, -9], [-1, 0]), ([3], []))),
    *(("aten::masked_fill", (x, mask, value)) for x in (DENSE, DENSE.half(), DENSE.long()) for value in (0, -1.5)
      for mask in (DENSE > 0, DENSE[0] > 0, DENSE[:, :1] > 0)),
    ("aten::masked_fill", (PERMUTED, PERMUTED > 0, 0.0)),
    *(("aten::masked_fill", (x, mask, 0.0)) for x in (POOLED, GRAY) for mask in (x > 0, x[:1] > 0)),
    *(("aten::_autocast_to_reduced_precision", (x, True, on, torch.float16, torch.bfloat16))
      for x in (DENSE, PERMUTED, DENSE.half(), DENSE.long()) for on in (True, False)),
    *(("aten::_autocast_to_full_precision", (x, True, on))
      for x in (DENSE.bfloat16(), PERMUTED.half(), DENSE, DENSE.long()) for on in (True, False)),
    ("aten::cat", ([DENSE, DENSE],)),
    ("aten::cat", ([DENSE, DENSE, DENSE[:, :1].contiguous()], 1)),
    ("aten::cat", ([DENSE, DENSE], -1)),
    *(("aten::cat", ([x, x], 1)) for x in (CHANNELS_LAST, POOLED, GRAY)),
    ("aten::cat", ([DENSE, DENSE.half()], 1)),
    ("aten::conv2d", conv(5, 4, 3, 3)),
    ("aten::conv2d", conv(5, 4, 3, 3, bias=False, stride=[2, 2], padding=[1, 1])),
    ("aten::conv2d", conv(5, 4, 1, 3, stride=[1, 2], padding=[0, 1], dilation=[1, 2])),
    ("aten::conv2d", conv(8, 1, 3, 3, stride=[1], padding=[1], dilation=[1], groups=4)),
    ("aten::conv2d", conv(5, 4, 3, 3, stride=[1, 1], padding="same")),
    ("aten::conv2d", conv(5, 4, 3, 3, x=CHANNELS_LAST)),
    ("aten::conv2d", conv(5, 4, 1, 1, x=POOLED, stride=[1], padding=[1])),
    ("aten::conv2d", conv(5, 1, 3, 3, x=GRAY)),
    ("aten::conv2d", (GRAY.contiguous(), torch.rand(5, 3, 3, 1).permute(0, 3, 1, 2))),
    ("aten::conv2d", conv(5, 4, 3, 3, x=DENSE[0])),
    ("aten::conv2d", conv(5, 4, 3, 3, x=DENSE[:0])),
    *(("aten::layer_norm", (x, x.shape[-n:], torch.rand(x.shape[-n:]), torch.rand(x.shape[-n:])))
      for x in (DENSE, PERMUTED) for n in (1, 2)),
    ("aten::layer_norm", (PERMUTED, [4])),
    *(("aten::_grouped_mm", (torch.randn(80, 64).to(dtype), torch.randn(4, 64, 40).to(dtype), OFFSETS))
      for dtype in (torch.float32, torch.float16, torch.bfloat16)),
    *(("aten::linear", (x, torch.randn(3, 8), bias)) for bias in (None, torch.randn(3))
      for x in (DENSE, DENSE.transpose(1, 2), torch.randn(8), DENSE[:0])),
    *(recurrent(kind, **options) for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")
      for options in ({}, {"batch_first": True}, {"num_layers": 3, "bidirectional": True, "bias": False},
                      {"packed": True, "bidirectional": True}, {"packed": True, "num_layers": 2},
                      {"batch_first": True, "dtype": torch.float64})),
    recurrent("lstm", proj_size=2),
    recurrent("lstm", proj_size=3, num_layers=2, bidirectional=True, batch_first=True, bias=False),
]  # fmt: skip


def kernel(name: str) -> Callable[..., Any]:
    """Torch's own operator."""
    operator: Callable[..., Any] = getattr(torch.ops.aten, name.partition("::")[2])
    return operator


def on_meta(value: Any) -> Any:
    """The same argument without memory."""
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return [on_meta(part) for part in value] if isinstance(value, list) else value


def of_parts(result: Any) -> tuple[torch.Tensor, ...]:
    """The tensors that an operator gives, one or several."""
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")
@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_shapes_equal_the_kernels(name: str, arguments: tuple[Any, ...]) -> None:
    """Shape, strides and type are those of a real run on the CPU."""
    ours = SHAPES[name](*(on_meta(argument) for argument in arguments))
    if ours is NotImplemented:
        return
    with torch.inference_mode():
        theirs = kernel(name)(*(a.clone() if isinstance(a, torch.Tensor) else a for a in arguments))
    for our, their in zip(of_parts(ours), of_parts(theirs), strict=True):
        assert (our.shape, our.dtype) == (their.shape, their.dtype)
        if our.numel():
            assert our.stride() == their.stride()
            assert our.untyped_storage().nbytes() == their.untyped_storage().nbytes()


@pytest.mark.parametrize("name", sorted(set(SHAPES) - {"aten::scaled_dot_product_attention"}))
def test_each_function_answers_its_common_case(name: str) -> None:
    """A function that always stepped aside would be dead code: one case per operator answers."""
    answers = (
        SHAPES[case](*(on_meta(argument) for argument in arguments))
        for case, arguments in CASES
        if case == name or case == name.removesuffix("_")
    )
    assert any(answer is not NotImplemented for answer in answers)


@pytest.mark.parametrize(
    ("query", "key", "value", "options"),
    [
        ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 3), {}),
        ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8), {"enable_gqa": True}),
        ((2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8), {"is_causal": True}),
        ((2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8), {"scale": 2.0}),
        *(
            ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 3), {"attn_mask": mask})
            for mask in (torch.randn(5, 7), torch.randn(2, 1, 5, 7) > 0, torch.randn(1, 1, 1, 7), torch.randn(5, 1))
        ),
    ],
)
def test_attention_has_the_shape_of_queries_by_values(
    query: Any, key: Any, value: Any, options: dict[str, Any]
) -> None:
    """One result per query, as wide as a value."""
    tensors = [torch.randn(shape) for shape in (query, key, value)]
    ours = SHAPES["aten::scaled_dot_product_attention"](
        *map(on_meta, tensors), **{name: on_meta(value) for name, value in options.items()}
    )
    assert ours.shape == F.scaled_dot_product_attention(*tensors, **options).shape


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("aten::linear", (DENSE, torch.randn(3, 7))),
        ("aten::_grouped_mm", (torch.randn(80, 64), torch.randn(4, 64, 41), OFFSETS)),
        ("aten::_grouped_mm", (torch.randn(80, 64).double(), torch.randn(4, 64, 40).double(), OFFSETS)),
        ("aten::conv2d", conv(5, 3, 3, 3)),
        ("aten::conv2d", conv(5, 4, 9, 9)),
        ("aten::add_", (DENSE[0], DENSE)),
        ("aten::layer_norm", (DENSE, [5])),
        ("aten::batch_norm", (DENSE, *(torch.rand(3),) * 4, False, 0.1, 1e-5, False)),
        *(
            ("aten::scaled_dot_product_attention", (DENSE, DENSE, DENSE, *rest))
            for rest in (
                (torch.randn(6, 7),),
                (torch.randn(3, 1, 6, 6),),
                (torch.randn(6),),
                (torch.ones(6, 6).long(),),
                (torch.randn(6, 6), 0.0, True),
                (None, 0.5),
            )
        ),
        ("aten::group_norm", (DENSE, 3)),
        ("aten::group_norm", (DENSE, 2, torch.rand(2))),
        *((f"aten::{name}", (DENSE, DENSE, 1j)) for name in ("add", "sub", "rsub")),
        ("aten::add", (WHOLE, WHOLE, 0.5)),
        *((f"aten::{name}", (WHOLE.clone(),)) for name in IN_PLACE.split()),
        ("aten::add_", (WHOLE, WHOLE, 0.5)),
        *(("aten::layer_norm", (x, shape)) for x, shape in ((DENSE, []), (WHOLE, [8]), (DENSE.cfloat(), [8]))),
        *(("aten::rms_norm", (x, shape)) for x, shape in ((DENSE, []), (WHOLE, [8]))),
        ("aten::adaptive_avg_pool2d", (WHOLE, [1, 1])),
        ("aten::adaptive_avg_pool2d", (DENSE[:, :, :0], [1, 1])),
        ("aten::adaptive_avg_pool2d", (DENSE, [1, -1])),
        ("aten::scaled_dot_product_attention", (WHOLE, WHOLE, WHOLE)),
        ("aten::linear", (DENSE, torch.randn(3, 8), torch.randn(3).double())),
        ("aten::conv2d", (DENSE, torch.randn(5, 4, 3, 3), torch.randn(5).double())),
        ("aten::conv2d", (DENSE, torch.randn(5, 4, 3, 3), None, [1], [-1])),
        ("aten::conv2d", (DENSE, torch.randn(5, 4, 3, 3), None, [1], [1], [0])),
        ("aten::conv2d", (DENSE[:, :0], torch.randn(5, 0, 3, 3))),
        *(
            ("aten::batch_norm", (DENSE, None, None, mean, variance, False, 0.1, 1e-5, False))
            for mean, variance in ((None, None), (torch.rand(4), None), (None, torch.rand(4)), torch.rand(2, 4, 1))
        ),
        ("aten::batch_norm", (DENSE, None, None, torch.rand(4), torch.rand(3), False, 0.1, 1e-5, False)),
        ("aten::batch_norm", (WHOLE, None, None, torch.rand(4), torch.rand(4), False, 0.1, 1e-5, False)),
        *((f"aten::{kind}_pool2d", (DENSE, kernel, [1])) for kind in ("max", "avg") for kernel in ([0], [2, 0])),
        ("aten::mean", (DENSE, [4])),
        ("aten::cumsum", (DENSE, 4)),
        ("aten::add", (WHOLE, 0.5)),
        ("aten::div", (WHOLE, WHOLE)),
        ("aten::pow", (WHOLE, -1)),
        ("aten::sum", (DENSE, [1, -3])),
        ("aten::mean", (DENSE.long(),)),
        ("aten::rms_norm", (DENSE, [5])),
        ("aten::where", (DENSE > 0, DENSE, DENSE[:, :3].contiguous())),
        ("aten::cat", ([DENSE, DENSE[:, :, :1].contiguous()], 1)),
        ("aten::conv2d", (DENSE, torch.randn(5, 4, 3, 3), None, [1, 1, 1])),
        ("aten::conv2d", (DENSE, torch.randn(5, 4, 3, 3), None, [1], [1, 1, 1])),
        ("aten::conv2d", (DENSE, torch.randn(5, 4, 3, 3), None, [1], [1], [])),
        *(
            (f"aten::{name}", (DENSE, *sizes))
            for name in ("max_pool2d", "avg_pool2d")
            for sizes in (([2, 2, 2],), ([],), ([2], [2, 2, 2]), ([2], [2], [0, 0, 0]), ([2], [2], []))
        ),
        ("aten::max_pool2d", (DENSE, [2], [2], [0], [1, 1, 1])),
        ("aten::max_pool2d", (DENSE, [2], [2], [0], [])),
        ("aten::max_pool2d", (DENSE, [9, 1])),
        ("aten::max_pool2d", (DENSE, [2, 2], [1], [2])),
        ("aten::avg_pool2d", (DENSE, [2, 2], [0])),
        ("aten::avg_pool2d", (DENSE, [2, 2], [1], [0], False, True, 0)),
        ("aten::roll", (DENSE, [1], [4])),
        ("aten::roll", (DENSE, [1, 2], [0])),
        ("aten::masked_fill", (DENSE, DENSE[:1, :3] > 0, 1.0)),
        ("aten::masked_fill", (DENSE, DENSE, 1.0)),
        *(
            changed(recurrent(kind), place, wrong)
            for kind in ("lstm", "gru", "rnn_tanh")
            for place, wrong in (
                (0, torch.randn(3, 2, 6)),
                (0, torch.randn(3, 3, 5)),
                (0, torch.randn(0, 2, 5)),
                (0, torch.randn(3, 2, 5).half()),
                (1, [torch.zeros(2, 2, 4)] * 2 if kind == "lstm" else torch.zeros(2, 2, 4)),
                (2, []),
                (4, 2),
            )
        ),
        changed(recurrent("lstm"), 1, [torch.zeros(1, 2, 4)]),
    ],
)
def test_impossible_operands_are_left_to_the_kernel(name: str, arguments: tuple[Any, ...]) -> None:
    """What a kernel would refuse is never answered here, so that its error reaches the user."""
    assert SHAPES[name](*(on_meta(argument) for argument in arguments)) is NotImplemented
