"""Work that the recorder cannot see is never complete: operators and native code outside torch."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.dlpack import to_dlpack

from pytest_modelbudget import measure
from pytest_modelbudget.errors import TraceError
from tests.builders.micro_modules import Layer

pytestmark = pytest.mark.needs_torch


def unmeasured(forward: Callable[[Any, torch.Tensor], Any]) -> list[str]:
    """Names of what ``macs`` says it has not measured, of a forward pass on 4x16."""
    return [op.op for op in measure(Layer(forward), "float32 4x16")["macs"].unmeasured]


@pytest.fixture(scope="module")
def operators() -> Iterator[Any]:
    """Custom operators that multiply, and give back no tensor."""
    library = torch.library.Library("findings", "DEF")

    def define(schema: str, function: Callable[..., Any], fake: Callable[..., Any]) -> None:
        library.define(schema)
        name = schema.partition("(")[0]
        library.impl(name, function, "CPU")
        torch.library.register_fake(f"findings::{name}", fake, lib=library)

    def write(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(x @ w.t())

    define("score(Tensor x, Tensor w) -> float", lambda x, w: float((x @ w.t()).sum()), lambda x, w: 1.0)
    define("sizes(Tensor x, Tensor w) -> int[]", lambda x, w: [int((x @ w.t()).sum()), 2], lambda x, w: [1, 2])
    define("sloppy(Tensor x, Tensor w, Tensor out) -> ()", write, lambda x, w, out: None)
    yield torch.ops.findings
    library._destroy()


@pytest.mark.parametrize("name", ["score", "sizes", "sloppy"])
def test_an_operator_without_a_tensor_result_is_named(operators: Any, name: str) -> None:
    """A float, a list of integers, nothing but an undeclared write: all did work."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        if name == "score":
            return x * operators.score(x, m.l.weight)
        if name == "sizes":
            return x * operators.sizes(x, m.l.weight)[1]
        out = torch.empty(4, 16)
        operators.sloppy(x, m.l.weight, out)
        return out + x

    assert unmeasured(forward) == [f"findings::{name}"]
    counted = measure(Layer(forward), "float32 4x16")["ops"]
    assert "findings::" + name in [op.op for op in counted.unmeasured]


def test_queries_of_torch_itself_are_no_work() -> None:
    """Sizes, types, devices and checks stay out of the operations."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        assert x.is_contiguous()
        assert not x.is_complex()
        return m.l(x).reshape(x.size(0), -1)

    measured = measure(Layer(forward), "float32 4x16")
    assert (measured["macs"].value, measured["macs"].unmeasured) == (4 * 16 * 16, ())


def array_at(address: int, shape: tuple[int, ...]) -> Any:
    """Numbers at an address, as ctypes, cffi and numba take them."""
    count = int(np.prod(shape))
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address)).reshape(shape)


ADDRESSES: dict[str, Callable[[torch.Tensor], int]] = {
    "tensor": lambda t: t.data_ptr(),
    "untyped storage": lambda t: t.untyped_storage().data_ptr(),
    "typed storage": lambda t: t.storage().data_ptr(),
    "of data": lambda t: t.data.data_ptr(),
}


DOORS = {"untyped storage": "untyped_storage", "typed storage": "storage"}


@pytest.mark.parametrize(("name", "asks"), ADDRESSES.items(), ids=list(ADDRESSES))
def test_native_code_behind_an_address_is_named(name: str, asks: Callable[[torch.Tensor], int]) -> None:
    """A null address never gets out; in the real run the numbers are a lower bound."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(4, 16)
        product = array_at(asks(x), (4, 16)) @ array_at(asks(m.l.weight), (16, 16)).T
        array_at(asks(out), (4, 16))[:] = product
        return out

    measurement = measure(Layer(forward), "float32 4x16")
    assert measurement.traced == "real"
    assert {op.op for op in measurement["macs"].unmeasured} == {f"torch::{DOORS.get(name, 'data_ptr')}"}


WAYS_OUT: dict[str, Callable[[torch.Tensor], Any]] = {
    "__dlpack__": np.from_dlpack,
    "to_dlpack": lambda t: torch.utils.dlpack.to_dlpack(t),
    "numpy": lambda t: t.numpy(),
    "__array__": np.asarray,
    "tolist": lambda t: t.tolist(),
    "item": lambda t: [float(v) for v in t.flatten()],
}


