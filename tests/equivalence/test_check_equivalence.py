"""Two models given from Python: what is the same, what is not, and what nobody can tell."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from pytest_modelbudget import check_equivalence
from pytest_modelbudget.equivalence.claim import Claim, Outcome
from pytest_modelbudget.errors import InputError, ModelBudgetError, SourceError, TraceError
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.torch_models.weights import redraw
from tests.builders.module_transforms import tiled

pytestmark = pytest.mark.needs_torch

SPEC = "float32 2x8"


def net() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    redraw(model)
    return model


class Returning(nn.Module):
    """A network whose result is wrapped as ``wrap`` says."""

    def __init__(self, wrap: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.net = net()
        self.wrap = wrap

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(self.net(x))


def pair(x: torch.Tensor) -> Any:
    return {"logits": x, "size": x.abs().sum(-1)}


BASE = Returning(pair)


def outcome(wrap: Callable[[torch.Tensor], Any], base: Callable[..., Any] = pair) -> Any:
    first, second = Returning(base), Returning(wrap)
    return check_equivalence(first, second, SPEC, seeds=(0,))


def test_a_model_is_what_it_is() -> None:
    """A copy is within, at no distance at all."""
    model = net()
    torch.manual_seed(9)
    before = torch.get_rng_state()
    found = check_equivalence(model, copy.deepcopy(model), SPEC)
    assert torch.equal(torch.get_rng_state(), before)
    assert found.outcome == "within"
    assert {output.family for output in found.outputs} == {"normal", "uniform", "large", "zeros"}
    assert all(output.figures.max_abs == 0 for output in found.outputs)
    assert found.weights == "as loaded"


@pytest.mark.parametrize(
    ("wrap", "says"),
    [
        pytest.param(lambda x: {"logits": x}, "in place of dict", id="missing"),
        pytest.param(lambda x: pair(x) | {"more": x}, "in place of dict", id="added"),
        pytest.param(lambda x: dict(reversed(pair(x).items())), "in place of dict", id="order"),
        pytest.param(lambda x: tuple(pair(x).values()), "tuple(", id="container"),
        pytest.param(lambda x: {"logit": x, "size": x.abs().sum(-1)}, "logit:", id="name"),
        pytest.param(lambda x: pair(x) | {"size": x.abs().sum(-1, True)}, "[2, 1]", id="shape"),
        pytest.param(lambda x: pair(x) | {"size": pair(x)["size"].double()}, "float64", id="type"),
        pytest.param(lambda x: pair(x) | {"size": pair(x)["size"] * 1.001}, "'size'", id="second"),
    ],
)
def test_outputs_of_another_form_are_over(wrap: Callable[..., Any], says: str) -> None:
    """Number, names, order, containers, shapes and types of outputs are part of the claim."""
    found = outcome(wrap)
    assert found.outcome == "over"
    assert says in found.reason


def test_swapped_outputs_of_one_shape_are_over() -> None:
    """Two outputs of one shape in the other order differ in value."""
    found = outcome(lambda x: (x.cos(), x), base=lambda x: (x, x.cos()))
    assert found.outcome == "over"


def test_dropout_left_on_is_over() -> None:
    """A model that drops at random even in eval mode is not the one without."""
    dropping = Returning(lambda x: pair(nn.functional.dropout(x, 0.1, training=True)))
    assert check_equivalence(BASE, dropping, SPEC, seeds=(0,)).outcome == "over"


class Cache:
    """An object of the user's own, with a tensor in it."""

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held


