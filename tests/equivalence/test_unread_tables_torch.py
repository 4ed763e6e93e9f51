"""Rows, positions and experts of torch models that no drawn input reads."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from pytest_modelbudget import check_equivalence
from pytest_modelbudget.torch_models.weights import redraw
from tests.builders.wrapper_tensors import Int8Rows

pytestmark = pytest.mark.needs_torch

ROWS, LENGTH = 3000, 12
READ_AT_MOST = 3 * LENGTH  # indices of three seeds
LOSSY: dict[str, Any] = {"kind": "lossy", "bounds": {"sqnr": 20}}


class Words(nn.Module):
    """A table that is read as ``read`` says, and a position table that is longer than the input."""

    def __init__(self, read: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(ROWS, 8))
        self.places = nn.Parameter(torch.randn(1, 64, 8))
        self.read = read

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.read(self.table, ids) + self.places[:, : ids.shape[1]]


READERS = {
    "embedding": lambda table, ids: functional.embedding(ids, table),
    "index": lambda table, ids: table[ids],
    "index_select": lambda table, ids: table.index_select(0, ids.reshape(-1)).reshape(*ids.shape, -1),
    "bag": lambda table, ids: functional.embedding_bag(ids, table)[:, None],
    "a view": lambda table, ids: table.view(ROWS, 2, 4)[ids].flatten(-2),
}


def changed(model: nn.Module, name: str, row: Any) -> nn.Module:
    other = copy.deepcopy(model)
    other.get_parameter(name).data[row] += 1.0
    return other


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize(("name", "row"), [("table", ROWS - 1), ("places", (0, 63))], ids=["table", "places"])
def test_a_wrong_row_that_no_index_read_is_over(read: Callable[..., Any], name: str, row: Any) -> None:
    """One row of 3,000, or of 64, which no run of three seeds reads: compared where it lies."""
    model = Words(read)
    found = check_equivalence(model, changed(model, name, row), f"int64 1x{LENGTH}")
    assert found.outcome == "over"
    said = re.fullmatch(rf"1 row of '{name}' that no run has read differs: (\d+) of [\d,]+ rows of '{name}' were read",
                        found.reason)  # fmt: skip
    assert said, found.reason
    assert 0 < int(said[1]) <= READ_AT_MOST
    assert found.first_divergence is not None
    assert found.first_divergence.scope == name
    assert found.first_divergence.worst is not None
    assert (found.first_divergence.worst.index[:1] == (row,)) or name == "places"


class WordsOfBatch(Words):
    """The same on a batch: a dict, or a list of dicts."""

    def forward(self, batch: Any) -> torch.Tensor:
        return super().forward((batch[0] if isinstance(batch, list) else batch)["ids"])


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("is_listed", [False, True], ids=["a dict", "a list of dicts"])
def test_a_row_that_indices_in_a_batch_did_not_read_is_over(read: Callable[..., Any], is_listed: bool) -> None:
    """What an input is handed over in says nothing of what it reads."""
    model, batch = WordsOfBatch(read), {"ids": f"int64 1x{LENGTH}"}
    inputs = {"batch": [batch] if is_listed else batch}
    found = check_equivalence(model, changed(model, "table", ROWS - 2), inputs)  # some draw has the last one
    assert found.outcome == "over"
    assert "1 row of 'table' that no run has read differs" in found.reason


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_equal_tables_are_within_in_silence(read: Callable[..., Any]) -> None:
    """Unread rows that are the same say nothing."""
    model = Words(read)
    found = check_equivalence(model, copy.deepcopy(model), f"int64 1x{LENGTH}")
    assert (found.outcome, [note for note in found.notes if "rows" in note]) == ("within", [])


@pytest.mark.filterwarnings("ignore")  # torch.ao says that it is old
@pytest.mark.parametrize("make", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("claim", [{}, LOSSY], ids=["exact", "lossy"])
def test_a_packed_table_is_compared_too(make: Any, claim: dict[str, Any]) -> None:
    """torch.ao keeps it in an object that is no tensor: one row of 300 that no index read is over."""

    def packed(table: torch.Tensor) -> nn.Module:
        model = nn.Sequential(make(300, 16, _weight=table.clone()))
        model[0].qconfig = torch.ao.quantization.float_qparams_weight_only_qconfig
        return torch.ao.quantization.convert(torch.ao.quantization.prepare(model))

    table = torch.randn(300, 16)
    other = table.clone()
    other[299] += 5
    found = check_equivalence(packed(table), packed(other), "int64 2x4", **claim)
    assert found.outcome == "over"
    assert found.reason.startswith("1 row of '0.weight' that no run has read differs: "), found.reason
    assert check_equivalence(packed(table), packed(table), "int64 2x4", **claim).outcome == "within"


def test_what_a_unit_that_never_wakes_is_multiplied_by_counts_as_read() -> None:
    """A right change may leave it out: zeros of a ReLU are no choice of rows."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    model[0].bias.data[3:9] = -1e6  # type: ignore[union-attr,operator]
    pruned = copy.deepcopy(model)
    pruned[2].weight.data[:, 3:9] = 0.0  # type: ignore[union-attr,index]
    found = check_equivalence(model, pruned, "float32 2x8")
    assert (found.outcome, found.notes) == ("within", ())


