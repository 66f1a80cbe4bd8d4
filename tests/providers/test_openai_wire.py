from __future__ import annotations

from typing import Any

import pytest

from chatstack import (
    ChatOptions,
    ChatRequest,
    File,
    Image,
    InputError,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    from_openai_chat,
    from_openai_responses,
    to_openai_responses,
)
from chatstack.providers.openai.chat_answers import ChatAnswer
from chatstack.providers.openai.chat_wire import (
    finish_from_wire,
    messages_from_wire,
    messages_to_wire,
    request_from_wire,
    request_to_wire,
)
from chatstack.providers.openai.usages import chat_usage, responses_usage
from chatstack.values.parts import ProviderItem
from chatstack.values.requests import OutputSchema, ToolDeclaration

PNG = "iVBORw0KGgo="
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a":  1}'}}

LOSSLESS: dict[str, list[dict[str, Any]]] = {
    "text": [
        {"role": "system", "content": "be"},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "x"},
    ],
    "developer": [{"role": "developer", "content": "be brief"}],
    "name": [{"role": "user", "content": "hi", "name": "ann"}],
    "call without text": [{"role": "assistant", "content": None, "tool_calls": [CALL]}],
    "call with empty text": [{"role": "assistant", "content": "", "tool_calls": [CALL]}],
    "refusal": [{"role": "assistant", "content": None, "refusal": "no"}],
    "refusal part": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
    "annotations": [{"role": "assistant", "content": "x", "annotations": [{"type": "url_citation"}]}],
    "no annotations": [{"role": "assistant", "content": "x", "annotations": []}],
    "audio": [{"role": "assistant", "content": None, "audio": {"id": "audio_1"}}],
    "reasoning": [{"role": "assistant", "content": "x", "reasoning_content": "because"}],
    "reasoning details": [
        {"role": "assistant", "content": "x", "reasoning": "so", "reasoning_details": [{"type": "reasoning.text"}]}
    ],
    "custom call": [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "custom", "custom": {"name": "sh", "input": 'echo "hi"'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "hi"},
    ],
    "call with more fields": [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{**CALL, "extra_content": {"google": {"thought_signature": "s"}}}],
        }
    ],
    "legacy call": [
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "function", "name": "look", "content": "seen"},
    ],
    "parts": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}},
                {"type": "text", "text": "b"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "low"}},
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
                {"type": "image_url", "image_url": {"url": "data:text/plain,hello"}, "cache_control": {"type": "e"}},
                {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERg==", "filename": "a.pdf"}},
                {"type": "file", "file": {"file_id": "file_1"}},
                {"type": "file", "file": {"file_id": "file_1", "file_data": "JVBERg=="}},
                {"type": "file", "file": {"file_data": "https://example.org/a.pdf", "filename": "a.pdf"}},
                {"type": "file", "file": {"file_data": "data:text/plain,hello", "filename": "a.txt"}},
                {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
            ],
        }
    ],
    "one part with a field": [{"role": "user", "content": [{"type": "text", "text": "a", "x": None}]}],
    "result in parts": [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "a"}]},
    ],
    "result with a name": [{"role": "tool", "tool_call_id": "c9", "name": "look", "content": "a"}],
}


@pytest.mark.parametrize("wire", LOSSLESS.values(), ids=LOSSLESS.keys())
def test_messages_go_out_as_they_came(wire: list[dict[str, Any]]) -> None:
    assert messages_to_wire(messages_from_wire(wire)) == wire


def test_an_empty_list_of_calls_which_openai_refuses_is_left_out() -> None:
    (message,) = messages_from_wire([{"role": "assistant", "content": "x", "tool_calls": []}])
    assert message == Message.assistant("x")
    assert messages_to_wire([message]) == [{"role": "assistant", "content": "x"}]


def test_plain_messages_are_plain_values() -> None:
    wire = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "seen"},
    ]
    assert messages_from_wire(wire) == (
        Message.system("be brief"),
        Message.user("hi"),
        Message.assistant(ToolCall("c1", "look", '{"a":  1}')),
        Message.tool("c1", "seen", name="look"),
    )
    assert messages_to_wire(messages_from_wire(wire))[2]["content"] is None