@pytest.mark.parametrize("wrap", [lambda x: {x}, lambda x: iter([x])], ids=["set", "iterator"])
def test_what_cannot_be_looked_into_is_refused(wrap: Callable[[Any], Any]) -> None:
    """A set has no order, and an iterator has not been asked yet: there is nothing to compare."""
    with pytest.raises(TraceError, match=r"output '1' is a (set|list_iterator), which cannot be looked into"):
        outcome(lambda x: (x, wrap(2 * x)), base=lambda x: (x, wrap(x)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda x: (x, x.to_sparse()),
            "output '1' is a torch.sparse_coo tensor, whose .* return what its .to_dense\\(\\)",
        ),
        (lambda x: {"a": x.to_sparse_csr()}, "output 'a' is a torch.sparse_csr tensor"),
        (lambda x: torch.nested.as_nested_tensor([x, x]), "output '0' is a nested tensor, .* .to_padded_tensor\\(0\\)"),
    ],
    ids=["coordinates", "rows", "nested"],
)
def test_what_has_no_value_at_each_place_is_unknown(make: Callable[[Any], Any], words: str) -> None:
    """With the way out in the words of torch, and no exception of its own."""
    found = outcome(make, base=make)
    assert found.outcome == "unknown"
    assert re.search(words, found.reason)


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        pytest.param(3, 4, "1: 4) in place of tuple(0: tensor, 1: 3)", id="int"),
        pytest.param("a", "b", "1: 'b') in place of", id="word"),
        pytest.param(None, False, "1: False) in place of", id="none"),
        pytest.param(1.5, 1.25, "output '1'", id="float"),
        pytest.param(1 + 2j, 1 - 2j, "output '1'", id="complex"),
    ],
)
def test_plain_values_are_part_of_the_outputs(first: object, second: object, says: str) -> None:
    """Numbers and words beside the tensors must be the same ones."""
    same = outcome(lambda x: (x, first), base=lambda x: (x, first))
    assert same.outcome == "within"
    found = outcome(lambda x: (x, second), base=lambda x: (x, first))
    assert found.outcome == "over"
    assert says in found.reason


def test_integers_are_equal() -> None:
    """An argmax must be the same; one position off is over."""
    found = outcome(lambda x: x.argmax(-1), base=lambda x: x.argmax(-1))
    assert found.outcome == "within"
    found = outcome(lambda x: x.argmax(-1) + 1, base=lambda x: x.argmax(-1))
    assert found.outcome == "over"
    assert "integers differ" in found.reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("of", [lambda x: x.argmax(-1), lambda x: x > 0, lambda x: (x * 40).round().to(torch.int8)])
def test_integers_that_are_wrong_in_their_own_type_alone(of: Callable[..., Any], dtype: torch.dtype) -> None:
    """A path for float32 alone, as kernels have one, is not seen in float64."""
    right = Returning(of).to(dtype)
    assert check_equivalence(right, copy.deepcopy(right), f"{str(dtype)[6:]} 16x8").outcome == "within"
    wrong = Returning(lambda x: of(x if x.dtype == torch.float64 else -x)).to(dtype)
    found = check_equivalence(right, wrong, f"{str(dtype)[6:]} 16x8")
    assert found.outcome == "over"
    assert f"integers differ in {str(dtype)[6:]}" in found.reason


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("stores", [True, False])
def test_only_what_stands_still_is_constant_in_steps(stores: bool, dtype: str) -> None:
    """The last bits of a narrow type are not those of the float32 numbers that its inputs are drawn as."""
    module = nn.Linear(8, 8) if stores else nn.Tanh()
    stepped = nn.Sequential(module, Stepped()).to(getattr(torch, dtype))
    for model, calls in ((stepped[0], 3), (stepped, 128)):
        found = check_equivalence(model, copy.deepcopy(model), f"{dtype} 2x8")
        assert found.outcome == "within"
        assert [note for note in found.notes if "constant in steps" in note] == [
            f"outputs are constant in steps: {calls} calls a family; 'rows' sets more"
        ] * (calls > 3)


class Factors(nn.Module):
    """Whole numbers of what some factors make of an input, one after the other; in float32 alone with an error."""

    def __init__(self, *factors: float, off: float = 0.0) -> None:
        super().__init__()
        self.factors, self.off = factors, off

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for factor in self.factors:
            x = x * factor
        return (x * (1 + self.off) if x.dtype == torch.float32 else x).floor().long()


def test_integers_of_a_model_without_weights_are_rounded_in_its_inputs_type() -> None:
    """8,192 is exact in float32, and 0.8192 x 10,000 rounds: few of the integers are others."""
    right = check_equivalence(Factors(8192.0), Factors(0.8192, 10000.0), "float32 8x512", families=["normal"])
    assert right.outcome == "within"
    found = check_equivalence(Factors(8192.0), Factors(8192.0, off=1e-3), "float32 8x512")
    assert found.outcome == "over"
    assert "integers differ in float32" in found.reason