def test_indices_are_drawn_over_the_whole_table() -> None:
    """All rows from the third on are zero: with indices 0 and 1 alone nothing would show."""
    good = nn.Sequential(nn.Embedding(ROWS, 16), nn.Linear(16, 8)).eval()
    bad = copy.deepcopy(good)
    bad[0].weight.data[2:] = 0
    found = check_equivalence(good, bad, "int64 1x12")
    assert found.outcome == "over"
    assert "float64 outputs differ" in found.reason


@pytest.mark.parametrize(
    ("forward", "is_known"),
    [
        pytest.param(lambda s, ids: s.e(ids), True, id="a table"),
        pytest.param(lambda s, ids: s.e(ids.clone().view(-1)), True, id="carried"),
        pytest.param(lambda s, ids: s.e(ids) * (ids != 0)[..., None], True, id="a mask of padding"),
        pytest.param(lambda s, ids: s.e((ids + 1) % 50), False, id="arithmetic"),
        pytest.param(lambda s, ids: s.e(ids) + ids[..., None], False, id="a number, too"),
    ],
)
def test_a_range_is_known_where_a_table_alone_reads(forward: Any, is_known: bool) -> None:
    """Else integers stay 0 and 1, and the notes say so."""
    model = type("Net", (nn.Module,), {"forward": forward})()
    model.e = nn.Embedding(50, 4)
    found = check_equivalence(model, copy.deepcopy(model), "int64 1x12")
    assert found.outcome == "within"
    assert any("integers 0 and 1 for '0'" in note for note in found.notes) is not is_known


def test_a_table_that_runs_shorten_is_the_same_in_every_run() -> None:
    """max_norm writes into the rows that are read, and each run starts from the same table."""
    model = nn.Embedding(ROWS, 8, max_norm=1.0)
    before = model.weight.detach().clone()
    assert check_equivalence(model, copy.deepcopy(model), "int64 1x12", seeds=(0,), kind="custom",
                             bounds={"max_abs": 0}).outcome == "within"  # fmt: skip
    assert torch.equal(model.weight, before)
    found = check_equivalence(model, changed(model, "weight", ROWS - 1), "int64 1x12")
    assert found.outcome == "over"


def test_a_range_that_is_given_stays() -> None:
    """low and high of an input are the user's word."""
    model = nn.Embedding(50, 4)
    seen: list[int] = []
    model.register_forward_pre_hook(lambda module, args: seen.extend(args[0].reshape(-1).tolist()))
    check_equivalence(model, copy.deepcopy(model), "int64 1x200")
    assert max(seen) > 40
    seen.clear()
    spec = torch.tensor([[3, 4]])
    check_equivalence(model, copy.deepcopy(model), spec)
    assert set(seen) <= {3, 4}


class Rounded(nn.Module):
    """A table on a grid of eight bits a row."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        step = table.abs().amax(1, keepdim=True) / 127
        self.table = nn.Parameter((table / step).round() * step)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return functional.embedding(ids, self.table)


class Read(Rounded):
    """The same table as it is."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__(table)
        self.table = nn.Parameter(table)


def test_a_quantised_table_is_held_to_what_the_rows_that_were_read_lost() -> None:
    """Rounding is within under a lossy claim, unread rows and all; a row of zeros is over."""
    table = torch.randn(ROWS, 16) * torch.rand(ROWS, 1) * 10  # rows of all sizes
    good, second = Read(table), Rounded(table)
    found = check_equivalence(good, second, "int64 1x12", **LOSSY)
    assert (found.outcome, found.notes) == ("within", ())
    second.table.data[ROWS - 1] = 0
    found = check_equivalence(good, second, "int64 1x12", **LOSSY)
    assert found.outcome == "over"
    assert "1 row of 'table'" in found.reason


def test_a_renamed_table_is_found_by_its_values() -> None:
    """The rows that were read tell which table it is."""

    class Renamed(nn.Module):
        def __init__(self, table: torch.Tensor) -> None:
            super().__init__()
            self.other, self.words = nn.Parameter(torch.randn(ROWS, 8)), nn.Parameter(table.clone())

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return functional.embedding(ids, self.words)

    table = torch.randn(ROWS, 8)
    second = Renamed(table)
    assert check_equivalence(Read(table), second, "int64 1x12").outcome == "within"
    second.words.data[ROWS - 1] += 1
    found = check_equivalence(Read(table), second, "int64 1x12")
    assert found.outcome == "over"


