"""Labels: a few words of the call in which a name was seen, so that a model can tell what the name belongs to."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import cast

from chatstack.context.edits.handles import handle_of
from chatstack.context.edits.pairing import in_full
from chatstack.context.strategies.name_lists import Names
from chatstack.values.messages import Message
from chatstack.values.parts import ToolCall, ToolResult

_MOST_CHARS = 32
"""Maximum length of the arguments in a label. Shorter ones are the same for several calls; longer ones take the room of
more names than they explain (16 to 80 tried on 15 recorded coding runs)."""
_FAR = 64
"""Maximum number of messages between a result and the call that is looked for."""


class Labels:
    """The labels of the calls in a request: the tool, the beginning of the arguments, and the handle of the result if
    ``with_handles``. ``position_of`` gives the position of the last message that holds a name."""

    def __init__(
        self, messages: Sequence[Message], position_of: Callable[[str], int], *, with_handles: bool = False
    ) -> None:
        self._messages = messages
        self._position_of = position_of
        self._with_handles = with_handles
        self._labels: dict[int, str] = {}
        """By the identity of the part: a result or a call."""
        self._of: dict[str, str] = {}

    def of(self, name: str) -> str:
        """Return the label of the call that held a name last, in its arguments or its result; "" if none did."""
        label = self._of.get(name)
        if label is None:
            label = self._of[name] = self._found(name)
        return label

    def _found(self, name: str) -> str:
        at = self._position_of(name)
        holders = [part for part in self._messages[at].parts if isinstance(part, ToolCall | ToolResult)]
        holder = holders[0] if len(holders) == 1 else next((each for each in holders if name in _text_of(each)), None)
        if holder is None:
            return ""
        label = self._labels.get(id(holder))
        if label is None:
            label = self._labels[id(holder)] = self._made(holder, at)
        return label

    def sorted(self, names: Sequence[str], is_told: Callable[[str], bool]) -> list[str]:
        """Return the names in an order that makes few labels: first those that ``is_told``, then those of the same
        calls, then the rest."""
        labels = {self.of(name) for name in names if is_told(name)}
        return sorted(names, key=lambda name: 0 if is_told(name) else 1 if self.of(name) in labels else 2)

    def grouped(self, names: Sequence[str]) -> list[Names]:
        """Group names by label; a name that its label holds is not repeated, and one that would have a label to itself
        gets none: that takes the room of several names."""
        held: dict[str, list[str]] = {}
        labels = [*map(self.of, names)]
        for name, label in zip(names, labels, strict=True):
            held.setdefault(label, []).append(name)
        labelled = {label: row for label, row in held.items() if label and len(row) > 1}
        loose = tuple([name for name, label in zip(names, labels, strict=True) if label not in labelled])
        rows = [Names(tuple([name for name in row if name not in label]), label) for label, row in labelled.items()]
        return [Names(loose), *rows] if loose else rows

    def _made(self, holder: ToolCall | ToolResult, at: int) -> str:
        call = holder if isinstance(holder, ToolCall) else self._call_of(holder, at)
        if call is None:
            return ""
        arguments = _values_of(call.arguments)
        if len(arguments) > _MOST_CHARS:
            arguments = f"{arguments[:_MOST_CHARS].rstrip()}…"
        handle = f" {self._handle(holder, at)}" if self._with_handles and isinstance(holder, ToolResult) else ""
        return f"{call.name} {arguments}{handle}".strip()

    def _handle(self, result: ToolResult, at: int) -> str:
        message = self._messages[at]
        return handle_of(in_full(message, next(part for part, each in enumerate(message.parts) if each is result)))

    def _call_of(self, result: ToolResult, at: int) -> ToolCall | None:
        before = (part for message in reversed(self._messages[max(0, at - _FAR) : at]) for part in message.parts)
        calls = (part for part in before if isinstance(part, ToolCall) and part.id == result.call_id)
        return next(calls, None)


def _text_of(part: ToolCall | ToolResult) -> str:
    return part.arguments if isinstance(part, ToolCall) else part.text


def _values_of(arguments: str) -> str:
    """Return the values of arguments as one line, without their keys."""
    try:
        decoded: object = json.loads(arguments)
    except (ValueError, RecursionError):
        decoded = arguments
    values = cast("dict[str, object]", decoded).values() if isinstance(decoded, dict) else [decoded]
    return " ".join(" ".join(map(_told, values)).split())


def _told(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
