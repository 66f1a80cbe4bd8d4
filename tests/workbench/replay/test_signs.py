"""Which form a recorded conversation is in is told by what is in it."""

from __future__ import annotations

from typing import cast

import pytest

from chatstack import InputError
from chatstack.providers.converters import Form
from chatstack.workbench.replay.reading.signs import form_of
from tests.workbench.replay.conversations import assistant, result, user

EVERY_FORM = "a conversation has to be all OpenAI chat messages, Anthropic messages or OpenAI Responses items"
CHAT_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
ANTHROPIC_TOOL = {"name": "look", "input_schema": {"type": "object"}}
RESPONSES_TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}
CLAUDE = {"model": "claude-sonnet-4-5"}


def say(*blocks: object, role: str = "user") -> dict[str, object]:
    return {"role": role, "content": list(blocks)}


def block(kind: str, **fields: object) -> dict[str, object]:
    return {"type": kind, **fields}


CALL = block("function_call", call_id="c", name="look", arguments="{}")
USE = say(block("tool_use", id="c", name="look", input={}), role="assistant")
TEXTS = [user("hello"), assistant("hi")]


def told(value: object) -> Form:
    """The form of a body, or of a bare list."""
    if not isinstance(value, dict):
        return form_of(value, {})
    body = cast("dict[str, object]", value)
    return form_of(body["messages" if "messages" in body else "input"], body)


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (TEXTS, "chat"),
        ({"messages": TEXTS}, "chat"),
        ({"messages": TEXTS, "model": "gpt-4o"}, "chat"),
        ({"messages": TEXTS, "model": "us.anthropic.Claude-3-5"}, "messages"),
        ({"messages": [user("hello"), {"role": "system", "content": "Now."}], **CLAUDE}, "messages"),
        ({"messages": [{"role": "system", "content": "Be brief."}, *TEXTS], **CLAUDE}, "chat"),
        ({"messages": TEXTS, "system": "Be brief."}, "messages"),
        ({"messages": TEXTS, "system": [block("text", text="Be brief.")]}, "messages"),
        ({"messages": TEXTS, "system": {"os": "linux"}}, "chat"),
        ({"messages": TEXTS, "system": "", "tools": None}, "chat"),
        ({"messages": TEXTS, "functions": [{"name": "look"}], **CLAUDE}, "chat"),
        ({"messages": TEXTS, "tools": [CHAT_TOOL], **CLAUDE}, "chat"),
        ({"messages": TEXTS, "tools": [ANTHROPIC_TOOL]}, "messages"),
        ({"messages": TEXTS, "input": "hello", "output": "hi"}, "chat"),
        ([user("hello"), assistant(None, "c"), result("c")], "chat"),
        ({"messages": [user("hello"), result("c")], **CLAUDE}, "chat"),
        ([{"role": "developer", "content": "Be brief."}, user("hello")], "chat"),
        ([{"role": "developer", "content": "Be brief."}, CALL], "responses"),
        ({"messages": [user("hello"), assistant(None)], **CLAUDE}, "chat"),
        ({"messages": [user("hello"), {**assistant("hi"), "refusal": None}], **CLAUDE}, "chat"),
        ([say(block("image_url", image_url={"url": "u"}))], "chat"),
        ([say(block("image", source={}))], "messages"),
        ([user("hello"), USE], "messages"),
        ([user("hello"), say(block("tool_result", tool_use_id="c"))], "messages"),
        ([say(block("thinking", thinking="hm", signature="s"), role="assistant")], "messages"),
        ([say(block("web_search_tool_result", content=[]), role="assistant")], "messages"),
        ([user("hello"), {"type": "message", "stop_reason": "end_turn", **assistant("hi")}], "messages"),
        ([user("hello"), {"type": "message", "id": "msg_1", **assistant("hi")}], "responses"),
        ([user("hello"), CALL], "responses"),
        ([user("hello"), block("reasoning", summary=[])], "responses"),
        ([say(block("input_text", text="hello"))], "responses"),
        ([user("hello"), say(block("output_text", text="hi"), role="assistant")], "responses"),
        ({"input": TEXTS}, "responses"),
        ({"input": "hello"}, "responses"),
        ({"input": TEXTS, "tools": [RESPONSES_TOOL], "previous_response_id": None}, "responses"),
        ([say(block("text", text="hello")), say(block("from_tomorrow"), role="assistant")], "chat"),
    ],
)
def test_the_form_is_told_by_what_is_in_it(value: object, form: Form) -> None:
    assert told(value) == form


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (
            [user("hello"), assistant(None, "c"), USE],
            "mixes forms: messages[2].content[0].type tool_use is of Anthropic messages, but messages[1].tool_calls is "
            f"of OpenAI chat messages; {EVERY_FORM}",
        ),
        (
            {"messages": [user("hello"), CALL]},
            "mixes forms: messages[1].type is of OpenAI Responses items, but messages is of OpenAI chat messages or "
            f"Anthropic messages; {EVERY_FORM}",
        ),
        (
            {"input": [user("hello"), result("c")]},
            "mixes forms: input[1].role is of OpenAI chat messages, but input is",
        ),
        ({"input": [say(block("text", text="hello"))]}, "mixes forms: input[0].content[0].type text is of OpenAI chat"),
        ({"messages": [result("c")], "system": "Be brief."}, "messages[0].role is of OpenAI chat messages, but system"),
        ({"messages": [USE], "tools": [CHAT_TOOL]}, "but tools[0].function is of OpenAI chat messages"),
        ({"messages": [result("c")], "tools": [{}, ANTHROPIC_TOOL]}, "but tools[1].input_schema is of Anthropic"),
        ({"messages": [], "tools": [RESPONSES_TOOL]}, "tools[0].name is of OpenAI Responses items, but messages is"),
        ({"messages": TEXTS, "tools": {}}, "tools: expected a list, got dict"),
        ({"messages": TEXTS, "tools": ["look"]}, "tools[0]: expected an object, got str"),
        ({"messages": "hello"}, "messages: expected a list of messages, got str"),
        ({"input": 3}, "input: expected a list of messages, got int"),
        ({"input": []}, "the conversation has no messages"),
        ({"input": [[]]}, "input[0]: expected an object, got list"),
        ({"input": [{}]}, "input[0].role: expected text, got null"),
        ([{"role": "human", "content": "hello"}], "messages[0].role: expected one of system, developer, user, assist"),
        ([block("tool_use", id="c")], "messages[0].type: a tool_use block stands where a message is expected"),
        ([block("text", text="hello")], "messages[0].type: a text block stands where a message is expected"),
        ([user("hello"), {"role": "user", "content": {}}], "messages[1].content: expected text or a list, got dict"),
        (
            [block("click", x=1), block("scroll")],
            "not a conversation: found a list of objects of type 'click', 'scroll'",
        ),
        ([say("hello")], "messages[0].content[0]: expected an object, got str"),
        ([say(block("text", text="a"), {"type": 3})], "messages[0].content[1].type: expected text, got int"),
        ({"input": TEXTS, "previous_response_id": "resp_1"}, "previous_response_id: what came before is only at the"),
        ({"input": TEXTS, "conversation": {"id": "conv_1"}}, "conversation: what came before is only at the server"),
        ([CALL, block("item_reference", id="x")], "messages[1]: an item_reference is of an item that only the server"),
    ],
)
def test_what_has_no_form_is_told_with_its_place(value: object, error: str) -> None:
    with pytest.raises(InputError) as caught:
        told(value)
    assert error in str(caught.value)