def test_pictures_and_files_are_values() -> None:
    (message,) = messages_from_wire(LOSSLESS["parts"])
    assert message.parts[2] == Image(data=PNG, media_type="image/png", detail="low")
    assert message.parts[3] == Image(url="https://example.org/a.png")
    assert message.parts[5] == File(data="JVBERg==", media_type="application/pdf", name="a.pdf")
    assert message.parts[6] == File(file_id="file_1")
    assert isinstance(message.parts[7], ProviderItem)


def test_a_reused_id_gives_each_result_the_name_of_the_call_before_it() -> None:
    other = {**CALL, "function": {"name": "listen", "arguments": "{}"}}
    wire: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "a"},
        {"role": "assistant", "tool_calls": [other]},
        {"role": "tool", "tool_call_id": "c1", "content": "b"},
    ]
    names = [result.name for message in messages_from_wire(wire) for result in message.results]
    assert names == ["look", "listen"]


def test_instructions_are_a_system_message_before_all_others() -> None:
    wire = messages_to_wire([Message.user("hi")], "be brief")
    assert wire == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


def test_several_results_become_messages_of_their_own() -> None:
    message = Message(
        "tool", (ToolResult("a", "look", "1", is_error=True), ToolResult("b", "look", (Text("2"), Image(url="u"))))
    )
    assert messages_to_wire([message]) == [
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {
            "role": "tool",
            "tool_call_id": "b",
            "content": [{"type": "text", "text": "2"}, {"type": "image_url", "image_url": {"url": "u"}}],
        },
    ]


def test_results_in_a_user_message_come_before_what_the_user_said() -> None:
    message = Message("user", (Text("go on"), ToolResult("a", "look", "1")))
    assert [each["role"] for each in messages_to_wire([message])] == ["tool", "user"]


def test_reasoning_and_items_of_others_are_left_out() -> None:
    message = Message.assistant(
        Reasoning("hm", '{"type":"thinking","signature":"s"}', "anthropic"),
        Reasoning("hm", '{"type":"reasoning","id":"rs_1"}', "openai"),
        Reasoning("only text"),
        ProviderItem("anthropic", '{"type":"server_tool_use"}'),
        ProviderItem("openai", '{"type":"web_search_call"}'),
        Text("so", '{"anthropic":{"citations":[]}}'),
    )
    assert messages_to_wire([message]) == [{"role": "assistant", "content": "so"}]


def test_an_assistant_message_of_which_nothing_is_left_is_still_valid() -> None:
    message = Message.assistant(Reasoning("hm"))
    assert messages_to_wire([message]) == [{"role": "assistant", "content": ""}]
    assert messages_to_wire([message.edited(extra_json='{"other":{"x":1}}')]) == [{"role": "assistant", "content": ""}]


@pytest.mark.parametrize("fields", [{}, {"content": ""}, {"content": None, "refusal": None, "tool_calls": None}])
def test_an_assistant_message_of_reasoning_alone_has_content(fields: dict[str, Any]) -> None:
    """OpenAI, and servers like it, refuse one with neither content nor calls: that of an answer that was cut off."""
    answer = {"role": "assistant", "reasoning_content": "hm", **fields}
    called = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALL]}
    wire, with_a_call = messages_to_wire(messages_from_wire([answer, called]))
    assert (wire["content"], wire["reasoning_content"]) == ("", "hm")
    assert with_a_call == called


def test_fields_of_ours_win_over_those_that_ride_along() -> None:
    extra = '{"openai-chat":{"content":"old","tool_calls":null,"x":1}}'
    message = Message.assistant(ToolCall("c1", "look")).edited(extra_json=extra)
    (wire,) = messages_to_wire([message])
    assert wire["content"] is None
    assert wire["x"] == 1
    assert len(wire["tool_calls"]) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wire", "where"),
    [
        ([{"role": "user", "content": "a"}, "b"], r"messages\[1\]: expected an object, got str"),
        ([{"role": "robot", "content": "a"}], r"messages\[0\]\.role"),
        ([{"content": "a"}], r"messages\[0\]\.role"),
        ([{"role": ["user"], "content": "a"}], r"messages\[0\]\.role"),
        ([{"role": {"a": "user"}, "content": "a"}], r"messages\[0\]\.role"),
        ([{"role": "user", "content": 5}], r"messages\[0\]\.content: .* got int"),
        ([{"role": "user", "content": ["a"]}], r"messages\[0\]\.content\[0\]"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"messages\[0\]\.content\[0\]\.text"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"messages\[0\]\.content\[0\]\.image_url"),
        ([{"role": "tool", "content": "a"}], r"messages\[0\]\.tool_call_id"),
        ([{"role": "assistant", "tool_calls": [{"id": "c"}]}], r"messages\[0\]\.tool_calls\[0\]\.function"),
        ([{"role": "assistant", "tool_calls": [{"type": "function"}]}], r"messages\[0\]\.tool_calls\[0\]\.id"),
        ([{"role": "assistant", "tool_calls": {"id": "c"}}], r"messages\[0\]\.tool_calls: expected a list"),
    ],
)
def test_what_is_malformed_is_named_by_its_place(wire: list[object], where: str) -> None:
    with pytest.raises(InputError, match=where):
        messages_from_wire(wire)


