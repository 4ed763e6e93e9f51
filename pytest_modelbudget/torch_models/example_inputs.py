"""Example inputs that a model carries, as libraries know them: they are offered where nobody has given any."""

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from torch import nn

from pytest_modelbudget.errors import SourceError, user_code
from pytest_modelbudget.formats.containers import specs_within
from pytest_modelbudget.formats.source import InputSpec, InputSpecs, Plain, TensorSpec
from pytest_modelbudget.torch_models.values import dtype_of

PLAIN = (bool, int, float, str, type(None))


def example_inputs(model: nn.Module) -> InputSpecs:
    """The first example that a model carries; none where it carries none that it could be called with."""
    for example in (_lightning, _transformers, _timm):
        try:
            with user_code("reading the model's example inputs", SourceError):
                specs = example(model)
                if specs and _fits(model, specs):
                    return specs
        except SourceError:  # an example is a kindness: a model without one is none the worse
            continue
    return InputSpecs()


def _lightning(model: Any) -> InputSpecs:
    """``example_input_array``: a tensor, a tuple of arguments, or a dict of named ones."""
    example = getattr(model, "example_input_array", None)
    if isinstance(example, Mapping):
        return InputSpecs(named={str(name): _spec(value) for name, value in example.items()})
    arguments = example if isinstance(example, tuple) else () if example is None else (example,)
    return InputSpecs(tuple(map(_spec, arguments)))


def _transformers(model: Any) -> InputSpecs:
    """The first row of ``dummy_inputs``, if it has the main input; of a vision model an image of its config's size."""
    main, config = getattr(model, "main_input_name", None), getattr(model, "config", None)
    if main == "pixel_values":
        size, channels = getattr(config, "image_size", 224), getattr(config, "num_channels", 3)
        height, width = (size, size) if isinstance(size, int) else tuple(size)
        return InputSpecs(named={main: TensorSpec("float32", (1, channels, height, width))})
    example = getattr(model, "dummy_inputs", {})
    if main is None or main not in example:
        return InputSpecs()
    rows = {name: value[:1] if isinstance(value, torch.Tensor) else value for name, value in example.items()}
    return InputSpecs(named={name: _spec(row) for name, row in rows.items()})


def _timm(model: Any) -> InputSpecs:
    """``default_cfg``: the size of one image, channels first."""
    size = tuple((getattr(model, "default_cfg", None) or {}).get("input_size", ()))
    return InputSpecs((TensorSpec("float32", (1, *size)),) if size else ())


def _spec(value: Any) -> InputSpec:
    if isinstance(value, torch.Tensor):
        return TensorSpec(dtype_of(value.dtype).name, tuple(value.shape))
    if isinstance(value, PLAIN):
        return Plain(value)
    specs: InputSpec | None = specs_within(value, _spec)
    if specs is not None:
        return specs
    raise SourceError(f"an example of a {type(value).__name__}")


def _fits(model: nn.Module, specs: InputSpecs) -> bool:
    """Return whether the forward pass takes arguments of these names; False where nobody knows which it takes."""
    try:
        signature(model.forward).bind(*specs.positional, **specs.named)
    except (TypeError, ValueError):
        return False
    return True
