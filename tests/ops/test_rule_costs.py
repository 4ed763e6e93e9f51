"""What operators cost when torch calls them: figures from the definitions, written out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from pytest_modelbudget import measure
from tests.builders.micro_modules import Apply, weight

pytestmark = pytest.mark.needs_torch

INT = "int64"


def ids(*shape: int) -> torch.Tensor:
    """Indices of this shape."""
    return torch.zeros(shape, dtype=torch.int64)


def floats(*shape: int) -> torch.Tensor:
    """Values of this shape."""
    return torch.zeros(shape)


# what, the call, its inputs, (MACs, FLOPs, bytes read, bytes of weights, bytes written)
ATEN: Any = torch.ops.aten
COSTS: list[Any] = [
    pytest.param(lambda x: ATEN.permute_copy(x, [1, 0]), (floats(4, 6),), (0, 0, 96, 0, 96), id="permute_copy"),
    pytest.param(lambda x: ATEN.t_copy(x), (floats(4, 6),), (0, 0, 96, 0, 96), id="t_copy"),
    pytest.param(lambda x: ATEN.unsqueeze_copy(x, 0), (floats(4, 6),), (0, 0, 96, 0, 96), id="unsqueeze_copy"),
    pytest.param(lambda x: ATEN.expand_copy(x, [4, 6]), (floats(1, 6),), (0, 0, 24, 0, 96), id="expand_copy"),
    pytest.param(lambda x: ATEN.select_copy(x, 0, 1), (floats(4, 6),), (0, 0, 24, 0, 24), id="select_copy"),
    pytest.param(lambda x: ATEN.slice_copy(x, 0, 0, 2), (floats(4, 6),), (0, 0, 48, 0, 48), id="slice_copy"),
    pytest.param(lambda x: ATEN.diagonal_copy(x), (floats(4, 6),), (0, 0, 16, 0, 16), id="diagonal_copy"),
    pytest.param(lambda x: ATEN.split_copy(x, 3, 1), (floats(4, 6),), (0, 0, 96, 0, 96), id="split_copy"),
    pytest.param(lambda x: ATEN.unbind_copy(x), (floats(4, 6),), (0, 0, 96, 0, 96), id="unbind_copy"),
    pytest.param(
        lambda x, y: ATEN.as_strided_scatter(x, y, [2, 2], [6, 1]), (floats(4, 6), floats(2, 2)),
        (0, 0, 96 + 16, 0, 96), id="as_strided_scatter",
    ),
    *(
        pytest.param(
            lambda x, w, b, m, v, norm=norm: norm(x, w, b, m, v, 0.1, 1e-5)[0],
            (floats(2, 4, 3), *(floats(4) for _ in range(4))), (0, 5 * 24, 96 + 4 * 16, 0, 96), id=f"{norm}",
        )
        for norm in (ATEN._batch_norm_with_update, ATEN._batch_norm_with_update_functional)
    ),
    pytest.param(
        lambda x, y: ATEN.copy(x, y), (floats(4, 6), floats(1, 6)), (0, 0, 24, 0, 96),
        id="copy: the first operand lends its shape",
    ),
    pytest.param(lambda x: ATEN.detach_copy(x), (floats(4, 6),), (0, 0, 96, 0, 96), id="detach_copy"),
    pytest.param(lambda x: ATEN.resize(x, [6, 6]), (floats(4, 6),), (0, 0, 96, 0, 96), id="resize: what was there"),
    pytest.param(
        lambda x, n: ATEN.rrelu_with_noise_functional(x, n)[0], (floats(4, 6), floats(4, 6)),
        (0, 24, 2 * 96, 0, 96), id="rrelu_with_noise_functional",
    ),
    pytest.param(
        lambda x: ATEN.view_as_complex_copy(x), (floats(4, 2),), (0, 0, 32, 0, 32), id="view_as_complex_copy"
    ),
    pytest.param(lambda x: x[:, 0].relu(), (floats(8, 100),), (0, 8, 32, 0, 32), id="a column"),
    pytest.param(
        lambda x: x[:, :5] + x[:, 2:7], (floats(10, 10),), (0, 50, 70 * 4, 0, 200),
        id="overlapping windows are read once",
    ),
    pytest.param(
        lambda x, i: x.index_select(0, i), (floats(1000, 8), ids(3)), (0, 0, 96 + 24, 0, 96),
        id="index_select",
    ),
    pytest.param(
        lambda x, i: x[i], (floats(1000, 8), ids(3)), (0, 0, 96 + 24, 0, 96), id="index"
    ),
    pytest.param(
        lambda x, m, i: ATEN._unsafe_masked_index(x, m > 0, [i], 0.0), (floats(1000, 8), ids(3, 1), ids(3)),
        (0, 3, 24 + 96 + 3 + 24, 0, 3 + 96), id="_unsafe_masked_index: rows, after a comparison of 3 integers",
    ),
    pytest.param(
        lambda x, i, s: x.scatter_add(0, i, s), (floats(10), ids(100), floats(100)),
        (0, 100, 40 + 800 + 400, 0, 40), id="scatter_add",
    ),
    pytest.param(
        lambda x, i, s: x.scatter_add_(0, i, s), (floats(1000), ids(3), floats(3)),
        (0, 3, 12 + 24 + 12, 0, 12), id="scatter_add in place",
    ),
    pytest.param(
        lambda x, i, s: x.index_copy_(0, i, s), (floats(10, 6), ids(2), floats(2, 6)),
        (0, 0, 16 + 48, 0, 48), id="index_copy in place",
    ),
    pytest.param(
        lambda x, i, s: x.index_put_((i,), s), (floats(10, 6), ids(2), floats(2, 6)),
        (0, 0, 16 + 48, 0, 48), id="index_put in place",
    ),
    pytest.param(
        lambda x, i, s: x.index_put_((i,), s, accumulate=True),
        (floats(10, 6), ids(2), floats(2, 6)), (0, 0, 48 + 16 + 48, 0, 48), id="accumulating",
    ),
    pytest.param(
        lambda x: x.fill_diagonal_(1.0), (floats(10, 6),), (0, 0, 0, 0, 6 * 4), id="diagonal"
    ),
    pytest.param(torch.zeros_like, (floats(10, 6),), (0, 0, 0, 0, 240), id="zeros_like"),
    pytest.param(
        lambda x: torch.empty(20, 20).copy_(x), (floats(20, 20),), (0, 0, 1600, 0, 1600),
        id="empty memory is not written",
    ),
    pytest.param(
        lambda x: x.unsqueeze_(0) + 1, (floats(40, 40),), (0, 1600, 6400, 0, 6400),
        id="views in place move nothing",
    ),
    pytest.param(
        lambda a, b: torch.mm(a, b, out=torch.empty(4, 6)), (floats(4, 5), floats(5, 6)),
        (4 * 5 * 6, 2 * 120, 80 + 120, 0, 96), id="out= is a result",
    ),
    pytest.param(torch.max, (floats(1), floats(100)), (0, 100, 404, 0, 400), id="max of two"),
    pytest.param(lambda x: x.sum(1), (floats(4, 10),), (0, 40, 160, 0, 16), id="sum"),
    pytest.param(
        lambda x: torch.inner(x.sum(), x.sum()), (floats(10),), (1, 2 * 10 + 2, 88, 0, 12),
        id="a product of scalars",
    ),
    pytest.param(torch.addcmul, (floats(6),) * 3, (0, 6, 72, 0, 24), id="addcmul"),
    pytest.param(F.glu, (floats(3, 8),), (0, 12, 96, 0, 48), id="glu"),
    pytest.param(
        lambda x: F.max_pool2d(x, 3, 2), (floats(1, 2, 7, 7),), (0, 18 * 9, 392, 0, 72), id="pool"
    ),
    pytest.param(
        lambda x: F.avg_pool3d(x, 2), (floats(1, 2, 4, 4, 4),), (0, 16 * 8, 512, 0, 64), id="3-D"
    ),
    *(
        pytest.param(
            lambda x, mode=mode: F.interpolate(x, scale_factor=(2.0, 1.0), mode=mode), (floats(1, 2, 3, 3),),
            (0, 36 * neighbours, 72, 0, 144), id=f"{mode} interpolation along one axis",
        )
        for mode, neighbours in (("bilinear", 2), ("bicubic", 4))
    ),
    pytest.param(
        lambda x: F.interpolate(x, scale_factor=(2.0, 1.0, 2.0), mode="trilinear"), (floats(1, 1, 2, 3, 2),),
        (0, 48 * 4, 48, 0, 192), id="trilinear interpolation along two axes",
    ),
    pytest.param(
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (floats(1, 2, 3, 3),),
        (0, 72 * 4, 72, 0, 288), id="bilinear interpolation",
    ),
    pytest.param(
        lambda x: F.interpolate(x, scale_factor=2), (floats(1, 2, 3, 3),), (0, 0, 72, 0, 288),
        id="nearest neighbours",
    ),
    pytest.param(
        lambda x: F.fold(x, (4, 4), (2, 2)), (floats(1, 4, 9),), (0, 36, 144, 0, 64), id="fold"
    ),
    pytest.param(
        lambda x: torch.cat([x, x]), (floats(3, 2),), (0, 0, 24, 0, 48), id="a part joined twice"
    ),
    pytest.param(
        lambda t: F.affine_grid(t, (2, 3, 4, 5), align_corners=False), (floats(2, 2, 3),),
        (2 * 4 * 5 * 2 * 3, 2 * 240, 2 * 2 * 3 * 4, 0, 80 * 4), id="affine grid",
    ),
    pytest.param(lambda x: F.pad(x, (1, 1)), (floats(3, 2),), (0, 0, 24, 0, 48), id="pad"),
    # parts of 1 and 3 rows, as a jagged tensor has them: ends are 3 integers of 8 bytes, the longest part has 3 rows
    pytest.param(
        lambda x, ends: ATEN._jagged_to_padded_dense_forward(x, [ends], [3], 0.0), (floats(4, 6), ids(3)),
        (0, 0, 4 * 6 * 4 + 3 * 8, 0, 2 * 3 * 6 * 4), id="a jagged tensor is padded",
    ),
    pytest.param(
        lambda x, ends: ATEN._padded_dense_to_jagged_forward(x, [ends], 4), (floats(2, 3, 6), ids(3)),
        (0, 0, 4 * 6 * 4 + 3 * 8, 0, 4 * 6 * 4), id="a padded tensor becomes jagged",
    ),
    pytest.param(
        lambda x: x.to(torch.float16), (floats(3, 2),), (0, 0, 24, 0, 12), id="cast"
    ),
    pytest.param(lambda x: x.t().contiguous(), (floats(3, 2),), (0, 0, 24, 0, 24), id="copy"),
    pytest.param(
        lambda x: F.layer_norm(x, (6,)), (floats(4, 6),), (0, 5 * 24, 96, 0, 96), id="layer norm"
    ),
    pytest.param(
        lambda x: F.instance_norm(x), (floats(1, 2, 6),), (0, 5 * 12, 48, 0, 48), id="instance"
    ),
    pytest.param(
        lambda x: F.batch_norm(x, None, None, training=True), (floats(4, 6),),
        (0, 5 * 24, 96, 0, 96), id="a batch norm with the batch's own statistics",
    ),
    pytest.param(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (floats(1, 2, 5, 4),) * 3,
        (2 * 2 * 25 * 4, 4 * 2 * 25 * 4 + 50 * (5 + 1 + 1), 480, 0, 160), id="causal attention",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "inputs", "expected"), COSTS)
def test_one_call(call: Callable[..., Any], inputs: tuple[torch.Tensor, ...], expected: tuple[int, ...]) -> None:
    """MACs, FLOPs and the three parts of the traffic, all of them complete."""
    measured = measure(Apply(call), list(inputs))
    parts = measured["bandwidth"].parts
    found = (measured["macs"].value, measured["flops"].value, *parts.values())
    assert found == expected
    assert all(measured[key].complete for key in ("macs", "flops", "bandwidth"))


@pytest.mark.parametrize(
    ("call", "inputs", "metric", "why"),
    [
        (F.dropout, (floats(4, 6),), "flops", "dropout that stays on"),
        (F.mse_loss, (floats(6), floats(6)), "flops", "no figure for loss"),
        (torch.fft.fft, (floats(6),), "flops", "no figure for fft"),
        (torch.cdist, (floats(3, 6), floats(4, 6)), "macs", "as a matrix product or element"),
        (torch.linalg.polar, (floats(3, 3),), "macs", "iterates until it converges"),
        (lambda x: F.ctc_loss(x, ids(1, 2) + 1, (7,), (2,)), (floats(7, 1, 5),), "flops", "no figure for loss"),
    ],
)
def test_what_is_not_measured_says_why(
    call: Callable[..., Any], inputs: tuple[torch.Tensor, ...], metric: str, why: str
) -> None:
    """A number that leaves something out names it; the traffic is exact all the same."""
    measured = measure(Apply(call), list(inputs))
    assert why in " ".join(each.why for each in measured[metric].unmeasured)
    assert measured["bandwidth"].complete


def test_an_operator_that_returns_nothing_still_writes() -> None:
    """A list add in place: 1,600 floats read and written, though no tensor comes out."""
    call = Apply(lambda x: (torch._foreach_add_([x], 1.0), x)[1])
    parts = measure(call, [floats(40, 40)])["bandwidth"].parts
    assert parts == {"read": 6400, "weights": 0, "write": 6400}


def test_weighted_rows_are_a_contraction() -> None:
    """3 bags of 2 rows of 8, each row with a weight: 6·8 multiply-adds."""
    call = Apply(lambda m, i, w: F.embedding_bag(i, m.table, per_sample_weights=w, mode="sum"), table=weight(100, 8))
    assert measure(call, [ids(3, 2), floats(3, 2)])["macs"].value == 6 * 8


def test_a_weight_times_itself_is_read_once() -> None:
    """w @ w.T reads 24 floats of weights."""
    call = Apply(lambda m, x: x + m.w @ m.w.T, w=weight(4, 6))
    assert measure(call, [floats(4, 4)])["bandwidth"].parts["weights"] == 4 * 6 * 4
