"""Compare every metric, share, layer and note of many models between two checkouts of this project.

``same_numbers.py BASE HEAD`` measures each corpus once with the package of either checkout, in its own process, and
prints the differences by model and field. Exit code 1: something differs; 2: nothing was compared.

Golden numbers: ``same_numbers.py --store FOLDER BASE`` writes one JSON file a corpus, and ``same_numbers.py FOLDER
HEAD`` compares a checkout with them, as often as you like. The folder does not belong in git.

Corpora: 80 torchvision classifiers, training steps of some, the micro models, the files of budgets/models, the files
that onnx ships for its tests, and the models of tests/zoo by timm and transformers where these are installed.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import fields, is_dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FIELDS = ("format", "traced", "notes", "failures", "failure", "census", "operations", "scopes", "parts", "measurements")
MOST_SHOWN, MOST_PLACES = 200, 10  # characters of a value that differs, and places of one model
Numbers = dict[str, Any]
Corpus = Iterator[tuple[str, Any]]  # (name, source) of each model


def torchvision_models() -> Corpus:
    """Every classifier, on images of the size that its first weights were trained with."""
    import torchvision

    from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec

    for name in torchvision.models.list_models(module=torchvision.models):
        size = next(iter(torchvision.models.get_model_weights(name))).transforms.keywords["crop_size"]
        inputs = InputSpecs((TensorSpec("float32", (1, 3, size, size)),))
        arguments: dict[str, object] = {"init_weights": False} if name in {"googlenet", "inception_v3"} else {}
        if name.startswith("vit_"):  # whose positions are of one size
            arguments["image_size"] = size
        yield name, ModelSource("torch", f"torchvision.models:{name}", inputs, kwargs=arguments)


def training_steps() -> Corpus:
    """A step of training of some classifiers."""
    for name, source in torchvision_models():
        if name in {"alexnet", "resnet18", "vit_b_16", "mobilenet_v3_small"}:
            yield name, replace(source, training="adam")


def micro_models() -> Corpus:
    """The small models whose products have a closed form."""
    from micro_models import MICRO_MODELS

    from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec

    for model in MICRO_MODELS:
        inputs = InputSpecs(tuple(TensorSpec("float32", shape) for shape in model.shapes))
        yield model.name, ModelSource("torch", model.build, inputs)


def model_files() -> Corpus:
    """The files of budgets/models beside this script, as far as the scripts of examples have written them there."""
    from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec

    formats = {".onnx": "onnx", ".pt2": "exported", ".pt": "torchscript"}
    image = InputSpecs((TensorSpec("float32", (1, 3, 32, 32)),))
    for path in sorted(each for each in (HERE.parent / "budgets" / "models").glob("*") if each.suffix in formats):
        format = formats[path.suffix]
        yield path.name, ModelSource(format, str(path), InputSpecs() if format == "onnx" else image)


def onnx_tests() -> Corpus:
    """Every file that onnx ships for tests of backends, and each of its node tests; sizes are left as they stand."""
    import onnx
    from onnx.backend.test.case.node import collect_testcases

    from pytest_modelbudget.formats.source import ModelSource

    folder = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for path in sorted(folder.rglob("*.onnx")):
        yield str(path.relative_to(folder).with_suffix("")), ModelSource("onnx", str(path))
    with redirect_stdout(io.StringIO()):
        cases = [case for case in collect_testcases(None) if case.model]
    with tempfile.TemporaryDirectory() as scratch:
        source = ModelSource("onnx", "node.onnx", base=Path(scratch))  # of which messages name the file alone
        for case in cases:
            (source.base / "node.onnx").write_bytes(case.model.SerializeToString())
            yield case.name, source


def transformers_zoo() -> Corpus:
    """The models of tests/zoo, small ones of many kinds."""
    from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec

    for row in _zoo_tests("test_transformers").MODELS:
        inputs = row.values[0].inputs
        specs = InputSpecs((inputs,)) if isinstance(inputs, TensorSpec) else InputSpecs(named=dict(inputs))
        yield row.id, ModelSource("torch", row.values[0].build, specs)


def timm_zoo() -> Corpus:
    """The models of tests/zoo, one of each family."""
    from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec

    tests = _zoo_tests("test_timm")
    for name, size in tests.MODELS:
        inputs = InputSpecs((TensorSpec("float32", (1, 3, size, size)),))
        yield name, ModelSource("torch", partial(tests.made, name), inputs)


def _zoo_tests(name: str) -> Any:
    sys.path.append(str(HERE.parent))
    return import_module(f"tests.zoo.{name}")


CORPORA: Mapping[str, Callable[[], Corpus]] = {
    "torchvision": torchvision_models,
    "training": training_steps,
    "micro": micro_models,
    "files": model_files,
    "onnx": onnx_tests,
    "transformers": transformers_zoo,
    "timm": timm_zoo,
}
NEEDS = {"transformers": "transformers", "timm": "timm"}  # of the corpora that not every machine has


def numbers_of(source: Any) -> Numbers:
    """All that is measured of a model, as plain values; with its layers and operations as a page would show them."""
    from pytest_modelbudget.gate.measuring import measure_model
    from pytest_modelbudget.registry import tables

    seen: Numbers = {}

    def profile(model: Any, costed: Any, *served: Any) -> str:
        seen["layers"] = [
            (c.scope, c.type, _shapes(c.inputs), _shapes(c.outputs), c.kernel, c.leaf) for c in model.layers
        ]
        seen["ops"] = [
            (op.name, op.scope, op.times, op.mutates, _shapes(op.tensors()), _shapes(op.outputs), _plain(op.attributes))
            for op in model.graph.ops
        ]
        return ""

    measured = measure_model(source, tables(), root=Path.cwd(), with_parts=True, profile=profile)
    return {**{field: _plain(getattr(measured, field)) for field in FIELDS}, **_plain(seen)}


def _shapes(tensors: Any) -> list[tuple[Any, ...]]:
    return [(t.name, t.dtype.name, t.shape, t.offset, t.strides, t.storage.name, t.storage.nbytes, t.storage.kind.value)
            for t in tensors]  # fmt: skip


def _plain(value: Any) -> Any:
    """Values of every depth as JSON has them; what is none of these is its text."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value if isinstance(value, (bool, int, str, type(None))) else str(value)


