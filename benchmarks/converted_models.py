"""Keras models that TensorFlow and tf2onnx convert: MACs and parameters of the file, compared with the source.

MACs of the source are closed forms by Keras layer, parameters ``model.count_params()``. Converters fold and add: by how
much a layer's numbers change is in ``FOLDED``, with the reason. Weights are drawn, so that no two are stored as one.
Prints a Markdown table, and fails where a number differs from that. Needs ``tensorflow-cpu`` and ``tf2onnx``, and the
extras tflite and onnx; no torch is needed. Names of models as arguments convert these alone.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
import tf2onnx
from keras import layers as L

from pytest_modelbudget import measure

Shape = tuple[int, ...]


class Call(NamedTuple):
    """One call of a layer: the shapes that it reads and writes, the layer that made what it reads, how often it ran."""

    layer: Any
    x: Shape
    out: Shape
    source: Any
    earlier: int


# Counts of the source.


def _elements(kernel: Any) -> int:
    return prod(kernel.shape)


MACS: Mapping[str, Callable[[Call], int]] = {
    # Each output sums the products of one filter; each position meets a matrix, or the filters of its input, once.
    **dict.fromkeys(
        ("Conv1D", "Conv2D", "Conv3D"), lambda call: prod(call.out) * _elements(call.layer.kernel) // call.out[-1]
    ),
    **dict.fromkeys(("Dense", "Conv2DTranspose"), lambda call: prod(call.x[:-1]) * _elements(call.layer.kernel)),
    "EinsumDense": lambda call: prod(call.x[:2]) * _elements(call.layer.kernel),
    "DepthwiseConv2D": lambda call: prod(call.out[:-1]) * _elements(call.layer.kernel),
    "SeparableConv2D": lambda call: prod(call.out[:-1])
    * sum(map(_elements, (call.layer.depthwise_kernel, call.layer.pointwise_kernel))),
    **dict.fromkeys(
        ("SimpleRNN", "LSTM", "GRU"),
        lambda call: prod(call.x[:2]) * sum(map(_elements, (call.layer.cell.kernel, call.layer.cell.recurrent_kernel))),
    ),
    # Queries by keys, and the shares by values, of a sequence with itself; projections are layers within.
    "MultiHeadAttention": lambda call: 2 * call.x[1] ** 2 * call.layer.num_heads * call.layer.key_dim,
}  # fmt: skip


# What converters change.


def _batch_norm(call: Call, convolutions: str) -> int:
    """Of its vectors a bias stays where it is folded, which the layer before may have, else a factor and a shift."""
    is_folded = type(call.source).__name__ in convolutions.split()
    left = call.out[-1] * (not call.source.use_bias if is_folded else 2)
    return left - call.layer.count_params()


Change = tuple[str, str, Callable[[Call], int], str]  # layer, metric, by how much, why
NORMS = "batch norms are folded into convolutions, or a factor and a shift"
FIRST_STEP: tuple[Change, ...] = tuple(
    (name, "macs", lambda call: -_elements(call.layer.cell.recurrent_kernel), "the first state is zeros")
    for name in ("SimpleRNN", "LSTM", "GRU")
)
TFLITE: tuple[Change, ...] = (
    *FIRST_STEP,
    ("BatchNormalization", "params", lambda call: _batch_norm(call, "Conv2D DepthwiseConv2D SeparableConv2D"), NORMS),
    ("SeparableConv2D", "params", lambda call: call.layer.depthwise_kernel.shape[2], "each filter has a bias"),
    ("GRU", "params", lambda call: 3 * call.layer.units, "the first step has a bias of its own"),
)
SCALED = ("Dense", "params", lambda call: call.layer.units * bool(call.earlier), "a bias has the scale of its input")
FOLDED: Mapping[str, tuple[Change, ...]] = {
    "tflite": TFLITE,
    "int8": (*TFLITE, SCALED),
    "onnx": (
        *FIRST_STEP,
        ("BatchNormalization", "params", lambda call: _batch_norm(call, "Conv2D SeparableConv2D"), NORMS),
        ("LSTM", "params", lambda call: call.layer.units, "the first state is stored"),
        ("GRU", "params", lambda call: 4 * call.layer.units, "the first step has a bias of its own, and its state"),
    ),
}
LEFT_OUT = {  # a way and models that it cannot convert, or not comparably
    ("onnx", "conv, groups"): "Keras compiles it, and tf2onnx leaves the call",
    ("int8", "lstm"): "a bias for each step", ("int8", "gru"): "a bias for each step",
}  # fmt: skip


@contextmanager
def recorded() -> Iterator[list[Call]]:
    """The calls of layers meanwhile, those within other layers too."""
    calls, call_layer = list[Call](), L.Layer.__call__
    made: dict[int, tuple[Any, Any]] = {}  # by the id of a tensor, which stays alive in it: the layer

    def call(layer: Any, x: Any, *args: Any, **settings: Any) -> Any:
        out = call_layer(layer, x, *args, **settings)
        if hasattr(x, "shape") and hasattr(out, "shape"):
            source, _ = made.get(id(x), (None, None))
            earlier = sum(each.layer is layer for each in calls)
            calls.append(Call(layer, tuple(x.shape), tuple(out.shape), source, earlier))
            made[id(out)] = (layer, out)
        return out

    L.Layer.__call__ = call
    try:
        yield calls
    finally:
        L.Layer.__call__ = call_layer


# Models.


def _net(shape: Shape, *stack: Any, dtype: str = "float32") -> Any:
    return keras.Sequential([keras.Input(shape, batch_size=1, dtype=dtype), *stack])


def _residual() -> Any:
    x = keras.Input((16, 16, 8), batch_size=1)
    y = L.ReLU()(L.BatchNormalization()(L.Conv2D(8, 3, padding="same", use_bias=False)(x)))
    return keras.Model(x, L.Dense(5)(L.GlobalAveragePooling2D()(L.Add()([x, y]))))


def _u_net() -> Any:
    x = keras.Input((32, 32, 3), batch_size=1)
    left = L.Conv2D(8, 3, padding="same", activation="relu")(x)
    deep = L.Conv2D(16, 3, padding="same", activation="relu")(L.MaxPooling2D()(left))
    up = L.Conv2DTranspose(8, 2, strides=2)(deep)
    return keras.Model(x, L.Conv2D(2, 1)(L.Concatenate()([left, up])))


def _shared() -> Any:
    left, right, layer = keras.Input((24,), batch_size=1), keras.Input((24,), batch_size=1), L.Dense(8)
    return keras.Model([left, right], L.Dense(2)(L.Concatenate()([layer(left), layer(right)])))


def _encoder() -> Any:
    x = keras.Input((12, 16), batch_size=1)
    y = L.LayerNormalization()(L.Add()([x, L.MultiHeadAttention(2, 8)(x, x)]))
    z = L.Dense(16)(L.Dense(32, "relu")(y))
    return keras.Model(x, L.LayerNormalization()(L.Add()([y, z])))


def _ds_cnn() -> Any:
    """The keyword spotter of MLPerf Tiny."""
    blocks: list[Any] = [L.Conv2D(64, (10, 4), strides=2, padding="same", use_bias=False), L.BatchNormalization()]
    for _ in range(4):
        blocks += [L.DepthwiseConv2D(3, padding="same", use_bias=False), L.BatchNormalization(), L.ReLU()]
        blocks += [L.Conv2D(64, 1, use_bias=False), L.BatchNormalization(), L.ReLU()]
    return _net((49, 10, 1), *blocks, L.GlobalAveragePooling2D(), L.Dense(12, "softmax"))


OWN: Mapping[str, Callable[[], Any]] = {
    "mlp": lambda: _net((64,), L.Dense(32, "relu"), L.Dense(16, "relu"), L.Dense(4)),
    "dense, no bias": lambda: _net((7, 24), L.Dense(10, use_bias=False)),
    "autoencoder": lambda: _net((640,), *(L.Dense(n, "relu") for n in (128, 128, 8, 128, 128)), L.Dense(640)),
    "conv, strides": lambda: _net((33, 33, 3), L.Conv2D(8, 5, strides=2), L.Conv2D(6, 3, padding="same", strides=3)),
    "conv, dilated": lambda: _net((24, 24, 3), L.Conv2D(8, 3, dilation_rate=2, padding="same")),
    "conv, groups": lambda: _net((16, 16, 8), L.Conv2D(12, 3, groups=4)),
    "conv 1d": lambda: _net((64, 6), L.Conv1D(8, 5, activation="relu"), L.Flatten(), L.Dense(3)),
    "conv 3d": lambda: _net((8, 12, 12, 2), L.Conv3D(4, 3), L.GlobalAveragePooling3D(), L.Dense(3)),
    "depthwise": lambda: _net((16, 16, 6), L.DepthwiseConv2D(3, depth_multiplier=2, strides=2)),
    "separable": lambda: _net((16, 16, 6), L.SeparableConv2D(10, 3, activation="relu"), L.Flatten(), L.Dense(2)),
    "transposed": lambda: _net((8, 8, 6), L.Conv2DTranspose(4, 3, strides=2, padding="same")),
    "upsampling": lambda: _net((8, 8, 6), L.UpSampling2D(interpolation="bilinear"), L.Conv2D(4, 3, padding="same")),
    "lstm": lambda: _net((10, 6), L.LSTM(8, unroll=True), L.Dense(3)),
    "gru": lambda: _net((10, 6), L.GRU(8, unroll=True), L.Dense(3)),
    "rnn": lambda: _net((10, 6), L.SimpleRNN(8, unroll=True), L.Dense(3)),
    "embedding": lambda: _net((12,), L.Embedding(50, 8), L.GlobalAveragePooling1D(), L.Dense(3), dtype="int32"),
    "prelu": lambda: _net((16, 16, 3), L.Conv2D(6, 3), L.PReLU(shared_axes=[1, 2]), L.Flatten(), L.Dense(2)),
    "conv, pointwise": lambda: _net((14, 14, 16), L.Conv2D(32, 1, activation="relu6"), L.Conv2D(8, 1)),
    "conv 1d, dilated": lambda: _net((64, 6), L.Conv1D(8, 3, dilation_rate=4, padding="same"), L.GlobalMaxPooling1D()),
    "depthwise, 5x5": lambda: _net((20, 20, 8), L.DepthwiseConv2D(5, padding="same", activation="relu")),
    "separable, strides": lambda: _net((20, 20, 4), L.SeparableConv2D(6, 5, strides=2, padding="same")),
    "layer norm": lambda: _net((9, 24), L.LayerNormalization(), L.Dense(6, "tanh")),
    "pooling": lambda: _net((16, 16, 4), L.Conv2D(6, 3), L.AveragePooling2D(2), L.MaxPooling2D(2), L.Flatten()),
    "batch norm": lambda: _net((16, 16, 8), L.BatchNormalization(), L.ReLU(), L.Conv2D(8, 3, padding="same")),
    "residual": _residual, "u-net": _u_net, "shared layer": _shared, "encoder": _encoder, "ds-cnn": _ds_cnn,
}  # fmt: skip
SIZES = {"MobileNetV2": 224}  # of others 96
APPLICATIONS = ("MobileNet", "MobileNetV2", "ResNet50V2")


def model_of(name: str) -> Any:
    """A model with drawn weights, positive where they are variances."""
    keras.utils.set_random_seed(0)
    if name in OWN:
        model = OWN[name]()
    else:
        size = SIZES.get(name, 96)
        image = keras.Input((size, size, 3), batch_size=1)
        model = getattr(keras.applications, name)(weights=None, input_tensor=image)
    draw = np.random.default_rng(0)
    for weight in model.weights:
        values = draw.normal(size=weight.shape) / np.sqrt(max(prod(weight.shape[:-1]), 1))
        weight.assign(np.abs(values) + 0.5 if weight.path.endswith("variance") else values)
    return model


# Conversions.


def samples(model: Any) -> Iterator[list[Any]]:
    """Two drawn inputs, which int8 takes its scales from."""
    draw = np.random.default_rng(0)
    for _ in range(2):
        yield [(10 * draw.random(x.shape)).astype(x.dtype) for x in model.inputs]


def convert(model: Any, way: str, path: Path) -> list[Call]:
    """Write a model as a file; the calls of its layers."""
    function = tf.function(lambda *x: model(list(x) if len(x) > 1 else x[0], training=False))
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in model.inputs]
    with recorded() as calls:
        function.get_concrete_function(*specs)
    if way == "onnx":
        tf2onnx.convert.from_function(function, input_signature=specs, output_path=str(path))
        return calls
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    if way == "int8":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: samples(model)
    with redirect_stdout(io.StringIO()):  # which the converter fills
        path.write_bytes(converter.convert())
    return calls


def row(name: str, model: Any, way: str, folder: Path) -> tuple[str, bool]:
    """A line of the table, and whether the numbers are those that they should be."""
    path = folder / f"net.{'onnx' if way == 'onnx' else 'tflite'}"
    calls = convert(model, way, path)
    expected = {"macs": 0, "params": model.count_params()}
    expected["macs"] = sum(MACS[kind](call) for call in calls if (kind := type(call.layer).__name__) in MACS)
    source, why = dict(expected), list[str]()
    for call in calls:
        for kind, metric, change, reason in FOLDED[way]:
            if kind == type(call.layer).__name__ and (by := change(call)):
                expected[metric] += by
                why.append(reason)
    numbers = measure(path)
    is_equal = all(numbers[key].complete and numbers[key].value == count for key, count in expected.items())
    cells = [f"{numbers[key].value:,} of {source[key]:,}" for key in source]
    words = "; ".join(dict.fromkeys(why)) if is_equal else f"**not {expected['macs']:,} and {expected['params']:,}**"
    return f"| {name} | {way} | {' | '.join(cells)} | {words} |", is_equal


def main() -> int:
    """Print the table; 1 where a number differs."""
    different = files = 0
    print("| model | file | MACs, of those of its source | parameters | what the converter changed |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or (*OWN, *APPLICATIONS):
            model = model_of(name)
            ways = ("tflite", "onnx") if name in APPLICATIONS and name != "MobileNetV2" else ("tflite", "int8", "onnx")
            for way in (way for way in ways if (way, name) not in LEFT_OUT):
                line, is_equal = row(name, model, way, Path(folder))
                print(line, flush=True)
                different, files = different + (not is_equal), files + 1
    print(f"\n{files - different} of {files} files agree")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
