"""Models that were written, built or saved for an accelerator measure as those of the CPU, with or without one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from torch import nn

from pytest_modelbudget import check_equivalence, measure
from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.torch_models.accelerators import is_accelerator
from tests.builders.micro_modules import Layer, OfDevice

pytestmark = pytest.mark.needs_torch
HAS_CUDA = torch.cuda.is_available()
needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason="torch sees no CUDA device here")
GIVEN = "float32 4x16"
MACS = 4 * 16 * 16  # of the one linear layer
CUDA = torch.device("cuda")


def numbers(model: Any, inputs: Any = GIVEN) -> dict[str, Any]:
    """Every metric of a model, each complete."""
    measured = measure(model, inputs)
    assert all(number.complete for number in measured.values())
    return {name: number.value for name, number in measured.items()}


def decided(m: Any, x: torch.Tensor) -> Any:
    """A product that its values scale."""
    y = m.l(x.cuda())
    return y * (2 if y.sum() > 0 else 3)


def decided_on_cpu(m: Any, x: torch.Tensor) -> Any:
    y = m.l(x.cpu())
    return y * (2 if y.sum() > 0 else 3)


def within(m: Any, x: torch.Tensor) -> Any:
    with CUDA:
        return m.l(x) + torch.ones(16)


def where_it_is(m: Any, x: torch.Tensor) -> Any:
    asked = torch.cuda.is_available(), torch.cuda.device_count(), torch.accelerator.is_available()
    return m.l(m.l(x)) if any(asked) else m.l(x)


def plain(m: Any, x: torch.Tensor) -> Any:
    return m.l(x)


def of_type(m: Any, x: torch.Tensor) -> Any:
    return m.l(x.type("torch.FloatTensor"))


def moved(m: Any, x: torch.Tensor) -> Any:
    return m.l(x.to("cpu"))


def biased(m: Any, x: torch.Tensor) -> Any:
    return m.l(x) + torch.ones(16)


def bias_moved(m: Any, x: torch.Tensor) -> Any:
    return m.l(x) + torch.ones(16).cpu()


# Each with the same as somebody writes it who has no accelerator.
FORWARDS: dict[str, tuple[Callable[[Any, torch.Tensor], Any], Callable[[Any, torch.Tensor], Any]]] = {
    "cuda": (lambda m, x: m.l(x.cuda()), moved),
    "by a word": (lambda m, x: m.l(x.to("cuda:0")), moved),
    "by a device": (lambda m, x: m.l(x.to(device=CUDA, dtype=torch.float32)), moved),
    "by an index": (lambda m, x: m.l(x.to(0)), moved),
    "back": (lambda m, x: m.l(x.to("cuda", non_blocking=True)).cpu(), lambda m, x: m.l(x.to("cpu")).cpu()),
    "where there is one": (lambda m, x: m.l(x.cuda() if torch.cuda.is_available() else x), plain),
    "made there": (lambda m, x: m.l(x) + torch.ones(16, device="cuda"), biased),
    "made by an index": (lambda m, x: m.l(x) + torch.ones(16, device=0), biased),
    "made like": (lambda m, x: m.l(x) + x.new_ones(16, device=CUDA), biased),
    "a default": (within, biased),
    "pinned": (lambda m, x: m.l(x) + torch.ones(16, pin_memory=True).to("cuda", non_blocking=True), bias_moved),
    "pinned afterwards": (lambda m, x: m.l(x) + torch.ones(16).pin_memory().cuda(), bias_moved),
    "decided": (decided, decided_on_cpu),
    "asked in other ways": (where_it_is, plain),
    "by a type": (lambda m, x: m.l(x.type("torch.cuda.FloatTensor")), of_type),
    "by a class": (lambda m, x: m.l(x.type(torch.cuda.FloatTensor)), of_type),
}


@pytest.mark.parametrize(("forward", "on_cpu"), FORWARDS.values(), ids=list(FORWARDS))
def test_a_pass_that_names_an_accelerator_runs_on_the_cpu(
    forward: Callable[[Any, torch.Tensor], Any], on_cpu: Callable[[Any, torch.Tensor], Any]
) -> None:
    """Every metric, and a proof that runs it."""
    model = Layer(forward)
    found = numbers(model)
    assert found["macs"] == MACS
    assert found == numbers(Layer(on_cpu))
    assert check_equivalence(model, model, GIVEN).outcome == "within"


def test_a_pass_that_makes_tensors_there_is_followed_without_values() -> None:
    """As one that makes them on the CPU: no memory is needed for its weights."""
    assert measure(Layer(FORWARDS["made there"][0]), GIVEN).traced == "meta"


UNGUARDED: dict[str, Callable[[], Any]] = {
    "kind": torch.cuda.get_device_capability,
    "memory": torch.cuda.mem_get_info,
    "chosen": torch.cuda.current_device,
    "waiting": torch.cuda.synchronize,
    "stream": lambda: torch.cuda.current_stream().query(),
}


@pytest.mark.parametrize("ask", UNGUARDED.values(), ids=UNGUARDED)
def test_what_is_asked_of_an_accelerator_without_a_look_is_refused(ask: Callable[[], Any]) -> None:
    """With one there or not: as on any machine without one, with the way out."""
    with pytest.raises(TraceError, match=r"ask is_available\(\) before, which is False there"):
        measure(Layer(lambda m, x: m.l(x) if ask() is None else x), GIVEN)


IN_A_PROCESS = """
import torch
from torch import nn
from pytest_modelbudget import check_equivalence, measure

