"""Small models that carry their own expected figures, as arithmetic written out by hand."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.builders.micro_modules import (
    Apply,
    DictOutputs,
    Micro,
    NeverCalled,
    SharedUnderTwoParents,
    TiedWeights,
    ViewedWeights,
    causal,
    decoder_layer,
    einsum,
    grouped_queries,
    spec,
    weight,
)

# d = 8, heads 2, feed-forward 32: weights (4·d·d + 4·d) of one attention
ATTENTION_PARAMS = 4 * 8 * 8 + 4 * 8
FEED_FORWARD_PARAMS = 8 * 32 + 32 + 32 * 8 + 8


MICRO_MODELS: tuple[Micro, ...] = (
    # every row of the peers' scoreboard
    Micro("linear_3d", lambda: nn.Linear(3, 8), (spec(2, 5, 3),), 3 * 8 + 8, 2 * 5 * 3 * 8),
    Micro(
        "functional_linear",
        lambda: Apply(lambda m, x: F.linear(x, m.w), w=weight(8, 3)),
        (spec(2, 5, 3),),
        8 * 3,
        2 * 5 * 3 * 8,
    ),
    Micro("matmul_transposed", lambda: Apply(lambda x: x @ x.T), (spec(16, 16),), 0, 16**3),
    Micro("einsum_bij_bkj", lambda: Apply(einsum("bij,bkj->bik")), (spec(4, 8, 16), spec(4, 8, 16)), 0, 4 * 8 * 8 * 16),
    Micro(
        "sdpa", lambda: Apply(F.scaled_dot_product_attention), (spec(2, 2, 16, 8),) * 3, 0, 2 * (2 * 2 * 16 * 16 * 8)
    ),
    Micro(
        "multihead_attention",
        lambda: nn.MultiheadAttention(16, 2, batch_first=True),
        (spec(1, 8, 16),) * 3,
        4 * 16 * 16 + 4 * 16,
        4 * 8 * 16 * 16 + 2 * 8 * 8 * 16,
    ),
    Micro(
        "multihead_attention_without_weights",
        lambda: Apply(
            lambda m, x: F.multi_head_attention_forward(
                x, x, x, 16, 2, m.w_in, None, None, None, False, 0.0, m.w_out, None, need_weights=False
            )[0],
            w_in=weight(48, 16),
            w_out=weight(16, 16),
        ),
        (spec(8, 1, 16),),
        4 * 16 * 16,
        4 * 8 * 16 * 16 + 2 * 8 * 8 * 16,
    ),
    Micro(
        "transformer_encoder_layer",
        lambda: nn.TransformerEncoderLayer(16, 2, dim_feedforward=16, batch_first=True),
        (spec(1, 8, 16),),
        (4 * 16 * 16 + 4 * 16) + 2 * (16 * 16 + 16) + 2 * 2 * 16,
        4 * 8 * 16 * 16 + 2 * 8 * 8 * 16 + 2 * 8 * 16 * 16,
    ),
    Micro("shared_called_twice", SharedUnderTwoParents, (spec(2, 8),), 8 * 8, 2 * (2 * 8 * 8)),
    Micro(
        "transposed_convolution_grouped",
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2),
        (spec(1, 4, 4, 4),),
        4 * 3 * 9 + 6,
        (4 * 4 * 4) * 3 * 9,
    ),
    Micro("lstm", lambda: nn.LSTM(4, 8), (spec(5, 2, 4),), 4 * 8 * (4 + 8) + 2 * 4 * 8, 5 * 2 * 4 * 8 * (4 + 8)),
    Micro("layer_norm_only", lambda: nn.LayerNorm(16), (spec(5, 16),), 2 * 16, 0),
    # recurrent layers
    Micro(
        "gru",
        lambda: nn.GRU(4, 8, batch_first=True),
        (spec(2, 5, 4),),
        3 * 8 * (4 + 8) + 2 * 3 * 8,
        2 * 5 * 3 * 8 * (4 + 8),
    ),
    Micro(
        "bidirectional_stacked_lstm",
        lambda: nn.LSTM(4, 8, num_layers=2, bidirectional=True),
        (spec(5, 2, 4),),
        2 * (4 * 8 * (4 + 8) + 64) + 2 * (4 * 8 * (16 + 8) + 64),
        5 * 2 * (2 * 4 * 8 * (4 + 8) + 2 * 4 * 8 * (16 + 8)),
    ),
    Micro(
        "projected_lstm",
        lambda: nn.LSTM(4, 8, proj_size=3),
        (spec(5, 2, 4),),
        4 * 8 * 4 + 4 * 8 * 3 + 3 * 8 + 2 * 4 * 8,
        5 * 2 * (4 * 8 * 4 + 4 * 8 * 3 + 3 * 8),
    ),
    Micro("rnn", lambda: nn.RNN(4, 8), (spec(5, 2, 4),), 8 * 12 + 16, 5 * 2 * 8 * (4 + 8)),
    Micro("unbatched_gru", lambda: nn.GRU(4, 8), (spec(5, 4),), 24 * 12 + 48, 5 * 24 * 12),
    Micro("lstm_cell", lambda: nn.LSTMCell(4, 8), (spec(3, 4),), 32 * 12 + 64, 3 * 32 * 12),
    Micro("gru_cell", lambda: nn.GRUCell(4, 8), (spec(3, 4),), 24 * 12 + 48, 3 * 24 * 12),
    # convolutions
    Micro(
        "dilated",
        lambda: nn.Conv2d(3, 8, 3, dilation=2, bias=False),
        (spec(1, 3, 10, 10),),
        8 * 3 * 9,
        (8 * 6 * 6) * 3 * 9,
    ),
    Micro(
        "depthwise",
        lambda: nn.Conv2d(8, 8, 3, groups=8, padding=1),
        (spec(2, 8, 5, 5),),
        8 * 9 + 8,
        (2 * 8 * 5 * 5) * 9,
    ),
    Micro(
        "conv1d_strided", lambda: nn.Conv1d(4, 6, 5, stride=2), (spec(2, 4, 21),), 6 * 4 * 5 + 6, (2 * 6 * 9) * 4 * 5
    ),
    Micro(
        "conv1d_same",
        lambda: nn.Conv1d(4, 6, 5, padding="same"),
        (spec(2, 4, 21),),
        6 * 4 * 5 + 6,
        (2 * 6 * 21) * 4 * 5,
    ),
    Micro(
        "conv2d_reflected",
        lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"),
        (spec(1, 2, 6, 6),),
        4 * 2 * 9 + 4,
        (4 * 6 * 6) * 2 * 9,
    ),
    Micro("conv3d", lambda: nn.Conv3d(2, 4, (1, 3, 3)), (spec(1, 2, 4, 6, 6),), 4 * 2 * 9 + 4, (4 * 4 * 4 * 4) * 2 * 9),
    Micro(
        "transposed_1d",
        lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1),
        (spec(2, 4, 7),),
        4 * 6 * 3 + 6,
        (2 * 4 * 7) * 6 * 3,
    ),
    Micro(
        "transposed_3d",
        lambda: nn.ConvTranspose3d(2, 3, 2, bias=False),
        (spec(1, 2, 3, 3, 3),),
        2 * 3 * 8,
        (2 * 27) * 3 * 8,
    ),
    Micro(
        "unbatched_convolution",
        lambda: nn.Conv2d(3, 8, 3, bias=False),
        (spec(3, 10, 10),),
        8 * 3 * 9,
        (8 * 8 * 8) * 3 * 9,
    ),
    # matrix products
    Micro("baddbmm", lambda: Apply(torch.baddbmm), (spec(3, 4, 6), spec(3, 4, 5), spec(3, 5, 6)), 0, 3 * 4 * 5 * 6),
    Micro("addbmm", lambda: Apply(torch.addbmm), (spec(4, 6), spec(3, 4, 5), spec(3, 5, 6)), 0, 3 * 4 * 5 * 6),
    Micro("addmm", lambda: Apply(torch.addmm), (spec(4, 6), spec(4, 5), spec(5, 6)), 0, 4 * 5 * 6),
    Micro("mv", lambda: Apply(torch.mv), (spec(7, 9), spec(9)), 0, 7 * 9),
    Micro("dot", lambda: Apply(torch.dot), (spec(9), spec(9)), 0, 9),
    Micro("outer", lambda: Apply(torch.outer), (spec(9), spec(7)), 0, 0),
    Micro(
        "einsum_three_operands",
        lambda: Apply(einsum("ij,jk,kl->il")),
        (spec(50, 30), spec(30, 40), spec(40, 2)),
        0,
        50 * 30 * 40 + 50 * 40 * 2,
    ),
    Micro("einsum_elementwise", lambda: Apply(einsum("ij,ij->ij")), (spec(5, 6),) * 2, 0, 0),
    Micro(
        "einsum_ellipsis",
        lambda: Apply(einsum("...ij,...jk->...ik")),
        (spec(2, 3, 4, 5), spec(2, 3, 5, 6)),
        0,
        2 * 3 * 4 * 5 * 6,
    ),
    Micro(
        "tensordot",
        lambda: Apply(lambda a, b: torch.tensordot(a, b, dims=([1, 0], [0, 1]))),
        (spec(3, 4, 5), spec(4, 3, 6)),
        0,
        (3 * 4) * 5 * 6,
    ),
    Micro("broadcast_matmul", lambda: Apply(torch.matmul), (spec(2, 1, 4, 5), spec(3, 5, 6)), 0, 2 * 3 * 4 * 5 * 6),
    Micro("matrix_vector", lambda: Apply(torch.matmul), (spec(3, 4, 5), spec(5)), 0, 3 * 4 * 5),
    Micro(
        "multi_dot",
        lambda: Apply(lambda a, b, c: torch.linalg.multi_dot((a, b, c))),
        (spec(10, 2), spec(2, 10), spec(10, 3)),
        0,
        2 * 10 * 3 + 10 * 2 * 3,  # the cheaper order, which the function picks itself
    ),
    Micro("bilinear", lambda: nn.Bilinear(3, 4, 5), (spec(2, 3), spec(2, 4)), 5 * 3 * 4 + 5, 2 * 5 * 3 * 4 + 2 * 5 * 4),
    # attention
    Micro(
        "grouped_query_attention",
        lambda: Apply(grouped_queries),
        (spec(1, 8, 16, 4), spec(1, 2, 16, 4), spec(1, 2, 16, 4)),
        0,
        2 * 8 * 16 * 16 * 4,
    ),
    Micro("causal_attention", lambda: Apply(causal), (spec(1, 2, 16, 4),) * 3, 0, 2 * 2 * 16 * 16 * 4),
    Micro(
        "cross_attention",
        lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=10, batch_first=True),
        (spec(1, 5, 8), spec(1, 7, 6), spec(1, 7, 10)),
        8 * 8 + 8 * 6 + 8 * 10 + 3 * 8 + 8 * 8 + 8,
        5 * 8 * 8 + 7 * 6 * 8 + 7 * 10 * 8 + 2 * 5 * 7 * 8 + 5 * 8 * 8,
    ),
    Micro(
        "attention_values_wider",
        lambda: Apply(F.scaled_dot_product_attention),
        (spec(2, 5, 8), spec(2, 7, 8), spec(2, 7, 12)),
        0,
        2 * 5 * 7 * (8 + 12),
    ),
    Micro(
        "decoder_layer",
        decoder_layer,
        (spec(1, 5, 8), spec(1, 7, 8)),
        2 * ATTENTION_PARAMS + FEED_FORWARD_PARAMS + 3 * 2 * 8,
        (4 * 5 * 8 * 8 + 2 * 5 * 5 * 8) + (2 * 5 * 8 * 8 + 2 * 7 * 8 * 8 + 2 * 5 * 7 * 8) + 2 * 5 * 8 * 32,
    ),
    # how weights are held, and how modules are called
    Micro("tied", TiedWeights, (spec(1, 6, dtype="int64"),), 50 * 16, 6 * 16 * 50),
    Micro("viewed", ViewedWeights, (spec(3, 4),), 6 * 4, 3 * 4 * 4 + 3 * 4 * 4),
    Micro("never_called", NeverCalled, (spec(3, 4),), 4 * 4 + 4 + 4 * 100 + 100, 3 * 4 * 4),
    Micro(
        "by_name_with_dict_outputs",
        DictOutputs,
        (),
        (4 * 8 + 8) + (6 * 8 + 8),
        2 * 4 * 8 + 3 * 6 * 8,
        kwargs={"a": spec(2, 4), "b": spec(3, 6)},
    ),
    Micro("half", lambda: nn.Linear(16, 4).half(), (spec(3, 16, dtype="float16"),), 68, 3 * 16 * 4),
    Micro("empty_batch", lambda: nn.Linear(16, 4), (spec(0, 16),), 68, 0),
    Micro("embedding", lambda: nn.Embedding(100, 8), (spec(2, 3, dtype="int64"),), 800, 0),
    Micro("embedding_bag", lambda: nn.EmbeddingBag(100, 8), (spec(2, 3, dtype="int64"),), 800, 0),
    Micro("batch_norm", lambda: nn.BatchNorm2d(6), (spec(2, 6, 3, 3),), 12, 0),
    Micro(
        "convolution_norm_relu",
        lambda: nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
        (spec(1, 3, 5, 5),),
        12 + 8,
        4 * 25 * 3,
    ),
    Micro(
        "weight_normed",
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 6)),
        (spec(2, 4),),
        6 * 4 + 6 + 6,
        2 * 4 * 6,
    ),
)
