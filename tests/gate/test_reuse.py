"""Measurements taken again: the same numbers, and never those of anything else."""

from __future__ import annotations

import importlib
import os
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from onnx import ModelProto, TensorProto

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.formats.model import Model
from pytest_modelbudget.formats.source import AS_WRITTEN, ModelSource
from pytest_modelbudget.gate import measuring
from pytest_modelbudget.gate.measuring import MeasuredModels
from pytest_modelbudget.gate.reuse import ReusedModels
from pytest_modelbudget.metrics.branches import Branch
from pytest_modelbudget.metrics.compute import OpCount
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.measured_model import MeasuredModel
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.registry import tables
from tests.builders.onnx_graphs import integers, model, node, stored, value

ROWS = struct.pack("<2q", 2, 4)  # the shape [2, 4], as it lies in a file


def expanded(columns: int = 3) -> ModelProto:
    """x (1, 4) → Expand to the shape (rows, 4) that lies in shapes.bin, · w (4, columns): rows * 4 * columns MACs."""
    shape = integers("shape", 2, 4)
    shape.ClearField("raw_data")
    shape.data_location = TensorProto.EXTERNAL
    shape.external_data.add(key="location", value="shapes.bin")
    nodes = [node("Expand", "x shape", "wide"), node("MatMul", "wide w", "y")]
    return model(nodes, [value("x", 1, 4)], [value("y", None, columns)], [shape, stored("w", 4, columns)])


class Session:
    """A session over one model, and how often models were measured in all of them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.extensions: tuple[object, ...] = ()
        self.count = 0
        self.source = ModelSource("onnx", "net.onnx", base=root)
        measure = measuring.measure_model

        def counted(*args: object, **options: object) -> MeasuredModel:
            self.count += 1
            return measure(*args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(measuring, "measure_model", counted)
        (root / "shapes.bin").write_bytes(ROWS)
        (root / "net.onnx").write_bytes(expanded().SerializeToString())

    @property
    def entries(self) -> list[Path]:
        return sorted((self.root / "cache").glob("*"))

    def store(self) -> ReusedModels:
        return ReusedModels(self.root / "cache", lambda: self.extensions, root=self.root)

    def measured(self, *, with_parts: bool = False, profile: measuring.Profile | None = None) -> MeasuredModel:
        """The model in a session of its own."""
        models = MeasuredModels(tables(), root=self.root, profile=profile, store=self.store())
        return models.of(self.source, with_parts=with_parts)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    return Session(tmp_path, monkeypatch)


def profile(loaded: Model, costed: CostedGraph) -> str:
    return f"{len(costed.costs)} operations"


def numbers(model: MeasuredModel) -> MeasuredModel:
    """All of a model but what is different in every run."""
    return replace(model, seconds=0.0)


def test_a_file_is_measured_once_in_two_sessions(session: Session) -> None:
    """Every number, share, reason and note comes back, exactly."""
    first, second = session.measured(), session.measured()
    assert session.count == 1
    assert numbers(first) == numbers(second)
    assert second.measurements["macs"].value == 2 * 4 * 3


def write_shape(session: Session) -> None:
    (session.root / "shapes.bin").write_bytes(struct.pack("<2q", 5, 4))


def bind(session: Session) -> None:
    session.source = replace(session.source, dims={"batch": 2})


def as_written(session: Session) -> None:
    session.source = replace(session.source, qdq=AS_WRITTEN)


def extend(session: Session) -> None:
    session.extensions = (sys.modules["tests.builders.onnx_graphs"],)


def install(session: Session) -> None:
    (session.root / "site" / "newcomer-1.0.dist-info").mkdir(parents=True)


def upgrade(session: Session) -> None:
    (session.root / "site" / "newcomer-1.1.dist-info").mkdir(parents=True)


@pytest.mark.parametrize(
    "change", [write_shape, bind, as_written, extend, install, upgrade, lambda session: os.environ.update(ORT_X="1")]
)
def test_whatever_numbers_depend_on_is_compared(
    change: Callable[[Session], None], session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other bytes beside the model, dims, qdq, extensions, packages and variables of frameworks: measured anew."""
    monkeypatch.setenv("ORT_X", "0")
    monkeypatch.syspath_prepend(session.root / "site")
    session.measured()
    change(session)
    session.measured()
    assert session.count == 2


