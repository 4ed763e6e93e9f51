"""The peers of the scoreboard: each a function from a built model and its inputs to MACs.

Every function imports its tool itself, so that a missing or broken one is one cell of the table.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

Inputs = tuple[torch.Tensor, ...]
Counter = Callable[[nn.Module, Inputs], int]


def flop_counter_mode(model: nn.Module, inputs: Inputs) -> int:
    """torch.utils.flop_counter: FLOPs, two per MAC."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*inputs)
    return int(counter.get_total_flops()) // 2


def calflops(model: nn.Module, inputs: Inputs) -> int:
    """calflops.calculate_flops, which counts MACs too."""
    from calflops import calculate_flops

    _, macs, _ = calculate_flops(model=model, args=list(inputs), print_results=False, output_as_string=False)
    return int(macs)


def thop(model: nn.Module, inputs: Inputs) -> int:
    """thop.profile, whose "flops" are MACs."""
    from thop import profile

    macs, _ = profile(model, inputs=inputs, verbose=False)
    return int(macs)


def fvcore(model: nn.Module, inputs: Inputs) -> int:
    """fvcore.nn.FlopCountAnalysis, whose "flops" are MACs."""
    from fvcore.nn import FlopCountAnalysis

    analysis = FlopCountAnalysis(model, inputs)
    analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    return int(analysis.total())


def ptflops(model: nn.Module, inputs: Inputs) -> int:
    """ptflops.get_model_complexity_info, operators of torch.nn.functional included."""
    from ptflops import get_model_complexity_info

    def as_call(_: Any) -> Any:
        return inputs[0] if len(inputs) == 1 else dict(zip(_names(model), inputs, strict=False))

    macs, _ = get_model_complexity_info(
        model,
        tuple(inputs[0].shape[1:]) or (1,),
        input_constructor=as_call,
        as_strings=False,
        print_per_layer_stat=False,
        verbose=False,
        backend="aten",
    )
    return int(macs)


def torchinfo(model: nn.Module, inputs: Inputs) -> int:
    """torchinfo.summary's "total mult-adds"."""
    from torchinfo import summary

    return int(summary(model, input_data=list(inputs), verbose=0).total_mult_adds)


def _names(model: nn.Module) -> list[str]:
    """Names of the positional parameters of forward."""
    code = model.forward.__code__
    return list(code.co_varnames[1 : code.co_argcount])


PEERS: Mapping[str, Counter] = {
    "FlopCounterMode": flop_counter_mode,
    "calflops": calflops,
    "thop": thop,
    "fvcore": fvcore,
    "ptflops": ptflops,
    "torchinfo": torchinfo,
}


def silently(counter: Counter, model: nn.Module, inputs: Inputs) -> int | None:
    """What a peer counts, or None where it crashes; whatever it prints is swallowed."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return counter(model, inputs)
    except (Exception, SystemExit):  # noqa: BLE001  # a peer may raise anything: a cell "crash"
        return None
