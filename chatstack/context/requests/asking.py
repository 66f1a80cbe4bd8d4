"""Asking: the core of context layers makes no I/O; it yields questions, and gets the answers sent in."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, ParamSpec, Protocol, TypeAlias, TypeVar

from chatstack.client.threads import in_own_thread
from chatstack.forks import renewed_in_child

MANY = 256
"""Number of messages from which on work is done aside. Planning takes 10 to 50 µs for each, a thread 0.1 ms."""

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Question(Protocol[T_co]):
    """Something that only I/O can answer: a model, a store, a provider's API, or another task."""

    def answer(self) -> Awaitable[T_co]:
        """Return the answer, or raise what went wrong."""
        ...


Asking: TypeAlias = Generator[Question[object], Any, T]
"""A core that comes to a ``T``. A test may answer its questions without an event loop."""


def ask(question: Question[T]) -> Asking[T]:
    """Ask one question: ``answer = yield from ask(question)``."""
    answer: T = yield question
    return answer


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """The question that an asynchronous function answers. See ``call``."""

    answer: Callable[[], Awaitable[T]]


def call(function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> Asking[T]:
    """Ask what an asynchronous function answers: ``answer = yield from call(function, argument)``."""
    return ask(Call(partial(function, *args, **kwargs)))


@dataclass(frozen=True, slots=True)
class Aside(Generic[T]):
    """Long work that makes no I/O, done in a thread, so that others have the event loop. See ``aside``."""

    work: Callable[[], T]

    async def answer(self) -> T:
        return await in_own_thread(self._done_alone, "chatstack-planning", or_here=True)

    def _done_alone(self) -> T:
        with _alone:
            return self.work()


class _Alone:
    """A lock that lets one such thread run: each of many would take as long a turn as the event loop gets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        renewed_in_child(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_alone = _Alone()
_may_leave = ContextVar("chatstack-may-leave-the-loop", default=True)


@contextmanager
def on_this_thread() -> Generator[None]:
    """Let all work in this block be done where it is: its caller is synchronous."""
    token = _may_leave.set(False)
    try:
        yield
    finally:
        _may_leave.reset(token)


def is_long(messages: int, many: int | None = None) -> bool:
    """Return True if work that reads that many messages is done in a thread."""
    return messages >= (MANY if many is None else many) and _may_leave.get()


def aside(work: Callable[[], T], messages: int, many: int | None = None) -> Asking[T]:
    """Do work that makes no I/O and reads that many messages; in a thread, if these are ``many`` (``MANY``)."""
    if is_long(messages, many):
        return (yield from ask(Aside(work)))
    return work()


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
        return end.value  # type: ignore[no-any-return] # a cast would be a call, and a variable as answers above
