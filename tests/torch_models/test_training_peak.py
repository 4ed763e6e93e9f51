"""What a training step needs of a device's memory, held against autograd's hooks and the storages of a real step.

A real step runs forward and backward on a CPU. Hooks of autograd give each tensor that it saves; a dispatch mode notes
which storages are alive after each operator, through weak references, while the caller has what enters and comes out.
Nothing of the project's recorder is used.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torchvision.models as vision
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.gate import measuring
from pytest_modelbudget.metrics.training import training_peak
from pytest_modelbudget.registry import tables
from pytest_modelbudget.torch_models.training import kernels_of_torch
from tests.builders.live_storages import Skipping, Tracker

pytestmark = pytest.mark.needs_torch
LOSS = 2 * 4  # bytes of a real step that a model may lack: the sum of its output, and the gradient of that, which is 1


class Words(nn.Module):
    """Indices, their embeddings, a mean over time, a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(x).mean(1)).log_softmax(-1)  # type: ignore[no-any-return]


def mlp(*, frozen: bool = False) -> nn.Module:
    """Two layers, of which the first may be frozen."""
    return nn.Sequential(nn.Linear(8, 16).requires_grad_(not frozen), nn.ReLU(), nn.Linear(16, 4))


def tied() -> nn.Module:
    """One matrix twice."""
    layer = nn.Linear(8, 8)
    return nn.Sequential(layer, nn.ReLU(), layer)


def convolutions(*, inplace: bool) -> nn.Module:
    """Two convolutions, the second depthwise, with a ReLU between them."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace), nn.Conv2d(4, 4, 3, groups=4), nn.ReLU(inplace))


def encoder() -> nn.Module:
    """Attention, layer norms and GELU, no dropout: what it draws would be another number in each run."""
    return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation="gelu", batch_first=True)


MODELS: dict[str, tuple[Callable[[], nn.Module], TensorSpec]] = {
    "mlp": (mlp, TensorSpec("float32", (3, 8))),
    "convolutions": (lambda: convolutions(inplace=False), TensorSpec("float32", (2, 3, 9, 9))),
    "relu in place": (lambda: convolutions(inplace=True), TensorSpec("float32", (2, 3, 9, 9))),
    "frozen backbone": (lambda: mlp(frozen=True), TensorSpec("float32", (3, 8))),
    "tied": (tied, TensorSpec("float32", (3, 8))),
    "batch norm": (lambda: nn.BatchNorm2d(4), TensorSpec("float32", (2, 4, 5, 5))),
    "embedding": (Words, TensorSpec("int64", (3, 7))),
    "encoder": (encoder, TensorSpec("float32", (2, 5, 16))),
    "u-net": (Skipping, TensorSpec("float32", (1, 3, 16, 16))),
    "resnet18": (vision.resnet18, TensorSpec("float32", (2, 3, 64, 64))),
    "squeezenet": (lambda: vision.squeezenet1_1(num_classes=8), TensorSpec("float32", (1, 3, 64, 64))),
    "vgg11": (lambda: vision.vgg11(num_classes=8), TensorSpec("float32", (1, 3, 32, 32))),
}


def real_step(build: Callable[[], nn.Module], spec: TensorSpec) -> tuple[int, int, int]:
    """Bytes of gradients, of all that hooks see but parameters, and the most that lives at once beyond gradients."""
    model, saved = build().train(), dict[int, torch.Tensor]()
    x = torch.ones(spec.shape, dtype=getattr(torch, spec.dtype))
    weights = {weight.untyped_storage()._cdata for weight in (*model.parameters(), *model.buffers())}
    parameters = {weight.untyped_storage()._cdata for weight in model.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with kernels_of_torch(), saved_tensors_hooks(keep, lambda tensor: tensor):
        model(x)
    nbytes = sum(tensor.untyped_storage().nbytes() for key, tensor in saved.items() if key not in parameters)
    saved.clear()
    with kernels_of_torch(), Tracker(weights) as tracker:
        output = model(x)  # which the caller keeps
        output.sum().backward()
    gradients = {weight.grad.untyped_storage()._cdata for weight in model.parameters() if weight.grad is not None}
    kept = {id(tracker._now[address]) for address in gradients}
    live = [0] * tracker.operators
    for seen in tracker.storages:
        for at in seen.alive if id(seen) not in kept else ():
            live[at] += seen.nbytes
    return sum(seen.nbytes for seen in tracker.storages if id(seen) in kept), nbytes, max(live)


@pytest.mark.parametrize(("build", "spec"), MODELS.values(), ids=list(MODELS))
def test_a_step_needs_what_a_real_one_holds(build: Callable[[], nn.Module], spec: TensorSpec) -> None:
    """Saved is to the byte what hooks see; with temporaries it is what lives at the fullest moment, or all saved."""
    source = ModelSource("torch", build, InputSpecs((spec,)), training="adam", base=Path())
    parts = training_peak(measuring.costed_model(source, tables(), root=Path()).step).parts
    gradients, saved, live = real_step(build, spec)
    buffers = sum(each.nbytes for module in build().modules() if isinstance(module, nn.BatchNorm2d)
                  for each in (module.running_mean, module.running_var) if each is not None)  # fmt: skip
    assert (parts["gradients"], parts["optimizer"], parts["saved"]) == (gradients, 2 * gradients, saved)
    activations = parts["saved"] - buffers + parts["temporaries"]
    assert activations == saved - buffers > live or live - LOSS <= activations <= live
