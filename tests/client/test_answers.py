"""Whole answers as updates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from chatstack import ChatStream, ChatUpdate, Message, Reasoning, Text, ToolCall, Usage
from chatstack.client.answers import updates_of

ANSWER = Message("assistant", (Reasoning("hm"), Text("let me "), Text("see"), ToolCall("c1", "look", "{}")))


async def source(*, streamed: bool) -> AsyncGenerator[ChatUpdate, None]:
    if streamed:
        for update in (ChatUpdate(reasoning="hm"), ChatUpdate(text="let me "), ChatUpdate(text="see")):
            yield update
    for update in updates_of(ANSWER, streamed=streamed, usage=Usage(3, 2), response_id="r-1", model="m", raw=5):
        yield update


@pytest.mark.parametrize("streamed", [True, False])
def test_the_answer_is_the_same_whether_its_text_was_streamed_or_not(streamed: bool) -> None:
    async def run() -> None:
        stream = await ChatStream.primed(source(streamed=streamed))
        updates = [update async for update in stream]
        response = await stream.response()
        assert response.messages == (ANSWER,)
        assert (response.usage, response.finish_reason) == (Usage(3, 2), "tool_calls")
        assert (response.id, response.model, response.raw) == ("r-1", "m", 5)
        assert "".join(update.text for update in updates) == "let me see"
        assert "".join(update.reasoning for update in updates) == "hm"
        assert [update.part for update in updates if update.part is not None] == [ToolCall("c1", "look", "{}")]

    asyncio.run(run())


def test_an_empty_message_is_an_answer() -> None:
    (only,) = updates_of(Message.assistant())
    assert (only.message_done, only.finish_reason) == (Message.assistant(), "stop")
