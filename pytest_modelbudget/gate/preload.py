"""The server that model processes are forked from: it imports what all of them need, once; each spawned one does so.

``multiprocessing`` imports this module when the server starts. A model's own module is imported in its own process;
the installed packages that it imports (torchvision takes a second) are imported here.
"""

import ast
import atexit
import gc
import importlib
import importlib.util
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from pytest_modelbudget.errors import SourceError, user_code
from pytest_modelbudget.formats.user_modules import is_installed


def top_imports(file: Path) -> Iterator[str]:
    """The modules that a file imports at its top; none of a file that is no Python."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


PRELOADED = "MODEL_BUDGET_PRELOADED"  # variable that names the modules to import


def installed_modules(targets: Iterable[str], files: Iterable[Path], root: Path) -> list[str]:
    """The installed modules among some modules, and those that they and some files import at their top."""
    waiting = [*targets, *chain.from_iterable(map(top_imports, files))]
    found: dict[str, Path | None] = {}
    for name in waiting:
        if name not in found and name.partition(".")[0] not in sys.stdlib_module_names:
            found[name] = file = _file(name, root)
            if file is not None and not is_installed(str(file)):
                waiting += top_imports(file)
    return sorted(name for name, file in found.items() if file is not None and is_installed(str(file)))


def _file(name: str, root: Path) -> Path | None:
    """The file of a module, or of its package if that is installed; None if there is none."""
    stem = root.joinpath(*name.split("."))
    for file in (stem.with_suffix(".py"), stem / "__init__.py"):
        if file.is_file():
            return file
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name.partition(".")[0])  # which imports nothing
        if spec is not None and spec.origin:
            inside = Path(spec.origin).parent.joinpath(*name.split(".")[1:]).with_suffix(".py")
            return inside if inside.is_file() and not is_installed(spec.origin) else Path(spec.origin)
    return None


def _load(names: Iterable[str]) -> None:
    """Import modules; one that fails here fails again, with its message, in the process of its model."""
    for name in names:
        with suppress(SourceError), user_code(f"importing {name}", SourceError):
            importlib.import_module(name)


def _warm_up() -> None:
    """Measure two small models, so that children find rules, signatures and late imports in place."""
    from pytest_modelbudget.formats.source import Call, InputSpecs, ModelSource, TensorSpec
    from pytest_modelbudget.gate.measuring import measure_model
    from pytest_modelbudget.registry import tables

    layers = [("Conv2d", 3, 4, 3), ("BatchNorm2d", 4), ("ReLU",), ("MaxPool2d", 2), ("Flatten",), ("Linear", 36, 2)]
    convolutions = tuple(Call(f"torch.nn:{name}", tuple(args)) for name, *args in layers)
    for target, args, shape in (
        ("torch.nn:Sequential", convolutions, (1, 3, 8, 8)),
        ("torch.nn:TransformerEncoderLayer", (8, 2), (1, 4, 8)),
    ):
        source = ModelSource("torch", target, InputSpecs((TensorSpec("float32", shape),)), args=args)
        measure_model(source, tables(), root=Path.cwd(), with_parts=True)


if names := os.environ.pop(PRELOADED, ""):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of Ctrl-C the session tells
    gc.disable()  # imports make hundreds of thousands of objects, and no garbage
    _load(["pytest_modelbudget.gate.worker", *names.split(",")])
    if "torch" in sys.modules:
        with suppress(SourceError), user_code("measuring a small model", SourceError):
            _warm_up()
    gc.freeze()  # collections in children write into no memory that they share
    gc.enable()
    if multiprocessing.parent_process() is None:  # of a spawned child the session tells the exit code
        atexit.register(os._exit, 0)  # extensions of frameworks print what they leak at an orderly end
