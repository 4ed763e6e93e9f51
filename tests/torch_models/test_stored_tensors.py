"""What a model stores is counted as it is stored: made layers, wrapper tensors, frozen scripts."""

from __future__ import annotations

import copy
import importlib
import io
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from pytest_modelbudget import check_equivalence, measure
from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.formats.source import ModelSource, TensorSpec
from pytest_modelbudget.graph.tensor import StorageKind
from pytest_modelbudget.metrics.notes_on_stored import notes_on_stored
from pytest_modelbudget.metrics.storage import model_size, params, peak_activation, weight_memory
from pytest_modelbudget.torch_models.building import built
from tests.builders.torch_ways import recorded

pytestmark = pytest.mark.needs_torch


class Grows(nn.Module):
    """Linear 16 → 16, and a head that the first forward pass makes."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.l, self.place, self.kept = nn.Linear(16, 16), place, {}

    def head(self) -> nn.Module:
        if self.place == "attribute":
            if not hasattr(self, "h"):
                self.h = nn.Linear(16, 1000)
            return self.h
        if self.place == "dict":
            return self.kept.setdefault("h", nn.Linear(16, 1000))
        if self.place == "deep":
            if not hasattr(self, "h"):
                self.h = nn.Sequential(nn.Linear(16, 1000), nn.BatchNorm1d(1000)).eval()
            return self.h
        if not hasattr(self.l, "w"):
            self.l.w = nn.Parameter(torch.randn(1000, 16))
        return lambda x: x @ self.l.w.t()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head()(self.l(x))


@pytest.mark.parametrize("place", ["attribute", "dict", "deep", "parameter"])
def test_layers_that_forward_makes_are_refused(place: str) -> None:
    """Only later passes have them as weights. A path names the layer whose forward pass makes one."""
    model = nn.Sequential(Grows(place))
    with pytest.raises(TraceError, match=r"makes a parameter \(1000x16\) in '0': build its layer in __init__"):
        measure(model, "float32 4x16")
    assert not hasattr(model[0], "h")
    assert not model[0].kept


@pytest.mark.parametrize("needs_a_run", [False, True], ids=["meta", "real"])
def test_made_layers_are_refused_in_a_run(needs_a_run: bool) -> None:
    """Also one that this pass does not read, but keeps for later ones."""

    class Decides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.later = nn.Linear(16, 8)
            return -self.l(x) if needs_a_run and x.sum() > 0 else self.l(x)

    with pytest.raises(TraceError, match=r"makes a parameter \(8x16\): build its layer in __init__"):
        measure(Decides(), "float32 4x16")


class Offloaded(nn.Module):
    """A table and a head that lie on meta, tied or not; a pass brings in their values, as accelerate's hooks do."""

    def __init__(self, tied: bool, copies: bool) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, 16, device="meta"), nn.Linear(16, 50, bias=False, device="meta")
        values = torch.ones(50, 16)
        self.values, self.copies = (values, values if tied else torch.ones(50, 16)), copies

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        before, parts = (self.table.weight, self.head.weight), (self.table, self.head)
        for part, values in zip(parts, self.values, strict=True):
            part.weight = nn.Parameter(values.clone() if self.copies else values, requires_grad=False)
        result = self.head(self.table(ids))
        self.table.weight, self.head.weight = before
        return result


@pytest.mark.parametrize("way", ["meta", "real"])
@pytest.mark.parametrize(
    ("tied", "copies", "expected"),
    [
        pytest.param(False, False, 2 * 800, id="apart"),
        pytest.param(True, False, 800, id="tied"),
        pytest.param(False, True, 2 * 800, id="copied first"),
    ],
)
def test_a_parameter_made_under_the_path_of_a_stored_one_is_that_one(
    tied: bool, copies: bool, expected: int, way: str
) -> None:
    """Offloaded weights counted twice, and tied ones three times (GPTQModel#2225, accelerate#3785)."""
    costed = recorded(Offloaded(tied, copies), TensorSpec("int64", (2, 5), low=0, high=50), way=way)
    assert params(costed).value == expected
    assert weight_memory(costed).value == model_size(costed).value == 4 * expected


