"""Within a turn, what the model thought and what its provider added go back as they came, and to nobody else."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from itertools import pairwise, permutations
from typing import Any, cast

import pytest
from anthropic.types.beta import BetaMessageParam
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter

from chatstack import (
    ChatOptions,
    ChatResponse,
    ChatStack,
    ContextWindowGuard,
    Fallback,
    FunctionInvoker,
    Message,
    ServerError,
    Summarizer,
    ToolResultClearer,
)
from chatstack.providers.openai import OpenAIResponsesClient
from chatstack.providers.openai.responses_wire import message_from_wire
from chatstack.testing import ScriptedClient
from tests.model_server import MODEL, missing_part, model_server
from tests.providers.test_anthropic_pairs import DATA, folded_by_the_sdk, rows, visible, without_nulls
from tests.servers import mock_server
from tests.tools.wire_script import (
    ANTHROPIC,
    OUTPUTS,
    RESPONSES,
    SERVER_ITEMS,
    WIRES,
    Item,
    Played,
    PlayedServer,
    Round,
    Wire,
    anthropic_block,
    anthropic_rounds,
    events,
    function_call,
    reasoning,
    responses_streamed,
    use,
)

BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
ON_EVERY_WIRE = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)


def look(place: str, at: list[float] | None = None) -> str:
    """Looks there."""
    return place * 300


def ask(stack: ChatStack, *, stream: bool, history: Sequence[Message] = (), **options: Any) -> ChatResponse:
    return asyncio.run(asked(stack, stream, history, ChatOptions(**options)))


async def asked(stack: ChatStack, stream: bool, history: Sequence[Message], options: ChatOptions) -> ChatResponse:
    async with stack.open() as client:
        if not stream:
            return await client.get_response(history or "go", options=options)
        async with client.get_streaming_response(history or "go", options=options) as answer:
            return await answer.response()


def bodies(wire: Wire, answers: Sequence[Played], *, stream: bool, **options: Any) -> list[Item]:
    """The bodies of the requests of one turn with those answers; it must have used them all."""
    server = PlayedServer(*answers)
    ask(ChatStack(wire.client(server)).use(FunctionInvoker, tools=[look]), stream=stream, **options)
    assert len(server.bodies) == len(answers)
    return server.bodies


# A turn, on each wire


@ON_EVERY_WIRE
@BOTH_WAYS
def test_every_round_is_sent_what_the_model_said_in_all_rounds_before(wire: Wire, stream: bool) -> None:
    for number, body in enumerate(bodies(wire, wire.plays(wire.turn, stream=stream), stream=stream)):
        before = wire.turn[:number]
        assert wire.rounds(body) == before
        assert [arguments(said) for said in wire.rounds(body)] == [arguments(said) for said in before]
        assert result_ids(body) == [id for said in before for id in call_ids(said)]


def arguments(round: Round) -> list[str]:
    """Of every call, as text: unlike values, 1 and 1.0 differ in it, and so do fields in another order."""
    blocks = [json.dumps(item["input"]) for item in round if item.get("type") in ("tool_use", "mcp_tool_use")]
    items = [item["arguments"] for item in round if item.get("type") == "function_call"]
    return blocks + items + [call["function"]["arguments"] for item in round for call in item.get("tool_calls", ())]


@ON_EVERY_WIRE
@BOTH_WAYS
def test_a_turn_that_is_over_goes_back_in_the_next_one_as_it_came(wire: Wire, stream: bool) -> None:
    server = PlayedServer(*wire.plays([*wire.turn, wire.turn[-1]], stream=stream))
    stack = ChatStack(wire.client(server)).use(FunctionInvoker, tools=[look])
    first = ask(stack, stream=stream)
    ask(stack, stream=stream, history=(Message.user("go"), *first.messages, Message.user("go on")))
    assert wire.rounds(server.bodies[-1]) == wire.turn


# Anthropic: recorded answers

IF_THERE = pytest.mark.skipif(not DATA.exists(), reason="the recorded provider exchanges are not on this machine")


@pytest.mark.sampled(4)
@pytest.mark.data
@IF_THERE
@pytest.mark.parametrize("row", rows(["anthropic-messages"], "response"))
def test_a_recorded_answer_goes_back_with_its_results(row: Any) -> None:
    """One without a call gets a call of ours behind it, or, where it paused, nothing."""
    answer: Item = row["response"]
    if answer["stop_reason"] != "pause_turn":
        content: Round = answer["content"] + ([] if call_ids(answer["content"]) else [use("toolu_ours")])
        answer = {**answer, "content": content, "stop_reason": "tool_use"}
    sent = bodies(ANTHROPIC, [Played(json.dumps(answer)), END], stream=False)[1]
    (marked,) = anthropic_rounds(sent)
    # A paused answer is the end of the request, where a mark for the cache is.
    back = [{name: value for name, value in block.items() if name != "cache_control"} for block in marked]
    assert without_nulls(back) == visible(answer["content"])
    assert theirs_alone(back) == theirs_alone(answer["content"])
    assert result_ids(sent) == call_ids(answer["content"])


@pytest.mark.sampled(4)
@pytest.mark.data
@IF_THERE
@pytest.mark.parametrize("row", rows(["anthropic-messages"], "response_sse"))
def test_a_recorded_stream_goes_back_with_its_results(row: Any) -> None:
    found = [json.loads(line[5:]) for line in row["response_sse"].splitlines() if line.startswith("data:")]
    blocks = [event["content_block"] for event in found if event["type"] == "content_block_start"]
    (end,) = (number for number, event in enumerate(found) if event["type"] == "message_delta")
    found[end]["delta"]["stop_reason"] = "tool_use"
    if not call_ids(blocks):
        found[end:end] = anthropic_block(len(blocks), use("toolu_ours"))
    played = events(*found)
    whole = asyncio.run(folded_by_the_sdk(played.body))["content"]
    sent = bodies(ANTHROPIC, [played, ANTHROPIC.streamed(ANTHROPIC.turn[-1])], stream=True)[1]
    (content,) = anthropic_rounds(sent)
    assert without_nulls(content) == visible(whole)
    assert result_ids(sent) == call_ids(whole) != []


END = ANTHROPIC.whole(ANTHROPIC.turn[-1])


def theirs_alone(content: Round) -> Round:
    """The blocks that nobody but Anthropic understands."""
    return [block for block in content if block["type"] not in ("text", "tool_use")]


def call_ids(round: Round) -> list[str]:
    """The ids of the calls that wait for results, on whatever wire."""
    items: list[str] = [item.get("call_id") or item["id"] for item in round if item.get("type") in CALLS]
    return items + [call["id"] for item in round for call in item.get("tool_calls", ())]


def result_ids(body: Item) -> list[str]:
    """The ids of the results in a request, on whatever wire."""
    sent: list[Item] = body.get("messages") or body["input"]
    inner: list[Item] = [block for each in sent if isinstance(each.get("content"), list) for block in each["content"]]
    return [each[RESULTS[kind]] for each in sent + inner if (kind := each.get("type", each.get("role"))) in RESULTS]


CALLS = ("tool_use", "function_call", "custom_tool_call")
RESULTS = {"tool_result": "tool_use_id", "tool": "tool_call_id"} | dict.fromkeys(OUTPUTS, "call_id")


# OpenAI Responses: items of the SDK's own types


@BOTH_WAYS
@pytest.mark.parametrize("item", SERVER_ITEMS, ids=lambda item: item["type"])
def test_an_item_of_the_servers_own_tools_goes_back_between_reasoning_and_call(item: Item, stream: bool) -> None:
    said = [reasoning("rs_1", "why"), item, reasoning("rs_2"), function_call(1)]
    body = bodies(RESPONSES, RESPONSES.plays([said, RESPONSES.turn[-1]], stream=stream), stream=stream)[1]
    assert body["input"][1:-1] == said
    assert (body["input"][-1]["type"], body["input"][-1]["call_id"]) == ("function_call_output", "call_1")
    assert_takes(RESPONSES, body)


def test_a_stream_whose_last_event_leaves_the_items_out_is_sent_back_all_the_same() -> None:
    first = RESPONSES.turn[0]
    played = [responses_streamed(each, is_told_at_the_end=False) for each in (first, RESPONSES.turn[-1])]
    assert RESPONSES.rounds(bodies(RESPONSES, played, stream=True)[1]) == [first]


@BOTH_WAYS
def test_where_the_server_keeps_nothing_every_round_asks_for_what_is_encrypted(stream: bool) -> None:
    extra = {"store": False, "include": ["reasoning.encrypted_content"]}
    sent = bodies(RESPONSES, RESPONSES.plays(RESPONSES.turn, stream=stream), stream=stream, extra=extra)
    assert [(body["store"], body["include"]) for body in sent] == [(False, ["reasoning.encrypted_content"])] * 4
    assert RESPONSES.rounds(sent[-1]) == RESPONSES.turn[:-1]
    assert not any("previous_response_id" in body for body in sent)


# Another provider

SECRETS = ("S-", "First", "Then", "openly")  # begin whatever was reasoned, signed or encrypted
OVERLOADED = Played('{"error": {"type": "overloaded_error", "message": "busy"}}', status=529)
VALID: dict[str, TypeAdapter[Any]] = {
    "anthropic": TypeAdapter(list[BetaMessageParam]),
    "responses": TypeAdapter(list[ResponseInputItemParam]),
    "chat": TypeAdapter(list[ChatCompletionMessageParam]),
}
CHANGES = pytest.mark.parametrize(("first", "second"), list(permutations(WIRES, 2)), ids=lambda wire: wire.name)


@pytest.mark.sampled(3)
@BOTH_WAYS
@CHANGES
def test_who_takes_over_within_a_turn_gets_no_reasoning_and_who_comes_back_gets_its_own_again(
    first: Wire, second: Wire, stream: bool
) -> None:
    said = first.plays([*first.turn[:2], first.turn[-1]], stream=stream)
    ours = PlayedServer(*said[:2], OVERLOADED, said[2])
    theirs = PlayedServer(*second.plays(second.turn[:1], stream=stream))
    stack = ChatStack(first.client(ours)).use(FunctionInvoker, tools=[look])
    ask(stack.use(Fallback, clients=[second.client(theirs)]), stream=stream)
    (taken,), back = theirs.bodies, ours.bodies[3]
    assert first.rounds(ours.bodies[2]) == first.turn[:2]
    assert has_secrets(ours.bodies[2])
    assert not has_secrets(taken)
    assert [call_ids(each) for each in second.rounds(taken)] == [call_ids(each) for each in first.turn[:2]]
    assert result_ids(taken) == result_ids(ours.bodies[2]) != []
    *own, foreign = first.rounds(back)
    assert own == first.turn[:2]
    assert not has_secrets(foreign)
    assert call_ids(foreign) == call_ids(second.turn[0]) == result_ids(back)[-2:]
    assert_takes(second, taken)
    assert_takes(first, back)


def has_secrets(sent: object) -> bool:
    return any(secret in json.dumps(sent) for secret in SECRETS)


def assert_takes(wire: Wire, body: Item) -> None:
    """The SDK's own types for requests take it, but for the id of a message, which nobody makes up."""
    sent = body.get("messages") or [item for item in body["input"] if item.get("type") != "message"]
    VALID[wire.name].validate_python(sent)


