"""Headroom's ``compress``, with its documented defaults, on the messages as chat completions have them.

It works on each request by itself, has no limit to keep, and drops no message. Its text model, which it would fetch, is
off. Nothing is sent or fetched: it has a switch for that, and a model whose tokens it estimates.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from chatstack.values.messages import Message
from chatstack.workbench.replay.peers.layer import Left, PeerStack, Piece, Terms, said
from chatstack.workbench.replay.policies import Policy

os.environ.setdefault("HEADROOM_OFFLINE", "1")
# Else three faults in a row make it give everything back unchanged, for a minute: figures would depend on the time.
os.environ.setdefault("HEADROOM_PIPELINE_BREAKER_THRESHOLD", "0")
# By name: the package is checked where Headroom is not installed, too.
_headroom: Any = import_module("headroom")
_module: Any = sys.modules["headroom.compress"]  # of the same name as the function
_logger = logging.getLogger("headroom")
_MODEL = "claude-sonnet-4-5-20250929"
"""Its default: it only chooses how tokens are estimated."""


class Compression:
    """``compress``, which keeps no state from one call to the next."""

    options: dict[str, Any] = {"kompress_model": "disabled"}  # noqa: RUF012 - read only

    def __init__(self, terms: Terms) -> None:
        # Its pipelines are shared and remember results: with new ones, figures do not depend on other conversations.
        for pipeline in ("_pipeline", "_agent_pipeline"):
            setattr(_module, pipeline, None)
        self._room = terms.room
        self._ids: list[str] = []
        self._messages: list[dict[str, Any]] = []

    def add(self, piece: Piece) -> None:
        content = said(piece.content).text if isinstance(piece.content, str) else piece.content
        message: dict[str, Any] = {"role": piece.role, "content": content}
        if piece.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": said(call.arguments).text},
                }
                for call in piece.calls
            ]
        if piece.role == "tool":
            message["tool_call_id"] = piece.answers
        self._ids.append(piece.id)
        self._messages.append(message)

    async def shortened(self) -> Sequence[Left | Message]:
        given = [dict(message) for message in self._messages]
        level = _logger.level
        _logger.setLevel(logging.CRITICAL)  # what it would log, for each call, is in the figures
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # as an error, one would make it give everything back unchanged
                sent = _headroom.compress(given, model=_MODEL, model_limit=self._room, **self.options).messages
        finally:
            _logger.setLevel(level)
        if len(sent) != len(self._ids):
            raise NotImplementedError("a message was left out, or put in")
        return [
            _left(id, before["content"], after["content"])
            for id, before, after in zip(self._ids, self._messages, sent, strict=True)
        ]


class Densifying(Compression):
    """``compress`` in its mode for agents, which changes only what can be read back."""

    options: dict[str, Any] = {"mode": "agent"}  # noqa: RUF012 - read only


def _left(id: str, before: object, after: object) -> Left:
    if after == before:
        return Left(id)
    if not isinstance(after, str):
        raise NotImplementedError("the parts of a message were edited")
    return Left(id, after)


POLICIES = tuple(
    Policy(name, PeerStack(name, opens), about)
    for name, opens, about in (
        ("headroom", Compression, "Headroom: compresses what is not recent by its kind, whatever the ceiling"),
        ("headroom-agent", Densifying, "Headroom: rewrites tool results in fewer tokens, without loss"),
    )
)
