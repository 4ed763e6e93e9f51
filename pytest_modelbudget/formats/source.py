"""Where a model comes from and what it is run on, as plain data."""

from __future__ import annotations

import json
import mmap
import re
import struct
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from math import prod
from numbers import Integral
from pathlib import Path
from pkgutil import iter_modules
from types import FunctionType, ModuleType
from typing import Any, Union

from pytest_modelbudget.errors import InputError, MissingExtraError, SourceError, TransformError, user_code
from pytest_modelbudget.formats.benchmark import importing
from pytest_modelbudget.formats.containers import Record, is_named_tuple, with_parts
from pytest_modelbudget.formats.user_modules import Roots, definition, refuse_ambiguous, refuse_other_file
from pytest_modelbudget.units import some_of, with_article

LARGEST_SIZE = 2**63 - 1  # of one dimension, and of an integer input's value
LFS_POINTER = b"version https://git-lfs.github.com/spec/"  # https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
FETCH_LFS = "fetch it with git lfs pull; in GitHub Actions, give actions/checkout lfs: true"
_ATTRIBUTE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_CALL = re.compile(r"\(.*\)\Z", re.DOTALL)
_PYTHON_FILE = re.compile(r"(?:\./)?((?:[A-Za-z_]\w*/)*[A-Za-z_]\w*)\.py(?::([A-Za-z_][\w.]*))?")
# Formats of files that no key reads, or one alone: name, suffixes, a pattern of their first bytes, what to do.
OTHERS: tuple[tuple[str, tuple[str, ...], bytes, str], ...] = (
    ("TFLite", (".tflite",), b"....TFL3", "write it under tflite:"),
    ("ExecuTorch", (".pte",), b"....ET12", "write it under pte:"),
    ("GGUF", (".gguf",), b"GGUF", "name it .gguf, and write it under checkpoint:"),
    ("ONNX Runtime", (".ort",), b"....ORTM", "give the ONNX file that it was made of"),
    ("TensorFlow", ("saved_model.pb",), b"(?!)", "convert it first: python -m tf2onnx.convert --saved-model FOLDER"),
    ("protobuf", (".pb",), b"(?!)", "write ONNX under onnx:, or convert it: python -m tf2onnx.convert --graphdef"),
    (
        "Keras",
        (".keras", ".h5"),
        b"\x89HDF",
        'convert it first: tf.lite.TFLiteConverter.from_keras_model(model), or model.export("net.onnx", format="onnx")',
    ),
    ("Core ML", (".mlmodel", ".mlpackage", ".mlmodelc"), b"(?!)", "give the torch module that it was converted from"),
    ("OpenVINO", (".xml",), rb"<\?xml", "give the torch module or the ONNX file that it was converted from"),
    ("TensorRT", (".engine", ".plan"), b"ftrt", "give the ONNX file that its kernels were built from"),
    ("AOTInductor", (".so",), b"\x7fELF", "give the exported program that its kernels were compiled from"),
)
READ_UNDER = {("tflite", "TFLite"), ("pte", "ExecuTorch"), ("checkpoint", "GGUF"), ("onnx", "protobuf")}


def names_attribute(target: str) -> bool:
    """Whether this reads "package.module:callable"; no path does, with a drive letter or not."""
    return _ATTRIBUTE.fullmatch(target) is not None


def attribute_meant(target: str) -> str:
    """The "module:callable" that a word seems to mean: ./lib/net.py:Net, lib.net.Net or net:Net(3); "" of others."""
    called = _CALL.sub("", target)
    if other_format(Path(called))[0]:
        return ""
    if file := _PYTHON_FILE.fullmatch(called):
        return f"{file[1].replace('/', '.')}:{file[2] or 'CALLABLE'}"
    if called != target and names_attribute(called):
        return called
    module, _, name = called.rpartition(".")
    meant = f"{module}:{name}"
    return meant if names_attribute(meant) else ""


