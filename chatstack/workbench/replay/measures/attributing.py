"""Attribution: the calls to which the labels in a list of names lead.

A label leads to the call whose result has the handle that is the label's last word. Any other label has to quote a
call: the tool's name, then its arguments, or pieces of them in order with ``…`` between. One that quotes the whole
arguments of a call leads to that; one that quotes pieces of several leads nowhere, unless they are one call made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from chatstack.context.edits.handles import handle_of
from chatstack.context.edits.pairing import Answered, answered_calls
from chatstack.values.messages import Message
from chatstack.values.parts import ToolCall
from chatstack.workbench.replay.measures.holding import SearchedTexts
from chatstack.workbench.replay.measures.values import decoded, leaves, text_in

_OMITTED = "…"


class _Call(NamedTuple):
    """A call with its result, the handle of that, and the arguments as a label may quote them."""

    answer: Answered
    handle: str
    arguments: tuple[str, str]


class Attribution:
    """The calls of one conversation, by the labels that lead to them."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._quoted: dict[str, list[tuple[Answered, int]]] = {}

    def holds(self, label: str, value: str, end: int) -> bool:
        """Return True if a call before the position ``end`` to which the label leads held the value."""
        return any(value in text_in((each.call, each.result)) for each in self.led_to(label, end))

    def led_to(self, label: str, end: int) -> list[Answered]:
        """Return the call before the position ``end`` to which a label leads, as often as it was made."""
        if label not in self._quoted:
            self._quoted[label] = list(self._quotes(label))
        quoted = [(answer, clarity) for answer, clarity in self._quoted[label] if answer.position < end]
        clearest = max((clarity for _, clarity in quoted), default=0)
        found = [answer for answer, clarity in quoted if clarity == clearest]
        return found if len({(each.call.name, each.call.arguments) for each in found}) == 1 else []

    def _quotes(self, label: str) -> Iterator[tuple[Answered, int]]:
        """Yield each call that the label may lead to; 2 if by its handle, 1 if by all its arguments, 0 by pieces."""
        by_handle = self._by_handle.get(label.rpartition(" ")[2].strip("[]()#"), [])
        yield from ((self._calls[number].answer, 2) for number in by_handle)
        name, _, rest = " ".join(label.split()).partition(" ")
        pieces = [piece.strip() for piece in rest.split(_OMITTED)]
        for number in self._quoting(name, max(pieces, key=len)):
            answer, _, texts = self._calls[number]
            if number not in by_handle and any(_is_in_order(pieces, text) for text in texts):
                yield answer, int(rest in texts)

    def _quoting(self, name: str, piece: str) -> Iterator[int]:
        """Yield the numbers of the calls of a tool whose arguments hold a piece."""
        if name in self._by_name:
            numbers, texts = self._by_name[name]
            found = texts.holding(piece, 0, 2 * len(numbers))
            yield from dict.fromkeys(numbers[at // 2] for at in found)

    @cached_property
    def _by_handle(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for number, call in enumerate(self._calls):
            found.setdefault(call.handle, []).append(number)
        return found

    @cached_property
    def _by_name(self) -> dict[str, tuple[list[int], SearchedTexts]]:
        """By the name of a tool: the numbers of its calls, and the two forms of the arguments of each."""
        numbers: dict[str, list[int]] = {}
        for number, call in enumerate(self._calls):
            numbers.setdefault(call.answer.call.name, []).append(number)
        return {
            name: (found, SearchedTexts(text for number in found for text in self._calls[number].arguments))
            for name, found in numbers.items()
        }

    @cached_property
    def _calls(self) -> list[_Call]:
        answers = answered_calls(self._messages)
        return [_Call(each, handle_of(each.result), _arguments(each.call)) for each in answers]


def _arguments(call: ToolCall) -> tuple[str, str]:
    """Return the arguments as JSON and as the values in it, with white space folded as in a label."""
    values = " ".join(leaves(decoded(call.arguments)))
    return " ".join(call.arguments.split()), " ".join(values.split())


def _is_in_order(pieces: Sequence[str], text: str) -> bool:
    at = 0
    for piece in pieces:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True