@pytest.mark.parametrize(("tied", "expected"), [(True, 800), (False, 2 * 800)])
def test_offloaded_weights_without_inputs(tied: bool, expected: int) -> None:
    """What accelerate's hooks keep in one memory is one weight."""
    model = Offloaded(tied, copies=False)
    for part, values in zip((model.table, model.head), model.values, strict=True):
        kept = type("Kept", (dict,), {"dataset": {}})(weight=values)
        part._hf_hook = SimpleNamespace(weights_map=kept)  # type: ignore[assignment]
    assert measure(model)["params"].value == expected


VALUES = torch.ones(16, 8)
BYTES, PICKLED, ARRAY = bytearray(16 * 8 * 4), pickle.dumps(VALUES), VALUES.numpy()


def loaded() -> torch.Tensor:
    file = io.BytesIO()
    torch.save(VALUES, file)
    file.seek(0)
    return torch.load(file)


def on_a_storage() -> torch.Tensor:
    return torch.empty(0).set_(VALUES.untyped_storage(), 0, (16, 8), (8, 1))


def whose_memory_was_asked_for() -> torch.Tensor:
    VALUES.untyped_storage().data_ptr()
    return on_a_storage()


FOUND: dict[str, Callable[[], torch.Tensor]] = {
    "frombuffer": lambda: torch.frombuffer(BYTES, dtype=torch.float32).view(16, 8),
    "from_numpy": lambda: torch.from_numpy(ARRAY),
    "pickle": lambda: pickle.loads(PICKLED),
    "load": loaded,
    "set_": on_a_storage,
    "asked for first": whose_memory_was_asked_for,
}


class Finds(nn.Module):
    """Linear 16 → 16, and a weight that its pass finds outside, and keeps where it learns."""

    def __init__(self, find: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self.l, self.find, self.w = nn.Linear(16, 16), find, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(found := self.find(), nn.Parameter):
            self.w = found
        return self.l(x) @ found


@pytest.mark.parametrize("way", ["meta", "real"])
@pytest.mark.parametrize("find", FOUND.values(), ids=FOUND)
def test_values_that_a_pass_finds_are_constants(find: Callable[[], torch.Tensor], way: str) -> None:
    """No parameters and no activations: 4 rows of 16 and 16 are alive at once, then of 16 and 8."""
    costed = recorded(Finds(find), TensorSpec("float32", (4, 16)), way=way)
    constants = [weight.tensor for weight in costed.graph.weights if weight.kind is StorageKind.CONSTANT]
    assert [tensor.storage.nbytes for tensor in constants] == [4 * 16 * 8]
    assert params(costed).value == 16 * 16 + 16
    assert peak_activation(costed).value == 4 * (4 * 16 + 4 * 16)
    (note,) = notes_on_stored(costed)
    assert f"{constants[0].name} ({'x'.join(map(str, constants[0].shape))}), read by aten::matmul" in note


def test_found_values_that_become_a_parameter_are_refused() -> None:
    """As layers are that a pass makes."""
    finds = Finds(lambda: nn.Parameter(torch.from_numpy(ARRAY)))
    with pytest.raises(TraceError, match=r"makes a parameter \(16x8\): build its layer in __init__"):
        recorded(finds, TensorSpec("float32", (4, 16)), way="meta")


@pytest.mark.parametrize("way", ["meta", "real"])
def test_a_copy_that_a_pass_makes_of_what_it_finds_is_an_activation(way: str) -> None:
    """A copy of 16 x 8 is alive beside 4 rows of 16 and of 16."""
    costed = recorded(Finds(lambda: copy.deepcopy(VALUES)), TensorSpec("float32", (4, 16)), way=way)
    assert peak_activation(costed).value == 4 * (16 * 8 + 4 * 16 + 4 * 16)
    assert len(notes_on_stored(costed)) == 1


class Opaque(torch.Tensor):
    """A weight (n, k) kept as int8 with a float16 scale a row, which does not say so."""

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor) -> None:
        self.codes, self.scale = codes, scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            return cls(args[0].codes, args[0].scale)
        plain = tuple(a.codes * a.scale.float() if isinstance(a, cls) else a for a in args)
        return func(*plain, **(kwargs or {}))


class Rows(Opaque):
    """The same, and it says so, as quantisation libraries do."""

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["scale", "codes"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, meta: Any, size: Any, stride: Any) -> Any:
        return cls(inner["codes"], inner["scale"])


