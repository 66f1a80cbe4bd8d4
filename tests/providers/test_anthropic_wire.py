"""How values become Anthropic's wire, and back, case by case."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from chatstack import (
    ChatOptions,
    ChatRequest,
    File,
    Image,
    InputError,
    Message,
    OutputSchema,
    Part,
    ProviderItem,
    Reasoning,
    Text,
    ToolCall,
    ToolDeclaration,
    ToolResult,
    Usage,
    from_json,
    to_json,
)
from chatstack.providers.anthropic.blocks import block_to_part
from chatstack.providers.anthropic.wire import (
    DEFAULT_MAX_TOKENS,
    message_of,
    messages_from_wire,
    messages_to_wire,
    overhead_from_wire,
    request_from_wire,
    request_to_wire,
    usage_from_wire,
)


def body(*messages: Message, **options: object) -> dict[str, Any]:
    return request_to_wire(ChatRequest(messages or (Message.user("hi"),), ChatOptions().but(**options)))


def blocks(*parts: Part) -> Any:
    (wire,) = messages_to_wire([Message("user", parts)])
    return wire["content"]


def answer_of(content: Sequence[Mapping[str, object]]) -> Message:
    return message_of(map(block_to_part, content))


def text(content: str) -> dict[str, object]:
    return {"type": "text", "text": content}


def test_instructions_and_leading_system_messages_become_the_system_parameter() -> None:
    wire = body(Message.system("one"), Message.system("two"), Message.user("hi"), instructions="zero")
    assert wire["system"] == [text("zero"), text("one"), text("two")]
    assert wire["messages"] == [{"role": "user", "content": [text("hi")]}]


def test_a_system_message_in_mid_conversation_stays_in_its_place() -> None:
    wire = body(Message.user("hi"), Message.assistant("yes?"), Message.system("be brief"), Message.user("bye"))
    assert "system" not in wire
    assert [message["role"] for message in wire["messages"]] == ["user", "assistant", "system", "user"]


def test_between_a_summary_and_an_assistant_message_stands_a_word_of_the_users_side() -> None:
    summary = Message("assistant", (Text("what was before"),), mark="summary")
    thought = Message.assistant(Reasoning("hm", '{"signature": "s"}', "anthropic"), ToolCall("c", "look"))
    result = Message.tool("c", "sunny")
    wire = messages_to_wire((Message.user("go"), summary, thought, result))
    assert [each["role"] for each in wire] == ["user", "assistant", "user", "assistant", "user"]
    assert wire[2]["content"] == [{"type": "text", "text": "Go on."}]
    followed_by_the_user = messages_to_wire((Message.user("go"), summary, Message.user("and?"), thought, result))
    assert [each["role"] for each in followed_by_the_user] == ["user", "assistant", "user", "assistant", "user"]
    assert followed_by_the_user[2]["content"] == [{"type": "text", "text": "and?"}]


def test_results_in_a_row_and_the_user_message_after_them_share_one_wire_message() -> None:
    wire = messages_to_wire([
        Message.assistant(ToolCall("a", "f"), ToolCall("b", "f")),
        Message.tool("a", "1"),
        Message.tool("b", "2", is_error=True),
        Message.user("and now?"),
        Message.user("well?"),
    ])  # fmt: skip
    assert [each["role"] for each in wire] == ["assistant", "user", "user"]
    assert wire[1]["content"] == [
        {"type": "tool_result", "tool_use_id": "a", "content": "1"},
        {"type": "tool_result", "tool_use_id": "b", "content": "2", "is_error": True},
        text("and now?"),
    ]


def test_one_tool_message_with_several_results_is_read_back_as_one_message_for_each() -> None:
    call = Message.assistant(ToolCall("a", "f"), ToolCall("b", "g"))
    results = Message("tool", (ToolResult("a", "f", "1"), ToolResult("b", "g", "2")))
    assert messages_from_wire(messages_to_wire([call, results])) == (
        call,
        Message.tool("a", "1", name="f"),
        Message.tool("b", "2", name="g"),
    )


def test_text_before_a_result_does_not_move_behind_it() -> None:
    content = [text("look:"), {"type": "tool_result", "tool_use_id": "a", "content": "1"}, text("thanks")]
    assert messages_from_wire([{"role": "user", "content": content}]) == (
        Message.user("look:"),
        Message.tool("a", "1"),
        Message.user("thanks"),
    )


def test_messages_of_which_nothing_can_be_sent_are_left_out() -> None:
    wire = messages_to_wire([
        Message.user("hi"),
        Message.assistant(" \n", Reasoning("hm", "{}", "openai"), ProviderItem("openai", "{}")),
        Message.system("\t"),
    ])  # fmt: skip
    assert wire == [{"role": "user", "content": [text("hi")]}]


@pytest.mark.parametrize(
    "message",
    [
        Message.user(""),
        Message.user(" \n", "\t"),
        Message("user", ()),
        Message("user", (ProviderItem("openai", "{}"),)),
    ],
    ids=["empty", "blank", "no parts", "of another provider"],
)
def test_a_user_message_of_which_nothing_can_be_sent_is_said_to_be_empty(message: Message) -> None:
    """Left out, the assistant's turn would end the request, and newer models refuse that."""
    wire = body(Message.user("hi"), Message.assistant("yes?"), message)["messages"]
    assert wire[-1] == {"role": "user", "content": [text("(empty message)")]}
    result = body(Message.assistant(ToolCall("a", "f")), Message.tool("a", "1"), message)["messages"][-1]
    assert [block["type"] for block in result["content"]] == ["tool_result", "text"]


