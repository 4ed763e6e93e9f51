"""GGUF files: block types and sizes as the gguf package has them, and one sentence for each broken file."""

from __future__ import annotations

import random
import struct
from math import prod
from pathlib import Path
from typing import Any

import pytest

from pytest_modelbudget import measure
from pytest_modelbudget.checkpoints.gguf import BLOCKS
from pytest_modelbudget.errors import InputError, SourceError, TraceError
from tests.builders.marks import needs

Tensors = dict[str, tuple[int, tuple[int, ...]]]  # block types and shapes, innermost dimension last
NET: Tensors = {"token_embd.weight": (12, (100, 256)), "blk.0.attn_q.weight": (2, (64, 32)), "norm.weight": (0, (32,))}
SETTINGS = (  # a text, a list of texts, a list of numbers, a number: as files of language models begin
    struct.pack("<Q20sIQ5s", 20, b"general.architecture", 8, 5, b"llama")
    + struct.pack("<Q6sIIQQ1sQ2s", 6, b"tokens", 9, 8, 2, 1, b"a", 2, b"bc")
    + struct.pack("<Q6sIIQ3f", 6, b"scores", 9, 6, 3, 0, 0, 0)
    + struct.pack("<Q20sII", 20, b"llama.context_length", 4, 4096)
)


