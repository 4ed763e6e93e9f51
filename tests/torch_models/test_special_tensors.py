"""Tensors that are no plain memory on the way through a model: functorch, nested, profiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import func, nn
from torch.nested._internal import nested_tensor as jagged_tensors

from pytest_modelbudget import measure
from pytest_modelbudget.formats.source import TensorSpec
from tests.builders.marks import since_torch
from tests.builders.micro_modules import Layer
from tests.builders.torch_ways import rows

pytestmark = pytest.mark.needs_torch


class Into(nn.Module):
    """One operator into a tensor that is there: 4 x 8 of 4 bytes each are read once or twice, and written."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(4, 8)
        self.run(x, out)
        return out


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(lambda x, out: torch.add(x, x, out=out), id="add"),
        pytest.param(lambda x, out: torch.sub(x, 2.0, out=out), id="sub"),
        pytest.param(lambda x, out: torch.mul(x, 2, out=out), id="mul"),
        pytest.param(lambda x, out: torch.div(x, x, out=out), id="div"),
        pytest.param(lambda x, out: torch.exp(x, out=out), id="exp"),
        pytest.param(lambda x, out: torch.clamp(x, 0.0, 1.0, out=out), id="clamp"),
        pytest.param(lambda x, out: torch.cat([x[:2], x[2:]], out=out), id="cat"),
        pytest.param(lambda x, out: torch.softmax(x, 1, out=out), id="softmax"),
    ],
)
def test_a_result_in_a_tensor_that_is_there_is_written(run: Any) -> None:
    """128 B read and 128 B written, into memory of its own beside the input's."""
    measured = measure(Into(run), "float32 4x8")
    assert measured["total_activation"].value == 128
    assert measured["bandwidth"].value == 256
    assert measured["peak_activation"].value == 256


SINCE_JAGGED = since_torch("2.15", "no operator tells of what torch.tensor makes without memory before")


class Casting(nn.Module):
    """A linear layer in bfloat16 of a float32 input."""

    def __init__(self, device: str | None, enabled: bool = True) -> None:
        super().__init__()
        self.layer, self.device, self.enabled = nn.Linear(8, 8, bias=False), device, enabled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device or x.device.type, torch.bfloat16, enabled=self.enabled):
            return self.layer(x)


@pytest.mark.parametrize("device", ["cpu", None], ids=["named", "asked for"])
def test_a_pass_that_casts_is_counted_in_the_types_that_it_computes_in(device: str | None) -> None:
    """float32 4x8 and 8x8 become bfloat16 (64 and 128 B), as the result is (64 B): 4 x 8 x 8 MACs of 16 x 16 bits."""
    measured = measure(Casting(device), "float32 4x8")
    assert measured["total_activation"].value == 64 + 128 + 64
    assert measured["bops"].value == 4 * 8 * 8 * 16 * 16


class ByHand(Casting):
    """The same without a context."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.set_autocast_dtype("cpu", torch.bfloat16)
        torch.set_autocast_enabled("cpu", True)
        try:
            return self.layer(x)
        finally:
            torch.set_autocast_enabled("cpu", False)


class Careful(Casting):
    """The same, and its input where anything goes wrong."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return super().forward(x)
        except Exception:  # noqa: BLE001  # as models are written
            return x


class Deprecated(Casting):
    """The same by the switch of older versions."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.set_autocast_dtype("cpu", torch.bfloat16)
        torch.set_autocast_cpu_enabled(True)
        try:
            return self.layer(x)
        finally:
            torch.set_autocast_cpu_enabled(False)


def left_on() -> nn.Module:
    """A factory that enters a context, and never leaves it."""
    torch.autocast("cpu", torch.bfloat16).__enter__()
    return nn.Linear(8, 8, bias=False)


def set_on() -> nn.Module:
    """A factory that sets a switch."""
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    torch.set_autocast_enabled("cpu", True)
    return nn.Sequential(nn.Linear(8, 8, bias=False))


def left_on_around_a_script() -> nn.Module:
    """The same with a script module."""
    torch.autocast("cpu", torch.bfloat16).__enter__()
    return scripted(nn.Sequential(nn.Linear(8, 8, bias=False)))


def scripted(model: nn.Module) -> nn.Module:
    """As TorchScript."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, and stays supported here
        made: nn.Module = torch.jit.script(model)
    return made


