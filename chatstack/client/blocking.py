"""Synchronous callers of our coroutines, on the event loop of the synchronous clients: for plugins of other frameworks.

Their synchronous code may be called where a loop is running already (a notebook, a web server), and the model that it
calls may run a loop of its own. So nothing of theirs runs on our loop: the caller's thread waits, makes each model call
that the coroutine asks for, and hands back what came of it.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeAlias, TypeVar

from chatstack.client.portal import Hold

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
V = TypeVar("V")
Ask: TypeAlias = Callable[[A], Awaitable[B]]


class _Question(Generic[A, B]):
    """A question to the caller's thread, with the context variables of its asker, and the place for the answer."""

    def __init__(self, about: A) -> None:
        self.about = about
        self.context = contextvars.copy_context()
        self.answer: asyncio.Future[B] = asyncio.get_running_loop().create_future()

    def outcome_of(self, call: Callable[[A], B]) -> Callable[[], None]:
        """Answer it in this thread; return what sets the answer, on the loop."""
        try:
            result = self.context.run(call, self.about)
        except Exception as error:  # noqa: BLE001 - raised again where the question was asked
            return functools.partial(self._set, self.answer.set_exception, error)
        return functools.partial(self._set, self.answer.set_result, result)

    def _set(self, setting: Callable[[V], None], value: V) -> None:
        if not self.answer.done():  # its asker was cancelled
            setting(value)


class _Conversation(Generic[A, B, T]):
    """A coroutine on the loop, and its questions to the thread that waits for it. All but ``result`` runs on the
    loop."""

    def __init__(self, main: Callable[[Ask[A, B]], Coroutine[Any, Any, T]]) -> None:
        self._main = main
        self._questions: asyncio.Queue[_Question[A, B] | None] = asyncio.Queue()
        self._task: asyncio.Task[T] | None = None

    async def next(self, answered: Callable[[], None] | None = None) -> _Question[A, B] | None:
        """Set the answer to the last question; return the next one, or None when the coroutine has ended."""
        if answered is not None:
            answered()
        if self._task is None:
            self._task = asyncio.ensure_future(self._main(self._ask))
            self._task.add_done_callback(lambda _: self._questions.put_nowait(None))
        return await self._questions.get()

    def result(self) -> T:
        """Return or raise what the coroutine that has ended did."""
        assert self._task is not None
        return self._task.result()

    async def end(self) -> None:
        """Cancel the coroutine where it has not ended, and wait for its end."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _ask(self, about: A) -> B:
        question = _Question[A, B](about)
        self._questions.put_nowait(question)
        return await question.answer


class Blocking:
    """One object's way to the loop, which the synchronous clients of the process share and which ends with them.

    It is copied and pickled as a new one.
    """

    __slots__ = ("__weakref__", "_hold")

    def __init__(self) -> None:
        self._hold = Hold()
        weakref.finalize(self, self._hold.drop).atexit = False

    def run(self, main: Callable[[Ask[A, B]], Coroutine[Any, Any, T]], call: Callable[[A], B]) -> T:
        """Run ``main(ask)`` on the loop, and return its result; ``await ask(x)`` is ``call(x)`` in this thread.

        Context variables of this thread are those of the coroutine, and its are those of ``call``. What ``call`` raises
        is raised by ``ask``; what is no ``Exception``, a ``KeyboardInterrupt``, cancels the coroutine, and surfaces.
        Raises ``WiringError`` on the loop's own thread, which would wait for itself.
        """
        portal, conversation = self._hold.portal(), _Conversation(main)
        try:
            question = portal.call(conversation.next)
            while question is not None:
                question = portal.call(functools.partial(conversation.next, question.outcome_of(call)))
        except BaseException:
            portal.call(conversation.end)
            raise
        return conversation.result()

    def iterate(self, source: Callable[[], AsyncGenerator[T, None]]) -> Generator[T]:
        """Yield what an asynchronous generator yields; closing this one closes that, and waits for its end.

        Each step runs in a task of its own, with the context variables of this thread.
        """
        self._hold.portal()  # or the loop would end with each iterator
        stream = source()
        hold = Hold(stream, is_stream=True)
        portal = hold.portal()
        try:
            while True:
                try:
                    item = portal.call(stream.__anext__)
                except StopAsyncIteration:
                    return
                yield item
        finally:
            hold.close()

    def __reduce__(self) -> tuple[type[Blocking], tuple[()]]:
        return type(self), ()
