"""The stored tensors of a module, and tensors without memory that replace them during a trace."""

import copy
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import cache
from itertools import chain
from math import prod, sqrt
from typing import Any, NamedTuple, cast
from zlib import crc32

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from pytest_modelbudget.errors import TraceError, user_code
from pytest_modelbudget.graph.graph import Weight
from pytest_modelbudget.graph.tensor import DType, StorageKind
from pytest_modelbudget.torch_models import versions
from pytest_modelbudget.torch_models.accelerators import CPU, copied_onto, is_accelerator
from pytest_modelbudget.torch_models.values import PLAIN_TENSORS, TorchValues, dtype_of
from pytest_modelbudget.torch_models.versions import buffers_of, is_traceable_wrapper_subclass, memory_of, parameters_of
from pytest_modelbudget.units import with_article

# Layers of torch, with those of users that are made of them.
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
ModuleTree = tuple[tuple[str, nn.Module], ...]
Spot = tuple[Any, Any]  # where something is held: a container, and a key or place in it


class NamedWeight(NamedTuple):
    """A parameter or buffer under its full name; tied ones appear under each of theirs."""

    name: str
    tensor: torch.Tensor
    is_parameter: bool
    persistent: bool

    @property
    def kind(self) -> StorageKind:
        return StorageKind.PARAMETER if self.is_parameter else StorageKind.BUFFER

    @property
    def is_trainable(self) -> bool:
        return self.is_parameter and self.tensor.requires_grad

    @property
    def is_plain(self) -> bool:
        """Whether it is one memory of torch's own classes."""
        return type(self.tensor) in PLAIN_TENSORS and self.tensor.layout is torch.strided


NO_TYPES: Mapping[torch.dtype, torch.dtype] = {}


def module_tree(model: nn.Module) -> ModuleTree:
    """Every module of a model and its path, each once, outer ones first: as ``named_modules``, without its detours."""
    found: list[tuple[str, nn.Module]] = []
    known: set[nn.Module] = set()
    waiting: list[tuple[str, nn.Module | None]] = [("", model)]
    while waiting:
        path, module = waiting.pop()
        if module is None or module in known:
            continue
        if type(module).named_modules is not nn.Module.named_modules:
            return tuple(model.named_modules())
        known.add(module)
        found.append((path, module))
        if within := versions.submodules_of(module):
            prefix = f"{path}." if path else ""
            waiting += [(prefix + name, each) for name, each in reversed(within.items())]
    return tuple(found)


def named_weights(modules: ModuleTree) -> Iterator[NamedWeight]:
    """Every parameter and buffer of every module, in module order.

    Raises TraceError for those of a lazy module, which have no shape yet.
    """
    for path, module in modules:
        prefix = f"{path}." if path else ""
        for name, parameter in parameters_of(module).items():
            if parameter is None:
                continue
            if type(parameter) is not nn.Parameter and is_lazy(parameter):
                raise _without_shape(prefix + name)
            yield NamedWeight(prefix + name, parameter, True, True)
        transient: set[str] = getattr(module, versions.TRANSIENT, set())
        for name, buffer in buffers_of(module).items():
            if buffer is None:
                continue
            if type(buffer) is not torch.Tensor and is_lazy(buffer):
                raise _without_shape(prefix + name)
            yield NamedWeight(prefix + name, buffer, False, name not in transient)


def _without_shape(name: str) -> TraceError:
    return TraceError(f"{name} has no shape yet (a lazy module): run the model once inside the factory")


def paths_of(modules: ModuleTree, parameter: torch.Tensor) -> Iterator[str]:
    """The paths under which modules hold a parameter."""
    for path, module in modules:
        names = (name for name, each in parameters_of(module).items() if each is parameter)
        yield from (f"{path}.{name}" if path else name for name in names)