def test_blank_text_beside_anything_that_can_be_sent_is_left_out() -> None:
    picture = Image(url="https://host/cat.png")
    wire = body(Message.user(picture, " "), Message.assistant("", ToolCall("a", "f")), Message.tool("a", " \n"))
    assert [[block["type"] for block in each["content"]] for each in wire["messages"]] == [
        ["image"],
        ["tool_use"],
        ["tool_result"],
    ]
    assert "content" not in wire["messages"][2]["content"][0]


def test_a_conversation_that_does_not_open_with_the_user_gets_the_same_opening_each_time() -> None:
    opening = {"role": "user", "content": [text("Begin.")]}
    greeting, question = Message.assistant("How can I help?"), Message.user("hi")
    first = body(Message.system("be kind"), greeting, question)["messages"]
    assert first == [opening, *messages_to_wire([greeting, question])]
    then = body(greeting, question, Message.assistant("ok"), Message.user("more"))["messages"]
    assert then[: len(first)] == first
    assert body(Message.assistant(""), Message.system("be kind"), question)["messages"][0] == opening
    assert body(Message.system("tell a joke"))["messages"] == [opening]
    assert body(question, greeting, question)["messages"] == messages_to_wire([question, greeting, question])


def test_an_answer_to_go_on_with_does_not_end_in_white_space() -> None:
    """The API refuses it at the end of a request; anywhere else the text stays as it is."""
    said, question = Message.assistant("first ", "so \n"), Message.user("tell ")
    assert body(question, said)["messages"][-1]["content"] == [text("first "), text("so")]
    assert body(question, said, question)["messages"][1:] == messages_to_wire([said, question])
    called = Message.assistant("look ", ToolCall("a", "f"))
    assert body(question, called)["messages"] == messages_to_wire([question, called])


def test_thinking_goes_back_as_it_came() -> None:
    thinking = {"type": "thinking", "thinking": "so", "signature": "s1", "later_field": None}
    redacted = {"type": "redacted_thinking", "data": "xyz"}
    message = answer_of([thinking, redacted, text("4")])
    assert [type(part) for part in message.parts] == [Reasoning, Reasoning, Text]
    assert isinstance(message.parts[0], Reasoning)
    assert (message.parts[0].text, message.parts[0].provider) == ("so", "anthropic")
    assert messages_to_wire([message])[0]["content"] == [thinking, redacted, text("4")]


SIGNED = {"type": "thinking", "thinking": "so", "signature": "s1"}
UNSIGNED = {"type": "thinking", "thinking": "hm", "signature": ""}
REDACTED = {"type": "redacted_thinking", "data": "xyz"}