def test_other_bytes_are_another_model(session: Session) -> None:
    """A file that was written again with the same bytes is the same; with others, its numbers are its own."""
    session.measured()
    path = session.root / "net.onnx"
    path.write_bytes(path.read_bytes())
    os.utime(path, (1, 1))
    session.measured()
    assert session.count == 1
    path.write_bytes(expanded(columns=7).SerializeToString())
    os.utime(path, (1, 1))
    assert session.measured().measurements["macs"].value == 2 * 4 * 7


def test_values_in_another_file_decide_anew(session: Session) -> None:
    """A shape beside the model: 2 rows, 5 rows, none where the file is gone, and 2 again."""
    found = []
    for content in (ROWS, struct.pack("<2q", 5, 4), None, ROWS):
        path = session.root / "shapes.bin"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
            os.utime(path, (1, 1))
        macs = session.measured().measurements["macs"]
        found.append((macs.value, macs.complete))
    assert found == [(2 * 4 * 3, True), (5 * 4 * 3, True), (0, False), (2 * 4 * 3, True)]


def test_a_file_beside_a_model_that_cannot_be_read_is_left_to_loading(session: Session) -> None:
    """A folder in its place: the entry is not taken again, and loading finds what is wrong."""
    session.measured()
    path = session.root / "shapes.bin"
    path.unlink()
    path.mkdir()
    assert not session.measured().measurements["macs"].complete
    assert session.count == 2


def test_a_link_counts_as_what_it_leads_to(session: Session) -> None:
    """The same link to another file is another model."""
    link, other = session.root / "link.onnx", session.root / "other.onnx"
    link.symlink_to("net.onnx")
    other.write_bytes(expanded(columns=7).SerializeToString())
    session.source = replace(session.source, target="link.onnx")
    assert session.measured().measurements["macs"].value == 2 * 4 * 3
    link.unlink()
    link.symlink_to("other.onnx")
    assert session.measured().measurements["macs"].value == 2 * 4 * 7


def test_more_than_an_entry_holds_is_measured(session: Session) -> None:
    """Parts and the page's profile, each the first time that they are asked for; less is never more than asked."""
    session.measured()
    parts = session.measured(with_parts=True).parts
    assert (session.count, parts["params"][0].shape) == (2, (4, 3))
    assert session.measured(with_parts=True).parts == parts
    assert session.measured().parts == {}
    assert session.count == 2
    assert session.measured(profile=profile).profile == "2 operations"
    assert session.count == 3
    assert session.measured(profile=profile).profile == "2 operations"
    assert session.measured().profile is None
    assert session.count == 3