class Stepped(nn.Module):
    """1 above a half, else 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x > 0.5).to(x.dtype)


class Remembers(nn.Module):
    """Returns a buffer, or an attribute, that each call overwrites."""

    def __init__(self, times: float, *, is_buffer: bool, alone: bool) -> None:
        super().__init__()
        self.net, self.times, self.alone = net(), times, alone
        self.register_buffer("kept", torch.ones(2, 4))
        if not is_buffer:
            del self.kept
            self.kept = torch.ones(2, 4)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.net(x)
        self.kept.copy_(y * self.times)
        return self.kept if self.alone else (y, self.kept)


@pytest.mark.parametrize("is_buffer", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_what_a_model_keeps_and_returns_is_compared(alone: bool, is_buffer: bool) -> None:
    """A cache that a call writes and returns is what the caller saw, and not what it held before."""
    right, same, wrong = (Remembers(times, is_buffer=is_buffer, alone=alone) for times in (1.0, 1.0, 1.5))
    assert check_equivalence(right, same, SPEC).outcome == "within"
    found = check_equivalence(right, wrong, SPEC)
    assert found.outcome == "over"
    assert found.outputs[-1].algebra == pytest.approx(0.5)


class Keeps(nn.Module):
    """Writes what a layer gives into memory that it keeps, and returns views of it."""

    def __init__(self, views: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.kept, self.views = nn.Linear(8, 8), torch.zeros(4, 8), views

    def forward(self, x: torch.Tensor) -> Any:
        part = self.kept[1:3]
        part.copy_(self.layer(x))
        return self.views(part, self.layer)


@pytest.mark.parametrize(
    "views",
    [
        pytest.param(lambda kept, layer: kept[:, :4], id="one"),
        pytest.param(lambda kept, layer: (kept[:, :4], kept[:, 4:]), id="two"),
        pytest.param(lambda kept, layer: kept.split(4, 1), id="split"),
        pytest.param(lambda kept, layer: (kept.T, layer(kept)), id="read again"),
    ],
)
def test_views_of_memory_that_a_model_keeps_are_compared(views: Callable[..., Any]) -> None:
    model = Keeps(views)
    other = copy.deepcopy(model)
    assert check_equivalence(model, other, SPEC).outcome == "within"
    with torch.no_grad():
        other.layer.weight[0, 7] += 1e-3
    assert check_equivalence(model, other, SPEC).outcome == "over"


def test_integer_inputs_are_drawn_in_their_range() -> None:
    """A model of tokens is run on integers alone, twice even under one seed."""
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 4))
    spec = TensorSpec("int64", (2, 6), low=0, high=50)
    found = check_equivalence(model, copy.deepcopy(model), spec, seeds=(0,))
    assert found.outcome == "within"
    assert [output.family for output in found.outputs] == ["integers"]


def test_a_constant_proves_nothing() -> None:
    """Outputs that do not move with the input are unknown, though they agree."""
    found = outcome(lambda x: x * 0, base=lambda x: x * 0)
    assert found.outcome == "unknown"
    assert "do not move" in found.reason


@pytest.mark.parametrize(
    "dead",
    [
        pytest.param(lambda x: x * 0, id="zero"),
        pytest.param(lambda x: x[:, :0], id="empty"),
        pytest.param(lambda x: torch.relu(-x.abs()), id="shut off"),
    ],
)
def test_one_dead_output_of_two_proves_nothing(dead: Callable[[torch.Tensor], Any]) -> None:
    """Weights that make an output zero hide whatever made it, though the other output moves."""
    found = outcome(lambda x: (x, dead(x)), base=lambda x: (x, dead(x)))
    assert found.outcome == "unknown"
    assert "output '1' does not move with its inputs" in found.reason


class TwoHeads(nn.Module):
    """Loads its weights: one head's are zero. The third output is a constant of any weights."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)
        with torch.no_grad():
            for number, weight in enumerate(self.parameters()):
                weight.copy_(torch.linspace(-1, 1, weight.numel()).view_as(weight) + number)
            self.second.weight.zero_()
            self.second.bias.zero_()

    def forward(self, x: torch.Tensor) -> Any:
        x = self.body(x)
        return self.first(x), self.second(x), torch.zeros(3, dtype=x.dtype)


def test_a_dead_head_is_judged_on_drawn_weights() -> None:
    """A factory can be called again: drawn weights move the head, and nothing moves the zeros."""
    found = tiled(ModelSource("torch", TwoHeads, InputSpecs((TensorSpec("float32", (2, 8)),))))
    equivalence = found.verify(Claim(seeds=(0,)))
    assert equivalence.outcome == "within"
    assert equivalence.weights == "drawn, seed 0"
    assert equivalence.notes == ("the original's output '2' does not move with its inputs",)


