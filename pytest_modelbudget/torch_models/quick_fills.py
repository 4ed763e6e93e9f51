"""Building a model whose random values nobody will look at: one number in place of many."""

from typing import Any

import torch

from pytest_modelbudget.torch_models.eager_mode import EagerMode

RANDOM = frozenset({torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default})
LARGE = 2**16  # elements from which one number is as good: a million take 5 ms to draw


class QuickFills(EagerMode):
    """Fills a large tensor with one draw from the distribution that it is to be filled from.

    Only the first time, so that a builder that draws until something fits comes to an end.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives no types
        self._filled: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run one operator, or fill with one number."""
        if func in RANDOM and args[0].numel() >= LARGE:
            memory = args[0].untyped_storage().data_ptr()
            if memory not in self._filled:
                self._filled.add(memory)
                return args[0].fill_(func(args[0].new_empty(()), *args[1:], **(kwargs or {})))
        return func(*args, **(kwargs or {}))