# Layers that edit, inside the tool loop

EDITORS: dict[str, tuple[type, dict[str, Any]]] = {
    "clearer": (ToolResultClearer, {"trigger": {"tokens": 2000}, "keep": {"messages": 2}, "clear_tool_inputs": True}),
    "summarizer": (Summarizer, {"max_tokens": 2500, "summary_client": ScriptedClient(["A summary."])}),
    "guard": (ContextWindowGuard, {"max_context_tokens": 3000, "prune_on_overflow": True}),
}


@pytest.mark.sampled(5)
@ON_EVERY_WIRE
@BOTH_WAYS
@pytest.mark.parametrize("editor", EDITORS)
def test_edits_within_a_turn_leave_the_last_round_as_it_came_and_of_others_all_but_calls(
    wire: Wire, stream: bool, editor: str
) -> None:
    turn = [numbered(wire.turn[number % 3], number) for number in range(8)]
    server = PlayedServer(*wire.plays([*turn, wire.turn[-1]], stream=stream))
    layer, options = EDITORS[editor]
    stack = ChatStack(wire.client(server)).use(FunctionInvoker, tools=[look], max_tool_calls_per_turn=20)
    ask(stack.use(layer, **options), stream=stream, max_tokens=100)
    sent = [wire.rounds(without_summary(body)) for body in server.bodies]
    for number, rounds in enumerate(sent[1:], 1):
        assert rounds[-1] == turn[number - 1]
        left = [without_arguments(each) for each in turn[number - len(rounds) : number]]
        assert [without_arguments(each) for each in rounds] == left
    assert len([number for number, rounds in enumerate(sent) if rounds != turn[:number]]) >= 3
    for body in server.bodies:  # the API joins assistant messages in a row, and refuses thinking in the middle of one
        roles = [message["role"] for message in body["messages"]] if wire is ANTHROPIC else []
        assert ("assistant", "assistant") not in pairwise(roles)


