"""Asking: the core of context layers makes no I/O; it yields questions, and gets the answers sent in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from chatstack.client.protocol import ChatClient
from chatstack.tokens.published import tables_loaded
from chatstack.tokens.windows import Windows

_AT_A_TIME_SECONDS = 0.005

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Question(Protocol[T_co]):
    """Something that only I/O can answer: a model, a store, a provider's API, or another task."""

    async def answer(self) -> T_co:
        """Return the answer, or raise what went wrong."""
        ...


Asking: TypeAlias = Generator[Question[object], Any, T]
"""A core that comes to a ``T``. A test may answer its questions without an event loop."""


def ask(question: Question[T]) -> Asking[T]:
    """Ask one question: ``answer = yield from ask(question)``."""
    answer: T = yield question
    return answer


@dataclass(frozen=True, slots=True)
class AskWindow:
    """The question how large the window of a model is; "" is the client's own model."""

    windows: Windows
    client: ChatClient
    model: str | None

    async def answer(self) -> int | None:
        return await self.windows.of(self.client, self.model)


class Pause:
    """The wish to let others have the event loop, in the middle of long work. See ``Pauses``."""

    async def answer(self) -> None:
        await asyncio.sleep(0)


_pauses = ContextVar("chatstack-pauses", default=True)


@contextmanager
def without_pauses() -> Generator[None]:
    """Let work in this block go on to its end: its caller is synchronous."""
    token = _pauses.set(False)
    try:
        yield
    finally:
        _pauses.reset(token)


class Pauses:
    """The pauses of one piece of work: ``yield from pauses.if_due()`` between its steps."""

    __slots__ = ("_resumed",)

    def __init__(self) -> None:
        self._resumed = time.perf_counter()

    def if_due(self) -> Asking[None]:
        """Pause if the event loop has been held for long."""
        if time.perf_counter() - self._resumed >= _AT_A_TIME_SECONDS and _pauses.get():
            yield Pause()
            self._resumed = time.perf_counter()


@dataclass(frozen=True, slots=True)
class LoadTables:
    """The wish that the published windows be loaded, off the event loop."""

    async def answer(self) -> None:
        await tables_loaded()


async def answered(core: Asking[T]) -> T:
    """Run a core to its end, with real answers; errors are raised where the question was asked."""
    answers: list[object] = []  # popped: a refusal keeps this frame, and must not keep a later answer alive with it
    try:
        question = next(core)
        while True:
            try:
                answers.append(await question.answer())
            except BaseException as error:  # noqa: BLE001 - the core decides; what it does not catch comes out of it
                question = core.throw(error)
            else:
                question = core.send(answers.pop())
    except StopIteration as end:
        return cast("T", end.value)
