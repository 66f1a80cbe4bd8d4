"""Ids of calls for servers of chat completions that do not take every id. Pure functions.

A history may hold ids of other servers: vLLM's have 46 characters, those of LiteLLM for Gemini a thousand. OpenAI
refuses ids of more than 40, and Mistral all that do not look like its own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Final, cast

from chatstack.providers.extras import WireObject

_OPENAIS: Final = re.compile(".{0,40}", re.DOTALL)
_MISTRALS: Final = re.compile("[a-zA-Z0-9]{9}")
_MISTRAL: Final = "api.mistral.ai"


def ids_taken(host: str, *, is_openais: bool) -> re.Pattern[str] | None:
    """Return the pattern of the ids that the server takes; None if it is not known to refuse any. ``is_openais``: it is
    OpenAI's or Azure's."""
    if is_openais:
        return _OPENAIS
    return _MISTRALS if host == _MISTRAL else None


def with_ids(messages: Sequence[WireObject], taken: re.Pattern[str]) -> list[WireObject]:
    """Return the messages of a request with other ids in the place of those that do not match: a call and its result
    have the same one, and an id is always replaced by the same one."""
    return list(_renamed(messages, taken))


def _renamed(messages: Sequence[WireObject], taken: re.Pattern[str]) -> Iterator[WireObject]:
    for message in messages:
        calls = cast("list[WireObject]", message.get("tool_calls") or ())
        if any(_id(call.get("id"), taken) != call.get("id") for call in calls):
            message = {**message, "tool_calls": [{**call, "id": _id(call.get("id"), taken)} for call in calls]}
        answered = message.get("tool_call_id", "")
        if answered and _id(answered, taken) != answered:
            message = {**message, "tool_call_id": _id(answered, taken)}
        yield message


def _id(given: object, taken: re.Pattern[str]) -> object:
    if not isinstance(given, str) or taken.fullmatch(given):
        return given
    return hashlib.blake2b(given.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()[:9]
