"""The answer of a turn as the SDK gets it: a response of the HTTP library."""

from __future__ import annotations

import json
import weakref
from collections import deque
from typing import cast

from chatstack.client.checks import send_to
from chatstack.client.protocol import ChatClient
from chatstack.client.stream import ChatStream
from chatstack.errors import ChatStackError, WiringError
from chatstack.providers.extras import WireObject
from chatstack.providers.wrapping.bodies import event_bytes
from chatstack.providers.wrapping.http import HttpResponse, raising, response_like, took
from chatstack.providers.wrapping.turns import Piece, Reply, Turn
from chatstack.values.parts import ToolCall
from chatstack.values.responses import ChatResponse, ChatUpdate


class Answering:
    """Answers the calls of a wrapped client by its stack. ``error`` is the SDK's base error, ``tools`` the names of the
    tools that the stack runs, None if it may run any."""

    def __init__(self, client: ChatClient, error: type[Exception], tools: frozenset[str] | None) -> None:
        self.client = client
        self.error = error
        self.tools = tools

    def may_go_on(self, update: ChatUpdate) -> bool:
        """Return True if another round may follow, because of this update: it is shown only once that is known."""
        if self.tools is None:
            return update.call_delta is not None or type(update.part) is ToolCall or update.message_done is not None
        if update.call_delta is not None:
            return update.call_delta.name in self.tools
        return type(update.part) is ToolCall and update.part.name in self.tools

    async def response(self, turn: Turn, *, unread: bool) -> HttpResponse:
        """Return the answer to a call of the SDK's. Raises what the SDK would, or the stack's error."""
        try:
            with turn.entered():
                stream = await send_to(self.client, turn.asked)
                if not turn.asked.stream:
                    try:
                        answer = await stream.response()
                    finally:
                        await stream.aclose()
                    return self._whole(turn, answer, unread=unread)
                body = LiveBody(self, turn, stream)
                try:
                    await body.begin()
                    return body.response()
                except BaseException:
                    await body.aclose()
                    raise
        except Exception as error:  # noqa: BLE001 - it is raised again, as the SDK passes it on
            try:
                reply = self.raised(turn, error)
            except Exception:
                await turn.close_others(None)
                raise
            await turn.close_others(reply)
            return self._refused(turn, reply, unread=unread)

    def raised(self, turn: Turn, error: Exception) -> Reply:
        """Return the reply that the SDK is to judge by itself; raise the error if there is none."""
        failed = turn.failed(error)
        if failed is not None and failed.reply is not None:
            return failed.reply
        if failed is not None and failed.cause is not None and not turn.has_answer:
            raise failed.cause
        raise as_error_of(self.error, error)

    def _refused(self, turn: Turn, reply: Reply, *, unread: bool) -> HttpResponse:
        if reply.events is not None:
            return LiveBody.of_reply(self, turn, reply).response()
        if reply.cause is not None and unread:
            return response_like(reply.response, turn.request, raising(reply.cause))
        if reply.cause is not None:
            raise reply.cause
        return self._given(turn, reply.response, unread=unread)

    def _whole(self, turn: Turn, answer: ChatResponse, *, unread: bool) -> HttpResponse:
        piece = answer.raw
        if not isinstance(piece, Piece):
            raise _of_another()
        before = "".join(each.text for each in answer.messages[:-1] if each.role == "assistant")
        response = piece.reply.response
        if before:
            body = turn.wire.joining().with_text(cast("WireObject", json.loads(response.content)), before)
            return response_like(response, turn.request, json.dumps(body, ensure_ascii=False).encode())
        return self._given(turn, response, unread=unread)

    def _given(self, turn: Turn, response: HttpResponse, *, unread: bool) -> HttpResponse:
        """Return a response that was read, as it is, or as one that was not read yet."""
        if turn.has_answer and response.status_code >= 400:  # a second turn would run the tools again
            return response_like(response, turn.request, response.content, (("x-should-retry", "false"),))
        if unread:
            return response_like(response, turn.request, response.content)
        response.request = turn.request
        return response


