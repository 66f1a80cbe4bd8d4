"""Sharing: decisions in a store that several processes have, which may fail without a call noticing more than that."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar, cast

from chatstack.client.options import PositiveFloat, check_arguments
from chatstack.context.outages import Outage
from chatstack.context.records import Record
from chatstack.context.stored import RecordError, restored, stored
from chatstack.errors import ChatStackError, StoreError, UnusableRecordError, WiringError
from chatstack.values.messages import Message

T = TypeVar("T")

_OWNER_SIZE = 16
_UNUSABLE = 1_000
_MOST_PASSED = 3
"""Records in a row that cannot be used, in one call; each is another question to the store."""


class DecisionStore(Protocol):
    """Where decisions lie that several processes share: bytes by owner and link, both opaque to it.

    A link stands for the messages that a decision was made for, the owner for what else it depends on. It may be used
    from several event loops, and may raise whatever it likes: ``SharedDecisions`` looks after that.
    """

    async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        """The last of these links, which come oldest first, that has a record of that owner: link and record.

        Raises ``UnusableRecordError`` where what lies there is no record at all; then older links are asked for.
        """
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
        timeout_seconds: PositiveFloat = 0.25,
        rest_seconds: PositiveFloat = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_arguments(SharedDecisions, timeout_seconds=timeout_seconds, rest_seconds=rest_seconds)
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
        """The record of the last of these links that has one.

        The link at ``i`` stands for the first ``i + 1`` messages. Only what covers more than ``beyond`` messages is
        looked for: a process knows its own records.
        """
        asked = list(links[beyond:])
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
            asked = asked[:place]  # as if it were not there
        return Found(None, 0, "; ".join(problems))

    async def put(
        self,
        owner: str,
        link: bytes,
        record: Record,
        messages: tuple[Message, ...],
    ) -> Kept:
        """Keep a record about these messages under that link; somebody else's that is there already wins over it."""
        try:
            mine = stored(record, messages)
        except RecordError as error:
            return Kept(record, f"a decision cannot be stored, and holds in this process only: {error}")

        async def ask() -> bytes | UnusableRecordError:
            try:
                there = await self.store.put(_hashed(owner), link, mine)
            except UnusableRecordError as error:
                return error
            if type(there) is not bytes:  # what lies there was not asked for
                raise StoreError(f"it gave a {type(there).__name__} for bytes")
            return there

        answered, there, problem = await self._attempt(ask)
        if not answered or there is None or there == mine:
            return Kept(record, problem)
        try:
            return Kept(_read(there, messages))
        except RecordError as error:
            return Kept(record, self._told_once(there, error))

    async def forget(self, links: Sequence[bytes] | None = None) -> None:
        """Have the store forget these links, or everything, of everybody. Raises what the store raises, and waits for
        it: whoever has something deleted must know if it was not."""
        await self.store.forget(links)

    async def aclose(self) -> None:
        """Close the store."""
        await self.store.aclose()

    def _told_once(self, record: bytes | UnusableRecordError, error: RecordError) -> str:
        """The problem with a record, if nobody has told it: every call of a conversation may meet the same one."""
        known = hash(record if isinstance(record, bytes) else str(record))
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


def _checked(answer: object, asked: Sequence[bytes]) -> tuple[int, bytes | UnusableRecordError]:
    """The place of the link, and the record. A store is somebody's code: its hints may lie."""
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
    """What was decided. Raises ``RecordError`` for what cannot be used."""
    if isinstance(record, UnusableRecordError):
        raise RecordError(str(record))
    return restored(record, messages)


def _told(error: Exception) -> str:
    """Only what is ours is told in full: what a driver says may hold an address with a password in it."""
    return str(error) if isinstance(error, ChatStackError) else type(error).__name__