# Values and bytes of the blocks that these tests write, and of more for the table: by the fields of ggml's structs.
# https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h: half scales, minima, then packed bits.
WRITTEN = {0: (1, 4), 1: (1, 2), 2: (32, 2 + 32 // 2), 12: (256, 2 * 2 + 12 + 256 // 2)}
STRUCTS = {
    **WRITTEN,
    3: (32, 2 * 2 + 32 // 2), 6: (32, 2 + 4 + 32 // 2), 7: (32, 2 * 2 + 4 + 32 // 2), 8: (32, 2 + 32),
    10: (256, 256 // 16 + 256 // 4 + 2 * 2), 11: (256, 256 // 8 + 256 // 4 + 12 + 2),
    13: (256, 2 * 2 + 12 + 256 // 8 + 256 // 2), 14: (256, 256 // 2 + 256 // 4 + 256 // 16 + 2),
    15: (256, 4 + 256 + 256 // 16 * 2), 16: (256, 2 + 256 // 8 * 2), 17: (256, 2 + 256 // 8 * 2 + 256 // 32),
    18: (256, 2 + 3 * 256 // 8), 19: (256, 2 + 256 // 8 + 256 // 32 * 2), 20: (32, 2 + 32 // 2),
    21: (256, 2 + 13 * 256 // 32 + 256 // 64), 22: (256, 2 + 256 // 4 + 256 // 16),
    23: (256, 2 + 2 + 256 // 64 + 256 // 2), 29: (256, 256 // 8 + 256 // 16 + 256 // 32), 30: (1, 2),
    34: (256, 2 + 256 // 64 + (256 - 4 * 256 // 64) // 5), 35: (256, 2 + 256 // 4), 39: (32, 1 + 32 // 2),
}  # fmt: skip


def write(path: Path, tensors: Tensors, *, settings: tuple[int, bytes] = (4, SETTINGS)) -> Path:
    """A file of zeros, laid out by the format's own page."""
    described, offset = b"", 0
    for name, (kind, shape) in tensors.items():
        sizes = struct.pack(f"<{len(shape)}Q", *shape[::-1])
        described += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(shape)) + sizes
        described += struct.pack("<IQ", kind, offset)
        values, nbytes = WRITTEN[kind]
        offset += -(-prod(shape) // values * nbytes // 32) * 32
    begin = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), settings[0]) + settings[1] + described
    with path.open("wb") as file:
        file.write(begin)
        file.truncate(-(-len(begin) // 32) * 32 + offset)
    return path


def test_shapes_and_block_types_make_the_sizes(tmp_path: Path) -> None:
    """Q4_K: 256 values in 144 bytes; Q4_0: 32 in 18; four bytes of float32."""
    numbers = measure(write(tmp_path / "net.gguf", NET))
    assert int(numbers.params) == 100 * 256 + 64 * 32 + 32
    assert int(numbers.weight_memory) == 100 * 144 + 64 * 18 + 32 * 4


def test_factors_of_rotary_positions_are_buffers(tmp_path: Path) -> None:
    """llama.cpp writes them for Llama 3.x and for long contexts; the models themselves count them as none."""
    factors: Tensors = {f"rope_{name}.weight": (0, (16,)) for name in ("freqs", "factors_long", "factors_short")}
    numbers = measure(write(tmp_path / "net.gguf", {**NET, **factors}))
    weights = 100 * 144 + 64 * 18 + 32 * 4
    assert int(numbers.params) == 100 * 256 + 64 * 32 + 32
    assert (int(numbers.weight_memory), int(numbers.model_size)) == (weights, weights + 3 * 16 * 4)
    named = ", ".join(f"1 x rope_{name}" for name in ("factors_long", "factors_short", "freqs"))
    assert numbers.notes == (f"buffers, by their names: {named}",)


@pytest.mark.parametrize("kind", STRUCTS)
def test_block_sizes_are_those_of_ggmls_structs(kind: int) -> None:
    """The sum of the fields, with no package of theirs."""
    values, nbytes = STRUCTS[kind]
    assert BLOCKS[kind][1:] == (values, nbytes)


@needs("gguf", "test")
def test_blocks_are_those_of_the_gguf_package() -> None:
    """Every block type of the package, with its values and bytes."""
    gguf = pytest.importorskip("gguf")
    theirs = {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert {kind: sizes for kind, (_, *sizes) in BLOCKS.items()} == {kind: [*each] for kind, each in theirs.items()}


@needs("gguf", "test")
@pytest.mark.parametrize("kind", BLOCKS)
def test_files_of_the_gguf_package_are_read(tmp_path: Path, kind: int) -> None:
    """Its own writer, with one tensor of each block type: three rows of two blocks."""
    gguf, numpy = pytest.importorskip("gguf"), pytest.importorskip("numpy")
    writer = gguf.GGUFWriter(tmp_path / "net.gguf", "llama")
    writer.add_array("tokens", ["a", "b"])
    values, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    writer.add_tensor("x", numpy.zeros((3, 2 * nbytes), numpy.uint8), raw_dtype=gguf.GGMLQuantizationType(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    numbers = measure(tmp_path / "net.gguf")
    assert (int(numbers.params), int(numbers.weight_memory)) == (3 * 2 * values, 3 * 2 * nbytes)


def test_split_files_are_one_checkpoint(tmp_path: Path) -> None:
    """Any of them names all of them, and so does their folder."""
    for at, name in enumerate(("a", "b", "c"), 1):
        write(tmp_path / f"net-{at:05}-of-00003.gguf", {name: (0, (at, 8))})
    for target in (tmp_path, tmp_path / "net-00002-of-00003.gguf"):
        assert int(measure(target).params) == 6 * 8


def changed(at: int, content: bytes) -> Any:
    return lambda whole: whole[:at] + content + whole[at + len(content) :]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param(lambda whole: whole[:-100], "'norm.weight' ends at byte", id="truncated data"),
        pytest.param(lambda whole: whole[:60], "ends within its header", id="truncated header"),
        pytest.param(changed(0, b"GGML"), "is no GGUF file", id="magic"),
        pytest.param(changed(4, b"\x01"), "is GGUF of version 1", id="version"),
        pytest.param(changed(8, b"\xff" * 8), "says that it has 18,446,744,073,709,551,615 tensors", id="tensors"),
        pytest.param(changed(16, b"\xff" * 8), "says that it has .* settings", id="settings"),
        pytest.param(lambda whole: whole.replace(struct.pack("<IQ", 12, 0), struct.pack("<IQ", 999, 0)),
                     "'token_embd.weight' has the unknown block type 999: update", id="type"),
        pytest.param(lambda whole: whole.replace(struct.pack("<QQ", 32, 64), struct.pack("<QQ", 31, 64)),
                     "rows are no whole blocks of 32", id="part of a block"),
        pytest.param(lambda whole: whole.replace(struct.pack("<Q", 14400), struct.pack("<Q", 32)),
                     "'blk.0.attn_q.weight' overlaps 'token_embd.weight'", id="overlap"),
    ],
)  # fmt: skip
def test_a_broken_file_is_refused(tmp_path: Path, change: Any, says: str) -> None:
    """In one sentence, with the file's name."""
    path = write(tmp_path / "net.gguf", NET)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(SourceError, match=rf"^net\.gguf.*{says}"):
        measure(path)


def test_mutated_headers_are_read_or_refused(tmp_path: Path) -> None:
    """Any change of a few bytes gives a size or one sentence."""
    draw = random.Random(41)
    path = write(tmp_path / "net.gguf", NET)
    whole = path.read_bytes()
    for _ in range(200):
        content = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            content[draw.randrange(400)] = draw.randrange(256)
        path.write_bytes(content)
        try:
            numbers = measure(path)
        except SourceError as error:
            assert str(error).startswith("net.gguf")  # noqa: PT017  # most, not all, are refused
        else:
            assert int(numbers.model_size) <= len(content)


def test_a_gguf_file_under_another_key_is_recognised(tmp_path: Path) -> None:
    """By its first bytes, whatever it is called."""
    write(tmp_path / "net.gguf", NET).rename(tmp_path / "net.onnx")
    with pytest.raises(SourceError, match=r"is a GGUF file, not an ONNX model: name it \.gguf, and write it under"):
        measure(tmp_path / "net.onnx")


def test_a_cache_by_the_settings(tmp_path: Path) -> None:
    """2 · 2 layers · 512 tokens · 2 heads of 16 · 2 bytes, as llama.cpp keeps it; beyond its context it is refused."""
    counts = {"block_count": 2, "attention.head_count": 4, "attention.head_count_kv": 2, "embedding_length": 64}
    settings = SETTINGS
    for key, value in counts.items():
        name = f"llama.{key}".encode()
        settings += struct.pack("<Q", len(name)) + name + struct.pack("<II", 4, value)
    path = write(tmp_path / "net.gguf", NET, settings=(4 + len(counts), settings))
    cache = measure(path, serving={"context": 512}).kv_cache
    assert (int(cache), cache.convention) == (131_072, "formula")
    with pytest.raises(InputError, match=r"context 8,192 is above the model's own maximum: write at most 4,096"):
        measure(path, serving={"context": 8192})
    with pytest.raises(TraceError, match="num_hidden_layers is not in its settings"):
        measure(write(tmp_path / "net.gguf", NET), serving={"context": 512})
