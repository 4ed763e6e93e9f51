"""``fold_batchnorm`` on torch modules: each batch norm into the convolution or linear before it.

w' = w·γ/√(σ² + ε), b' = (b - μ)·γ/√(σ² + ε) + β, along output channels; γ is 1 and β is 0 where a batch norm has none.
Which layer feeds which batch norm is read from the recorded graph, not from names.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.graph.graph import Graph, Op
from pytest_modelbudget.graph.tensor import Storage
from pytest_modelbudget.torch_models.running import TorchModel
from pytest_modelbudget.torch_models.weights import BATCH_NORMS, CONVOLUTIONS, TRANSPOSED
from pytest_modelbudget.transforms.on_torch import change_module
from pytest_modelbudget.transforms.transform import Changed, Settings

FEEDERS = (*CONVOLUTIONS, nn.Linear)
BATCH_NORM = "aten::batch_norm"


def apply(model: TorchModel, settings: Settings) -> Changed:
    """The module with batch norms folded; raises TransformError where none could be."""
    feeding = dict(batch_norms_and_feeders(model.graph))

    def changer(module: nn.Module) -> nn.Module:
        return folded(module, pairs_of(module, feeding))

    def changes(before: nn.Module, after: nn.Module) -> tuple[Change, ...]:
        norms = tuple(_changes(before, pairs_of(before, feeding)))
        if not any(change.became for change in norms):
            raise TransformError("fold_batchnorm changed nothing: no batch norm can be folded")
        return norms

    return change_module(model, changer, changes)


def batch_norms_and_feeders(graph: Graph) -> Iterator[tuple[str, str]]:
    """(scope of a batch norm, scope of the operation whose output it alone reads)."""
    made: dict[Storage, Op] = {}
    readers: Counter[Storage] = Counter(output.storage for output in graph.outputs)
    runs: Counter[str] = Counter(op.scope for op in graph.ops)
    for op in graph.ops:
        readers.update({tensor.storage for tensor in op.tensors()})
        made.update({output.storage: op for output in op.fresh_outputs})
    for op in graph.ops:
        if op.name != BATCH_NORM or not op.tensors():
            continue
        source = op.tensors()[0].storage
        feeder = made.get(source)
        if feeder is not None and readers[source] == 1 and runs[feeder.scope] == runs[op.scope] == 1:
            yield op.scope, feeder.scope


def pairs_of(model: nn.Module, feeding: Mapping[str, str]) -> dict[str, str]:
    """Those batch norms, by path, that are modules fed by a convolution or linear module."""
    modules = dict(model.named_modules())
    return {
        norm: feeder
        for norm, feeder in feeding.items()
        if isinstance(modules.get(norm), BATCH_NORMS)
        and modules[norm].running_mean is not None
        and isinstance(modules.get(feeder), FEEDERS)
        and not (isinstance(modules[feeder], TRANSPOSED) and modules[feeder].groups != 1)
    }


def folded(model: nn.Module, pairs: Mapping[str, str]) -> nn.Module:
    """The model, changed in place: each pair one layer, and nothing where the batch norm was."""
    modules: dict[str, Any] = dict(model.named_modules())
    for norm, feeder in pairs.items():
        layer, statistics = modules[feeder], with_affine(modules[norm])
        if isinstance(layer, nn.Linear):
            fused: nn.Module = fuse_linear_bn_eval(layer, statistics)
        else:
            turned = isinstance(layer, TRANSPOSED)
            fused = fuse_conv_bn_eval(layer, statistics, transpose=turned)
        model.set_submodule(feeder, fused)
        model.set_submodule(norm, nn.Identity())
    return model


def with_affine(norm: Any) -> Any:
    """The batch norm, changed in place: with γ = 1 and β = 0 where it has none.

    torch's own folding into a linear layer takes no other.
    """
    statistics = norm.running_mean
    assert statistics is not None  # pairs_of
    if norm.weight is None:
        norm.weight = nn.Parameter(torch.ones_like(statistics))
    if norm.bias is None:
        norm.bias = nn.Parameter(torch.zeros_like(statistics))
    return norm


def _changes(model: nn.Module, pairs: Mapping[str, str]) -> Iterator[Change]:
    for path, module in model.named_modules():
        if isinstance(module, BATCH_NORMS):
            kind = type(module).__name__
            if path in pairs:
                yield Change(path, kind, f"folded into {pairs[path]}")
            else:
                yield Change(path, kind, why="no convolution or linear layer alone feeds it")