def test_thinking_goes_back_where_the_next_message_is_the_assistants_too() -> None:
    call = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    wire = [{"role": "assistant", "content": [block]} for block in (SIGNED, call)]
    assert messages_to_wire(messages_from_wire(wire)) == wire


@pytest.mark.parametrize(
    ("answer", "goes_back"),
    [
        pytest.param([SIGNED], [], id="nothing else"),
        pytest.param([UNSIGNED], [], id="cut off before its signature"),
        pytest.param([SIGNED, REDACTED, text(" ")], [], id="blank text behind it"),
        pytest.param([SIGNED, text("4"), SIGNED, UNSIGNED], [SIGNED, text("4")], id="at the end"),
        pytest.param([UNSIGNED, text("4")], [UNSIGNED, text("4")], id="of a server that does not sign"),
    ],
)
def test_thinking_that_the_api_would_refuse_stays_behind(answer: list[dict[str, object]], goes_back: object) -> None:
    """An answer that was cut off while the model was thinking would have every later request refused."""
    asked, more = Message.user("hard"), Message.user("go on")
    before = messages_to_wire([asked, answer_of(answer)])
    assert [each["content"] for each in before[1:]] == ([goes_back] if goes_back else [])
    assert messages_to_wire([asked, answer_of(answer), more])[: len(before)] == before
    assert body(asked, answer_of(answer), more)["messages"] == [*before, *messages_to_wire([more])]


def test_blocks_that_only_anthropic_understands_go_back_as_they_came() -> None:
    odd: list[dict[str, object]] = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"b": 1, "a": None}},
        {"type": "new"},
    ]
    message = answer_of(odd)
    assert [type(part) for part in message.parts] == [ProviderItem, ProviderItem]
    assert messages_to_wire([message])[0]["content"] == odd


def test_fields_without_a_place_ride_along_and_nulls_do_not() -> None:
    block = {**text("hi"), "cache_control": {"type": "ephemeral"}, "citations": None}
    message = answer_of([block])
    assert message.parts == (Text("hi", '{"anthropic":{"cache_control":{"type":"ephemeral"}}}'),)
    assert messages_to_wire([message])[0]["content"] == [{**text("hi"), "cache_control": {"type": "ephemeral"}}]


@pytest.mark.parametrize("file_id", [None, "file_1"])
def test_citations_go_back_without_the_field_that_only_answers_have(file_id: str | None) -> None:
    """With it, every request after an answer that cites a document would be refused. A saved history has it, too."""
    cited = {"type": "char_location", "cited_text": "c", "document_index": 0, "document_title": None}
    message = answer_of([{**text("It is c."), "citations": [{**cited, "file_id": file_id}]}])
    assert "file_id" in str(message.parts[0])
    for part in (message.parts[0], from_json(to_json([message]))[0].parts[0]):
        assert blocks(part) == [{**text("It is c."), "citations": [cited]}]
    assert blocks(Text("hi", '{"anthropic":{"citations":[5]}}')) == [{**text("hi"), "citations": [5]}]


def test_fields_of_other_providers_stay_behind() -> None:
    call = ToolCall("a", "f", "{}", '{"openai-chat":{"type":"custom"},"anthropic":{"caller":{"type":"direct"}}}')
    assert blocks(Text("hi", '{"openai-responses":{"annotations":[],"message":{"id":"msg"}}}'), call) == [
        text("hi"),
        {"type": "tool_use", "id": "a", "name": "f", "input": {}, "caller": {"type": "direct"}},
    ]


@pytest.mark.parametrize("part", [Text("hi", "cache"), File(text="hi", extra_json='{"cache_control": "ephemeral"}')])
def test_fields_that_belong_to_no_wire_are_refused_by_the_kind_of_their_part(part: Part) -> None:
    with pytest.raises(InputError, match=rf'^{type(part).__name__}: extra_json .*"anthropic"'):
        blocks(part)


def test_pictures_go_by_data_url_address_and_id() -> None:
    assert blocks(
        Image.from_bytes(b"\x89PNG", "image/png"),
        Image(url="data:image/gif;base64,R0lG"),
        Image(url="https://example.org/a.png", detail="high"),
        Image(file_id="file_1"),
    ) == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "R0lG"}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
    ]