def numbered(round: Round, number: int) -> Round:
    """The round with ids and signatures of its own."""
    ids = r'"((?:toolu|srvtoolu|mcptoolu|call|fc|rs|ws|ctc|cmp|ci|msg)_(?=\d)|S-|Then|First)'
    found: Round = json.loads(re.sub(ids, rf'"\g<1>{number}', json.dumps(round)))
    return found


def without_summary(body: Item) -> Item:
    name = "messages" if "messages" in body else "input"
    return {**body, name: [each for each in body[name] if "A summary." not in json.dumps(each)]}


def without_arguments(round: Round) -> Round:
    """What was said, without what its calls were called with, which a clearer may take away."""
    found = json.loads(json.dumps(round))
    for item in found:
        if item.get("type") in ("tool_use", "function_call", "custom_tool_call"):
            item.pop("input", item.pop("arguments", None))
        for call in item.get("tool_calls", ()):
            del call["function"]["arguments"]
    return cast("Round", found)


# Real HTTP


def over_http(url: str, first: Message | None, *, stream: bool, model: str) -> ChatResponse:
    """A turn over the Responses API of that server, its first answer played, if given."""
    provider = OpenAIResponsesClient(model, api_key="none", base_url=url, max_retries=0)
    stack = ChatStack(provider).use(FunctionInvoker, tools=[look])
    if first is not None:
        script = ScriptedClient([first, ServerError("busy", provider="scripted")])
        stack = ChatStack(script).use(FunctionInvoker, tools=[look]).use(Fallback, clients=[provider])

    async def closed_after() -> ChatResponse:
        async with provider:
            return await asked(stack, stream, (), ChatOptions(max_tokens=20, temperature=0.0))

    return asyncio.run(closed_after())