def test_a_constant_beside_what_moves_is_told() -> None:
    """A number that no input moves is compared as any other, and noted."""
    found = outcome(lambda x: (x, 2.5), base=lambda x: (x, 2.5))
    assert found.outcome == "within"
    assert "the original's output '1' does not move with its inputs" in found.notes
    assert outcome(lambda x: (x, 2.25), base=lambda x: (x, 2.5)).outcome == "over"


class Branches(nn.Module):
    """c(a(x) + b(x)): b runs after a, and does not read it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.c(self.a(x) + self.b(x))
        return result


def test_the_first_layer_of_two_branches_is_named() -> None:
    """A layer that is right says nothing of one before it that it does not read."""
    model = Branches()
    wrong = copy.deepcopy(model)
    with torch.no_grad():
        wrong.a.weight[3, 5] += 0.1
    found = check_equivalence(model, wrong, SPEC, seeds=(0,))
    assert found.first_divergence is not None
    assert found.first_divergence.scope == "a"


def test_nan_of_the_original_is_unknown() -> None:
    """A reference that is no number cannot be compared with."""
    found = outcome(lambda x: x.sqrt(), base=lambda x: x.sqrt())
    assert found.outcome == "unknown"
    assert "the original itself gives" in found.reason


def test_one_nan_is_over() -> None:
    """A NaN where the original has a number fails."""
    found = outcome(lambda x: x.index_fill(0, torch.tensor([1]), float("nan")), base=lambda x: x)
    assert found.outcome == "over"
    assert "NaN or Inf" in found.reason


def test_the_first_diverging_layer_has_a_name() -> None:
    """Of five layers the third is wrong, in one weight."""
    first = net()
    second = copy.deepcopy(first)
    with torch.no_grad():
        second.get_submodule("2").get_parameter("weight")[3, 5] += 0.1
    found = check_equivalence(first, second, SPEC, seeds=(0,))
    assert found.first_divergence is not None
    assert found.first_divergence.scope == "2"
    assert found.first_divergence.worst is not None
    assert found.first_divergence.worst.index[1] == 3
    assert "check_equivalence" in found.first_divergence.repeat


def test_the_first_diverging_layer_is_found_under_changed_names() -> None:
    """The original's own name is given, also where the other model calls its layers otherwise."""
    first = net()
    second = nn.ModuleDict({f"layer_{name}": each for name, each in copy.deepcopy(first).named_children()})
    second.forward = nn.Sequential(*second.values()).forward  # type: ignore[method-assign]
    with torch.no_grad():
        second["layer_2"].get_parameter("weight")[3, 5] += 0.1
    found = check_equivalence(first, second, SPEC, seeds=(0,))
    assert found.outcome == "over"
    assert found.first_divergence is not None
    assert found.first_divergence.scope == "2"


def test_neither_model_is_changed() -> None:
    """Weights, buffers, flags and hooks of both are as before, in train mode too."""
    models = [nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout()).train() for _ in "ab"]
    models[1].load_state_dict(models[0].state_dict())
    before = [copy.deepcopy(model.state_dict()) for model in models]
    assert check_equivalence(*models, SPEC, seeds=(0,)).outcome == "within"
    for model, state in zip(models, before, strict=True):
        assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
        assert all(module.training for module in model.modules())
        assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("computing", "source"),
    [
        pytest.param(nn.utils.weight_norm, "weight_g", id="weight_norm"),
        pytest.param(lambda layer: prune.l1_unstructured(layer, "weight", 0.5), "weight_orig", id="pruned"),
    ],
)
def test_models_with_computed_weights_are_copied(computing: Callable[[nn.Module], object], source: str) -> None:
    """torch refuses to copy a tensor with a history; the weights that it comes from decide."""
    first, second = net(), net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # weight_norm is deprecated, and in use
        computing(first[0])
        computing(second[0])
    assert check_equivalence(first, second, SPEC, seeds=(0,)).outcome == "within"
    with torch.no_grad():
        second[0].get_parameter(source).mul_(1.01)
    assert check_equivalence(first, second, SPEC, seeds=(0,)).outcome == "over"


