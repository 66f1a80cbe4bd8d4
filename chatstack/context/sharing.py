"""Sharing: decisions in a store that several processes have, which may fail without a call noticing more than that."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar, cast

from chatstack.context.outages import Outage
from chatstack.context.records import Record
from chatstack.context.stored import RecordError, restored, stored
from chatstack.errors import ChatStackError, StoreError, WiringError
from chatstack.values.messages import Message

T = TypeVar("T")

_OWNER_SIZE = 16
_UNUSABLE = 1_000


class DecisionStore(Protocol):
    """Where decisions lie that several processes share: bytes by owner and link, both opaque to it.

    A link stands for the messages that a decision was made for, the owner for what else it depends on. It may be used
    from several event loops, and may raise whatever it likes: ``SharedDecisions`` looks after that.
    """

    async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        """The last of these links, which come oldest first, that has a record of that owner: link and record."""
        ...

    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
        """Keep a record, in one step: where another one is there than the one it replaces, it is that one that stays.

        Gives back what is there afterwards.
        """
        ...

    async def forget(self, links: Sequence[bytes] | None = None) -> None:
        """Forget what is kept for these links, by any owner; without links everything, of everybody."""
        ...

    async def aclose(self) -> None:
        """Let go of connections and threads. What is kept stays."""
        ...


class Found(NamedTuple):
    """What a store knew: a record, and how many messages it was made for.

    ``answered`` is False if the store did not say, or was not asked: it may know something. ``problem`` is for people,
    and holds nothing of a conversation.
    """

    record: Record | None
    covers: int
    problem: str = ""
    answered: bool = True


class Kept(NamedTuple):
    """The record that holds from now on: the very object that was given, or, in its place, somebody else's."""

    record: Record
    problem: str = ""


