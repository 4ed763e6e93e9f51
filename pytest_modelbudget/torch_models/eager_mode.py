"""A dispatch mode whose operators torch's compiler has no part in."""

from torch.utils._python_dispatch import TorchDispatchMode


class EagerMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's hook
    """Sees every operator, without a guard against compiling around each: what runs under it runs eagerly.

    That guard is a call of torch's compiler for every operator, and loading it takes a second.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
