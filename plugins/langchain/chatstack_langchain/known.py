"""Conversions that are done once: an agent hands over the same objects on each of its model calls."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage

from chatstack import Message


class _Known(NamedTuple):
    """A message, what it held when it was converted, and ours."""

    message: weakref.ref[BaseMessage]
    content: str
    calls: list[object]
    rest: dict[str, Any]
    ours: tuple[Message, ...]

    def fits(self, message: BaseMessage) -> bool:
        """Return True if that is the message, and nobody has changed it since."""
        content: object = message.content  # pyright: ignore[reportUnknownMemberType]
        return (
            self.message() is message
            and content is self.content
            and _calls_of(message) == self.calls
            and message.additional_kwargs == self.rest
        )


class KnownMessages:
    """Converts messages of LangChain's, each one once for as long as it lives.

    Layers then meet the same objects on each call, and recognise a history by identity. Messages whose content is no
    plain text are converted anew, as it could be changed in place.
    """

    def __init__(self, convert: Callable[[BaseMessage], tuple[Message, ...]]) -> None:
        self._convert = convert
        self._known: dict[int, _Known] = {}

    def of(self, message: BaseMessage) -> tuple[Message, ...]:
        """Return our messages for one of LangChain's."""
        key = id(message)
        known = self._known.get(key)
        if known is not None and known.fits(message):
            return known.ours
        ours = self._convert(message)
        content: object = message.content  # pyright: ignore[reportUnknownMemberType]
        if isinstance(content, str):
            reference = weakref.ref(message, lambda _: self._known.pop(key, None))
            calls, rest = copy.deepcopy((_calls_of(message), message.additional_kwargs))  # edited in place, perhaps
            self._known[key] = _Known(reference, content, calls, rest, ours)
        return ours


def _calls_of(message: BaseMessage) -> list[object]:
    return [message.tool_calls, message.invalid_tool_calls] if isinstance(message, AIMessage) else []
