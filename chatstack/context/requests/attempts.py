"""Attempts at summaries: single flight for each history, with backoff after failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeAlias

from chatstack.client.background import BackgroundTasks
from chatstack.client.checks import OwnCopy
from chatstack.client.protocol import ChatClient, chain, provider_info
from chatstack.client.single_flight import SingleFlight
from chatstack.context.memory.outages import Outage
from chatstack.context.requests.opened import Opened
from chatstack.lru import Lru
from chatstack.values.responses import Usage

_CLIENT_RESTS_SECONDS = 5.0
_HISTORY_RESTS_SECONDS = 15.0
_LONGEST_SECONDS = 600.0
_LONG_WAIT_SECONDS = 5.0
_PATIENCE = 2
"""Number of callers in a row that give up before the history backs off; and of summaries in a row that are prepared and
not used before no more are prepared."""
_MOST_CLIENTS = 64
_MOST_HISTORIES = 10_000


class Leave(NamedTuple):
    """A permit for one attempt; its outcome must be reported by one of its methods."""

    account: _Account
    history_ticket: int
    client: Outage
    client_ticket: int
    close: Callable[[], None]
    """Forget the account, unless usage is owed: it is as good as new."""

    def succeeded(self) -> None:
        """Report that there is a summary."""
        self.prepared()
        self.account.given_up = self.account.unused = 0
        self.close()

    def failed(self, *, is_outage: bool) -> float:
        """Report a failure. Return the backoff of this history, in seconds."""
        if is_outage:
            self.client.failed(self.client_ticket)
        else:  # it did answer
            self.client.over(self.client_ticket)
        self.account.given_up = 0
        return self.account.outage.failed(self.history_ticket)[0]

    def gave_up(self, waited_seconds: float) -> None:
        """Report that the caller was cancelled before the outcome was known: the next one may try.

        After a long wait, or several cancelled callers in a row, the history backs off instead: a summary client slower
        than its callers' timeouts would end every turn, and the next strategy would never run.
        """
        self.client.gave_up(self.client_ticket)
        self.account.given_up += 1
        if waited_seconds >= _LONG_WAIT_SECONDS or self.account.given_up >= _PATIENCE:
            self.account.outage.failed(self.history_ticket)
        else:
            self.account.outage.gave_up(self.history_ticket)

    def prepared(self) -> None:
        """Report that there is a summary, which is not used yet."""
        self.client.over(self.client_ticket)
        self.account.outage.over(self.history_ticket)
        self.account.was_told = False

    def stopped(self) -> None:
        """Report that an attempt beside calls was ended before the outcome was known: any call may try."""
        self.client.gave_up(self.client_ticket)
        self.account.outage.gave_up(self.history_ticket)


class SummaryAttempts(OwnCopy):
    """The attempts at summaries: running ones, failures, and usage not yet reported. The layers of a stack share it.

    A client that fails (no answer, no connection, too many requests) is not called by any conversation for five seconds
    up to a minute; one that states a scope (``ProviderInfo.scope``), by none of that scope. A history whose summary
    failed is not tried for fifteen seconds up to ten minutes. Usage that no answer could report is reported with the
    next one. Bounded, least recently used out first.
    """

    shared_by_stack: ClassVar[bool] = True

    def __init__(self) -> None:
        self._flight = SingleFlight()
        self.background = BackgroundTasks()
        """The summaries that are being prepared beside calls, by subject."""
        self._lock = threading.RLock()  # a dropped answer may be collected anywhere
        self._clients = Lru[tuple[int, str], tuple[object, Outage]](_MOST_CLIENTS)
        self._histories = Lru[tuple[str, _Place], _Account](_MOST_HISTORIES)
        self._owing = 0
        """Number of histories with usage not yet reported."""

    async def enter(self, key: Hashable) -> Callable[[], None]:
        """Wait until no other call summarizes this subject; look up its result then. Call what this returns, to let
        the next one in."""
        return await self._flight.enter(key)

    def rests(self, client: ChatClient, owner: str, opened: Opened, clock: Callable[[], float]) -> bool:
        """Return True while this history or the client backs off after a failure."""
        account = self._account(owner, opened)
        return (account is not None and account.outage.rests) or self._of_client(client, clock).rests

    def may_prepare(self, client: ChatClient, owner: str, opened: Opened, clock: Callable[[], float]) -> bool:
        """Return True if a summary of this history may be prepared beside calls: neither it nor the client backs off,
        and the last ones were not in vain. They are where a caller keeps rewriting the history, or closes the client
        after each call."""
        account = self._account(owner, opened)
        return (account is None or account.unused < _PATIENCE) and not self.rests(client, owner, opened, clock)

    def prepares(self, owner: str, opened: Opened, clock: Callable[[], float]) -> None:
        """Note that a summary of this history is prepared beside calls."""
        self._opened_account(owner, opened, clock).unused += 1

    def used(self, owner: str, opened: Opened) -> None:
        """Note that what was prepared for this history is used."""
        account = self._account(owner, opened)
        if account is not None:
            account.unused = 0

    def leave(self, client: ChatClient, owner: str, opened: Opened, clock: Callable[[], float]) -> Leave | None:
        """Return a permit to call this client for this history; None while one of them backs off after a failure."""
        account, of_client = self._opened_account(owner, opened, clock), self._of_client(client, clock)
        mine = account.outage.ticket()
        if mine is None:
            return None
        its = of_client.ticket()
        if its is None:
            account.outage.gave_up(mine)
            return None
        place = (owner, _places(opened)[0])

        def close() -> None:
            with self._lock:
                if account.owed == Usage():
                    self._histories.pop(place, None)

        return Leave(account, mine, of_client, its, close)

    def was_told(self, owner: str, opened: Opened) -> bool:
        """Return True if it was already warned of that there is no summary of this history."""
        account = self._account(owner, opened)
        return account is not None and account.was_told

    def is_news(self, owner: str, opened: Opened, clock: Callable[[], float]) -> bool:
        """Return True if it was not yet warned of that there is no summary of this history; marks it as warned of."""
        account = self._opened_account(owner, opened, clock)
        was_told, account.was_told = account.was_told, True
        return not was_told

    def owe(self, owner: str, opened: Opened, usage: Usage, clock: Callable[[], float]) -> None:
        """Keep the usage of summaries for a call without an answer."""
        if usage != Usage():
            account = self._opened_account(owner, opened, clock)
            with self._lock:
                self._owing += account.owed == Usage()
                account.owed += usage

    def settle(self, owner: str, opened: Opened) -> Usage:
        """Take the usage that is owed for this history."""
        account = self._account(owner, opened) if self._owing else None  # mostly nothing is: skip the lookup
        if account is None:
            return Usage()
        with self._lock:
            owed, account.owed = account.owed, Usage()
            self._owing -= owed != Usage()
        return owed

    def _of_client(self, client: ChatClient, clock: Callable[[], float]) -> Outage:
        provider, info = list(chain(client))[-1], provider_info(client)
        key = (id(provider), "" if info is None else info.scope)
        with self._lock:
            known = self._clients.get(key)
            if known is None:
                # A reference to the provider, so that its id is not used again as long as it is a key here.
                known = (provider, Outage(_CLIENT_RESTS_SECONDS, clock))
                self._clients.put(key, known)
            return known[1]

    def _account(self, owner: str, opened: Opened) -> _Account | None:
        """Return the account of this history, or of a beginning of it. Without a conversation id, it is kept under the
        model's latest message, as what follows may be a reminder that does not come again."""
        if not self._histories:  # nothing has failed, so no digest is needed
            return None
        places = _places(opened)
        with self._lock:
            for place in places:
                known = self._histories.get((owner, place))
                if known is not None:  # its other branches may come back to that place
                    self._histories.put((owner, places[0]), known)
                    return known
        return None

    def _opened_account(self, owner: str, opened: Opened, clock: Callable[[], float]) -> _Account:
        known = self._account(owner, opened)
        if known is None:
            known = _Account(Outage(_HISTORY_RESTS_SECONDS, clock, longest_seconds=_LONGEST_SECONDS))
            place = _places(opened)[0]
            with self._lock:
                self._histories.put((owner, place), known)
        return known

    def __repr__(self) -> str:
        return "SummaryAttempts()"


@dataclass(frozen=True, slots=True)
class WaitForTurn:
    """The wait until no other call summarizes a subject. See ``SummaryAttempts.enter``."""

    attempts: SummaryAttempts
    subject: Hashable

    async def answer(self) -> Callable[[], None]:
        return await self.attempts.enter(self.subject)


@dataclass(slots=True, eq=False)
class _Account:
    """The state of attempts for one history."""

    outage: Outage
    owed: Usage = field(default_factory=Usage)
    given_up: int = 0
    """Number of callers in a row that gave up waiting for a summary."""
    unused: int = 0
    """Number of summaries in a row that were prepared, or begun, and not used."""
    was_told: bool = False


_Place: TypeAlias = tuple[str | None, bytes]


def _places(opened: Opened) -> list[_Place]:
    """Return the keys under which a history may be kept: id and first message, or its beginnings, longest first."""
    seen, conversation_id = opened.seen, opened.context.request.conversation_id
    if not seen.length:
        return [(conversation_id, b"")]
    if conversation_id is not None:
        return [(conversation_id, seen.links[0])]
    latest = min(seen.history.latest_assistant, seen.length - 1)
    return [(None, link) for link in reversed(seen.links[: max(latest, 0) + 1])]
