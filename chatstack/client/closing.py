"""Clients and layers as async context managers: ``async with`` closes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


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
