"""One model never changes another: defaults, modes, folders, patches and caches are its own."""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from pytest_modelbudget import check_equivalence, measure
from pytest_modelbudget.errors import ModelBudgetError
from pytest_modelbudget.torch_models.isolation import HOOKS, SWITCHES, Surroundings

pytestmark = pytest.mark.needs_torch

LABS = {
    "default type": "torch.set_default_dtype(torch.bfloat16)",
    "default device": 'torch.set_default_device("meta")',
    "mode": 'torch.device("meta").__enter__()',
    "folder": "os.chdir(folder := tempfile.mkdtemp()); os.rmdir(folder)",
    "another functional": "torch.nn.functional.linear = lambda x, w, b=None: x",
    "another forward": "nn.Linear.forward = lambda s, x: x",
    "an inherited forward": "nn.Embedding.__call__ = lambda s, x: torch.zeros(*x.shape, 64)",
    "another call": "nn.Module.__call__ = lambda s, x: x",
    "an inherited method": "torch.Tensor.sum = lambda x: torch.zeros(())",
    "a wrapper of the same name": "F = nn.functional; F.linear = functools.wraps(F.linear)(lambda x, w, b=None: x)",
    "a partial": "torch.nn.functional.linear = functools.partial(lambda x, w, b=None: x)",
    "another layer": "nn.Linear = nn.Identity",
    "a hook on every module": "nn.modules.module.register_module_forward_hook(lambda m, x, y: y.double())",
    "autocast": 'torch.autocast("cpu", torch.bfloat16).__enter__()',
    "inference": "torch.set_grad_enabled(False)",
    "another engine": 'torch.backends.quantized.engine = "qnnpack"',
    "another library": "torch._C._set_mkldnn_enabled(False)",
    "precision": 'torch.set_float32_matmul_precision("medium")',
}
NET = """{at_import}
def net():
    {in_factory}
    return Net()
class Net(nn.Linear):
    def __init__(self):
        super().__init__(8, 4)
    def forward(self, x):
        {in_forward}
        return super().forward(x)
"""
LAB = (
    """import functools, os, tempfile, torch
from torch import nn
"""
    + NET
)
GOOD = """import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.l = nn.Embedding(1000, 64), nn.Linear(64, 64)
    def forward(self, x):
        y = self.l(self.e(x)) + torch.ones(64)
        return y if y.sum() > 0 else -y
"""
KEYS = ("params", "weight_memory", "macs", "peak_activation", "bandwidth")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of models; what they replace in torch is put back even where we fail to."""
    monkeypatch.syspath_prepend(tmp_path)
    before = Surroundings()
    yield tmp_path
    before.restore()
    torch.set_default_dtype(torch.float32)


def figures(target: str, inputs: str) -> dict[str, Any]:
    """All numbers of a model, whether they are complete, and how it was traced."""
    measured = measure(target, inputs)
    rows = {key: (measured[key].value, measured[key].complete) for key in KEYS}
    return {**rows, "traced": measured.traced}


@pytest.mark.parametrize("place", ["at_import", "in_factory", "in_forward"])
@pytest.mark.parametrize("what", LABS.values(), ids=list(LABS))
def test_n5_a_model_is_the_same_before_and_after_any_other(what: str, place: str, lab: Path) -> None:
    """N5, N15: whatever an import, a factory or a forward pass does to the process."""
    tag = f"{abs(hash((what, place)))}"
    places = dict.fromkeys(("at_import", "in_factory", "in_forward"), "pass")
    (lab / f"lab{tag}.py").write_text(LAB.format_map({**places, place: what}))
    (lab / f"good{tag}.py").write_text(GOOD)
    folder, state = os.getcwd(), (torch.get_default_dtype(), torch.is_grad_enabled())
    switches = [switch.read() for switch in SWITCHES]
    before = figures(f"good{tag}:Net", "int64 1x16")
    with suppress(ModelBudgetError):  # its own matter
        measure(f"lab{tag}:net", "float32 2x8")
    assert figures(f"good{tag}:Net", "int64 1x16") == before
    assert before["traced"] == "real"
    assert (os.getcwd(), torch.get_default_dtype(), torch.is_grad_enabled()) == (folder, *state)
    assert torch.empty(1).device.type == "cpu"
    assert not torch.is_autocast_enabled("cpu")
    assert torch.overrides._len_torch_function_stack() == 0
    assert not any(HOOKS.values())
    assert [switch.read() for switch in SWITCHES] == switches


QUANTISED = """import torch
from torch import nn
def layer():
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(64, 32)), {nn.Linear}, torch.float16)
def own_engine():
    torch.backends.quantized.engine = "fbgemm"
    return layer()
