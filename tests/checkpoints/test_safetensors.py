"""Safetensors files and folders: exact sizes from headers, and one sentence for each broken one."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_modelbudget import measure
from pytest_modelbudget.errors import SourceError
from tests.builders.checkpoint_files import header, write, write_header

NET = {"body.0.weight": ("BF16", (8, 4)), "body.1.weight": ("F32", (2, 8)), "body.1.running_mean": ("F32", (2,))}


def sizes(path: Path) -> tuple[int, int, int]:
    """Parameters, and bytes of weights and of all."""
    numbers = measure(path)
    return int(numbers.params), int(numbers.weight_memory), int(numbers.model_size)


def test_sizes_are_those_of_the_header(tmp_path: Path) -> None:
    """8·4 + 2·8 parameters; 32·2 + 16·4 bytes, and 8 more of a batch norm's buffer."""
    assert sizes(write(tmp_path / "net.safetensors", NET)) == (48, 128, 136)


def test_all_else_is_unmeasured(tmp_path: Path) -> None:
    """A checkpoint neither computes nor says what is trained."""
    numbers = measure(write(tmp_path / "net.safetensors", NET))
    assert set(numbers) == {"params", "weight_memory", "model_size"}
    for key in ("macs", "trainable_params", "peak_activation"):
        with pytest.raises(KeyError, match=f"no {key}: a checkpoint has no operations"):
            numbers[key]


@pytest.mark.needs_torch
def test_an_index_of_transformers_agrees(tmp_path: Path) -> None:
    """Parameters and bytes are the totals that transformers writes into an index, and those of one file."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=256,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "split", max_shard_size="100KB")
    totals = json.loads((tmp_path / "split/model.safetensors.index.json").read_text())["metadata"]
    assert len(list((tmp_path / "split").glob("*.safetensors"))) > 1
    for folder in ("whole", "split", "split/model-00001-of-00005.safetensors"):
        assert sizes(tmp_path / folder)[:2] == (totals["total_parameters"], totals["total_size"])


def test_the_library_reads_the_same(tmp_path: Path) -> None:
    """Names, shapes and bytes as the safetensors package has them."""
    numpy = pytest.importorskip("safetensors.numpy")
    path = write(tmp_path / "net.safetensors", NET | {"codes": ("I64", (3, 5)), "mask": ("BOOL", (7,))})
    read = numpy.load_file(path) if "BF16" not in str(NET) else {}
    with pytest.importorskip("safetensors").safe_open(path, "numpy") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    assert shapes == {name: shape for name, (_, shape) in NET.items()} | {"codes": (3, 5), "mask": (7,)}
    assert read == {}


def test_a_large_folder_is_read_in_a_moment(tmp_path: Path) -> None:
    """40 GB in 2,000 tensors: by its headers alone, without torch, in less than 200 MB."""
    layers = {f"layers.{at}.weight": ("BF16", (5120, 2000)) for at in range(2000)}
    write(tmp_path / "m/model.safetensors", layers)
    code = (
        "import re, sys; from pytest_modelbudget import measure; numbers = measure('m');"
        "peak = int(re.search('VmHWM:(.*)kB', open('/proc/self/status').read())[1]);"
        "print(int(numbers.params), int(numbers.weight_memory), 'torch' in sys.modules, peak < 200_000)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.split() == [str(2000 * 5120 * 2000), str(2 * 2000 * 5120 * 2000), "False", "True"]


def entries(**changed: Any) -> dict[str, Any]:
    """The header of two tensors of 8 bytes, with something else of the first."""
    made = header({"a": ("F32", (2,)), "b": ("F32", (2,))})[0]
    return {**made, "a": {**made["a"], **changed}}


BROKEN = (
    pytest.param(entries(data_offsets=[0, 12], shape=[3]), 16, r"'b' overlaps 'a'", id="overlap"),
    pytest.param(entries(data_offsets=[64, 72]), 16, r"'a' ends at byte .* of ", id="out of range"),
    pytest.param(entries(shape=[3]), 16, r"'a' \(F32 \[3\]\) takes 12 B, its offsets leave 8 B", id="shape"),
    pytest.param(entries(), 20, "bytes that belong to no tensor", id="bytes of none"),
    pytest.param(entries(dtype="F7"), 16, "'a' has the unknown type 'F7'", id="type"),
    pytest.param(entries(shape=[-2]), 16, "has no header of safetensors", id="negative size"),
    pytest.param(entries(shape=[2**70]), 16, "has no header of safetensors", id="huge size"),
    pytest.param(["a"], 16, "has no header of safetensors", id="no object"),
)


@pytest.mark.parametrize(("written", "behind", "says"), BROKEN)
def test_a_header_that_does_not_describe_its_file_is_refused(
    tmp_path: Path, written: Any, behind: int, says: str
) -> None:
    """In one sentence with the file, the tensor and what to do."""
    path = write_header(tmp_path / "net.safetensors", written, behind)
    with pytest.raises(SourceError, match=rf"^net\.safetensors.*{says}.*: ?(is|update|write)?") as refused:
        measure(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "content", [b"1234567", (2**40).to_bytes(8, "little") + b"{}", bytes(100)], ids=["short", "long", "zeros"]
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    """A length beyond the file allocates nothing."""
    (tmp_path / "net.safetensors").write_bytes(content)
    with pytest.raises(SourceError, match=r"net\.safetensors (is no safetensors file, or a part|has no header)"):
        measure(tmp_path / "net.safetensors")


@pytest.mark.parametrize(
    ("weight_map", "says"),
    [
        ({"a": "x.safetensors", "b": "y.safetensors", "c": "y.safetensors"}, "y.safetensors has no tensor 'c'"),
        ({"a": "x.safetensors"}, None),
        ({"a": "x.safetensors", "b": "z.safetensors"}, "names z.safetensors, which is not there: download it"),
        ({"a": "x.safetensors", "b": "../y.safetensors"}, "maps no tensors to files of its folder"),
        ({"b": "y.safetensors", "a": "y.safetensors"}, "y.safetensors has no tensor 'a'"),
        ([], "maps no tensors to files of its folder"),
    ],
)
def test_an_index_must_name_what_is_there(tmp_path: Path, weight_map: Any, says: str | None) -> None:
    """Tensors that no file has, files that are not there, and paths out of the folder are refused."""
    write(tmp_path / "x.safetensors", {"a": ("F32", (2,))})
    write(tmp_path / "y.safetensors", {"b": ("F32", (3,))})
    (tmp_path / "m.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    if says is None:
        assert sizes(tmp_path) == (2, 8, 8)
        return
    with pytest.raises(SourceError, match=re.escape(says)):
        measure(tmp_path)


def test_a_tensor_that_the_index_lacks_and_one_in_two_files_are_refused(tmp_path: Path) -> None:
    """Which of them counts would be a guess."""
    write(tmp_path / "x.safetensors", {"a": ("F32", (2,)), "b": ("F32", (2,))})
    write(tmp_path / "y.safetensors", {"c": ("F32", (3,)), "b": ("F32", (2,))})
    index = tmp_path / "m.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "x.safetensors"}}))
    with pytest.raises(SourceError, match=r"index\.json lacks 'b' of x\.safetensors"):
        measure(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "x.safetensors", "c": "y.safetensors"}}))
    with pytest.raises(SourceError, match=r"tensor 'b' is in x\.safetensors and y\.safetensors"):
        measure(tmp_path)


def test_parts_and_folders_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    """A part needs the others, a folder one checkpoint."""
    write(tmp_path / "net-00001-of-00002.safetensors", {"a": ("F32", (2,))})
    with pytest.raises(SourceError, match=r"is a part of 2, and net-00002-of-00002\.safetensors is not there"):
        measure(tmp_path)
    write(tmp_path / "two/a.safetensors", {"a": ("F32", (2,))})
    write(tmp_path / "two/b.safetensors", {"b": ("F32", (2,))})
    with pytest.raises(SourceError, match=r"two has 2 checkpoints, a.*, b.*: name one"):
        measure(tmp_path / "two")


def test_files_of_a_folder_that_do_not_count_are_named(tmp_path: Path) -> None:
    """As Mistral's folders have them: the same weights twice, of two writers; also next to an index."""
    write(tmp_path / "model.safetensors", {"a": ("F32", (2, 5))})
    write(tmp_path / "consolidated.safetensors", {"b": ("F32", (1000, 1000))})
    (tmp_path / "training_args.bin").write_bytes(b"")
    note = "not counted, of the same folder: consolidated.safetensors, training_args.bin"
    assert (sizes(tmp_path), measure(tmp_path).notes) == ((10, 40, 40), (note,))
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model.safetensors"}}')
    assert (sizes(tmp_path), measure(tmp_path).notes) == ((10, 40, 40), (note,))