def tied_where_offloaded(modules: ModuleTree) -> tuple[NamedWeight, ...]:
    """Every weight, those on meta that accelerate keeps in one memory elsewhere as one."""
    first: dict[object, torch.Tensor] = {}
    same: dict[str, torch.Tensor] = {}
    for path, module in modules:
        kept: Any = getattr(getattr(module, "_hf_hook", None), "weights_map", None)
        if isinstance(getattr(kept, "dataset", None), dict):  # and not on a disk, where every tensor is its own
            for name, meta in parameters_of(module).items():
                if meta is not None and meta.is_meta:
                    place = memory_of(kept[name]), meta.shape, meta.stride()
                    same[f"{path}.{name}" if path else name] = first.setdefault(place, meta)
    return tuple(each._replace(tensor=same.get(each.name, each.tensor)) for each in named_weights(modules))


def _saves_its_own_way(kind: type[nn.Module]) -> bool:
    """Whether modules of a class save more than torch's do; what torch's own pack themselves is read from the packs."""
    is_torchs = kind.__module__.startswith("torch.")
    return not is_torchs and any(getattr(kind, name) is not getattr(nn.Module, name) for name in versions.SAVING)


def saved_beside(modules: ModuleTree) -> dict[str, torch.Tensor]:
    """Tensors of a model's state dict that no parameter or buffer is, by their keys: bitsandbytes' scales and types."""
    if not any(_saves_its_own_way(cast("Any", type(module))) for _, module in modules):
        return {}
    with user_code("asking the model for its state_dict()", TraceError):
        saved = modules[0][1].state_dict()
    held = {memory_of(each) for each in weights_of(modules) if each.layout is torch.strided}
    plain = {key: each for key, each in saved.items() if type(each) in PLAIN_TENSORS and each.layout is torch.strided}
    return {key: each for key, each in plain.items() if memory_of(each) not in held}


def weights_of(modules: ModuleTree) -> Iterator[torch.Tensor]:
    """Every parameter and buffer of every module, without a name; tied ones again."""
    tables = [table.values() for _, module in modules for table in (parameters_of(module), buffers_of(module)) if table]
    return (weight for weight in chain.from_iterable(tables) if weight is not None)


def registered(
    weights: tuple[NamedWeight, ...], values: TorchValues, twins: Mapping[int, torch.Tensor], stored_from_rank: int
) -> tuple[Weight, ...]:
    """Weights of the graph, on the memory of their twins where they have one.

    Memory that a parameter and a buffer share is a parameter's, whichever comes first, and the buffer stays one. A file
    stores tensors from rank 1 on; its scalars are immediates. One that is kept in other tensors is
    those tensors.
    """
    in_parts = {id(weight.tensor): parts for weight in weights if not weight.is_plain and (parts := parts_of(weight))}
    stored: dict[int, tuple[Weight, ...]] = {}  # by their places among the weights
    is_later = [not weight.is_parameter or id(weight.tensor) in in_parts for weight in weights]
    for at in sorted(range(len(weights)), key=is_later.__getitem__):
        weight, tensor = weights[at], weights[at].tensor
        twin = twins.get(id(tensor), tensor)
        if parts := in_parts.get(id(tensor), ()):
            stored[at] = tuple(_in_parts(weight, parts, values, twin))
            continue
        if twin is tensor:
            value = values.value(tensor, weight.kind, weight.name)
        else:
            value = values.stand_in(twin, weight.kind, weight.name)
            if in_parts:  # a wrapper may be kept in the same memory
                values.adopt(tensor, twin)
        persistent = weight.persistent and tensor.dim() >= stored_from_rank
        held_as = None if weight.kind is value.storage.kind else weight.kind
        stored[at] = (Weight(value, weight.is_trainable, persistent, held_as=held_as),)
    return tuple(chain.from_iterable(stored[at] for at in range(len(weights))))


@cache
def has_own_class(kind: type[torch.Tensor]) -> bool:
    """Whether a class of tensors is a third party's, and computes as torch's do: others than that are kept in parts."""
    return kind not in PLAIN_TENSORS and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


@cache
def _seen_as(kind: type[torch.Tensor]) -> Any:
    """The class of a tensor without memory in place of a wrapper, whose class a model may ask for."""
    seen = {"__class__": property(lambda tensor: kind), "__torch_function__": nn.Parameter.__torch_function__}
    return type(kind.__name__, (torch.Tensor,), seen)