def test_documents_go_by_data_text_address_and_id() -> None:
    assert blocks(
        File.from_bytes(b"%PDF", "application/pdf", name="a.pdf"),
        File.from_bytes("blé".encode(), "text/csv"),
        File(text="plain"),
        File(url="https://example.org/a.pdf"),
        File(file_id="file_1"),
    ) == [
        {
            "type": "document",
            "title": "a.pdf",
            "source": {
                "type": "base64",
                "media_type": "application/pdf",
                "data": base64.b64encode(b"%PDF").decode(),
            },
        },
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "blé"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "plain"}},
        {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}},
        {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
    ]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "document", "source": {"type": "content", "content": [text("one"), text("two")]}, "title": "t"},
        {"type": "document", "source": {"type": "content", "content": "both"}, "citations": {"enabled": True}},
        {"type": "document", "source": {"type": "file", "file_id": "f"}, "context": "c"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aa", "new": 1}},
        {"type": "image", "source": {"type": "later", "where": "x"}},
    ],
)
def test_media_in_any_form_goes_back_as_it_came(block: dict[str, object]) -> None:
    (message,) = messages_from_wire([{"role": "user", "content": [block]}])
    assert messages_to_wire([message])[0]["content"] == [block]


def test_the_text_of_a_document_made_of_blocks_can_be_read() -> None:
    source = {"type": "content", "content": [text("one "), text("two")]}
    (message,) = messages_from_wire([{"role": "user", "content": [{"type": "document", "source": source}]}])
    assert isinstance(message.parts[0], File)
    assert message.parts[0].text == "one two"


def test_text_that_is_no_text_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"notes\.txt"):
        blocks(File.from_bytes(b"\xff\xfe", "text/plain", name="notes.txt"))


def test_a_result_may_hold_text_pictures_and_references() -> None:
    content = [
        text("see"),
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        {"type": "tool_reference", "tool_name": "f"},
    ]
    result = {"type": "tool_result", "tool_use_id": "a", "content": content, "cache_control": {"type": "ephemeral"}}
    (message,) = messages_from_wire([{"role": "user", "content": [result]}])
    assert message.role == "tool"
    assert [type(part) for part in message.results[0].output] == [Text, Image, ProviderItem]
    assert messages_to_wire([message]) == [{"role": "user", "content": [result]}]


def test_an_empty_result_goes_out_without_content() -> None:
    assert blocks(ToolResult("a"), ToolResult("b", output=(Text(""),))) == [
        {"type": "tool_result", "tool_use_id": "a"},
        {"type": "tool_result", "tool_use_id": "b"},
    ]


def test_a_failure_with_a_picture_is_told_in_words() -> None:
    """The API refuses ``is_error`` beside anything but text."""
    told, picture = text("crashed"), Image(url="https://example.org/a.png")
    failed = Message.tool("a", (Text("crashed"), picture), is_error=True)
    wire = messages_to_wire([failed])
    assert wire[0]["content"] == [
        {"type": "tool_result", "tool_use_id": "a", "content": [text("The tool failed:"), told, *blocks(picture)]}
    ]
    assert messages_from_wire(wire) == (failed,)
    words = Message.tool("a", (Text("The tool failed:"),))
    assert messages_from_wire(messages_to_wire([words])) == (words,)
    assert blocks(ToolResult("a", output=(Text("crashed"),), is_error=True)) == [
        {"type": "tool_result", "tool_use_id": "a", "content": [told], "is_error": True}
    ]


def test_arguments_go_out_as_an_object_in_their_own_order() -> None:
    call = ToolCall("a", "f", '{"z": 1, "a": 12345678901234567890123, "c": 1.0}')
    (block,) = blocks(call)
    assert json.dumps(block["input"]) == '{"z": 1, "a": 12345678901234567890123, "c": 1.0}'
    assert answer_of([block]).calls == (call,)


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ("", {}),
        ("null", {}),
        ('{"city": "Du', {"INVALID_JSON": '{"city": "Du'}),
        ("[1]", {"INVALID_JSON": "[1]"}),
        ('{"a": NaN}', {"INVALID_JSON": '{"a": NaN}'}),
        ('{"a": "\\ud83d"}', {"INVALID_JSON": '{"a": "\\ud83d"}'}),
    ],
)
def test_arguments_that_are_no_object_are_still_sent(arguments: str, sent: object) -> None:
    assert blocks(ToolCall("a", "f", arguments)) == [{"type": "tool_use", "id": "a", "name": "f", "input": sent}]