@pytest.mark.server
@BOTH_WAYS
def test_a_mock_server_takes_a_second_round_over_responses(stream: bool) -> None:
    calls = [{"name": "look", "arguments": {"place": place}} for place in ("Oslo", "Bergen")]
    with mock_server() as server:
        server.script({"type": "reply", "text": "I look.", "tool_calls": calls}, {"type": "reply", "text": "Nothing."})
        response = over_http(server.openai_url, None, stream=stream, model="gpt-5")
        items: Any = server.bodies()[1]["input"]
    assert (response.text, response.rounds) == ("Nothing.", 2)
    assert [item["type"] for item in items[1:]] == ["message"] + ["function_call"] * 2 + ["function_call_output"] * 2
    assert [item["output"] for item in items[-2:]] == ["Oslo" * 300, "Bergen" * 300]


@pytest.mark.server
@pytest.mark.skipif(bool(missing_part()), reason=f"the real model needs {missing_part()}, which is not installed")
def test_a_real_model_takes_a_second_round_with_reasoning_over_responses() -> None:
    # It is too small to call a tool by itself.
    thought = reasoning("rs_1", content=[{"type": "reasoning_text", "text": "I should look."}])
    first = message_from_wire([thought, function_call(1)])
    with model_server() as server:
        for stream in (False, True):
            response = over_http(server.openai_url, first, stream=stream, model=MODEL)
            assert [message.role for message in response.messages] == ["assistant", "tool", "assistant"]
            assert response.text