def measured_in(checkout: Path, corpus: str) -> dict[str, Numbers]:
    """The numbers of a corpus, by the package of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-W", "ignore", str(Path(__file__)), "--measure", corpus]
    run = subprocess.run(command, cwd=checkout, env=environment, check=True, stdout=subprocess.PIPE)
    numbers: dict[str, Numbers] = json.loads(run.stdout.splitlines()[-1])
    return numbers


def numbers_in(place: Path, corpus: str) -> dict[str, Numbers]:
    """The stored numbers of a folder that ``store`` wrote, else those that a checkout measures now."""
    if (place / "pytest_modelbudget").is_dir():
        return measured_in(place, corpus)
    numbers: dict[str, Numbers] = json.loads((place / f"{corpus}.json").read_text())
    return numbers


def store(folder: Path, checkout: Path, corpora: list[str]) -> int:
    """Write the numbers of a checkout, one JSON file a corpus; the exit status."""
    folder.mkdir(parents=True, exist_ok=True)
    for corpus in corpora:
        numbers = measured_in(checkout, corpus)
        (folder / f"{corpus}.json").write_text(json.dumps(numbers))
        print(f"{corpus}: {len(numbers)} models stored")
    return 0


def differences(base: Any, head: Any, place: str, without: Collection[str]) -> Iterator[str]:
    """The innermost places at which two values differ, but for these fields."""
    if isinstance(base, dict) and isinstance(head, dict):
        for key in dict.fromkeys((*base, *head)):
            if key not in without:
                yield from differences(base.get(key), head.get(key), f"{place}.{key}", without)
    elif isinstance(base, list) and isinstance(head, list) and len(base) == len(head):
        for at, (before, after) in enumerate(zip(base, head, strict=True)):
            yield from differences(before, after, f"{place}[{at}]", without)
    elif base != head:
        yield f"{place}: {str(base)[:MOST_SHOWN]} → {str(head)[:MOST_SHOWN]}"


def corpora_here(corpora: list[str]) -> list[str]:
    """The corpora whose packages are installed; the others are named."""
    missing = [corpus for corpus in corpora if corpus in NEEDS and find_spec(NEEDS[corpus]) is None]
    print(*(f"{corpus}: skipped, {NEEDS[corpus]} is not installed\n" for corpus in missing), sep="", end="")
    return [corpus for corpus in corpora if corpus not in missing]


def compared(base: Path, head: Path, corpora: list[str], without: Collection[str]) -> int:
    """Print what differs, by model, but for these fields, and how many models were compared; the exit status."""
    models = different = 0
    for corpus in corpora_here(corpora):
        before, after = numbers_in(base, corpus), numbers_in(head, corpus)
        for name in dict.fromkeys((*before, *after)):
            found = list(differences(before.get(name), after.get(name), name, without))
            models, different = models + 1, different + bool(found)
            print(*found[:MOST_PLACES], sep="\n", end="\n" if found else "")
        print(f"{corpus}: {len(after)} models, {sum(bool(each['measurements']) for each in after.values())} measured")
    print(f"{models} models compared{''.join(f', without {field}' for field in without)}, {different} differ")
    return 2 if not models else int(different > 0)


def main() -> int:
    """Measure for another process, store golden numbers, or compare two checkouts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=Path, metavar="BASE HEAD", help="two checkouts, or stored numbers")
    parser.add_argument("--store", type=Path, metavar="FOLDER", help="write the numbers of one checkout")
    parser.add_argument("--only", nargs="+", choices=CORPORA, default=list(CORPORA), help="some corpora (all)")
    parser.add_argument("--without", nargs="+", default=[], metavar="FIELD", help="fields that one of them lacks")
    parser.add_argument("--measure", choices=CORPORA, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        logging.disable(logging.CRITICAL)
        print(json.dumps({name: numbers_of(source) for name, source in CORPORA[options.measure]()}))
        return 0
    if options.store and len(options.checkouts) == 1:
        return store(options.store, options.checkouts[0].resolve(), corpora_here(options.only))
    if len(options.checkouts) != 2 or options.store:
        parser.error("name BASE and HEAD, or one checkout to store")
    base, head = (folder.resolve() for folder in options.checkouts)
    return compared(base, head, options.only, options.without)


if __name__ == "__main__":
    sys.exit(main())