def test_tools_are_declared_and_those_of_other_providers_are_not() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    wire = body(
        tools=(
            ToolDeclaration("weather", "The weather", json.dumps(schema), True, '{"anthropic":{"defer_loading":true}}'),
            ToolDeclaration("now"),
            ProviderItem("anthropic", '{"type":"web_search_20250305","name":"web_search"}'),
            ProviderItem("openai", '{"type":"web_search"}'),
        )
    )
    assert wire["tools"] == [
        {
            "name": "weather",
            "description": "The weather",
            "input_schema": schema,
            "strict": True,
            "defer_loading": True,
        },
        {"name": "now", "input_schema": {"type": "object", "properties": {}}},
        {"type": "web_search_20250305", "name": "web_search"},
    ]


@pytest.mark.parametrize(
    ("choice", "parallel", "wire"),
    [
        (None, None, None),
        (None, True, None),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        ("auto", None, {"type": "auto"}),
        ("auto", True, {"type": "auto", "disable_parallel_tool_use": False}),
        ("required", False, {"type": "any", "disable_parallel_tool_use": True}),
        ("none", False, {"type": "none"}),
        ("now", None, {"type": "tool", "name": "now"}),
        ("now", False, {"type": "tool", "name": "now", "disable_parallel_tool_use": True}),
    ],
)
def test_tool_choice_and_parallel_calls_are_one_object(choice: str | None, parallel: bool | None, wire: object) -> None:
    sent = body(tools=(ToolDeclaration("now"),), tool_choice=choice, parallel_tool_calls=parallel)
    assert sent.get("tool_choice") == wire


def test_without_tools_forbidding_parallel_calls_says_nothing() -> None:
    assert "tool_choice" not in body(parallel_tool_calls=False)


@pytest.mark.parametrize("choice", [{"type": "tool", "name": "auto"}, {"type": "later"}, {"type": "auto", "new": 1}])
def test_a_choice_that_has_no_word_here_goes_back_as_it_came(choice: object) -> None:
    request = request_from_wire({"messages": [{"role": "user", "content": "hi"}], "tool_choice": choice})
    assert request.options.tool_choice is None
    assert request_to_wire(request)["tool_choice"] == choice


def test_options_go_out_under_anthropics_names() -> None:
    wire = body(
        model="claude",
        max_tokens=0,
        temperature=0.5,
        top_p=0.9,
        stop=("END",),
        seed=7,
        reasoning_effort="low",
        output_schema=OutputSchema("city", '{"type":"object"}', strict=True),
    )
    del wire["messages"]
    assert wire == {
        "model": "claude",
        "max_tokens": 0,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop_sequences": ["END"],
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    }


def test_extra_wins_and_output_config_is_joined_field_by_field() -> None:
    wire = body(
        temperature=0.5,
        reasoning_effort="low",
        extra={"temperature": 1, "output_config": {"task_budget": 9}, "metadata": {"user_id": "u"}},
    )
    assert (wire["temperature"], wire["metadata"]) == (1, {"user_id": "u"})
    assert wire["output_config"] == {"effort": "low", "task_budget": 9}


@pytest.mark.parametrize(
    ("effort", "sent"),
    [("none", None), ("minimal", {"effort": "low"}), ("max", {"effort": "max"}), ("other", {"effort": "other"})],
)
def test_an_effort_that_the_api_lacks_is_the_nearest_level(effort: str, sent: object) -> None:
    assert body(reasoning_effort=effort).get("output_config") == sent
    as_it_is = {"output_config": {"effort": effort}}
    assert body(reasoning_effort="high", extra=as_it_is)["output_config"] == as_it_is["output_config"]
    read = request_from_wire({"messages": [{"role": "user", "content": "hi"}], **as_it_is})
    assert request_to_wire(read)["output_config"] == as_it_is["output_config"]