def test_the_source_of_an_extension_and_of_what_it_imports_is_compared(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the import is relative, or stands in a function."""
    package = session.root / "rules"
    package.mkdir()
    (package / "__init__.py").write_text("from . import near\ndef f():\n    import far_from_rules\n")
    (package / "near.py").write_text("A = 1\n")
    (session.root / "far_from_rules.py").write_text("B = 1\n")
    monkeypatch.syspath_prepend(session.root)
    with monkeypatch.context() as patch:
        for name in ("rules", "rules.near", "far_from_rules"):
            patch.delitem(sys.modules, name, raising=False)
        session.extensions = (importlib.import_module("rules"),)
        importlib.import_module("far_from_rules")
        session.measured()
        session.measured()
        assert session.count == 1
        for number, name in enumerate(("rules/__init__.py", "rules/near.py", "far_from_rules.py"), 2):
            path = session.root / name
            path.write_text(path.read_text() + "# changed\n")
            session.measured()
            assert session.count == number


def test_an_extension_without_source_is_measured_with_each_time(session: Session) -> None:
    """Nobody can tell whether it is the same."""
    session.extensions = (SimpleNamespace(OPS=()),)
    session.measured()
    session.measured()
    assert (session.count, session.entries) == (2, [])
    session.extensions = (ModuleType("made_up"),)
    session.measured()
    assert (session.count, session.entries) == (3, [])


@pytest.mark.parametrize(
    "reason",
    [
        pytest.param({"failure": SourceError("no model")}, id="failed"),
        pytest.param({"failures": {"macs": SourceError("it raised")}}, id="a metric failed"),
        pytest.param({"traced": "real"}, id="it was run"),
        pytest.param({"census": (OpCount("", "mine::op", 1),)}, id="an operation of others"),
        pytest.param(
            {"branches": (Branch("else", "onnx::If", 0, -1, (OpCount("", "mine::op", 1),)),)}, id="in a branch"
        ),
        pytest.param({"measurements": {"e": Measurement(1 << 500, "J")}}, id="no text holds it"),
        pytest.param({"measurements": {"e": Measurement("1", "J")}}, id="no number"),  # type: ignore[arg-type]
    ],
)
def test_what_may_differ_the_next_time_is_not_kept(reason: dict[str, object], session: Session) -> None:
    """Failures, runs, foreign operations, and what does not come back as it was."""
    store, good = session.store(), session.measured()
    session.entries[0].unlink()
    assert store.get(session.source, with_parts=False, with_profile=False) is None
    store.keep(session.source, replace(good, **reason), with_parts=False)  # type: ignore[arg-type]
    assert session.entries == []


def test_a_file_that_changes_while_it_is_measured_is_not_kept(session: Session) -> None:
    """Nobody knows which of its contents was measured."""
    store, good = session.store(), session.measured()
    session.entries[0].unlink()
    store.get(session.source, with_parts=False, with_profile=False)
    (session.root / "net.onnx").write_bytes(expanded().SerializeToString())
    store.keep(session.source, good, with_parts=False)
    assert session.entries == []


def test_numbers_come_back_exactly(session: Session) -> None:
    """A third has no decimals that end, and 2**100 no float."""
    store, good = session.store(), session.measured()
    odd = {
        "third": Measurement(Fraction(1, 3), "x", unreduced=(2, 6)),
        "large": Measurement(2**100, "x", parts={"a": 1}),
    }
    store.get(session.source, with_parts=False, with_profile=False)
    store.keep(session.source, replace(good, measurements=odd), with_parts=False)
    again = store.get(session.source, with_parts=False, with_profile=False)
    assert again is not None
    assert dict(again.measurements) == odd


# Entries that something has damaged.


def damaged_copies(content: bytes) -> list[bytes]:
    """Each of 200 bytes flipped, cut at 40 places, and content of others."""
    step = max(len(content) // 200, 1)
    flipped = [
        content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :]
        for at in range(0, len(content) - 1, step)
    ]
    cut = [content[: at * (len(content) - 1) // 40] for at in range(40)]
    edited = content.replace(b'"value": 24', b'"value": 12')
    assert edited != content
    foreign = [
        edited,
        b"{}",
        b"[" * 100_000,
        b"\xff\xfe",
        b"0" * 64 + b"\n{}\n",
        content.partition(b"\n")[2],
        content * 2,
    ]
    return [*flipped, *cut, *foreign]


def test_a_damaged_entry_is_measured_anew(session: Session) -> None:
    """Flipped, cut, edited, foreign: never a number of it, always said, and good again afterwards."""
    session.measured()
    (entry,) = session.entries
    content = entry.read_bytes()
    copies = damaged_copies(content)
    assert len(copies) > 200
    for copy in copies:
        entry.write_bytes(copy)
        store = session.store()
        assert store.get(session.source, with_parts=False, with_profile=False) is None, copy[:100]
        assert store.damaged == {str(entry)}, copy[:100]
    count = session.count
    assert session.measured().measurements["macs"].value == 2 * 4 * 3
    assert session.count == count + 1
    assert entry.read_bytes() == content
    session.measured()
    assert session.count == count + 1


def test_entries_that_changed_places_are_damaged(session: Session) -> None:
    """An entry says which model it is of."""
    session.measured()
    (first,) = session.entries
    (session.root / "copy.onnx").write_bytes((session.root / "net.onnx").read_bytes())
    sources = [session.source, replace(session.source, target="copy.onnx")]
    session.source = sources[1]
    session.measured()
    (second,) = set(session.entries) - {first}
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    store = session.store()
    assert [store.get(source, with_parts=False, with_profile=False) for source in sources] == [None, None]
    assert store.damaged == {str(first), str(second)}


def test_an_entry_of_another_version_is_no_damage(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is measured anew, and takes its place, without a word."""
    session.measured()
    before = session.entries[0].read_bytes()
    monkeypatch.setattr(sys, "version", "3.99.0")
    store = session.store()
    assert store.get(session.source, with_parts=False, with_profile=False) is None
    assert store.damaged == set()
    session.measured()
    (entry,) = session.entries
    assert entry.read_bytes() != before


def test_a_folder_that_cannot_be_written_to_is_no_failure(session: Session) -> None:
    """The numbers are measured, and measured again."""
    (session.root / "cache").write_text("a file, where the folder should be")
    assert session.measured().measurements["macs"].value == 2 * 4 * 3
    assert session.measured().measurements["macs"].value == 2 * 4 * 3
    assert session.count == 2
