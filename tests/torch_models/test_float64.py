"""Float64 runs of torch models round nothing to a narrower type on their way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from pytest_modelbudget import check_equivalence
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.ops.table import builtin_ops
from pytest_modelbudget.torch_models.module import load

pytestmark = pytest.mark.needs_torch

NOISE = torch.randn(2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Cast(nn.Module):
    """Casts to a type and back before it adds its input to itself."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.to(self.dtype)
        return (y + y).real.to(x.dtype)


def run(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What a model gives in its float64 run."""
    source = ModelSource("torch", model, InputSpecs((TensorSpec("float64", tuple(x.shape)),)))
    exact = load(source, builtin_ops()).in_float64()
    return torch.from_numpy(exact.run({"x": x.numpy()}).outputs[0].values)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex32], ids=str
)
def test_casts_do_not_round(dtype: torch.dtype) -> None:
    """Twice a float64 number is exact; a cast to any narrower type would round it."""
    assert torch.equal(run(Cast(dtype), NOISE), 2 * NOISE)


class Complex(nn.Module):
    """A complex linear layer on real inputs; a subclass spells the same sum otherwise."""

    def __init__(self) -> None:
        super().__init__()
        drawn = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(6, 32, dtype=torch.complex64, generator=drawn))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(x.to(torch.complex64) @ self.weight.t())


class Halves(Complex):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.to(torch.complex64)
        first, last = self.weight[:, :16].t(), self.weight[:, 16:].t()
        return torch.view_as_real(y[:, :16] @ first + y[:, 16:] @ last)


@pytest.mark.parametrize(
    ("scale", "outcome"), [pytest.param(1, "within", id="same"), pytest.param(1.001, "over", id="scaled")]
)
def test_complex_sums_in_another_order_agree(scale: float, outcome: str) -> None:
    """In complex64 they would differ by 1e-7 of their size, where 1e-10 is allowed."""
    other = Halves()
    with torch.no_grad():
        other.weight *= scale
    found = check_equivalence(Complex(), other, "float32 2x32", seeds=(0,))
    assert found.outcome == outcome, found.reason


class InPlace(nn.Module):
    """(x + 1/3)², written in place or not, of an input within a batch."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.third = nn.Parameter(torch.full((4,), 1 / 3))

    def forward(self, batch: dict[str, list[torch.Tensor]]) -> torch.Tensor:
        x = batch["x"][0]
        return x.add_(self.third).square_() if self.in_place else (x + self.third).square()


def test_what_is_written_into_an_input_of_a_batch_does_not_round() -> None:
    """The input itself is float64; in float32 it would round by 1e-8 of its size, where 1e-10 is allowed."""
    inputs = {"batch": {"x": ["float32 2x4"]}}
    found = check_equivalence(InPlace(in_place=True), InPlace(in_place=False), inputs)
    assert found.outcome == "within", found.reason


def quantised() -> nn.Module:
    """Linear layers whose weights are int8, and whose inputs are quantised as they come."""
    torch.manual_seed(0)
    return torch.ao.quantization.quantize_dynamic(floats(), {nn.Linear}, dtype=torch.qint8)


def floats() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


WAYS = {
    "eager": lambda model: model,
    "scripted": torch.jit.script,
    "traced": lambda model: torch.jit.trace(model, torch.zeros(2, 4)),
    "frozen": lambda model: torch.jit.freeze(torch.jit.script(model)),
}


@pytest.mark.filterwarnings("ignore")  # torch's own, of quantisation and of scripts
@pytest.mark.parametrize("way", WAYS)
def test_an_operator_without_a_kernel_for_float64_is_named(way: str) -> None:
    """A first model runs in float64, which the reason says with a way out; as the second one, it is held to bounds."""
    inputs = [TensorSpec("float32", (2, 4))]
    made = WAYS[way](quantised())
    found = check_equivalence(made, floats(), inputs=inputs, kind="lossy", bounds={"sqnr": 20})
    assert found.outcome == "unknown"
    why = found.reason
    assert why.startswith(
        "quantized::linear_dynamic has no kernel for float64, in which a claim runs its first model ("
    )
    assert why.endswith("): let that be the model of floats, and hold this one to bounds (kind: lossy)")
    found = check_equivalence(floats(), made, inputs=inputs, kind="lossy", bounds={"sqnr": 20})
    assert found.outcome == "within", found.reason


class Retries(nn.Module):
    """A pass that does without an operator that fails, and fails later by another."""

    def __init__(self) -> None:
        super().__init__()
        self.quick = quantised()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return self.quick(x)  # type: ignore[no-any-return]  # of a module
        except RuntimeError:
            return x.relu_().add_(torch.ones(5))


@pytest.mark.filterwarnings("ignore")  # torch's own, of quantisation
def test_a_later_failure_is_told_by_its_own_operator() -> None:
    """Not by the one that the model had an answer to."""
    found = check_equivalence(
        Retries(), floats(), inputs=[TensorSpec("float32", (2, 4))], kind="lossy", bounds={"sqnr": 20}
    )
    assert found.outcome == "unknown"
    assert "no kernel for float64" not in found.reason
    assert "5" in found.reason


class Solved(nn.Module):
    """A factor of a matrix, which not every matrix has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.cholesky(x)


@pytest.mark.filterwarnings("ignore")  # torch's own, of scripts
@pytest.mark.parametrize("way", [nn.Module.eval, torch.jit.script])
def test_what_no_type_has_a_kernel_for_keeps_the_words_of_its_operator(way: Callable[[nn.Module], nn.Module]) -> None:
    """Where drawn inputs have no factor: of a script, too, whose interpreter forgets what an operator said."""
    inputs = [TensorSpec("float32", (3, 3))]
    found = check_equivalence(way(Solved()), Solved(), inputs=inputs, kind="lossy", bounds={"sqnr": 20})
    assert found.outcome == "unknown"
    assert "linalg.cholesky: The factorization could not be completed" in found.reason


PETABYTE = 1 << 50


class Large(nn.Module):
    """An operator whose float64 wants a petabyte, and whose float32 does not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.float64_tests.large(x)
        return y


@pytest.fixture(scope="module")
def large() -> None:
    """The operator of such a model."""

    @torch.library.custom_op("float64_tests::large", mutates_args=())
    def kernel(x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64:
            torch.empty(PETABYTE, dtype=torch.uint8)
        return x + 1

    kernel.register_fake(torch.empty_like)


@pytest.mark.usefixtures("large")
@pytest.mark.filterwarnings("ignore")  # torch's own, of scripts
@pytest.mark.parametrize("way", [nn.Module.eval, torch.jit.script, lambda m: torch.jit.trace(m, torch.zeros(2, 4))])
def test_want_of_memory_is_no_missing_kernel(way: Callable[[nn.Module], nn.Module]) -> None:
    """Of a CPU, whose allocator raises errors of the class of which errors of kernels are."""
    inputs = [TensorSpec("float32", (2, 4))]
    found = check_equivalence(way(Large()), Large(), inputs=inputs, kind="lossy", bounds={"sqnr": 20})
    assert found.outcome == "unknown"
    start = "the memory ran out in float64_tests::large in float64, in which a claim runs its first model ("
    assert found.reason.startswith(start)
    assert found.reason.endswith("): compare them on smaller inputs")


class Tries(nn.Module):
    """Takes another way where an operator has no kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.fast, self.slow = quantised(), floats()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return self.fast(x)
        except RuntimeError:
            return self.slow(x)


@pytest.mark.filterwarnings("ignore")  # torch's own, of quantisation
def test_a_model_that_catches_it_goes_its_other_way() -> None:
    """Its own exception reaches it, as without a claim."""
    assert torch.allclose(run(Tries(), NOISE), floats().double()(NOISE))
