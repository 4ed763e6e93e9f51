"""A module that is called twice is one scope, though PyTorch's exporter of TorchScript graphs names its calls apart."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.builders.onnx_graphs import measured, model, node, stored, value

X, Y = [value("x", 2, 4)], [value("y", 2, 4)]
STEP = 2 * 4 * 4  # x (2, 4) · w (4, 4)
ALONE = 2 * 2 * 4 + 2 * 2 * 4  # x (2, 4) · xᵀ (4, 2), and that times x


def called(*steps: str) -> list[onnx.NodeProto]:
    """Products one after another, each by its node's name and the stored matrix that it reads; "-" reads none."""
    nodes = []
    before = "x"
    for at, (name, weight) in enumerate(step.split() for step in steps):
        result = "y" if at == len(steps) - 1 else f"h{at}"
        if weight == "-":
            made = node("Einsum", f"{before} {before} {before}", result, equation="ab,cb,cd->ad")
        else:
            made = node("MatMul", f"{before} {weight}", result)
        made.name = name
        nodes.append(made)
        before = result
    return nodes


CASES: dict[str, tuple[tuple[str, ...], dict[str, int]]] = {
    "once more": (("/a/a.0/MatMul a.0.weight", "/a/a.0_1/MatMul a.0.weight"), {"a.0": 2 * STEP}),
    "three times": (
        ("/fc/MatMul fc.weight", "/fc_1/MatMul fc.weight", "/fc_2/MatMul fc.weight"), {"fc": 3 * STEP},
    ),
    "a module of its own": (("/fc/MatMul fc.weight", "/fc_1/MatMul fc_1.weight"), {"fc": STEP, "fc_1": STEP}),
    "beside a further call of the other": (
        ("/fc/MatMul fc.weight", "/fc_1/MatMul fc_1.weight", "/fc_1/MatMul_1 fc.weight"),
        {"fc": 2 * STEP, "fc_1": STEP},
    ),
    "a weight that was renamed": (
        ("/a/fc/MatMul onnx::MatMul_7", "/a/fc_1/MatMul onnx::MatMul_7"), {"a.fc": 2 * STEP},
    ),
    "two of their own, which share a matrix": (
        ("/fc/MatMul fc/w", "/fc/MatMul_1 mask", "/fc_1/MatMul fc_1/w", "/fc_1/MatMul_1 mask"),
        {"fc": 2 * STEP, "fc_1": 2 * STEP},
    ),
    "handed on": (("/a/fc/MatMul onnx::MatMul_7", "/a/fc_1/MatMul same"), {"a.fc": 2 * STEP}),
    "without weights, around one with": (
        ("/at/q/MatMul at.q.weight", "/at/Einsum -", "/at/q_1/MatMul at.q.weight", "/at_1/Einsum -"),
        {"at.q": 2 * STEP, "at": 2 * ALONE},
    ),
    "without weights, in a list": (("/a/a.0/Einsum -", "/a/a.0_1/Einsum -"), {"a.0": 2 * ALONE}),
    "without weights, perhaps another": (("/a/Einsum -", "/a_1/Einsum -"), {"a": ALONE, "a_1": ALONE}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_repeated_calls_are_the_modules_own(case: str, tmp_path: Path) -> None:
    """The weights tell, those of modules within, or a number in a list; else both names stay."""
    steps, expected = CASES[case]
    names = {word for step in steps for word in step.split()[1:]} - {"-", "same"}
    same = [node("Identity", "onnx::MatMul_7", "same")] if any(step.endswith("same") for step in steps) else []
    proto = model([*same, *called(*steps)], X, Y, [stored(name, 4, 4) for name in sorted(names)])
    macs = measured(proto, tmp_path)["macs"]
    assert {share.scope: share.value for share in macs.shares} == expected
