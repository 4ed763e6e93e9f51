"""``exported:`` a ``.pt2`` file that ``torch.export.save`` wrote."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from torch import fx
from torch.export.graph_signature import ConstantArgument, InputKind

from pytest_modelbudget.errors import DimsError, InputError, SourceError, UnboundError, user_code
from pytest_modelbudget.formats.source import (
    InputSpec,
    InputSpecs,
    ModelSource,
    Plain,
    TensorSpec,
    existing_file,
    is_whole,
    must_be,
)
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.torch_models import versions
from pytest_modelbudget.torch_models.accelerators import read_onto_cpu
from pytest_modelbudget.torch_models.environment import replaced, reproducible, silenced, torch_as_it_starts
from pytest_modelbudget.torch_models.module_paths import NodeScopes
from pytest_modelbudget.torch_models.recording import Scopes
from pytest_modelbudget.torch_models.running import TorchModel
from pytest_modelbudget.torch_models.torchscript import ProgramSource
from pytest_modelbudget.torch_models.tracing import Subject
from pytest_modelbudget.torch_models.values import CallInputs, dtype_of, empty
from pytest_modelbudget.torch_models.versions import pytree
from pytest_modelbudget.torch_models.weights import at_home

LEAST_OPEN = 2  # of a size that an export leaves open, mostly: torch writes programs of their own for 0 and 1


def load(source: ModelSource, rules: OpTable) -> TorchModel:
    """The model in an exported program."""
    return TorchModel(ExportedSource(source), rules)


class ExportedSource(ProgramSource):
    """A file with an exported program, or a program in memory."""

    __slots__ = ()

    def build(self, seed: int = 0) -> tuple[Subject, InputSpecs]:
        """The program with its weights, and what it takes."""
        source = self.source
        target = source.target
        program = target if isinstance(target, torch.export.ExportedProgram) else _opened(source)
        if source.args or source.kwargs:
            raise SourceError("an exported program is a model already: args and kwargs have no use")
        if source.dtype is not None:
            raise SourceError("dtype converts modules, not exported programs: export it in that type")
        with silenced():  # torch writes of each symbol, in a trace that pytest shows beside what fails
            specs = input_specs(program, source)
            _must_be_of_its_sizes(program, specs)
            return _subject(program), InputSpecs(named=specs)


def register_quantisers(path: Path) -> None:
    """Let torch know the operators of a quantised program, which it declares on import alone."""
    with ZipFile(path) as archive:
        texts = (archive.read(name) for name in archive.namelist() if name.endswith(".json"))
        if any(b"quantized_decomposed" in text for text in texts):
            import_module(versions.QUANTISERS)


def _opened(source: ModelSource) -> torch.export.ExportedProgram:
    path = existing_file(source, "an exported program (.pt2)")
    must_be(path, "exported")
    refusal = f"{path.name} is not an exported program: reading it"
    versions.load_reader_of_programs()  # before any function of torch is replaced
    with torch_as_it_starts(), silenced(), reproducible(), user_code(refusal, SourceError), read_onto_cpu():
        register_quantisers(path)
        return _read(path)


def _read(path: Path) -> torch.export.ExportedProgram:
    """The program in a file; why torch cannot read it is raised, which torch itself logs and hides."""
    causes: list[BaseException] = []

    def note(_: logging.Logger, record: logging.LogRecord) -> None:
        causes.extend(filter(None, (record.exc_info or ())[1:2]))

    with replaced([(logging.Logger, "handle", note)]):
        try:
            return torch.export.load(str(path))
        except RuntimeError as error:
            raise causes[-1] if causes else error  # noqa: B904  # its own traceback says where


ATEN = torch.ops.aten
LITERAL = "lifted_tensor_"  # what torch.export calls a literal, of which a decomposed program takes a clone


class NodeByNode(fx.Interpreter):
    """Runs an exported graph one node at a time, saying which module each node came from."""

    def __init__(self, module: fx.GraphModule, scopes: NodeScopes) -> None:
        super().__init__(module)
        self._scopes = scopes

    def run_node(self, n: fx.Node) -> Any:
        """Run one node under its module's path."""
        self._scopes.enter(n.meta.get("nn_module_stack"))
        if n.target is ATEN.clone.default and str(n.args[0].target).startswith(LITERAL):  # type: ignore[union-attr]
            return ATEN.lift_fresh_copy(self.env[n.args[0]])  # type: ignore[index]
        if n.target is ATEN.view.default:
            (x, sizes), _ = self.fetch_args_kwargs_from_env(n)
            if not _lies_for_view(x, sizes):
                return ATEN.view(x.contiguous(), sizes)
        return super().run_node(n)


