"""Recording every operator that a forward pass calls, at the outermost level the rules know."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.formats.model import LayerCall
from pytest_modelbudget.graph.graph import Fork, Op, Operand, name_in
from pytest_modelbudget.graph.tensor import Storage, StorageKind, Tensor
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.torch_models.bodies import Bodies
from pytest_modelbudget.torch_models.environment import EagerMode
from pytest_modelbudget.torch_models.late_weights import PROVISIONAL, MadeParameter
from pytest_modelbudget.torch_models.layouts import LAYOUTS, Layout
from pytest_modelbudget.torch_models.packed_weights import PackedWeights
from pytest_modelbudget.torch_models.refused_operands import CHECKS, PICKING, Check, KnownValues
from pytest_modelbudget.torch_models.shapes import SHAPES, Shape
from pytest_modelbudget.torch_models.values import META, STORED, TorchValues, is_on_meta, tensors_in
from pytest_modelbudget.torch_models.versions import (
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    OpOverload,
    current_modes,
    is_traceable_wrapper_subclass,
)
from pytest_modelbudget.torch_models.weights import ModuleTree, paths_of


class NeedsMemoryError(TraceError):
    """A pass that nothing but a run can follow: fake tensors lack what it needs as tensors on meta do."""


class BeyondError(TraceError):
    """A pass that asks for a row behind the last one of a table, which fails in a run, too."""


class UnseenError(TraceError):
    """A pass that computes where no recorder sees it, whichever way it is followed."""


# They take what torch.tensor(...) has just made, on any device, and what an exported program keeps of it.
LITERALS = frozenset({"aten::lift_fresh", "aten::lift_fresh_copy"})
# Or make one of a number, as indexing does on some devices: a constant of rank 0.
MAKES_LITERALS = LITERALS | {"aten::scalar_tensor"}
COMPOSITE = "CompositeImplicitAutograd"  # the kernel of an operator that is made of others
# Namespaces whose operators compute something only where a tensor comes out: the others of their
# operators ask for sizes, types, devices, checks and single values, or mark a place in a profile.
QUERIES = frozenset({"aten", "prim", "prims", "profiler"})
# Of operators whose results the values decide: a number to branch on, how many elements there are.
DECIDING = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
ASKED_FOR = frozenset({torch.contiguous_format, torch.channels_last, torch.channels_last_3d})  # by whoever calls
SINGLE_VALUE = "aten::_local_scalar_dense"
TAKES_MEMORY = "aten::set_"  # as unpickling does, with what it has read


class Scopes(Protocol):
    """Scopes of operators, followed while a pass runs."""

    calls: list[LayerCall]

    def replacements(self) -> Iterable[tuple[Any, str, Any]]:
        """Attributes of torch that call modules, with the function that replaces each."""

    def scope_of(self, operands: tuple[Operand, ...]) -> str:
        """Path of the module that calls an operator on these operands."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What the recorder must know about one operator overload, from its schema.

    tensors_at are the (place, name) of arguments that take tensors, but for results that are written into arguments of
    the caller. written_at are the arguments that it writes. One that fills_out writes its result into a tensor of the
    caller, out=. One that reshapes gives what it writes another shape or memory.
    """

    name: str
    overload: str
    names: tuple[str, ...]
    tensors_at: tuple[tuple[int, str], ...]
    written_at: tuple[tuple[int, str], ...]
    mutates: bool
    decomposes: bool
    asks: bool
    decides: bool
    draws: bool
    device_at: int | None
    fills_out: bool
    reshapes: bool

    def spelling(self, rules: OpTable) -> str:
        """The name the rules know it by: with its overload where a rule asks for that one."""
        return self.overload if self.overload in rules else self.name


@cache
def signature(func: Any) -> Signature:
    """The signature of an operator overload, from its schema."""
    schema = func._schema
    arguments = tuple(enumerate(schema.arguments))
    takes_tensors = {at: "Tensor" in str(arg.type) or "torch.classes" in str(arg.type) for at, arg in arguments}
    devices = [at for at, arg in arguments if arg.name == "device"]
    # Some that ask for a property, as prim::device and the sizes of jagged tensors, have no entry in the dispatcher.
    is_dispatched = torch._C._dispatch_has_kernel(func.name())
    is_view, fills_out = torch.Tag.inplace_view in func.tags, any(arg.is_out for _, arg in arguments)
    composite = is_dispatched and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), COMPOSITE)
    return Signature(
        name=schema.name,
        overload=f"{schema.name}.{schema.overload_name}",
        names=tuple(arg.name for _, arg in arguments),
        tensors_at=tuple((at, arg.name) for at, arg in arguments if takes_tensors[at] and not arg.is_out),
        written_at=tuple((at, arg.name) for at, arg in arguments if arg.alias_info and arg.alias_info.is_write),
        mutates=schema.is_mutable and not is_view,
        decomposes=composite,
        asks=schema.name.partition("::")[0] in QUERIES,
        decides=not DECIDING.isdisjoint(func.tags),
        draws=torch.Tag.nondeterministic_seeded in func.tags,
        device_at=devices[0] if devices else None,
        fills_out=fills_out,
        reshapes=fills_out or is_view,
    )


def is_taken_apart(func: Any, rules: OpTable) -> bool:
    """Whether an operator is seen as what it is made of: no rule knows it as a whole."""
    called = signature(func)
    return called.decomposes and called.spelling(rules) not in rules


@dataclass(frozen=True, slots=True)
class Called:
    """An operator overload as one table of rules sees it, worked out once a trace."""

    func: Any
    signature: Signature
    name: str
    has_rule: bool
    is_taken_apart: bool
    checks: tuple[Check, ...]
    shape: Shape | None
    layout: Layout | None

    @classmethod
    def of(cls, func: Any, rules: OpTable) -> "Called":
        """An operator overload under these rules."""
        known = signature(func)
        name = known.spelling(rules)
        # Neither tells of a result that the caller has made.
        shape, layout = (None, None) if known.fills_out else (SHAPES.get(name), LAYOUTS.get(name))
        apart = is_taken_apart(func, rules)
        return cls(func, known, name, name in rules, apart, CHECKS.get(name, ()), shape, layout)


class Recorder(EagerMode):
    """Turns operator calls into graph ops.

    An op is the outermost operator the table knows. One that it does not know is taken apart
    where it is made of others; a leaf that is still unknown is recorded under its own name, and
    the metrics say that it is unmeasured. On the way "meta", a tensor from elsewhere that meets one
    without memory is replaced by its twin, and nothing is computed.
    """

    supports_higher_order_operators = True
    records = True

    def __init__(
        self,
        rules: OpTable,
        values: TorchValues,
        packed: PackedWeights,
        scopes: Scopes,
        *,
        way: str,
        is_script: bool = False,
        modules: ModuleTree = (),
    ) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.constants: list[Tensor] = []
        self.literals: list[torch.Tensor] = []  # their values
        self.made: dict[Storage, MadeParameter] = {}
        self.notes: list[str] = []
        self.forks: list[Fork] = []
        self._bodies = Bodies(self, rules, values, is_real=way == "real")
        self.decisions: dict[str, None] = {}  # operators through which data decided the path
        self.has_drawn = False  # numbers that the pass sees
        self._values_read: dict[Storage, set[int]] = {}
        self._rules = rules
        self._values = values
        self._scopes = scopes
        self._packed = packed
        self._way = way
        self._modules = modules
        self._is_script = is_script  # which reaches no memory but its own
        self._called: dict[int, Called] = {}  # by the id of an overload: to ask for its hash takes longer
        self._fakes: list[torch.Tensor] = []  # which stand for constants; torch forgets those that nobody keeps
        self.failure: BaseException | None = None  # the first of any operator
        self.raised: BaseException | None = None  # the last of one that torch ran
        self.unseen: UnseenError | None = None  # of work that no way of following the pass shows
        self.is_copying = False  # a memory is written with a copy of another, just now
        self._known_values = KnownValues(self.is_emptied)
        self._emptied: set[int] = set()  # memories with values into which an operator without any has written

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        try:
            called = self._called.get(id(func))
            if called is None:
                if type(func) is not OpOverload and isinstance(func, HigherOrderOperator):
                    with self:
                        return self._bodies.run(func, args, kwargs or {})
                called = self._called[id(func)] = Called.of(func, self._rules)
            kwargs = kwargs or {}
            if types and self._wraps_unknown((args, tuple(kwargs.values()))):
                return NotImplemented  # then its class takes it apart, and its parts come here
            if called.is_taken_apart:
                self._loosen(called.signature, args, kwargs)
                with self:
                    return func.decompose(*args, **kwargs)
            given: list[torch.Tensor] = []
            operands = self._operands(called, args, kwargs, given)
            return self._run_and_record(func, called, args, kwargs, operands, given)
        except BaseException as error:
            self.failure = self.failure or error  # which the forward pass may catch
            self.raised = error
            raise

    def _run_and_record(
        self, func: Any, called: Called, args: tuple[Any, ...], kwargs: dict[str, Any],
        operands: tuple[Operand, ...], given: Sequence[torch.Tensor],
    ) -> Any:  # fmt: skip
        """The result of an operator, which is recorded."""
        if called.checks and self._way != "real":
            self._check(called, args, given)
        without_memory = [is_on_meta(tensor) for tensor in given] if self._way == "meta" else []
        on_meta = True in without_memory or (bool(self._emptied) and any(map(self.is_emptied, given)))
        given_args, given_kwargs = args, kwargs
        if on_meta and (called.signature.device_at is not None or False in without_memory):
            args, kwargs = self._joined_on_meta(called.signature, args, kwargs)
        if called.name in PICKING and self._way == "meta":
            self._refuse_places_beyond(called, given_args)
        result = self._run(func, called, args, kwargs, on_meta=on_meta)
        if self._way == "meta" and not called.signature.draws:
            written = tensors_in(_at(called.signature.written_at, args, kwargs)) if called.signature.mutates else ()
            self._known_values.follow(called.name, func, given_args, given_kwargs, result, written)
        self._record(called, operands, args, kwargs, result)
        return result

    def _refuse_places_beyond(self, called: Called, args: tuple[Any, ...]) -> None:
        """Raise BeyondError where a place that is known lies behind the last row of a table."""
        if beyond := self._known_values.beyond(called.name, args):
            table = self.known(args[0]).name.removesuffix(".weight")
            raise BeyondError(
                f"{table} has {beyond[0]:,} rows, and the inputs reach row {beyond[1]:,}: this call would fail: "
                "give shorter inputs, or the model more rows"
            )

    def _check(self, called: Called, args: tuple[Any, ...], given: Sequence[torch.Tensor]) -> None:
        """Raise TraceError for operands that torch would refuse, and that tensors without memory let pass."""
        for check in called.checks:
            if wrong := check(called.name, args, given):
                raise TraceError(f"{name_in(called.name, self._scopes.scope_of(()))} is given {wrong}")

    def ended(self) -> None:
        """Raise TraceError where operators failed for want of values, and the pass went on: a run may go elsewhere.

        And UnseenError where the pass did what is not seen, and caught that.
        """
        if self.unseen is not None:
            raise self.unseen
        if self.failure is not None and self._way != "real":
            why = str(self.failure).partition("\n")[0] or type(self.failure).__name__
            raise TraceError(
                f"the forward pass catches what fails without values ({self._way}): {why}"
            ) from self.failure

    def _wraps_unknown(self, arguments: Any) -> bool:
        """Whether a wrapper tensor is among them that is no weight and no result of an operator.

        Raises TraceError for a parameter of no module, as for a plain one.
        """
        wrappers = [tensor for tensor in tensors_in(arguments) if is_traceable_wrapper_subclass(tensor)]
        unknown = [tensor for tensor in wrappers if self._values.known(tensor) is None]
        for parameter in unknown:
            if isinstance(parameter, nn.Parameter):
                raise _of_no_module(parameter)
        return bool(unknown)

    def leave(self, name: str, tensor: torch.Tensor) -> None:
        """Record that a tensor's values leave torch."""
        value = self.known(tensor)
        self.ops.append(Op(f"torch::{name}", (value,), (), scope=self._scopes.scope_of((value,))))

    def leave_script(self, name: str = "tolist") -> None:
        """Record that values leave, of which no operator tells: a script makes lists of them, or ``to_dlpack``."""
        self.ops.append(Op(f"torch::{name}", (), (), scope=self._scopes.scope_of(())))

    def _read_value(self, operands: tuple[Operand, ...], tensor: torch.Tensor) -> None:
        """Note a single value that is asked for; several of one tensor leave as a list does."""
        value = operands[0]
        is_computed = tensor.is_floating_point() or tensor.is_complex()
        if self._way != "real" or not is_computed or not isinstance(value, Tensor):
            return
        places = self._values_read.setdefault(value.storage, set())
        places.add(value.offset)
        if len(places) == 2:
            self.leave("item", tensor)

    def _run(self, func: Any, called: Called, args: tuple[Any, ...], kwargs: dict[str, Any], *, on_meta: bool) -> Any:
        if on_meta and called.shape is not None and (result := called.shape(*args, **kwargs)) is not NotImplemented:
            return result
        self._loosen(called.signature, args, kwargs)
        result = func(*args, **kwargs)
        if called.signature.reshapes:
            for tensor in tensors_in(_at(called.signature.written_at, args, kwargs)):
                self._values.resized(tensor)
        if called.layout is None or kwargs.get("memory_format") in ASKED_FOR:
            return result
        return called.layout(result, args)

    def _loosen(self, called: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """What an operator writes may have another shape or memory afterwards."""
        for tensor in tensors_in(_at(called.written_at, args, kwargs)) if called.written_at else ():
            if self._is_of_others(tensor):
                self._leave_to_others(tensor)
            self._values.loosen(tensor)

    def _is_of_others(self, tensor: torch.Tensor) -> bool:
        """Whether others than torch read a tensor, as numpy does; what a model stores is its own, in a file too."""
        is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_nested
        if self._is_script or not is_plain or is_on_meta(tensor) or tensor.untyped_storage().resizable():
            return False
        value = self._values.known(tensor)
        return value is None or value.storage.kind not in STORED

    def _leave_to_others(self, tensor: torch.Tensor) -> None:
        """Record that values are written where others than torch read them; raises TraceError where there are none."""
        if self._way != "real":
            raise NeedsMemoryError("values are written into memory that is not torch's, as of numpy")
        self.leave("from_numpy", tensor)

    def _record(
        self,
        called: Called,
        operands: tuple[Operand, ...],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
    ) -> None:
        known, value = called.signature, self._values.value
        if known.name in MAKES_LITERALS:
            operands = self._literal(operands, args, result)
        elif known.name == TAKES_MEMORY and self._is_from_outside(result):
            self._constant(result)
        if type(result) is torch.Tensor:
            outputs: tuple[Tensor, ...] = (value(result, is_made=known.device_at is not None),)
        else:
            results = tensors_in(result)
            if not results and known.mutates:
                results = tensors_in(_at(known.written_at, args, kwargs))
            outputs = tuple([value(tensor) for tensor in results])
        if outputs or not known.asks:
            scope, attributes = self._scopes.scope_of(operands), attributes_of(known, args, kwargs)
            self.ops.append(Op(called.name, operands, outputs, attributes, scope, mutates=known.mutates))
        elif known.name == SINGLE_VALUE:
            self._read_value(operands, args[0])
        if known.draws and has_values(result) and not is_at_rest(known, args, kwargs):
            self.has_drawn = True
        if known.decides:
            self.decisions[name_in(called.name, self._scopes.scope_of(operands))] = None

    def _literal(
        self, operands: tuple[Operand, ...], args: tuple[Any, ...], result: torch.Tensor
    ) -> tuple[Operand, ...]:
        """The constant that a literal is: itself, also where fake tensors and exported programs have a copy of it."""
        if operands:
            if result is not args[0]:
                self._values.adopt(result, args[0])
        elif self._values.known(result) is None:
            return (self._constant(result),)
        return operands

    def _operands(
        self, called: Called, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: list[torch.Tensor]
    ) -> tuple[Operand, ...]:
        """What an operator reads; its tensors, and those that it writes its results into, are added to given."""
        if called.signature.name in LITERALS and self._values.known(args[0]) is None:
            given.append(args[0])
            return (self._constant(args[0]),)
        operands: list[Operand] = []
        kept, count = self._values.kept, len(args)
        for position, name in called.signature.tensors_at:
            value = args[position] if position < count else kwargs.get(name)
            known = kept.get(id(value))
            if known is not None:
                operands.append(known[1])
                given.append(known[0])
            elif isinstance(value, torch.Tensor):
                operands.append(self.known(value))
                given.append(value)
            elif isinstance(value, (list, tuple)):
                operands.append(self._listed(value, called.has_rule))
                given.extend(tensors_in(value))
            elif isinstance(value, torch.ScriptObject):
                operands.extend(self._packed.operands(value, called.has_rule))
            else:
                operands.append(None)
        if kwargs:
            given[:] = tensors_in((args, tuple(kwargs.values())))
        return tuple(operands)

    def _listed(self, values: Sequence[Any], has_rule: bool) -> Operand:
        parts: list[Tensor | None] = []
        for value in values:
            if isinstance(value, torch.ScriptObject):
                packed = self._packed.operands(value, has_rule)
                parts.extend(part for part in packed if isinstance(part, Tensor))
            else:
                parts.append(self.known(value) if isinstance(value, torch.Tensor) else None)
        return tuple(parts)

    def known(self, tensor: torch.Tensor) -> Tensor:
        """The value of a tensor; one that no op made is a constant of the program.

        Raises TraceError for one that cannot be: the graph would lack what made it.
        """
        value = self._values.known(tensor)
        if value is not None:
            if type(tensor) is not torch.Tensor and value.storage.kind in PROVISIONAL:
                self._note_parameter(tensor, value)
            return value
        if is_on_meta(tensor) or isinstance(tensor, FakeTensor):
            raise UnseenError(
                "the model uses a tensor that no recorded operator made: does its forward pass "
                "compute in another thread, or keep tensors outside of the model?"
            )
        is_lent = self._values.met_as_lent(tensor)  # as a weight of the model in an object of its own
        is_parameter = not is_lent and (isinstance(tensor, nn.Parameter) or is_lazy(tensor))
        if is_parameter and not any(paths_of(self._modules, tensor)):
            raise _of_no_module(tensor)
        constant = self._values.value(tensor) if is_lent else self._constant(tensor)
        if is_parameter:  # brought in by this pass
            self._note_parameter(tensor, constant)
        if self._way == "fake" and type(tensor) is torch.Tensor and constant.unsized == "":
            # The fake tensor that stands for it, each time: a view of that is one of the constant.
            mode = next(each for each in current_modes() if isinstance(each, FakeTensorMode))
            self._fakes.append(mode.from_tensor(tensor))
            self._values.adopt(self._fakes[-1], tensor)
        return constant

    def _note_parameter(self, tensor: torch.Tensor, value: Tensor) -> None:
        """Note a parameter that the forward pass has made, and where modules hold it now."""
        if isinstance(tensor, nn.Parameter):
            made = self.made.setdefault(value.storage, MadeParameter(value))
            made.names.update(dict.fromkeys(paths_of(self._modules, tensor)))

    def _constant(self, tensor: torch.Tensor) -> Tensor:
        """A tensor of the program itself, met for the first time."""
        constant = self._values.value(tensor, StorageKind.CONSTANT)
        self.constants.append(constant)
        self.literals.append(tensor)
        return constant

    def _is_from_outside(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies on memory with values that no operator has made."""
        untyped = tensor.untyped_storage()
        return untyped.nbytes() > 0 and not self.is_copying and self._values.known(tensor) is None

    def _joined_on_meta(
        self, called: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """One operand on meta takes the others there, and keeps the result there.

        Operators on real tensors alone (constants, shape arithmetic of traced files) stay real,
        so that their values can be asked for. What is written with no values has none afterwards.
        """
        for tensor in tensors_in(_at(called.written_at, args, kwargs)):
            if not is_on_meta(tensor):
                if called.reshapes:
                    raise TraceError(f"{called.name} gives a tensor with values the shape of one without")
                if self._is_of_others(tensor):
                    self._leave_to_others(tensor)
                self._emptied.add(tensor.untyped_storage()._cdata)
        args = tuple(self._on_meta_too(arg) for arg in args)
        kwargs = {name: self._on_meta_too(arg) for name, arg in kwargs.items()}
        place = called.device_at
        if place is not None and place < len(args):
            args = (*args[:place], META, *args[place + 1 :])
        elif place is not None and kwargs.get("device") is not None:
            kwargs["device"] = META
        return args, kwargs

    def is_emptied(self, tensor: torch.Tensor) -> bool:
        """Whether the values of a tensor are no longer those that the model would see."""
        return tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self._emptied

    def _on_meta_too(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value if is_on_meta(value) else self._values.twin(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self._on_meta_too(element) for element in value)
        return value


def _of_no_module(parameter: torch.Tensor) -> TraceError:
    if is_lazy(parameter):
        return TraceError(
            "the model fills a lazy module that its modules() lack: "
            "keep layers in nn.ModuleList or nn.ModuleDict, and run the model once inside the factory"
        )
    return TraceError(
        f"the model reads a parameter {list(parameter.shape)} that its parameters() lack: "
        "keep layers in nn.ModuleList or nn.ModuleDict, and a weight as an attribute of a module, "
        "made before the forward pass and of no tensor outside of it"
    )


def has_values(result: Any) -> bool:
    """Whether there are tensors in a result of an operator that are not on meta."""
    return any(not is_on_meta(tensor) for tensor in tensors_in(result))


def is_at_rest(known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call of an operator that can draw draws nothing: a dropout that is not trained, or of nothing."""
    given = {**dict(zip(known.names, args, strict=False)), **kwargs}
    is_evaluated = any(given.get(name) is False for name in ("train", "training"))
    return is_evaluated or ("dropout_p" in known.names and given.get("dropout_p", 0.0) == 0.0)


def _at(places: tuple[tuple[int, str], ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """Arguments at these places, however they were given."""
    return [args[position] if position < len(args) else kwargs.get(name) for position, name in places]


def attributes_of(called: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, object]:
    """Arguments that are no tensors, as plain values by their schema names."""
    found: dict[str, object] = {}
    given = zip(called.names, args)  # noqa: B905  # trailing arguments may be absent
    for name, value in chain(given, kwargs.items()) if kwargs else given:
        kind = type(value)
        if kind in PLAIN:
            found[name] = value
        elif kind not in NO_ATTRIBUTES and not isinstance(value, HELD):
            plain = _plain(value)
            if plain is not None:
                found[name] = plain
    return found


NO_ATTRIBUTES = frozenset({torch.Tensor, nn.Parameter, type(None)})  # the commonest
HELD = (torch.Tensor, torch.ScriptObject, torch.UntypedStorage, torch.TypedStorage)  # what has values
PLAIN = frozenset({bool, int, float, str})


def _plain(value: Any) -> object:
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        if PLAIN.issuperset(map(type, value)):
            return tuple(value)
        if any(isinstance(element, torch.Tensor) for element in value):
            return None
        return tuple(_plain(element) for element in value)
    return str(value)