class Decided(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y.clone() if y.sum() > 0 else y.clone()

kept = torch.cuda.is_available, torch.cuda.synchronize, torch.cuda.Stream.__new__, torch.Tensor.to
codes = [each.__code__ for each in kept[:3]]
model = Decided(16, 16)
assert measure(model, "float32 4x16").traced == "real"  # in which torch loads its compiler
assert check_equivalence(model, model, "float32 4x16").outcome == "within"
assert kept == (torch.cuda.is_available, torch.cuda.synchronize, torch.cuda.Stream.__new__, torch.Tensor.to)
assert codes == [each.__code__ for each in kept[:3]]

from torch._dynamo.device_interface import CudaInterface
assert CudaInterface.synchronize is torch.cuda.synchronize and CudaInterface.Stream is torch.cuda.Stream
torch.export.export(nn.Linear(16, 16), (torch.rand(4, 16),))
"""


def test_what_torch_loads_during_a_pass_keeps_nothing_of_it() -> None:
    """Its compiler has tables of functions of CUDA, which it fills when it is first used: here by the pass."""
    ran = subprocess.run([sys.executable, "-c", IN_A_PROCESS], check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


FACTORIES: dict[str, Callable[[], nn.Module]] = {
    "cuda": lambda: nn.Linear(16, 16).cuda(),
    "to": lambda: nn.Sequential(nn.Linear(16, 16), nn.ReLU()).to("cuda:0"),
    "made there": lambda: nn.Linear(16, 16, device=CUDA),
    "with a buffer": lambda: nn.BatchNorm1d(16, device="cuda"),
    "scripted": lambda: torch.jit.script(nn.Linear(16, 16).cuda()),
    "of a device": OfDevice,
    "of another": lambda: nn.Linear(16, 16).to("mps"),
    "made on another": lambda: nn.Linear(16, 16, device="xpu"),
    "caught": lambda: caught(),
}


def caught() -> nn.Module:
    """Tells in words of its own that there is none."""
    try:
        return nn.Linear(16, 16).cuda()
    except Exception as error:
        raise ValueError("no device") from error


ON_CPU: dict[str, Callable[[], nn.Module]] = {
    "cuda": lambda: nn.Linear(16, 16),
    "to": lambda: nn.Sequential(nn.Linear(16, 16), nn.ReLU()),
    "made there": lambda: nn.Linear(16, 16),
    "with a buffer": lambda: nn.BatchNorm1d(16),
    "scripted": lambda: torch.jit.script(nn.Linear(16, 16)),
    "of a device": lambda: OfDevice("cpu"),
    **dict.fromkeys(("of another", "made on another", "caught"), lambda: nn.Linear(16, 16)),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_a_factory_may_build_for_an_accelerator(name: str) -> None:
    """With one there or not: every metric, and a proof."""
    assert numbers(FACTORIES[name]) == numbers(ON_CPU[name])
    assert check_equivalence(FACTORIES[name], FACTORIES[name], GIVEN).outcome == "within"


def test_a_file_may_build_for_an_accelerator_when_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module-level model; what stood in for torch's own functions meanwhile is gone."""
    (tmp_path / "built_on_import.py").write_text("from torch import nn\n\nmodel = nn.Linear(16, 16).cuda()\n")
    monkeypatch.syspath_prepend(tmp_path)
    asked = torch.cuda.is_available
    assert numbers("built_on_import:model") == numbers(nn.Linear(16, 16))
    assert torch.cuda.is_available is asked


@pytest.mark.parametrize("forward", [plain, decided_on_cpu], ids=["plain", "decided"])
def test_a_model_that_is_spread_over_devices_runs_on_one(forward: Callable[[Any, torch.Tensor], Any]) -> None:
    """As its layer alone, in a pass and a run; the devices are still its own afterwards."""
    spread = nn.DataParallel(Layer(forward))
    spread.device_ids, spread.src_device_obj = [0, 1], torch.device("cuda", 0)
    assert numbers(spread) == numbers(Layer(forward))
    assert check_equivalence(spread, spread, GIVEN).outcome == "within"
    assert spread.device_ids == [0, 1]


@contextmanager
def as_default(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("way", [torch.device, as_default], ids=["context", "default"])
def test_a_default_device_of_the_caller_changes_no_run(way: Callable[[str], Any]) -> None:
    """The device without memory stands for any: what is drawn and run lies on the CPU."""
    model = Layer(decided_on_cpu)
    found = numbers(model)
    with way("meta"):
        assert numbers(model) == found
        assert check_equivalence(model, model, GIVEN).outcome == "within"


HERE_AND_THERE = {
    ".py": (b'torch.device("cpu")', b'torch.device("cuda:0")'),
    ".json": (b'{"type": "cpu", "index": null}', b'{"type": "cuda", "index": 0}'),
    ".pkl": (b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0"),  # a word with its length before it
}


def for_cuda(file: Path) -> str:
    """A copy of a file, in whose programs, tables and pickles another device stands, and of the files in it."""
    other = file.with_name(f"cuda_{file.name}")
    changed = False
    with ZipFile(file) as archive, ZipFile(other, "w") as written:
        for name in archive.namelist():
            content = archive.read(name)
            if content.startswith(b"PK"):
                (inner := file.with_name("within.zip")).write_bytes(content)
                content = Path(for_cuda(inner)).read_bytes()
            before, after = HERE_AND_THERE.get(Path(name).suffix, (b"", b""))
            changed |= bool(before) and before in content
            written.writestr(name, content.replace(before, after) if before else content)
    assert changed
    return str(other)


class Counting(nn.Module):
    """Adds numbers that it makes where its input lies, which a trace and an export write down."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> Any:
        return self.l(x) + torch.arange(16, device=x.device)


class Kept(nn.Module):
    """Keeps its device and moves to it what it is given."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.l, self.device = nn.Linear(16, 16), torch.device(device)

    def forward(self, x: torch.Tensor) -> Any:
        return self.l(x.to(self.device)) + torch.ones(16, device=self.device)


class Named(nn.Module):
    """Names it where it is used, and takes a path by its values."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.l(x.to("cuda:0"))
        if bool(y.sum() > 0):
            return y + torch.ones(16, device=torch.device("cuda"))
        return y + torch.ones(16, device=torch.device("cuda"))


class NamedOnCPU(nn.Module):
    """The same."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.l(x.to("cpu"))
        if bool(y.sum() > 0):
            return y + torch.ones(16, device=torch.device("cpu"))
        return y + torch.ones(16, device=torch.device("cpu"))


@pytest.mark.parametrize("part", [False, True], ids=["whole", "part"])
@pytest.mark.parametrize(("there", "here"), [(lambda: Kept("cuda"), lambda: Kept("cpu")), (Named, NamedOnCPU)],
                         ids=["kept", "named"])  # fmt: skip
def test_a_script_may_name_an_accelerator(
    there: Callable[[], nn.Module], here: Callable[[], nn.Module], part: bool
) -> None:
    """Its program stays as it is; every metric, the same way of following it, and a proof."""
    script, on_cpu = (torch.jit.script(make()) for make in (there, here))
    before = str(script.inlined_graph)
    one, other = (nn.Sequential(each) if part else each for each in (script, on_cpu))
    assert numbers(one) == numbers(other)
    assert measure(one, GIVEN).traced == measure(other, GIVEN).traced
    assert check_equivalence(one, one, GIVEN).outcome == "within"
    assert str(script.inlined_graph) == before


def test_a_trace_from_an_accelerator(tmp_path: Path) -> None:
    """The device in its code is one that may not be there."""
    file = tmp_path / "counting.pt"
    torch.jit.trace(Counting().eval(), torch.rand(4, 16)).save(str(file))
    other = for_cuda(file)
    assert numbers(other) == numbers(str(file))
    assert check_equivalence(str(file), other, GIVEN).outcome == "within"


class Forked(Counting):
    """Makes them in each branch."""

    def forward(self, x: torch.Tensor) -> Any:
        def first(x: torch.Tensor) -> torch.Tensor:
            return self.l(x) + torch.arange(16, device=x.device)

        def second(x: torch.Tensor) -> torch.Tensor:
            return self.l(self.l(x)) + torch.ones(16, device=x.device)

        return torch.cond(x.sum() > 0, first, second, (x,))


@pytest.mark.parametrize("is_decomposed", [False, True], ids=["whole", "decomposed"])
@pytest.mark.parametrize("kind", [Counting, Forked])
def test_an_exported_program_from_an_accelerator(kind: type[nn.Module], is_decomposed: bool, tmp_path: Path) -> None:
    """Its weights, values and example inputs lay there, which torch itself cannot read where there is none."""
    file = tmp_path / "counting.pt2"
    program = torch.export.export(kind().eval(), (torch.rand(4, 16),))
    torch.export.save(program.run_decompositions() if is_decomposed else program, file)
    other = for_cuda(file)
    found, expected = measure(other), measure(str(file))
    assert {name: (each.value, each.complete) for name, each in found.items()} == {
        name: (each.value, each.complete) for name, each in expected.items()
    }
    assert found.notes == expected.notes
    assert found.traced == expected.traced == "meta"
    assert check_equivalence(str(file), other).outcome == "within"


def filled(file: str, **settings: Any) -> nn.Module:
    model = nn.BatchNorm1d(16)
    model.load_state_dict(torch.load(file, **settings))
    return model


PLACES: dict[str, dict[str, Any]] = {
    "as it was": {},
    "there": {"map_location": "cuda"},
    "by a device": {"map_location": torch.device("cuda", 0)},
    "by a table": {"map_location": {"cuda:0": "cuda:1"}},
    "mapped": {"map_location": "cuda", "mmap": True},
}


@pytest.mark.parametrize("settings", PLACES.values(), ids=list(PLACES))
def test_a_factory_may_load_what_was_saved_on_an_accelerator(settings: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.BatchNorm1d(16)
    nn.init.normal_(model.weight)
    torch.save(model.state_dict(), file := tmp_path / "weights.pt")
    other = for_cuda(file)
    assert numbers(lambda: filled(other, **settings)) == numbers(lambda: filled(str(file)))
    assert check_equivalence(lambda: filled(str(file)), lambda: filled(other, **settings), GIVEN).outcome == "within"


def test_a_factory_may_load_a_program_from_an_accelerator(tmp_path: Path) -> None:
    torch.jit.script(Counting().eval()).save(str(script := tmp_path / "script.pt"))
    torch.export.save(
        torch.export.export(Counting().eval(), (torch.rand(4, 16),)), exported := tmp_path / "program.pt2"
    )
    reads: tuple[tuple[Path, Callable[[Any], Any]], ...] = (
        (script, lambda file: torch.jit.load(file)),
        (exported, lambda file: torch.export.load(file).module()),
    )
    for file, read in reads:
        other = for_cuda(file)
        assert numbers(lambda other=other, read=read: read(other)) == numbers(lambda file=file, read=read: read(file))


@pytest.mark.parametrize(
    ("named", "is_one"),
    [("cuda", True), ("cuda:1", True), (torch.device("mps"), True), (torch.device("xpu", 1), True),
     ("cpu", False), (torch.device("cpu"), False), (torch.device("meta"), False), ("cudas", False), (0, False)],
    ids=str,
)  # fmt: skip
def test_names_of_accelerators(named: object, is_one: bool) -> None:
    assert is_accelerator(named) is is_one


class Tied(nn.Module):
    """Two layers of one weight, the second of which values scale."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> Any:
        y = self.first(x)
        return self.second(y) * float(y.sum())


ON_CUDA: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(16, 16),
    "recurrent": lambda: nn.LSTM(16, 8, 2),
    "attention": lambda: nn.TransformerEncoderLayer(16, 4, 32),
    "decided": lambda: Layer(decided_on_cpu),
    "tied": Tied,
    "of a device": lambda: OfDevice("cuda" if HAS_CUDA else "cpu"),
    "norm": lambda: nn.BatchNorm1d(16),
}


@needs_cuda
@pytest.mark.parametrize("name", ON_CUDA)
def test_a_model_on_an_accelerator_has_the_numbers_of_the_cpu(name: str) -> None:
    """It stays there, as it was; a proof runs a copy."""
    on_cpu, model = OfDevice("cpu") if name == "of a device" else ON_CUDA[name](), ON_CUDA[name]().eval().cuda()
    before = {key: (value, value.device, value.clone()) for key, value in model.state_dict(keep_vars=True).items()}
    found, expected = measure(model, GIVEN), measure(on_cpu, GIVEN)
    assert {name: each.value for name, each in found.items()} == {name: each.value for name, each in expected.items()}
    assert check_equivalence(model, model, GIVEN).outcome == "within"
    after = model.state_dict(keep_vars=True)
    assert all(after[key] is value and value.device == device for key, (value, device, _) in before.items())
    assert all(torch.equal(after[key], then) for key, (_, _, then) in before.items())


@needs_cuda
def test_a_wrong_copy_on_an_accelerator_is_found() -> None:
    """One element of 256 is otherwise."""
    model, wrong = nn.Linear(16, 16).cuda(), nn.Linear(16, 16).cuda()
    wrong.load_state_dict(model.state_dict())
    assert check_equivalence(model, wrong, GIVEN).outcome == "within"
    wrong.weight.data[3, 5] += 0.5
    assert check_equivalence(model, wrong, GIVEN).outcome == "over"
