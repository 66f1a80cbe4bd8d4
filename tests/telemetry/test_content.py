"""The text of messages is recorded where the standard opt-in asks for it, in the shape of the conventions."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from chatstack import (
    ChatOptions,
    ChatStack,
    File,
    FunctionInvoker,
    Image,
    Message,
    Part,
    ProgressReporter,
    ProviderItem,
    RateLimitError,
    Reasoning,
    Telemetry,
    Text,
    ToolCall,
    ToolDeclaration,
    ToolResult,
    WiringError,
)
from chatstack.telemetry.content import ContentCapture
from chatstack.testing import Answer, CapturedSpan, ScriptedClient, TelemetryCapture
from tests.telemetry.scenarios import FRONTS, Front

VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
TEXTS = ("system_instructions", "input.messages", "output.messages", "tool.definitions")
CONTENT = [f"gen_ai.{each}" for each in (*TEXTS, "tool.call.arguments", "tool.call.result")]
MODES: Mapping[str, tuple[bool, bool]] = {
    "no_content": (False, False),
    "span_only": (True, False),
    "event_only": (False, True),
    "span_and_event": (True, True),
}
both_fronts = pytest.mark.parametrize("front", FRONTS)


def look(city: str) -> str:
    """Looks."""
    return f"sunny in {city}"


def ask(capture: TelemetryCapture, front: Front, *answers: Answer, messages: Any = "hi", **asked: Any) -> None:
    """One turn of a whole stack."""
    stack = ChatStack(ScriptedClient(answers or ("fine",))).use(ProgressReporter).use(FunctionInvoker, tools=[look])
    client = stack.build(capture.resolve)

    async def run() -> None:
        async with client:
            if front == "whole":
                await client.get_response(messages, **asked)
            else:
                await client.get_streaming_response(messages, **asked).response()

    asyncio.run(run())


def captured(monkeypatch: pytest.MonkeyPatch, mode: str = "SPAN_AND_EVENT") -> TelemetryCapture:
    """A capture of telemetry that was told by the environment to record content."""
    monkeypatch.setenv(VARIABLE, mode)
    return TelemetryCapture()


def content(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What was recorded of messages."""
    return {name: attributes[name] for name in CONTENT if name in attributes}


def parsed(span: CapturedSpan) -> dict[str, Any]:
    """The same of a span, where it is JSON text."""
    return {name: json.loads(value) for name, value in content(span.attributes).items()}


