"""Fields by which a request to OpenAI asks for its prompt cache. Pure functions.

OpenAI caches prefixes without being asked. A key sends the calls of one conversation to the same machines, where its
prefix is; a lifetime keeps it there for longer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, cast

from msgspec.structs import replace

from chatstack.client.protocol import ProviderInfo
from chatstack.providers.extras import WireObject
from chatstack.providers.openai.hosts import is_openai
from chatstack.values.requests import ChatRequest

ChatCache: TypeAlias = Literal["auto", "off", "key", "24h"]
ResponsesCache: TypeAlias = Literal["auto", "off", "key", "12h", "24h"]
"""``"auto"`` sends a key to OpenAI itself, as others may refuse a field that they do not know, ``"key"`` to any server;
a lifetime sends both to any server."""

_PERSON: Final = b"chatstack-cache"
_SECONDS: Final[Mapping[str, float]] = {"12h": 43_200.0, "24h": 86_400.0}


def with_cache(body: WireObject, request: ChatRequest, cache: ResponsesCache, host: str) -> WireObject:
    """Return the body with a key for the request's conversation, and the lifetime that ``cache`` names.

    A request without a conversation's id has no key: OpenAI goes by the beginning of the prompt then, and so would any
    key that could be made of it. Fields that the body has already, from ``options.extra``, stay.
    """
    if cache == "off" or (cache == "auto" and not is_openai(host)):
        return body
    added: WireObject = {}
    if request.conversation_id:
        added["prompt_cache_key"] = cache_key(request.conversation_id)
    if cache == "24h":
        added["prompt_cache_retention"] = cache
    given = body.get("prompt_cache_options", {})
    if cache == "12h" and isinstance(given, Mapping):
        return {**added, **body, "prompt_cache_options": {"ttl": cache, **cast("WireObject", given)}}
    return {**added, **body}


def with_cache_told(info: ProviderInfo, cache: ResponsesCache) -> ProviderInfo:
    """Return the info with what is known of the server's cache: OpenAI itself always reports it."""
    return replace(info, reports_cache=is_openai(info.server_address), cache_seconds=_SECONDS.get(cache))


def cache_key(conversation_id: str) -> str:
    """Return the same key for a conversation in each process. It is a digest, as an id may name a user."""
    return hashlib.blake2b(conversation_id.encode("utf-8", "surrogatepass"), digest_size=16, person=_PERSON).hexdigest()
