"""A tensor that is kept in others, as quantising libraries make them."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map


class Int8Rows(torch.Tensor):
    """A float matrix kept as int8 codes and one scale a row; operators read what it stands for."""

    codes: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor) -> Int8Rows:
        """A wrapper of that shape without memory of its own."""
        made: Int8Rows = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype)  # type: ignore[attr-defined]
        made.codes, made.scale = codes, scale
        return made

    @classmethod
    def of(cls, values: torch.Tensor) -> Int8Rows:
        """Values rounded to 127 steps of each row's largest one."""
        scale = values.abs().amax(1, keepdim=True) / 127
        return cls((values / scale).round().to(torch.int8), scale)

    def dequantize(self) -> torch.Tensor:
        """The numbers that it stands for."""
        return self.codes.to(self.scale.dtype) * self.scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scale"], None

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, torch.Tensor], context: None, size: Any, stride: Any) -> Int8Rows:
        return Int8Rows(parts["codes"], parts["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run an operator on what the tensors stand for; rows are picked among the codes."""
        name = func._schema.name
        if name in ("aten::detach", "aten::clone", "aten::alias"):
            return cls(args[0].codes.clone(), args[0].scale.clone()) if name == "aten::clone" else cls(
                args[0].codes, args[0].scale)  # fmt: skip
        if name == "aten::embedding" and isinstance(args[0], cls):
            rows = args[1].reshape(-1)
            picked = args[0].codes.index_select(0, rows).to(args[0].scale.dtype) * args[0].scale.index_select(0, rows)
            return picked.reshape(*args[1].shape, -1)
        plain = tree_map(lambda each: each.dequantize() if isinstance(each, cls) else each, (args, kwargs or {}))
        return func(*plain[0], **plain[1])
