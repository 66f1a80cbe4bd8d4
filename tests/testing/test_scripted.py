"""The scripted client: a provider in all but the model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chatstack import ChatResponse, ChatUpdate, Message, ProviderInfo, Reasoning, ServerError, Text, ToolCall, Usage
from chatstack.testing import Answer, ScriptedClient


def response(*answers: Answer) -> ChatResponse:
    return asyncio.run(ScriptedClient(answers).get_response("hello"))


def updates(client: ScriptedClient) -> list[ChatUpdate]:
    async def read() -> list[ChatUpdate]:
        return [update async for update in client.get_streaming_response("hello")]

    return asyncio.run(read())


def test_answers_come_in_order_and_the_last_one_again_and_again() -> None:
    client = ScriptedClient(["one", "two"])
    assert [asyncio.run(client.get_response("hello")).text for _ in range(4)] == ["one", "two", "two", "two"]


def test_every_request_is_kept() -> None:
    client = ScriptedClient()
    asyncio.run(client.get_response("hello", conversation_id="c"))
    updates(client)
    assert [(each.messages, each.conversation_id, each.stream) for each in client.requests] == [
        ((Message.user("hello"),), "c", False),
        ((Message.user("hello"),), None, True),
    ]


def test_text_is_streamed_word_by_word() -> None:
    assert [update.text for update in updates(ScriptedClient(["so it goes"]))] == ["so", " it", " goes", ""]


def test_a_list_is_played_delta_by_delta_and_text_is_put_together() -> None:
    call = ToolCall("a", "look")
    client = ScriptedClient([["so ", "far", Reasoning("hm"), call]])
    played = updates(client)
    assert [(each.text, each.reasoning, each.part) for each in played[:4]] == [
        ("so ", "", None),
        ("far", "", None),
        ("", "hm", None),
        ("", "", call),
    ]
    assert played[4].message_done == Message.assistant("so far", Reasoning("hm"), call)


def test_a_message_is_answered_as_it_is() -> None:
    message = Message.assistant(Reasoning("hm"), Text("so it goes"), ToolCall("a", "look"))
    assert response(message).messages == (message,)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("fine", "stop"),
        ([ToolCall("a", "look")], "tool_calls"),
        (["half", "length"], "length"),
        (["refused"], "refused"),
        (["half", "stop"], "stop"),
        (["half", "other"], "other"),
        (["half", "tool_calls"], "tool_calls"),
        (["half", ToolCall("a", "look"), "paused"], "paused"),
    ],
)
def test_the_finish_reason_fits_the_answer(answer: Answer, reason: str) -> None:
    assert response(answer).finish_reason == reason
    assert response(answer).text in ("fine", "half", "")


def test_a_finish_reason_in_the_middle_of_a_list_is_text() -> None:
    found = response(["its ", "length", " is ", "other"])
    assert (found.text, found.finish_reason) == ("its length is ", "other")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (ServerError, r"answers\[1\] is the class ServerError: pass an instance, ServerError\(\.\.\.\); an answer is"),
        (None, r"answers\[1\] is a NoneType; an answer is text"),
        (3, r"answers\[1\] is a int"),
        ({"text": "x"}, r"answers\[1\] is a dict"),
        (ToolCall("a", "look"), r"answers\[1\] is a ToolCall; .* or a list"),
        (ChatResponse(messages=()), r"answers\[1\] is a ChatResponse"),
        (Message.user("x"), r"answers\[1\] is a user message"),
        (["a", None], r"answers\[1\]\[1\] is a NoneType; in a list are texts, parts and errors"),
        (["a", Message.assistant("b")], r"answers\[1\]\[1\] is a Message"),
        (["a", ServerError], r"answers\[1\]\[1\] is the class ServerError: pass an instance"),
    ],
)
def test_what_cannot_be_played_is_refused_when_the_client_is_made(answer: Any, told: str) -> None:
    with pytest.raises(ValueError, match=f"^ScriptedClient: {told}"):
        ScriptedClient(["fine", answer])


@pytest.mark.parametrize("answers", ["fine", Message.assistant("fine"), lambda request: "fine", None, 3])
def test_answers_that_are_no_list_are_refused(answers: Any) -> None:
    with pytest.raises(ValueError, match="answers must be a list, also of a single one"):
        ScriptedClient(answers)


def test_an_error_in_the_place_of_an_answer_refuses_the_request() -> None:
    client = ScriptedClient([ServerError("down"), "fine"])
    with pytest.raises(ServerError, match="down"):
        asyncio.run(client.get_response("hello"))
    assert asyncio.run(client.get_response("hello")).text == "fine"


def test_an_error_in_a_list_breaks_the_answer_off_there() -> None:
    async def read() -> tuple[str, int]:
        text = ""
        try:
            async for update in client.get_streaming_response("hello"):
                text += update.text
        except ServerError as error:
            return f"{text}: {error}", client.open_streams
        raise AssertionError("the answer did not break off")

    client = ScriptedClient([["so ", "far", ServerError("down"), "never"]])
    assert asyncio.run(read()) == ("so far: down", 0)


def test_open_streams_are_counted() -> None:
    async def count() -> list[int]:
        counts = [client.open_streams]
        async with client.get_streaming_response("hello") as stream:
            counts.append(client.open_streams)
            await anext(stream)
        return [*counts, client.open_streams]

    client = ScriptedClient(["so it goes"])
    assert asyncio.run(count()) == [0, 1, 0]


def test_usage_is_a_fourth_of_the_characters() -> None:
    client = ScriptedClient(["x" * 40])
    assert asyncio.run(client.get_response("y" * 80)).usage == Usage(24, 14)


def test_it_says_who_it_is() -> None:
    assert ScriptedClient().info == ProviderInfo(name="scripted", model="script")
    info = ProviderInfo(name="openai", model="gpt", window_tokens=10)
    assert ScriptedClient(info=info).info is info


def test_it_needs_an_answer() -> None:
    with pytest.raises(ValueError, match="at least one answer"):
        ScriptedClient([])
