"""Writing a summary: calls to a model, in pieces if the history is too long for it, and checks of its answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple

from chatstack.client.checks import send_to
from chatstack.client.protocol import ChatClient
from chatstack.client.time_limits import expire_in, told_as
from chatstack.context.edits.summaries import SummaryError, instructions_for, summary_in, summary_request
from chatstack.context.edits.transcripts import Entry
from chatstack.context.summaries.aligned import Aligned
from chatstack.errors import ContextOverflowError, RequestRefusedError
from chatstack.tokens.counter import TokenCounter, whole_count
from chatstack.tokens.windows import Windows
from chatstack.values.messages import Message
from chatstack.values.requests import ChatOptions, ChatRequest
from chatstack.values.responses import ChatResponse, Usage
from chatstack.values.surrogates import without_lone_surrogates

_SURE = 0.9
"""Share of the room in a window that is used, as sizes are estimates."""
_LEAST_ROOM = 100
"""Minimum room for a piece, in tokens; a window that leaves less is too small to summarize with."""
_REFUSALS = 4
"""Maximum number of retries of a request that was refused as too long, shorter each time."""
_CHARS_PER_TOKEN = 4


class Written(NamedTuple):
    """A summary, its usage, and the model that wrote it."""

    text: str
    usage: Usage
    model: str


class NotWrittenError(Exception):
    """A failure to write a summary. ``usage`` was spent; ``is_outage``: the client failed, not its answer."""

    def __init__(self, reason: str, kind: str, usage: Usage, *, is_outage: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.kind = kind
        self.usage = usage
        self.is_outage = is_outage


@dataclass(frozen=True, slots=True)
class SummaryWriter:
    """Has a client write summaries of at most ``max_tokens``; each of its calls may take ``timeout_seconds``."""

    client: ChatClient
    prompt: str
    max_tokens: int
    timeout_seconds: float
    windows: Windows
    counter: TokenCounter


@dataclass(slots=True, repr=False, eq=False)
class Writing:
    """A new summary of the previous summary and these entries, as its writer is to write it. ``aligned`` asks for the
    same in another way, and is tried first. ``usage`` is what was spent on it so far, whatever becomes of it.

    Entries that do not fit into the client's window are folded in piece by piece: the summary so far goes along with
    the next piece. Nothing is cut off.
    """

    writer: SummaryWriter
    previous: str
    entries: Iterable[Entry]
    _: KW_ONLY
    model: str | None
    conversation_id: str | None
    aligned: Aligned | None = None
    usage: Usage = field(init=False, default=Usage())

    async def answer(self) -> Written:
        """Write it. Raises ``NotWrittenError``."""
        writer, model = self.writer, self.model
        written = await self._written_aligned()
        if written is not None:
            return written
        waiting = deque(Entry(who, without_lone_surrogates(text)) for who, text in self.entries)
        window, text, wrote, refusals = await writer.windows.of(writer.client, model), self.previous, "", 0
        limit: int | None = None
        told: int | None = None
        while True:
            piece, rest = self._piece(waiting, self._room(window, limit, text))
            request = summary_request(
                writer.prompt,
                piece,
                text,
                max_tokens=writer.max_tokens,
                model=model,
                conversation_id=self.conversation_id,
            )
            try:
                text, wrote = await self._written(request)
            except ContextOverflowError as refusal:
                refusals, told = refusals + 1, refusal.limit
                smaller = self._smaller(piece, refusal)
                if refusals > _REFUSALS or (limit is not None and smaller >= limit):
                    raise NotWrittenError("the summary client takes no request", "overflow", self.usage) from refusal
                waiting, limit = piece + rest, smaller
                if told is not None and told >= _LEAST_ROOM + 3 * writer.max_tokens:  # less is no plausible window
                    window = told if window is None else min(window, told)
                continue
            if told is not None:  # the limit in a refusal has proved true
                writer.windows.learn(writer.client, model, told)
                told = None
            waiting = rest
            if not waiting:
                return Written(text, self.usage, wrote)

    async def _written_aligned(self) -> Written | None:
        """Write it from the request that is cached; None if that does not fit, is refused, or leads to a tool call, so
        that the transcript is sent."""
        aligned, self.aligned = self.aligned, None
        if aligned is None:
            return None
        window = await self.writer.windows.of(self.writer.client, self.model)
        if window is not None and aligned.tokens > window:
            return None
        try:
            text, wrote = await self._written(aligned.request)
        except ContextOverflowError:
            return None
        except NotWrittenError as failure:
            if failure.kind == "tool_call" or isinstance(failure.__cause__, RequestRefusedError):
                return None
            raise
        return Written(text, self.usage, wrote)

    async def _written(self, request: ChatRequest) -> tuple[str, str]:
        """Make one call, with a stream of its own; return the summary's text, and the model that wrote it."""
        limit = asyncio.timeout(None)
        try:
            async with limit:
                expire_in(limit, self.writer.timeout_seconds)
                with told_as("timeout", limit):
                    answer = await self._answer(request)
            return summary_in(answer), answer.model
        except ContextOverflowError:
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise NotWrittenError("the client cancelled itself", "CancelledError", self.usage, is_outage=True) from None
        except SummaryError as error:
            raise NotWrittenError(error.reason, error.kind, self.usage) from error
        except Exception as error:
            if limit.expired() and isinstance(error, TimeoutError):
                told = f"no answer in {self.writer.timeout_seconds:g} seconds"
                raise NotWrittenError(told, "timeout", self.usage, is_outage=True) from error
            kind = type(error).__name__
            is_outage = not isinstance(error, RequestRefusedError)
            raise NotWrittenError(f"the call failed with {kind}", kind, self.usage, is_outage=is_outage) from error

    async def _answer(self, request: ChatRequest) -> ChatResponse:
        stream = await send_to(self.writer.client, request)
        try:
            return await stream.response()
        finally:
            self.usage += stream.so_far.usage  # paid for, even where the answer broke off
            # The answer is complete, or has failed: an error while closing the stream changes neither.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(None) as limit:
                    expire_in(limit, min(self.writer.timeout_seconds, _CLOSING_SECONDS))
                    await stream.aclose()

    def _room(self, window: int | None, limit: int | None, previous: str) -> int | None:
        """Return the room for entries in one request, in tokens, beside instructions, the summary so far and the
        answer; None if there is no known limit."""
        if window is None:
            return limit
        instructions = instructions_for(self.writer.prompt, "0" * 16, self.writer.max_tokens)
        fixed = self.writer.counter.count_options(ChatOptions(instructions=instructions))
        taken = whole_count(self.writer.counter, "count_options", fixed) + self.writer.max_tokens
        taken += max(self.writer.max_tokens, self._size(Entry("summary so far", previous)))
        room = int((window - taken) * _SURE)
        if room < _LEAST_ROOM:
            told = f"its window of {window:,} tokens is too small for summaries of {self.writer.max_tokens:,}"
            raise NotWrittenError(told, "window", self.usage)
        return room if limit is None else min(room, limit)

    def _smaller(self, piece: deque[Entry], refusal: ContextOverflowError) -> int:
        """Return the room for the next try: half of what was refused, or less if the refusal gives a lower limit."""
        tried = sum(map(self._size, piece))
        told = refusal.limit - 2 * self.writer.max_tokens if refusal.limit is not None else tried
        return max(_LEAST_ROOM, min(tried // 2, int(told * _SURE)))

    def _piece(self, waiting: deque[Entry], room: int | None) -> tuple[deque[Entry], deque[Entry]]:
        """Split off as many first entries as fit; return both parts. A first entry that is too long is divided."""
        if room is None:
            return waiting, deque()
        piece, rest, size = deque[Entry](), deque(waiting), 0
        while rest and (size := self._size(rest[0])) <= room:
            piece.append(rest.popleft())
            room -= size
        if rest and not piece:
            first = rest.popleft()
            if len(first.text) > 1:
                first, second = self._divided(first, room, size)
                rest.appendleft(second)
            piece.append(first)
        return piece, rest

    def _divided(self, entry: Entry, room: int, size: int) -> tuple[Entry, Entry]:
        """Divide an entry in two, the first of which fits; at the end of a line, if there is one near."""
        at = max(1, len(entry.text) * room // max(1, size))
        while at > 1 and self._size(Entry(entry.who, entry.text[:at])) > room:
            at = at * 3 // 4
        line = entry.text.rfind("\n", at // 2, at)
        at = min(line + 1 if line > 0 else at, len(entry.text) - 1)
        goes_on = entry.who if entry.who.endswith(_GOES_ON) else entry.who + _GOES_ON
        return Entry(entry.who, entry.text[:at]), Entry(goes_on, entry.text[at:])

    def _size(self, entry: Entry) -> int:
        overhead = len(entry.who) // _CHARS_PER_TOKEN + _DELIMITER_TOKENS
        size = self.writer.counter.count_message(Message.user(entry.text))
        return whole_count(self.writer.counter, "count_message", size) + overhead


_GOES_ON = ", continued"
_DELIMITER_TOKENS = 18
_CLOSING_SECONDS = 5.0
