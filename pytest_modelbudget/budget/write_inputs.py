"""Inputs as a budget spells them; ``read_inputs`` reads the same specs back."""

from __future__ import annotations

import json

from pytest_modelbudget.frontends.model_source import InputSpec, TensorSpec


def positional_text(specs: tuple[InputSpec, ...]) -> str:
    """Positional inputs: one tensor alone, else a list: "float32 1x3", "[float32 1x3, int64 1]"."""
    alone = len(specs) == 1 and isinstance(specs[0], TensorSpec)
    return spec_text(specs[0] if alone else specs)


def spec_text(spec: InputSpec) -> str:
    """One argument: "float32 1x3", {"dtype": ..., "shape": ..., "low": ...}, or a list of them."""
    if not isinstance(spec, TensorSpec):
        return f"[{', '.join(map(spec_text, spec))}]"
    if spec.low is None and spec.high is None:
        return f"{spec.dtype} {'x'.join(map(str, spec.shape)) or '()'}"
    given: dict[str, object] = {"dtype": spec.dtype, "shape": list(spec.shape)}
    bounds = {"low": spec.low, "high": spec.high}
    return json.dumps(given | {key: each for key, each in bounds.items() if each is not None})