def plain(value: Any) -> Any:
    """What a log record holds, as JSON has it: a tuple is a list there."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in cast("Mapping[str, Any]", value).items()}
    return [plain(each) for each in cast("Sequence[Any]", value)] if isinstance(value, list | tuple) else value


def said(role: str, *parts: dict[str, Any], **more: str) -> dict[str, Any]:
    return {"role": role, "parts": list(parts), **more}


def text(content: str, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "content": content}


def called(call_id: str, arguments: object) -> dict[str, Any]:
    return {"type": "tool_call", "id": call_id, "name": "look", "arguments": arguments}


def gave(call_id: str, response: object) -> dict[str, Any]:
    return said("tool", {"type": "tool_call_response", "id": call_id, "response": response})


def medium(kind: str, modality: str, mime_type: str | None, **where: object) -> dict[str, Any]:
    return {"type": kind, "modality": modality, "mime_type": mime_type, **where}


# Where


@both_fronts
@pytest.mark.parametrize("mode", [*MODES, *map(str.upper, MODES), "", " ", None])
def test_content_is_where_it_was_asked_for(mode: str | None, front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    capture = TelemetryCapture() if mode is None else captured(monkeypatch, mode)
    ask(capture, front, [ToolCall("1", "look", '{"city": "Dubai"}')], "the answer", messages="the question")
    on_spans, in_events = MODES[(mode or "").strip().lower() or "no_content"]
    everywhere = {"invoke_agent chat", "chat script", "execute_tool look"}
    assert {each.name for each in capture.spans if content(each.attributes)} == (everywhere if on_spans else set())
    assert [each.event_name for each in capture.logs] == ["gen_ai.client.inference.operation.details"] * 2 * in_events
    for word in ("the question", "the answer", "Dubai"):
        assert (word in repr(capture.spans), word in repr(capture.logs)) == (on_spans, in_events)


@pytest.mark.parametrize("mode", list(MODES))
def test_an_option_wins_over_the_environment(mode: ContentCapture, monkeypatch: pytest.MonkeyPatch) -> None:
    for said_there in MODES:
        monkeypatch.setenv(VARIABLE, said_there)
        telemetry = Telemetry(capture_content=mode)
        assert (telemetry.captures_on_spans, telemetry.captures_in_events) == MODES[mode]


@pytest.mark.parametrize("value", ["true", "SPANS", "span-only"])
def test_a_word_that_nobody_knows_is_told_and_records_nothing(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.warns(RuntimeWarning, match=f"{VARIABLE} must be one of no_content, span_only, event_only") as told:
        capture = TelemetryCapture()
    assert value not in str(told[0].message)
    ask(capture, "whole")
    assert not [each for each in capture.spans if content(each.attributes)]
    assert capture.logs == ()


@pytest.mark.parametrize("value", ["SPAN_ONLY", "yes", True, 1])
def test_an_option_that_nobody_knows_is_refused(value: object) -> None:
    with pytest.raises(WiringError, match=r"capture_content=.* must be one of no_content, span_only") as refused:
        Telemetry(capture_content=cast("ContentCapture", value))
    assert refused.value.parameter == "capture_content"


# What


PDF = "application/pdf"
ASKED = (
    Message.system("be brief"),
    Message.user(
        "look",
        Image(url="https://example.org/a.png"),
        Image(data="aGVsbG8=", media_type="image/png"),
        Image(file_id="file-1"),
        File(url="https://example.org/a.pdf", media_type=PDF),
        File(data="aGVsbG8=", media_type=PDF, name="a.pdf"),
        File(url=f"data:{PDF};base64,aGVsbG8="),
        File(file_id="file-2"),
        File(text="what is in it", name="a.txt"),
    ),
    Message.assistant(
        Reasoning("hm", '{"signature": "s"}', "scripted"),
        "let me see",
        ToolCall("1", "look", '{"city": "Dubai", "days": [1, 2.5, null, true]}'),
        ToolCall("2", "look", '{"city": "Du'),
        ProviderItem("scripted", '{"search": "weather"}'),
    ),
    Message.tool("1", "sunny", name="look"),
    Message.tool("2", (Text("a map"), Image(data="aGVsbG8=", media_type="image/png")), name="look"),
    Message("tool", (ToolResult("3", "look", "Error: no such city", is_error=True),)),
    Message.user("and tomorrow?"),
)
CALLED = called("1", {"city": "Dubai", "days": [1, 2.5, None, True]})
PNG = medium("blob", "image", "image/png", content="", size_bytes=5)
SAID: list[dict[str, Any]] = [
    said("system", text("be brief")),
    said(
        "user",
        text("look"),
        medium("uri", "image", None, uri="https://example.org/a.png"),
        PNG,
        medium("file", "image", None, file_id="file-1"),
        medium("uri", "document", PDF, uri="https://example.org/a.pdf"),
        medium("blob", "document", PDF, content="", size_bytes=5),
        medium("blob", "document", PDF, content="", size_bytes=5),
        medium("file", "document", None, file_id="file-2"),
        text("what is in it"),
    ),
    said("assistant", text("hm", "reasoning"), text("let me see"), CALLED, called("2", '{"city": "Du')),
    gave("1", "sunny"),
    gave("2", [text("a map"), PNG]),
    gave("3", "Error: no such city"),
    said("user", text("and tomorrow?")),
]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
OPTIONS = ChatOptions(
    instructions="be polite",
    tools=(
        ToolDeclaration("book", "Books.", json.dumps(SCHEMA)),
        ToolDeclaration("stop"),
        ProviderItem("openai", '{"type": "web_search", "filters": {}}'),
        ProviderItem("openai", '{"type": "mcp", "name": "maps"}'),
        ProviderItem("openai", "nonsense"),
    ),
)


STRICT = {**SCHEMA, "additionalProperties": False}
LOOK = {"type": "function", "name": "look", "description": "Looks.", "parameters": STRICT}
DECLARED: list[dict[str, Any]] = [
    {"type": "function", "name": "book", "description": "Books.", "parameters": SCHEMA},
    {"type": "function", "name": "stop", "description": None, "parameters": None},
    {"type": "web_search", "name": "web_search"},
    {"type": "mcp", "name": "maps"},
    {"type": "", "name": ""},
]


@both_fronts
def test_every_kind_of_part_has_its_shape(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = captured(monkeypatch)
    ask(capture, front, [Reasoning("so"), "rain ", "then", "length"], messages=ASKED, options=OPTIONS)
    answered = said("assistant", text("so", "reasoning"), text("rain then"), finish_reason="length")
    expected = {"gen_ai.system_instructions": [text("be polite")], "gen_ai.input.messages": SAID}
    expected |= {"gen_ai.tool.definitions": [*DECLARED, LOOK], "gen_ai.output.messages": [answered]}
    assert parsed(capture.span("chat script")) == expected
    assert plain(content(capture.logs[0].attributes)) == expected
    assert parsed(capture.span("invoke_agent chat")) == {**expected, "gen_ai.tool.definitions": DECLARED}


@both_fronts
def test_each_round_shows_what_was_sent_and_each_tool_its_call(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = captured(monkeypatch)
    ask(capture, front, [ToolCall("1", "look", '{"city": "Dubai"}'), ToolCall("2", "look", '{"city": ')], "fine")
    wrong = "Error: the arguments do not fit: Input data was truncated. Correct them and call again."
    asking = said("assistant", called("1", {"city": "Dubai"}), called("2", '{"city": '))
    results = [gave("1", "sunny in Dubai"), gave("2", wrong)]
    question, fine = said("user", text("hi")), said("assistant", text("fine"))
    first, second = map(parsed, capture.spans_named("chat script"))
    assert first["gen_ai.input.messages"] == [question]
    assert first["gen_ai.output.messages"] == [{**asking, "finish_reason": "tool_call"}]
    assert second["gen_ai.input.messages"] == [question, asking, *results]
    assert second["gen_ai.output.messages"] == [{**fine, "finish_reason": "stop"}]
    root, whole = capture.span("invoke_agent chat"), parsed(capture.span("invoke_agent chat"))
    assert whole["gen_ai.input.messages"] == [question]
    assert whole["gen_ai.output.messages"] == [asking, *results, {**fine, "finish_reason": "stop"}]
    assert (root.attributes["input.value"], root.attributes["output.value"]) == ("hi", "fine")
    assert [content(each.attributes) for each in capture.spans_named("execute_tool look")] == [
        {"gen_ai.tool.call.arguments": '{"city":"Dubai"}', "gen_ai.tool.call.result": "sunny in Dubai"},
        {"gen_ai.tool.call.arguments": '{"city": ', "gen_ai.tool.call.result": wrong},
    ]


@both_fronts
def test_the_event_belongs_to_the_span_of_its_call(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = captured(monkeypatch, "EVENT_ONLY")
    ask(capture, front, [ToolCall("1", "look", '{"city": "Dubai"}')], "fine", options=ChatOptions(temperature=0.5))
    assert not [each for each in capture.spans if content(each.attributes)]
    calls = capture.spans_named("chat script")
    assert [(each.trace_id, each.span_id) for each in capture.logs] == [(each.trace_id, each.span_id) for each in calls]
    for log, span in zip(capture.logs, calls, strict=True):
        assert (log.event_name, log.severity, log.body) == ("gen_ai.client.inference.operation.details", "", None)
        on_span = {**span.attributes}
        on_span.pop("gen_ai.response.time_to_first_chunk", None)
        assert {name: each for name, each in log.attributes.items() if name not in CONTENT} == on_span


@both_fronts
def test_a_refused_call_shows_what_was_sent(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = captured(monkeypatch)
    with pytest.raises(RateLimitError):
        ask(capture, front, RateLimitError("not now"))
    sent = {"gen_ai.input.messages": [said("user", text("hi"))], "gen_ai.tool.definitions": [LOOK]}
    (span,), (log,) = capture.spans_named("chat script"), capture.logs
    assert parsed(span) == plain(content(log.attributes)) == sent
    assert (log.trace_id, log.span_id) == (span.trace_id, span.span_id)
    assert parsed(capture.span("invoke_agent chat")) == {"gen_ai.input.messages": sent["gen_ai.input.messages"]}
    assert "not now" not in capture.said()


def test_a_stream_that_is_left_shows_the_messages_that_were_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = captured(monkeypatch)
    model = ScriptedClient([[ToolCall("1", "look", '{"city": "Dubai"}')], "one two three"])
    client = ChatStack(model).use(ProgressReporter).use(FunctionInvoker, tools=[look]).build(capture.resolve)

    async def run() -> None:
        async with client.get_streaming_response("hi") as stream:
            async for update in stream:
                if update.text:
                    break

    asyncio.run(run())
    first, left = capture.spans_named("chat script")
    assert ("gen_ai.output.messages" in first.attributes, "gen_ai.output.messages" in left.attributes) == (True, False)
    assert (left.attributes["error.type"], left.status) == ("cancelled", "unset")
    roles = [each["role"] for each in parsed(left)["gen_ai.input.messages"]]
    assert roles == ["user", "assistant", "tool"]
    assert [each["role"] for each in parsed(capture.span("invoke_agent chat"))["gen_ai.output.messages"]] == roles[1:]


# The conventions' own shapes


genai: Any = importlib.import_module("opentelemetry.util.genai.types")
to_json: Any = importlib.import_module("opentelemetry.util.genai.utils").gen_ai_json_dumps
KINDS = ("Text", "Reasoning", "ToolCallRequest", "ToolCallResponse", "Blob", "Uri", "File")
PARTS: Mapping[str, Any] = {each.type: each for each in (getattr(genai, f"{kind}Part") for kind in KINDS)}


@pytest.mark.parametrize("message", SAID, ids=lambda each: each["role"])
def test_messages_are_what_the_conventions_own_types_write(message: dict[str, Any]) -> None:
    def theirs(part: dict[str, Any]) -> dict[str, Any]:
        """Without a field of ours: the size of what is not recorded."""
        return {name: value for name, value in part.items() if name != "size_bytes"}

    def made(part: dict[str, Any]) -> Any:
        more = {"content": b""} if part["type"] == "blob" else {}
        return PARTS[part["type"]](**{**theirs(part), **more})

    written = json.loads(to_json(genai.InputMessage(message["role"], [*map(made, message["parts"])])))
    assert written.pop("name") is None
    assert written == {**message, "parts": [*map(theirs, message["parts"])]}


@both_fronts
def test_the_bytes_of_a_picture_are_not_recorded(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three pictures of two megabytes would be eight megabytes on every span of every round."""
    capture, data = captured(monkeypatch), "QUJD" * 100_000
    shown = (Image(data=data, media_type="image/png"), Image(url=f"data:image/png;base64,{data}"))
    ask(capture, front, messages=[Message.user(*shown), Message.tool("1", shown)])
    recorded = [each.attributes for each in capture.spans] + [each.attributes for each in capture.logs]
    assert max(len(str(value)) for attributes in recorded for value in attributes.values()) < 2_000
    for part in parsed(capture.span("chat script"))["gen_ai.input.messages"][0]["parts"]:
        assert part == medium("blob", "image", "image/png", content="", size_bytes=300_000)


