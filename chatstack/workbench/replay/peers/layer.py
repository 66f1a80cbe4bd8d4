"""The stack of a peer's strategy: a layer that gives it the conversation, and sends what the strategy leaves.

A message of ours is converted to the wire messages that it makes, and comes back as the same object if none of them was
changed. Nothing that a peer does is repaired: an invalid request is sent as it is, and an exception of the peer's
refuses the call.

The comparison is fair to peers: each counts with the fixed counter of the replay, so none pays for a bad estimate; a
message is counted once, however often its strategy asks; and what a strategy does not see (instructions, tool schemas,
system messages that an agent keeps apart) is taken off the ceiling beforehand. CPU time includes the conversion of each
message, once; it does not include the framework's agent around the strategy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

import msgspec

from chatstack.client.protocol import ChatClient
from chatstack.client.stream import ChatStream
from chatstack.client.wiring import FROM_CONTAINER
from chatstack.errors import ChatStackError
from chatstack.layers.summarizing import SummaryClient
from chatstack.stack.recipe import ChatStack
from chatstack.telemetry.emission import Telemetry
from chatstack.values.messages import Message, Role
from chatstack.values.parts import Part, Text, ToolCall, ToolResult
from chatstack.values.requests import ChatRequest
from chatstack.workbench.replay.measures.chat_form import wire_of
from chatstack.workbench.replay.measures.measuring import WireCounter


class Piece(NamedTuple):
    """One wire message of a message of ours, under an id that is unique in its conversation.

    ``content`` is as chat completions have it; ``answers`` is the id of the call that it is the result of.
    """

    id: str
    role: Role
    content: str | list[dict[str, object]]
    calls: tuple[ToolCall, ...]
    answers: str
    tokens: int


class Left(NamedTuple):
    """A piece that was not removed; ``output`` is the new text if it was edited."""

    id: str
    output: str | None = None


class Terms(NamedTuple):
    """The setup of a strategy: the token limit for its messages, the counter, and the writer of summaries."""

    room: int
    counter: WireCounter
    write: Callable[[Sequence[Message]], Awaitable[str]]


class PeerConversation(Protocol):
    """One conversation of a peer, with the state that its framework would keep from call to call."""

    def add(self, piece: Piece) -> None:
        """Append a new piece of the conversation."""
        ...

    async def shortened(self) -> Sequence[Left | Message]:
        """Return what the peer would send now: pieces, and messages that it wrote."""
        ...


class PeerShortener:
    """Sends what a peer's strategy leaves of each request. It is for replays only.

    Unlike our layers it has state: the latest conversation, and what the peer's framework would keep of it. One is
    enough, because a replay runs one conversation at a time, each call after the one before it. Elsewhere conversations
    alternate, and each would begin anew on every call.

    ``opens`` begins a conversation. An edit is reported whenever the request is not the previous one with the new
    messages appended. An exception of the peer's is the cause of a ``ChatStackError`` with its name; the conversation
    begins anew then.
    """

    def __init__(
        self,
        inner: ChatClient,
        *,
        peer: str,
        ceiling: int,
        opens: Callable[[Terms], PeerConversation],
        summary_client: SummaryClient = FROM_CONTAINER,
        telemetry: Telemetry = FROM_CONTAINER,
    ) -> None:
        self.inner = inner
        self._peer = peer
        self._ceiling = ceiling
        self._opens = opens
        self._summary_client = summary_client
        self._telemetry = telemetry
        self._counter = WireCounter.best()
        self._talk: _Talk | None = None

    async def send(self, request: ChatRequest, /) -> ChatStream:
        """Hand over the new messages, let the peer shorten all, pass the result on."""
        talk, self._talk = self._talk_of(request), None
        try:
            new = talk.add(request.messages)
            messages = talk.restored(await talk.theirs.shortened())
        except ChatStackError:
            raise
        except Exception as error:
            raise ChatStackError(f"{self._peer}: {type(error).__name__} as it shortened the conversation") from error
        self._talk = talk
        if messages != (*talk.sent, *new):
            self._telemetry.edit(
                self._peer,
                f"under a ceiling of {self._ceiling:,} tokens",
                {},
                tokens_before=talk.fixed_tokens + talk.size_of(request.messages),
                tokens_after=talk.fixed_tokens + talk.size_of(messages),
            )
        talk.sent = messages
        return await self.inner.send(request if messages == request.messages else request.but(messages=messages))

    def _talk_of(self, request: ChatRequest) -> _Talk:
        """Return the conversation that a request belongs to: the latest, or a new one."""
        if self._talk is not None and self._talk.goes_on_in(request):
            return self._talk
        fixed = self._counter.count_options(request.options)
        theirs = self._opens(Terms(max(1, self._ceiling - fixed), self._counter, self._write))
        return _Talk(request, theirs, self._counter, fixed)

    async def _write(self, messages: Sequence[Message]) -> str:
        stream = await self._summary_client.send(ChatRequest(tuple(messages)))
        return (await stream.response()).text

    def __repr__(self) -> str:
        return f"PeerShortener({self._peer!r}, {self._ceiling})"


@dataclass(frozen=True, slots=True)
class PeerStack:
    """The stack of a peer's strategy, its limit the ceiling.

    ``opens`` begins a conversation; a class of a module, so that it can be pickled.
    """

    peer: str
    opens: Callable[[Terms], PeerConversation]

    def __call__(self, ceiling: int, model: ChatClient) -> ChatStack:
        return ChatStack(model).use(PeerShortener, peer=self.peer, ceiling=ceiling, opens=self.opens)


class _Talk:
    """State of one conversation: its messages so far, the pieces that they were converted to, and the last request."""

    def __init__(self, request: ChatRequest, theirs: PeerConversation, counter: WireCounter, fixed_tokens: int) -> None:
        self.theirs = theirs
        self.fixed_tokens = fixed_tokens
        self.sent: tuple[Message, ...] = ()
        self._id = request.conversation_id
        self._options = request.options
        self._counter = counter
        self._messages: tuple[Message, ...] = ()
        self._places: dict[str, tuple[int, int]] = {}
        self._lengths: list[int] = []
        self._sizes: dict[Message, int] = {}

    def goes_on_in(self, request: ChatRequest) -> bool:
        """Return True if a request is of this conversation, and begins with all its messages so far."""
        begins = request.messages[: len(self._messages)] == self._messages
        return begins and request.conversation_id == self._id and request.options == self._options

    def add(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Hand over the new messages, and return them."""
        begin = len(self._messages)
        self._messages = messages
        for at, message in enumerate(messages[begin:], begin):
            pieces = list(_pieces_of(at, message, self._counter))
            self._lengths.append(len(pieces))
            self._sizes[message] = sum(piece.tokens for piece in pieces)
            for index, piece in enumerate(pieces):
                self._places[piece.id] = (at, index)
                self.theirs.add(piece)
        return messages[begin:]

    def restored(self, left: Sequence[Left | Message]) -> tuple[Message, ...]:
        """Return the rest as our messages: unchanged ones are the same objects, edited ones know their originals."""
        found: list[Message] = []
        run: list[Left] = []  # adjacent pieces of one message
        for each in left:
            if run and not (isinstance(each, Left) and self._follows(each, run[-1])):
                found.append(self._message_of(run))
                run = []
            if isinstance(each, Left):
                run.append(each)
            else:
                found.append(each)
        if run:
            found.append(self._message_of(run))
        return tuple(found)

    def size_of(self, messages: Sequence[Message]) -> int:
        """Return the tokens of the messages; each distinct message is counted once."""
        for message in messages:
            if message not in self._sizes:
                self._sizes[message] = self._counter.count_message(message)
        return sum(self._sizes[message] for message in messages)

    def _follows(self, piece: Left, before: Left) -> bool:
        (at, index), (at_before, index_before) = self._places[piece.id], self._places[before.id]
        return at == at_before and index > index_before

    def _message_of(self, run: Sequence[Left]) -> Message:
        at = self._places[run[0].id][0]
        message = self._messages[at]
        if len(run) == self._lengths[at] and all(piece.output is None for piece in run):
            return message
        results = message.results
        parts: list[Part] = []
        for piece in run:
            index = self._places[piece.id][1]
            if index >= len(results):
                others = [part for part in message.parts if not isinstance(part, ToolResult)]
                parts.extend(others if piece.output is None else _with_text(others, piece.output))
            elif piece.output is None:
                parts.append(results[index])
            else:
                parts.append(msgspec.structs.replace(results[index], output=piece.output))
        return message.edited(parts=tuple(parts))


def _with_text(parts: Sequence[Part], text: str) -> Iterator[Part]:
    """Yield the parts with one text in the place of all texts."""
    yield said(text)
    yield from (part for part in parts if not isinstance(part, Text))


def _pieces_of(at: int, message: Message, counter: WireCounter) -> Iterator[Piece]:
    """Yield the pieces of a message: results first, each as a message of its own, then all else together."""
    results = message.results
    for index, wire in enumerate(wire_of(message)):
        is_result = index < len(results)
        role: Role = "tool" if is_result else "user" if message.role == "tool" else message.role
        answers = results[index].call_id if is_result else ""
        content = cast("str | list[dict[str, object]] | None", wire.get("content"))
        yield Piece(f"{at}.{index}", role, content or "", message.calls, answers, counter.count_wire(wire))


def written(role: str, text: str) -> Message:
    """Return a message that a peer inserted: a summary."""
    return Message("assistant" if role == "assistant" else "user", (said(text),), mark="summary")


def said(text: str) -> Text:
    """Return text that may be sent: a peer's transcript can contain a lone surrogate of a model's text."""
    return Text(text.encode("utf-8", "replace").decode())
