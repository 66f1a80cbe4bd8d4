"""Attempts at summaries: one at a time for each history, and none while it would only fail again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager
from typing import ClassVar, NamedTuple

from chatstack.client.protocol import ChatClient, chain
from chatstack.client.turnstile import Turnstile
from chatstack.context.history import History
from chatstack.context.outages import Outage

_CLIENT_RESTS_SECONDS = 5.0
_HISTORY_RESTS_SECONDS = 15.0
_LONGEST_SECONDS = 600.0
_MOST_CLIENTS = 64


class Leave(NamedTuple):
    """Leave to try once; how it ended has to be told."""

    history: Outage
    history_ticket: int
    client: Outage
    client_ticket: int

    def succeeded(self) -> None:
        """There is a summary."""
        self.client.over(self.client_ticket)
        self.history.over(self.history_ticket)

    def failed(self, *, is_outage: bool) -> float:
        """There is none. How many seconds nobody tries again for this history."""
        if is_outage:
            self.client.failed(self.client_ticket)
        else:  # it did answer
            self.client.over(self.client_ticket)
        return self.history.failed(self.history_ticket)[0]

    def gave_up(self) -> None:
        """The caller was cancelled before anything was known."""
        self.client.gave_up(self.client_ticket)
        self.history.gave_up(self.history_ticket)


class SummaryAttempts:
    """Who is writing a summary now, and what has failed. Of a stack's layers all share one.

    A client that fails (no answer, no connection, too many requests) is left alone by every conversation, from five
    seconds up to a minute; a history whose summary went wrong too, from fifteen seconds up to ten minutes.
    """

    shared_by_stack: ClassVar[bool] = True

    def __init__(self) -> None:
        self._turnstile = Turnstile()
        self._lock = threading.Lock()
        self._outages: dict[int, tuple[object, Outage]] = {}

    def alone(self, key: Hashable) -> AbstractAsyncContextManager[None]:
        """Wait until nobody else summarizes that; what they decided should be looked up then."""
        return self._turnstile.alone(key)

    def leave(self, client: ChatClient, history: History, owner: str, clock: Callable[[], float]) -> Leave | None:
        """Leave to ask this client about this history, or None while one of them rests after a failure."""
        of_history, of_client = self._of_history(history, owner, clock), self._of_client(client, clock)
        mine = of_history.ticket()
        if mine is None:
            return None
        its = of_client.ticket()
        if its is None:
            of_history.gave_up(mine)
            return None
        return Leave(of_history, mine, of_client, its)

    def _of_client(self, client: ChatClient, clock: Callable[[], float]) -> Outage:
        provider = list(chain(client))[-1]
        with self._lock:
            known = self._outages.get(id(provider))
            if known is None:
                if len(self._outages) >= _MOST_CLIENTS:
                    del self._outages[next(iter(self._outages))]
                # With the provider itself: as long as it is kept here, its id is nobody else's.
                known = self._outages[id(provider)] = (provider, Outage(_CLIENT_RESTS_SECONDS, clock))
            return known[1]

    def _of_history(self, history: History, owner: str, clock: Callable[[], float]) -> Outage:
        known = history.outages.get(owner)
        if known is None:
            outage = Outage(_HISTORY_RESTS_SECONDS, clock, longest_seconds=_LONGEST_SECONDS)
            known = history.outages.setdefault(owner, outage)
        return known

    def __repr__(self) -> str:
        return "SummaryAttempts()"
