"""How much fits into a model's context: what was learnt, stated, told by the API, or published."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable
from typing import ClassVar, NamedTuple

from chatstack.client.protocol import ChatClient, TellsWindow, chain, provider_info
from chatstack.client.turnstile import Turnstile
from chatstack.errors import WiringError
from chatstack.lru import Lru
from chatstack.tokens.published import must_wait, published, tables_loaded

_MOST_KEPT = 1_000
_ASK_AGAIN_SECONDS = 300.0
_BOUND_SECONDS = 3_600.0
"""How long bounds are believed that nobody told: one refusal an hour is cheap, a window lost for good is not."""
_FURTHEST = 4
"""A refused size that many times smaller than the known window was estimated wrongly, and bounds nothing."""
UNTOLD_SHARE = 0.75
"""Of a size that was refused without a limit being told: what is tried next."""


class Windows:
    """Knows the windows of clients' models, in tokens. Of a stack's layers all share one.

    What a refusal told (``learn``) counts first, then what the provider states about its own model
    (``ProviderInfo.window_tokens``), then what the API tells, then the published table (``window_of``). The API is
    asked once for each provider and model, where something down the chain ``TellsWindow``: callers of one event loop
    who ask at the same time share the request. Silence and failure are remembered too, for five minutes, and never
    raised: a call is worth more than its limit. Whatever is known, sizes that were refused and taken (``bound``) make
    it smaller, for an hour.

    Providers are told apart by what they say about themselves (name, address, port), those that say nothing by their
    class. Bounded; may be used from several threads and event loops. ``ask_seconds`` is how long an API may take.
    """

    shared_by_stack: ClassVar[bool] = True

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, ask_seconds: float = 5.0) -> None:
        if not ask_seconds > 0:
            raise WiringError(f"Windows: ask_seconds={ask_seconds} must be greater than 0", parameter="ask_seconds")
        self._clock = clock
        self._ask_seconds = ask_seconds
        self._lock = threading.Lock()
        self._learnt: Lru[_Subject, int] = Lru(_MOST_KEPT)
        self._bounds: Lru[_Subject, _Bounds] = Lru(_MOST_KEPT)
        self._told: Lru[_Subject, _Told] = Lru(_MOST_KEPT)
        self._asking = Turnstile()

    async def of(self, client: ChatClient, model: str | None = None) -> int | None:
        """The window of that model, or of the client's own; None when nobody knows. Asks the API if it must."""
        subject, stated = _subject_of(client, model)
        if self._must_ask(subject, stated):
            teller = _teller_in(client)
            if teller is not None:
                await self._ask(teller, subject)
        if self._said(subject, stated) is None:
            await tables_loaded()
        return self._answer(subject, stated)

    def known(self, client: ChatClient, model: str | None = None) -> int | None:
        """What ``of`` would say without asking anybody. On a running event loop the published table counts only once
        it is loaded."""
        return self._answer(*_subject_of(client, model))

    def learn(self, client: ChatClient, model: str | None, limit: int) -> None:
        """Take the limit that a refusal told for the true window. A limit that is none (not above 0) is ignored."""
        if _is_window(limit):
            subject = _subject_of(client, model)[0]
            with self._lock:
                self._learnt.put(subject, limit)
                self._bounds.pop(subject, None)

    def bound(self, client: ChatClient, model: str | None, *, refused: int, taken: int) -> None:
        """Take a size that was refused without a word about the limit, and the largest that was taken, for bounds of
        the window. They are ignored where they contradict each other, or the window that is known by far."""
        if not 0 <= taken < refused:
            return
        subject = _subject_of(client, model)[0]
        with self._lock:
            earlier = self._bounds.peek(subject)
            if earlier is not None and earlier.taken < refused and taken < earlier.refused:
                refused, taken = min(refused, earlier.refused), max(taken, earlier.taken)
            self._bounds.put(subject, _Bounds(refused, taken, self._clock() + _BOUND_SECONDS))

    def learnt(self, client: ChatClient, model: str | None = None) -> int | None:
        """The limit that a refusal told, or that follows from what was refused and taken, if there is one: it holds
        whatever else was said or configured."""
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
        return window_of(subject.model) if window is None and not must_wait() else window

    def _said(self, subject: _Subject, stated: int | None) -> int | None:
        """The window that somebody told, in a refusal, in code, or over the API."""
        told = self._told.peek(subject)
        return self._learnt.peek(subject) or stated or (told.window if told is not None else None)

    def _bound_of(self, subject: _Subject, window: int | None) -> int | None:
        """The largest size that was taken, or three quarters of what was refused, if that is more; None where nothing
        was refused of late, or something that the known window contradicts by far."""
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
        """Ask the API, or wait for whoever asks already.

        Nobody's request runs in a task of its own: who is cancelled takes the request along, and the next in turn
        makes one.
        """
        async with self._asking.alone(subject):
            if self._must_ask(subject):
                window = await self._told_by(teller, subject.model)
                with self._lock:
                    self._told.put(subject, _Told(window, self._clock() + _ASK_AGAIN_SECONDS))

    async def _told_by(self, teller: TellsWindow, model: str) -> int | None:
        try:
            async with asyncio.timeout(self._ask_seconds):
                window = await teller.window_tokens(model)
        except Exception:  # noqa: BLE001 - whatever it is, the call itself will meet the same trouble, and say so
            return None
        return window if _is_window(window) else None


@functools.lru_cache(maxsize=256)
def window_of(model: str) -> int | None:
    """The window of a model in tokens, from the tables of ``genai-prices`` (the extra ``prices``).

    A vendor before a slash (``openai/gpt-4.1-mini``), as routers write it, is understood. None when the model is not
    in the tables, its window is not, or the extra is not installed.
    """
    return next((found.context_window for _, found in published(model) if found.context_window is not None), None)


class _Subject(NamedTuple):
    """Whose window it is."""

    provider: str
    server_address: str
    server_port: int | None
    model: str


class _Told(NamedTuple):
    """What the API told; None, and when to ask again, where it told nothing."""

    window: int | None
    ask_again: float


class _Bounds(NamedTuple):
    """The smallest size that was refused, the largest that was taken, and until when they count."""

    refused: int
    taken: int
    until: float


def _subject_of(client: ChatClient, model: str | None) -> tuple[_Subject, int | None]:
    """Whose window is asked for, and what the provider states about it."""
    info = provider_info(client)
    if info is None:
        kind = type(list(chain(client))[-1])
        return _Subject(f"{kind.__module__}.{kind.__qualname__}", "", None, model or ""), None
    stated = info.window_tokens if model in (None, "", info.model) and _is_window(info.window_tokens) else None
    return _Subject(info.name, info.server_address, info.server_port, model or info.model), stated


def _teller_in(client: ChatClient) -> TellsWindow | None:
    # A provider of somebody's may keep a number under that name.
    tellers = (each for each in chain(client) if isinstance(each, TellsWindow) and callable(each.window_tokens))
    return next(tellers, None)


def is_asked_for(client: ChatClient) -> bool:
    """Return True if only the API can tell the window of a client's own model: nothing is stated."""
    return _teller_in(client) is not None and _subject_of(client, None)[1] is None


def _is_window(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
