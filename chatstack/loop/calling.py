"""Calls of functions that may be sync or async."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


async def called(function: Callable[P, R | Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call the function, and await the result if it must be awaited."""
    found = function(*args, **kwargs)
    if inspect.isawaitable(found):
        return await found
    return found  # pyright: ignore[reportReturnType]