def in_a_script() -> nn.Module:
    """A TorchScript module, whose interpreter knows of autocast."""
    return scripted(ScriptedCasting())


class ScriptedCasting(nn.Module):
    """As TorchScript can have it: the device by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layer(x)


CASTING: dict[str, Any] = {
    "by hand": ByHand("cpu"),
    "deprecated": Deprecated("cpu"),
    "careful": Careful("cpu"),
    "careful, asking": Careful(None),
    "deeper": nn.Sequential(Careful("cpu")),
    "left on by its factory": left_on,
    "set by its factory": set_on,
    "script": in_a_script,
    "left on around a script": left_on_around_a_script,
    "exported": lambda: torch.export.export(Casting("cpu"), (torch.ones(4, 8),)).module(),
}


@pytest.mark.parametrize("model", CASTING.values(), ids=list(CASTING))
def test_a_pass_that_casts_by_hand_or_catches_everything_is_counted_alike(model: Any) -> None:
    """The same bytes and bits as above; what a factory leaves on stays on in its process."""
    measured = measure(model, "float32 4x8")
    torch.set_autocast_enabled("cpu", False)
    assert measured["total_activation"].value == 64 + 128 + 64
    assert measured["bops"].value == 4 * 8 * 8 * 16 * 16


def test_a_callers_own_autocast_is_that_of_the_pass() -> None:
    """As its default type is: the same again, and float32 afterwards, 4 x 8 results of 4 bytes."""
    layer = nn.Linear(8, 8, bias=False)
    with torch.autocast("cpu", torch.bfloat16):
        assert measure(layer, "float32 4x8")["total_activation"].value == 64 + 128 + 64
    assert measure(layer, "float32 4x8")["total_activation"].value == 128


@pytest.mark.parametrize("device", ["cuda"])
def test_the_autocast_of_another_device_casts_nothing(device: str) -> None:
    """As in a run on a CPU, whatever devices there are: 4 x 8 results of 4 bytes."""
    measured = measure(Casting(device), "float32 4x8")
    assert (measured["total_activation"].value, measured.traced) == (128, "meta")
    assert measured.notes == (f"torch.autocast of {device} casts nothing here: counted as in a run on a CPU",)


def test_a_pass_that_switches_casting_off_stays_on_meta() -> None:
    """As position embeddings of transformers do: 4 x 8 results of 4 bytes."""
    measured = measure(Casting("cpu", enabled=False), "float32 4x8")
    assert (measured["total_activation"].value, measured.traced) == (128, "meta")


PRODUCT = 4 * 16 * 16
FUNCTORCH: dict[str, tuple[Callable[[Any, torch.Tensor], Any], int]] = {
    "vmap": (lambda m, x: torch.vmap(m.l)(x), PRODUCT),
    "vmap of two": (lambda m, x: torch.vmap(torch.vmap(m.l))(x.reshape(2, 2, 16)), PRODUCT),
    "grad": (lambda m, x: func.grad(lambda y: m.l(y).sum())(x), 2 * PRODUCT),
    "grad of a row": (lambda m, x: func.vmap(func.grad(lambda y: m.l(y).sum()))(x), 2 * PRODUCT),
    "jacrev": (lambda m, x: func.jacrev(m.l)(x), PRODUCT + 4 * 16 * PRODUCT),
    # Torch makes a product with the weight's derivative, too, which is zero.
    "jvp": (lambda m, x: func.jvp(m.l, (x,), (torch.ones_like(x),)), 3 * PRODUCT),
    "jvp of a norm": (
        lambda m, x: m.l(func.jvp(lambda y: nn.functional.layer_norm(y, (16,), m.l.bias, m.l.bias), (x,), (x,))[1]),
        PRODUCT,
    ),
    "functional_call": (lambda m, x: func.functional_call(m.l, dict(m.l.named_parameters()), (x,)), PRODUCT),
}


@pytest.mark.parametrize(("forward", "macs"), FUNCTORCH.values(), ids=list(FUNCTORCH))
def test_functorch_is_counted(forward: Callable[[Any, torch.Tensor], Any], macs: int) -> None:
    """What a transformation of the layer multiplies; a gradient is one product more."""
    measured = measure(Layer(forward), "float32 4x16")
    assert (measured["macs"].value, measured["macs"].unmeasured) == (macs, ())
    assert measured["params"].value == 16 * 16 + 16


@SINCE_JAGGED
def test_jagged_tensors_are_taken_apart() -> None:
    """The layer runs once over all rows of both parts, and the result may be one, too."""

    def jagged(m: Any, x: torch.Tensor) -> Any:
        return m.l(torch.nested.nested_tensor([x[:1], x[1:]], layout=torch.jagged))

    for forward in (jagged, lambda m, x: jagged(m, x).values()):
        measured = measure(Layer(forward), "float32 4x16")
        assert (measured["macs"].value, measured["macs"].unmeasured) == (PRODUCT, ())


ASKED_OF_JAGGED: dict[str, Callable[[torch.Tensor], object]] = {
    "shape": lambda t: t.shape[1],
    "sizes": lambda t: t.size(),
    "strides": lambda t: t.stride(),
    "elements": lambda t: t.numel(),
    "offset": lambda t: t.storage_offset(),
    "rank": lambda t: t.dim(),
    "contiguous": lambda t: t.is_contiguous(),
    "dense": torch.ops.aten.is_non_overlapping_and_dense,
    "a norm, which asks for its shape": nn.LayerNorm(16, elementwise_affine=False),
}


@SINCE_JAGGED
@pytest.mark.parametrize("asked", ASKED_OF_JAGGED.values(), ids=list(ASKED_OF_JAGGED))
def test_a_jagged_tensor_answers_as_in_a_run(asked: Callable[[torch.Tensor], object]) -> None:
    """Its class tells its sizes: some operators that ask for them have no entry in torch's dispatcher."""

    def forward(m: Any, x: torch.Tensor) -> Any:
        parts = torch.nested.nested_tensor([x[:1], x[1:]], layout=torch.jagged)
        asked(parts)
        return m.l(parts).values()

    measured = measure(Layer(forward), "float32 4x16")
    assert (measured["macs"].value, measured["macs"].unmeasured) == (PRODUCT, ())


