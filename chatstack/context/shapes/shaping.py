"""Shaping: which tool results are bounded when they are new, and what was shaped of a history."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

import msgspec

from chatstack import semconv
from chatstack.context.edits.excerpts import gives_back
from chatstack.context.edits.handles import handle_of, recall_call
from chatstack.context.edits.pairing import in_full
from chatstack.context.edits.units import is_users
from chatstack.context.shapes.shapes import is_too_long, shape
from chatstack.values.messages import Annotation, Message, shaped
from chatstack.values.parts import File, Image, Part, ProviderItem, Text, ToolResult

_Block: TypeAlias = Text | Image | File | ProviderItem

_ERRORS = 2
"""The bound of an error, as a multiple of that of other results: what went wrong is what the model needs most."""


ResultPlace: TypeAlias = tuple[int, int, int]
"""The position of a result in its history, its part's in the message, and the position of the message whose call it
answers; -1 if there is none."""


class Shapes(NamedTuple):
    """The messages that a rule put in the place of some of the first ``looked_at`` messages of a history, by position,
    and the tokens that this saves. ``texts`` are results that later ones may be duplicates of, by a hash of their text;
    ``latest`` is that hash of what each call gave last, by a hash of the call. ``weight`` is the estimated size of it
    all in bytes."""

    looked_at: int
    messages: Mapping[int, Message]
    saved: int = 0
    texts: Mapping[int, ResultPlace] = MappingProxyType({})
    latest: Mapping[int, int] = MappingProxyType({})
    weight: int = 0

    def until(self, length: int) -> Shapes:
        """Return the same for the first messages, which have all results that were looked at."""
        return self._replace(looked_at=min(self.looked_at, length))


NOTHING_SHAPED = Shapes(0, {})


class NewShapes(NamedTuple):
    """The same of new messages."""

    messages: Mapping[int, Message]
    texts: Mapping[int, ResultPlace] = MappingProxyType({})
    latest: Mapping[int, int] = MappingProxyType({})


class ShapeRule(Protocol):
    """A rule that replaces messages with tool results, each once and for all, in its place: a pure function of the
    messages up to there."""

    name: ClassVar[str]
    reason: ClassVar[str]
    attribute: ClassVar[str]
    """The span attribute that counts the results."""

    def of_new(self, messages: Sequence[Message], positions: Sequence[int], known: Shapes) -> NewShapes:
        """Return what it makes of the messages of a history that it has not looked at. ``positions`` are those of the
        history's messages among ``messages``."""
        ...


def round_before(messages: Sequence[Message], positions: Sequence[int], start: int) -> int:
    """Return the place in a history of the assistant message whose round goes on at ``start``; -1 if there is none."""
    before = range(start - 1, -1, -1)
    return next((at for at in before if messages[positions[at]].role == "assistant"), -1)


def stays(tool: str, never: Collection[str], recall: str) -> bool:
    """Return True if results of this tool go out as they are: of those in ``never``, and of the recall tool."""
    return tool in never or (recall != "" and tool == recall)


@dataclass(frozen=True, slots=True)
class Shaper:
    """A rule that shapes messages with tool results: a pure function of each result, its tool and these options.

    ``recall`` is the name of the recall tool, "" if none is declared: its results are never shaped.
    """

    max_bytes: int
    per_tool: Mapping[str, int]
    never: frozenset[str]
    recall: str

    name: ClassVar[str] = "shape_tool_results"
    reason: ClassVar[str] = "results are longer than their tools may give"
    attribute: ClassVar[str] = semconv.COMPACTION_RESULTS_SHORTENED

    def of_new(self, messages: Sequence[Message], positions: Sequence[int], known: Shapes) -> NewShapes:
        start = known.looked_at
        tools: dict[str, str] = {}
        found: dict[int, Message] = {}
        for at in range(max(0, round_before(messages, positions, start)), len(positions)):
            message = messages[positions[at]]
            if message.role == "assistant":
                tools = {call.id: call.name for call in message.calls}
            elif at >= start and message.role != "system" and not message.pinned and not message.mark:
                made = self._message(message, tools)
                if made is not None:
                    found[at] = made
        return NewShapes(found)

    def _message(self, message: Message, tools: Mapping[str, str]) -> Message | None:
        """Return the message with its results shaped; None if none is. One with words of the user stays: while it is
        the latest one, nobody may edit it."""
        if type(message.parts[0] if message.parts else None) is not ToolResult or is_users(message):
            return None
        parts = tuple([self._part(message, at, part, tools) for at, part in enumerate(message.parts)])
        changed = [at for at, part in enumerate(message.parts) if part is not parts[at]]
        if not changed:
            return None
        handles = tuple([handle_of(in_full(message, at)) for at in changed])
        return shaped(message, parts, Annotation(self.name, handles=handles))

    def _part(self, message: Message, at: int, part: Part, tools: Mapping[str, str]) -> Part:
        if type(part) is not ToolResult or part.extra_json:
            return part
        tool = part.name or tools.get(part.call_id, "")
        if stays(tool, self.never, self.recall):
            return part
        most_bytes = self.per_tool.get(tool, self.max_bytes) * (_ERRORS if part.is_error else 1)

        def shorter(text: str) -> str:
            if not is_too_long(text, most_bytes):
                return text
            whole = in_full(message, at)
            hint = gives_back(recall_call(self.recall, whole)) if self.recall else f"; handle {handle_of(whole)}"
            return shape(text, most_bytes, hint=hint, tail_first=part.is_error)

        before = part.output
        output = shorter(before) if isinstance(before, str) else _with_texts(before, shorter)
        return part if output == before else msgspec.structs.replace(part, output=output)


def _with_texts(blocks: tuple[_Block, ...], shorter: Callable[[str], str]) -> tuple[_Block, ...]:
    """Return the blocks with texts shortened, neighbours as one; blocks of another kind, and marked ones, stay."""
    found: list[_Block] = []
    for is_plain, several in itertools.groupby(blocks, lambda block: type(block) is Text and not block.extra_json):
        run = list(several)
        text = "\n".join(block.text for block in run if isinstance(block, Text)) if is_plain else ""
        made = shorter(text)
        found += run if made == text else [Text(made)]
    return tuple(found)
