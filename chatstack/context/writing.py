"""Writing a summary: a model is asked, in pieces where the history is too long for it, and its answer is checked."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from chatstack.client.protocol import ChatClient
from chatstack.client.stream import ChatStream
from chatstack.context.summaries import SummaryError, summary_in, summary_request
from chatstack.context.transcripts import Entry
from chatstack.errors import ContextOverflowError, RequestRefusedError
from chatstack.tokens.counter import TokenCounter
from chatstack.tokens.windows import Windows
from chatstack.values.messages import Message
from chatstack.values.requests import ChatOptions, ChatRequest
from chatstack.values.responses import ChatResponse, Usage

_SURE = 0.9
"""Of the room that a window leaves: sizes are estimates."""
_LEAST_ROOM = 200
"""Tokens of a piece; a window that does not leave as much is too small to summarize with."""
_REFUSALS = 4
"""So often a request that was refused as too long is tried again, shorter each time."""
_CHARS_PER_TOKEN = 4


class Written(NamedTuple):
    """A summary, what it cost, and the model that wrote it."""

    text: str
    usage: Usage
    model: str


class NotWrittenError(Exception):
    """No summary came of it. ``usage`` was spent all the same; ``is_outage``: the client failed, not its answer."""

    def __init__(self, reason: str, kind: str, usage: Usage, *, is_outage: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.kind = kind
        self.usage = usage
        self.is_outage = is_outage


@dataclass(frozen=True, slots=True)
class SummaryWriter:
    """Has a client write summaries of at most ``max_tokens``; each of its calls may take ``timeout_seconds``.

    What does not fit into the client's window is folded in piece by piece: the summary so far goes along with the next
    piece. Nothing is cut off.
    """

    client: ChatClient
    prompt: str
    max_tokens: int
    timeout_seconds: float
    windows: Windows
    counter: TokenCounter

    async def write(
        self, previous: str, entries: Iterable[Entry], *, model: str | None, conversation_id: str | None
    ) -> Written:
        """The summary of these entries and of the previous summary. Raises ``NotWrittenError``."""
        waiting = deque(entries)
        text, usage, refusals = previous, Usage(), 0
        wrote = ""
        room = self._room_in(await self.windows.of(self.client, model), usage)
        while True:
            piece, rest = self._piece(waiting, room)
            request = summary_request(
                self.prompt, piece, text, max_tokens=self.max_tokens, model=model, conversation_id=conversation_id
            )
            try:
                answer = await self._answer(request, usage)
            except ContextOverflowError as refusal:
                refusals += 1
                if refusals > _REFUSALS:
                    raise NotWrittenError("the summary client takes no request", "overflow", usage) from refusal
                waiting = piece + rest
                room = self._smaller(piece, refusal)
                continue
            usage += answer.usage
            try:
                text = summary_in(answer)
            except SummaryError as error:
                raise NotWrittenError(error.reason, error.kind, usage) from error
            wrote, waiting = answer.model, rest
            if not waiting:
                return Written(text, usage, wrote)

    async def _answer(self, request: ChatRequest, usage: Usage) -> ChatResponse:
        """One answer, outside of everybody's stream."""
        stream: ChatStream | None = None
        limit = asyncio.timeout(self.timeout_seconds)
        try:
            async with limit:
                stream = await self.client.send(request)
                return await stream.response()
        except ContextOverflowError:
            raise
        except Exception as error:
            if limit.expired() and isinstance(error, TimeoutError):
                told = f"no answer in {self.timeout_seconds:g} seconds"
                raise NotWrittenError(told, "timeout", usage, is_outage=True) from error
            kind = type(error).__name__
            is_outage = not isinstance(error, RequestRefusedError)
            raise NotWrittenError(f"the call failed with {kind}", kind, usage, is_outage=is_outage) from error
        finally:
            if stream is not None:
                await stream.aclose()

    def _room_in(self, window: int | None, usage: Usage) -> int | None:
        """How many tokens of entries fit into one request, beside instructions, the summary so far and the answer."""
        if window is None:
            return None
        instructions = self.counter.count_options(ChatOptions(instructions=self.prompt)) * 2
        room = int((window - instructions - 2 * self.max_tokens) * _SURE)
        if room < _LEAST_ROOM:
            raise NotWrittenError(
                f"its window of {window:,} tokens is too small for summaries of {self.max_tokens:,}", "window", usage
            )
        return room

    def _smaller(self, piece: deque[Entry], refusal: ContextOverflowError) -> int:
        """The room for the next try: half of what was refused, or what the refusal tells."""
        tried = sum(map(self._size, piece))
        told = refusal.limit - 2 * self.max_tokens if refusal.limit is not None else tried
        return max(_LEAST_ROOM // 2, min(tried // 2, int(told * _SURE)))

    def _piece(self, waiting: deque[Entry], room: int | None) -> tuple[deque[Entry], deque[Entry]]:
        """The first of the entries, as many as fit, and the others. An entry that is too long by itself is divided."""
        if room is None:
            return waiting, deque()
        piece, rest = deque[Entry](), deque(waiting)
        while rest:
            size = self._size(rest[0])
            if size <= room:
                piece.append(rest.popleft())
                room -= size
                continue
            if not piece:
                first, second = self._divided(rest.popleft(), room, size)
                piece.append(first)
                rest.appendleft(second)
            break
        return piece, rest

    def _divided(self, entry: Entry, room: int, size: int) -> tuple[Entry, Entry]:
        share = len(entry.text) * room // max(1, size)
        at = max(1, min(share * 9 // 10, len(entry.text) - 1))
        line = entry.text.rfind("\n", at // 2, at)
        at = line + 1 if line > 0 else at
        who = entry.who.removesuffix(_GOES_ON)
        return Entry(who, entry.text[:at]), Entry(who + _GOES_ON, entry.text[at:])

    def _size(self, entry: Entry) -> int:
        overhead = len(entry.who) // _CHARS_PER_TOKEN + _DELIMITER_TOKENS
        return max(0, self.counter.count_message(Message.user(entry.text))) + overhead


_GOES_ON = ", continued"
_DELIMITER_TOKENS = 12
