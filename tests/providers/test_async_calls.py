"""Async calls of the Responses API: the model goes on without their results, which may come later, or never."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chatstack import ChatStack, ContextWindowGuard, Message, ProviderItem, ToolCall, ToolResult, wrap
from chatstack.context.edits.units import units_of
from chatstack.providers.converters import from_openai_responses, to_openai_responses
from chatstack.providers.wires import AnswerReader
from chatstack.testing import ScriptedClient
from chatstack.testing.provider_server import ServerReply
from tests.providers.test_wrapping import BELOW_EVERY_TRIGGER, FUNCTION_CALL, response, said, serving

WORDS = "some words of it " * 12
CALL = {**FUNCTION_CALL, "async": True}
CUSTOM = {"type": "custom_tool_call", "id": "f", "call_id": "c1", "name": "run", "input": "ls", "async": True}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
OF_CUSTOM = {"type": "custom_tool_call_output", "call_id": "c1", "output": "a.txt"}
OF_NO_CALL = {"type": "function_call_output", "name": "weather", "output": "sunny"}
KINDS = pytest.mark.parametrize(("call", "result"), [(CALL, RESULT), (CUSTOM, OF_CUSTOM)], ids=["function", "custom"])


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def going_on(call: dict[str, Any]) -> list[dict[str, Any]]:
    return [user("hello"), call, said("Started.", "m1"), user("And now?"), said("Not yet.", "m2")]


@KINDS
def test_a_stack_neither_answers_them_nor_moves_their_results(call: dict[str, Any], result: dict[str, Any]) -> None:
    waiting = [*going_on(call), user("Still not?")]
    histories = waiting, [*going_on(call), result], [user("hello"), OF_NO_CALL]

    async def run() -> None:
        async with serving(*[ServerReply.json(response(said("fine", "m3")))] * 3) as served:
            client = wrap(served.openai, BELOW_EVERY_TRIGGER).responses
            for position, items in enumerate(histories):
                await client.create(model="m", input=items)
                assert served.body(position)["input"] == items

    asyncio.run(run())


@KINDS
def test_they_are_items_that_go_back_as_they_came(call: dict[str, Any], result: dict[str, Any]) -> None:
    items = [*going_on(call), result, OF_NO_CALL]
    messages = from_openai_responses(items)
    assert not any(isinstance(part, ToolCall | ToolResult) for message in messages for part in message.parts)
    assert to_openai_responses(messages) == items


@KINDS
@pytest.mark.parametrize("streams", [False, True])
def test_an_answer_has_them_as_the_next_request_has(
    call: dict[str, Any], result: dict[str, Any], streams: bool
) -> None:
    whole = response(call, said("Started.", "m1"))
    kind = "function_call_arguments" if call is CALL else "custom_tool_call_input"
    events: list[dict[str, Any]] = [
        {"type": "response.output_item.added", "output_index": 0, "item": {**call, "arguments": "", "input": ""}},
        {"type": f"response.{kind}.delta", "output_index": 0, "delta": "{}"},
        {"type": "response.output_item.done", "output_index": 0, "item": call},
        {"type": "response.output_text.delta", "output_index": 1, "delta": "Started."},
        {"type": "response.completed", "response": whole},
    ]
    reader = AnswerReader("responses", streaming=streams)
    updates = [update for event in (events if streams else [whole]) for update in reader.add(event)]
    updates += reader.finish()
    (_, answer, _, _) = from_openai_responses([user("hello"), call, said("Started.", "m1"), user("And?"), result])
    assert updates[-1].message_done == answer
    assert not any(update.call_delta for update in updates)


@KINDS
def test_one_that_waits_stays_until_its_result_has_been_read(call: dict[str, Any], result: dict[str, Any]) -> None:
    filling = [item for at in range(9) for item in (said(WORDS, f"a{at}"), user(WORDS))]
    pending = from_openai_responses([user("hello"), call, *filling])
    came = from_openai_responses([user("hello"), call, *filling, result])

    def sent(history: list[Message]) -> tuple[Message, ...]:
        model = ScriptedClient(["fine"])
        guard = ChatStack(model).use(ContextWindowGuard, max_context_tokens=400, prune_on_overflow=True).build()
        asyncio.run(guard.get_response(history))
        assert len(model.requests[-1].messages) < len(history)
        return model.requests[-1].messages

    assert units_of(pending)[1].is_open
    assert not units_of(came)[1].is_open
    for history in (pending, came):
        asked = [part for message in history for part in message.parts if isinstance(part, ProviderItem)]
        assert [part for message in sent(history) for part in message.parts if isinstance(part, ProviderItem)] == asked