def test_a_model_of_several_folders_is_refused(tmp_path: Path) -> None:
    """sentence-transformers names them in modules.json; pooling stores none. One file is measured alone."""
    file = write(tmp_path / "model.safetensors", {"a": ("F32", (2, 5))})
    (tmp_path / "1_Pooling").mkdir()
    modules = [{"idx": 0, "path": ""}, {"idx": 1, "path": "1_Pooling"}, {"idx": 2, "path": "2_Dense"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert sizes(tmp_path) == (10, 40, 40)
    write(tmp_path / "2_Dense/model.safetensors", {"linear.weight": ("F32", (4, 4))})
    with pytest.raises(SourceError, match=r"^modules\.json of .* names 2_Dense, with tensors, too: name one file"):
        measure(tmp_path)
    assert sizes(file) == (10, 40, 40)
    (tmp_path / "modules.json").write_text("{}")
    with pytest.raises(SourceError, match=r"^modules\.json is no JSON list"):
        measure(tmp_path)


def test_an_adapter_counts_alone_and_names_its_base(tmp_path: Path) -> None:
    """Rank 4 on a layer of 8 to 6: 4·8 + 6·4 parameters."""
    lora = {"q.lora_A.weight": ("F32", (4, 8)), "q.lora_B.weight": ("F32", (6, 4))}
    write(tmp_path / "adapter_model.safetensors", lora)
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base", "peft_type": "LORA"}')
    numbers = measure(tmp_path)
    assert int(numbers.params) == 4 * 8 + 6 * 4
    assert numbers.notes == ("a LORA adapter of org/base: the base is not counted",)


def test_mutated_headers_are_read_or_refused(tmp_path: Path) -> None:
    """Any change of a few bytes gives a size or one sentence, and never reads beyond the header."""
    draw = random.Random(41)
    path = write(tmp_path / "net.safetensors", NET, {"format": "pt"})
    whole = path.read_bytes()
    for _ in range(200):
        content = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        path.write_bytes(content[: draw.choice([len(content), draw.randrange(len(content))])])
        try:
            numbers = measure(path)
        except SourceError as error:
            assert str(error).startswith("net.safetensors")  # noqa: PT017  # most, not all, are refused
        else:
            assert int(numbers.model_size) <= path.stat().st_size
