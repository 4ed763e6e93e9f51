"""The budget reader: what a file says, and how it is told what it must say differently."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from pytest_modelbudget.budget.budget import Budget, Level, Limit, OpsLimit, Place, Subject
from pytest_modelbudget.budget.read_budget import is_budget, read_budget
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.registry import tables
from tests.builders.texts import VISION, Problems, Read, inputs, limits, model

IMAGE = TensorSpec("float32", (1, 3, 224, 224))


def only(budget: Budget) -> Subject[ModelSource]:
    (found,) = budget.models
    return found


def test_limits(read: Read) -> None:
    """A limit is its metric, its exact bound, its level, and the place of its key."""
    resnet = read(VISION).models[0]
    file = "budgets/b.yaml"
    assert resnet.name == "resnet18"
    assert resnet.place == Place(file, 5, 3)
    assert resnet.limits == (
        Limit("params", Place(file, 9, 7), max=117 * 10**5, written="11.7 M"),
        Limit("macs", Place(file, 10, 7), max=182 * 10**7, written="1.82 GMAC"),
        Limit("bandwidth", Place(file, 11, 7), 118 * 10**6, level=Level.WARN, written="118 MB"),
        Limit("arithmetic_intensity", Place(file, 12, 7), min=Fraction(61, 2), written="30.5 FLOP/B"),
        OpsLimit(Place(file, 13, 7), deny=("lstm",), max={"convolution": 20}),
        Limit("params", Place(file, 15, 18), 84 * 10**5, scope="layer4.*", written="8.4 M"),
    )


def test_sources(read: Read) -> None:
    """Defaults reach every model but those whose file brings its own inputs."""
    budgets = read(VISION).models
    assert [(budget.name, budget.variant) for budget in budgets] == [
        ("resnet18", None),
        ("resnet18", "batch8"),
        ("scripted", None),
        ("exported", None),
        ("exported", "batch8"),
    ]
    base = budgets[0].made.base
    assert base.name == "budgets"
    assert [budget.made for budget in budgets] == [
        ModelSource(
            "torch", "torchvision.models:resnet18", InputSpecs((IMAGE,)), kwargs={"num_classes": 1000}, base=base
        ),
        ModelSource(
            "torch",
            "torchvision.models:resnet18",
            InputSpecs((TensorSpec("float32", (8, 3, 224, 224)),)),
            kwargs={"num_classes": 1000},
            base=base,
        ),
        ModelSource("torchscript", "../models/alexnet.pt", InputSpecs((IMAGE,)), base=base),
        ModelSource("exported", "../models/encoder.pt2", dims={"batch": 1, "height": 64}, base=base),
        ModelSource("exported", "../models/encoder.pt2", dims={"batch": 8, "height": 64}, base=base),
    ]


def test_s10_qdq_stands_beside_the_source(read: Read) -> None:
    """A model is read as written where it says so; a variant takes that over, or says otherwise."""
    text = """model_budget: 1
models:
  net:
    onnx: net.onnx
    qdq: as_written
    limits: {macs: 1}
    variants:
      same: {limits: {macs: 1}}
      meant: {qdq: grouped, limits: {macs: 1}}
  other: {onnx: net.onnx, limits: {macs: 1}}
"""
    assert [budget.made.qdq for budget in read(text).models] == ["as_written", "as_written", "", ""]


def test_a_training_step_is_measured_where_a_limit_names_it(read: Read) -> None:
    """Or where ``training:`` does; with adam unless another one is written, in variants and below transforms, too."""
    text = """model_budget: 1
defaults: {inputs: float32 1x3}
models:
  plain: {torch: "a:b", limits: {macs: 1}}
  named: {torch: "a:b", limits: {training_macs: 1}}
  of_a_part: {torch: "a:b", scopes: {fc: {training_memory: 1}}}
  asked: {torch: "a:b", training: {optimizer: sgd}, limits: {macs: 1}}
  varied:
    torch: a:b
    training: {optimizer: momentum}
    limits: {macs: 1}
    variants:
      same: {limits: {macs: 1}}
      other: {training: {optimizer: adamw}, limits: {macs: 1}}
  changed: {torch: "a:b", transforms: {folded: {fold_batchnorm: {}, limits: {training_macs: 1}}}}