def in_rows(*shape: int) -> nn.Parameter:
    """A parameter of this shape kept in rows."""
    codes = torch.randint(-127, 127, shape, dtype=torch.int8)
    return nn.Parameter(Rows(codes, torch.rand(shape[0], 1).half()), requires_grad=False)


def quantised_in_rows() -> nn.Module:
    """A layer whose scales are made of its weights; what torch leaves unfilled is NaN here."""
    torch.use_deterministic_algorithms(True)
    layer = nn.Linear(64, 32)
    torch.use_deterministic_algorithms(False)
    scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
    codes = (layer.weight.detach() / scale).round().to(torch.int8)
    layer.weight = nn.Parameter(Rows(codes, scale.half()), requires_grad=False)
    return layer


def test_scales_of_wrapper_tensors_are_computed_from_weights_that_were_drawn() -> None:
    weight: Any = built(ModelSource("torch", f"{__name__}:quantised_in_rows")).weight
    assert (weight.scale > 0).all()  # NaN is not


STORED_ROWS = 100 * 64 + 2 * 100  # int8 codes, a float16 scale a row
BIASES = 4 * 100


@pytest.mark.parametrize("way", ["meta", "real"])
def test_wrapper_tensors_are_counted_as_they_are_stored(way: str) -> None:
    """Elements of the outer shape, bytes of the inner tensors, in memory and in traffic."""

    class Net(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if way == "real":
                bool(x.sum() > 0)
            return super().forward(x)

    model = Net(64, 100).eval()
    model.weight = in_rows(100, 64)
    measured = measure(model, "float32 4x64")
    assert measured.traced == way
    assert measured["params"].value == 6400 + 100
    assert measured["weight_memory"].value == STORED_ROWS + BIASES
    assert measured["model_size"].value == STORED_ROWS + BIASES
    assert measured["macs"].value == 4 * 64 * 100
    if way == "meta":
        through = 4 * 4 * 64 + 4 * 4 * 100
        assert measured["bandwidth"].value == through + STORED_ROWS + BIASES


def test_a_model_may_ask_for_the_class_of_its_weight() -> None:
    """As layers of optimum-quanto do, which quantise a weight of any other class in each pass."""

    class Asks(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = self.weight if isinstance(self.weight, Rows) else self.weight.abs().round() * 2
            result = nn.functional.linear(x, weight, self.bias)
            return result if type(result) is torch.Tensor else result * 2

    model = Asks(64, 100).eval()
    model.weight = in_rows(100, 64)
    measured = measure(model, "float32 4x64")
    assert (measured.traced, measured["ops"].parts) == ("meta", {"linear": 1})
    assert measured["bandwidth"].value == 4 * 4 * 64 + 4 * 4 * 100 + STORED_ROWS + BIASES
    assert type(model.weight) is Rows


class Meshed(Rows):
    """The same, with a part that is no tensor, as the mesh of a distributed one."""

    mesh = object()

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["scale", "mesh", "codes"], None


def test_parts_of_a_wrapper_that_are_no_tensors_have_no_bytes() -> None:
    model = nn.Linear(64, 100).eval()
    rows: Any = in_rows(100, 64)
    model.weight = nn.Parameter(Meshed(rows.codes, rows.scale), requires_grad=False)
    measured = measure(model, "float32 4x64")
    assert (measured["params"].value, measured["weight_memory"].value) == (6400 + 100, STORED_ROWS + BIASES)


def test_tied_wrapper_tensors_are_paid_for_once() -> None:
    """One parameter under two names."""
    model = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)).eval()
    model[0].weight = model[1].weight = in_rows(16, 16)
    measured = measure(model, "float32 4x16")
    assert (measured["params"].value, measured["weight_memory"].value) == (256, 256 + 32)