Parts = tuple[tuple[str, torch.Tensor], ...]  # (name, tensor), the largest first
# Layouts and the tensors that they keep: the values first.
SPARSE: Mapping[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: versions.SPARSE_PARTS,
    torch.sparse_csr: ("values", "crow_indices", "col_indices"),
    torch.sparse_bsr: ("values", "crow_indices", "col_indices"),
    torch.sparse_csc: ("values", "ccol_indices", "row_indices"),
    torch.sparse_bsc: ("values", "ccol_indices", "row_indices"),
}


def parts_of(weight: NamedWeight) -> Parts:
    """The plain tensors that a sparse, nested or wrapper tensor is kept in; () for a plain one.

    Raises TraceError for one that does not say what it is kept in, and for oneDNN's own form: modules hold weights as
    buffers there, beside statistics.
    """
    tensor = weight.tensor
    if weight.is_plain:
        return ()
    if is_traceable_wrapper_subclass(tensor):
        return tuple(sorted(leaves(tensor), key=lambda part: -part[1].nbytes))
    if tensor.layout in SPARSE:
        return tuple((name.lstrip("_"), getattr(tensor, name)()) for name in SPARSE[tensor.layout])
    if tensor.is_mkldnn:
        raise TraceError(
            f"{weight.name} is in oneDNN's form, in which torch.utils.mkldnn.to_mkldnn() leaves weights as buffers: "
            "give the model that it was made of"
        )
    if tensor.layout is not torch.strided:
        return (("values", tensor.to_dense()),)
    if _holds_memory(tensor):
        return ()
    raise TraceError(
        f"{weight.name} is {with_article(type(tensor).__name__)}, which does not say in which tensors it is "
        "kept (__tensor_flatten__): its bytes are not known"
    )


def leaves(tensor: Any, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of each plain tensor that a wrapper is kept in, and not the mesh of a distributed one."""
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        part = getattr(tensor, name)
        if is_traceable_wrapper_subclass(part):
            yield from leaves(part, f"{prefix}{name}_")
        elif isinstance(part, torch.Tensor):
            yield f"{prefix}{name}", part


def _holds_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor of some class is its own memory, and wraps no other."""
    try:
        tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return False
    return True


def _in_parts(weight: NamedWeight, parts: Parts, values: TorchValues, twin: torch.Tensor) -> Iterator[Weight]:
    """What a tensor is kept in: its values stand for its elements, the rest is bytes.

    A wrapper has all elements of its shape, whatever layout they are packed in; a sparse tensor has
    those that it stores.
    """
    tensor, (_, main) = weight.tensor, parts[0]
    kind, kind_beside = StorageKind.BUFFER, StorageKind.BUFFER
    if weight.is_parameter:
        kind, kind_beside = StorageKind.PARAMETER, StorageKind.QUANTISER
    kept, elements = values.value(main, kind, weight.name), None
    if is_traceable_wrapper_subclass(tensor) and not tensor.is_nested:
        elements = tensor.numel()
        nbytes = sum(part.numel() * part.dtype.itemsize for _, part in parts)
        for shown in {id(tensor): tensor, id(twin): twin}.values():
            values.alias(shown, kept, _stored_type(main.dtype, nbytes, elements))
    else:
        values.value(tensor, kind, weight.name)
    yield Weight(kept, weight.is_trainable, weight.persistent, elements)
    for name, part in parts[1:]:
        yield Weight(values.value(part, kind_beside, f"{weight.name}_{name}"), False, weight.persistent)


def _stored_type(dtype: torch.dtype, nbytes: int, elements: int) -> DType:
    """The type of a wrapper's elements, scales and all: 6,400 int8 and 500 B beside are 8.625 bits.

    Whoever reads such a weight reads all that it is kept in.
    """
    return DType(dtype_of(dtype).name, Fraction(8 * nbytes, max(elements, 1)))


def memoryless(weights: tuple[NamedWeight, ...], dtype: torch.dtype | None, device: str) -> dict[int, torch.Tensor]:
    """A tensor without memory for each weight, by the weight's id; shared storages stay shared.

    device is "meta", or "cpu" inside a fake mode. ``dtype`` converts floating ones, as
    ``module.to(dtype)`` would.
    """
    distinct = {id(weight.tensor): weight.tensor for weight in weights}
    twins: dict[int, torch.Tensor] = {
        key: tensor
        for key, tensor in distinct.items()
        if tensor.layout is not torch.strided or tensor.is_nested  # none without memory can be made
    }
    for key in twins:
        del distinct[key]
    addresses = [memory_of(tensor) for tensor in distinct.values()]
    owners = Counter(addresses)
    bases: dict[int, torch.Tensor] = {}
    for (key, tensor), address in zip(distinct.items(), addresses, strict=True):
        target = dtype if dtype and tensor.is_floating_point() else tensor.dtype
        if owners[address] == 1 and not tensor.storage_offset():
            twin = torch.empty_strided(tensor.shape, tensor.stride(), dtype=target, device=device)
            twins[key] = _alike(twin, tensor)
            continue
        if address not in bases:
            elements = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
            bases[address] = torch.empty(elements, dtype=target, device=device)
        base = bases[address]
        if base.dtype != target:
            base = base.view(target)
        twins[key] = _alike(base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()), tensor)
    for key, tensor in distinct.items():
        if marks := vars(tensor):
            vars(twins[key]).update({name: _with_twins(value, twins) for name, value in marks.items()})
    return twins


