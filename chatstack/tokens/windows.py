"""Context windows of models: learnt, stated, reported by the API, or published."""

from __future__ import annotations

import asyncio
import functools
import re
import threading
import time
from collections.abc import Callable
from typing import ClassVar, NamedTuple

from chatstack.client.checks import OwnCopy
from chatstack.client.options import PositiveFloat, check_arguments
from chatstack.client.protocol import ChatClient, TellsWindow, chain, provider_info
from chatstack.client.single_flight import SingleFlight
from chatstack.errors import AuthenticationError, RateLimitError
from chatstack.lru import Lru
from chatstack.tokens.published import must_wait, provider_at, published, tables_loaded

_MOST_KEPT = 1_000
_ASK_AGAIN_SECONDS = 300.0
_DENIED_SECONDS = 30.0
"""Time to ask again after a status of 401, 403 or 429: such an answer is about a key or its pace, not about the model.
Some keys may never ask, so that it is not tried on every call."""
_BOUND_SECONDS = 3_600.0
"""Lifetime of bounds that were inferred from refusals without a limit: one refusal an hour is cheap, a window lost for
good is not."""
_FURTHEST = 4
"""A refused size that many times smaller than the known window was estimated wrongly, and gives no bound."""
UNTOLD_SHARE = 0.75
"""Share of a refused size to try next, if the refusal named no limit."""
_GPT_5 = re.compile(r"(.*/)?gpt-5(?!\d)")
_GPT_5_OUTPUT = 128_000
"""Output tokens in the published windows of GPT-5 and later ones of that name: of 400,000 OpenAI takes 272,000 as
input, of 1,050,000 it takes 922,000, however short the answer is to be."""


class Windows(OwnCopy):
    """Knows the windows of clients' models, in tokens. All layers of a stack share one.

    A limit named by a refusal (``learn``) counts first, then the window that the provider states for its own model
    (``ProviderInfo.window_tokens``), then the API's answer, then the published table (``window_of``). The API is asked
    once for each provider and model, if a client down the chain is a ``TellsWindow``: single flight for concurrent
    callers of one event loop. Missing answers and failures are cached too, for five minutes (where the API denied the
    answer to this key, or for now, 30 seconds), and never raised: a call is worth more than its limit. Refused and
    accepted sizes (``bound``) lower any known window, for an hour; a refused size below a quarter of that window does
    not, as it was estimated wrongly.

    Providers are told apart by their ``info`` (name, address, port, scope), those without by their class. Bounded; may
    be used from several threads and event loops. ``ask_seconds`` is the time limit for an API.
    """

    shared_by_stack: ClassVar[bool] = True

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, ask_seconds: PositiveFloat = 5.0) -> None:
        check_arguments(Windows, clock=clock, ask_seconds=ask_seconds)
        self._clock = clock
        self._ask_seconds = ask_seconds
        self._lock = threading.Lock()
        self._learnt: Lru[_Subject, int] = Lru(_MOST_KEPT)
        self._bounds: Lru[_Subject, _Bounds] = Lru(_MOST_KEPT)
        self._told: Lru[_Subject, _Told] = Lru(_MOST_KEPT)
        self._asking = SingleFlight()

    async def of(self, client: ChatClient, model: str | None = None) -> int | None:
        """Return the window of that model, or of the client's own; None if unknown. Asks the API if necessary."""
        subject, stated = _subject_of(client, model)
        if self._must_ask(subject, stated):
            teller = _teller_in(client)
            if teller is not None:
                await self._ask(teller, subject)
        if self._said(subject, stated) is None:
            await tables_loaded()
        return self._answer(subject, stated)

    def known(self, client: ChatClient, model: str | None = None) -> int | None:
        """Return the result of ``of`` without asking an API. On a running event loop the published table counts only
        once it is loaded."""
        return self._answer(*_subject_of(client, model))

    def learn(self, client: ChatClient, model: str | None, limit: int) -> None:
        """Learn the true window from the limit in a refusal. Ignores a limit that is not above 0."""
        if _is_window(limit):
            subject = _subject_of(client, model)[0]
            with self._lock:
                self._learnt.put(subject, limit)
                self._bounds.pop(subject, None)

    def bound(self, client: ChatClient, model: str | None, *, refused: int, taken: int) -> None:
        """Learn bounds of the window from a refused size without a limit, and the largest accepted size. Ignored if
        they contradict each other, or the known window by far."""
        if not 0 <= taken < refused:
            return
        subject = _subject_of(client, model)[0]
        with self._lock:
            earlier = self._bounds.peek(subject)
            if earlier is not None and earlier.taken < refused and taken < earlier.refused:
                refused, taken = min(refused, earlier.refused), max(taken, earlier.taken)
            self._bounds.put(subject, _Bounds(refused, taken, self._clock() + _BOUND_SECONDS))

    def learnt(self, client: ChatClient, model: str | None = None) -> int | None:
        """Return the limit that a refusal named, or that follows from refused and accepted sizes; it holds against
        anything else stated or configured. None if there is neither."""
        if not self._learnt and not self._bounds:
            return None
        subject, stated = _subject_of(client, model)
        return self._learnt.peek(subject) or self._bound_of(subject, self._known(subject, stated))

    def __repr__(self) -> str:
        told = sum(each.window is not None for each in list(self._told.values()))
        return f"Windows({len(self._learnt)} learnt, {told} told)"

    def _answer(self, subject: _Subject, stated: int | None) -> int | None:
        window = self._known(subject, stated)
        bound = self._bound_of(subject, window)
        return bound if window is None else min(window, bound or window)

    def _known(self, subject: _Subject, stated: int | None) -> int | None:
        window = self._said(subject, stated)
        if window is not None or must_wait():
            return window
        return window_of(subject.model, provider_at(subject.server_address))

    def _said(self, subject: _Subject, stated: int | None) -> int | None:
        """Return the window from a refusal, from code, or from the API."""
        told = self._told.peek(subject)
        return self._learnt.peek(subject) or stated or (told.window if told is not None else None)

    def _bound_of(self, subject: _Subject, window: int | None) -> int | None:
        """Return the largest accepted size, or three quarters of the refused one, whichever is more. None if there was
        no refusal recently, or the known window contradicts it by far."""
        bounds = self._bounds.peek(subject)
        if bounds is None or self._clock() >= bounds.until or bounds.refused * _FURTHEST < (window or 0):
            return None
        return max(1, bounds.taken, int(bounds.refused * UNTOLD_SHARE))

    def _must_ask(self, subject: _Subject, stated: int | None = None) -> bool:
        if stated is not None or subject in self._learnt:
            return False
        told = self._told.peek(subject)
        return told is None or (told.window is None and self._clock() >= told.ask_again)

    async def _ask(self, teller: TellsWindow, subject: _Subject) -> None:
        """Ask the API, or wait for a request that is under way (single flight).

        The request runs in the caller's task: cancelling the caller cancels it, and the next waiter makes another.
        """
        async with self._asking.alone(subject):
            if self._must_ask(subject):
                window, seconds = await self._told_by(teller, subject.model)
                with self._lock:
                    self._told.put(subject, _Told(window, self._clock() + seconds))

    async def _told_by(self, teller: TellsWindow, model: str) -> tuple[int | None, float]:
        """Return the window, and the time after which to ask again if there is none."""
        try:
            async with asyncio.timeout(self._ask_seconds):
                window = await teller.window_tokens(model)
        except (AuthenticationError, RateLimitError):
            return None, _DENIED_SECONDS
        except Exception:  # noqa: BLE001 - the call itself will meet the same error, and raise it
            return None, _ASK_AGAIN_SECONDS
        return window if _is_window(window) else None, _ASK_AGAIN_SECONDS