PDF = {"file_data": "data:application/pdf;base64,JVBERg=="}


@pytest.mark.parametrize(
    ("file", "fields"),
    [
        (File(data="JVBERg==", media_type="application/pdf"), {**PDF, "filename": "file.pdf"}),
        (File(data="JVBERg==", media_type="application/pdf", name="a.pdf"), {**PDF, "filename": "a.pdf"}),
        (File(data="JVBERg=="), {**PDF, "filename": "file.pdf"}),
        (
            File(data="YQ==", name="notes.TXT"),
            {"file_data": "data:text/plain;base64,YQ==", "filename": "notes.TXT"},
        ),
        (File(url="data:application/pdf;base64,JVBERg=="), {**PDF, "filename": "file.pdf"}),
        (File(text="a"), {"file_data": "data:text/plain;base64,YQ==", "filename": "file.txt"}),
        (
            File(data="YQ==", media_type="text/csv;charset=utf-8"),
            {"file_data": "data:text/csv;charset=utf-8;base64,YQ==", "filename": "file.csv"},
        ),
        (
            File(data="YQ==", media_type="application/octet-stream"),
            {"file_data": "data:application/octet-stream;base64,YQ==", "filename": "file.bin"},
        ),
    ],
)
def test_a_file_goes_along_as_a_data_url_with_a_name(file: File, fields: dict[str, str]) -> None:
    """OpenAI refuses one without either, over both of its APIs."""
    (message,) = messages_to_wire([Message.user(file)])
    assert message["content"] == [{"type": "file", "file": fields}]
    (item,) = to_openai_responses([Message.user(file)])
    assert item["content"] == [{"type": "input_file", **fields}]
    for read, written in ((from_openai_chat, message), (from_openai_responses, item)):
        (part,) = read([written])[0].parts
        assert isinstance(part, File)
        assert part.name == file.name, "a name that was made is none"


@pytest.mark.parametrize("part", [File(url="https://example.org/a.pdf"), Image(file_id="file_1")])
def test_what_this_wire_cannot_carry_says_so(part: File | Image) -> None:
    with pytest.raises(InputError, match=r"messages\[0\]: chat completions take no"):
        messages_to_wire([Message.user(part)])


BODY: dict[str, Any] = {
    "model": "gpt-5-mini",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [
        {
            "type": "function",
            "function": {"name": "look", "description": "looks", "parameters": {"type": "object"}, "strict": True},
        },
        {"type": "function", "function": {"name": "bare", "description": ""}, "x": 1},
        {"type": "custom", "custom": {"name": "sh"}},
    ],
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "parallel_tool_calls": False,
    "max_completion_tokens": 100,
    "temperature": 0.5,
    "top_p": 1.0,
    "stop": ["END"],
    "seed": 7,
    "reasoning_effort": "low",
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True, "description": "d"},
    },
    "user": "u",
    "prompt_cache_key": "k",
}


def test_a_body_goes_into_the_options_and_comes_out_again() -> None:
    request = request_from_wire(BODY)
    assert request.messages == (Message.user("hi"),)
    assert request.options == ChatOptions(
        model="gpt-5-mini",
        tools=(
            ToolDeclaration("look", "looks", '{"type":"object"}', True),
            ToolDeclaration("bare", extra_json='{"openai-chat":{"function":{"description":""},"x":1}}'),
            ProviderItem("openai", '{"type":"custom","custom":{"name":"sh"}}'),
        ),
        tool_choice="look",
        parallel_tool_calls=False,
        max_tokens=100,
        temperature=0.5,
        top_p=1.0,
        stop=("END",),
        seed=7,
        reasoning_effort="low",
        output_schema=OutputSchema("answer", '{"type":"object"}', True, "d"),
        extra={"user": "u", "prompt_cache_key": "k"},
    )
    assert request_to_wire(request) == BODY