@pytest.mark.parametrize(("name", "leave"), WAYS_OUT.items(), ids=list(WAYS_OUT))
def test_values_that_leave_torch_are_named(name: str, leave: Callable[[Any], Any]) -> None:
    """Whichever door they take, and once for each time they take it."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.l(x).detach()
        leave(y)
        return y

    assert unmeasured(forward) == [f"torch::{name}"]


def test_complex_elements_that_leave_one_by_one_are_named() -> None:
    """A product by hand of what ``item`` gives is one of complex numbers, too; one of them decides a branch."""

    def summed(m: Any, x: torch.Tensor) -> torch.Tensor:
        return x * abs(sum(complex(v) * complex(v) for v in torch.view_as_complex(m.l(x).view(4, 8, 2))[0]))

    assert unmeasured(summed) == ["torch::item"]
    assert unmeasured(lambda m, x: x if abs(complex(torch.fft.fft(m.l(x)).sum())) > 1 else x + 1) == []


@pytest.mark.parametrize(
    "asks",
    [
        lambda y: float(y.mean()) > 0,
        lambda y: (y > 0).sum(1).tolist(),
        lambda y: [bool(row.sum() > 0) for row in y],
        lambda y: (bool(y.sum() > 0), f"{y}"),
    ],
    ids=["one value", "counts", "one decision a row", "printed"],
)
def test_values_that_decide_are_no_work(asks: Callable[[Any], Any]) -> None:
    """Single values and integers steer the pass, as its shapes do; text is for readers."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.l(x)
        asks(y)
        return y

    assert unmeasured(forward) == []


def test_doors_are_as_before_afterwards() -> None:
    """Nothing of torch stays replaced, also where the run fails."""
    before = [vars(torch.Tensor).get(name) for name in ("numpy", "data_ptr", "tolist")]
    measure(Layer(lambda m, x: torch.from_numpy(m.l(x).numpy())), "float32 4x16")
    assert [vars(torch.Tensor).get(name) for name in ("numpy", "data_ptr", "tolist")] == before
    assert torch.ones(2).tolist() == [1, 1]


def again(m: Any, x: torch.Tensor) -> torch.Tensor:
    """A loop that ends when the values are small."""
    for _ in range(50):
        if x.norm() <= 0.5:
            break
        x = 0.5 * x
    return m.l(x)


DECIDED: dict[str, tuple[Callable[[Any, torch.Tensor], Any], str]] = {
    "branch": (lambda m, x: m.l(m.l(x)) if m.l(x).mean() > 0 else m.l(x), "_local_scalar_dense"),
    "rows": (lambda m, x: m.l(x[x[:, 0] > 0]), "aten::index"),
    "loop": (again, "_local_scalar_dense"),
    "nonzero": (lambda m, x: m.l(x)[torch.nonzero(x[:, 0])], "aten::nonzero"),
}


@pytest.mark.parametrize(("forward", "words"), DECIDED.values(), ids=list(DECIDED))
def test_a_path_that_data_decided_is_said(forward: Callable[..., Any], words: str) -> None:
    """The numbers are those of one input, and the note says by which operator."""
    notes = measure(Layer(forward), "float32 4x16").notes
    assert len(notes) == 1
    assert notes[0].startswith("data decide the path of this model (")
    assert words in notes[0]
    assert notes[0].endswith("counted on one drawn input, seed 0; another may cost more")


DROPPED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], bool]] = {
    "dropout": (lambda x: functional.dropout(x, 0.5, training=False), False),
    "dropout by name": (lambda x: torch.dropout(x, p=0.5, train=False), False),
    "dropout of channels": (lambda x: functional.dropout1d(x[None], 0.5, training=False), False),
    "attention": (lambda x: functional.scaled_dot_product_attention(x, x, x), False),
    "dropout that trains": (lambda x: functional.dropout(x, 0.5, training=True), True),
    "dropout that trains, by name": (lambda x: torch.dropout(x, p=0.5, train=True), True),
    "attention that trains": (lambda x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5), True),
}


@pytest.mark.parametrize(("drop", "is_drawn"), DROPPED.values(), ids=DROPPED)
def test_only_what_draws_is_said_to_draw(drop: Callable[[torch.Tensor], torch.Tensor], is_drawn: bool) -> None:
    """A dropout at rest leaves the generator as it was, which torch itself says; the path hangs on no draw then."""
    before = torch.get_rng_state()
    drop(torch.ones(4, 4))
    assert torch.equal(before, torch.get_rng_state()) is not is_drawn
    model = Layer(lambda m, x: m.l(x) if bool((drop(torch.ones(4, 4)) > -1).all()) else x)
    drawn = "the forward pass draws from torch.default_generator: counted on one draw, seed 0; another may cost more"
    assert measure(model, "float32 4x16").notes == ((drawn,) if is_drawn else ())


