"""Prompt caches as providers report them: the part of a cached prefix that a call should have read, and did not.

A call is compared with the call before it in the same conversation: the one whose messages are all those before the
last answer. Without a conversation's id it is found by these messages alone.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Sequence
from itertools import takewhile
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from chatstack.client.protocol import ProviderInfo
from chatstack.lru import Lru
from chatstack.tokens.caching import CACHED_FROM, seconds_since_boot
from chatstack.tokens.prices import cache_seconds
from chatstack.values.messages import Message
from chatstack.values.requests import ChatRequest, DeclaredTool, ToolDeclaration
from chatstack.values.responses import Usage

MissReason: TypeAlias = Literal["head", "tools", "order", "pause"]
"""Likely reason for a miss: system prompt or instructions that differ from the call before; tools that differ; the same
tools in another order, or with their JSON fields in another order; a pause longer than the cache lives."""

_MOST_CALLS: Final = 10_000
_COMPARED: Final = 3
"""Number of messages at the end of a request by which it is recognised."""


class CacheMiss(NamedTuple):
    """Tokens that a call did not read from the cache, though the call before had left them there.

    ``reason`` is "" where none is known: an edit, an eviction by the provider. ``pause_seconds`` is the time since the
    call before, ``cache_seconds`` the lifetime of the cache.
    """

    tokens: int
    reason: MissReason | Literal[""]
    pause_seconds: float
    cache_seconds: float


class _Left(NamedTuple):
    """A call's entry: what it left in the cache, and what the next one has to begin with to read it."""

    tokens: int
    started: float
    head: int
    tools: int
    tools_in_any_order: int
    is_ambiguous: bool = False
    """True if calls of several conversations look the same, but for their heads or tools."""


class PromptCaches:
    """The latest calls of conversations, each with what it left in its provider's cache. Bounded; may be called from
    several threads. ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float] = seconds_since_boot) -> None:
        self.clock = clock
        self._calls: Lru[int, _Left] = Lru(_MOST_CALLS)
        self._reporting: Lru[Hashable, bool] = Lru(_MOST_CALLS)
        self._lock = threading.Lock()

    def missed(self, request: ChatRequest, info: ProviderInfo, usage: Usage, started: float) -> CacheMiss | None:
        """Return what a call that was ``started`` then has missed, and keep what it left; None if it missed nothing
        that counts, or if nothing is known of the cache."""
        is_reported = info.reports_cache or usage.cache_read_tokens > 0 or usage.cache_write_tokens > 0
        if not usage.input_tokens or not (is_reported or self._reporting):
            return None
        server = (info.name, info.server_address, info.server_port, request.options.model or info.model)
        systems = tuple(takewhile(_is_system, request.messages))
        with self._lock:
            if is_reported and not info.reports_cache:
                self._reporting.put(server, True)
            elif not is_reported and self._reporting.get(server) is None:
                return None
            answered = _last_answer(request.messages, len(systems))
            before = self._calls.pop(_key(server, request, len(systems), answered), None) if answered else None
            left = _left(request, systems, info, usage, started)
            self._keep(_key(server, request, len(systems), len(request.messages)), left)
        if before is None:
            return None
        # What an edit has left out since is not sent, and so not missed.
        tokens = min(before.tokens, usage.input_tokens) - usage.cache_read_tokens
        if tokens < CACHED_FROM:
            return None
        lifetime = cache_seconds(info, server[-1])
        pause = started - before.started
        return CacheMiss(tokens, _reason(before, left, is_over=pause >= lifetime), pause, lifetime)

    def _keep(self, key: int, left: _Left) -> None:
        other = self._calls.peek(key)
        if other is not None and (other.is_ambiguous or (other.head, other.tools) != (left.head, left.tools)):
            left = left._replace(is_ambiguous=True)
        self._calls.put(key, left)


def _left(
    request: ChatRequest, systems: tuple[Message, ...], info: ProviderInfo, usage: Usage, started: float
) -> _Left:
    # Where writes are not reported, all of a prompt is written: without a mark, only Anthropic caches nothing.
    cached = usage.cache_read_tokens + usage.cache_write_tokens
    if not usage.cache_write_tokens and info.name != "anthropic":
        cached = usage.input_tokens
    options = request.options
    head = hash((options.instructions, systems))
    in_any_order = hash(frozenset(map(_canonical, options.tools)))
    return _Left(cached, started, head, hash(options.tools), in_any_order)


def _reason(before: _Left, now: _Left, *, is_over: bool) -> MissReason | Literal[""]:
    """Return the first difference in the order of the prefix, in which tools come first; then the pause."""
    if not before.is_ambiguous:
        if before.tools != now.tools:
            return "order" if before.tools_in_any_order == now.tools_in_any_order else "tools"
        if before.head != now.head:
            return "head"
    return "pause" if is_over else ""


def _key(server: Hashable, request: ChatRequest, begin: int, end: int) -> int:
    """Return the key of a call with the messages between these: a hash, which holds no text, of the first one and the
    last ones, as they were before any edit.

    Without a conversation's id its length counts too, or short messages would be taken for those of another one.
    """
    messages = request.messages
    ends = (*messages[begin : begin + 1], *messages[max(begin, end - _COMPARED) : end])
    return hash((server, request.conversation_id or end - begin, tuple([message.original for message in ends])))


def _last_answer(messages: Sequence[Message], begin: int) -> int:
    """Return the position of the last answer behind the first message of the history; 0 if there is none."""
    return next((at for at in range(len(messages) - 1, begin, -1) if messages[at].role == "assistant"), 0)


def _is_system(message: Message) -> bool:
    return message.role == "system"


@functools.lru_cache(maxsize=4_096)
def _canonical(tool: DeclaredTool) -> int:
    """Return a hash of a tool that does not depend on the order of its JSON fields."""
    if isinstance(tool, ToolDeclaration):
        texts = _sorted(tool.parameters), _sorted(tool.extra_json)
        return hash((tool.name, tool.description, tool.strict, *texts))
    return hash((tool.provider, _sorted(tool.json)))


def _sorted(text: str) -> object:
    try:
        return msgspec.json.encode(msgspec.json.decode(text), order="deterministic")
    except (msgspec.DecodeError, RecursionError):
        return text
