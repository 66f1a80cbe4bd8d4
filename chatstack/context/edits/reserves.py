"""Reserves: the room that a request asks to keep for the answer."""

from __future__ import annotations

from chatstack.values.requests import ChatOptions

RESERVING = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Fields of a request's body that bound the answer, where they are given as ``options.extra``."""


def reserve_asked(options: ChatOptions) -> int | None:
    """Return the room for the answer that the options ask for, in whichever spelling; None if they ask for none."""
    if not options.extra:
        return options.max_tokens
    given = (options.max_tokens, *(options.extra.get(name) for name in RESERVING))
    return max((each for each in given if type(each) is int), default=None)
