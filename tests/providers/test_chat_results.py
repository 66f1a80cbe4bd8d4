"""Pictures that tools return, to OpenAI's own chat completions: only text may stand in a result there."""

from __future__ import annotations

import json

import openai
import pytest

from chatstack import (
    ChatOptions,
    ChatStack,
    File,
    FunctionInvoker,
    Image,
    Message,
    ProviderItem,
    Text,
    ToolCall,
    ToolResult,
    tool,
)
from chatstack.providers.openai import OpenAIChatClient
from chatstack.providers.openai.chat_results import takes_text_alone, with_text_results
from chatstack.providers.openai.chat_wire import messages_to_wire
from tests.providers.chat_bodies import bodies_of

PNG = Image.from_bytes(b"png", "image/png")
PDF = File(data="cGRm", media_type="application/pdf", name="report.pdf")
SEEN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}}
READ = {"type": "file", "file": {"file_data": "data:application/pdf;base64,cGRm", "filename": "report.pdf"}}
CALLS = Message.assistant(ToolCall("c1", "screenshot", "{}"), ToolCall("c2", "report", "{}"))


def text(said: str) -> dict[str, object]:
    return {"type": "text", "text": said}


NOTE = text("[Pictures and files of this result follow in the next user message.]")


def result(call_id: str, *content: object) -> dict[str, object]:
    return {"role": "tool", "tool_call_id": call_id, "content": list(content)}


def returned(call_id: str, *output: Text | Image | File) -> Message:
    return Message("tool", (ToolResult(call_id, output=output),))


def written(*messages: Message) -> list[dict[str, object]]:
    return with_text_results(messages_to_wire(messages))


def test_pictures_follow_the_last_result_of_their_round() -> None:
    _, _, *rest = written(
        Message.user("look"),
        CALLS,
        returned("c1", Text("done"), PNG),
        returned("c2", PDF),
        Message.user("and now?"),
    )
    assert rest == [
        result("c1", text("done"), NOTE),
        result("c2", NOTE),
        {"role": "user", "content": [text("Result of screenshot (c1):"), SEEN, text("Result of report (c2):"), READ]},
        {"role": "user", "content": "and now?"},
    ]


def test_results_of_one_message_stand_before_what_the_user_says_in_it() -> None:
    results = ToolResult("c1", output=(PNG,)), ToolResult("c2", output="fine")
    _, _, *rest = written(Message.user("look"), CALLS, Message("user", (*results, Text("and now?"))))
    assert rest == [
        result("c1", NOTE),
        {"role": "tool", "tool_call_id": "c2", "content": "fine"},
        {"role": "user", "content": [text("Result of screenshot (c1):"), SEEN]},
        {"role": "user", "content": "and now?"},
    ]


def test_a_result_without_its_call_has_no_name() -> None:
    assert written(returned("c9", PNG))[1] == {"role": "user", "content": [text("Result of a tool (c9):"), SEEN]}


def test_what_comes_later_leaves_the_beginning_as_it_was() -> None:
    history = [Message.user("look"), CALLS, returned("c1", PNG), Message.tool("c2", "fine")]
    sent = written(*history)
    later = written(*history, Message.assistant("seen"), Message.user("thanks"))
    assert later[: len(sent)] == sent


def test_messages_without_pictures_in_results_stay_the_same_objects() -> None:
    history = [Message.user(PNG), CALLS, returned("c1", Text("done"), Text("well")), Message.tool("c2", "fine")]
    wire = messages_to_wire(history)
    assert all(a is b for a, b in zip(with_text_results(wire), wire, strict=True))


@pytest.mark.parametrize(
    ("host", "is_strict"),
    [
        ("api.openai.com", True),
        ("eu.api.openai.com", True),
        ("mine.openai.azure.com", True),
        ("mine.services.ai.azure.com", True),
        ("127.0.0.1", False),
        ("azure.com.example.org", False),
    ],
)
def test_servers_of_openai_take_text_alone(host: str, is_strict: bool) -> None:
    assert takes_text_alone(object(), host) is is_strict


def test_azure_is_known_by_its_client_behind_any_address() -> None:
    url = "http://127.0.0.1:1/openai"
    azure = openai.AsyncAzureOpenAI(api_key="k", base_url=url, api_version="2024-10-21")
    assert takes_text_alone(azure, "127.0.0.1")
    assert not takes_text_alone(openai.AsyncOpenAI(api_key="k", base_url=url), "127.0.0.1")


@pytest.mark.parametrize("base_url", ["https://api.openai.com/v1", "http://127.0.0.1:1/v1"])
def test_a_tool_of_responses_is_left_out_where_openai_would_refuse_it(base_url: str) -> None:
    """Other servers with chat completions have tools in that form, too."""
    custom = {"type": "custom", "custom": {"name": "sh"}}
    tools = tuple(ProviderItem("openai", json.dumps(each)) for each in ({"type": "web_search"}, custom))

    async def ask(model: OpenAIChatClient) -> None:
        await model.get_response("hi", options=ChatOptions(tools=tools))
        await model.get_response("hi", options=ChatOptions(tools=tools[:1], tool_choice="required"))

    bodies = bodies_of(base_url, ask)
    others = [{"type": "web_search"}] if base_url.startswith("http:") else []
    assert [each.get("tools") for each in bodies] == [[*others, custom], others or None]
    assert bodies[1].get("tool_choice") == ("required" if others else None)


@tool
def screenshot() -> Image:
    """Take a picture of the screen."""
    return PNG


@pytest.mark.parametrize("base_url", ["https://api.openai.com/v1", "http://127.0.0.1:1/v1"])
def test_a_tool_that_returns_a_picture_is_sent_as_the_server_takes_it(base_url: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "screenshot", "arguments": "{}"}}

    async def ask(model: OpenAIChatClient) -> None:
        client = ChatStack(model).use(FunctionInvoker, tools=[screenshot]).build()
        assert (await client.get_response("what do you see?")).text == "a cat"

    bodies = bodies_of(base_url, ask, {"role": "assistant", "tool_calls": [call]}, {"content": "a cat"})
    _, _, *rest = bodies[1]["messages"]
    if base_url.startswith("http:"):
        assert rest == [result("c1", SEEN)]
    else:
        assert rest == [result("c1", NOTE), {"role": "user", "content": [text("Result of screenshot (c1):"), SEEN]}]


@pytest.mark.parametrize("host", ["api.openai.com", "api.deepseek.com"])
def test_a_result_of_texts_alone_is_a_string_for_compatible_servers(host: str) -> None:
    """DeepSeek refuses a list of them, and templates of open models read nothing of it."""
    marked = Text("c", '{"openai-chat":{"cache_control":{"type":"ephemeral"}}}')
    history = [CALLS, returned("c1", Text("a"), Text("b")), returned("c2", marked)]
    bodies = bodies_of(f"https://{host}/v1", lambda model: model.get_response(history))
    sent = [each["content"] for each in bodies[0]["messages"][1:]]
    joined: object = "a\nb" if host == "api.deepseek.com" else [text("a"), text("b")]
    assert sent == [joined, [{**text("c"), "cache_control": {"type": "ephemeral"}}]]
