"""Conversations are read from each form as they were written, whatever a recording holds besides."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chatstack import ChatOptions, ChatRequest, InputError, Message, Text, ToolDeclaration
from chatstack.providers.anthropic import wire as anthropic_wire
from chatstack.providers.converters import Form
from chatstack.providers.openai import chat_wire, responses_options, responses_wire
from chatstack.values.parts import ProviderItem
from chatstack.workbench.replay.reading.forms import Conversation, conversation_of
from chatstack.workbench.replay.reading.recordings import BrokenLine, Recording, read_recordings
from chatstack.workbench.replay.reading.sources import sources_from
from tests.histories import PROPERTY, histories, tidy_histories
from tests.workbench.replay.conversations import assistant, data_file, result, user, write_lines
from tests.workbench.replay.test_signs import (
    ANTHROPIC_TOOL,
    CALL,
    CHAT_TOOL,
    RESPONSES_TOOL,
    TEXTS,
    USE,
    block,
    say,
    told,
)

DECLARED = ToolDeclaration("look", parameters='{"type":"object"}')


def recorded(body: Mapping[str, Any]) -> Recording:
    return Recording(dict(body), told(body), "one", "", "talks.jsonl", 1)


def error_in(body: Mapping[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        conversation_of(recorded(body))
    return str(caught.value)


def test_chat_brings_its_tools_old_functions_among_them() -> None:
    body = {"messages": [user("hello")], "tools": [CHAT_TOOL], "functions": [{"name": "see"}]}

    assert conversation_of(recorded(body)) == Conversation(
        (Message.user("hello"),), ChatOptions(tools=(DECLARED, ToolDeclaration("see")))
    )


def test_anthropic_brings_its_system_as_a_message_and_its_tools() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    body = {"system": "Be brief.", "messages": [user("hello")], "tools": [ANTHROPIC_TOOL, search]}

    assert conversation_of(recorded(body)) == Conversation(
        (Message.system("Be brief."), Message.user("hello")),
        ChatOptions(tools=(DECLARED, ProviderItem("anthropic", '{"type":"web_search_20250305","name":"web_search"}'))),
    )


def test_responses_bring_their_instructions_and_tools() -> None:
    strict = {**RESPONSES_TOOL, "strict": True, "description": "Looks.", "defer": 1, "note": None}
    body = {"input": "hello", "instructions": "Be brief.", "tools": [RESPONSES_TOOL, strict, {"type": "web_search"}]}

    conversation = conversation_of(recorded(body))

    assert conversation.messages == (Message.user("hello"),)
    assert conversation.options == ChatOptions(
        instructions="Be brief.",
        tools=(
            DECLARED,
            ToolDeclaration("look", "Looks.", '{"type":"object"}', True, '{"openai-responses":{"defer":1}}'),
            ProviderItem("openai", '{"type":"web_search"}'),
        ),
    )


SIGNED = block("thinking", thinking="hm", signature="s")
RECORDED: dict[Form, list[dict[str, object]]] = {
    "chat": [
        {**user("hello"), "timestamp": 1, "id": 7},
        {**assistant(None, "c"), "refusal": None, "audio": None, "function_call": None, "finish_reason": "tool_calls"},
        {**result("c"), "name": "look", "latency_ms": 5},
        {**assistant("hi"), "tool_calls": [], "usage": {"prompt_tokens": 1}, "annotations": [], "reasoning": None},
    ],
    "messages": [
        {**say(block("text", text="hello", cache_control={"type": "ephemeral"})), "timestamp": 1},
        {**say(SIGNED, *USE["content"], role="assistant"), "id": "msg_1", "type": "message", "stop_reason": "tool_use"},  # type: ignore[misc]
        say(block("tool_result", tool_use_id="c", content=[block("text", text="seen", citations=None)], x=1)),
        {**assistant("hi"), "model": "claude", "stop_reason": "end_turn", "usage": {}, "container": None},
    ],
    "responses": [
        {**user("hello"), "timestamp": 1},
        block("reasoning", id="rs_1", summary=[], content=None, encrypted_content="e", status=None),
        {**CALL, "id": "fc_1", "status": "completed", "latency_ms": 5},
        block("function_call_output", call_id="c", output="seen", id="fco_1", status="completed"),
        {
            **say(block("output_text", text="hi", annotations=[], logprobs=[]), role="assistant"),
            **block("message", id="msg_1", status="completed", phase=None),
        },
    ],
}


@pytest.mark.parametrize("form", RECORDED)
def test_what_only_a_recording_holds_does_no_harm(form: Form) -> None:
    name = "input" if form == "responses" else "messages"
    body = {name: RECORDED[form], "created": 1, "usage": {"total": 1}, "choices": None, "output": [], "stream": 3}

    recording = recorded(body)
    messages = conversation_of(recording).messages

    assert recording.form == form
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert [messages[0].text, messages[3].text] == ["hello", "hi"]
    assert [(call.id, call.name) for call in messages[1].calls] == [("c", "look")]
    (found,) = messages[2].results
    assert (found.call_id, found.name) == ("c", "look")
    assert found.output == "seen" or [part.text for part in found.output if isinstance(part, Text)] == ["seen"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"messages": [assistant("x"), {**result("c"), "tool_call_id": 3}]}, "messages[1].tool_call_id: expected text"),
        ({"messages": [{**assistant("x"), "tool_calls": [{"id": "c"}]}]}, "messages[0].tool_calls[0].function: exp"),
        ({"messages": [result("c")], "functions": [3]}, "tools[0].function: expected an object, got int"),
        ({"messages": [USE, say(block("text", text={"value": "x"}))]}, "messages[1].content[0].text: expected text"),
        ({"messages": [say(block("tool_use", id="c"), role="assistant")]}, "messages[0].content[0].name: expected"),
        ({"messages": [say(block("tool_result"))]}, "messages[0].content[0].tool_use_id: expected text, got NoneType"),
        (
            {"messages": [say(block("tool_result", tool_use_id="c", content=[block("text")]))]},
            "messages[0].content[0].content[0].text: expected text, got NoneType",
        ),
        (
            {"messages": [say(block("tool_result", tool_use_id="c", content=["x"]))]},
            "messages[0].content[0].content[0]: expected an object, got str",
        ),
        ({"input": [*TEXTS, {**CALL, "arguments": {}}]}, "input[2].arguments: expected text, got dict"),
        ({"input": [say(block("input_text"))]}, "input[0].content[0].text: expected text, got NoneType"),
        ({"input": "hello", "instructions": [3]}, "instructions: expected text, got list"),
        ({"input": "hello", "tools": [{"type": "function", "name": 3}]}, "tools[0].name: expected text, got int"),
    ],
)
def test_what_cannot_be_converted_is_told_with_its_place(body: dict[str, Any], error: str) -> None:
    assert error in error_in(body)


WIRES: dict[Form, tuple[Callable[..., Any], Callable[..., tuple[Message, ...]]]] = {
    "chat": (chat_wire.messages_to_wire, chat_wire.messages_from_wire),
    "messages": (anthropic_wire.messages_to_wire, anthropic_wire.messages_from_wire),
    "responses": (responses_wire.messages_to_wire, responses_wire.messages_from_wire),
}


def wires_of(history: list[Message]) -> dict[Form, dict[str, Any]]:
    """The bodies of that request in each form."""
    request = ChatRequest(tuple(history), ChatOptions(tools=(DECLARED,)))
    return {
        "chat": chat_wire.request_to_wire(request, model="gpt-4o"),
        "messages": anthropic_wire.request_to_wire(request.but(options=request.options.but(model="claude-sonnet-4-5"))),
        "responses": responses_options.request_to_wire(request, model="gpt-5"),
    }


@PROPERTY
@given(tidy_histories())
def test_what_was_written_in_a_form_is_read_in_it_and_goes_out_as_it_came(history: list[Message]) -> None:
    for form, body in wires_of(history).items():
        assume(body.get("messages") or body.get("input"))
        recording = recorded(body)
        conversation = conversation_of(recording)

        assert recording.form == form
        assert conversation.options.tools[0].name == "look"  # type: ignore[union-attr]
        assert wires_of(list(conversation.messages))[form] == body


@PROPERTY
@given(histories())
def test_a_bare_list_says_the_same_though_its_form_may_not_show(history: list[Message]) -> None:
    for form, (write, read) in WIRES.items():
        wire = write(history)
        assume(wire)
        recording = Recording({"input" if told(wire) == "responses" else "messages": wire}, told(wire), "", "", "", 1)

        assert recording.form in (form, "chat")
        assert conversation_of(recording).messages == read(wire)


PLACES = st.lists(st.integers(0, 40), min_size=1, max_size=8)
ODD: st.SearchStrategy[object] = st.sampled_from(
    [
        None,
        True,
        -1,
        10**30,
        1.5,
        "",
        "text",
        "\ud800",
        "tool_use",
        "function",
        [],
        [[]],
        {},
        {"type": "text"},
        {"a": 1},
    ]
)


def spoilt(value: object, places: list[int], odd: object) -> object:
    """The value with something else at a place in it, found by going down from choice to choice."""
    if not places or not isinstance(value, (list, dict)) or not value:
        return odd
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    at = keys[places[0] % len(keys)]
    changed: Any = dict(value) if isinstance(value, dict) else list(value)
    changed[at] = spoilt(value[at], places[1:], odd)
    return changed


@PROPERTY
@given(st.sampled_from(list(RECORDED)), PLACES, ODD)
def test_whatever_is_wrong_inside_is_an_input_error_or_nothing(form: Form, places: list[int], odd: object) -> None:
    tools = {"chat": CHAT_TOOL, "messages": ANTHROPIC_TOOL, "responses": RESPONSES_TOOL}[form]
    beside = {"tools": [tools], "system": "Be brief."} if form == "messages" else {"tools": [tools]}
    body = {**beside, "input" if form == "responses" else "messages": RECORDED[form]}
    value: Any = spoilt(body, places, odd)
    assume(isinstance(value, dict) and value != body)

    with contextlib.suppress(InputError):
        assert conversation_of(recorded(value)).messages


def test_what_is_nested_very_deeply_is_told() -> None:
    deep: dict[str, object] = {}
    for _ in range(100_000):
        deep = {"a": deep}

    error = error_in({"messages": [{**assistant("hi"), "x": deep}]})

    assert error == "messages[0]: nested too deeply"


@pytest.mark.data
def test_every_recorded_request_is_read_in_its_form(tmp_path: Path) -> None:
    with gzip.open(data_file("provider_pairs.dev.jsonl.gz")) as lines:
        rows = [json.loads(line) for line in lines]
    path = write_lines(tmp_path / "requests.jsonl", *(row["request"] for row in rows))
    with sources_from([path]) as sources:
        items = list(read_recordings(sources))

    assert [item for item in items if isinstance(item, BrokenLine)] == []
    found = Counter((row["kind"], item.form) for row, item in zip(rows, items, strict=True))  # type: ignore[union-attr]
    assert found == {
        ("openai-chat", "chat"): 158,
        ("anthropic-messages", "messages"): 252,
        ("anthropic-count", "messages"): 1,
    }
    assert all(conversation_of(item).messages for item in items if isinstance(item, Recording))