@functools.lru_cache(maxsize=256)
def window_of(model: str, provider: str = "") -> int | None:
    """Return the window of a model in tokens, from the tables of ``genai-prices`` (the extra ``prices``): at the
    provider that serves it (``provider_at``), else at the one that its name tells.

    A vendor before a slash (``openai/gpt-4.1-mini``), as routers write it, is understood. Of GPT-5 it is what a request
    may hold: 272,000. None when the model is not in the tables, its window is not, or the extra is not installed.
    """
    for _, found in published(model, provider):
        window = found.context_window
        if window is not None:
            counts_output = window > 2 * _GPT_5_OUTPUT and _GPT_5.match(found.id)
            return window - _GPT_5_OUTPUT if counts_output else window
    return None


class _Subject(NamedTuple):
    """Cache key of a window: provider, address, scope and model."""

    provider: str
    server_address: str
    server_port: int | None
    scope: str
    model: str


class _Told(NamedTuple):
    """The API's answer; None, and the time to ask again, if it gave none."""

    window: int | None
    ask_again: float


class _Bounds(NamedTuple):
    """The smallest refused size, the largest accepted one, and the time until which they count."""

    refused: int
    taken: int
    until: float


def _subject_of(client: ChatClient, model: str | None) -> tuple[_Subject, int | None]:
    """Return the cache key of a window, and the window that the provider states."""
    info = provider_info(client)
    if info is None:
        kind = type(list(chain(client))[-1])
        return _Subject(f"{kind.__module__}.{kind.__qualname__}", "", None, "", model or ""), None
    stated = info.window_tokens if model in (None, "", info.model) and _is_window(info.window_tokens) else None
    return _Subject(info.name, info.server_address, info.server_port, info.scope, model or info.model), stated


def _teller_in(client: ChatClient) -> TellsWindow | None:
    # A custom provider may keep a number under that name.
    tellers = (each for each in chain(client) if isinstance(each, TellsWindow) and callable(each.window_tokens))
    return next(tellers, None)


def is_asked_for(client: ChatClient) -> bool:
    """Return True if only the API can tell the window of a client's own model: nothing is stated."""
    return _teller_in(client) is not None and _subject_of(client, None)[1] is None


def _is_window(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
