"""A changed torch model as an exported program (``.pt2``), or its weights alone (``.safetensors``)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from pytest_modelbudget.errors import TransformError, user_code
from pytest_modelbudget.torch_models.environment import reproducible, silenced
from pytest_modelbudget.torch_models.running import TorchModel, result_of, weight_names
from pytest_modelbudget.torch_models.tracing import calling
from pytest_modelbudget.torch_models.values import TorchValues, call_inputs, drawn
from pytest_modelbudget.torch_models.weights import module_tree

Result = tuple[str, list[tuple[str, torch.Tensor]]]
CLOSE = 1e-4  # of the largest output: what kernels of float32 may differ by


def write(model: TorchModel, file: Path) -> None:
    """Write the program, and hold what it computes to the changed model; operations that were replaced are in it."""
    if file.suffix == ".safetensors":
        if model.rewrite is not None:
            raise TransformError(f"{file.name}: the transform changes operations, not weights: write a .pt2 file")
        _write_weights(model.subject.model, file)
        return
    with _running(model) as (run, args, kwargs):
        traced = make_fx(run)(*args) if model.rewrite else model.subject.model
        program = torch.export.export(traced, args, kwargs)
        if not _agree(result_of(program.module()(*args, **kwargs)), result_of(run(*args, **kwargs))):
            raise TransformError("the exported program computes otherwise than the changed model, and is not written")
    torch.export.save(program, file)


def computes(model: TorchModel, file: Path) -> bool:
    """Whether a file that was written still computes what the changed model does; of weights alone, nothing is run."""
    if file.suffix == ".safetensors":
        return True
    with _running(model) as (run, args, kwargs):
        found = torch.export.load(file).module()(*args, **kwargs)
        return _agree(result_of(found), result_of(run(*args, **kwargs)))


@contextmanager
def _running(model: TorchModel) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    """What returns the changed model's result, and the arguments of it and of its program: of a rewrite, tensors."""
    generator = torch.Generator().manual_seed(0)
    inputs = call_inputs(model.specs, lambda spec: drawn(spec, generator))
    subject, modules = model.subject, module_tree(model.subject.model)
    scopes, rewriting = subject.scopes(TorchValues(), modules), model.rewriting()

    def run(*given: Any, **_: Any) -> Any:
        """What the changed model returns; of a rewrite, for these tensors in the place of its inputs."""
        values = iter(given)
        mode = rewriting(weight_names(subject.model), lambda: scopes.scope_of(())) if rewriting else nullcontext()
        with torch.inference_mode(), mode:
            return subject.run(inputs.each(lambda _: next(values)) if rewriting else inputs, scopes)

    tensors = tuple(tensor for _, tensor in inputs.tensors())
    running = user_code("running the changed model", TransformError)
    with reproducible(), silenced(), running, calling(modules, scopes, torch.no_grad, [], is_run=True):
        yield run, *((tensors, {}) if rewriting else (inputs.args, dict(inputs.kwargs)))


def _agree(mine: Result, theirs: Result) -> bool:
    """Whether two results have one structure, floating values that are close, and other values that are equal."""

    def agrees(one: torch.Tensor, other: torch.Tensor) -> bool:
        if one.dtype != other.dtype or one.shape != other.shape or not one.numel():
            return one.dtype == other.dtype and one.shape == other.shape
        if not (one.is_floating_point() or one.is_complex()):
            return torch.equal(one, other)
        scale = float(other.abs().nan_to_num(posinf=0.0).max())
        return torch.allclose(one, other, rtol=CLOSE, atol=CLOSE * scale, equal_nan=True)

    (structure, tensors), (expected, others) = mine, theirs
    named = [name for name, _ in tensors] == [name for name, _ in others]
    pairs = zip(tensors, others, strict=True) if named else ()
    return structure == expected and named and all(agrees(one, other) for (_, one), (_, other) in pairs)


def _write_weights(module: nn.Module, file: Path) -> None:
    try:
        from safetensors.torch import save
    except ModuleNotFoundError as error:
        raise TransformError("safetensors is not installed, which writes weights: pip install safetensors") from error
    file.write_bytes(save({name: each.detach().clone().contiguous() for name, each in module.state_dict().items()}))
