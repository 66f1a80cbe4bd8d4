"""What the guard has cut once stays cut the same way, whatever else changes from call to call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from chatstack import ChatOptions, ChatStack, ContextMemory, ContextWindowGuard, Message
from chatstack.context.memory import Record
from chatstack.testing import ScriptedClient, TelemetryCapture

MAKE = (Message.user, Message.assistant)
HISTORY = [MAKE[number % 2](f"{number} " + "x" * 390) for number in range(7)]  # about 100 tokens each


class Guarded:
    """A guard of 1,000 tokens that prunes to 700, over a model that says "fine"."""

    def __init__(self) -> None:
        self.provider, self.capture = ScriptedClient(["fine"]), TelemetryCapture()
        stack = ChatStack(self.provider).use(ContextWindowGuard, max_context_tokens=1_000, prune_on_overflow=True)
        self.client = stack.build(self.capture.resolve)

    def ask(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> tuple[Message, ...]:
        """Send, and tell what arrived."""
        asyncio.run(self.client.get_response(messages, options=ChatOptions(max_tokens=max_tokens)))
        return self.provider.requests[-1].messages

    @property
    def edits(self) -> int:
        return len(self.capture.spans_named("compact_context truncate"))


def test_a_cut_is_made_again_although_the_request_would_now_fit() -> None:
    guarded = Guarded()
    cut = guarded.ask(HISTORY, max_tokens=500)
    assert len(cut) < len(HISTORY)
    more = [*HISTORY, Message.assistant("fine"), Message.user("and then?")]
    assert guarded.ask(more)[: len(cut)] == cut
    assert guarded.edits == 1


def test_a_cut_that_has_become_too_small_is_replaced_and_the_new_one_kept() -> None:
    guarded = Guarded()
    first = guarded.ask(HISTORY, max_tokens=350)
    second = guarded.ask(HISTORY, max_tokens=750)
    assert len(second) < len(first)
    assert guarded.ask(HISTORY, max_tokens=750) == second
    more = [*HISTORY, Message.assistant("fine"), Message.user("and then?")]
    assert guarded.ask(more, max_tokens=600)[: len(second)] == second
    assert guarded.edits == 2


def test_below_every_line_nothing_is_recognised_and_nothing_changed() -> None:
    guarded = Guarded()
    assert guarded.ask(HISTORY) == tuple(HISTORY)
    assert guarded.provider.requests[-1].messages[0] is HISTORY[0]
    assert guarded.edits == 0


def test_system_messages_alone_are_warned_of_once_also_without_an_id() -> None:
    guarded = Guarded()
    rules, others = [Message.system("x" * 3_400)], [Message.system("y" * 3_400)]
    for messages in (rules, rules, rules, others, others):
        guarded.ask(messages)
    assert guarded.capture.warnings == ("context_window_near_limit",) * 2


def test_a_decision_is_replaced_only_by_whoever_had_seen_it() -> None:
    memory = ContextMemory()
    history = memory.history_of(HISTORY)
    records = [Record(drop=(number,)) for number in range(4)]
    assert memory.latch("guard", history, records[0]) == records[0]
    assert memory.latch("guard", history, records[1]) == records[0]
    assert memory.latch("guard", history, records[2], replaces=records[0]) == records[2]
    assert memory.latch("guard", history, records[3], replaces=records[0]) == records[2]
    assert memory.recall("guard", history) == records[2]
