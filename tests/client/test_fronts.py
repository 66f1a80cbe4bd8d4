"""The fronts: what they take, what they refuse, and that both give the same."""

from __future__ import annotations

import asyncio

import pytest

from chatstack import (
    ChatFronts,
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ChatStream,
    InputError,
    Message,
    ServerError,
    Text,
    ToolCall,
    TurnTimeoutError,
)
from chatstack.testing import ScriptedClient
from chatstack.values.mistakes import _OF_APIS


class Rows:
    """A sequence that is neither a list nor a tuple."""

    def __init__(self, *messages: Message) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, index: int) -> Message:
        return self._messages[index]


def test_text_is_a_user_message() -> None:
    client = ScriptedClient(["fine"])
    asyncio.run(client.get_response("hello"))
    assert client.requests == [ChatRequest((Message.user("hello"),))]


def test_a_message_stands_for_a_conversation_of_one() -> None:
    client, message = ScriptedClient(["fine"]), Message.user("hello")
    asyncio.run(client.get_response(message))
    assert client.requests[0].messages[0] is message


@pytest.mark.parametrize("container", [list, tuple])
def test_a_list_or_a_tuple_is_a_conversation(container: type) -> None:
    client, messages = ScriptedClient(["fine"]), (Message.system("be brief"), Message.user("hello"))
    asyncio.run(client.get_response(container(messages)))
    assert client.requests[0].messages == messages


def test_options_and_conversation_id_reach_the_provider() -> None:
    client, options = ScriptedClient(["fine"]), ChatOptions(model="m", temperature=0.2)
    asyncio.run(client.get_response("hello", options=options, conversation_id="c-42"))
    assert client.requests[0].options is options
    assert client.requests[0].conversation_id == "c-42"


def test_only_the_streaming_front_asks_for_a_stream() -> None:
    async def run() -> list[bool]:
        client = ScriptedClient(["fine"])
        await client.get_response("hello")
        await client.get_streaming_response("hello").response()
        return [request.stream for request in client.requests]

    assert asyncio.run(run()) == [False, True]


def test_both_fronts_give_the_same_answer() -> None:
    async def run() -> None:
        answer = Message.assistant("let me see", ToolCall("c", "look", "{}"))
        client = ScriptedClient([answer, answer])
        whole = await client.get_response("hello")
        async with client.get_streaming_response("hello") as stream:
            text = "".join([update.text async for update in stream])
            streamed = await stream.response()
        assert text == whole.text == "let me see"
        assert (streamed.messages, streamed.usage) == (whole.messages, whole.usage)
        assert streamed.finish_reason == whole.finish_reason == "tool_calls"

    asyncio.run(run())


SECRET = "my password is hunter2"


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (None, "messages: expected text, a Message or a list of them, got NoneType"),
        (7, "messages: expected text, a Message or a list of them, got int"),
        (SECRET.encode(), "messages: expected text, a Message or a list of them, got bytes"),
        (bytearray(SECRET.encode()), "messages: expected text, a Message or a list of them, got bytearray"),
        (
            {"role": "user", "content": SECRET},
            f"messages: expected text, a Message or a list of them, got dict{_OF_APIS}",
        ),
        ({Message.user("a")}, "messages: expected text, a Message or a list of them, got set"),
        (iter([Message.user("a")]), "messages: expected text, a Message or a list of them, got list_iterator"),
        (Rows(Message.user("a")), "messages: expected text, a Message or a list of them, got Rows"),
        ([], "messages: empty; a request needs at least one message"),
        ((), "messages: empty; a request needs at least one message"),
        ([Message.user("a"), SECRET], "messages[1]: expected Message, got str; write Message.user(text)"),
        ([{"role": "user", "content": SECRET}], f"messages[0]: expected Message, got dict{_OF_APIS}"),
        ([[Message.user("a")]], "messages[0]: expected Message, got list; add several with history += messages"),
        (
            [ChatResponse(messages=())],
            "messages[0]: expected Message, got ChatResponse; add what it added: history += response.messages",
        ),
        ("", "messages[0]: a blank user message, and nothing before it; a request needs something to send"),
        (" \n", "messages[0]: a blank user message, and nothing before it; a request needs something to send"),
        (
            [Message.system(""), Message("user", ())],
            "messages[1]: a blank user message, and nothing before it; a request needs something to send",
        ),
        ([Message.user("a"), None], "messages[1]: expected Message, got NoneType"),
        ([Message], "messages[0]: expected Message, got the class Message"),
        (
            [Message.user("a"), Text(SECRET)],
            "messages[1]: expected Message, got Text; a part stands in a message: Message.user(part), "
            "Message.assistant(part)",
        ),
    ],
)
def test_what_is_no_conversation_is_refused_by_position_and_type_never_by_text(messages: object, said: str) -> None:
    client = ScriptedClient(["fine"])
    with pytest.raises(InputError) as caught:
        asyncio.run(client.get_response(messages))  # type: ignore[call-overload]
    assert str(caught.value) == said
    with pytest.raises(InputError) as at_once:
        client.get_streaming_response(messages)  # type: ignore[call-overload]
    assert str(at_once.value) == said
    assert client.requests == []