def other_engine():
    torch.backends.quantized.engine = "qnnpack"
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(64, 32)), {nn.Linear}, torch.qint8)
"""


def test_the_engine_that_a_model_sets_is_its_own(lab: Path) -> None:
    """As torchvision's quantised MobileNets do: QNNPACK packs no float16, which the next model has."""
    (lab / "engines.py").write_text(QUANTISED)
    engine = torch.backends.quantized.engine
    sizes = [measure(f"engines:{name}", "float32 2x64")["macs"] for name in ("other_engine", "layer", "own_engine")]
    assert [(number.value, number.complete) for number in sizes] == [(2 * 64 * 32, True)] * 3
    assert torch.backends.quantized.engine == engine
    assert measure("engines:other_engine", "float32 2x64").notes == (
        "importing or building the model leaves another engine of quantised operators: this model alone runs so",
    )


@pytest.mark.parametrize("name", ["mkldnn", "nnpack"])
def test_a_library_that_a_factory_switches_off_is_off_in_its_pass(name: str, lab: Path) -> None:
    """A network that doubles its batch where the library is on: 1 x 4 x 4 MACs without, and nobody else's is off."""
    (lab / f"off_{name}.py").write_text(
        f"""import torch
from torch import nn
class Net(nn.Linear):
    def forward(self, x):
        return super().forward(torch.cat([x, x]) if torch._C._get_{name}_enabled() else x)
def on():
    return Net(4, 4)
def off():
    torch._C._set_{name}_enabled(False)
    return Net(4, 4)
"""
    )
    macs = {target: measure(f"off_{name}:{target}", "float32 1x4")["macs"].value for target in ("off", "on")}
    assert macs == {"off": 16, "on": 32}


def test_n5_a_model_keeps_what_its_own_import_set(lab: Path) -> None:
    """N5: the default type of its module holds for every build and run of it, and is said."""
    places = dict.fromkeys(("in_factory", "in_forward"), "x = x + torch.ones(8)")
    places["in_factory"] = "pass"
    (lab / "halflab.py").write_text(LAB.format(at_import=LABS["default type"], **places))
    for _ in range(2):
        measured = measure("halflab:net", "bfloat16 2x8")
        assert measured["weight_memory"].value == 2 * (8 * 4 + 4)
        assert measured["total_activation"].value == 2 * (8 + 2 * 8 + 2 * 4)  # ones, their sum, the result
        assert measured.notes == (
            "importing or building the model leaves default type bfloat16: this model alone runs so",
        )


def test_n5_what_an_import_replaced_is_named(lab: Path) -> None:
    """N5: as transformers puts a function of its own in torch's class."""
    (lab / "patching.py").write_text(
        "from torch import nn\nnn.Module.settle = lambda self: self\nnet = lambda: nn.Linear(8, 4)\n"
    )
    assert measure("patching:net", "float32 2x8").notes == (
        "importing or building the model leaves Module.settle replaced: this model alone runs so",
    )


def test_n5_every_model_starts_from_torchs_own_defaults(lab: Path) -> None:
    """N5: also where somebody has changed them before, and they are as they were afterwards."""
    (lab / "plain.py").write_text("from torch import nn\nnet = lambda: nn.Linear(8, 4)\n")
    torch.set_default_dtype(torch.float64)
    assert measure("plain:net", "float32 2x8")["weight_memory"].value == 4 * (8 * 4 + 4)
    assert torch.get_default_dtype() == torch.float64


ORDERS = [
    ("halfpkg.a", "halfpkg.b"),
    ("halfpkg.b", "halfpkg.a"),
    ("halfpkg.late", "halfpkg.b"),
    ("plainer", "halfpkg.a"),
]


