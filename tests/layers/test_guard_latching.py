"""What the guard has cut once stays cut the same way, whatever else changes from call to call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from chatstack import ChatOptions, ChatStack, ContextWindowGuard, Message, ToolCall
from chatstack.testing import ScriptedClient, TelemetryCapture

MAKE = (Message.user, Message.assistant)
HISTORY = [MAKE[number % 2](f"{number} " + "x" * 390) for number in range(7)]  # about 100 tokens each


class Guarded:
    """A guard of 1,000 tokens that prunes to 700, over a model that says "fine"."""

    def __init__(self) -> None:
        self.provider, self.capture = ScriptedClient(["fine"]), TelemetryCapture()
        stack = ChatStack(self.provider).use(ContextWindowGuard, max_context_tokens=1_000, prune_on_overflow=True)
        self.client = stack.build(self.capture.resolve)

    def ask(
        self,
        messages: Sequence[Message],
        *,
        conversation_id: str | None = None,
        max_tokens: int | None = None,
        instructions: str = "",
    ) -> tuple[Message, ...]:
        """Send, and tell what arrived."""
        options = ChatOptions(max_tokens=max_tokens, instructions=instructions)
        asyncio.run(self.client.get_response(messages, options=options, conversation_id=conversation_id))
        return self.provider.requests[-1].messages

    @property
    def edits(self) -> int:
        return len(self.capture.spans_named("compact_context truncate"))

    @property
    def reasons(self) -> list[str]:
        spans = self.capture.spans_named("compact_context truncate")
        return [str(span.attributes["chatstack.compaction.reason"]) for span in spans]


def test_a_cut_made_for_a_larger_reserve_does_not_bind_a_request_that_fits() -> None:
    guarded = Guarded()
    cut = guarded.ask(HISTORY, max_tokens=350)
    assert len(cut) < len(HISTORY)
    assert guarded.ask(HISTORY) == tuple(HISTORY)
    more = [*HISTORY, Message.assistant("fine"), Message.user("and then?")]
    assert guarded.ask(more, max_tokens=350)[: len(cut)] == cut
    assert guarded.edits == 1


def test_a_cut_made_for_a_small_window_does_not_bind_a_large_one() -> None:
    sent = []
    provider = ScriptedClient(["fine"])
    stack = ChatStack(provider).use(ContextWindowGuard, max_context_tokens=500, prune_on_overflow=True)
    for limit in (1_000, 500, 1_000):  # one stack, one memory
        client = stack.override("ContextWindowGuard", max_context_tokens=limit).build()
        asyncio.run(client.get_response(HISTORY))
        sent.append(len(provider.requests[-1].messages))
    assert sent == [7, 3, 7]


def test_a_cut_is_made_again_although_the_instructions_have_become_shorter() -> None:
    guarded = Guarded()
    cut = guarded.ask(HISTORY, instructions="x" * 1_400, conversation_id="c")
    assert len(cut) < len(HISTORY)
    more = [*HISTORY, Message.assistant("fine"), Message.user("and then?")]
    assert guarded.ask(more, instructions="brief", conversation_id="c")[: len(cut)] == cut
    assert guarded.edits == 1
    # Under other instructions, and without an id, it is another conversation, which fits.
    assert guarded.ask(more, instructions="brief") == tuple(more)


def test_a_cut_that_has_become_too_small_is_replaced_and_the_new_one_kept() -> None:
    guarded = Guarded()
    first = guarded.ask(HISTORY, instructions="x" * 1_400, conversation_id="c")
    second = guarded.ask(HISTORY, instructions="x" * 3_000, conversation_id="c")
    assert len(second) < len(first)
    assert guarded.ask(HISTORY, instructions="x" * 3_000, conversation_id="c") == second
    more = [*HISTORY, Message.assistant("fine"), Message.user("and then?")]
    assert guarded.ask(more, instructions="brief", conversation_id="c")[: len(second)] == second
    assert guarded.edits == 2


def test_results_that_the_model_has_not_seen_never_go_and_are_shortened_last() -> None:
    calls = Message.assistant("looking", ToolCall("c", "dump"))
    round_of = [calls, Message.tool("c", "x" * 2_000)]
    guarded = Guarded()
    assert guarded.ask([*HISTORY, *round_of])[-2:] == tuple(round_of)
    assert "tool_result_shortened" not in guarded.capture.warnings
    sent = guarded.ask([*HISTORY, calls, Message.tool("c", "x" * 8_000)])
    assert sent[-2] == calls
    assert sent[-1].results[0].text.endswith("x" * 100)
    assert guarded.reasons[-1].endswith("; 1 messages shortened")
    assert guarded.capture.warnings[-1] == "tool_result_shortened"


def test_around_a_limit_without_a_low_water_mark_each_crossing_is_not_warned_of_again() -> None:
    provider, capture = ScriptedClient(["fine"]), TelemetryCapture()
    stack = ChatStack(provider).use(
        ContextWindowGuard, max_context_tokens=1_000, prune_on_overflow=True, prune_to=1, warning_threshold=0.9
    )
    client = stack.build(capture.resolve)
    history: list[Message] = []
    for number in range(40):
        history += [Message.user(f"{number} " + "x" * 100), Message.assistant("fine " + "y" * 100)]
        asyncio.run(client.get_response([*history, Message.user("next")], conversation_id="c"))
    assert capture.warnings == ("context_window_near_limit", "context_window_exceeded")


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