class LiveBody:
    """The body of a streamed answer: the bytes of its rounds, joined. It reads the stack's stream as it is read."""

    def __init__(self, answering: Answering, turn: Turn, stream: ChatStream | None) -> None:
        self._answering = answering
        self._turn = turn
        self._stream = stream
        self._joining = turn.wire.joining()
        self._reply: Reply | None = None
        self._rest: Reply | None = None
        self._response: weakref.ref[HttpResponse] | None = None
        self._out: deque[bytes] = deque()
        self._held: list[tuple[bytes, WireObject | None]] = []
        self._is_holding = self._is_in_round = self._is_over = self._has_shown = False

    @classmethod
    def of_reply(cls, answering: Answering, turn: Turn, reply: Reply) -> LiveBody:
        """Return the rest of a reply as it comes, that the SDK is to judge by itself."""
        body = cls(answering, turn, None)
        body._reply = body._rest = reply
        body._out.extend(reply.pending)
        return body

    def response(self) -> HttpResponse:
        """Return the response that has this body, and status and headers of the first reply."""
        if self._reply is None:
            raise _of_another()
        response = response_like(self._reply.response, self._turn.request, self)
        self._response = weakref.ref(response)  # which holds this: one that is dropped is collected at once
        return response

    async def begin(self) -> None:
        """Read up to the first bytes."""
        while not self._out and not self._is_over:
            await self._step()

    def __aiter__(self) -> LiveBody:
        return self

    async def __anext__(self) -> bytes:
        with self._turn.entered():
            await self.begin()
        if not self._out:
            raise StopAsyncIteration
        return self._out.popleft()

    async def aclose(self) -> None:
        """Close the stack's stream, and the response below."""
        self._is_over = True
        try:
            if self._stream is not None:
                with self._turn.entered():
                    await self._stream.aclose()
        finally:
            if self._reply is not None:
                await self._reply.aclose()
                response = None if self._response is None else self._response()
                if response is not None:
                    took(response, self._reply.response)
            await self._turn.close_others(self._reply)

    async def _step(self) -> None:
        if self._stream is None or self._rest is not None:
            self._is_over = not await self._pass_on(self._rest)
            return
        try:
            while self._take(await anext(self._stream)):
                pass
        except StopAsyncIteration:  # what comes behind the end is the SDK's to read
            self._show()
            self._rest = self._reply
        except ChatStackError as error:
            reply = self._answering.raised(self._turn, error)
            if self._has_shown and reply is not self._reply:
                raise as_error_of(self._answering.error, error) from None
            if reply.events is None:  # refused before anything was shown
                raise
            self._show()
            self._out.extend(reply.pending)
            self._rest = self._reply = reply

    async def _pass_on(self, reply: Reply | None) -> bool:
        """Pass on what comes from the server; False at its end."""
        if reply is None:
            return False
        if reply.cause is not None:
            raise reply.cause
        found = None if reply.events is None else await anext(reply.events, None)
        if found is not None:
            self._out.append(found)
        return found is not None

    def _take(self, update: ChatUpdate) -> bool:
        """Add the bytes of an update. True for the last one of a round: what follows says whether it was the last."""
        piece = update.raw
        if not isinstance(piece, Piece):
            return update.message_done is not None
        if piece.reply is not self._reply:
            if self._has_shown:
                self._joining.next_round()
            self._held, self._reply = [], piece.reply
            self._is_holding = self._is_in_round = False
        is_last = update.message_done is not None
        self._held.extend(piece.events)
        if not self._is_holding and self._answering.may_go_on(update):
            self._is_holding = True
            if self._is_in_round and not is_last:  # what ends the text before the call belongs to it
                call = self._held.pop()
                self._show()
                self._held = [call]
        if not self._is_holding:
            self._is_in_round = True
            self._show()
        return is_last

    def _show(self) -> None:
        for raw, event in self._held:
            self._has_shown = True
            if event is None or not self._joining.is_continued:
                self._out.append(raw)
            else:
                event = self._joining.continued(event)
                if event is None:
                    continue
                self._out.append(event_bytes(event, named=self._turn.wire.events_have_names))
            if event is not None:
                self._joining.shown(event)
        self._held = []


def as_error_of(base: type[Exception], error: Exception) -> Exception:
    """Return an error of ours as one that is the SDK's, too: the SDK passes it on, and whoever catches either gets it.
    Another error becomes the cause of one of the SDK's."""
    if isinstance(error, base):
        return error
    error.__cause__ = None  # by which anthropic's SDK would judge whether to retry; it stays the context
    try:
        error.__class__ = _also(type(error), base)
    except TypeError:
        wrapped = base(f"{type(error).__name__} in a layer of the stack")
        wrapped.__cause__ = error
        return wrapped
    return error


_made: dict[tuple[type[Exception], type[Exception]], type[Exception]] = {}


def _also(kind: type[Exception], base: type[Exception]) -> type[Exception]:
    made = _made.get((kind, base))
    if made is None:
        made = _made[kind, base] = type(kind.__name__, (kind, base), {"__module__": kind.__module__})
    return made


def _of_another() -> WiringError:
    return WiringError("wrap: the answer did not come over this SDK's client; a Fallback cannot answer for it")