def _lies_for_view(x: torch.Tensor, sizes: Sequence[int]) -> bool:
    """Whether a view of x may have these sizes: an export has no copy where the layout of its kernels needed none."""
    if x.is_contiguous():
        return True
    try:
        with versions.disable_current_modes():
            torch.empty_strided(x.shape, x.stride(), device="meta").view(*sizes)
    except RuntimeError:
        return False
    return True


def _subject(program: torch.export.ExportedProgram, instance: Any = None) -> Subject:
    """How the tracer runs a program, or another instance of its module."""
    module: Any = at_home(versions.module_of(program)) if instance is None else instance

    def run(inputs: CallInputs, scopes: Scopes) -> Any:
        assert isinstance(scopes, NodeScopes)
        arguments = [inputs.kwargs.get(name, value) for name, value in placeholders(program)]
        outputs = NodeByNode(module, scopes).run(*arguments, enable_io_processing=False)
        return pytree.tree_unflatten(outputs, program.call_spec.out_spec)  # as the module gave them

    def plain(inputs: CallInputs) -> Any:
        arguments = [inputs.kwargs.get(name, value) for name, value in placeholders(program)]
        args, kwargs = pytree.tree_unflatten(arguments, program.call_spec.in_spec)
        return module(*args, **kwargs)

    return Subject(
        "exported",
        module,
        run,
        lambda values, modules: NodeScopes(),
        real=lambda: _subject(program),
        of_instance=lambda other: _subject(program, other),
        stored_from_rank=1,
        plain=plain,
    )


def placeholders(program: torch.export.ExportedProgram) -> Iterator[tuple[str, Any]]:
    """(name, example value) of every input a caller gives, in order."""
    nodes = program.graph.find_nodes(op="placeholder")
    for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            yield node.name, spec.arg.value if isinstance(spec.arg, ConstantArgument) else node.meta.get("val")


def input_specs(program: torch.export.ExportedProgram, source: ModelSource) -> Mapping[str, InputSpec]:
    """A spec by name for every tensor, and number left open: the budget's where it gives one, else the file's."""
    own = {name: value for name, value in placeholders(program) if isinstance(value, (torch.Tensor, torch.SymInt))}
    positional, named = source.inputs.positional, source.inputs.named
    unknown = sorted(set(named) - set(own))
    if unknown or len(positional) > len(own):
        wrong = unknown[0] if unknown else f"{len(positional)} positional inputs"
        raise InputError(f"the program has no input for {wrong}: it takes {', '.join(own)}")
    _dims_must_exist(own, source.dims)
    wanted = {**dict(zip(own, positional)), **named}  # noqa: B905  # fewer may be given
    for name, spec in wanted.items():
        _must_fit(name, spec, own[name])
    left = {name: value for name, value in own.items() if name not in wanted}
    bound = {**_given_sizes(own, wanted), **source.dims}
    _must_be_bound(left, bound, program)
    return {name: wanted[name] if name in wanted else _own_spec(value, bound) for name, value in own.items()}


def _sizes(value: torch.Tensor | torch.SymInt) -> tuple[int | torch.SymInt, ...]:
    """Those of a tensor; a number that is an input is one, too."""
    return tuple(value.shape) if isinstance(value, torch.Tensor) else (value,)


def _open_sizes(values: Iterable[torch.Tensor | torch.SymInt]) -> list[torch.SymInt]:
    return [size for value in values for size in _sizes(value) if not isinstance(size, int)]


def _symbols(size: torch.SymInt) -> list[str]:
    """What an open size is computed from: those of ``s17 + 2*s77`` are s17 and s77, and of s77 itself s77."""
    return sorted(map(str, size.node.expr.free_symbols))


def _size(size: int | torch.SymInt, bound: Mapping[str, int]) -> int | None:
    """A size, of an open one by what its symbols are bound to, or in one piece; None where one of them is not."""
    if isinstance(size, int):
        return size
    if str(size) in bound:
        return bound[str(size)]
    worth = {symbol: bound.get(str(symbol)) for symbol in size.node.expr.free_symbols}
    return None if None in worth.values() else int(size.node.expr.subs(worth))


