"""References: what stands in the place of a tool result that is sent already, word for word."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from chatstack import semconv
from chatstack.context.edits.pairing import as_it_came, in_full
from chatstack.context.edits.units import is_users
from chatstack.context.shapes.shaping import NewShapes, ResultPlace, Shapes, round_before, stays
from chatstack.values.messages import Annotation, Message, shaped
from chatstack.values.parts import Part, Text, ToolCall, ToolResult
from chatstack.values.surrogates import without_lone_surrogates

_LEAST_CHARS = 400
"""The length from which on a result is worth a reference."""
_MOST_NAME_CHARS = 64
_MOST_ARGUMENT_CHARS = 80
"""Maximum lengths of what a reference quotes of a call: it is to be recognised, not repeated."""


@dataclass(frozen=True, slots=True)
class References:
    """A rule that puts a reference in the place of an exact duplicate of an earlier result.

    The earlier one is sent as it came, or shaped to no less than this one: not cleared, and not cut. The reference
    names its call; so it is what the newest such call gave, or the model would take another result for it.
    Results of tools in ``never``, and of the recall tool (``recall``, "" if none is declared), stay. ``size_of`` counts
    a message: where the reference is no smaller, the result stays, too.
    """

    never: frozenset[str]
    recall: str
    size_of: Callable[[Message], int]

    name: ClassVar[str] = "refer_to_duplicates"
    reason: ClassVar[str] = "results are sent already, word for word"
    attribute: ClassVar[str] = semconv.COMPACTION_RESULTS_DEDUPLICATED

    def of_new(self, messages: Sequence[Message], positions: Sequence[int], known: Shapes) -> NewShapes:
        found: dict[int, Message] = {}
        results = _Results(messages, positions, known)
        asked = round_before(messages, positions, known.looked_at)
        for at in range(known.looked_at, len(positions)):
            message = messages[positions[at]]
            if message.role == "assistant":
                asked = at
            elif message.role != "system" and not message.mark:
                made = self._shaped(message, at, asked, results)
                if made is not message and self.size_of(made) < self.size_of(message):
                    found[at] = made
        return NewShapes(found, results.texts, results.latest)

    def _shaped(self, message: Message, at: int, asked: int, results: _Results) -> Message:
        may_go = not (message.pinned or is_users(message))
        parts: list[Part] = []
        for place, part in enumerate(message.parts):
            if type(part) is ToolResult:
                reference = results.reference_to_equal(part, message, (at, place, asked))
                if reference and may_go:
                    tool = _tool_of(part, results.call_of(part, asked))
                    if not stays(tool, self.never, self.recall):
                        part = msgspec.structs.replace(part, output=reference)
            parts.append(part)
        return message if tuple(parts) == message.parts else shaped(message, tuple(parts), Annotation(self.name))


class _Results:
    """The results of a history, read in order: which texts stand where, and what each call gave last."""

    def __init__(self, messages: Sequence[Message], positions: Sequence[int], known: Shapes) -> None:
        self.texts: dict[int, ResultPlace] = {}
        self.latest: dict[int, int] = {}
        self._messages = messages
        self._positions = positions
        self._known = known
        self._calls: dict[int, Mapping[str, ToolCall]] = {-1: {}}

    def call_of(self, result: ToolResult, asked: int) -> ToolCall | None:
        """Return the call that a result answers, of those in the message at ``asked``."""
        if asked not in self._calls:
            self._calls[asked] = {call.id: call for call in self._messages[self._positions[asked]].calls}
        return self._calls[asked].get(result.call_id)

    def reference_to_equal(self, result: ToolResult, message: Message, place: ResultPlace) -> str:
        """Return a reference to the first result that equals this one; "" if there is none. Takes note of it."""
        text = _text_in_full(message, place[1], result)
        key = hash((result.is_error, text or result.output))
        said = _said(result, self.call_of(result, place[2]))
        reference = ""
        if text:
            first = self._known.texts.get(key) or self.texts.setdefault(key, place)
            reference = "" if first is place else self._reference(result, text, key, first)
        if said:
            self.latest[hash(said)] = key
        return reference

    def _reference(self, result: ToolResult, text: str, key: int, first: ResultPlace) -> str:
        at, part, asked = first
        message = self._messages[self._positions[at]]
        earlier = message.parts[part]
        if not isinstance(earlier, ToolResult) or earlier.is_error != result.is_error:
            return ""
        if len(earlier.text) < len(result.text) or _text_in_full(message, part, earlier) != text:
            return ""
        said = _said(earlier, self.call_of(earlier, asked))
        latest = self.latest.get(hash(said), self._known.latest.get(hash(said)))
        if latest != key:
            return ""
        return f"[Same result, word for word, as that of the earlier call {said}; it stands above.]"


def _text_in_full(message: Message, place: int, part: ToolResult) -> str:
    """Return the text of a long result as its tool gave it, if it is sent so, or shaped; else "". One that is not all
    text, or has fields of a provider's, has none."""
    if len(part.text) < _LEAST_CHARS or part.extra_json or as_it_came(message, place) != part:
        return ""
    whole = in_full(message, place).output
    if isinstance(whole, str):
        return whole
    texts = [block.text for block in whole if isinstance(block, Text) and not block.extra_json]
    return "\n".join(texts) if len(texts) == len(whole) else ""


def _tool_of(result: ToolResult, call: ToolCall | None) -> str:
    return result.name or (call.name if call is not None else "")


def _said(result: ToolResult, call: ToolCall | None) -> str:
    """Return what a reference quotes of the call of a result; "" without one."""
    if call is None:
        return ""
    more = "..." if len(call.arguments) > _MOST_ARGUMENT_CHARS else ""
    tool = _tool_of(result, call)[:_MOST_NAME_CHARS]
    return without_lone_surrogates(f"{tool}({call.arguments[:_MOST_ARGUMENT_CHARS]}{more})")
