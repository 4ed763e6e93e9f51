"""A project with good networks beside others that misbehave, each in its own way."""

from __future__ import annotations

GOOD = """
import torch
from torch import nn

class Dropping(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.last = nn.Linear(8, width), nn.Linear(width, 2)
    def forward(self, x):
        return self.last(torch.relu(self.first(x)))

def net(width=4):
    return Dropping(width)

def drawn(width=4):
    net = Dropping(width)
    net.register_buffer("noise", torch.rand(3))
    return net
"""

# Bodies of factories, by name: what each does before it gives a network. Those of DYING end their process.
UNRULY = {
    "prints": "print('noise' * 1000); sys.stderr.write('noise')",
    "seeds": "torch.manual_seed(99); random.seed(99)",
    "seeds_numpy": "import numpy; numpy.random.seed(99)",
    "default_dtype": "torch.set_default_dtype(torch.float64)",
    "default_device": "torch.set_default_device('meta')",
    "threads_of_torch": "torch.set_num_threads(1)",
    "deterministic": "torch.use_deterministic_algorithms(True, warn_only=True)",
    "grad_off": "torch.set_grad_enabled(False)",
    "patches_relu": "torch.relu = lambda x: x",
    "patches_linear": "nn.functional.linear = lambda x, w, b=None: x",
    "patches_init": "nn.init.kaiming_uniform_ = lambda tensor, *args, **kwargs: tensor",
    "patches_module": "nn.Linear.forward = lambda self, x: x",
    "enters_no_grad": "torch.no_grad().__enter__()",
    "enters_meta": "torch.device('meta').__enter__()",
    "enters_inference": "torch.inference_mode().__enter__()",
    "changes_folder": "os.chdir('/')",
    "makes_and_leaves_folder": "d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)",
    "changes_environment": "os.environ.clear(); os.environ['MODEL'] = 'x'",
    "replaces_environment": "os.environ = {}",
    "changes_path": "sys.path[:] = ['/nowhere']",
    "replaces_path": "sys.path = []",
    "shadows_module": "sys.modules['json'] = sys.modules['math']",
    "patches_print": "builtins.print = None; builtins.len = lambda x: 0",
    "filters_warnings": "warnings.simplefilter('error'); warnings.warn('noise')",
    "warns": "warnings.warn('noise')",
    "closes_stdout": "sys.stdout.close()",
    "closes_descriptors": "os.close(1); os.close(2)",
    "replaces_stdout": "sys.stdout = None",
    "raises_exit": "sys.exit(0)",
    "raises_interrupt": "raise KeyboardInterrupt",
    "raises_generator_exit": "raise GeneratorExit",
    "raises_cancelled": "raise asyncio.CancelledError",
    # A factory that skips: this test runs on, and the model it stands for must fail.
    "raises_skip": "pytest.skip('not today')",
    "raises_unspeakable": "raise type('Unspeakable', (Exception,), {'__str__': lambda self: 1 / 0})",
    "starts_thread": "threading.Thread(target=time.sleep, args=(60,), daemon=True, name='lingering').start()",
    "locale": "locale.setlocale(locale.LC_ALL, 'C')",
    "collects_nothing": "gc.disable(); gc.set_threshold(1)",
    "recursion_limit": "sys.setrecursionlimit(200)",
    "signal_handlers": "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.alarm(1)",
    "umask": "os.umask(0o777)",
    "traces": "sys.settrace(lambda *args: None); sys.setprofile(lambda *args: None)",
    "logs": "logging.disable(); logging.root.handlers.clear()",
    "decimals": "decimal.getcontext().prec = 1; decimal.setcontext(decimal.Context(prec=2))",
}
DYING = {
    "exits": "os._exit(0)",
    "crashes": "os.kill(os.getpid(), signal.SIGSEGV)",
    "hangs": "while True: pass",
    "eats_memory": "hoard = [b'x' * 100_000_000 for _ in range(100)]",
    "raises": "raise ValueError('no such weights')",
}
IMPORTS = """
import asyncio, builtins, decimal, gc, locale, logging, os, random, signal, sys, tempfile, threading, time, warnings
import pytest
import torch
from torch import nn
"""


def unruly_module(bodies: dict[str, str]) -> str:
    """A module with a factory for each body."""
    factories = (f"def {name}():\n    {body}\n    return nn.Linear(8, 2)\n" for name, body in bodies.items())
    return "\n".join((IMPORTS, *factories))


def model_line(module: str, name: str, more: str = "") -> str:
    """A model of a budget, with two limits that its network keeps."""
    return f"  {name}: {{torch: '{module}:{name}', {more}limits: {{params: 1 M, macs: 1 M}}}}\n"