def _given_sizes(own: Mapping[str, torch.Tensor | torch.SymInt], given: Mapping[str, InputSpec]) -> Mapping[str, int]:
    """What inputs that are given bind: the size of each symbol that is one of theirs."""
    bound: dict[str, int] = {}
    for name, spec in given.items():
        sizes = spec.shape if isinstance(spec, TensorSpec) else (getattr(spec, "value", None),)
        pairs = zip(_sizes(own[name]), sizes, strict=True)
        bound.update({str(size): number for size, number in pairs if not isinstance(size, int) and number is not None})
    return bound


def _dims_must_exist(own: Mapping[str, torch.Tensor | torch.SymInt], dims: Mapping[str, int]) -> None:
    dynamic = _open_sizes(own.values())
    symbols = {symbol for size in dynamic for symbol in _symbols(size)}
    for name in dims:
        if name not in {*map(str, dynamic), *symbols}:
            there = f"they are {', '.join(sorted(symbols))}" if symbols else "there are none"
            raise DimsError(
                f"dims: the program has no dynamic dimension '{name}': {there} (an export keeps "
                "symbols, not the names given to torch.export.Dim)"
            )


def _must_fit(name: str, spec: InputSpec, value: torch.Tensor | torch.SymInt) -> None:
    """A given spec has the program's type, rank and fixed sizes, or is a whole number where it takes one."""
    if isinstance(value, torch.SymInt):
        if not (isinstance(spec, Plain) and is_whole(spec.value)):
            raise InputError(f"input '{name}' of the program is a whole number, {value}: give one, or export it again")
        return
    expected = f"{dtype_of(value.dtype).name} {'x'.join(map(str, value.shape))}"
    fits = (
        isinstance(spec, TensorSpec)
        and spec.dtype == dtype_of(value.dtype).name
        and len(spec.shape) == len(value.shape)
        and all(
            not isinstance(fixed, int) or size == fixed  # to compare a symbol would bind it for good
            for size, fixed in zip(spec.shape, value.shape, strict=True)
        )
    )
    if not fits:
        raise InputError(f"input '{name}' of the program is {expected}: export it for other shapes")


def _must_be_of_its_sizes(program: torch.export.ExportedProgram, specs: Mapping[str, InputSpec]) -> None:
    """Raises InputError for dynamic sizes that torch would refuse: the program is the one that other sizes have."""
    if not program.range_constraints:
        return
    guarded: Any = program.module()
    nodes = guarded.graph.find_nodes(op="placeholder")
    given = [
        empty(spec, "meta") if isinstance(spec := specs.get(name), TensorSpec) else getattr(spec, "value", value)
        for name, value in placeholders(program)
    ]
    paths: list[tuple[Any, ...]] = [(pytree.SequenceKey(1), pytree.MappingKey(node.name)) for node in nodes]
    try:
        versions.check_inputs(guarded, nodes, [*zip(paths, given, strict=True)], program.range_constraints)
    except (AssertionError, RuntimeError) as error:
        raise InputError(f"the program was exported for other sizes: {error}") from error


def _must_be_bound(
    left: Mapping[str, torch.Tensor | torch.SymInt], bound: Mapping[str, int], program: torch.export.ExportedProgram
) -> None:
    """Raises UnboundError for all open sizes of inputs that are not given, and which nothing binds."""
    whys: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for name, value in left.items():
        is_number = isinstance(value, torch.SymInt)
        what = "is a number that the export left open," if is_number else "has a dynamic dimension"
        for size in _open_sizes([value]):
            if _size(size, bound) is None:
                whys[str(size)] = whys.get(str(size), f"input '{name}' {what} {size}")
                sizes.update({symbol: _allowed(symbol, program) for symbol in _symbols(size) if symbol not in bound})
    if sizes:
        it = "it" if len(sizes) == 1 else "them"
        way_out = ", ".join(f"{symbol}: {size}" for symbol, size in sizes.items())
        raise UnboundError(", ".join(whys.values()), sizes, f"bind {it} with dims {{{way_out}}}, or give inputs")


def _allowed(symbol: str, program: torch.export.ExportedProgram) -> int:
    """A size in the range that an export leaves a symbol."""
    ranges = {str(each): allowed for each, allowed in program.range_constraints.items()}
    return max(LEAST_OPEN, int(ranges[symbol].lower)) if symbol in ranges else LEAST_OPEN


def _own_spec(value: torch.Tensor | torch.SymInt, bound: Mapping[str, int]) -> InputSpec:
    """What a program says of an input, all of whose sizes are bound."""
    sizes = [size for each in _sizes(value) if (size := _size(each, bound)) is not None]
    return Plain(sizes[0]) if isinstance(value, torch.SymInt) else TensorSpec(dtype_of(value.dtype).name, tuple(sizes))
