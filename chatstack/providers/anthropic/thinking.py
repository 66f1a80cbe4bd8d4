"""Thinking in the middle of a turn. Pure functions on the body of a request; the SDK is not imported.

A turn is all that the assistant says until the user speaks again; results of tools are not the user's. If thinking is
``enabled``, the API wants the turn to begin with it, and if it is off, to have none. ``adaptive`` thinking demands
neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from chatstack.providers.anthropic.blocks import THINKING
from chatstack.providers.anthropic.native import drop_clearing_of_thinking
from chatstack.providers.extras import WireObject, field_of

_OF_ANY_MODEL: Final = ("text", "tool_use")
"""Types of the blocks that an answer without thinking begins with, whichever model gave it."""


def settle_thinking(body: WireObject, messages: Sequence[WireObject]) -> None:
    """Leave thinking out of a request whose turn begins without it, as where another model made the first calls, or an
    edit has left out those that began with it: the API would refuse it until the turn ends.

    What needs thinking goes, too: that of the turn itself, and the edit that clears it. All requests of the turn are
    treated alike, so they share a cached prefix; the next turn thinks again.
    """
    if field_of(body.get("thinking"), "type") != "enabled":
        return
    turn = _turn(messages)
    if not turn or _blocks(turn[0])[0].get("type") not in _OF_ANY_MODEL:
        return
    del body["thinking"]
    drop_clearing_of_thinking(body)
    for message in turn:
        message["content"] = [block for block in _blocks(message) if block.get("type") not in THINKING]
    body["messages"] = [message for message in messages if message["content"]]


def _turn(messages: Sequence[WireObject]) -> list[WireObject]:
    """Return the assistant's messages of the last turn, in their order; none if the user has spoken since."""
    turn: list[WireObject] = []
    for message in reversed(messages):
        if message["role"] == "assistant":
            turn.append(message)
        elif message["role"] == "user" and all(block.get("type") != "tool_result" for block in _blocks(message)):
            break
    return turn[::-1]


def _blocks(message: WireObject) -> list[WireObject]:
    return cast("list[WireObject]", message["content"])
