"""Progress of durable runs, from process to process: events of a ``ProgressFeed``, and text of answers, in tables."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Generic, Self, TypeVar

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from chatstack import ChatStream, ChatUpdate, ProgressFeed
from chatstack.client.closing import Closing
from chatstack_dbos.database import Database

T = TypeVar("T")

_log = logging.getLogger("chatstack_dbos")
_EVENT_SECONDS = 0.1
_TEXT_SECONDS = 0.2
_READ_SECONDS = 0.25
_ROWS = 500


class RunText(msgspec.Struct, frozen=True):
    """A piece of the text of an answer, while the model writes it. ``answer`` counts the answers of the run, from 0.

    ``begins`` is set on the first piece of an answer. It comes again for the same answer if a worker died while the
    model wrote it, as another one asks anew: what was read of this answer before is void.
    """

    text: str
    answer: int
    begins: bool = False


class Batches:
    """Writes what is told of a run to a table, several rows at a time, while the run is this executor's.

    It never fails a run. Nothing is written of a run that was forgotten, or that another executor has.
    """

    def __init__(self, database: Database, table: str, key: str, executor: str, seconds: float) -> None:
        self._database = database
        self._table = table
        self._about = {"run": key, "me": executor}
        self._seconds = seconds
        self._waiting: list[msgspec.Struct] = []
        self._writing: asyncio.Task[None] | None = None
        self._encode = msgspec.json.Encoder().encode

    def put(self, row: msgspec.Struct) -> None:
        """Add a row, which is written before long."""
        self._waiting.append(row)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_later())

    def last(self) -> msgspec.Struct | None:
        """Take the last row back, if it is not written yet."""
        return self._waiting.pop() if self._waiting else None

    async def aclose(self, *, discard: bool = False) -> None:
        """Write what is left; not if ``discard``."""
        writing = self._writing
        if writing is not None and not discard:
            await asyncio.wait({writing})
        elif writing is not None:
            writing.cancel()
        if not discard:
            await self._write()

    async def _write_later(self) -> None:
        while self._waiting:  # what comes during a write is written after it
            await asyncio.sleep(self._seconds)
            await self._write()

    async def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        rows = [self._about | {"event": self._encode(each).decode()} for each in waiting]
        if not rows:
            return
        # One statement, so that nothing comes between the look at the owner and the row.
        statement = f"INSERT INTO {self._table} (run, event) SELECT :run, :event FROM {self._database.owned_run}"
        try:
            await asyncio.to_thread(self._database.insert, statement, rows)
        except SQLAlchemyError as error:
            _log.warning("%d rows of a run's progress are lost: %s", len(rows), type(error).__name__)


class ProgressWriter:
    """Follows one run in a feed, and writes its events."""

    def __init__(
        self, database: Database, key: str, executor: str, feed: ProgressFeed | None, conversation_id: str
    ) -> None:
        self._batches = Batches(database, "chatstack_progress", key, executor, _EVENT_SECONDS)
        self._events = None if feed is None else feed.events(conversation_id)
        self._task = None if self._events is None else asyncio.create_task(self._follow())

    async def aclose(self, *, discard: bool = False) -> None:
        """Write what has been told until now; not if ``discard``: the run is another executor's."""
        if self._events is None or self._task is None:
            return
        await self._events.aclose()
        if discard:
            self._task.cancel()
        await asyncio.wait({self._task})
        await self._batches.aclose(discard=discard)

    async def _follow(self) -> None:
        assert self._events is not None
        async for event in self._events:
            self._batches.put(event)


class TextWriter:
    """Writes the text of answers while they come."""

    def __init__(self, database: Database, key: str, executor: str) -> None:
        self._batches = Batches(database, "chatstack_text", key, executor, _TEXT_SECONDS)

    def told(self, stream: ChatStream, answer: int) -> ChatStream:
        """Return the same stream, whose text is written as it is read."""
        copied = ChatStream(self._copied(stream, answer), owns=stream)
        copied.sent = stream.sent
        return copied

    async def aclose(self, *, discard: bool = False) -> None:
        """Write what is left; not if ``discard``: the run is another executor's."""
        await self._batches.aclose(discard=discard)

    async def _copied(self, stream: ChatStream, answer: int) -> AsyncGenerator[ChatUpdate, None]:
        begins = True
        async for update in stream:
            if update.text:
                before = None if begins else self._batches.last()
                if isinstance(before, RunText):  # written together
                    self._batches.put(RunText(before.text + update.text, answer, before.begins))
                else:
                    self._batches.put(RunText(update.text, answer, begins))
                begins = False
            yield update


class RunEvents(Closing, Generic[T]):
    """What is told of one run, in the order in which it happened: an async iterator and an async context manager.

    It begins with the run's first event, whenever it is opened, and ends when the run has ended and all was read. A run
    that was taken over tells ``turn_started`` again. One task reads it at a time.
    """

    def __init__(
        self, database: Database, table: str, kind: type[T], key: str, has_ended: Callable[[], Awaitable[bool]]
    ) -> None:
        self._database = database
        self._table = table
        self._key = key
        self._has_ended = has_ended
        self._last = 0
        self._waiting: deque[T] = deque()
        self._is_over = False
        self._decode: Callable[[Any], T] = msgspec.json.Decoder(kind).decode

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not self._waiting:
            if self._is_over:
                raise StopAsyncIteration
            was_over = await self._has_ended()  # asked before reading: what is written last is read
            await self._read()
            if not self._waiting:
                self._is_over = self._is_over or was_over
                if not self._is_over:
                    await asyncio.sleep(_READ_SECONDS)
        return self._waiting.popleft()

    async def aclose(self) -> None:
        """End the iterator."""
        self._is_over = True
        self._waiting.clear()

    async def _read(self) -> None:
        rows = await asyncio.to_thread(
            self._database.run,
            f"SELECT id, event FROM {self._table} WHERE run = :run AND id > :last ORDER BY id LIMIT {_ROWS}",
            {"run": self._key, "last": self._last},
        )
        for number, event in rows:
            self._last = number
            self._waiting.append(self._decode(event))