@pytest.mark.parametrize("order", ORDERS, ids=" before ".join)
def test_n5_what_an_import_set_holds_for_all_that_import_it(order: tuple[str, ...], lab: Path) -> None:
    """N5: of a package, of a module within it, and inside a factory, in any order; and for nobody else."""
    tag = f"half{abs(hash(order))}"
    (lab / tag).mkdir()
    layer = "net = lambda: nn.Linear(8, 4)\n"
    (lab / tag / "__init__.py").write_text("import torch\ntorch.set_default_dtype(torch.bfloat16)\n")
    (lab / tag / "a.py").write_text(f"from torch import nn\n{layer}")
    (lab / tag / "b.py").write_text(f"from torch import nn\nfrom . import a\n{layer}")
    (lab / f"{tag}late.py").write_text(
        f"from torch import nn\ndef net():\n    from {tag} import a\n    return nn.Linear(8, 4)\n"
    )
    (lab / f"{tag}plainer.py").write_text(f"from torch import nn\n{layer}")
    names = {"halfpkg.a": f"{tag}.a", "halfpkg.b": f"{tag}.b", "halfpkg.late": f"{tag}late", "plainer": f"{tag}plainer"}
    for name in (*order, *order):
        width = 4 if name == "plainer" else 2
        measured = measure(f"{names[name]}:net", "float32 2x8" if width == 4 else "bfloat16 2x8")
        assert (name, measured["weight_memory"].value) == (name, width * (8 * 4 + 4))


def test_n15_a_run_after_a_mode_that_is_never_left_reads_no_unwritten_memory(lab: Path) -> None:
    """N15: the rows that data choose are the same at every call."""
    (lab / "enters.py").write_text(
        'import torch\ndef net():\n    torch.device("meta").__enter__()\n    return torch.nn.Linear(8, 4)\n'
    )
    (lab / "picks.py").write_text(GOOD.replace("return y if y.sum() > 0 else -y", "return self.l(y[y[..., 0] > 0])"))
    before = figures("picks:Net", "int64 1x16")
    for _ in range(3):
        with suppress(ModelBudgetError):
            measure("enters:net", "float32 2x8")
        assert figures("picks:Net", "int64 1x16") == before