def is_whole(value: object) -> bool:
    """Whether this is an integer of any type, such as numpy's; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input: its type and shape, and for integers the range [low, high) of its values, or these themselves.

    values are all of them, row by row: sizes that decide the path of a model.
    """

    dtype: str
    shape: tuple[int, ...]
    low: int | None = None
    high: int | None = None
    values: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Numbers of any integer type, such as numpy's, become plain ones; raises InputError for what is none."""
        object.__setattr__(self, "dtype", str(self.dtype).removeprefix("torch."))
        if isinstance(self.shape, str) or not isinstance(self.shape, Iterable):
            raise InputError(f"{self.shape!r} is no shape: write sizes, outermost first, such as (1, 3, 224, 224)")
        if odd := [size for size in self.shape if not is_whole(size) or not 0 <= size <= LARGEST_SIZE]:
            raise InputError(f"{odd[0]!r} in {self.shape!r} is no size: write a whole number, 0 to 2^63 - 1")
        object.__setattr__(self, "shape", tuple(map(int, self.shape)))
        for name, bound in (("low", self.low), ("high", self.high)):
            if bound is not None and not is_whole(bound):
                raise InputError(f"{name}={bound!r} is no bound of integers: write a whole number")
        if self.values is not None:
            self._hold_values(self.values)

    def _hold_values(self, values: tuple[int, ...]) -> None:
        """Let the range be that of the values; raises InputError for too few, and for what the type does not hold."""
        if len(values) != prod(self.shape):
            raise InputError(f"{len(values)} values do not fill the shape {self.shape}")
        bits = int(self.dtype.lstrip("uint") or 0) if "int" in self.dtype else self.dtype == "bool"
        least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if self.dtype.startswith("int") else (0, 2**bits)
        if odd := [value for value in values if not least <= value < most]:
            raise InputError(f"{odd[0]} is no {self.dtype}: write integers from {least} to {most - 1}")
        if values:
            object.__setattr__(self, "low", min(values))
            object.__setattr__(self, "high", max(values) + 1)

    def in_float64(self) -> TensorSpec:
        """The same input, a floating one in float64."""
        return replace(self, dtype="float64") if "float" in self.dtype else self

    @property
    def spelled(self) -> str | dict[str, object]:
        """As a budget spells it: "float32 1x3", or a mapping where it has a range, or values."""
        if self.values is not None:
            return {"dtype": self.dtype, "values": _nested(self.values, self.shape)}
        if self.low is None and self.high is None:
            return f"{self.dtype} {'x'.join(map(str, self.shape)) or '()'}"
        values = {"dtype": self.dtype, "shape": list(self.shape), "low": self.low, "high": self.high}
        return {key: value for key, value in values.items() if value is not None}


def _nested(values: Sequence[int], shape: Sequence[int]) -> Any:
    """Values row by row, as lists within lists."""
    if not shape:
        return values[0]
    step = prod(shape[1:])
    return [_nested(values[at * step : (at + 1) * step], shape[1:]) for at in range(shape[0])]


def of_values(dtype: str, nested: Any) -> TensorSpec:
    """The spec of lists within lists of integers; raises InputError for rows of several lengths, and other values."""
    shape, level = [], [nested]
    while level and isinstance(level[0], list):
        shape.append(len(level[0]))
        if any(not isinstance(part, list) or len(part) != shape[-1] for part in level):
            raise InputError("values are rows of several lengths: write as many in each")
        level = [part for row in level for part in row]
    if odd := [value for value in level if not is_whole(value) and not (dtype == "bool" and isinstance(value, bool))]:
        raise InputError(f"{odd[0]!r} under 'values' is no integer: write lists of whole numbers, such as [[1, 8, 8]]")
    return TensorSpec(dtype, tuple(shape), values=tuple(map(int, level)))