@pytest.mark.parametrize(("name", "kind"), [("look", "function"), ("sh", "custom")])
def test_a_tool_is_chosen_by_its_type_and_name(name: str, kind: str) -> None:
    options = request_from_wire(BODY).options.but(tool_choice=name)
    body = request_to_wire(ChatRequest((Message.user("hi"),), options))
    assert body["tool_choice"] == {"type": kind, kind: {"name": name}}


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 100},
        {"stop": "END"},
        {"temperature": None},
        {"tools": None},
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
        {"response_format": {"type": "json_object"}},
        {"functions": [{"name": "look"}], "function_call": "auto"},
        {"n": 2},
    ],
)
def test_other_spellings_come_out_as_they_came(fields: dict[str, Any]) -> None:
    body = {"model": "m", "messages": [], **fields}
    assert request_to_wire(request_from_wire(body)) == body


def test_the_older_bound_is_known_and_goes_out_under_its_own_name() -> None:
    request = request_from_wire({"model": "m", "messages": [], "max_tokens": 100})
    assert request.options.max_tokens == 100
    assert request_to_wire(request) == {"model": "m", "messages": [], "max_tokens": 100}


def test_a_server_that_knows_only_the_older_bound_gets_it() -> None:
    request = ChatRequest((), ChatOptions(max_tokens=100))
    assert request_to_wire(request, max_tokens_field="max_tokens") == {"messages": [], "max_tokens": 100}
    assert request_to_wire(request) == {"messages": [], "max_completion_tokens": 100}


def test_a_streamed_request_asks_for_its_usage() -> None:
    body = request_to_wire(ChatRequest((), stream=True), model="m")
    assert body == {"model": "m", "messages": [], "stream": True, "stream_options": {"include_usage": True}}
    again = request_from_wire(body)
    assert (again.stream, dict(again.options.extra)) == (True, {})


def test_extra_wins_but_does_not_decide_whether_to_stream() -> None:
    options = ChatOptions(temperature=0.1, extra={"temperature": 0.9, "stream": True, "new_field": [1]})
    assert request_to_wire(ChatRequest((), options)) == {"messages": [], "temperature": 0.9, "new_field": [1]}


def test_tools_of_other_providers_are_left_out() -> None:
    options = ChatOptions(tools=(ProviderItem("anthropic", '{"type":"web_search_20250305"}'), ToolDeclaration("look")))
    assert request_to_wire(ChatRequest((), options))["tools"] == [{"type": "function", "function": {"name": "look"}}]


def test_usage_is_read_with_its_details() -> None:
    assert chat_usage(
        {
            "prompt_tokens": 100,
            "completion_tokens": 50,
            "total_tokens": 150,
            "prompt_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 8},
            "completion_tokens_details": {"reasoning_tokens": 32},
        }
    ) == Usage(100, 50, 64, 8, 32)
    assert chat_usage({"prompt_tokens": 1, "prompt_tokens_details": None, "completion_tokens": None}) == Usage(1)
    assert chat_usage(None) is None


