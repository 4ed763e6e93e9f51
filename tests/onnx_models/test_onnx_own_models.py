"""onnx's own test models: every node of the standard, and every file in its wheel."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import pytest

from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate.measuring import measure_model
from pytest_modelbudget.metrics.measured_model import MeasuredModel
from pytest_modelbudget.registry import tables
from tests.builders.marks import ALL_MODELS

WHEEL = Path(onnx.__file__).parent
TOGETHER = 1884  # node models of onnx 1.23; a newer onnx has more

# Names of node models whose shapes the data of a run decide, by what decides them.
DATA_DECIDE = {
    "axes are an input": r"reduce_(log_sum|log_sum_exp|l2)_\w+_expanded",
    "a size is an input": r"(affine_grid|center_crop_pad|blackmanwindow|hammingwindow|"
    r"hannwindow|range)_(\w+_)?expanded",
    "strings": r"ai_onnx_ml_label_encoder_(string|tensor)_\w+|regex_full_match_\w+|"
    r"equal_string\w*|string_\w+|strnormalizer_\w+",
    "sequences": r"identity_sequence|if_seq|sequence_\w+|split_to_sequence_\w+",
    "optionals": r"identity_opt|if_opt|optional_\w+",
    "a trip count is an input": r"loop\d+\w*",
    "unique values": r"unique_\w+",
    "which nodes of its trees a row meets": r"ai_onnx_ml_tree_ensemble_\w+",
}
# Those that this version leaves unmeasured although their shapes are known, and why.
LEFT_OUT = {
    "steps of training": r"(adagrad|adam|momentum|nesterov_momentum)\w*",
    "Scan with a batch of its own, before opset 9": r"scan_sum",
}
VIEWS_ONLY = "moves no bytes, so it has no ratio"


def gauged(path: Path) -> MeasuredModel:
    return measure_model(ModelSource("onnx", str(path)), tables(), root=path.parent)


def incomplete(model: MeasuredModel) -> set[str]:
    """Metrics that are not complete, flops and the ratio of a model of views aside."""
    return {
        key
        for key, measurement in model.measurements.items()
        if key != "flops" and any(each.why != VIEWS_ONLY for each in measurement.unmeasured)
    }


@cache
def node_models() -> tuple[tuple[str, onnx.ModelProto], ...]:
    """(name, model) of each of onnx's node tests."""
    from onnx.backend.test.case.node import collect_testcases

    with contextlib.redirect_stdout(io.StringIO()):
        cases = collect_testcases(None)
    return tuple((case.name.removeprefix("test_"), case.model) for case in cases if case.model)


def form_of(proto: onnx.ModelProto) -> tuple[Any, ...]:
    """Operators of a node model, their attributes, and how many inputs it has."""
    nodes = proto.graph.node
    attributes = sorted({attribute.name for each in nodes for attribute in each.attribute})
    return tuple(sorted({(each.domain, each.op_type) for each in nodes})), tuple(attributes), len(proto.graph.input)


def tried() -> list[tuple[str, onnx.ModelProto]]:
    """The first model of each form; every one with MODELBUDGET_MODELS=all."""
    if ALL_MODELS:
        return list(node_models())
    first = {form_of(proto): (name, proto) for name, proto in reversed(node_models())}
    return list(first.values())


def named(name: str, patterns: dict[str, str]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns.values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # onnx computes its expected outputs, overflows included
def test_node_models(tmp_path: Path) -> None:
    """None crashes; of those with shapes, at least 97 % are complete in all but flops."""
    path = tmp_path / "node.onnx"
    unknown = []
    decided = [name for name, _ in tried() if named(name, DATA_DECIDE)]
    for name, proto in tried():
        path.write_bytes(proto.SerializeToString())
        model = gauged(path)
        assert model.failure is None, name
        assert not model.failures, name
        if incomplete(model) and not named(name, DATA_DECIDE):
            unknown.append(name)
    assert len(node_models()) >= TOGETHER
    assert [name for name in unknown if not named(name, LEFT_OUT)] == []
    others = len(tried()) - len(decided)
    assert len(unknown) <= 0.03 * others


def files() -> Iterator[Path]:
    yield from sorted(WHEEL.rglob("*.onnx"))


@pytest.mark.slow
def test_files_of_the_wheel() -> None:
    """None of the 149 files crashes; those not complete are sequences, strings and gradients."""
    may = re.compile(r"test_(sequence_model|strnorm_model|gradient_of)\w+")
    assert len(list(files())) >= 149
    for path in files():
        model = gauged(path)
        assert model.failure is None, path
        assert not model.failures, path
        assert not incomplete(model) or may.fullmatch(path.parent.name), path


# The same architectures in torchvision's own table: 19.632, 4.089 and 2.834 GMAC.
LIGHT_MACS = {"vgg19": 19_632_062_464, "resnet50": 4_089_184_256, "densenet121": 2_834_161_664}


@pytest.mark.parametrize(("name", "macs"), LIGHT_MACS.items(), ids=list(LIGHT_MACS))
def test_real_architectures(name: str, macs: int) -> None:
    """MACs of the architectures that the wheel carries, weights made by ConstantOfShape."""
    found = gauged(WHEEL / "backend/test/data/light" / f"light_{name}.onnx").measurements["macs"]
    assert (found.value, found.complete) == (macs, True)