def test_an_answer_is_bounded_even_where_the_caller_does_not_say() -> None:
    assert body()["max_tokens"] == DEFAULT_MAX_TOKENS
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 10_000}}
    assert body(extra=thinking)["max_tokens"] == DEFAULT_MAX_TOKENS + 10_000


def test_what_a_body_holds_beside_the_known_comes_back_in_extra() -> None:
    wire = {
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "output_config": {"effort": "max", "task_budget": {"type": "tokens", "total": 9}},
        "container": "c",
        "max_tokens": 5,
    }
    request = request_from_wire(wire)
    assert request.stream
    assert (request.options.reasoning_effort, request.options.max_tokens) == ("max", 5)
    assert dict(request.options.extra) == {
        "output_config": {"task_budget": {"type": "tokens", "total": 9}},
        "container": "c",
    }
    assert request_to_wire(request) == {**wire, "messages": [{"role": "user", "content": [text("hi")]}]}


@pytest.mark.parametrize(
    ("wire", "place"),
    [
        ({"messages": "hi"}, "messages: expected a list, got str"),
        ({"messages": [{"role": "tool", "content": "hi"}]}, r"messages\[0\]: role"),
        ({"messages": [{"role": ["user"], "content": "hi"}]}, r"messages\[0\]: role"),
        ({"messages": [{"role": {"a": "user"}, "content": "hi"}]}, r"messages\[0\]: role"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}, 5]}]}, r"messages\[0\]\.content\[1\]"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\]\.content: expected a list, got NoneType"),
        ({"messages": [], "tools": ["f"]}, r"tools\[0\]: expected an object"),
    ],
)
def test_a_malformed_body_is_refused_with_its_place(wire: dict[str, object], place: str) -> None:
    with pytest.raises(InputError, match=place):
        request_from_wire(wire)


def test_a_schema_that_is_no_json_is_refused_by_the_name_of_its_tool() -> None:
    with pytest.raises(InputError, match="'weather'"):
        body(tools=(ToolDeclaration("weather", parameters="{"),))


def test_the_callers_messages_are_not_touched() -> None:
    messages = (Message.assistant(ToolCall("a", "f")), Message.tool("a", "1"), Message.user("hi"))
    before = [repr(message) for message in messages]
    messages_to_wire(messages)
    assert [repr(message) for message in messages] == before


def test_input_tokens_include_what_went_through_the_cache() -> None:
    usage = {
        "input_tokens": 3,
        "cache_read_input_tokens": 50,
        "cache_creation_input_tokens": 7,
        "output_tokens": 9,
        "output_tokens_details": {"thinking_tokens": 4},
    }
    assert usage_from_wire(usage) == Usage(60, 9, 50, 7, 4)
    assert usage_from_wire({"input_tokens": 3, "output_tokens": 1, "cache_read_input_tokens": None}) == Usage(3, 1)


def test_writes_to_a_cache_that_lives_an_hour_are_told_apart() -> None:
    lifetimes: dict[str, Any] = {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 4}
    usage = {"input_tokens": 3, "output_tokens": 9, "cache_creation_input_tokens": 7, "cache_creation": lifetimes}
    assert usage_from_wire(usage) == Usage(10, 9, 0, 7, hour_write_tokens=4)
    assert usage_from_wire({**usage, "cache_creation_input_tokens": 2}) == Usage(5, 9, 0, 2, hour_write_tokens=2)
    without: tuple[object, ...] = (None, [], {"ephemeral_1h_input_tokens": None})
    for nothing in without:
        assert usage_from_wire({**usage, "cache_creation": nothing}) == Usage(10, 9, 0, 7)


def test_compactions_and_advice_are_overhead() -> None:
    iterations = [
        {"type": "compaction", "input_tokens": 100, "cache_read_input_tokens": 5, "output_tokens": 20},
        {"type": "message", "input_tokens": 30, "output_tokens": 2},
        {"type": "advisor_message", "input_tokens": 7, "output_tokens": 1},
    ]
    usage = {"input_tokens": 30, "output_tokens": 2, "iterations": iterations}
    assert overhead_from_wire(usage) == Usage(112, 21, 5)
    assert overhead_from_wire({"iterations": iterations[1:2]}) is None
    assert overhead_from_wire({}) is None
