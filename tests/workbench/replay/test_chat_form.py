"""Conversations of every API are measured as chat completions would say them."""

from __future__ import annotations

import pytest

from chatstack import ChatRequest, File, Image, Message, Reasoning, Text, ToolCall, ToolResult
from chatstack.providers.converters import Form
from chatstack.providers.openai.chat_wire import messages_from_wire, messages_to_wire
from chatstack.providers.openai.responses_wire import messages_from_wire as responses_from_wire
from chatstack.tokens.counter import CharCounter
from chatstack.values.parts import ProviderItem
from chatstack.workbench.replay.measures.chat_form import wire_of
from chatstack.workbench.replay.measures.measuring import Gauge, WireCounter
from chatstack.workbench.replay.reading.forms import conversation_of
from chatstack.workbench.replay.reading.recordings import Recording
from tests.workbench.replay.conversations import CHARACTERS, assistant, result, user

CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}
CHAT = [
    {"role": "system", "content": "Be brief."},
    user("where is it?"),
    assistant("I look.", "a", "b"),
    result("a", "here"),
    result("b", "there"),
    user("and now?"),
    assistant("so"),
]
MESSAGES: dict[str, object] = {
    "system": "Be brief.",
    "messages": [
        {"role": "user", "content": "where is it?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm, where?", "signature": "sig"},
                {"type": "redacted_thinking", "data": "secret" * 100},
                {"type": "text", "text": "I look."},
                *({"type": "tool_use", "id": id, "name": "look", "input": {"at": "it"}} for id in ("a", "b")),
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "here"},
                {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "there"}]},
                {"type": "text", "text": "and now?"},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "so"}]},
    ],
}
RESPONSES: dict[str, object] = {
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "where is it?"}]},
        {
            "type": "reasoning",
            "id": "r",
            "summary": [{"type": "summary_text", "text": "hm"}],
            "encrypted_content": "zz",
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        *(
            {"type": "function_call", "call_id": id, "name": "look", "arguments": '{"at": "it"}', "status": "completed"}
            for id in ("a", "b")
        ),
        {"type": "function_call_output", "call_id": "a", "output": "here"},
        {"type": "function_call_output", "call_id": "b", "output": "there"},
        {"role": "user", "content": "and now?"},
        {"role": "assistant", "content": "so"},
    ],
}


def messages_of(body: dict[str, object], form: Form) -> tuple[ChatRequest, tuple[Message, ...]]:
    found = conversation_of(Recording(body, form, "one", "", "f", 1))
    return ChatRequest(found.messages, found.options), found.messages


@pytest.mark.parametrize(("body", "form"), [(MESSAGES, "messages"), (RESPONSES, "responses")])
def test_the_same_conversation_in_another_form_has_the_same_wire_text_and_size(
    body: dict[str, object], form: Form
) -> None:
    """Instructions and thoughts apart: those count as the system message that they are, these not at all."""
    chat = ChatRequest(messages_from_wire(CHAT))
    request, _ = messages_of(body, form)

    measured, expected = (Gauge(CHARACTERS).measure(each, needs_user=True) for each in (request, chat))

    assert (measured.tokens, measured.fault) == (expected.tokens, "")
    assert [(each.role, each.tokens) for each in measured.shapes] == [
        (each.role, each.tokens) for each in expected.shapes
    ]


def test_what_chat_completions_can_say_is_said_as_they_say_it() -> None:
    said = [
        *CHAT,
        {"role": "developer", "content": "listen"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "u"}}],
        },
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}]},
        {"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
    ]

    for wire, message in zip(said, messages_from_wire(said), strict=True):
        assert wire_of(message) == messages_to_wire([message]) == [wire]


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        (Image(file_id="file-1"), 1_000),
        (Image(url="https://example.org/a.png"), 1_000),
        (Image(data="AAAA", media_type="image/png"), 1_000),
        (File(url="https://example.org/a.pdf", name="a.pdf"), 1_000),
        (File(file_id="file-1"), 1_000),
        (File(data="AAAA", media_type="application/pdf"), 1_000),
        (File(text="some words", media_type="text/plain"), 1_000),
        (ProviderItem("openai", '{"type":"input_audio","input_audio":{}}'), 1_000),
        (ProviderItem("anthropic", '{"type":"search_result"}'), 24),
    ],
)
def test_pictures_and_files_of_every_kind_count_1000_and_other_items_as_the_json_that_they_are(
    part: Image | File | ProviderItem, tokens: int
) -> None:
    """In what a user says, and in what a tool answers."""
    said = Message("user", (Text("look: "), part))
    answered = Message("tool", (ToolResult("a", "look", (Text("look: "), part)),))

    assert [CHARACTERS.count_message(each) for each in (said, answered)] == [4 + 6 + tokens] * 2


@pytest.mark.parametrize(
    "item",
    [
        '{"type":"web_search_call","action":{"query":"a refusal"}}',
        '{"type":"message","role":"assistant","content":[{"type":"refusal","refusal":"no"}]}',
        '{"type":"item_reference","id":"x"}',
        '{"type":"local_shell_call","action":{"command":["ls"]}}',
    ],
)
def test_items_of_responses_count_as_the_json_that_they_are(item: str) -> None:
    """Whatever words are in them; a refusal there is a message around it."""
    message = Message("assistant", (Text("so"), ProviderItem("openai", item), ToolCall("a", "look", "{}")))

    assert CHARACTERS.count_message(message) == 4 + 2 + len(item) + 4 + 2


def test_what_answers_an_item_of_responses_counts_as_the_json_that_it_is() -> None:
    item = '{"type":"computer_call_output","call_id":"c","output":{"type":"computer_screenshot"}}'

    assert CHARACTERS.count_message(Message("tool", (ProviderItem("openai", item),))) == 4 + len(item)


def test_items_of_a_tool_of_anthropics_are_measured() -> None:
    blocks = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        {"type": "text", "text": "so", "citations": []},
    ]
    body: dict[str, object] = {"messages": [user("q"), {"role": "assistant", "content": blocks}]}

    _, (_, message) = messages_of(body, "messages")

    size = sum(len(part.json) for part in message.parts if isinstance(part, ProviderItem))
    assert size > 100
    assert CHARACTERS.count_message(message) == 4 + size + 2


def test_thoughts_that_another_api_keeps_count_nothing() -> None:
    plain = Message.assistant("so")
    thought = Message("assistant", (Reasoning("hm " * 100, '{"signature": "s"}', "anthropic"), Text("so")))

    assert CHARACTERS.count_message(thought) == CHARACTERS.count_message(plain) == 6


def test_a_message_that_needs_no_change_is_not_made_anew() -> None:
    counted = WireCounter(CharCounter(1), "characters")
    message = Message.tool("a", (Text("seen"), Image(url="u")))

    assert wire_of(message) == messages_to_wire([message])
    assert counted.count_message(message) == 4 + 4 + 1_000


def test_what_a_computer_gave_back_stands_where_it_likes_and_is_no_word_of_the_users() -> None:
    items = [
        {"type": "message", "role": "user", "content": "look"},
        {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
        {"type": "computer_call", "call_id": "c", "id": "cc", "action": {"type": "screenshot"}},
        {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "file_id": "f"}},
        {"type": "function_call_output", "call_id": "a", "output": "seen"},
    ]
    messages = responses_from_wire(items)
    gauge = Gauge(CHARACTERS)

    whole, alone = (gauge.measure(ChatRequest(each), needs_user=True).fault for each in (messages, messages[2:3]))

    assert [message.role for message in messages] == ["user", "assistant", "tool", "tool"]
    assert (whole, alone) == ("", "no user message")
