"""A property that is worked out once: without the lock that the standard one takes before 3.12."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value")


class kept(Generic[Value]):  # noqa: N801  # a decorator, named like the built-in property
    """Keeps what the method returns in the instance, where later look-ups find it first."""

    def __init__(self, method: Callable[[Any], Value]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> kept[Value]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...

    def __get__(self, instance: object | None, owner: type) -> kept[Value] | Value:
        """The value; the first look-up stores it under the property's own name."""
        if instance is None:
            return self
        value = self._method(instance)
        instance.__dict__[self._name] = value
        return value
