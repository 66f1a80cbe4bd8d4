"""Which tool results answer which calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from chatstack.values.messages import Message
from chatstack.values.parts import ToolCall, ToolResult


@dataclass(frozen=True, slots=True)
class Pairing:
    """The pairs of a list of messages, by position, and what is left over.

    ``answers`` are pairs (position of a result, position of its call). ``orphans`` are results without a call before
    them, ``open_calls`` calls without a result after them, each with its position.
    """

    answers: tuple[tuple[int, int], ...]
    orphans: tuple[tuple[int, ToolResult], ...]
    open_calls: tuple[tuple[int, ToolCall], ...]

    def leftovers(self, last: int) -> Counter[str]:
        """What does not pair, counted; the calls of a last message are still waiting, and not counted."""
        found = Counter(f"result without call: {result.call_id}" for _, result in self.orphans)
        found.update(f"call without result: {call.id}" for position, call in self.open_calls if position != last)
        return found

    def waiting(self, last: int) -> Counter[str]:
        """The ids of the calls of a last message that still wait for their results, counted."""
        return Counter(call.id for position, call in self.open_calls if position == last)


def pair(messages: Sequence[Message]) -> Pairing:
    """Pair calls and results, in one pass.

    A result answers the newest unanswered call of its id before it: ids are used again within one conversation, so
    an id alone says nothing.
    """
    waiting: dict[str, list[tuple[int, ToolCall]]] = {}
    answers: list[tuple[int, int]] = []
    orphans: list[tuple[int, ToolResult]] = []
    for position, message in enumerate(messages):
        if message.role == "system":
            continue
        for part in message.parts:
            if isinstance(part, ToolCall):
                if message.role == "assistant":
                    waiting.setdefault(part.id, []).append((position, part))
            elif isinstance(part, ToolResult):
                asked = waiting.get(part.call_id)
                if asked:
                    answers.append((position, asked.pop()[0]))
                else:
                    orphans.append((position, part))
    open_calls = sorted((each for asked in waiting.values() for each in asked), key=lambda each: each[0])
    return Pairing(tuple(answers), tuple(orphans), tuple(open_calls))
