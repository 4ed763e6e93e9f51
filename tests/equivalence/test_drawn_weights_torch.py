"""Whether a factory draws its weights, and drawing them anew."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.registry import tables
from pytest_modelbudget.torch_models.building import LARGE
from pytest_modelbudget.torch_models.in_float64 import WIDER
from pytest_modelbudget.torch_models.module import load
from pytest_modelbudget.torch_models.weights import copied, redraw

pytestmark = pytest.mark.needs_torch
SIZE = 300
assert SIZE * SIZE > LARGE


def filled(fill: Callable[[torch.Tensor], object], size: int = SIZE) -> nn.Module:
    """A layer whose weight a function fills after torch has, without a bias."""
    layer = nn.Linear(size, size, bias=False)
    with torch.no_grad():
        fill(layer.weight)
    return layer


def until_it_spreads(weight: torch.Tensor) -> None:
    """One number in place of all would never end this."""
    weight.normal_()
    while float(weight.std()) < 0.5:
        weight.normal_()


def must_spread(weight: torch.Tensor) -> None:
    """One number in place of all is refused: then the layer is built as it is."""
    if float(weight.std()) == 0:
        raise ValueError("all weights are the same")


FACTORIES: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "as torch fills it": (lambda: nn.Linear(SIZE, SIZE), True),
    "a small one": (lambda: nn.Linear(2, 2), True),
    "until it fits": (lambda: filled(until_it_spreads), True),
    "refused where all are the same": (lambda: filled(must_spread), True),
    "orthogonal": (lambda: filled(nn.init.orthogonal_), True),
    "by .data": (lambda: filled(lambda weight: weight.data.uniform_(2, 3)), True),
    "filled, then read from a file": (lambda: filled(lambda weight: weight.copy_(torch.eye(SIZE))), False),
    "in one part alone": (lambda: filled(lambda weight: weight[:1].zero_()), True),
    "constant": (lambda: filled(nn.init.ones_), False),
    "small and constant": (lambda: filled(nn.init.ones_, 2), False),
}


@pytest.mark.parametrize(("factory", "draws"), FACTORIES.values(), ids=FACTORIES)
def test_a_factory_draws_its_weights_where_two_seeds_differ(factory: Callable[[], nn.Module], draws: bool) -> None:
    source = ModelSource("torch", factory, InputSpecs((TensorSpec("float32", (1, SIZE)),)))
    assert load(source, tables().ops).draws_its_weights() is draws


class Sharing(nn.Module):
    """Two parameters over one memory, and one under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.empty(LARGE, 2))
        self.second = nn.Parameter(self.first.detach().view(2, LARGE))
        self.again = self.first
        self.apart = nn.Linear(4, 4)


def test_weights_are_the_same_on_any_number_of_threads() -> None:
    """Of two parameters over one memory the later one stays: N(0, 1/√65,536) is 1/256 wide, N(0, 1/√2) is not."""
    threads = torch.get_num_threads()
    models = []
    for number in (1, 2, 4):
        torch.set_num_threads(number)
        try:
            models.append(Sharing())
            redraw(models[-1])
        finally:
            torch.set_num_threads(threads)
    for model in models[1:]:
        assert all(map(torch.equal, model.parameters(), models[0].parameters()))
    assert float(models[0].first.detach().std()) == pytest.approx(1 / 256, rel=0.05)


def test_a_copy_in_another_type_keeps_what_is_tied() -> None:
    """And is exact: float64 has every float32."""
    model = Sharing()
    redraw(model)
    exact = copied(model, WIDER)
    assert exact.again is exact.first
    for mine, wide in zip(model.parameters(), exact.parameters(), strict=True):
        assert wide.dtype is torch.float64
        assert isinstance(wide, nn.Parameter)
        assert torch.equal(wide, mine.double())


@pytest.mark.parametrize("name", ["running_var", "moving_variance", "variance", "log_std"])
def test_what_a_model_divides_by_is_drawn_positive(name: str) -> None:
    """Keras, and norms of one's own, keep variances as parameters: their root must be a number."""
    norm = nn.Module()
    norm.register_parameter(name, nn.Parameter(torch.ones(SIZE)))
    redraw(norm)
    drawn = norm.get_parameter(name).detach()
    assert 0.5 <= float(drawn.min()) < float(drawn.max()) <= 1.5
