"""Ids of calls on stricter wires."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack import ChatOptions, ChatRequest, Message, ToolCall, ToolDeclaration, to_anthropic, to_openai_responses
from chatstack.providers.anthropic import wire as anthropic_wire
from chatstack.providers.call_ids import CallIds
from chatstack.providers.openai import chat_wire, responses_options

ALLOWED = "[a-zA-Z0-9_-]+"


def history(*rounds: tuple[str, ...]) -> list[Message]:
    """Rounds of calls with these ids, each with its result, which says how many calls were made before."""
    messages, number = [Message.user("go")], 0
    for ids in rounds:
        calls = [ToolCall(each, "look", f'{{"at":{number + at}}}') for at, each in enumerate(ids)]
        messages.append(Message.assistant(*calls))
        messages += [Message.tool(each, f"{number + at}", name="look") for at, each in enumerate(ids)]
        number += len(ids)
    return messages


def pairs_of_anthropic(messages: list[Message]) -> list[tuple[str, str, int, str]]:
    """Ids of calls and results, and what they say."""
    wire: Any = to_anthropic(messages)
    blocks = [block for each in wire["messages"] for block in each["content"] if isinstance(block, dict)]
    calls = [(each["id"], each["input"]["at"]) for each in blocks if each["type"] == "tool_use"]
    results = [(each["tool_use_id"], each["content"]) for each in blocks if each["type"] == "tool_result"]
    return [(mine, other, at, str(said)) for (mine, at), (other, said) in zip(calls, results, strict=True)]


def pairs_of_responses(messages: list[Message]) -> list[tuple[str, str, int, str]]:
    items: Any = to_openai_responses(messages)
    calls = [(each["call_id"], int(each["arguments"][6:-1])) for each in items if each.get("type") == "function_call"]
    results = [(each["call_id"], each["output"]) for each in items if each.get("type") == "function_call_output"]
    return [(mine, other, at, str(said)) for (mine, at), (other, said) in zip(calls, results, strict=True)]


def test_ids_that_begin_anew_in_each_answer_stay() -> None:
    rounds = [("call_0", "call_1"), ("call_0",), ("call_0", "call_1")]
    for pairs in (pairs_of_anthropic(history(*rounds)), pairs_of_responses(history(*rounds))):
        assert [each[0] for each in pairs] == ["call_0", "call_1", "call_0", "call_0", "call_1"]
        assert all(call == result and str(at) in said for call, result, at, said in pairs)


def test_two_calls_of_one_id_in_one_answer_have_a_result_each() -> None:
    for pairs in (pairs_of_anthropic(history(("same", "same"))), pairs_of_responses(history(("same", "same")))):
        assert [each[:2] for each in pairs] == [("same", "same"), ("same_1", "same_1")]
        assert all(str(at) in said for _, _, at, said in pairs)


def test_an_id_of_another_server_is_one_that_the_api_takes() -> None:
    found = pairs_of_anthropic(history(("functions.look:0", "functions.look:1"), ("toolu_1",)))
    assert all(re.fullmatch(ALLOWED, call) and call == result for call, result, _, _ in found)
    assert len({call for call, _, _, _ in found}) == 3
    assert found[-1][0] == "toolu_1"
    assert pairs_of_responses(history(("functions.look:0",)))[0][0] == "functions.look:0"


@given(st.lists(st.text("ab_1:", min_size=0, max_size=3), max_size=12), st.integers(0, 12))
def test_ids_are_different_valid_and_stay_as_a_history_grows(ids: list[str], shorter: int) -> None:
    def written(ids: list[str]) -> list[str]:
        known = CallIds({}, {}, allowed=re.compile(ALLOWED))
        return [known.of_call(each) for each in ids]

    found = written(ids)
    assert len(set(found)) == len(ids)
    assert all(re.fullmatch(ALLOWED, each) for each in found)
    assert written(ids[:shorter]) == found[:shorter]


# Names


MADE_UP = {
    "functions.look": "functions_look",
    "multi_tool_use.parallel": "multi_tool_use_parallel",
    "": "_",
    "\ud800look": "_look",
    "look": "look",
    "my.tool": "my.tool",
}


def name_on_chat(request: ChatRequest) -> Any:
    wire: Any = chat_wire.request_to_wire(request)
    return wire["messages"][1]["tool_calls"][0]["function"]["name"]


def name_on_responses(request: ChatRequest) -> Any:
    wire: Any = responses_options.request_to_wire(request)
    return wire["input"][1]["name"]


def name_on_anthropic(request: ChatRequest) -> Any:
    wire: Any = anthropic_wire.request_to_wire(request)
    return wire["messages"][1]["content"][0]["name"]


@pytest.mark.parametrize("name_on", [name_on_chat, name_on_responses, name_on_anthropic])
@pytest.mark.parametrize(("name", "sent"), MADE_UP.items())
def test_a_name_that_a_model_made_up_goes_out_as_one_that_every_api_takes(
    name_on: Callable[[ChatRequest], object], name: str, sent: str
) -> None:
    """Whoever made it up: the history may come from another provider, or from a store."""
    history = (Message.user("go"), Message.assistant(ToolCall("1", name)), Message.tool("1", "done", name=name))
    declared = ChatOptions(tools=(ToolDeclaration("my.tool", "of a server that is less strict"),))
    assert name_on(ChatRequest(history, declared)) == sent


def test_a_long_name_is_cut_where_the_api_refuses_it() -> None:
    history = (Message.user("go"), Message.assistant(ToolCall("1", "a" * 100)), Message.tool("1", "done"))
    assert name_on_chat(ChatRequest(history)) == name_on_responses(ChatRequest(history)) == "a" * 64
    assert name_on_anthropic(ChatRequest(history)) == "a" * 100