class Frozen(dict[str, Any]):
    """A mapping that refuses to be written, as configurations do."""

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("frozen")

    def update(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("frozen")

    clear = copy = update  # type: ignore[assignment]


class FrozenOrdered(OrderedDict[str, Any]):
    """The same in order, as diffusers has it."""

    def __setitem__(self, key: str, value: Any) -> None:
        if getattr(self, "closed", False):
            raise TypeError("frozen")
        super().__setitem__(key, value)

    def update(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("frozen")

    clear = copy = update  # type: ignore[assignment]


class FrozenList(list[Any]):
    """A list that refuses to be written, and to be iterated anew."""

    def extend(self, *args: Any) -> None:
        raise TypeError("frozen")

    append = clear = copy = extend  # type: ignore[assignment]


class FrozenSet(set[Any]):
    """A set that refuses to be written."""

    def update(self, *args: Any) -> None:
        raise TypeError("frozen")

    clear = copy = update  # type: ignore[assignment]


class Caches(dict[str, Any]):
    """A cache with methods of its own."""

    def update(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("by key alone")


def ordered() -> FrozenOrdered:
    """One that is closed after it is filled."""
    mapping = FrozenOrdered([("b", 1), ("a", 2)])
    mapping.closed = True  # type: ignore[attr-defined]
    return mapping


@pytest.mark.parametrize(
    "container",
    [Frozen(a=1), ordered(), FrozenList([1, 2]), FrozenSet({1, 2}), {"n": Frozen(b=[1])}],
    ids=["dict", "ordered", "list", "set", "nested"],
)
def test_s1_containers_that_refuse_writing_are_left_alone(container: Any) -> None:
    """S1: a configuration that nobody changes needs no restoring."""
    model, before = nn.Linear(4, 4), repr(container)
    model.config = container  # type: ignore[assignment]
    assert measure(model, "float32 2x4")["macs"].value == 2 * 4 * 4
    assert model.config is container
    assert repr(container) == before


def test_s1_containers_with_methods_of_their_own_are_restored() -> None:
    """S1: what the pass has put there is gone, past methods that refuse."""

    class Keeps(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            dict.__setitem__(self.cache, "x", x)
            OrderedDict.__setitem__(self.order, "x", x)
            OrderedDict.move_to_end(self.order, "b")
            list.append(self.row, x)
            return super().forward(x)

    model = Keeps(4, 4)
    model.cache, model.order, model.row = Caches(a=1), ordered(), FrozenList([1])  # type: ignore
    measure(model, "float32 2x4")
    assert dict(model.cache) == {"a": 1}
    assert list(model.order.items()) == [("b", 1), ("a", 2)]
    assert list(model.row) == [1]


@functools.lru_cache
def grid(n: int, device: torch.device) -> torch.Tensor:
    """Positions that every model of this file shares."""
    return torch.arange(n, device=device).float()


class Tables:
    """Caches in a class: of a method, and a plain mapping."""

    by_size: ClassVar[dict[int, torch.Tensor]] = {}

    @staticmethod
    @functools.cache
    def of(n: int) -> torch.Tensor:
        return torch.ones(n) * 2


def wrapped(function: Any) -> Any:
    """A decorator that calls a cached function, as transformers has one."""
    cached = functools.lru_cache(maxsize=4)(function)

    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return cached(*args)

    return wrapper


@wrapped
def wrapped_grid(n: int, device: torch.device) -> torch.Tensor:
    """Behind one decorator."""
    return torch.arange(n, device=device).float()


@wrapped
@wrapped
def twice_wrapped_grid(n: int, device: torch.device) -> torch.Tensor:
    """Behind two."""
    return torch.arange(n, device=device).float()


class Wrapped:
    """Caches behind a property, and behind a partial call."""

    @property
    @functools.cache  # noqa: B019  # the fault itself
    def table(self) -> torch.Tensor:
        return torch.ones(16) * 2

    of_sixteen = functools.partial(functools.cache(lambda n, device: torch.ones(n, device=device)), 16)


TABLES: dict[tuple[int, torch.device], torch.Tensor] = {}
LAST: torch.Tensor | None = None
WRAPPED = Wrapped()
CACHED_CALLS = functools.lru_cache(maxsize=2)(lambda n, device: [torch.ones(n, device=device)])


def from_mapping(x: torch.Tensor) -> torch.Tensor:
    """A mapping at the top of a file."""
    key = (16, x.device)
    if key not in TABLES:
        TABLES[key] = torch.ones(16, device=x.device)
    return TABLES[key]


def from_class(x: torch.Tensor) -> torch.Tensor:
    """A mapping in a class."""
    if 16 not in Tables.by_size:
        Tables.by_size[16] = x.new_ones(16)
    return Tables.by_size[16]


def from_global(x: torch.Tensor) -> torch.Tensor:
    """A variable at the top of a file."""
    global LAST
    if LAST is None:
        LAST = x.new_ones(16)
    return LAST


class Shelf:
    """An object, no module, that keeps a table."""

    table: torch.Tensor | None = None

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """The table, made where it is missing."""
        if self.table is None:
            self.table = x.new_ones(16)
        return self.table


SHELF = Shelf()


def from_default(x: torch.Tensor, kept: list[torch.Tensor] = []) -> torch.Tensor:  # noqa: B006  # the fault itself
    """A default that is one list for all calls."""
    if not kept:
        kept.append(x.new_ones(16))
    return kept[0]


def from_attribute(x: torch.Tensor) -> torch.Tensor:
    """An attribute of the function."""
    if not hasattr(from_attribute, "table"):
        from_attribute.table = x.new_ones(16)  # type: ignore[attr-defined]
    return from_attribute.table  # type: ignore[attr-defined,no-any-return]


def remembering() -> Any:
    """A function that remembers in what is around it."""
    kept: dict[int, torch.Tensor] = {}

    def of(x: torch.Tensor) -> torch.Tensor:
        return kept.setdefault(16, x.new_ones(16))

    return of


REMEMBERING = remembering()


KEPT = {
    "object": SHELF.of,
    "default": from_default,
    "attribute": from_attribute,
    "closure": lambda x: REMEMBERING(x),
    "lru_cache": lambda x: grid(16, x.device),
    "method": lambda x: Tables.of(16),
    "wrapped": lambda x: wrapped_grid(16, x.device),
    "wrapped twice": lambda x: twice_wrapped_grid(16, x.device),
    "property": lambda x: WRAPPED.table,
    "partial": lambda x: Wrapped.of_sixteen(x.device),
    "list": lambda x: CACHED_CALLS(16, x.device)[0],
    "mapping": from_mapping,
    "class": from_class,
    "global": from_global,
}


class Cached(nn.Module):
    """A layer on its input and what a cache gives."""

    def __init__(self, table: Any, needs_a_run: bool) -> None:
        super().__init__()
        self.l, self.table, self.needs_a_run = nn.Linear(16, 16), table, needs_a_run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.l(x + self.table(x))
        return -y if self.needs_a_run and y.square().sum() >= 0 else y


@pytest.mark.parametrize("needs_a_run", [False, True], ids=["meta", "real"])
@pytest.mark.parametrize("table", KEPT.values(), ids=list(KEPT))
def test_s2_caches_keep_no_tensor_of_a_measurement(table: Any, needs_a_run: bool) -> None:
    """S2: neither the next attempt, nor the next model, nor the user's own code sees one."""
    written = {}
    for rows in (4, 8, 3, 4):
        measured = measure(Cached(table, needs_a_run), f"float32 {rows}x16")
        assert measured["macs"].value == rows * 16 * 16
        assert written.setdefault(rows, measured["total_activation"].value) == measured["total_activation"].value
    own = Cached(table, needs_a_run)(torch.ones(2, 16))
    assert type(own) is torch.Tensor
    assert own.device.type == "cpu"


@dataclasses.dataclass
class Row:
    """What a model keeps in an attribute of its own."""

    table: Any = None


OWN_KEPT: dict[str, Any] = {
    "object": Row,
    "namespace": lambda: SimpleNamespace(table=None),
    "object in a list": lambda: [{"row": Row()}],
    "lru_cache": lambda: functools.lru_cache(lambda n, device: torch.ones(n, device=device)),
    "cache in an object": lambda: Row(functools.cache(lambda n, device: torch.ones(n, device=device))),
}


class Keeper(nn.Module):
    """A layer on its input and what an attribute gives, which the pass fills."""

    def __init__(self, kept: Any, needs_a_run: bool) -> None:
        super().__init__()
        self.l, self.kept, self.needs_a_run = nn.Linear(16, 16), kept, needs_a_run

    def table(self, x: torch.Tensor) -> Any:
        """The table, made where it is missing."""
        row = self.kept[0]["row"] if isinstance(self.kept, list) else self.kept
        call = row if callable(row) else row.table
        if callable(call):
            return call(16, x.device)
        if row.table is None:
            row.table = x.new_ones(16)
        return row.table

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.l(x + self.table(x))
        return -y if self.needs_a_run and y.sum() > 0 else y


@pytest.mark.parametrize("needs_a_run", [False, True], ids=["meta", "real"])
@pytest.mark.parametrize("kept", OWN_KEPT.values(), ids=list(OWN_KEPT))
def test_s2_a_models_own_objects_keep_no_tensor(kept: Any, needs_a_run: bool) -> None:
    """S2: what a pass keeps in a model's objects and caches is gone, and every measurement is the first."""
    model = Keeper(kept(), needs_a_run)
    first, again = (measure(model, "float32 4x16") for _ in range(2))
    assert {key: n.value for key, n in first.items()} == {key: n.value for key, n in again.items()}
    assert first["macs"].value == 4 * 16 * 16
    own = model(torch.ones(2, 16))
    assert (type(own), own.device.type) == (torch.Tensor, "cpu")


WITHOUT_A_DICT = {  # classes of objects that tell of no dictionary, though they may have one
    "not made yet": "@property\n    def __dict__(self):\n        raise AttributeError('__dict__')",
    "hidden": "def __getattribute__(self, name):\n        raise AttributeError(name)",
}
HELD_IN = {
    "the file": "held = Held()",
    "a class": "Net.held = Held()",
    "a function": "Net.forward.held = Held()",
    "a module": "model.held = Held()",
    "a list of a module": "model.held = [Held()]",
}


@pytest.mark.parametrize("place", HELD_IN.values(), ids=list(HELD_IN))
@pytest.mark.parametrize("written", WITHOUT_A_DICT.values(), ids=list(WITHOUT_A_DICT))
def test_s2_objects_that_tell_of_no_dictionary_are_left_alone(
    written: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a class that mypyc compiled, which fastai's files hold; 2 x 16 x 16 MACs."""
    (tmp_path / "holding.py").write_text(
        f"from torch import nn\n\n\nclass Held:\n    {written}\n\n\n"
        "class Net(nn.Linear):\n    def forward(self, x):\n        return super().forward(x)\n\n\n"
        f"model = Net(16, 16)\n{place}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "holding", raising=False)
    assert measure("holding:model", "float32 2x16")["macs"].value == 2 * 16 * 16
    assert measure(sys.modules["holding"].model, "float32 2x16")["macs"].value == 2 * 16 * 16


def test_s2_what_a_user_cached_before_is_still_there() -> None:
    """S2: a cache that no attempt has added to is left alone, and so is a filled mapping."""
    TABLES.clear()
    x = torch.ones(2, 16)
    own = from_mapping(x)
    first = grid(3, x.device)
    measure(Cached(lambda x: x, False), "float32 2x16")
    assert from_mapping(x) is own
    assert grid(3, x.device) is first
    TABLES.clear()


@pytest.mark.parametrize("table", KEPT.values(), ids=list(KEPT))
def test_s2_a_comparison_leaves_no_tensor_in_a_cache(table: Any) -> None:
    """S2: neither of the runs in float64 nor of those in the model's own type."""
    model = Cached(table, False)
    assert check_equivalence(model, copy.deepcopy(model), "float32 4x16")
    own = model(torch.ones(2, 16))
    assert (type(own), own.dtype) == (torch.Tensor, torch.float32)


def test_n5_a_comparison_runs_under_the_models_own_defaults(lab: Path) -> None:
    """N5: both models of a file that sets the default type run as their file expects, in any order."""
    (lab / "doubles.py").write_text(
        "import torch\ntorch.set_default_dtype(torch.float64)\n"
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self):\n        super().__init__(8, 4)\n"
        "    def forward(self, x):\n        return super().forward(x + torch.ones(8))\n"
    )
    assert check_equivalence("doubles:Net", "doubles:Net", "float64 2x8")
    assert torch.get_default_dtype() is torch.float32


IN_FLOAT64 = """import torch
from torch import nn
torch.set_default_dtype(torch.float64)
net = lambda: nn.Linear(4, 2)
"""
LEFT = "importing or building the model leaves default type float64: this model alone runs so"


def test_a_changed_default_type_is_said_where_inputs_do_not_fit_it(lab: Path) -> None:
    """Nothing else tells where the float64 of a model comes from that its file never writes."""
    (lab / "double.py").write_text(IN_FLOAT64)
    with pytest.raises(ModelBudgetError, match=f"float32 and float64: .*; {LEFT}$"):
        measure("double:net", "float32 1x4")
    assert measure("double:net", "float64 1x4").notes == (LEFT,)
    stored = measure("double:net")  # 4 * 2 + 2 numbers of 8 bytes
    assert stored.weight_memory.value == (4 * 2 + 2) * 8
    assert LEFT in stored.notes


SHARED = """import functools, types, torch, {tag}settings as settings
from torch import nn
import torch.nn.functional as F
WIDTH, FLAG, STAGES, TABLE, SPACE = 8, True, [8], {{"a": {{"w": 8}}}}, types.SimpleNamespace(w=8)
class Meta(type):
    def __call__(cls, *args): return super().__call__(*args)
class Base(nn.Module):
    SCALE = 8
    class Inner:
        w = 8
    def width(self): return 8
    prop = property(lambda self: 8)
    stat = staticmethod(lambda: 8)
    part = functools.partialmethod(lambda self, w: w, 8)
class Block(Base, metaclass=Meta):
    def __init__(self, w=8, *, k=8):
        super().__init__()
        widths = [w, k, WIDTH, *STAGES, TABLE["a"]["w"], SPACE.w, self.SCALE, self.Inner.w, self.width(), self.prop,
                  self.stat(), self.part(), settings.WIDTH, helper(), 8 if FLAG else 4]
        self.layers = nn.ModuleList([nn.Linear(8, width) for width in widths])
    def forward(self, x):
        return sum(layer(x).sum() for layer in self.layers) * F.softmax(x, -1)
def helper(w=8): return w
"""


def test_scales_are_computed_from_weights_that_were_drawn(lab: Path) -> None:
    """Not from memory that nobody filled, which torch fills with NaN here: that ends a trace without values."""
    (lab / "drawn.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def net():\n"
        "    torch.use_deterministic_algorithms(True)\n"
        "    layers = nn.Sequential(nn.Linear(64, 32))\n"
        "    torch.use_deterministic_algorithms(False)\n"
        "    torch.backends.quantized.engine = 'qnnpack'\n"
        "    return torch.ao.quantization.quantize_dynamic(layers, {nn.Linear}, torch.qint8)\n"
    )
    measured = measure("drawn:net", "float32 2x64")
    assert (measured.traced, measured["macs"].value) == ("fake", 2 * 64 * 32)


PATCHES = {
    "class attribute": "shared.Block.SCALE = 16",
    "inherited attribute": "shared.Base.SCALE = 16",
    "inner class": "shared.Base.Inner.w = 16",
    "forward": "shared.Block.forward = lambda self, x: x",
    "added method": "shared.Block.width = lambda self: 16",
    "property": "shared.Base.prop = property(lambda self: 16)",
    "static method": "shared.Base.stat = staticmethod(lambda: 16)",
    "partial method": "shared.Base.part = functools.partialmethod(lambda self, w: w, 16)",
    "metaclass": "shared.Meta.__call__ = lambda cls, *args: nn.Linear(8, 8)",
    "deleted": "del shared.Block.forward",
    "value": "shared.WIDTH = 16",
    "flag": "shared.FLAG = False",
    "builtin name": "shared.sum = max",
    "list": "shared.STAGES[0] = 16",
    "nested dict": "shared.TABLE['a']['w'] = 16",
    "object": "shared.SPACE.w = 16",
    "file without torch": "shared.settings.WIDTH = 16",
    "function": "shared.helper = lambda: 16",
    "defaults": "shared.helper.__defaults__ = (16,)",
    "defaults by name": "shared.Block.__init__.__kwdefaults__['k'] = 16",
    "code": "shared.helper.__code__ = (lambda w=8: 16).__code__",
    "code of torch": "F.softmax.__code__ = (lambda input, dim, _stacklevel=3, dtype=None: input.double()).__code__",
    "defaults of torch": "nn.Linear.__init__.__defaults__ = (False, None, None)",
    "type of torch": "torch.float32 = torch.float64",
    "library": "from torchvision.ops.misc import MLP; MLP.forward = lambda self, x: x",
}
PATCHING = (
    """import functools, torch, {tag}shared as shared
from torch import nn
import torch.nn.functional as F
"""
    + NET
)


@pytest.mark.parametrize("place", ["at_import", "in_factory", "in_forward"])
@pytest.mark.parametrize("what", PATCHES.values(), ids=list(PATCHES))
def test_files_and_classes_are_the_same_before_and_after_any_model(what: str, place: str, lab: Path) -> None:
    """Whatever a model changes of them, which is measured first; the other has 15 layers of 8 x 8."""
    tag = f"patched{abs(hash((what, place)))}"
    places = dict.fromkeys(("at_import", "in_factory", "in_forward"), "pass")
    (lab / f"{tag}settings.py").write_text("WIDTH = 8\n")
    (lab / f"{tag}shared.py").write_text(SHARED.format(tag=tag))
    (lab / f"{tag}patching.py").write_text(PATCHING.format(tag=tag, **{**places, place: what}))
    targets = (f"{tag}shared:Block", "torchvision.ops.misc:MLP")
    with suppress(ModelBudgetError):  # its own matter
        measure(f"{tag}patching:net", "float32 2x8")
    first = [measure(target, "float32 2x8", args=args) for target, args in zip(targets, ((), (8, [8])), strict=True)]
    assert [number["params"].value for number in first] == [15 * (8 * 8 + 8), 8 * 8 + 8]
    assert [number["macs"].value for number in first] == [15 * 2 * 8 * 8, 2 * 8 * 8]


def test_what_a_model_sets_where_nothing_stood_stays_and_is_said(lab: Path) -> None:
    """A registration that cannot be taken back is not done twice; a loaded object and an added item stay, too."""
    (lab / "registers.py").write_text(
        "import torch\nfrom torch import nn\nDONE, LOADED, KNOWN = False, None, {}\n"
        "def net():\n    global DONE, LOADED\n    if DONE:\n        assert LOADED and KNOWN\n"
        "    DONE, LOADED = True, object()\n    KNOWN['net'] = net\n    return nn.Linear(8, 4)\n"
    )
    first, again = (measure("registers:net", "float32 2x8") for _ in range(2))
    assert first.notes == (
        "the model sets registers.DONE, registers.LOADED, where nothing was: that stays, "
        "and models after it may see it",
    )
    assert again["macs"].value == first["macs"].value == 2 * 8 * 4
