"""What a ``.tflite`` file says: tensors, operators and subgraphs as plain data; no value of a weight is read.

The schema: https://github.com/google-ai-edge/LiteRT/blob/main/tflite/schema.fbs, through the package ``tflite``.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tflite.BatchMatMulOptions import BatchMatMulOptions
from tflite.BuiltinOperator import BuiltinOperator
from tflite.LocalResponseNormalizationOptions import LocalResponseNormalizationOptions
from tflite.Model import Model
from tflite.Pool2DOptions import Pool2DOptions
from tflite.TensorType import TensorType

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.formats.source import AGAIN, LARGEST_SIZE
from pytest_modelbudget.graph.tensor import DType

IDENTIFIER, VERSION = b"TFL3", 3
MOST_DIMENSIONS = 16
EXTERNAL = 1  # an offset above it is of a buffer that lies behind the flatbuffer: 0 is none, 1 one to be filled in
BLOCKWISE = 2  # of the union of a quantisation's details
PLAN = b"OfflineMemoryAllocation"
NARROW = {"INT4": 4, "BOOL": 8, "BFLOAT16": 16, "INT2": 2, "UINT4": 4}
WITHOUT_SIZE = frozenset({"STRING", "RESOURCE", "VARIANT"})
ROUTES = {"CUSTOM": "tflite.custom"}

BUILTINS = {code: name for name, code in vars(BuiltinOperator).items() if not name.startswith("_")}
TYPES = {code: name for name, code in vars(TensorType).items() if not name.startswith("_")}
TYPES |= {19: "INT2", 20: "UINT4", 21: "FLOAT8_E4M3FN", 22: "FLOAT8_E5M2"}  # of later schemas

# The settings that costs depend on, by operator: its options, and what is made of them.
Options = Callable[[Any], Mapping[str, object]]


def _window(options: Any) -> Mapping[str, object]:
    return {"kernel_size": (options.FilterHeight(), options.FilterWidth())}


def _turned(options: Any) -> Mapping[str, object]:
    return {"transA": int(options.AdjX()), "transB": int(options.AdjY())}


def _neighbours(options: Any) -> Mapping[str, object]:
    return {"size": 2 * options.Radius() + 1}


OPTIONS: Mapping[str, tuple[type, Options]] = {
    **dict.fromkeys(("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"), (Pool2DOptions, _window)),
    "BATCH_MATMUL": (BatchMatMulOptions, _turned),
    "LOCAL_RESPONSE_NORMALIZATION": (LocalResponseNormalizationOptions, _neighbours),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: shape as the file has it, the number of its buffer, and how many scales stand for its values.

    is_open says that the file leaves a size open, has_size that its bytes are known, has_rank that it says how many
    axes there are. stored are its bytes in the file, 0 of what the program computes. scaled_by is the tensor that has
    its scales where they stand for blocks, or -1.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    buffer: int
    stored: int
    scales: int = 0
    is_variable: bool = False
    is_open: bool = False
    has_size: bool = True
    scaled_by: int = -1
    has_rank: bool = True


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator by its full name, such as ``tflite::CONV_2D``; -1 among its inputs is an absent one."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Subgraph:
    """One program of a file; inputs and outputs are numbers of its tensors."""

    name: str
    tensors: tuple[Entry, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Contents:
    """All of a file: its name, its subgraphs, its bytes, those that buffers have of them, and the plan of its arena.

    plan has the offset of each tensor by its number, for each subgraph that one was written for.
    """

    file: str
    subgraphs: tuple[Subgraph, ...]
    nbytes: int
    buffers: tuple[int, ...]
    plan: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


def contents(content: mmap.mmap, name: str) -> Contents:
    """The contents of a file. Raises SourceError, or what struct and tuples raise, for one that is damaged."""
    return _Reader(content, name).contents()


class _Reader:
    """Reads tables of one file. What it counts may not be more than the file has bytes: tables may share vectors."""

    def __init__(self, content: mmap.mmap, name: str) -> None:
        self._content, self._name, self._left = content, name, 2 * len(content)

    def contents(self) -> Contents:
        model = Model.GetRootAs(self._content)
        if model.Version() != VERSION:
            raise SourceError(
                f"{self._name} has schema version {model.Version()}, and {VERSION} is known: convert it again"
            )
        buffers = tuple(map(self._stored, self._each(model.BuffersLength(), model.Buffers)))
        codes = tuple(map(_name_of, self._each(model.OperatorCodesLength(), model.OperatorCodes)))
        graphs = self._each(model.SubgraphsLength(), model.Subgraphs)
        subgraphs = tuple([self._subgraph(graph, codes, buffers) for graph in graphs])
        if not subgraphs:
            raise SourceError(f"{self._name} has no subgraph: {AGAIN}")
        return Contents(self._name, subgraphs, len(self._content), buffers, self._plan(model))

    def _each(self, count: int, item: Callable[[int], Any]) -> Iterator[Any]:
        """So many items of a vector, counted before one is read."""
        self._left -= count
        if self._left < 0:
            raise SourceError(f"{self._name} lists more than its {len(self._content):,} B can hold: {AGAIN}")
        return map(item, range(count))

    def _numbers(self, count: int, values: Callable[[], Any]) -> tuple[int, ...]:
        self._each(count, int)
        return tuple(values().tolist()) if count else ()

    def _stored(self, buffer: Any) -> int:
        """The bytes of a buffer, within the flatbuffer or behind it."""
        if buffer.Offset() <= EXTERNAL:
            return len(buffer.DataAsNumpy()) if buffer.DataLength() else 0
        end = buffer.Offset() + buffer.Size()
        if end > len(self._content):
            raise SourceError(f"{self._name}: a buffer ends at byte {end:,} of {len(self._content):,}: {AGAIN}")
        return int(buffer.Size())

    def _subgraph(self, graph: Any, codes: tuple[str, ...], buffers: tuple[int, ...]) -> Subgraph:
        tensors = tuple([self._entry(each, buffers) for each in self._each(graph.TensorsLength(), graph.Tensors)])
        operators = self._each(graph.OperatorsLength(), graph.Operators)
        return Subgraph(
            _text(graph.Name()),
            tensors,
            tuple([self._operator(each, codes, len(tensors)) for each in operators]),
            self._places(graph.InputsLength(), graph.InputsAsNumpy, len(tensors)),
            self._places(graph.OutputsLength(), graph.OutputsAsNumpy, len(tensors)),
        )

    def _places(self, count: int, values: Callable[[], Any], tensors: int) -> tuple[int, ...]:
        """Numbers of tensors; raises SourceError for one that there is not."""
        places = self._numbers(count, values)
        if odd := [place for place in places if not -1 <= place < tensors]:
            raise SourceError(f"{self._name} names tensor {odd[0]:,} of {tensors:,}: {AGAIN}")
        return places

    def _operator(self, operator: Any, codes: tuple[str, ...], tensors: int) -> Operator:
        name = codes[operator.OpcodeIndex()]
        kind, made = OPTIONS.get(name.rpartition("::")[2], (None, None))
        table = operator.BuiltinOptions() if kind else None
        attributes: Mapping[str, object] = {}
        if kind and made and table is not None:
            options = kind()
            options.Init(table.Bytes, table.Pos)
            attributes = made(options)
        inputs = self._places(operator.InputsLength(), operator.InputsAsNumpy, tensors)
        outputs = self._places(operator.OutputsLength(), operator.OutputsAsNumpy, tensors)
        return Operator(name, inputs, outputs, attributes)

    def _entry(self, tensor: Any, buffers: tuple[int, ...]) -> Entry:
        name, shape = _text(tensor.Name()), self._numbers(tensor.ShapeLength(), tensor.ShapeAsNumpy)
        signature = self._numbers(tensor.ShapeSignatureLength(), tensor.ShapeSignatureAsNumpy)
        if len(shape) > MOST_DIMENSIONS or any(size < 0 for size in shape):
            raise SourceError(f"{self._name}: tensor '{name}' has the shape {list(shape)[:MOST_DIMENSIONS]}: {AGAIN}")
        word, stored = TYPES.get(tensor.Type(), ""), buffers[tensor.Buffer()]
        if not word:
            raise SourceError(f"{self._name}: '{name}' has the unknown type {tensor.Type()}: update pytest-modelbudget")
        scales = tensor.Quantization()
        entry = Entry(
            name,
            shape,
            _dtype(word),
            tensor.Buffer(),
            stored,
            scales.ScaleLength() if scales is not None else 0,
            tensor.IsVariable(),
            -1 in signature,
            word not in WITHOUT_SIZE,
            _scaled_by(scales),
            bool(shape) or tensor.HasRank(),
        )
        self._must_fit(entry, is_sparse=tensor.Sparsity() is not None)
        return entry

    def _must_fit(self, entry: Entry, *, is_sparse: bool) -> None:
        """Raise SourceError where a tensor is larger than may be, or its buffer has too few bytes for it."""
        nbytes = -(-_elements(entry.shape) * entry.dtype.bits // 8)
        if nbytes > LARGEST_SIZE:
            raise SourceError(f"{self._name}: tensor '{entry.name}' has {nbytes:,} B: {AGAIN}")
        if entry.stored and entry.has_size and not is_sparse and not entry.is_variable and entry.stored < nbytes:
            raise SourceError(
                f"{self._name}: '{entry.name}' takes {nbytes:,} B, its buffer has {entry.stored:,}: {AGAIN}"
            )

    def _plan(self, model: Any) -> Mapping[int, tuple[int, ...]]:
        """The offsets that a plan in the metadata gives: int32 version, subgraph, count, and one offset each."""
        plans = {}
        for metadata in self._each(model.MetadataLength(), model.Metadata):
            if metadata.Name() != PLAN:
                continue
            buffer = model.Buffers(metadata.Buffer())
            numbers = buffer.DataAsNumpy().view("<i4").tolist() if buffer.DataLength() else []
            if len(numbers) < 3 or numbers[0] != 1 or len(numbers) != 3 + numbers[2]:
                raise SourceError(f"{self._name} has an offline plan of {len(numbers)} numbers: write it again")
            plans[numbers[1]] = tuple(numbers[3:])
        return plans


def _scaled_by(scales: Any) -> int:
    """The tensor that has a scale for each block: the first field of a table that the package does not know."""
    details = scales.Details() if scales is not None and scales.DetailsType() == BLOCKWISE else None
    offset = details.Offset(4) if details else 0
    return int(struct.unpack_from("<i", details.Bytes, offset + details.Pos)[0]) if details and offset else -1


def _elements(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _text(name: bytes | None) -> str:
    return (name or b"").decode("utf-8", "replace")


def _dtype(word: str) -> DType:
    """A type as its field has it: int8, float32, bool; of what has no size, 0 bits."""
    digits = "".join(letter for letter in word.partition("_")[0] if letter.isdecimal())
    return DType(word.lower(), 0 if word in WITHOUT_SIZE else NARROW.get(word) or int(digits))


def _name_of(code: Any) -> str:
    """The full name of an operator: builtin ones by the schema, custom ones by what the file calls them."""
    number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
    name = BUILTINS.get(number, f"BUILTIN_{number}")
    return f"{ROUTES[name]}::{_text(code.CustomCode()) or 'unnamed'}" if name in ROUTES else f"tflite::{name}"
