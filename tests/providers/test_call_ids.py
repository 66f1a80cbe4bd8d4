"""Ids of calls on stricter wires."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from chatstack import Message, ToolCall, to_anthropic, to_openai_responses
from chatstack.providers.call_ids import CallIds

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
