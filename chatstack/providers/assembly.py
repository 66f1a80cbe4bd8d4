"""Assembly of one message from the fragments in which it came, for providers whose API has no events for blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from chatstack.providers.extras import encoded_extra
from chatstack.values.messages import Message
from chatstack.values.parts import Part, Reasoning, Text, ToolCall
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import CallDelta

_NEWEST = 8
"""Messages that an id is made of: enough for a round, with its results in messages of their own."""


def digest_for_ids(request: ChatRequest) -> str:
    """Return a digest of the newest messages of the request, to make ids of for calls that are answered without any.

    The last call's id is among these, so an id differs from those before it in a conversation, however alike its turns
    are. The same request always gives the same ids.
    """
    newest = msgspec.json.encode((len(request.messages), request.messages[-_NEWEST:]))
    return hashlib.blake2b(newest, digest_size=8).hexdigest()


class _MadeIds:
    """Ids for the calls of one message that came without any."""

    __slots__ = ("_made", "_request")

    def __init__(self, request: ChatRequest | None) -> None:
        self._request = request
        self._made = ""

    def of(self, position: int) -> str:
        """Return the id of the call at that position of its message."""
        if self._request is None:
            return f"call_{position}"
        self._made = self._made or digest_for_ids(self._request)
        return f"call_{self._made}_{position}"


@dataclass(slots=True)
class _TextBlock:
    kind: type[Text | Reasoning]
    pieces: list[str] = field(default_factory=list[str])

    def part(self) -> Part:
        return self.kind("".join(self.pieces))


@dataclass(slots=True)
class _CallBlock:
    position: int
    ids: _MadeIds
    id: str = ""
    is_taken: bool = False
    """True if another call of the message came with the same id."""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    extra_json: str = ""

    def part(self) -> ToolCall:
        text = "".join(self.pieces)
        # Some servers send no ids at all, or one for all calls; then the result could not be paired with its call.
        call_id = self.ids.of(self.position) if self.is_taken or not self.id else self.id
        return ToolCall(call_id, self.name, text if text.strip() else "{}", self.extra_json)


@dataclass(slots=True)
class _WholeBlock:
    whole: Part

    def part(self) -> Part:
        return self.whole


_Block = _TextBlock | _CallBlock | _WholeBlock


class MessageAssembly:
    """Collects the fragments of one assistant message, in the order in which its blocks began.

    A ``block`` key (its index, or a name that you choose) assigns a fragment to a block; without one, text continues
    the last block if that was text, and begins a new one if not. Calls are told apart by their index. Empty text and
    reasoning is left out of the message. ``wire`` names the wire that the fragments come over, ``request`` is what is
    answered: a call that comes without an id gets one that no other call of the conversation has. Without it, the id is
    unique within the message only.
    """

    __slots__ = ("_blocks", "_calls", "_extra", "_ids", "_keyed", "_positions", "_taken", "_wire")

    def __init__(self, wire: str, *, request: ChatRequest | None = None) -> None:
        self._wire = wire
        self._ids = _MadeIds(request)
        self._blocks: list[_Block] = []
        self._keyed: dict[Hashable, int] = {}
        self._calls: dict[int, _CallBlock] = {}
        self._taken: set[str] = set()
        self._positions = 0
        self._extra: dict[str, object] = {}

    def add_text(self, delta: str, *, block: Hashable | None = None) -> None:
        """Add a piece of text."""
        self._open(Text, block).pieces.append(delta)

    def add_reasoning(self, delta: str, *, block: Hashable | None = None) -> None:
        """Add a piece of reasoning."""
        self._open(Reasoning, block).pieces.append(delta)

    def add_call(
        self,
        index: int,
        *,
        id: str = "",
        name: str = "",
        arguments: str = "",
        extra: Mapping[str, object] = MappingProxyType({}),
    ) -> CallDelta:
        """Add a piece of the tool call at that index, and return it as a delta for the display.

        A second id at the same index is another call, as some servers number every parallel call 0; so is a second name
        once there are arguments. A call whose id another one of the message has gets one of its own. The name may come
        whole, in pieces before the arguments, or again with every piece. ``extra`` are the wire's fields for the call;
        the last ones given count.
        """
        call = self._calls.get(index)
        if call is None or (id and call.id and id != call.id) or (name not in ("", call.name) and any(call.pieces)):
            call = _CallBlock(self._positions, self._ids)
            self._positions += 1
            self._calls[index] = call
            self._blocks.append(call)
        if id and not call.id:
            call.id, call.is_taken = id, id in self._taken
            self._taken.add(id)
        if name != call.name:
            call.name += name
        call.pieces.append(arguments)
        call.extra_json = encoded_extra(extra, self._wire) or call.extra_json
        return CallDelta(call.position, id, name, arguments)

    def add_part(self, part: Part, *, block: Hashable | None = None) -> None:
        """Add a whole part. Under the key of a block that has begun, it replaces the content of that block."""
        whole = _WholeBlock(part)
        if block is not None and block in self._keyed:
            self._blocks[self._keyed[block]] = whole
            return
        self._begin(whole, block)

    def add_extra(self, fields: Mapping[str, object]) -> None:
        """Add wire fields for the whole message; the last value of a field counts."""
        self._extra.update(fields)

    def finish(self) -> Message:
        """Return the message, as it stands."""
        parts = tuple(part for part in (block.part() for block in self._blocks) if not _is_empty(part))
        return Message("assistant", parts, extra_json=encoded_extra(self._extra, self._wire))

    def _open(self, kind: type[Text | Reasoning], block: Hashable | None) -> _TextBlock:
        position = len(self._blocks) - 1 if block is None else self._keyed.get(block, -1)
        found = self._blocks[position] if position >= 0 else None
        may_go_on = block is not None or position not in self._keyed.values()
        if may_go_on and isinstance(found, _TextBlock) and found.kind is kind:
            return found
        if block is not None and found is not None:
            raise ValueError(f"block {block!r} has begun as something else than {kind.__name__}")
        new = _TextBlock(kind)
        self._begin(new, block)
        return new

    def _begin(self, new: _Block, block: Hashable | None) -> None:
        if block is not None:
            self._keyed[block] = len(self._blocks)
        self._blocks.append(new)


def _is_empty(part: Part) -> bool:
    if isinstance(part, Text):
        return not part.text and not part.extra_json
    return isinstance(part, Reasoning) and not part.text and not part.item_json
