"""Requests and answers of the three APIs as plain JSON, without an SDK: read, and written again."""

from __future__ import annotations

import pytest

from chatstack import InputError, Message
from chatstack.errors import BrokenStreamError, ContextOverflowError, ServerError
from chatstack.providers.converters import Form
from chatstack.providers.wires import AnswerReader, read_messages, read_request, write_messages, write_request
from chatstack.values.parts import Text, ToolCall
from chatstack.values.responses import ChatUpdate, Usage

CHAT: dict[str, object] = {
    "model": "gpt-5-mini",
    "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
    "max_completion_tokens": 9,
    "metadata": {"unknown": [1]},
}
MESSAGES: dict[str, object] = {
    "model": "claude-sonnet-5",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
    "service_tier": "auto",
}
RESPONSES: dict[str, object] = {
    "model": "gpt-5-mini",
    "instructions": "be brief",
    "input": [{"role": "user", "content": "hello"}],
    "max_output_tokens": 9,
    "reasoning": {"effort": "low", "summary": "auto"},
    "tools": [{"type": "function", "name": "now", "strict": False, "parameters": None}, {"type": "web_search"}],
    "tool_choice": {"type": "function", "name": "now"},
    "store": False,
}
BODIES: dict[Form, dict[str, object]] = {"chat": CHAT, "messages": MESSAGES, "responses": RESPONSES}
ITEMS = {"chat": "messages", "messages": "messages", "responses": "input"}


@pytest.mark.parametrize("form", BODIES)
def test_a_request_that_was_read_is_written_as_it_was(form: Form) -> None:
    request = read_request(form, BODIES[form])

    assert request.messages[-1] == Message.user("hello")
    assert request.options.max_tokens == 9
    assert write_request(form, request) == BODIES[form]


@pytest.mark.parametrize("form", BODIES)
def test_streaming_is_read_and_written(form: Form) -> None:
    request = read_request(form, {**BODIES[form], "stream": True})

    assert request.stream
    assert write_request(form, request)["stream"] is True


@pytest.mark.parametrize("form", BODIES)
def test_messages_alone_are_read_and_written(form: Form) -> None:
    items = BODIES[form][ITEMS[form]]
    assert isinstance(items, list)

    assert write_messages(form, read_messages(form, items)) == items


@pytest.mark.parametrize("form", BODIES)
@pytest.mark.parametrize("items", [[7], "x", [{"role": "nobody", "content": 3}], {}])
def test_malformed_messages_are_an_input_error(form: Form, items: object) -> None:
    if form == "responses" and items == "x":
        assert read_request(form, {"input": items}).messages == (Message.user("x"),)
        return
    with pytest.raises(InputError):
        read_request(form, {ITEMS[form]: items})


def test_a_responses_request_keeps_what_has_no_field_here() -> None:
    options = read_request("responses", {"input": "x", "tool_choice": {"type": "file_search"}, "seed": 3}).options

    assert dict(options.extra) == {"tool_choice": {"type": "file_search"}, "seed": 3}
    assert options.tool_choice is None


SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]}
STREAMS: dict[Form, list[object]] = {
    "chat": [
        {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "he"}}]},
        {"something": "new", "choices": []},
        {"choices": [{"index": 0, "delta": {"content": "llo"}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
    ],
    "messages": [
        {"type": "message_start", "message": {"id": "c1", "model": "m", "usage": {"input_tokens": 5}}},
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "something_new", "index": 0},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "he"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "llo"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ],
    "responses": [
        {"type": "response.created", "response": {"id": "c1", "status": "in_progress"}},
        {"type": "response.something_new"},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "he"},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "llo"},
        {
            "type": "response.completed",
            "response": {
                "id": "c1",
                "model": "m",
                "status": "completed",
                "output": [
                    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]}
                ],
                "usage": {"input_tokens": 5, "output_tokens": 2},
            },
        },
    ],
}


@pytest.mark.parametrize("form", STREAMS)
def test_a_stream_is_read_event_by_event(form: Form) -> None:
    reader = AnswerReader(form, streaming=True)
    updates = [update for event in STREAMS[form] for update in reader.add(event)]
    assert [update.text for update in updates] == ["he", "llo"]

    last = reader.finish()[-1]

    assert (last.message_done, last.response_id) == (Message.assistant("hello"), "c1")
    assert sum((each.usage for each in (*updates, last) if each.usage is not None), Usage()) == Usage(5, 2)


WHOLE: dict[Form, object] = {
    "chat": {"choices": [{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]},
    "messages": {"content": [{"type": "text", "text": "hello"}], "stop_reason": "end_turn", "usage": {}},
    "responses": {
        "status": "completed",
        "output": [SAID],
    },
}


@pytest.mark.parametrize("form", WHOLE)
def test_a_whole_answer_is_one_event(form: Form) -> None:
    reader = AnswerReader(form, streaming=False)
    reader.add(WHOLE[form])

    assert _message(reader.finish()).parts == (Text("hello"),)


@pytest.mark.parametrize("form", STREAMS)
def test_a_stream_without_its_end_is_broken(form: Form) -> None:
    reader = AnswerReader(form, streaming=True)
    for event in STREAMS[form][:2]:
        reader.add(event)

    with pytest.raises(BrokenStreamError, match="not complete"):
        reader.finish()


@pytest.mark.parametrize("form", STREAMS)
@pytest.mark.parametrize("event", [7, None, [], "x"])
def test_what_is_no_object_is_the_providers_failure(form: Form, event: object) -> None:
    with pytest.raises(BrokenStreamError):
        AnswerReader(form, streaming=True).add(event)
    with pytest.raises(ServerError):
        AnswerReader(form, streaming=False).add(event)


@pytest.mark.parametrize(
    ("form", "event"),
    [
        ("chat", {"error": {"code": "context_length_exceeded", "message": "x"}}),
        ("messages", {"type": "error", "error": {"type": "x", "message": "prompt is too long: 9 tokens > 8 maximum"}}),
        ("responses", {"type": "error", "code": "context_length_exceeded", "message": "x"}),
    ],
)
def test_an_error_event_is_the_matching_error(form: Form, event: object) -> None:
    with pytest.raises(ContextOverflowError):
        AnswerReader(form, streaming=True).add(event)


def test_a_call_is_read() -> None:
    reader = AnswerReader("messages", streaming=False)
    block = {"type": "tool_use", "id": "t1", "name": "now", "input": {}}
    reader.add({"content": [block], "stop_reason": "tool_use"})

    assert _message(reader.finish()).calls == (ToolCall("t1", "now", "{}"),)


def _message(updates: list[ChatUpdate]) -> Message:
    message = updates[-1].message_done
    assert message is not None
    return message