@pytest.mark.parametrize("declared", DECLARED, ids=lambda each: each["name"])
def test_tools_are_what_the_conventions_own_types_write(declared: dict[str, Any]) -> None:
    kind = genai.FunctionToolDefinition if declared["type"] == "function" else genai.GenericToolDefinition
    assert json.loads(to_json(kind(**declared))) == declared


# What cannot be written down


@both_fronts
@pytest.mark.parametrize(
    ("number", "is_text"), [(-(2**63), False), (-(2**63) - 1, True), (2**63 - 1, False), (2**63, True), (10**30, True)]
)
def test_arguments_with_an_integer_that_no_exporter_takes_are_text(
    number: int, is_text: bool, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exporter drops the whole attribute, all messages of the request, for one of them."""
    capture, arguments = captured(monkeypatch), f'{{"city":"Dubai","deep":[{{"number":{number}}}]}}'
    ask(capture, front, [ToolCall("1", "look", arguments)], "done")
    written = arguments if is_text else json.loads(arguments)
    asked = [said("assistant", called("1", written))]
    last = capture.logs[-1]
    assert plain(last.attributes["gen_ai.input.messages"])[1:2] == asked
    assert parsed(capture.spans_named("chat script")[-1])["gen_ai.input.messages"][1:2] == asked


HALF, DEEP = "half a character \ud83d", "[" * 5_000 + "]" * 5_000  # a client of one's own may let both through


@both_fronts
@pytest.mark.parametrize("part", [Text(HALF), ToolCall("1", "theirs", DEEP)], ids=["half a character", "deep"])
def test_what_cannot_be_written_costs_no_call(part: Part, front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = captured(monkeypatch)
    ask(capture, front, Message("assistant", (part,)), options=ChatOptions(tools=(ToolDeclaration("theirs"),)))
    assert capture.open_spans == ()
