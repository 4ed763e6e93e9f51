"""Files as simplifiers, optimisers, converters and quantisers write them are within; with a mistake they are over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from pytest_modelbudget import check_equivalence
from tests.builders.marks import needs

from .damages import DAMAGES
from .naming import blamed
from .networks import NETWORKS, exported
from .rewrites import REWRITES, Rewrite

pytestmark = [
    pytest.mark.needs_torch,
    pytest.mark.zoo,
    pytest.mark.filterwarnings("ignore"),  # others' own, of every release
    needs("onnxsim", extra="wild"),
    needs("onnxslim", extra="wild"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the networks and what tools make of them are written, once a process."""
    return tmp_path_factory.mktemp("wild")


def rewritten(network: str, name: str, files: Path) -> tuple[Path, Path]:
    """The network's file, and what the tool makes of it."""
    original, target = exported(network, files / f"{network}.onnx"), files / f"{network}.{name}.onnx"
    if not target.exists():
        REWRITES[name].work(original, target)
    return original, target


def damaged(target: Path) -> Iterator[tuple[str, str, Path]]:
    """Each mistake that can be made in a file: its name, the first wrong result, and the wrong file."""
    for name, damage in DAMAGES.items():
        model = onnx.load(target)
        wrong = damage(model)
        if wrong is not None:
            path = target.with_suffix(f".{name}.onnx")
            onnx.save(model, path)
            yield name, wrong, path


def rows() -> list[object]:
    """Every network through every tool."""
    return [pytest.param(network, name, id=f"{network}-{name}") for network in NETWORKS for name in REWRITES]


def outcome(original: Path, target: Path, rewrite: Rewrite) -> str:
    return str(check_equivalence(original, target, **rewrite.claim()).outcome.value)


@pytest.mark.parametrize(("network", "name"), rows())
def test_clean_is_within_and_damaged_over(network: str, name: str, files: Path) -> None:
    """No false alarm, and no mistake that passes."""
    original, target = rewritten(network, name, files)
    outcomes = {"clean": outcome(original, target, REWRITES[name])}
    expected = {"clean": "within"}
    for damage, _, path in damaged(target):
        outcomes[damage] = outcome(original, path, REWRITES[name])
        expected[damage] = "over"
    assert outcomes == expected
    assert len(outcomes) > 1


def test_nine_in_ten_mistakes_are_named(files: Path) -> None:
    """The first divergence is in the damaged layer, or in what it was fused into."""
    named, others = 0, []
    for network in NETWORKS:
        for name in ("onnxsim", "onnxslim", "ort_basic", "opset_21", "compose"):
            original, target = rewritten(network, name, files)
            for damage, wrong, path in damaged(target):
                divergence = check_equivalence(original, path).first_divergence
                scopes = blamed(original, onnx.load(target), wrong)
                if divergence is not None and divergence.scope in scopes:
                    named += 1
                else:
                    others.append((network, name, damage, divergence and divergence.scope, scopes))
    assert named >= 9 * len(others), f"{named} named, {len(others)} not: {others}"
