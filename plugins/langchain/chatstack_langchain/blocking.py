"""Synchronous callers of an asynchronous stack: its coroutines run in one background loop, the model's call does not.

LangChain's ``invoke`` may be called where a loop is running already (a notebook, a web server), and the model that it
calls may run a loop of its own. So nothing of LangChain's runs inside our loop: the caller's thread waits, makes each
model call that the stack asks for, and hands back what came of it.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import aclosing
from queue import SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar

from chatstack.forks import at_fork

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
Ask: TypeAlias = Callable[[A], Awaitable[B]]


@functools.lru_cache(maxsize=1)
def _loop() -> asyncio.AbstractEventLoop:
    """Return the background loop, which all synchronous callers of the process share."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="chatstack-langchain", daemon=True).start()
    return loop


at_fork(after_in_child=_loop.cache_clear)  # its thread is the parent's


class _Asked(Generic[A, B]):
    """A question to the caller's thread, with the context it was asked in, and the place for its answer."""

    def __init__(self, about: A) -> None:
        self.about = about
        self.context = contextvars.copy_context()
        self.answer: asyncio.Future[Callable[[], B]] = asyncio.get_running_loop().create_future()

    def settle(self, answer: Callable[[], B]) -> None:
        self.answer.get_loop().call_soon_threadsafe(self._settle, answer)

    def _settle(self, answer: Callable[[], B]) -> None:
        if not self.answer.done():  # its asker was cancelled
            self.answer.set_result(answer)


def run_blocking(main: Callable[[Ask[A, B]], Coroutine[Any, Any, T]], call: Callable[[A], B]) -> T:
    """Run ``main(ask)`` in the background loop, and return its result; ``await ask(x)`` is ``call(x)`` in this thread.

    Context variables of this thread are those of the coroutine, and its are those of ``call``. What ``call`` raises is
    raised by ``ask``; what is no ``Exception``, a ``KeyboardInterrupt``, cancels the coroutine, and surfaces.
    """
    questions = _questions(main)
    while True:
        try:
            asked = next(questions)
        except StopIteration as done:
            result: T = done.value
            return result
        try:
            asked.settle(_outcome(asked, call))
        except BaseException:
            questions.close()
            raise


def iterate_blocking(source: Callable[[], AsyncGenerator[T, None]]) -> Generator[T]:
    """Yield what an asynchronous generator yields; closing this one cancels that, and waits for its end."""

    async def main(ask: Ask[T, None]) -> None:
        async with aclosing(source()) as stream:
            async for each in stream:
                await ask(each)

    for asked in _questions(main):
        yield asked.about
        asked.settle(lambda: None)


def _questions(main: Callable[[Ask[A, B]], Coroutine[Any, Any, T]]) -> Generator[_Asked[A, B], None, T]:
    """Run a coroutine in the background loop; yield each of its questions, and return its result."""
    queue: SimpleQueue[_Asked[A, B] | asyncio.Task[T]] = SimpleQueue()
    running: list[asyncio.Task[T]] = []

    async def ask(about: A) -> B:
        asked = _Asked[A, B](about)
        queue.put(asked)
        return (await asked.answer)()

    def start() -> None:
        running.append(asyncio.ensure_future(main(ask)))
        running[0].add_done_callback(queue.put)

    _loop().call_soon_threadsafe(start)
    found: _Asked[A, B] | asyncio.Task[T] | None = None
    try:
        while isinstance(found := queue.get(), _Asked):
            yield found
        return found.result()
    finally:
        if found is None or isinstance(found, _Asked):  # given up: everything below ends first
            _loop().call_soon_threadsafe(lambda: running[0].cancel())
            while isinstance(queue.get(), _Asked):
                pass


def _outcome(asked: _Asked[A, B], call: Callable[[A], B]) -> Callable[[], B]:
    try:
        result = asked.context.run(call, asked.about)
    except Exception as error:  # noqa: BLE001 - raised again where the question was asked
        return functools.partial(_raise, error)
    return lambda: result


def _raise(error: Exception) -> Any:
    raise error