"""
    assert [budget.made.training for budget in read(text).models] == [
        "", "adam", "adam", "sgd", "momentum", "momentum", "adamw", "adam",
    ]  # fmt: skip


def test_variant_has_its_own_limits(read: Read) -> None:
    """A variant inherits its model's source and none of its limits."""
    variant = read(VISION).models[1]
    assert [limit.metric for limit in variant.limits] == ["peak_activation"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("float32 1x3x224x224", InputSpecs((IMAGE,))),
        ("float32[1, 3, 224, 224]", InputSpecs((IMAGE,))),
        ("1x3x224x224", InputSpecs((IMAGE,))),
        ("1,3,224,224", InputSpecs((IMAGE,))),
        ("(1, 3, 224, 224)", InputSpecs((IMAGE,))),
        ("float32(1, 3, 224, 224)", InputSpecs((IMAGE,))),
        ("{x: 1x3x224x224}", InputSpecs(named={"x": IMAGE})),
        ("bf16 1x3", InputSpecs((TensorSpec("bfloat16", (1, 3)),))),
        ("{dtype: half, shape: [3]}", InputSpecs((TensorSpec("float16", (3,)),))),
        ("float32 ()", InputSpecs((TensorSpec("float32", ()),))),
        ("float32[]", InputSpecs((TensorSpec("float32", ()),))),
        ("int64 0x5", InputSpecs((TensorSpec("int64", (0, 5)),))),
        ("[]", InputSpecs()),
        ("[float32 1x2, 'int64[3]']", InputSpecs((TensorSpec("float32", (1, 2)),
                                                  TensorSpec("int64", (3,))))),
        ("[[float32 3x8x8, float32 3x6x6]]",
         InputSpecs(((TensorSpec("float32", (3, 8, 8)), TensorSpec("float32", (3, 6, 6))),))),
        ("{ids: int64 1x128}", InputSpecs(named={"ids": TensorSpec("int64", (1, 128))})),
        ("{dtype: int64, shape: [1, 128], low: 0, high: 30522}",
         InputSpecs((TensorSpec("int64", (1, 128), 0, 30522),))),
        ("{dtype: int64, shape: 1x128}", InputSpecs((TensorSpec("int64", (1, 128)),))),
        ("{ids: {dtype: int64, shape: [2], high: 9}}",
         InputSpecs(named={"ids": TensorSpec("int64", (2,), None, 9)})),
    ],
)  # fmt: skip
def test_inputs(read: Read, spec: str, expected: InputSpecs) -> None:
    """Inputs are one spec, a list (positional), or a mapping (by name)."""
    assert only(read(inputs(spec))).made.inputs == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("010", 10),
        ("0x10", 16),
        ("0o10", 8),
        ("-7", -7),
        ("1e6", 1e6),
        ("1.5", 1.5),
        (".inf", float("inf")),
        ("true", True),
        ("on", "on"),
        ("yes", "yes"),
        ("null", None),
        ("~", None),
        ("2024-01-01", "2024-01-01"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("'3'", "3"),
        ("[1, a, {b: false}]", [1, "a", {"b": False}]),
    ],
)
def test_arguments(read: Read, text: str, value: object) -> None:
    """Arguments are typed as YAML 1.2 types them, and quoted ones are always text."""
    text = model(f"    inputs: float32 1x3\n    args: [{text}]\n    kwargs: {{x: {text}}}")
    source = only(read(text)).made
    assert source.args == (value,)
    assert source.kwargs == {"x": value}
    assert type(source.args[0]) is type(value)


def test_allow_unmeasured_of_a_model(read: Read) -> None:
    """What a model allows is allowed in each of its limits, beside what the limit allows."""
    text = model(
        "    inputs: float32 1x3\n    allow_unmeasured: [my::op]",
        limits="{params: 1 k, macs: {max: 2 k, allow_unmeasured: [aten::foo]}}",
    )
    params, macs = only(read(text)).limits
    assert params.allow_unmeasured == ("my::op",)
    assert macs.allow_unmeasured == ("aten::foo", "my::op")


def test_model_with_variants_only(read: Read) -> None:
    """A model may leave all limits to its variants, and is then not judged itself."""
    text = model("    variants: {a: {inputs: float32 1x3, limits: {params: 1 k}}}", limits="")
    assert only(read(text)).variant == "a"


def test_minimum_is_rounded_up(read: Read) -> None:
    """min 6.2 MiB (6,501,171.2 B) asks for 6,501,172 whole bytes, max allows 6,501,171."""
    (limit,) = only(read(limits("{bandwidth: {min: 0.1 KiB, max: 6.2 MiB}}"))).limits
    assert isinstance(limit, Limit)
    assert (limit.min, limit.max) == (103, 6_501_171)


def test_dtype_default(read: Read) -> None:
    """A model's own dtype comes before the defaults', which leave files alone."""
    text = VISION.replace("defaults:", "defaults:\n  dtype: bfloat16")
    text = text.replace("batch8: {inputs", "batch8: {dtype: float16, inputs")
    dtypes = [budget.made.dtype for budget in read(text).models]
    assert dtypes == ["bfloat16", "float16", None, None, None]


def test_byte_order_mark(read: Read) -> None:
    """A byte order mark changes nothing."""
    assert is_budget("\ufeff" + VISION)
    assert read("\ufeff" + VISION) == read(VISION)


def test_outside_root(tmp_path: Path) -> None:
    """A budget outside the project is named by its whole path, and its own folder holds it."""
    path = tmp_path / "b.yaml"
    path.write_text(VISION.replace("../models/", "models/"))
    budget = read_budget(path, tables(), root=tmp_path / "elsewhere")
    assert budget.file == path.as_posix()


def test_no_file(problems: Problems, tmp_path: Path) -> None:
    """A file that cannot be read is a broken budget."""
    with pytest.raises(Exception, match=r"gone\.yaml:1:1: the file cannot be read: No such"):
        read_budget(tmp_path / "gone.yaml", tables(), root=tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "model_budget: 1",
        "model_budget : 1",
        "model_budget:",
        "# comment\n---\nmodel_budget: 1\nmodels: [",
        '"model_budget": 1',
        "{model_budget: 1}",
        "model_budget: 1\r\nmodels:\r\n",
        "a: [\nmodel_budget: 1",
    ],
)
def test_marked(text: str) -> None:
    """A file with the marker key at the start of a line is a budget, broken or not."""
    assert is_budget(text)
    assert is_budget(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: 1",
        "x:\n  model_budget: 1",
        "# model_budget: 1",
        "model_budgets: 1",
        "my_model_budget: 1",
        "- model_budget: 1",
        "model_budget",
        "a: [}\n\t",
        "\x00\ud800",
    ],
)
def test_unmarked(text: str) -> None:
    """Any other YAML, broken or not, is never touched."""
    assert not is_budget(text)
    assert not is_budget(text.encode("utf-8", "surrogatepass"))
    assert not is_budget(text.encode("utf-16", "surrogatepass"))
