"""Every transform, by its key in a budget file: the one list to add a transform to."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from pytest_modelbudget.equivalence.claim import Kind
from pytest_modelbudget.errors import ExtensionError
from pytest_modelbudget.transforms.transform import ANY, Setting, SettingForm, Transform

HERE = "pytest_modelbudget.transforms"
LAYERS = Setting("layers", SettingForm.GLOBS, "globs on module paths; all layers", default=("*",))
EDGE = Setting(
    "edge", SettingForm.WORD, "the last tile is smaller (ragged), or filled up with zeros (pad)", default="ragged",
    words=("ragged", "pad"),
)  # fmt: skip
BITS = Setting("bits", SettingForm.INTEGER, "width of an integer", default=8, least=2, most=32)
SYMMETRIC = Setting("symmetric", SettingForm.FLAG, "zero points of 0", default=True)
FRAC = Setting("frac", SettingForm.INTEGER, "bits behind the point, of fixed point", least=0, most=32)


def grid(key: str, about: str, *more: Setting, bits: int = 8, default: object = None) -> Setting:
    """The integers of one kind of tensor, or none: keep."""
    parts = (replace(BITS, default=bits), FRAC, *more)
    return Setting(key, SettingForm.PARTS, about, default=default, words=("keep",), parts=parts)


CALIBRATE = Setting(
    "calibrate", SettingForm.INPUTS, "inputs that say how large values are: drawn, or as of a claim", default="drawn",
    words=("drawn",),
)  # fmt: skip
RUN = (
    Setting("command", SettingForm.TEXT, "what is run: python run.py {model} {inputs} {outputs}", required=True),
    Setting("timeout", SettingForm.INTEGER, "the most seconds of one call", default=60, least=1, most=86_400),
    *(Setting(key, SettingForm.VALUES, f"names of {key} there", default={}) for key in ("inputs", "outputs", "layers")),
)
RESULTS = replace(SYMMETRIC, default=False)
GRIDS_OF_A_LAYER = (
    grid("weights", "integers of what is multiplied: {bits: 8}", SYMMETRIC),
    grid("activations", "integers of results: {bits: 8}", RESULTS),
    grid("bias", "integers of what is added to products: {bits: 32}", bits=32),
)
GRIDS = (
    replace(GRIDS_OF_A_LAYER[0], default={"bits": 8}, also=("bits",)),
    grid("activations", "integers of inputs and results: {bits: 8, calibrate: data.npz}", RESULTS, CALIBRATE),
    GRIDS_OF_A_LAYER[2],
)


def engines(**modules: str) -> dict[str, str]:
    """The module for the models of each engine."""
    return {engine: f"{HERE}.{module}" for engine, module in modules.items()}


MODULES = ("torch", "onnx")  # formats whose layers can be changed: modules, and ONNX graphs


TRANSFORMS: tuple[Transform, ...] = (
    Transform(
        "tile_linear",
        "splits every linear operation into tile products",
        engines=engines(torch="tile.linear_on_torch", onnx="tile.linear_on_onnx"),
        settings=(
            Setting("tile", SettingForm.TILE, "64, or [m, k, n]", required=True),
            EDGE,
            Setting(
                "form",
                SettingForm.WORD,
                "ONNX: a product for each tile (unrolled), or one over all tiles (batched)",
                default="unrolled",
                words=("unrolled", "batched"),
            ),
            LAYERS,
        ),
    ),
    Transform(
        "tile_conv",
        "splits every convolution into partial ones over tiles of channels",
        engines=engines(torch="tile.conv_on_torch", onnx="tile.conv_on_onnx"),
        settings=(
            Setting(
                "tile",
                SettingForm.TILE,
                "64, or [k, n]: input and output channels, of a group",
                required=True,
                axes=("k", "n"),
            ),
            EDGE,
            LAYERS,
        ),
    ),
    Transform(
        "tile",
        "splits every product of two matrices into tile products: linears, convolutions, attention, einsum, recurrent",
        engines=engines(torch="tile.products_on_torch", onnx="tile.linear_on_onnx"),
        settings=(
            Setting(
                "products", SettingForm.TILE, "64 (for 64x64x64), or [m, k, n]", required=True, also=("tile", "size")
            ),
            EDGE,
            LAYERS,
        ),
    ),
    Transform(
        "fold_batchnorm",
        "makes every batch norm a part of the layer before it",
        engines=engines(torch="fold_batchnorm_on_torch", onnx="fold_batchnorm_on_onnx"),
        formats=MODULES,
    ),
    Transform(
        "quantize",
        "makes weights, activations and biases integers on a grid, scaled or of fixed point",
        engines=engines(torch="quantize.on_torch", onnx="quantize.on_onnx"),
        settings=(
            *GRIDS,
            Setting(
                "form",
                SettingForm.WORD,
                "scales from the values (scaled), or frac bits behind the point (fixed)",
                default="scaled",
                words=("scaled", "fixed"),
            ),
            Setting(
                "granularity",
                SettingForm.PARTS,
                "a scale for each output channel, for a tensor, or {group: 32}: for so many weights of a channel",
                default="channel",
                words=("channel", "tensor"),
                parts=(
                    Setting("group", SettingForm.INTEGER, "weights of a scale", required=True, least=2, most=2**16),
                ),
            ),
            Setting(
                "layers",
                SettingForm.BY_LAYER,
                "other grids for layers, by globs on module paths, or keep; the last that matches counts",
                default={},
                words=("keep",),
                parts=GRIDS_OF_A_LAYER,
            ),
        ),
        claims=Kind.LOSSY,
    ),
    Transform(
        "export_onnx",
        "exports the model, and runs the ONNX graph in ONNX Runtime against torch",
        engines=engines(torch="export_onnx"),
        formats=("torch",),
        gives="onnx",
        settings=(Setting("opset", SettingForm.INTEGER, "operator set; the exporter's own"),),
    ),
    Transform(
        "apply",
        "your own transform: package.module:callable, from module to module or from path to path",
        engines=engines(torch="on_torch", onnx="on_onnx"),
        whole=Setting("apply", SettingForm.TARGET, "package.module:callable", required=True),
    ),
    Transform(
        "compare",
        "a second model that must agree: {torch: package.module:callable}, {onnx: path}",
        engines={ANY: f"{HERE}.compare"},
        whole=Setting("compare", SettingForm.SOURCE, "a second model", required=True),
    ),
    Transform(
        "runner",
        "no change: a command that runs what was made of the model, and writes its outputs",
        engines={ANY: "pytest_modelbudget.runners.command"},
        whole=Setting("runner", SettingForm.PARTS, "run.py {model} {inputs} {outputs}", required=True, parts=RUN),
    ),
    Transform(
        "golden",
        "no change: outputs that --model-budget-update=create wrote to a file, and that it must still give",
        engines={ANY: "pytest_modelbudget.runners.golden"},
        whole=Setting("golden", SettingForm.FILE, "net.golden.npz", required=True),
    ),
)


def transform_table(extensions: Iterable[Transform] = ()) -> Mapping[str, Transform]:
    """Transforms by key, the project's own first; raises ExtensionError for a key that is taken."""
    table: dict[str, Transform] = {}
    for transform in (*TRANSFORMS, *extensions):
        if table.setdefault(transform.key, transform) is not transform:
            raise ExtensionError(f"the transform '{transform.key}' is declared twice")
    return table