@dataclass(frozen=True, slots=True)
class Plain:
    """An input that is no tensor: None, true, a number or a text, which the model is given as it is."""

    value: object

    @property
    def spelled(self) -> object:
        """As a budget spells it next to tensors, whose specs are words."""
        return {"plain": self.value} if isinstance(self.value, (str, list, dict)) else self.value


GROUPED, AS_WRITTEN = "grouped", "as_written"  # the words of qdq
AS_RUN = frozenset({"tflite", "pte"})  # formats of programs that a device runs as they are: nothing is grouped

# Values that an optimizer keeps for each one that it changes: none, a momentum, or the two moments of Adam.
OPTIMIZERS: Mapping[str, int] = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
USUAL_OPTIMIZER = "adam"  # where training is measured and none is named

InputSpec = Union[TensorSpec, Plain, "tuple[InputSpec, ...]", "Mapping[str, InputSpec]"]


@dataclass(frozen=True, slots=True)
class InputSpecs:
    """Inputs of a model: positional ones, or by name; none where the file brings its own.

    A tuple in place of a spec is one argument that takes a list of tensors, as detectors do; a mapping one that takes a
    dict. From Python code a named tuple of specs is one that takes such a tuple, and so are ordered dicts and records.
    """

    positional: tuple[InputSpec, ...] = ()
    named: Mapping[str, InputSpec] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.positional or self.named)

    def __str__(self) -> str:
        """As a budget, the command line and Python alike take them."""
        positional, named = self._walked(lambda tensor: tensor.spelled, lambda plain: plain.spelled, _spelled)
        return json.dumps(named or (positional[0] if len(positional) == 1 else positional))

    def arguments(self) -> Iterator[tuple[str, InputSpec]]:
        """(name, spec) of every argument: "0", "1", "mask"."""
        yield from ((str(position), spec) for position, spec in enumerate(self.positional))
        yield from self.named.items()

    def tensors(self) -> Iterator[tuple[str, TensorSpec]]:
        """(name, spec) of every tensor, in the order of ``filled``: "0", "1.0", "mask"."""
        for name, spec in self.arguments():
            yield from _tensors(name, spec)

    def filled(self, make: Callable[[TensorSpec], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments with something made of each tensor alone; raises InputError where a record's class refuses it."""
        return self._walked(make, lambda plain: plain.value, _made)

    def each(self, change: Callable[[TensorSpec], TensorSpec]) -> InputSpecs:
        """The same arguments, every tensor changed."""
        return InputSpecs(*self._walked(change, lambda plain: plain, with_parts))

    def _walked(self, *make: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        named = {name: _walked(spec, *make) for name, spec in self.named.items()}
        return tuple(_walked(spec, *make) for spec in self.positional), named


NO_INPUTS = InputSpecs()


def _tensors(name: str, spec: InputSpec) -> Iterator[tuple[str, TensorSpec]]:
    if isinstance(spec, TensorSpec):
        yield name, spec
    elif not isinstance(spec, Plain):
        for key, part in spec.items() if isinstance(spec, Mapping) else enumerate(spec):
            yield from _tensors(f"{name}.{key}", part)


def _walked(
    spec: InputSpec,
    tensor: Callable[[TensorSpec], Any],
    plain: Callable[[Plain], Any],
    several: Callable[[Any, list[Any]], Any],
) -> Any:
    """One argument, with something in place of each tensor, plain value and container."""
    if isinstance(spec, TensorSpec):
        return tensor(spec)
    if isinstance(spec, Plain):
        return plain(spec)
    parts = spec.values() if isinstance(spec, Mapping) else spec
    return several(spec, [_walked(part, tensor, plain, several) for part in parts])


def _with_arguments(spec: Record, parts: list[Any]) -> Call:
    """The call that a record stands for, with these arguments: those under numbers are positional."""
    named = dict(zip(spec, parts, strict=True))
    args = tuple(named.pop(at) for at in [*named] if isinstance(at, int))
    return Call(spec.kind.target, args, named)


def _spelled(spec: InputSpec, parts: list[Any]) -> Any:
    """A container as a budget spells it: a list or a mapping."""
    if isinstance(spec, Record) and isinstance(spec.kind, Call):
        return _with_arguments(spec, parts).spelled
    return dict(zip(spec, parts, strict=True)) if isinstance(spec, Mapping) else parts


def _made(spec: InputSpec, parts: list[Any]) -> Any:
    """A container as a model takes it; a plain tuple of specs stands for a list."""
    if isinstance(spec, Record):
        return made(_with_arguments(spec, parts)) if isinstance(spec.kind, Call) else spec.made(parts)
    return with_parts(spec, parts) if is_named_tuple(spec) or isinstance(spec, Mapping) else parts


@dataclass(frozen=True, slots=True)
class Call:
    """An argument that is made again for each model: what "module:callable" gives for arguments of its own."""

    target: str
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)

    @property
    def spelled(self) -> dict[str, object]:
        """As a budget spells it, without arguments that there are none of."""
        arguments = {"args": self.args, "kwargs": self.kwargs}
        return {"call": self.target, **{key: given for key, given in arguments.items() if given}}


CACHE_TYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "int8")


@dataclass(frozen=True, slots=True)
class Serving:
    """How a language model is served: tokens that are cached for each of so many sequences.

    cache_dtype is the type of the cache where another one than the program's holds it. memory and reserve are bytes of
    a device, and those that something else takes.
    """

    context: int
    batch: int = 1
    cache_dtype: str = ""
    memory: int | None = None
    reserve: int = 0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Labelled data, a file below base or "package.module:callable", and the metric that scores a model's answers.

    is_error says that the mean of the scores is an error, and no share of right answers; batch is rows a call, or 0.
    """

    data: str
    metric: str
    batch: int = 0
    is_error: bool = False
    base: Path = Path()


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model comes from, and what it is run on.

    format is a key of the table of formats. target is "module:attribute" (called with args and
    kwargs, in which each ``Call`` is made first), a file path (relative to base), or, from Python code, a module or
    factory itself.
    dtype converts the model's floating-point parameters and buffers; dims binds symbols. qdq is "as_written"
    where dequantise, operation and quantise are measured apart, and "" where as one operation on integers. training
    names the optimizer of the training step that is measured, too; "" where none is. serving says what a language model
    is served with, and evaluate on what it is evaluated; None where that is not measured. import_roots are the folders
    that its modules are imported from, those nearest to its budget first.
    """

    format: str
    target: object
    inputs: InputSpecs = NO_INPUTS
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)
    dtype: str | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    qdq: str = ""
    training: str = ""
    serving: Serving | None = None
    evaluate: Evaluation | None = None
    base: Path = Path()
    import_roots: Roots = ()

    def searched(self, root: Path) -> Roots:
        """The folders that its modules are imported from: its own roots, or the root of the project."""
        return self.import_roots or ((root,),)

    def definition(self, root: Path) -> str:
        """The file and line that define its target, once that was imported: "b/nets.py:2"; "" of files."""
        module, _, attribute = str(self.target).partition(":")
        named: object = sys.modules.get(module) if names_attribute(str(self.target)) else None
        with suppress(SourceError), user_code("finding the definition", SourceError):
            for name in attribute.split(".") if named is not None else ():
                named = getattr(named, name, None)
        return "" if named is None else definition(named, root)