DRAWN: dict[str, tuple[Callable[[], bool], str]] = {
    "Python's": (lambda: random.random() < 0.5, "random"),
    "a choice": (lambda: random.choice([True, False]), "random"),
    "numpy's": (lambda: bool(np.random.rand() < 0.5), "numpy.random"),
    "a permutation": (lambda: bool(np.random.permutation(8)[0] < 4), "numpy.random"),
    "torch's": (lambda: bool(torch.rand(1) < 0.5), "torch.default_generator"),
    "an integer of torch's": (lambda: torch.randint(2, ()).item() == 0, "torch.default_generator"),
}


@pytest.mark.parametrize(("draw", "generator"), DRAWN.values(), ids=DRAWN)
def test_a_path_that_is_drawn_is_the_same_each_time_and_said(draw: Callable[[], bool], generator: str) -> None:
    """Whatever was drawn before, and it is drawn from afterwards as if nothing had been measured."""
    model = Layer(lambda m, x: sum(m.l(x) if draw() else x * 1 for _ in range(8)))
    measured = []
    for seed in range(3):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        numbers = measure(model, "float32 4x16")
        measured.append(numbers["macs"].value)
        assert numbers.notes == (
            f"the forward pass draws from {generator}: counted on one draw, seed 0; another may cost more",
        )
        after = random.random(), np.random.rand(), torch.rand(1).item()
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        assert after == (random.random(), np.random.rand(), torch.rand(1).item())
    assert len(set(measured)) == 1
    assert 0 < measured[0] < 8 * 4 * 16 * 16


def test_noise_alone_is_no_path() -> None:
    """A tensor of random numbers decides nothing."""
    assert measure(Layer(lambda m, x: m.l(x) + torch.randn(16)), "float32 4x16").notes == ()


def test_a_plain_path_needs_no_note() -> None:
    """Nothing of this model hangs on its values."""
    assert measure(Layer(lambda m, x: m.l(x)), "float32 4x16").notes == ()


REFUSED: list[str] = []  # not in the test, as what a model's functions close over is as before afterwards


def test_c_code_gets_no_null_address_either() -> None:
    """A function of C that was imported before refuses what has no memory."""
    REFUSED.clear()

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            is_on_meta = x.is_meta
        if is_on_meta:  # as an operator without a meta kernel, so that the model is run
            raise NotImplementedError
        try:
            to_dlpack(x)
        except RuntimeError:
            REFUSED.append("refused")
            raise
        return m.l(x)

    assert measure(Layer(forward), "float32 4x16").traced == "real"
    assert REFUSED == ["refused"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
@pytest.mark.filterwarnings("ignore")  # of torch, which starts cuBLAS
def test_a_graph_of_cuda_is_no_pass_without_work() -> None:
    """Its kernels run without an operator: no metric is told, and none is 0."""
    layer, given = torch.nn.Linear(16, 16).cuda().eval(), torch.rand(4, 16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    layer(given)
    torch.cuda.synchronize()
    with torch.no_grad(), torch.cuda.graph(graph):
        result = layer(given)

    def forward(m: Any, x: torch.Tensor) -> Any:
        given.copy_(x)
        graph.replay()
        return result.clone()

    with pytest.raises(TraceError, match="replays a captured graph"):
        measure(Layer(forward), "float32 4x16")


@pytest.fixture(scope="module")
def kernel() -> Any:
    """A kernel of Triton that adds two matrices; where nothing can run it, it can be launched."""
    triton, tl = pytest.importorskip("triton"), pytest.importorskip("triton.language")

    def add(x: Any, y: Any, out: Any, count: int, block: tl.constexpr) -> None:
        at = tl.program_id(0) * block + tl.arange(0, block)
        tl.store(out + at, tl.load(x + at, at < count) + tl.load(y + at, at < count), at < count)

    return triton.jit(add)


@pytest.mark.parametrize("is_caught", [False, True], ids=["raised", "caught"])
def test_a_kernel_of_triton_is_no_pass_without_work(kernel: Any, is_caught: bool) -> None:
    """It computes without an operator."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        try:
            kernel[(1,)](x, x, out, 64, 64)
        except Exception:
            if not is_caught:
                raise
        return out

    with pytest.raises(TraceError, match=r"launches a kernel of Triton.*torch\.library\.triton_op"):
        measure(Layer(forward), "float32 4x16")


def test_a_kernel_of_triton_within_an_operator_is_that_operator(kernel: Any) -> None:
    """Which has a name, and is unmeasured under it."""

    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        kernel[(1,)](x, y, out, 64, 64)
        return out

    library = torch.library.Library("triton_findings", "DEF")
    library.define("add(Tensor x, Tensor y) -> Tensor")
    library.impl("add", add, "CUDA")
    torch.library.register_fake("triton_findings::add", lambda x, y: torch.empty_like(x), lib=library)
    try:
        assert unmeasured(lambda m, x: torch.ops.triton_findings.add(m.l(x), x)) == ["triton_findings::add"]
    finally:
        library._destroy()