def test_an_input_error_is_a_value_error_too() -> None:
    with pytest.raises(ValueError, match="messages: empty"):
        ScriptedClient().get_streaming_response([])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"options": {"model": "m"}}, "options: expected ChatOptions, got dict; write ChatOptions(...)"),
        ({"conversation_id": 42}, "conversation_id: expected text, got int"),
        (
            {"conversation_id": ""},
            "conversation_id: empty; everybody without one would share a conversation: pass None",
        ),
        ({"timeout_seconds": "5"}, "timeout_seconds: expected a number, got str"),
        ({"timeout_seconds": True}, "timeout_seconds: expected a number, got bool"),
        ({"timeout_seconds": 0}, "timeout_seconds=0 must be greater than 0"),
        ({"timeout_seconds": -1.5}, "timeout_seconds=-1.5 must be greater than 0"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds=nan must be greater than 0"),
    ],
)
def test_bad_options_are_refused_with_type_or_value(options: dict[str, object], said: str) -> None:
    client = ScriptedClient(["fine"])
    with pytest.raises(InputError) as caught:
        client.get_streaming_response("a", **options)  # type: ignore[call-overload]
    assert str(caught.value) == said
    with pytest.raises(InputError) as also:
        asyncio.run(client.get_response("a", **options))  # type: ignore[call-overload]
    assert str(also.value) == said
    assert client.requests == []


def test_the_streaming_front_sends_nothing_until_it_is_read() -> None:
    async def run() -> tuple[int, int]:
        client = ScriptedClient(["fine"])
        stream = client.get_streaming_response("hello")
        before = len(client.requests)
        await stream.response()
        return before, len(client.requests)

    assert asyncio.run(run()) == (0, 1)


@pytest.mark.parametrize("streaming", [False, True])
def test_the_time_limit_is_for_the_whole_turn(streaming: bool) -> None:
    async def run() -> int:
        client = ScriptedClient(["one two three four five"], delay_seconds=0.05)
        streamed = client.get_streaming_response("hello", timeout_seconds=0.12)
        with pytest.raises(TurnTimeoutError):
            await (streamed.response() if streaming else client.get_response("hello", timeout_seconds=0.12))
        return client.open_streams

    assert asyncio.run(run()) == 0


def test_a_failing_answer_leaves_no_stream_open() -> None:
    async def run() -> int:
        client = ScriptedClient([["half", ServerError("no")]])
        with pytest.raises(ServerError):
            await client.get_response("hello")
        return client.open_streams

    assert asyncio.run(run()) == 0


def test_a_cancelled_answer_leaves_no_stream_open() -> None:
    async def run() -> int:
        client = ScriptedClient(["one two three"], delay_seconds=0.02)
        asking = asyncio.ensure_future(client.get_response("hello"))
        await asyncio.sleep(0.03)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        return client.open_streams

    assert asyncio.run(run()) == 0


def test_the_callers_list_is_not_kept() -> None:
    async def run() -> tuple[Message, ...]:
        client = ScriptedClient(["fine"])
        messages = [Message.user("hello")]
        stream = client.get_streaming_response(messages)
        messages.append(Message.user("later"))
        await stream.response()
        return client.requests[0].messages

    assert asyncio.run(run()) == (Message.user("hello"),)


def test_a_client_of_ones_own_gets_both_fronts_by_the_mixin() -> None:
    class Mine(ChatFronts):
        async def send(self, request: ChatRequest, /) -> ChatStream:
            return await ScriptedClient(["mine"]).send(request)

    assert asyncio.run(Mine().get_response("hello")).text == "mine"


def test_a_client_that_forgot_send_is_told_so() -> None:
    class Forgot(ChatFronts):
        pass

    with pytest.raises(TypeError, match=r"Forgot has no send\(\)"):
        asyncio.run(Forgot().get_response("hello"))


@pytest.mark.parametrize("messages", ["hunter2 \ud83d", "\udce9"])
def test_half_a_character_is_refused_before_anything_is_sent(messages: str) -> None:
    client = ScriptedClient(["fine"])
    with pytest.raises(InputError, match=r"^Message: parts\[0\].text has half a character .* at position"):
        asyncio.run(client.get_response(messages))
    assert client.requests == []
