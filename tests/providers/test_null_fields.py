"""Null fields, as ``model_dump()`` of the SDKs' objects writes them: each is read as an absent one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from anthropic.types import ServerToolUseBlock
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall
from openai.types.responses import (
    EasyInputMessage,
    ResponseFunctionToolCallOutputItem,
    ResponseInputImage,
    ResponseOutputMessage,
)
from openai.types.responses.response_input_item import ItemReference

from chatstack import (
    Message,
    ToolCall,
    from_anthropic,
    from_openai_chat,
    from_openai_responses,
    to_openai_chat,
    to_openai_responses,
)
from chatstack.providers.wires import Form, read_messages, write_messages

QUESTION = {"role": "user", "content": "q"}
CALL = {"index": 0, "id": "c1", "function": {"name": "refund", "arguments": '{"order": 4711}'}}


@pytest.mark.parametrize("role", ["user", "developer", "system", "assistant"])
def test_a_message_of_responses_whose_type_is_null_is_that_of_its_role(role: Any) -> None:
    dumped = EasyInputMessage(role=role, content="My order is 4711.").model_dump()
    assert dumped["type"] is None
    plain = {"role": role, "content": "My order is 4711."}
    history = from_openai_responses([dumped])
    assert history == from_openai_responses([plain])
    assert (history[0].role, history[0].text) == ("system" if role == "developer" else role, "My order is 4711.")
    assert to_openai_responses(history) == [plain]


def test_each_message_whose_type_is_null_is_a_message_of_its_own() -> None:
    items = [{"role": role, "content": role, "type": None} for role in ("user", "assistant", "user", "assistant")]
    assert [message.role for message in read_messages("responses", items)] == ["user", "assistant"] * 2


def test_an_item_with_nothing_but_an_id_refers_to_one_of_the_servers() -> None:
    dumped = ItemReference(id="msg_1").model_dump()
    history = from_openai_responses([QUESTION, dumped])
    assert history == from_openai_responses([QUESTION, {"id": "msg_1"}])
    assert to_openai_responses(history) == [QUESTION, {"id": "msg_1", "type": "item_reference"}]


def test_a_call_whose_type_is_null_is_a_call_of_its_function() -> None:
    call = ChoiceDeltaToolCall.model_validate(CALL).model_dump()
    del call["index"]
    assert call["type"] is None
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    history = from_openai_chat([QUESTION, asked, {"role": "tool", "tool_call_id": "c1", "content": "done"}])
    assert history[1] == Message.assistant(ToolCall("c1", "refund", '{"order": 4711}'))
    assert history[2].results[0].name == "refund"
    written = to_openai_chat(history)[1]["tool_calls"]
    assert written == [{"id": "c1", "type": "function", "function": CALL["function"]}]


DUMPED: dict[str, tuple[Callable[[Sequence[object]], list[Message]], Any]] = {
    "chat answer": (from_openai_chat, ChatCompletionMessage(role="assistant", content="hi")),
    "Responses answer": (
        from_openai_responses,
        ResponseOutputMessage.model_validate(
            {
                "id": "m",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [
                    {"type": "output_text", "text": "x", "annotations": []},
                    {"type": "refusal", "refusal": "no"},
                ],
            }
        ),
    ),
    "Responses result": (
        from_openai_responses,
        ResponseFunctionToolCallOutputItem.model_validate(
            {"id": "o", "type": "function_call_output", "call_id": "c", "output": "x", "status": "completed"}
        ),
    ),
    "Responses picture": (
        lambda content: from_openai_responses([{"role": "user", "content": content[1:]}]),
        ResponseInputImage(type="input_image", detail="low", image_url="https://example.org/a.png"),
    ),
    "Anthropic server tool": (
        lambda content: from_anthropic([{"role": "assistant", "content": content[1:]}]),
        ServerToolUseBlock(type="server_tool_use", id="s", name="web_search", input={}),
    ),
}


@pytest.mark.parametrize(("read", "given"), DUMPED.values(), ids=DUMPED.keys())
def test_what_was_dumped_with_nulls_is_read_as_the_object_is(
    read: Callable[[Sequence[object]], list[Message]], given: Any
) -> None:
    assert None in given.model_dump().values()
    assert read([QUESTION, given.model_dump()]) == read([QUESTION, given])


def test_no_null_goes_out_that_openai_refuses() -> None:
    """It answers ``None is not of type 'object' - 'messages.1.function_call'``."""
    answer = ChatCompletionMessage(role="assistant", content="hi").model_dump()
    assert to_openai_chat(from_openai_chat([{**QUESTION, "name": None}, answer])) == [
        QUESTION,
        {"role": "assistant", "content": "hi"},
    ]


KEPT: dict[str, tuple[Form, dict[str, Any]]] = {
    "a content part's": ("chat", {"role": "user", "content": [{"type": "text", "text": "a", "x": None}]}),
    "an item's that demands it": ("responses", {"type": "code_interpreter_call", "code": None, "outputs": None}),
    "a citation's": (
        "messages",
        {"role": "assistant", "content": [{"type": "text", "text": "a", "citations": [{"document_title": None}]}]},
    ),
}


@pytest.mark.parametrize(("form", "item"), KEPT.values(), ids=KEPT.keys())
def test_a_null_deeper_inside_or_in_an_item_of_the_providers_goes_back(form: Form, item: dict[str, Any]) -> None:
    given = json.loads(json.dumps(item))
    assert write_messages(form, read_messages(form, [given])) == [item]
