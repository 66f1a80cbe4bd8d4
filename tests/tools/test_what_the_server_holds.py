"""A turn of which the server holds something: a conversation, a container, items that only it can read."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from chatstack import (
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ChatStack,
    ContextWindow,
    ContextWindowGuard,
    Fallback,
    FunctionInvoker,
    Message,
    ToolCall,
)
from chatstack.providers.anthropic import wire as anthropic
from chatstack.providers.openai import OpenAIResponsesClient
from chatstack.providers.openai.responses_options import request_to_wire
from chatstack.providers.openai.responses_wire import messages_from_wire
from tests.tools.wire_script import (
    ANTHROPIC,
    RESPONSES,
    SERVER_ITEMS,
    WIRES,
    Item,
    Played,
    PlayedServer,
    Wire,
    anthropic_streamed,
    events,
    function_call,
    reasoning,
    use,
)

BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
ANSWER = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
SAID: Item = {**ANSWER, "content": [{"type": "output_text", "text": "Cold.", "annotations": []}]}
CONVERSATION = ChatOptions(extra={"conversation": "conv_1"})


def look(place: str) -> str:
    """Looks there."""
    return place


def ask(stack: ChatStack, *, stream: bool = False, options: ChatOptions | None = None) -> ChatResponse:
    async def asked() -> ChatResponse:
        async with stack.open() as client:
            if not stream:
                return await client.get_response("go", options=options)
            async with client.get_streaming_response("go", options=options) as answer:
                return await answer.response()

    return asyncio.run(asked())


def kinds(body: Item) -> list[str]:
    return [item.get("type", "message") for item in body["input"]]


# A conversation of OpenAI's, which takes in what it is sent and what it answers


@BOTH_WAYS
def test_a_conversation_gets_the_results_of_its_calls_and_nothing_again(stream: bool) -> None:
    custom = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_3", "name": "look", "input": '"'}
    rounds = [[reasoning("rs_1"), function_call(1), function_call(2)], [custom], [SAID]]
    server = PlayedServer(*RESPONSES.plays(rounds, stream=stream))
    stack = ChatStack(RESPONSES.client(server)).use(FunctionInvoker, tools=[look])
    assert ask(stack, stream=stream, options=CONVERSATION).text == "Cold."
    first, second, third = server.bodies
    assert kinds(first) == ["message"]
    assert [(item["type"], item["call_id"]) for item in second["input"]] == [
        ("function_call_output", "call_1"),
        ("function_call_output", "call_2"),
    ]
    assert [(item["type"], item["call_id"]) for item in third["input"]] == [("custom_tool_call_output", "call_3")]
    assert {body["conversation"] for body in server.bodies} == {"conv_1"}


def test_a_response_that_is_gone_on_with_gets_all_that_came_after_it() -> None:
    server = PlayedServer(*RESPONSES.plays([[function_call(1)], [SAID]], stream=False))
    stack = ChatStack(RESPONSES.client(server)).use(FunctionInvoker, tools=[look])
    ask(stack, options=ChatOptions(extra={"previous_response_id": "resp_0"}))
    assert kinds(server.bodies[1]) == ["message", "function_call", "function_call_output"]


def test_layers_around_see_the_whole_turn_of_a_conversation() -> None:
    server = PlayedServer(*RESPONSES.plays([[function_call(1)], [function_call(2)], [SAID]], stream=False))
    stack = ChatStack(RESPONSES.client(server)).use(FunctionInvoker, tools=[look])
    ask(stack.use(ContextWindow, max_tokens=4_000, max_tool_calls_per_turn=2), options=CONVERSATION)
    assert [body.get("tool_choice") for body in server.bodies] == [None, None, "none"]
    assert kinds(server.bodies[2]) == ["function_call_output"]


RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "cold"}
CALL = function_call(1)
NEW_CALL = {name: value for name, value in CALL.items() if name != "id"}
HELLO = {"role": "user", "content": "hello"}


@pytest.mark.parametrize(
    ("items", "first"),
    [
        ([RESULT], 0),
        ([HELLO, CALL, RESULT], 2),
        ([HELLO, CALL, RESULT, HELLO], 2),
        ([HELLO, CALL, {**RESULT, "id": "fco_1"}, HELLO], 0),  # what was read from a conversation, to begin another
        ([HELLO, SAID, HELLO], 0),
        ([HELLO, NEW_CALL, RESULT, HELLO], 0),  # no answer of a server's: an example, say
        ([HELLO], 0),
    ],
)
def test_a_conversation_gets_results_alone_only_if_it_made_their_calls(items: list[Item], first: int) -> None:
    request = ChatRequest(messages_from_wire(items), CONVERSATION)
    assert request_to_wire(request)["input"] == items[first:]


# A container of Anthropic's, in which code waits for results

CODE = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {"code": "await look()"}}
WAITING = [CODE, use("toolu_1", caller={"type": "code_execution_20260120", "tool_id": "srvtoolu_1"})]
CONTAINER = {"id": "container_1", "expires_at": "2030-01-01T00:00:00Z"}
DONE = [{"type": "text", "text": "Done."}]


def in_container(played: Played, stop_reason: str = "tool_use") -> Played:
    """The same answer, told to be of that container."""
    if not played.body.startswith("event"):
        whole = {**json.loads(played.body), "container": CONTAINER, "stop_reason": stop_reason}
        return Played(json.dumps(whole))
    found = [json.loads(line[5:]) for line in played.body.splitlines() if line.startswith("data:")]
    end = next(event for event in found if event["type"] == "message_delta")
    end["delta"] |= {"container": CONTAINER, "stop_reason": stop_reason}
    return events(*found)


@BOTH_WAYS
@pytest.mark.parametrize("reason", ["tool_use", "pause_turn"])
def test_a_round_goes_on_in_the_container_of_the_one_before(reason: str, stream: bool) -> None:
    first, last = ANTHROPIC.plays([WAITING if reason == "tool_use" else [CODE], DONE], stream=stream)
    server = PlayedServer(in_container(first, reason), last)
    response = ask(ChatStack(ANTHROPIC.client(server)).use(FunctionInvoker, tools=[look]), stream=stream)
    assert response.text == "Done."
    assert [body.get("container") for body in server.bodies] == [None, "container_1"]


def test_a_container_that_is_told_as_the_message_begins_is_kept_if_its_end_has_none() -> None:
    found = [json.loads(line[5:]) for line in anthropic_streamed(WAITING).body.splitlines() if line[:5] == "data:"]
    found[0]["message"]["container"] = CONTAINER
    next(event for event in found if event["type"] == "message_delta")["delta"]["container"] = None
    server = PlayedServer(events(*found), anthropic_streamed(DONE))
    ask(ChatStack(ANTHROPIC.client(server)).use(FunctionInvoker, tools=[look]), stream=True)
    assert server.bodies[1]["container"] == "container_1"


def named(id: str) -> Message:
    return anthropic.message_of((ToolCall(f"toolu_{id}", "look"),), {"id": id})


def test_a_container_ends_with_the_turn_as_it_expires() -> None:
    turn = [Message.user("go"), named("a"), Message.tool("toolu_a", "1"), named("b"), Message.tool("toolu_b", "2")]
    assert anthropic.request_to_wire(ChatRequest(tuple(turn)))["container"] == "b"
    plain = [*turn, Message.assistant("Cold.", ToolCall("toolu_c", "look")), Message.tool("toolu_c", "3")]
    assert anthropic.request_to_wire(ChatRequest(tuple(plain)))["container"] == "b"
    assert "container" not in anthropic.request_to_wire(ChatRequest((*turn, Message.user("and now?"))))


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("mine", "mine"),
        ({"id": "mine"}, {"id": "mine"}),
        ({"skills": [{"skill_id": "x"}]}, {"id": "a", "skills": [{"skill_id": "x"}]}),
        ({"id": None, "skills": []}, {"id": "a", "skills": []}),
    ],
)
def test_a_container_in_extra_wins_and_one_without_an_id_gets_it(given: object, sent: object) -> None:
    messages = (Message.user("go"), named("a"), Message.tool("toolu_a", "1"))
    request = ChatRequest(messages, ChatOptions(extra={"container": given}))
    assert anthropic.request_to_wire(request)["container"] == sent


# Items of OpenAI's Responses that another server cannot read


def responses_at(host: str, server: PlayedServer) -> OpenAIResponsesClient:
    http = server.http_client(of_openai=True)
    sdk = openai.AsyncOpenAI(api_key="none", base_url=f"https://{host}/v1", http_client=http, max_retries=0)
    return OpenAIResponsesClient("gpt", client=sdk)


BUSY = Played('{"error": {"message": "busy"}}', status=503)


@BOTH_WAYS
def test_each_server_gets_its_own_items_back_and_of_the_others_what_it_can_read(stream: bool) -> None:
    ours = [reasoning("rs_1"), SERVER_ITEMS[0], SAID, function_call(1)]
    theirs = [reasoning("rs_2"), function_call(2)]
    first = PlayedServer(*RESPONSES.plays([ours], stream=stream), BUSY, *RESPONSES.plays([[SAID]], stream=stream))
    second = PlayedServer(*RESPONSES.plays([theirs], stream=stream))
    stack = ChatStack(responses_at("api.openai.com", first)).use(FunctionInvoker, tools=[look])
    response = ask(stack.use(Fallback, clients=[responses_at("x.openai.azure.com", second)]), stream=stream)
    assert response.text.endswith("Cold.")
    (taken,), back = second.bodies, first.bodies[2]
    assert kinds(taken) == ["message", "message", "function_call", "function_call_output"]
    assert not any("id" in item for item in taken["input"])
    assert back["input"][1:5] == ours
    assert [(item["type"], item.get("id")) for item in back["input"][5:]] == [
        ("function_call_output", None),
        ("function_call", None),
        ("function_call_output", None),
    ]


def test_what_answers_an_item_that_another_server_lacks_stays_behind_too() -> None:
    call = {"type": "computer_call", "id": "cu_1", "call_id": "call_9", "action": {"type": "wait"}}
    output = {"type": "computer_call_output", "id": "o_1", "call_id": "call_9", "output": {"type": "x"}}
    server = PlayedServer(*RESPONSES.plays([[reasoning("rs_1"), call]], stream=False))
    (answer,) = ask(ChatStack(responses_at("api.openai.com", server))).messages
    history = (Message.user("go"), answer, *messages_from_wire([output, HELLO]))
    for host, left in (("api.openai.com", 5), ("localhost", 2)):
        again = PlayedServer(*RESPONSES.plays([[SAID]], stream=False))
        asyncio.run(responses_at(host, again).get_response(history))
        assert len(again.bodies[0]["input"]) == left


def test_what_another_server_has_compacted_is_sent_to_one_that_is_not_sent_the_compaction() -> None:
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"}
    server = PlayedServer(*RESPONSES.plays([[item, SAID]], stream=False))
    (answer,) = ask(ChatStack(responses_at("api.openai.com", server))).messages
    history = (Message.user("the task"), Message.assistant("aye"), Message.user("go"), answer, Message.user("on"))
    for host, sent in (
        ("api.openai.com", ["message", "compaction", "message", "message"]),
        ("localhost", ["message", "message", "message", "message", "message"]),
    ):
        again = PlayedServer(*RESPONSES.plays([[SAID]], stream=False))
        stack = ChatStack(responses_at(host, again)).use(ContextWindowGuard, max_context_tokens=9_000)
        asyncio.run(stack.build().get_response(history))
        assert kinds(again.bodies[0]) == sent


# A choice of tools that only the API can say


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_the_last_round_of_a_turn_forbids_tools_whatever_was_chosen_in_extra(wire: Wire) -> None:
    server = PlayedServer(*wire.plays([wire.turn[0], wire.turn[-1]], stream=False))
    stack = ChatStack(wire.client(server)).use(FunctionInvoker, tools=[look], max_tool_calls_per_turn=1)
    chosen = {"type": "allowed_tools", "mode": "auto"}
    ask(stack, options=ChatOptions(extra={"tool_choice": chosen}))
    none: Any = {"type": "none"} if wire is ANTHROPIC else "none"
    assert [body["tool_choice"] for body in server.bodies] == [chosen, none]