@pytest.mark.parametrize("first", [0, 1], ids=["wrapper first", "plain first"])
@pytest.mark.parametrize("turned", [False, True], ids=["same", "transposed"])
def test_a_plain_weight_in_the_memory_of_a_wrapper_is_paid_for_once(first: int, turned: bool) -> None:
    """Rows of 16 elements in int8 are kept beside a float16 scale, which is a parameter, too."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            wrapper = in_rows(16, 16)
            scale = wrapper.scale.t() if turned else wrapper.scale
            both = {"wrapped": wrapper, "plain": nn.Parameter(scale, requires_grad=False)}
            for name in sorted(both, reverse=not first):
                setattr(self, name, both[name])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, self.wrapped)

    measured = measure(Tied(), "float32 4x16")
    assert measured["weight_memory"].value == 16 * 16 + 2 * 16
    assert measured["model_size"].value == 16 * 16 + 2 * 16


def test_a_wrapper_that_hides_its_tensors_is_refused() -> None:
    """What it stores cannot be told, so that nothing is."""
    model = nn.Linear(16, 16)
    codes = torch.zeros(16, 16, dtype=torch.int8)
    model.weight = nn.Parameter(Opaque(codes, torch.ones(16, 1)), requires_grad=False)
    with pytest.raises(TraceError, match="weight is an Opaque, which does not say in which tensors"):
        measure(model, "float32 4x16")


@pytest.mark.parametrize("way", ["meta", "real"])
def test_a_wrapped_parameter_of_no_module_is_refused(way: str) -> None:
    """As a plain one is: it would be in no number of parameters."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = [in_rows(16, 16)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if way == "real":
                bool(x.sum() > 0)
            return nn.functional.linear(x, self.held[0])

    with pytest.raises(TraceError, match=r"reads a parameter \[16, 16\] that its parameters\(\) lack"):
        measure(Net(), "float32 4x16")


def test_torchao_weights_are_counted_as_they_are_stored() -> None:
    """Int8 values, a float32 scale and an int8 zero point a row, beside float32 biases."""
    quantization = pytest.importorskip("torchao.quantization")
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10)).eval()
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    stored = 64 * 100 + 5 * 100 + 4 * 100 + 100 * 10 + 5 * 10 + 4 * 10
    measured = measure(model, "float32 4x64")
    assert (measured["params"].value, measured["weight_memory"].value) == (7510, stored)