# Packages that models are named of, and the extra that brings each.
EXTRAS = {"torch": "torch", "torchvision": "vision", "onnx": "onnx", "onnxruntime": "onnx"}


def resolved(target: str) -> object:
    """What ``module:attribute`` names; attributes may be dotted."""
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise SourceError(f"'{target}' is not module:callable, as in torchvision.models:resnet18")
    refuse_ambiguous(module_name)
    with user_code(f"importing {module_name}", SourceError):
        try:
            with importing():
                named: object = import_module(module_name)
            refuse_other_file(module_name)
        except ModuleNotFoundError as error:
            if error.name in EXTRAS:
                raise MissingExtraError(f"'{target}'", package=error.name, extra=EXTRAS[error.name]) from error
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
            meant = attribute_meant(target) or _other_module(error.name, target)
            way_out = f"did you mean {meant}?" if meant else "is it installed, or on the pythonpath?"
            raise SourceError(f"there is no module '{error.name}': {way_out}") from error
    for name in attribute.split("."):
        if not hasattr(named, name):
            raise SourceError(f"{module_name} has no '{name}'{_names_in(named, name)}")
        named = getattr(named, name)
    return named


def _names_in(named: object, name: str) -> str:
    """What something has that a name may mean: one that is almost the same, else what a module itself defines."""
    close = get_close_matches(name, [each for each in dir(named) if not each.startswith("_")], 1)
    if close:
        return f"; did you mean '{close[0]}'?"
    held = vars(named) if isinstance(named, ModuleType) else {}
    makers = [each for each, value in held.items() if issubclass(type(value), (type, FunctionType))]
    own = [each for each in makers if held[each].__module__ == held["__name__"] and not each.startswith("_")]
    return f"; it has {some_of(own)}" if own else ""


