"""Sharing decisions between processes through a store, whose failures never fail a call."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar, cast

from chatstack.client.options import PositiveFloat, check_arguments
from chatstack.client.time_limits import expire_in
from chatstack.context.edits.records import Record
from chatstack.context.memory.notes import add_note, read_notes, use_note
from chatstack.context.memory.outages import Outage
from chatstack.context.memory.stored import RecordError, restored, stored
from chatstack.context.memory.unkept import Entry, Unkept
from chatstack.errors import ChatStackError, StoreError, UnusableRecordError, WiringError
from chatstack.values.messages import Message

T = TypeVar("T")

_OWNER_SIZE = 16
_UNUSABLE = 1_000
_MOST_CAUGHT_UP = 64
"""Maximum number of records that one call puts for others, which the store did not take before."""
_MOST_PASSED = 3
"""Maximum number of unusable records in a row that one call skips; each is another query to the store."""


class DecisionStore(Protocol):
    """A store of the decisions that several processes share: bytes by owner and link, both opaque to it.

    A link stands for the messages that a decision was made for, the owner for everything else it depends on. A store
    may be used from several event loops, and may raise any exception: ``SharedDecisions`` handles it.
    """

    async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        """Return the last of these links, which come oldest first, that has a record of that owner, and the record.

        Raises ``UnusableRecordError`` if the value there is not a record at all; then older links are queried.
        """
        ...

    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
        """Keep a record, atomically, unless there is one other than ``replaces``; return the record that is kept."""
        ...

    async def forget(self, links: Sequence[bytes] | None = None) -> None:
        """Forget the records of these links, of any owner; without links, all records of all owners."""
        ...

    async def aclose(self) -> None:
        """Close connections and threads. The records stay."""
        ...


class Found(NamedTuple):
    """The result of a query: a record, and how many messages it was made for.

    ``answered`` is False if the store did not answer, or was not queried: it may have a record. ``problem`` is text for
    people, and quotes nothing of a conversation.
    """

    record: Record | None
    covers: int
    problem: str = ""
    answered: bool = True


class Kept(NamedTuple):
    """The record in force after a ``put``: the very object that was given, or that of another process."""

    record: Record
    problem: str = ""


class SharedDecisions:
    """Decisions in a store, behind a timeout and a circuit breaker, so that no call fails because of it.

    A query waits ``timeout_seconds`` at most. After a failure the store is not used for ``rest_seconds``, then one call
    tries it; while it keeps failing the backoff doubles, up to a minute. One that takes no writes (full, locked, a
    read-only replica) is still read, and what it did not take is put again later. A failure is reported as the
    ``problem`` of the call that met it first: once for each outage, and once for each record that cannot be used.
    Records are decoded strictly, and verified as plans before they are applied. Works from several threads and event
    loops.
    """

    def __init__(
        self,
        store: DecisionStore,
        *,
        timeout_seconds: PositiveFloat = 0.25,
        rest_seconds: PositiveFloat = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_arguments(SharedDecisions, timeout_seconds=timeout_seconds, rest_seconds=rest_seconds)
        if isinstance(store, type):
            told = f"ContextMemory: {store.__name__} is a class; make a store of it: {store.__name__}(...)"
            raise WiringError(told, parameter="store")
        missing = [name for name in ("find", "put", "forget", "aclose") if not callable(getattr(store, name, None))]
        if missing:
            kind = type(store).__name__
            raise WiringError(f"ContextMemory: {kind} is no store, it has no {', '.join(missing)}", parameter="store")
        self.store = store
        self.timeout_seconds = timeout_seconds
        self._outage = Outage(rest_seconds, clock)
        self._no_writes = Outage(rest_seconds, clock)
        self._unusable: set[int] = set()
        self._unkept = Unkept()

    async def find(
        self, owner: str, links: Sequence[bytes], messages: tuple[Message, ...], *, beyond: int = 0
    ) -> Found:
        """Return the record of the last of these links that has one.

        The link at ``i`` stands for the first ``i + 1`` messages. Only records of more than ``beyond`` messages are
        looked up, as a process knows its own records.
        """
        found = await self._find(owner, list(links[beyond:]), messages, beyond)
        if found.answered:
            await self._catch_up()
        return found

    async def _find(self, owner: str, asked: list[bytes], messages: tuple[Message, ...], beyond: int) -> Found:
        problems: dict[str, None] = {}

        async def ask() -> tuple[int, bytes | UnusableRecordError] | None:
            try:
                answer = await self.store.find(_hashed(owner), asked)
            except UnusableRecordError as error:
                return _place_of(error.link, asked), error
            return None if answer is None else _checked(answer, asked)

        for _ in range(_MOST_PASSED):
            if not asked:
                break
            answered, found, problem = await self._attempt(ask)
            if not answered or found is None:
                return Found(None, 0, problem or "; ".join(problems), answered)
            place, record = found
            covers = beyond + 1 + place
            try:
                return Found(_read(record, messages[:covers]), covers, "; ".join(problems))
            except RecordError as error:
                if told := self._told_once(record, error):
                    problems[told] = None
            asked = asked[:place]  # skip the unusable record
        return Found(None, 0, "; ".join(problems))

    async def put(
        self, owner: str, link: bytes, record: Record, messages: tuple[Message, ...], *, under: bytes = b""
    ) -> Kept:
        """Keep a record about these messages under that link; an existing one of another process wins over it.

        ``under``, if given, is the link from which ``forget`` is to reach it. What could not be kept is put again, by
        whichever call comes once the store takes it.
        """
        try:
            mine = stored(record, messages)
        except RecordError as error:
            return Kept(record, f"a decision cannot be stored, and holds in this process only: {error}")
        answered, there, problem = await self._keep(Entry(_hashed(owner), link, mine, under))
        if not answered or there is None or there == mine:
            return Kept(record, problem)
        try:
            return Kept(_read(there, messages))
        except RecordError as error:
            return Kept(record, self._told_once(there, error))

    async def _keep(self, entry: Entry) -> tuple[bool, bytes | UnusableRecordError | None, str]:
        """Put a record, as ``_attempt`` does; later, if the store does not take it now, or the call is cancelled. One
        that is forgotten meanwhile is taken out again: it may have come after that."""
        self._unkept.begin(entry)
        is_kept = False
        try:
            is_kept, there, problem = await self._attempt(partial(self._put, entry), writes=True)
        finally:
            is_wanted = self._unkept.end(entry, is_kept=is_kept)
        if not is_wanted:
            told = (await self._attempt(partial(self.store.forget, [entry.link]), writes=True, anyway=True))[2]
            problem = problem or told
        return is_kept, there, problem

    async def _put(self, entry: Entry) -> bytes | UnusableRecordError:
        """Note the link of a record, then put it: one that no note leads to could not be forgotten."""
        if entry.under and entry.under != entry.link:
            await add_note(self.store, entry.under, entry.link)
        try:
            there = await self.store.put(entry.owner, entry.link, entry.record)
        except UnusableRecordError as error:
            return error
        if type(there) is not bytes:  # what lies there was not asked for
            raise StoreError(f"it gave a {type(there).__name__} for bytes")
        return there

    async def _catch_up(self) -> None:
        """Put a few of the records that could not be put before, as long as a query may take."""
        begun = time.monotonic()
        for _ in range(min(len(self._unkept), _MOST_CAUGHT_UP)):
            if self._no_writes.rests or time.monotonic() - begun > self.timeout_seconds:
                return
            entry = self._unkept.take()
            if entry is None:  # another call was quicker
                return
            if not (await self._keep(entry))[0]:
                return

    async def keep_notes(self, under: Sequence[bytes]) -> None:
        """Use the notes under these links, as stores delete what is not used: a note stays as long as its records."""
        for each in under:
            await self._attempt(partial(use_note, self.store, each))

    async def forget(self, links: Sequence[bytes] | None = None) -> None:
        """Delete the records of these links, and of those noted under them, or all records of all owners.

        Without a timeout, and raises what the store raises: the caller must know if a deletion failed. Raises
        ``StoreError`` if there is a note that cannot be read, after everything else was deleted.
        """
        if links is None:
            self._unkept.forget()
            await self.store.forget()
            return
        gone = {*links}
        self._unkept.forget(gone)  # before its notes are read, which what is being put may yet add to
        noted_links, unreadable = await read_notes(self.store, links)
        gone |= noted_links
        self._unkept.forget(gone)
        await self.store.forget(sorted(gone))
        if unreadable:
            raise StoreError(f"{unreadable} notes cannot be read, of what else was kept about these messages")

    async def aclose(self) -> None:
        """Close the store."""
        await self.store.aclose()

    def _told_once(self, record: bytes | UnusableRecordError, error: RecordError) -> str:
        """Return the problem with a record, "" if it was reported before: each call of a conversation may meet it."""
        known = hash(record if isinstance(record, bytes) else str(record))
        if known in self._unusable:
            return ""
        if len(self._unusable) >= _UNUSABLE:
            self._unusable.clear()
        self._unusable.add(known)
        return f"a stored decision cannot be used: {error}"

    async def _attempt(
        self, ask: Callable[[], Awaitable[T]], *, writes: bool = False, anyway: bool = False
    ) -> tuple[bool, T | None, str]:
        """Query the store, ``anyway`` also while it is left alone. Return True if it answered, the answer, and the
        problem, "" if it was reported before."""
        outage = self._no_writes if writes else self._outage
        ticket = None if writes and self._outage.rests else outage.ticket()
        if ticket is None and not anyway:
            return False, None, ""
        limit = asyncio.timeout(None)
        try:
            # Awaited here, not in a new task: a cancellation reaches the store, and leaves no task behind.
            async with limit:
                expire_in(limit, self.timeout_seconds)
                found = await ask()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                outage.gave_up(ticket)
                raise
            why = "it cancelled itself"
        except Exception as error:  # noqa: BLE001 - whatever a store raises is told, and no call fails for it
            why = f"no answer in {self.timeout_seconds:g} seconds" if limit.expired() else _told(error)
        else:
            outage.over(ticket)
            return True, found, ""
        rest, is_news = outage.failed(ticket)
        left_alone = "takes none" if writes else "fails"
        told = f"the store of decisions {left_alone} ({why}); it is left alone for {rest:g} seconds, then tried again"
        return False, None, told if is_news else ""

    def __repr__(self) -> str:
        return f"SharedDecisions({self.store!r}, timeout_seconds={self.timeout_seconds:g})"


def _hashed(owner: str) -> str:
    """Hash an owner, which names a layer with all its options, to a short key."""
    return hashlib.blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=_OWNER_SIZE).hexdigest()


def _checked(answer: object, asked: Sequence[bytes]) -> tuple[int, bytes | UnusableRecordError]:
    """Return the place of the link, and the record. Types are checked, as a store may be foreign code."""
    if not isinstance(answer, tuple) or len(cast("tuple[object, ...]", answer)) != 2:
        raise StoreError("it gave something else than a link and a record")
    link, record = cast("tuple[object, object]", answer)
    if type(link) is not bytes:
        raise StoreError(f"it gave a {type(link).__name__} for a link")
    place = _place_of(link, asked)
    return place, record if type(record) is bytes else UnusableRecordError(
        f"it is a {type(record).__name__}", link=link
    )


def _place_of(link: bytes, asked: Sequence[bytes]) -> int:
    for at in range(len(asked) - 1, -1, -1):
        if asked[at] == link:
            return at
    raise StoreError("it gave a link that was not asked for")


def _read(record: bytes | UnusableRecordError, messages: tuple[Message, ...]) -> Record:
    """Decode a record. Raises ``RecordError`` if it cannot be used."""
    if isinstance(record, UnusableRecordError):
        raise RecordError(str(record))
    return restored(record, messages)


def _told(error: Exception) -> str:
    """Describe an error; only chatstack's own in full, as a driver's message may hold an address with a password."""
    return str(error) if isinstance(error, ChatStackError) else type(error).__name__