class Sparse(nn.Module):
    """A graph convolution: a sparse matrix of four ones times a layer's result."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.register_buffer("a", getattr(torch.eye(4), layout)())
        self.l = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a @ self.l(x)


COO, CSR = 4 * 4 + 2 * 4 * 8, 4 * 4 + 5 * 8 + 4 * 8  # values and int64 indices


@pytest.mark.filterwarnings("ignore:Sparse CS")
@pytest.mark.parametrize(("layout", "nbytes"), [("to_sparse", COO), ("to_sparse_csr", CSR), ("to_sparse_csc", CSR)])
def test_sparse_buffers_are_counted_and_what_reads_them_is_named(layout: str, nbytes: int) -> None:
    """Sizes are exact; how much a sparse product multiplies, its shapes do not tell."""
    measured = measure(Sparse(layout), "float32 4x16")
    assert measured["params"].value == 16 * 16 + 16
    assert measured["model_size"].value == 4 * (16 * 16 + 16) + nbytes
    assert measured["macs"].value == 4 * 16 * 16
    assert len(measured["macs"].unmeasured) == 1


def mlp() -> nn.Module:
    """7,510 parameters in four tensors."""
    return nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10)).eval()


def small_cnn() -> nn.Module:
    """A convolution with its norm, which freezing folds into one weight and one bias."""
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))
    return nn.Sequential(*layers).eval()


MLP_ELEMENTS = 64 * 100 + 100 + 100 * 10 + 10
CNN_ELEMENTS = 8 * 3 * 9 + 8 + 288 * 5 + 5  # γ and β are gone
FREEZERS: dict[str, Callable[[nn.Module, torch.Tensor], torch.jit.ScriptModule]] = {
    "scripted": lambda model, x: torch.jit.freeze(torch.jit.script(model)),
    "traced": lambda model, x: torch.jit.freeze(torch.jit.trace(model, x)),
    "optimised": lambda model, x: torch.jit.optimize_for_inference(torch.jit.script(model)),
}


@pytest.mark.parametrize("source", ["file", "memory"])
@pytest.mark.parametrize("freeze", FREEZERS.values(), ids=list(FREEZERS))
def test_frozen_scripts_have_the_weights_that_became_constants(
    freeze: Callable[[nn.Module, torch.Tensor], Any], source: str, tmp_path: Path
) -> None:
    """From a file and in memory, traced and scripted, optimised ones too."""
    target: Any = freeze(mlp(), torch.rand(4, 64))
    if source == "file":
        target.save(str(tmp_path / "frozen.pt"))
        target = str(tmp_path / "frozen.pt")
    measured = measure(target, "float32 4x64")
    assert (measured["params"].value, measured["params"].unmeasured) == (MLP_ELEMENTS, ())
    assert measured["weight_memory"].value == 4 * MLP_ELEMENTS
    assert measured["model_size"].value == 4 * MLP_ELEMENTS
    assert measured["macs"].value == 4 * (64 * 100 + 100 * 10)


class OfOneMemory(nn.Module):
    """Two weights of 8 x 8 and a bias of 8 in a memory of 192 elements, as cuDNN lays those of a recurrent layer."""

    def __init__(self, *, registered: bool = True) -> None:
        super().__init__()
        flat = torch.rand(3, 8, 8)
        parts = flat[0], flat[1], flat[2, 0]
        self.weights: Any = nn.ParameterList(map(nn.Parameter, parts)) if registered else parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weights[0] @ self.weights[1] + self.weights[2]


OF_ONE_MEMORY = 8 * 8 + 8 * 8 + 8


@pytest.mark.parametrize("source", ["file", "memory", "part"])
@pytest.mark.parametrize("script", ["scripted", "traced"])
def test_frozen_weights_of_one_memory_count_each(script: str, source: str, tmp_path: Path) -> None:
    """Of 192 elements 136 are weights; a product of 8 x 8 around the script has 64 more."""
    target: Any = FREEZERS[script](OfOneMemory().eval(), torch.rand(4, 8))
    around = 0
    if source == "file":
        target.save(str(tmp_path / "frozen.pt"))
        target = str(tmp_path / "frozen.pt")
    if source == "part":
        target, around = nn.Sequential(nn.Linear(8, 8, bias=False), target), 64
    measured = measure(target, "float32 4x8")
    assert measured["params"].value == OF_ONE_MEMORY + around
    assert measured["weight_memory"].value == measured["model_size"].value == 4 * (OF_ONE_MEMORY + around)
    assert measured["macs"].value == 4 * (2 * 64 + around)


@pytest.mark.parametrize("form", ["module", "traced", "exported"])
def test_constants_of_one_memory_are_stored_each(form: str, tmp_path: Path) -> None:
    """Files store 136 elements of plain attributes, modules none; both matrices are named."""
    model: Any = OfOneMemory(registered=False).eval()
    if form == "traced":
        model = torch.jit.trace(model, torch.rand(4, 8))
    if form == "exported":
        model = torch.export.export(model, (torch.rand(4, 8),))
    measured = measure(model) if form == "exported" else measure(model, "float32 4x8")
    assert measured["params"].value == 0
    assert measured["model_size"].value == (0 if form == "module" else 4 * OF_ONE_MEMORY)
    [note] = [note for note in measured.notes if note.startswith("weights that are no parameters")]
    first, second = sorted(re.findall(r"(constant\.\w+) \(8x8\)", note))
    assert second == f"{first}_1"
    assert ", read by aten::" in note


WHOLE = 4 * 8 * 4  # bytes of an input of 4 x 8, or of an output


class ViewsOfOneMemory(nn.Module):
    """Memory of 2 x 64 float32: the first is a parameter, and what lies where the rest says."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        flat = torch.rand(2, 8, 8)
        self.kind, self.w = kind, nn.Parameter(flat[0])
        part = {"same": flat[0], "bytes": flat[0].view(torch.int8), "complex": torch.view_as_complex(flat.view(64, 2))}
        held = part.get(kind.split()[0], flat[1])
        if "plain" in kind:
            self.part = held
        else:
            self.register_buffer("part", held)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "complex" in self.kind:
            return x @ self.w * self.part.abs().sum()
        part = self.part.float().sum() if "bytes" in self.kind else self.part
        return x @ self.w * part if "bytes" in self.kind else x @ self.w @ part


@pytest.mark.parametrize(
    ("kind", "size", "weights_read", "named"),
    [
        ("same plain", 256, 256, ""), ("same buffer", 256, 256, ""),
        ("beside plain", 256, 512, "constant"), ("beside buffer", 512, 512, ""),
        ("bytes plain", 256, 256, ""), ("bytes buffer", 256, 256, ""),
        ("complex buffer", 512, 512, ""),
    ],
)  # fmt: skip
def test_views_of_a_parameter_have_their_kind(kind: str, size: int, weights_read: int, named: str) -> None:
    """64 elements are the parameter's; every byte is stored, and read at least, once; what lies beside is told."""
    measured = measure(ViewsOfOneMemory(kind), "float32 4x8")
    assert measured["params"].value == measured["trainable_params"].value == 64
    assert measured["weight_memory"].value == 64 * 4
    assert measured["model_size"].value == size
    assert measured["bandwidth_floor"].value == 2 * WHOLE + weights_read
    notes = [note for note in measured.notes if note.startswith("weights that are no parameters")]
    assert len(notes) == bool(named)
    assert all(f": {named}" in note for note in notes)