def _other_module(name: str, target: str) -> str:
    """The target in a module whose name is almost that of one which is not there; "" where there is none."""
    close = get_close_matches(name, (module.name for module in iter_modules()), 1, cutoff=0.8)
    meant = target.replace(name, close[0], 1) if close else target
    module, _, attribute = meant.partition(":")
    spec = find_spec(module) if close and "." not in module else None
    file = Path(spec.origin) if spec and spec.origin else Path()
    text = file.read_text("utf-8", "ignore") if file.suffix == ".py" else ""
    return meant if re.search(rf"\b{attribute.partition('.')[0]}\b", text) else ""


def file_meant(path: Path) -> str:
    """A sentence on a file whose name is almost that of a missing one; "" where there is none."""
    beside = (file.name for file in path.parent.glob(f"*{path.suffix}"))
    close = get_close_matches(path.name, sorted(beside), 1, cutoff=0.8)
    return f"did you mean {close[0]}?" if close else ""


def made(value: Any) -> Any:
    """An argument as it is handed over: every call in it made, also in lists and mappings."""
    if isinstance(value, Call):
        maker = resolved(value.target)
        if not callable(maker):
            raise SourceError(f"{value.target} is {with_article(type(maker).__name__)}, and cannot be called")
        args, kwargs = made(value.args), made(value.kwargs)
        with user_code(f"calling {value.target}", SourceError):
            return maker(*args, **kwargs)
    if type(value) is dict:
        return {name: made(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(made(item) for item in value)
    return value


def transform_named(target: str) -> Callable[..., Any]:
    """The user's transform that a target names.

    Raises SourceError as ``resolved`` does, TransformError for what cannot be called.
    """
    named = resolved(target)
    if not callable(named):
        raise TransformError(f"{target} is {with_article(type(named).__name__)}, and cannot be called")
    return named


def existing_file(source: ModelSource, what: str) -> Path:
    """The source's path; raises SourceError where there is no readable, non-empty file."""
    path = source.base / str(source.target)
    if path.is_dir():
        raise SourceError(f"{source.target} is a folder, not {what}: name a file")
    if not path.is_file():
        way_out = "is it written before the gate runs, and the path relative to the budget file?"
        raise SourceError(f"{source.target} does not exist: {file_meant(path) or way_out}")
    if not path.stat().st_size:
        raise SourceError(f"{source.target} is empty, not {what}: export it again")
    with user_code(f"reading {source.target}", SourceError), path.open("rb") as file:
        begin = file.read(len(LFS_POINTER))
    if begin == LFS_POINTER:
        raise SourceError(f"{source.target} is a pointer of Git LFS: {FETCH_LFS}")
    return path


def read_flatbuffer(source: ModelSource, kind: str, identifier: bytes, read: Callable[[mmap.mmap, str], Any]) -> Any:
    """A reader's answer on a file's bytes and name. Raises InputError for inputs, SourceError for a damaged file."""
    path = existing_file(source, with_article(kind))
    if source.inputs or source.dims or source.dtype is not None:
        raise InputError(f"{path.name} has fixed shapes and types: leave out inputs, dims and dtype, or write it again")
    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if content[4:8] != identifier:
        raise SourceError(f"{path.name} is no {kind} ({identifier.decode()}), or only a part of one: {AGAIN}")
    try:
        return read(content, path.name)
    except (struct.error, LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise SourceError(f"{path.name} is a damaged {kind} ({' '.join(str(error).split())[:80]}): {AGAIN}") from error


def other_format(path: Path) -> tuple[str, str]:
    """The name of another format, by what a file or folder holds, or else its name, and what to do; "" of none."""
    begin, called = b"", "saved_model.pb" if (path / "saved_model.pb").is_file() else path.name
    with suppress(OSError), path.open("rb") as file:
        begin = file.read(8)
    if path.suffix == ".bin" and path.with_suffix(".xml").is_file():  # the weights of OpenVINO
        called = ".xml"
    by_bytes = [(name, way_out) for name, _, first, way_out in OTHERS if re.match(first, begin, re.DOTALL)]
    by_name = [(name, way_out) for name, suffixes, _, way_out in OTHERS if called.endswith(suffixes)]
    return next(iter(by_bytes or by_name), ("", ""))


AGAIN = "export it again, or fetch all of it (git lfs pull)"
OR_A_PART = f", or only a part of one: {AGAIN}"  # of a file of no kind
# What each kind of file is called, and how one gets what the budget asked for.
KINDS = {
    "torchscript": "a TorchScript file: write 'torchscript:'",
    "exported": "an exported program: write 'exported:'",
    "torch.save": "what torch.save writes, a state dict or a pickled module: write 'checkpoint:' for its sizes, "
    "or 'torch:' and name a callable that builds the model",
    "compiled": "a package of AOTInductor, which holds compiled kernels and no operators: give the exported "
    "program that it was compiled from",
}

COMPILED = "/data/aotinductor/"  # where a package has what was compiled; programs are in models/


def must_be(path: Path, kind: str) -> None:
    """Raises SourceError, saying what the file is, unless it is of this kind."""
    if (actual := kind_of_file(path)) != kind:
        wanted = KINDS[kind].partition(":")[0]
        if is_cut(path):
            raise SourceError(f"{path.name} is only a part of an archive: {AGAIN}")
        way_out = f"; it is {KINDS[actual]}" if actual in KINDS else OR_A_PART
        raise SourceError(f"{path.name} is not {wanted}{way_out}")


def is_cut(path: Path) -> bool:
    """Whether a file begins as a zip archive, and ends without a directory that can be read. Raises OSError."""
    with path.open("rb") as file:
        if file.read(4) != b"PK\3\4":
            return False
        if not zipfile.is_zipfile(file):
            return True
        try:
            with zipfile.ZipFile(file) as archive:
                return all(member.header_offset for member in archive.infolist())  # the last whole one within it
        except zipfile.BadZipFile:
            return True


def kind_of_file(path: Path) -> str:
    """What a file is, by the names inside its archive: a key of KINDS, or "other" of what is none of them."""
    if not zipfile.is_zipfile(path) or is_cut(path):
        return "other"
    with zipfile.ZipFile(path) as archive:
        folders, inside = zip(*((name.rpartition("/")[::2]) for name in archive.namelist()), strict=True)
    if any(COMPILED in folder for folder in folders) and not any(folder.endswith("/models") for folder in folders):
        return "compiled"
    if "constants.pkl" in inside:
        return "torchscript"
    if "archive_format" in inside or "serialized_exported_program.json" in inside:  # the latter before torch 2.8
        return "exported"
    return "torch.save" if "data.pkl" in inside else "other"
