"""Closing: clients and layers as async context managers, and coroutines that are closed from elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from types import TracebackType
from typing import Self, cast


async def close(given: object) -> None:
    """Close what was given, if it has ``aclose``, which may be async or not."""
    closing = getattr(given, "aclose", None)
    ended: object = None if closing is None else closing()
    if isinstance(ended, Awaitable):
        await cast("Awaitable[object]", ended)


class Closing(ABC):
    """Mixin for classes with ``aclose``: leaving the block calls it. Entering does nothing."""

    __slots__ = ()

    @abstractmethod
    async def aclose(self) -> None:
        """Release all resources. May be called again and again."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def closes_this(error: BaseException | None) -> bool:
    """Return True if the error closes the coroutine that caught it, as the garbage collector does. It may do so in
    another context, where there is nothing to leave. A ``GeneratorExit`` raised by code below has a traceback frame
    from there."""
    if not isinstance(error, GeneratorExit):
        return False
    return error.__traceback__ is None or error.__traceback__.tb_next is None