class Arena(nn.Module):
    """Bytes that hold 8 x 8 float16, and behind them 8 x 8 float32."""

    def __init__(self) -> None:
        super().__init__()
        memory = torch.zeros(8 * 8 * 2 + 8 * 8 * 4, dtype=torch.uint8)
        self.first = nn.Parameter(memory[: 8 * 8 * 2].view(torch.float16).view(8, 8))
        self.second = nn.Parameter(memory[8 * 8 * 2 :].view(torch.float32).view(8, 8))
        self.register_buffer("memory", memory)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.first.float() @ self.second


def test_parameters_of_several_types_in_one_memory() -> None:
    """In elements of their own they would overlap: 0 to 64, and 32 to 96."""
    measured = measure(Arena(), "float32 4x8")
    assert measured["params"].value == 2 * 8 * 8
    assert measured["weight_memory"].value == measured["model_size"].value == 8 * 8 * (2 + 4)
    assert measured["bandwidth_floor"].value == 2 * WHOLE + 8 * 8 * (2 + 4)


class OfBranches(nn.Module):
    """A matrix for each way; the second way has two products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.rand(8, 8), torch.rand(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x @ self.first, lambda x: x @ self.second @ self.second, (x,))


def test_what_a_cheaper_branch_reads_is_told_apart() -> None:
    measured = measure(OfBranches(), "float32 4x8")
    assert measured["bandwidth_floor"].value == 2 * WHOLE + 256
    [weights, constants] = [note for note in measured.notes if "model_size lacks" in note]
    assert weights.count("(8x8)") == 1
    assert constants.endswith(": 256 B, read by no operation that is counted; model_size lacks them")


class PickedRows(nn.Module):
    """40 rows of 8 integers, dequantised as a whole or by the rows that are picked, and Linear 8 → 4."""

    table: torch.Tensor

    def __init__(self, *, whole: bool) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(40, 8, dtype=torch.int8))
        self.head, self.whole = nn.Linear(8, 4, bias=False), whole

    def forward(self, at: torch.Tensor) -> Any:
        if self.whole:
            return self.head(nn.functional.embedding(at, self.floats(self.table)))
        return self.head(self.floats(nn.functional.embedding(at, self.table)))

    def floats(self, integers: torch.Tensor) -> Any:
        return torch.ops.quantized_decomposed.dequantize_per_tensor(integers, 0.5, 0, -128, 127, torch.int8)


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "rows"])
def test_a_frozen_table_of_integers_has_its_elements(whole: bool) -> None:
    """Which comes first, picking or dequantising, changes nothing: 40 · 8 and 8 · 4 parameters."""
    importlib.import_module("torch.ao.quantization.fx._decomposed")  # declares the operators
    frozen = torch.jit.freeze(torch.jit.trace(PickedRows(whole=whole).eval(), torch.zeros(1, 5, dtype=torch.long)))
    rows = TensorSpec("int64", (1, 5), low=0, high=40)
    assert measure(frozen, rows)["params"].value == 40 * 8 + 8 * 4


def test_a_frozen_convolution_has_its_folded_weights() -> None:
    """Batch norm is folded into the convolution, and counts no more."""
    frozen = torch.jit.freeze(torch.jit.script(small_cnn()))
    assert measure(frozen, "float32 1x3x8x8")["params"].value == CNN_ELEMENTS


class Around(nn.Module):
    """A frozen part, a layer behind it, and a table that is no part of either."""

    def __init__(self, part: Any) -> None:
        super().__init__()
        self.part, self.head, self.table = part, nn.Linear(10, 5), torch.ones(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.part(x)) @ self.table


@pytest.mark.parametrize("is_factory", [False, True], ids=["module", "factory"])
@pytest.mark.parametrize("freeze", FREEZERS.values(), ids=list(FREEZERS))
def test_a_frozen_part_of_a_module_has_the_weights_that_it_has_alone(
    freeze: Callable[[nn.Module, torch.Tensor], Any], is_factory: bool
) -> None:
    model = Around(freeze(mlp(), torch.rand(4, 64)))
    measured = measure((lambda: model) if is_factory else model, "float32 4x64")
    assert measured["params"].value == MLP_ELEMENTS + 10 * 5 + 5
    assert measured["weight_memory"].value == measured["model_size"].value == 4 * (MLP_ELEMENTS + 10 * 5 + 5)
    (note,) = measured.notes
    assert "(5x3), read by aten::matmul" in note


def test_a_frozen_part_is_nothing_without_a_run() -> None:
    with pytest.raises(TraceError):
        measure(Around(torch.jit.freeze(torch.jit.script(mlp()))))


def test_a_model_is_compared_with_its_frozen_script() -> None:
    """The same function, whether its weights are attributes or constants."""
    model = mlp()
    equivalence = check_equivalence(model, torch.jit.freeze(torch.jit.script(model)), "float32 4x64")
    assert equivalence.outcome.value == "within"


RECURRENT: dict[str, tuple[Callable[[], nn.Module], str, int]] = {  # packs: two matrices and their grids each
    "LSTM": (lambda: nn.LSTM(16, 16), "float32 5x3x16", 1),
    "deep LSTM": (lambda: nn.LSTM(16, 32, num_layers=2, bidirectional=True), "float32 5x3x16", 4),
    "batch first": (lambda: nn.LSTM(16, 32, batch_first=True), "float32 3x5x16", 1),
    "GRU": (lambda: nn.GRU(16, 32, bidirectional=True), "float32 5x3x16", 2),
    "LSTM cell": (lambda: nn.LSTMCell(16, 16), "float32 3x16", 1),
    "GRU cell": (lambda: nn.GRUCell(16, 32), "float32 3x16", 1),
    "RNN cell": (lambda: nn.RNNCell(16, 32, nonlinearity="relu"), "float32 3x16", 1),
}
packs = pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated", "ignore:torch.quantize_per_tensor")
GRIDS = 2 * (8 + 8)  # a scale and a zero point of 8 B for each matrix


@packs
@pytest.mark.parametrize(("build", "inputs", "count"), RECURRENT.values(), ids=list(RECURRENT))
@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16], ids=str)
def test_recurrent_layers_under_dynamic_quantisation_are_counted(
    build: Callable[[], nn.Module], inputs: str, count: int, dtype: torch.dtype
) -> None:
    """Params, MACs and FLOPs of the float layer, whose matrices alone are kept in the type."""
    layer = build()
    packed = torch.ao.quantization.quantize_dynamic(nn.Sequential(layer), {type(layer)}, dtype=dtype)
    plain, measured = measure(layer, inputs), measure(packed, inputs)
    for key in ("params", "macs", "flops"):
        assert (measured[key].value, measured[key].unmeasured) == (plain[key].value, ()), key
    matrices = sum(w.numel() for w in layer.parameters() if w.dim() == 2)
    biases = sum(w.numel() for w in layer.parameters() if w.dim() == 1)
    in_type = matrices + count * GRIDS if dtype is torch.qint8 else 2 * matrices
    assert measured["weight_memory"].value == in_type + 4 * biases


@packs
def test_packed_sequences_are_counted_row_by_row() -> None:
    """5 + 3 rows of 16 through both matrices of the four gates."""

    class Packs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.LSTM(16, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.l(nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3])))[0].data

    packed = torch.ao.quantization.quantize_dynamic(Packs(), {nn.LSTM}, dtype=torch.qint8)
    measured = measure(packed, "float32 5x2x16")
    assert (measured["macs"].value, measured["macs"].unmeasured) == ((5 + 3) * 4 * 32 * (16 + 32), ())


@packs
def test_a_linear_layer_in_float16_is_stored_in_float16() -> None:
    """Torch gives its weight back in float32, and keeps it in half of that."""
    packed = torch.ao.quantization.quantize_dynamic(mlp(), {nn.Linear}, dtype=torch.float16)
    floats = list(mlp().parameters())
    expected = sum(w.numel() * (2 if w.dim() == 2 else 4) for w in floats)
    assert measure(packed, "float32 4x64")["weight_memory"].value == expected