class SharedDecisions:
    """Decisions in a store, for a memory that must go on without it: no call fails for it, or waits for it for long.

    A call waits ``timeout_seconds`` at most. After a failure the store is left alone for ``rest_seconds``, then one
    call tries it; while it keeps failing the rest doubles, up to a minute. What is wrong is told as the ``problem`` of
    the call that met it first: once for each outage, and once for each record that cannot be used.
    What is read is decoded strictly; whoever carries it out has the plan verified beside that. Works from several
    threads and event loops.
    """

    def __init__(
        self,
        store: DecisionStore,
        *,
        timeout_seconds: float = 0.25,
        rest_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, seconds in (("timeout_seconds", timeout_seconds), ("rest_seconds", rest_seconds)):
            if not seconds > 0:
                raise WiringError(f"SharedDecisions: {name}={seconds} must be greater than 0", parameter=name)
        missing = [name for name in ("find", "put", "forget", "aclose") if not callable(getattr(store, name, None))]
        if missing:
            kind = type(store).__name__
            raise WiringError(f"SharedDecisions: {kind} is no store, it has no {', '.join(missing)}", parameter="store")
        self.store = store
        self.timeout_seconds = timeout_seconds
        self._outage = Outage(rest_seconds, clock)
        self._unusable: set[int] = set()

    async def find(
        self, owner: str, links: Sequence[bytes], messages: tuple[Message, ...], *, beyond: int = 0
    ) -> Found:
        """What was last decided for these messages, or for the longest beginning of them that is known.

        The link at ``i`` stands for the first ``i + 1`` messages. Only what covers more than ``beyond`` messages is
        looked for: a process knows its own decisions.
        """
        asked = list(links[beyond : len(messages)])
        if not asked:
            return Found(None, 0)

        async def ask() -> tuple[int, bytes] | None:
            answer = await self.store.find(_hashed(owner), asked)
            return None if answer is None else _checked(answer, asked)

        answered, found, problem = await self._attempt(ask)
        if not answered or found is None:
            return Found(None, 0, problem, answered)
        covers = beyond + 1 + found[0]
        try:
            return Found(restored(found[1], messages[:covers]), covers)
        except RecordError as error:
            return Found(None, 0, self._told_once(found[1], error))

    async def put(
        self,
        owner: str,
        links: Sequence[bytes],
        record: Record,
        messages: tuple[Message, ...],
        replaces: Record | None = None,
    ) -> Kept:
        """Keep what was decided for these messages, on top of ``replaces``; somebody else's record wins over it."""
        if not messages:
            return Kept(record)
        try:
            mine = stored(record, messages)
        except RecordError as error:
            return Kept(record, f"a decision cannot be stored, and holds in this process only: {error}")
        link = links[len(messages) - 1]

        async def ask() -> bytes:
            there = await self.store.put(_hashed(owner), link, mine, replaces=_stored_or_none(replaces, messages))
            return _checked_bytes(there)

        answered, there, problem = await self._attempt(ask)
        if not answered or there is None or there == mine:
            return Kept(record, problem)
        try:
            return Kept(restored(there, messages))
        except RecordError as error:
            return Kept(record, self._told_once(there, error))

    async def forget(self, links: Sequence[bytes] | None = None) -> None:
        """Have the store forget these links, or everything, of everybody. Raises what the store raises, and waits for
        it: whoever has something deleted must know if it was not."""
        await self.store.forget(links)

    async def aclose(self) -> None:
        """Close the store."""
        await self.store.aclose()

    def _told_once(self, data: bytes, error: RecordError) -> str:
        """The problem with a record, if nobody has told it: every call of a conversation may meet the same one."""
        known = hash(data)
        if known in self._unusable:
            return ""
        if len(self._unusable) >= _UNUSABLE:
            self._unusable.clear()
        self._unusable.add(known)
        return f"a stored decision cannot be used: {error}"

    async def _attempt(self, ask: Callable[[], Awaitable[T]]) -> tuple[bool, T | None, str]:
        """Whether the store answered, what, and the problem, if that is news."""
        ticket = self._outage.ticket()
        if ticket is None:
            return False, None, ""
        limit = asyncio.timeout(self.timeout_seconds)
        try:
            # Awaited here, not in a task of its own: being cancelled goes through to the store, and leaves nothing.
            async with limit:
                found = await ask()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                self._outage.gave_up(ticket)
                raise
            why = "it cancelled itself"
        except Exception as error:  # noqa: BLE001 - whatever a store raises is told, and no call fails for it
            why = f"no answer in {self.timeout_seconds:g} seconds" if limit.expired() else _told(error)
        else:
            self._outage.over(ticket)
            return True, found, ""
        rest, is_news = self._outage.failed(ticket)
        told = f"the store of decisions fails ({why}); it is left alone for {rest:g} seconds, then tried again"
        return False, None, told if is_news else ""

    def __repr__(self) -> str:
        return f"SharedDecisions({self.store!r}, timeout_seconds={self.timeout_seconds:g})"


def _hashed(owner: str) -> str:
    """An owner names a layer with all its options: as a key it is only long."""
    return hashlib.blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=_OWNER_SIZE).hexdigest()


def _stored_or_none(record: Record | None, messages: tuple[Message, ...]) -> bytes | None:
    """What it looks like in the store; None if it cannot be there."""
    if record is None:
        return None
    try:
        return stored(record, messages)
    except RecordError:
        return None


def _checked(answer: object, asked: Sequence[bytes]) -> tuple[int, bytes]:
    """The place of the link, and the record. A store is somebody's code: its hints may lie."""
    if not isinstance(answer, tuple) or len(cast("tuple[object, ...]", answer)) != 2:
        raise StoreError("it gave something else than a link and a record")
    link, record = (_checked_bytes(each) for each in cast("tuple[object, object]", answer))
    for at in range(len(asked) - 1, -1, -1):
        if asked[at] == link:
            return at, record
    raise StoreError("it gave a link that was not asked for")


def _checked_bytes(given: object) -> bytes:
    if type(given) is not bytes:
        raise StoreError(f"it gave a {type(given).__name__} for bytes")
    return given


def _told(error: Exception) -> str:
    """Only what is ours is told in full: what a driver says may hold an address with a password in it."""
    return str(error) if isinstance(error, ChatStackError) else type(error).__name__
