"""State dicts of torch.save, and MLX's archives of arrays."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from torch import nn

from pytest_modelbudget import measure
from pytest_modelbudget.errors import SourceError

pytestmark = pytest.mark.needs_torch


class Net(nn.Module):
    """Two layers on one weight, and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.b.weight = self.a.weight


def sizes(path: Path) -> tuple[int, int, int]:
    numbers = measure(path)
    return int(numbers.params), int(numbers.weight_memory), int(numbers.model_size)


WHOLE = (16 + 2 * 4 + 2 * 4, 4 * (16 + 8 + 8), 4 * (16 + 8 + 8) + 2 * 16 + 8)  # tied once; statistics are buffers


@pytest.mark.parametrize("name", ["net.bin", "net.ckpt", "net.pt"])
def test_a_state_dict_is_read_without_its_values(tmp_path: Path, name: str) -> None:
    """Tied weights count once, as in the module itself."""
    torch.save(Net().state_dict(), tmp_path / name)
    assert sizes(tmp_path / name) == WHOLE
    assert int(measure(Net).params) == WHOLE[0]


def test_a_trainers_file_counts_its_model_alone(tmp_path: Path) -> None:
    """Lightning's layout: optimizer states are no weights."""
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    net.a(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    torch.save(
        {"epoch": 3, "state_dict": net.state_dict(), "optimizer_states": [optimizer.state_dict()]}, tmp_path / "n.ckpt"
    )
    assert sizes(tmp_path / "n.ckpt") == WHOLE


def test_a_trainers_tensors_next_to_its_model_are_not_the_model(tmp_path: Path) -> None:
    """The layout of PyTorch's tutorial of checkpoints, with a loss that is a tensor."""
    saved = {"epoch": 3, "loss": torch.tensor(0.1), "model_state_dict": Net().state_dict()}
    torch.save(saved, tmp_path / "net.pt")
    assert sizes(tmp_path / "net.pt") == WHOLE


@pytest.mark.parametrize(
    "saved",
    [
        {"scale": torch.ones(1), "encoder": {"weight": torch.ones(4, 4)}},
        {"scale": torch.ones(1), "layers": [torch.ones(4, 4)]},
        {"loss": torch.ones(1), "model": {"encoder": {"deep": ({"weight": torch.ones(4, 4)},)}}},
        {"model": {"scale": torch.ones(1), "encoder": {"weight": torch.ones(4, 4)}}},
    ],
    ids=["mapping", "list", "deep", "within the model"],
)
def test_nested_tensors_are_refused(tmp_path: Path, saved: dict[str, object]) -> None:
    """A part of the tensors would be a number too small."""
    torch.save(saved, tmp_path / "net.pt")
    with pytest.raises(SourceError, match=r"^net\.pt has tensors within '(encoder|layers|model)': save the state dict"):
        measure(tmp_path / "net.pt")


def test_settings_next_to_tensors_are_no_weights(tmp_path: Path) -> None:
    """Numbers and texts, and a list that contains itself."""
    settings: list[object] = ["relu", 3]
    settings.append(settings)
    torch.save({**Net().state_dict(), "settings": settings}, tmp_path / "net.pt")
    assert sizes(tmp_path / "net.pt") == WHOLE


def test_a_pickle_with_more_than_tensors_runs_nothing(tmp_path: Path) -> None:
    """A whole module is refused: to load it would run code."""
    torch.save(Net(), tmp_path / "net.ckpt")
    with pytest.raises(SourceError, match=r"^net\.ckpt holds more than tensors .*Net.*: save the state dict alone"):
        measure(tmp_path / "net.ckpt")
    torch.save({"step": 1, "names": ["a"]}, tmp_path / "net.ckpt")
    with pytest.raises(SourceError, match=r"^net\.ckpt has no state dict, but 'step', 'names': save the state dict"):
        measure(tmp_path / "net.ckpt")


def test_a_file_that_is_cut_is_refused(tmp_path: Path) -> None:
    """As a download that broke off; one of another kind is named."""
    torch.save(Net().state_dict(), tmp_path / "net.bin")
    content = (tmp_path / "net.bin").read_bytes()
    cut = r"^net\.bin is only a part of an archive: is the download complete\? write or download it again$"
    for written, said in ((content[: len(content) // 2], cut), (b"not a pickle", r"^net\.bin (is nothing|holds more)")):
        (tmp_path / "net.bin").write_bytes(written)
        with pytest.raises(SourceError, match=said):
            measure(tmp_path / "net.bin")


@pytest.mark.parametrize("name", ["net.bin", "net.npz"])
def test_a_shape_record_in_an_archive_is_left_to_the_settings(tmp_path: Path, name: str) -> None:
    """Words of 4 bits: the bytes at the record's offset are those of something else in the file."""
    words = {"fc.weight_packed": np.zeros((8, 2), np.int32), "fc.weight_scale": np.zeros((8, 1), np.float16),
             "fc.weight_shape": np.array([8, 16])}  # fmt: skip
    if name.endswith(".npz"):
        np.savez(tmp_path / name, **words)
    else:
        shared = torch.full((2**16 + 2,), 5)  # of which the record is a view; 5 times 5 would be possible, too
        shared[2**16 :] = torch.tensor([8, 16])
        tensors = {key: torch.from_numpy(value) for key, value in words.items()}
        torch.save({**tensors, "fc.weight_shape": shared[2**16 :]}, tmp_path / name)
    groups = {"group_0": {"weights": {"num_bits": 4}}}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"config_groups": groups}}))
    assert int(measure(tmp_path / name).params) == 8 * 16


def test_an_array_whose_shape_is_no_tuple_is_refused(tmp_path: Path) -> None:
    """In one sentence, as any other description that numpy does not write."""
    described = repr({"descr": "<f4", "fortran_order": False, "shape": 4}).encode()
    with ZipFile(tmp_path / "net.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(described).to_bytes(2, "little") + described)
    with pytest.raises(SourceError, match=r"^net\.npz is no archive of arrays \('x\.npy' has no description\)"):
        measure(tmp_path / "net.npz")


def test_arrays_of_mlx_are_read(tmp_path: Path) -> None:
    """Four bits in words of 32, by config.json; plain arrays as they are."""
    arrays = {"fc.weight": np.zeros((8, 4), np.uint32), "fc.scales": np.zeros((8, 1), np.float16),
              "fc.biases": np.zeros((8, 1), np.float16), "norm.weight": np.zeros(8, np.float16)}  # fmt: skip
    np.savez(tmp_path / "weights.npz", **arrays)
    (tmp_path / "config.json").write_text('{"quantization": {"bits": 4, "group_size": 32}}')
    assert sizes(tmp_path) == (8 * 32 + 8, 128 + 3 * 16, 128 + 3 * 16)
    np.savez(tmp_path / "weights.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(SourceError, match=r"^weights\.npz is no archive of arrays \('x\.npy' has no plain numbers\)"):
        measure(tmp_path)