@SINCE_JAGGED
@pytest.mark.parametrize("way", ["meta", "real"])
def test_the_first_jagged_tensor_of_a_process_costs_no_more(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 and 4 rows of 16 floats, and their sums; a zero and 2 ends of parts, of 8 bytes each, which nobody reads."""
    monkeypatch.setattr(jagged_tensors, "_dummy_instance", None)  # which torch makes then, and keeps

    def doubled(m: Any, x: torch.Tensor) -> Any:
        parts = torch.nested.as_nested_tensor([x[:2], x], layout=torch.jagged)
        return (parts + parts).values()

    written = [
        rows(Layer(doubled), TensorSpec("float32", (4, 16)), way=way)["total_activation"] for _ in ("first", "again")
    ]
    assert written == [2 * (6 * 16 * 4) + (1 + 2) * 8] * 2


def test_operators_on_strided_nested_tensors_are_named() -> None:
    """The shape of such a tensor does not tell what it stores."""

    def nested(m: Any, x: torch.Tensor) -> Any:
        return m.l(torch.nested.as_nested_tensor([x[:1], x[1:]])).to_padded_tensor(0.0)

    measured = measure(Layer(nested), "float32 4x16")
    assert "aten::linear" in {op.op for op in measured["macs"].unmeasured}
    assert measured["params"].value == 16 * 16 + 16


def test_a_model_for_many_processes_is_measured(tmp_path: Any) -> None:
    """DistributedDataParallel over one process."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(Layer(lambda m, x: m.l(x)))
        measured = measure(model, "float32 4x16")
    finally:
        torch.distributed.destroy_process_group()
    assert (measured["macs"].value, measured["macs"].unmeasured) == (PRODUCT, ())
    assert measured["params"].value == 16 * 16 + 16