def test_a_tied_table_has_been_read_as_far_as_it_is_picked_from() -> None:
    """An output layer that multiplies by the whole table shows another side of a row."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm = nn.Embedding(ROWS, 8), nn.LayerNorm(8)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.norm(self.table(ids)) @ self.table.weight.t()  # a norm's output sums to 0

    model = Tied()
    found = check_equivalence(model, changed(model, "table.weight", ROWS - 1), "int64 1x12")
    assert found.outcome == "over"


class Experts(nn.Module):
    """Two experts, of which inputs drawn here reach the first alone."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.experts[int(x.abs().max() > 1e6)](x)


@pytest.mark.parametrize(
    ("claim", "outcome"), [pytest.param({}, "unknown", id="exact"), pytest.param(LOSSY, "within", id="lossy")]
)
def test_an_expert_that_no_input_reached_is_said(claim: dict[str, Any], outcome: str) -> None:
    """Nobody knows whether an input can reach it; a lossy claim says so in a note."""
    model = Experts()
    found = check_equivalence(model, changed(model, "experts.1.weight", 2), "float32 3x4", **claim)
    assert found.outcome == outcome
    assert "'experts.1.weight'" in " ".join((found.reason, *found.notes))
    same = check_equivalence(model, copy.deepcopy(model), "float32 3x4", **claim)
    assert (same.outcome, same.notes) == ("within", ())


def test_given_inputs_reach_it() -> None:
    """Inputs of the user's own show the wrong expert."""
    model = Experts()
    large = [torch.full((3, 4), 1e7), torch.full((3, 4), 2e7)]
    bad = changed(model, "experts.1.weight", 2)
    assert check_equivalence(model, bad, "float32 3x4", given=large).outcome == "over"
    assert check_equivalence(model, copy.deepcopy(model), "float32 3x4", given=large).outcome == "within"


def test_a_wrapped_table_is_read_through_what_it_is_kept_in() -> None:
    """A wrapper's row is read where a row of its integers is."""
    good = nn.Embedding(ROWS, 16)
    second = copy.deepcopy(good)
    second.weight = nn.Parameter(Int8Rows.of(good.weight.data), requires_grad=False)
    found = check_equivalence(good, second, "int64 1x12", **LOSSY)
    assert found.outcome == "within", found.reason
    second.weight.codes[ROWS - 1] = 0
    found = check_equivalence(good, second, "int64 1x12", **LOSSY)
    assert found.outcome == "over"


class Routed(nn.Module):
    """Each row goes to one of three experts, and none to the last one, which runs on no rows."""

    def __init__(self, expert: Callable[[], nn.Module], wrong: str = "") -> None:
        super().__init__()
        self.experts = nn.ModuleList(expert() for _ in range(3))
        self.router = nn.Linear(8, 3)
        redraw(self)
        with torch.no_grad():
            self.router.bias[2] = -1e6
            for name, weight in self.experts[2].named_parameters():
                if name == wrong:
                    weight[1] += 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen, out = self.router(x).argmax(-1), torch.zeros_like(x)
        for at, expert in enumerate(self.experts):
            out[chosen == at] = expert(x[chosen == at])
        return out


EXPERTS = {
    "linear": lambda: nn.Sequential(nn.Linear(8, 8)),
    "convolution": lambda: nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(12, 8)),
    "norm": lambda: nn.Sequential(nn.LayerNorm(8), nn.ReLU()),
}


@pytest.mark.parametrize(
    ("kind", "wrong"), [("linear", "0.weight"), ("linear", "0.bias"), ("convolution", "1.weight"), ("norm", "0.weight")]
)
def test_an_expert_on_no_rows_is_not_read(kind: str, wrong: str) -> None:
    """It is called, with nothing: the same experts are within, and another last one nobody can judge."""
    expert = EXPERTS[kind]
    assert check_equivalence(Routed(expert), Routed(expert), "float32 16x8").outcome == "within"
    found = check_equivalence(Routed(expert), Routed(expert, wrong), "float32 16x8")
    assert found.outcome == "unknown"
    assert f"'experts.2.{wrong}'" in found.reason


def test_a_norms_count_of_batches_is_no_note() -> None:
    """Training alone reads it, and a folded model has none; where both have one, and not the same, that is told."""
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)).eval()
    folded = nn.Sequential(nn.utils.fuse_conv_bn_eval(net[0], net[1]))
    found = check_equivalence(net, folded, "float32 1x2x4x4")
    assert (found.outcome, [note for note in found.notes if "read" in note]) == ("within", [])
    other = copy.deepcopy(net)
    other[1].get_buffer("num_batches_tracked").add_(1)
    found = check_equivalence(net, other, "float32 1x2x4x4")
    assert found.outcome == "unknown"
    assert "'1.num_batches_tracked'" in found.reason