def twins_by_memory(weights: Iterable[NamedWeight], twins: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """A twin on what stands for each memory of plain weights, by its address."""
    plain = (weight.tensor for weight in weights if weight.is_plain and id(weight.tensor) in twins)
    return {memory_of(tensor): twins[id(tensor)] for tensor in plain}


def _alike(twin: Any, tensor: torch.Tensor) -> torch.Tensor:
    """A twin of the class that a model may ask for, which fake tensors cannot have; one that learns where it does."""
    kind = type(tensor)
    is_parameter = kind is nn.Parameter or isinstance(tensor, nn.Parameter)  # which takes Python to tell
    if type(twin) is torch.Tensor and kind is nn.Parameter:
        twin.__class__ = kind  # as as_subclass makes it, in less time
    elif type(twin) is torch.Tensor and has_own_class(kind):
        twin = twin.as_subclass(kind)
    elif type(twin) is torch.Tensor and is_traceable_wrapper_subclass(tensor):
        twin = twin.as_subclass(_seen_as(kind))
    elif is_parameter:
        twin = nn.Parameter(twin, requires_grad=False)  # on the same memory, of the same class
    if is_parameter and tensor.requires_grad and (twin.is_floating_point() or twin.is_complex()):
        twin.requires_grad_()
    return cast("torch.Tensor", twin)


def have_own_classes(modules: ModuleTree) -> bool:
    """Whether a weight is of a third party's class, which a model may ask for and no fake tensor has."""
    return any(map(has_own_class, set(map(type, weights_of(modules)))))


def copied(
    model: nn.Module, dtypes: Mapping[torch.dtype, torch.dtype] = NO_TYPES, onto: torch.device = CPU
) -> nn.Module:
    """A deep copy on a device, in which tensors that were computed are values of their own.

    ``weight_norm`` and ``prune`` leave such tensors as attributes, and torch copies none with a
    history. Plain parameters of some types are copied as others, without a copy in their own.
    """
    modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
    tables = (table for module in modules for table in (vars(module), buffers_of(module)))
    known: dict[int, Any] = {
        id(value): _onto(onto, value.detach().clone())
        for table in tables
        for value in table.values()
        if isinstance(value, torch.Tensor) and not value.is_leaf
    }
    for parameter in (each for module in modules for each in parameters_of(module).values()):
        if type(parameter) is nn.Parameter and parameter.is_leaf and parameter.dtype in dtypes:
            values = _onto(onto, parameter.detach()).to(dtypes[parameter.dtype])
            known[id(parameter)] = nn.Parameter(values, parameter.requires_grad)
    with copied_onto(onto):
        same = copy.deepcopy(model, known)
    for parameter in (each for module in modules for each in parameters_of(module).values() if each is not None):
        for name, mark in vars(parameter).items():  # which torch copies of no parameter
            vars(known[id(parameter)]).setdefault(name, copy.deepcopy(mark, known))
    for module in (each for each in modules if is_compiled_in_place(each) and id(each) in known):
        # Torch drops what module.compile() has made from a copy: the copy runs eagerly, and still shows it.
        setattr(known[id(module)], versions.COMPILED_CALL, getattr(known[id(module)], versions.CALL))
    return same


def is_compiled_in_place(module: nn.Module) -> bool:
    """Whether ``module.compile()`` was called, of a module or of the one that it was copied from."""
    return vars(module).get(versions.COMPILED_CALL) is not None


def _onto(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with memory on a device, one without as it is."""
    return tensor if tensor.is_meta else tensor.to(device)


def at_home(model: nn.Module) -> nn.Module:
    """The model itself, or a copy on the CPU of one with weights elsewhere: it may be somebody's."""
    lies_elsewhere = any(is_accelerator(weight.device) for weight in weights_of(module_tree(model)))
    return copied(model) if lies_elsewhere else model


def replace(modules: ModuleTree, twins: Mapping[int, torch.Tensor], again: Iterable[Spot] = ()) -> None:
    """Replace each weight by its twin, in further references too; ``module_state_kept`` puts it back."""
    if not twins:
        return
    for _, module in modules:
        for table in (parameters_of(module), buffers_of(module)):
            for name, tensor in table.items():
                if tensor is not None:
                    table[name] = twins[id(tensor)]
    for container, key in again:  # among them those tables, where a function has the attributes of a module
        container[key] = _with_twins(container[key], twins)


def _with_twins(value: Any, twins: Mapping[int, torch.Tensor]) -> Any:
    """A weight's twin, or a tuple with the twins of the weights in it; whatever else is itself."""
    if not isinstance(value, tuple):
        return twins.get(id(value), value)
    parts = [_with_twins(part, twins) for part in value]
    if all(part is before for part, before in zip(parts, value, strict=True)):
        return value
    return type(value)._make(parts) if hasattr(value, "_make") else tuple(parts)


SPREAD = ("weight", "scale", "gamma", "var", "variance", "std")  # names of vectors that multiply or divide


def redraw(model: nn.Module, seed: int = 0) -> None:
    """Fill every floating parameter and statistic, at the scale that keeps a network alive.

    Weights N(0, 1/√fan_in), biases and shifts N(0, 0.1), scales and variances U(0.5, 1.5). Each is
    drawn under its own name, so that two models that share names share weights. Buffers that are
    no statistics (masks, tables, scalars) mean something by their values, and stay.
    """
    drawn: dict[int, NamedWeight] = {}
    for weight in filter(_is_drawn, named_weights(module_tree(model))):
        drawn.setdefault(id(weight.tensor), weight)
    sharing: defaultdict[int, list[NamedWeight]] = defaultdict(list)  # memory, which one thread fills
    for weight in drawn.values():
        sharing[memory_of(weight.tensor) if weight.is_plain else 0].append(weight)
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(lambda weights: [_draw(weight, seed) for weight in weights], sharing.values()))


def _is_drawn(weight: NamedWeight) -> bool:
    statistic = weight.name.endswith(("running_mean", "running_var"))
    return weight.tensor.is_floating_point() and (weight.is_parameter or statistic)


@torch.no_grad()
def _draw(weight: NamedWeight, seed: int) -> None:
    """Fill one weight with values that come from its name, shape and seed alone: drawn in float32, in place."""
    into = weight.tensor.data
    is_plain = into.dtype is torch.float32 and into.is_contiguous() and into.device.type == "cpu"
    values = into if is_plain else torch.empty(into.shape, dtype=torch.float32, device="cpu")
    generator = torch.Generator().manual_seed(crc32(f"{seed}/{weight.name}".encode()))
    shape, last = into.shape, weight.name.rpartition(".")[2]
    if len(shape) >= 2:
        fan_in = prod(shape[1:]) if shape[0] > 1 else shape[-1]
        values.normal_(generator=generator).div_(sqrt(max(fan_in, 1)))
    elif last.endswith(SPREAD):
        values.uniform_(generator=generator).add_(0.5)
    else:
        values.normal_(generator=generator).mul_(0.1)
    if values is not into:
        into.copy_(values)
