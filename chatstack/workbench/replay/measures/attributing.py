"""Attribution: the calls to which the labels in a list of names lead.

A label leads to the call whose result has the handle that is the label's last word. Any other label has to quote a
call: the tool's name, then its arguments, or pieces of them in order with ``…`` between. One that quotes the whole
arguments of a call leads to that; one that quotes pieces of several leads nowhere, unless they are one call made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from chatstack.context.handles import handle_of
from chatstack.context.pairing import Answered, answered_calls
from chatstack.values.messages import Message
from chatstack.values.parts import ToolCall
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
        handle = label.rpartition(" ")[2].strip("[]()#")
        for answer, its_handle, texts in self._calls:
            quoted = _quoted_part(label, answer.call.name)
            if handle == its_handle:
                yield answer, 2
            elif quoted is not None and any(_is_in_order(quoted.split(_OMITTED), text) for text in texts):
                yield answer, int(quoted in texts)

    @cached_property
    def _calls(self) -> list[_Call]:
        answers = answered_calls(self._messages)
        return [_Call(each, handle_of(each.result), _arguments(each.call)) for each in answers]


def _quoted_part(label: str, name: str) -> str | None:
    """Return what stands in a label after the tool's name; None if it does not begin with that name."""
    words = label.split()
    return " ".join(words[1:]) if words[:1] == [name] else None


def _arguments(call: ToolCall) -> tuple[str, str]:
    """Return the arguments as JSON and as the values in it, with white space folded as in a label."""
    values = " ".join(leaves(decoded(call.arguments)))
    return " ".join(call.arguments.split()), " ".join(values.split())


def _is_in_order(pieces: Sequence[str], text: str) -> bool:
    at = 0
    for piece in map(str.strip, pieces):
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True