@pytest.mark.parametrize("given", [{}, {"prompt_tokens": 0}, {"prompt_tokens": 900.0}, {"prompt_tokens": -1}])
def test_a_total_says_nothing_of_the_output_where_no_input_is_told(given: dict[str, object]) -> None:
    usage = chat_usage({**given, "completion_tokens": 10, "total_tokens": 1_000})
    assert usage is not None
    assert usage.output_tokens == 10


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"total_tokens": 135, "completion_tokens_details": {"reasoning_tokens": 94}}, Usage(32, 103, 0, 0, 94)),
        ({"total_tokens": 135}, Usage(32, 103)),
        ({"total_tokens": 135, "prompt_tokens_details": {"cached_tokens": 6}}, Usage(32, 103, 6)),
        ({"total_tokens": 41, "completion_tokens_details": {"reasoning_tokens": 4}}, Usage(32, 9, 0, 0, 4)),
        ({"total_tokens": 35}, Usage(32, 9)),
        ({"total_tokens": None}, Usage(32, 9)),
        ({"total_tokens": 61, "prompt_tokens_details": {"cached_tokens": 20}}, Usage(32, 9, 20)),
        (
            {"total_tokens": 66, "prompt_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 5}},
            Usage(32, 9, 20, 5),
        ),
    ],
    ids=[
        "xAI",
        "Gemini",
        "Gemini with a cache",
        "OpenAI",
        "a total too small",
        "no total",
        "a total with cached tokens",
        "a total with tokens read and written",
    ],
)
def test_reasoning_that_only_the_total_has_is_output(fields: dict[str, Any], expected: Usage) -> None:
    assert chat_usage({"prompt_tokens": 32, "completion_tokens": 9, **fields}) == expected
    renamed = {"prompt_tokens_details": "input_tokens_details", "completion_tokens_details": "output_tokens_details"}
    fields = {renamed.get(name, name): value for name, value in fields.items()}
    assert responses_usage({"input_tokens": 32, "output_tokens": 9, **fields}) == expected


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        ({"cached_tokens": 90}, 90),
        ({"cached_tokens": 90, "prompt_tokens_details": None}, 90),
        ({"prompt_cache_hit_tokens": 90, "prompt_cache_miss_tokens": 10}, 90),
        ({"prompt_cache_hit_tokens": 0, "prompt_cache_miss_tokens": 100}, 0),
        ({"prompt_tokens_details": {"cached_tokens": 64}, "cached_tokens": 90, "prompt_cache_hit_tokens": 80}, 64),
        ({"prompt_tokens_details": {"cached_tokens": 0}, "cache_read_input_tokens": 90}, 90),
    ],
    ids=["Moonshot", "Together", "DeepSeek", "DeepSeek without a hit", "OpenAI's place first", "LiteLLM"],
)
def test_cached_tokens_are_read_where_compatible_servers_tell_them(fields: dict[str, Any], read: int) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105, **fields}
    assert chat_usage(usage) == Usage(100, 5, read)


@pytest.mark.parametrize(
    ("fields", "written"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 60, "cache_creation_tokens": 30}}, 30),
        ({"prompt_tokens_details": {"cached_tokens": 60}, "cache_creation_input_tokens": 30}, 30),
        (
            {
                "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 20, "cache_creation_tokens": 30},
                "cache_creation_input_tokens": 30,
            },
            20,
        ),
    ],
    ids=["LiteLLM's details", "LiteLLM's usage", "OpenAI's place first"],
)
def test_tokens_written_to_a_cache_are_read_where_gateways_tell_them(fields: dict[str, Any], written: int) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105, **fields}
    assert chat_usage(usage) == Usage(100, 5, 60, written)


@pytest.mark.parametrize(
    ("given", "means"),
    [(None, ""), ([], ""), ("hm", "hm"), ([{"type": "text", "text": "hm"}, {"type": "reference"}], "hm")],
)
def test_thinking_in_the_content_may_be_text_a_list_or_nothing(given: object, means: str) -> None:
    part = {"type": "thinking", "thinking": given}
    read = messages_from_wire([{"role": "assistant", "content": [part]}])
    assert read == (Message.assistant(Reasoning(means)),)


def test_the_empty_fields_of_an_answer_are_dropped() -> None:
    fields: dict[str, Any] = {
        "role": "assistant",
        "content": "x",
        "refusal": None,
        "annotations": [],
        "tool_calls": None,
    }
    answer = ChatAnswer()
    whole = {"choices": [{"message": fields, "finish_reason": "stop"}]}
    *_, last = [*answer.add(whole, streaming=False), *answer.finish(None)]
    assert last.message_done == Message.assistant("x")


@pytest.mark.parametrize(
    ("said", "message", "means"),
    [
        ("stop", Message.assistant("x"), "stop"),
        ("length", Message.assistant("x"), "length"),
        ("tool_calls", Message.assistant(ToolCall("c", "look")), "tool_calls"),
        ("function_call", Message.assistant(ToolCall("c", "look")), "tool_calls"),
        ("stop", Message.assistant(ToolCall("c", "look")), "tool_calls"),
        ("model_length", Message.assistant("x"), "length"),
        ("model_length", Message.assistant(ToolCall("c", "look")), "length"),
        ("content_filter", Message.assistant(), "refused"),
        ("sensitive", Message.assistant(), "refused"),
        ("stop", Message("assistant", (), extra_json='{"openai-chat":{"refusal":"no"}}'), "refused"),
        ("stop", Message("assistant", (), extra_json='{"other":{"refusal":"no"}}'), "stop"),
        ("eos", Message.assistant("x"), "other"),
    ],
)
def test_finish_reasons_are_normalized(said: str, message: Message, means: str) -> None:
    assert finish_from_wire(said, message) == means