def test_lossy_holds_what_it_declares() -> None:
    """Rounding weights to float16 keeps 60 dB and not 200."""
    first = net()
    second = copy.deepcopy(first)
    with torch.no_grad():
        for weight in second.parameters():
            weight.copy_(weight.half())
    assert check_equivalence(first, second, SPEC, seeds=(0,)).outcome == "over"
    for least, expected in ((50, "within"), (200, "over")):
        found = check_equivalence(first, second, SPEC, kind="lossy", bounds={"sqnr": least})
        assert found.outcome == expected, found.reason


def test_custom_holds_every_bound() -> None:
    """One bound that is missed is enough."""
    first = net()
    held = {"max_abs": 1e-6, "cosine": 0.999}
    same = check_equivalence(first, copy.deepcopy(first), SPEC, kind="custom", bounds=held)
    assert same.outcome == "within"
    second = copy.deepcopy(first)
    with torch.no_grad():
        second.get_submodule("4").get_parameter("bias")[0] += 1e-4  # the cosine hardly moves
    other = check_equivalence(first, second, SPEC, kind="custom", bounds=held)
    assert other.outcome == "over"


def test_a_claim_without_bounds_is_unknown() -> None:
    """'lossy' that declares nothing is never green."""
    assert check_equivalence(net(), net(), SPEC, kind="lossy").outcome == "unknown"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kind": "exact_algebr"}, "did you mean 'exact_algebra'?"),
        ({"kind": None}, "'null' is no kind of claim: known are exact_algebra, lossy, custom"),
        ({"kind": []}, "expected kind: exact_algebra, lossy, custom, found a list"),
        ({"kind": "custom", "bounds": [1]}, "bounds are [1]: write a mapping such as"),
        ({"kind": "custom", "bounds": None}, "bounds are None: write a mapping such as"),
        ({"kind": "custom", "bounds": {1: 2}}, "unknown key '1' in an equivalence"),
        ({"bounds": {"sqrn": 1}, "kind": "lossy"}, "did you mean 'sqnr'?"),
        ({"bounds": {"sqnr": 1}}, "criterion of its own"),
        ({"seeds": ()}, "seeds is empty: name at least one"),
        ({"seeds": (0, -1)}, "seeds of -1: it must be 0 to 2,147,483,647"),
        ({"seeds": "012"}, "expected seeds: a list of whole numbers, found one word"),
        ({"seeds": 3}, "expected seeds: a list of whole numbers, found one word"),
        ({"families": 3}, "expected families: a list such as [normal, uniform], found one word"),
        ({"family_bounds": 3}, "expected family_bounds: a mapping of families to bounds, found one word"),
        ({"kind": "custom", "bounds": {"max_abs": float("nan")}}, ": a number such as 1e-3, found 'NaN'"),
        ({"kind": "custom", "bounds": {"max_abs": float("inf")}}, ": a number such as 1e-3, found 'Infinity'"),
        ({"kind": "custom", "bounds": {"max_abs": -1}}, ": a number such as 1e-3, found '-1'"),
        ({"kind": "custom", "bounds": {"sqnr": True}}, ": a number of dB without the unit, such as 30, found 'true'"),
        (
            {"kind": "custom", "bounds": {"cosine": 2}},
            "expected cosine: a number from 0 to 1, or a share such as 5%, found '2'",
        ),
        (
            {"kind": "custom", "bounds": {"top1": 1.5}},
            "expected top1: a number from 0 to 1, or a share such as 5%, found '1.5'",
        ),
    ],
)
def test_slips_are_told(options: dict[str, Any], says: str) -> None:
    """A word that nothing knows is an error, with a guess."""
    with pytest.raises(InputError, match=re.escape(says)):
        check_equivalence(net(), net(), SPEC, **options)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        pytest.param(nn.Linear, "calling Linear raised TypeError", id="class with arguments"),
        pytest.param("no.pt", "no.pt does not exist", id="missing file"),
        pytest.param("no.pt2", "no.pt2 does not exist", id="missing program"),
        pytest.param("no_such_package:net", "there is no module", id="missing module"),
        pytest.param(3, "int is not a module or a callable", id="no model"),
    ],
)
def test_what_is_no_model_is_refused_on_either_side(source: object, says: str) -> None:
    """A source that cannot be loaded raises, as original and as transformed model."""
    with pytest.raises(SourceError, match=says):
        check_equivalence(source, net(), SPEC)
    with pytest.raises(SourceError, match=says):
        check_equivalence(net(), source, SPEC)


