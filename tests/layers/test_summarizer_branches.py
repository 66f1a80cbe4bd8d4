"""A conversation goes back and on another way: its last cut is taken only where it fits, and said where it breaks off
what was sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from chatstack import ChatClient, ChatStack, Message, Summarizer, ToolCall
from chatstack.testing import ScriptedClient, TelemetryCapture


def words(number: int) -> str:
    return "abc " * number


class Branching:
    """A conversation with an id, whose requests are sent as they are given."""

    def __init__(self, **options: Any) -> None:
        self.model, self.capture = ScriptedClient(["ok"]), TelemetryCapture()
        writer = ScriptedClient(["What was said."])
        stack = ChatStack(self.model).use(Summarizer, **{"summary_client": writer, **options})
        self.client: ChatClient = stack.build(self.capture.resolve)

    async def ask(self, history: Sequence[Message]) -> tuple[Message, ...]:
        await self.client.get_response([*history], conversation_id="c")  # type: ignore[attr-defined]
        return self.model.requests[-1].messages

    @property
    def edits(self) -> int:
        return len(self.capture.spans_named("compact_context summarize"))


@pytest.mark.parametrize("options", [{"max_tokens": 2_000}, {"max_tokens": 2_000, "prepare_at": 0.5}], ids=str)
def test_the_cut_of_another_branch_parts_no_result_from_its_call(options: dict[str, Any]) -> None:
    common = [Message.user(f"task {words(1200)}"), Message.assistant("ok"), Message.user(f"second {words(1200)}")]
    looked = [Message.assistant(ToolCall("c8", "look", "{}")), Message.tool("c8", words(10), name="look")]
    steered = [*common, Message.user(f"sent before an answer {words(1500)}"), Message.assistant("ok"), *looked]
    result = Message.tool("c7", words(300), name="look")
    other = [*common, Message.assistant(ToolCall("c7", "look", "{}")), result, Message.user("third")]

    async def both() -> list[tuple[Message, ...]]:
        branching = Branching(**options)
        await branching.ask(steered)
        sent = [await branching.ask(other), await branching.ask([*other, Message.assistant("ok"), Message.user("on")])]
        assert branching.capture.warnings == ()
        return sent

    for sent in asyncio.run(both()):
        marks = [message.mark for message in sent]
        (at,) = (place for place, message in enumerate(sent) if message.results)
        assert sent[at - 1].calls
        assert marks.count("summary") == 1


def test_a_cut_that_breaks_off_what_was_sent_is_reported() -> None:
    async def back_and_on() -> None:
        branching = Branching(max_tokens=1_200, keep_recent_turns=2)
        history, sent, edits = [Message.user("task")], tuple[Message, ...](), 0
        for number in range(22):
            if number == 16:
                del history[-6:]
            history += [Message.assistant("ok"), Message.user(f"turn {number} {words(75)}")]
            last, sent = sent, await branching.ask(history)
            is_prefix = sent[: len(last)] == last
            assert (branching.edits > edits) is not is_prefix or number == 16
            edits = branching.edits
        assert edits == 2

    asyncio.run(back_and_on())