def test_a_model_that_raises_is_told() -> None:
    """An input that does not fit is the model's own error, in one sentence."""
    with pytest.raises(ModelBudgetError, match="running the model raised"):
        check_equivalence(net(), net(), "float32 2x9")


class Banned(nn.Module):
    """Logits, of which every third has the value that bans a word."""

    def __init__(self, fill: float, scale: float, banned: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        super().__init__()
        self.head = nn.Linear(8, 12)
        redraw(self)
        self.head.weight.data *= scale
        self.fill = fill
        self.banned = banned or (lambda places: places % 3 == 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x).masked_fill(self.banned(torch.arange(12)), self.fill)


@pytest.mark.parametrize("fill", [-1e9, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("kind", ["exact_algebra", "lossy"])
def test_logits_beside_banned_ones_are_held(fill: float, kind: str) -> None:
    """Weights that are a tenth too large show, and a copy is within, however large the value of a mask."""
    bounds = {"sqnr": 40} if kind == "lossy" else {}
    right = check_equivalence(Banned(fill, 1.0), Banned(fill, 1.0), SPEC, kind=kind, bounds=bounds)
    assert right.outcome == "within", right.reason
    assert check_equivalence(Banned(fill, 1.0), Banned(fill, 1.1), SPEC, kind=kind, bounds=bounds).outcome == "over"


def test_the_only_logit_that_is_not_banned_is_held() -> None:
    """One a row, three in all runs of a family: fewer than show an order of size beside numbers of any other kind."""
    one = [Banned(-1e9, scale, lambda places: places > 0) for scale in (1.0, 1.0, 1.1)]
    assert check_equivalence(one[0], one[1], "float32 1x8").outcome == "within"
    assert check_equivalence(one[0], one[2], "float32 1x8").outcome == "over"


class Complex(nn.Module):
    """A product of complex numbers, as it stands or summed in another order."""

    def __init__(self, dtype: torch.dtype, turned: bool, off: float = 0.0) -> None:
        super().__init__()
        values = torch.linspace(-1.0, 1.0, 60, dtype=torch.float64).reshape(2, 6, 5)
        self.weight = nn.Parameter(torch.complex(values[0], values[1] ** 2).to(dtype))
        self.weight.data[0, 0] *= 1 + off
        self.turned = turned

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("ki,bk->bi", self.weight, x) if self.turned else x @ self.weight


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_models_of_complex_numbers_are_judged(dtype: str) -> None:
    """Both parts are rounded as real numbers of half the width: a right rewrite is within, one wrong weight over."""
    first, spec = Complex(getattr(torch, dtype), turned=False), f"{dtype} 3x6"
    right = check_equivalence(first, Complex(getattr(torch, dtype), turned=True), spec)
    assert right.outcome == "within", right.reason
    wrong = check_equivalence(first, Complex(getattr(torch, dtype), turned=True, off=1e-3), spec)
    assert wrong.outcome == "over"


@pytest.mark.parametrize("seed", range(3))
def test_two_factors_of_full_rank_are_within_where_they_are_rounded_once(seed: int) -> None:
    """A square layer as two, decomposed in float64: two roundings in place of one; a wrong element is over."""
    torch.manual_seed(seed)
    one = nn.Linear(64, 64)
    two = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64))
    u, s, v = torch.linalg.svd(one.weight.detach().double())
    with torch.no_grad():
        for tensor, values in zip(two.parameters(), (v, u * s, one.bias), strict=True):
            tensor.copy_(values)
    found = check_equivalence(one, two, "float32 4x64")
    assert found.outcome == "within"
    assert max(record.precision or 0.0 for record in found.outputs) < 0.5
    with torch.no_grad():
        two[0].weight[3, 5] += 1e-4
    assert check_equivalence(one, two, "float32 4x64").outcome == "over"


@pytest.mark.parametrize("wide", [8, 64, 512])
def test_weights_of_a_factory_that_sets_the_seed_are_compared(wide: int) -> None:
    """However large they are: two seeds give one model, so that it is judged on the weights that it has."""

    def seeded(factor: float = 1.0) -> nn.Module:
        torch.manual_seed(0)
        net = nn.Linear(wide, wide)
        with torch.no_grad():
            net.weight *= factor
        return net

    found = check_equivalence(seeded, lambda: seeded(2.0), f"float32 2x{wide}")
    assert (found.outcome, found.weights) == ("over", "as loaded")
    drawn = check_equivalence(lambda: nn.Linear(wide, wide), lambda: nn.Linear(wide, wide), f"float32 2x{wide}")
    assert (drawn.outcome, drawn.weights) == ("within", "drawn, seed 0")


def half(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """A compiler that is wrong by half."""
    return lambda *given: tuple(output * 0.5 for output in graph(*given))


def compiled_in_place() -> nn.Module:
    model = net()
    model.compile(backend=half)
    return model


def with_a_compiled_layer() -> nn.Module:
    model = net()
    model[2].compile(backend=half)
    return model


def with_a_compiled_forward() -> nn.Module:
    model = net()
    model[2].forward = torch.compile(model[2].forward, backend=half)
    return model


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def with_a_compiled_function() -> nn.Module:
    return Returning(torch.compile(doubled, backend=half))


@pytest.mark.parametrize("is_second", [True, False], ids=["second", "first"])
@pytest.mark.parametrize(
    "compiled",
    [
        pytest.param(lambda: torch.compile(net(), backend=half), id="torch.compile"),
        pytest.param(compiled_in_place, id="compile()"),
        pytest.param(with_a_compiled_layer, id="a layer's compile()"),
        pytest.param(with_a_compiled_forward, id="a forward"),
        pytest.param(with_a_compiled_function, id="a function"),
    ],
)
@pytest.mark.parametrize("as_factory", [True, False], ids=["factory", "instance"])
def test_compiled_code_runs_compiled(compiled: Callable[[], nn.Module], as_factory: bool, is_second: bool) -> None:
    """pytorch#185702: eager was compared with eager. Code of the first model, or of a copy, stays unknown."""

    def eager() -> nn.Module:
        return Returning(doubled) if compiled is with_a_compiled_function else net()

    models: list[Any] = [eager, compiled] if is_second else [compiled, eager]
    result = check_equivalence(*(models if as_factory else [make() for make in models]), SPEC, seeds=(0,))
    is_lost = not as_factory and compiled in (compiled_in_place, with_a_compiled_layer)
    if is_second and not is_lost:
        assert result.outcome is Outcome.OVER
        assert result.reason.startswith("as compiled, output '0'")
    else:
        assert result.outcome is Outcome.UNKNOWN
        assert result.reason.startswith("compiled code was not run: ")


def failing(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """A compiler that compiles nothing."""
    raise NotImplementedError


@torch.compiler.disable
def left_out(x: torch.Tensor) -> torch.Tensor:
    return doubled(x)


def compiled_and_turned_off() -> nn.Module:
    return Returning(torch.compile(lambda x: left_out(x), backend=half))


@pytest.mark.parametrize(
    ("setting", "made", "said"),
    [
        pytest.param("disable", lambda: torch.compile(net(), backend=half), "config.disable hides what", id="disable"),
        pytest.param(
            "suppress_errors",
            lambda: torch.compile(net(), backend=failing),
            "config.suppress_errors hides what",
            id="suppress_errors",
        ),
        pytest.param("", compiled_and_turned_off, "torch compiled nothing", id="disable()"),
    ],
)
def test_code_that_torch_does_not_compile_is_unknown(setting: str, made: Callable[[], nn.Module], said: str) -> None:
    """What runs as it is written says nothing of the compiler; settings are those of TORCHDYNAMO_DISABLE and so on."""
    from torch._dynamo import config

    with config.patch({setting: True} if setting else {}):
        result = check_equivalence(net if setting else lambda: Returning(doubled), made, SPEC, seeds=(0,))
    assert result.outcome is Outcome.UNKNOWN, result
    assert result.reason.startswith("compiled code was not run: "), result.reason
    assert said in result.reason


def test_code_compiled_before_is_compiled_again() -> None:
    """A second judgement of one instance has its graphs in a cache."""
    eager, compiled = net(), torch.compile(net(), backend=half)
    found = [check_equivalence(eager, compiled, SPEC, seeds=(0,)) for _ in range(2)]
    assert [each.outcome for each in found] == [Outcome.OVER, Outcome.OVER]


class Conditional(nn.Module):
    """Torch compiles the branches of its own cond, by a backend that runs them as they are written."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, self.net, lambda x: self.net(-x), (x,))


def test_branches_of_cond_are_no_compiled_code() -> None:
    torch.compile(doubled)  # which loads torch's compiler
    assert check_equivalence(Conditional(), Conditional(), SPEC, seeds=(0,)).outcome is Outcome.WITHIN
