"""What cannot be sent is refused before anything is, over every wire, and no error quotes it."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest

from chatstack import ChatOptions, ChatRequest, InputError, Message
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.anthropic import wire as anthropic_wire
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from chatstack.providers.sending import sendable
from chatstack.values.parts import File, Part, ProviderItem, Reasoning, Text, ToolCall
from chatstack.values.requests import ToolDeclaration

ALL = pytest.mark.parametrize("kind", [OpenAIChatClient, OpenAIResponsesClient, AnthropicChatClient])
HALF = "the secret prompt \ud800"


def refused(kind: type[Any], request: ChatRequest) -> InputError:
    """The error, after a look at everything that hangs on it. No server listens: sending would be another error."""

    async def asked() -> None:
        async with kind("m", api_key="k", base_url="http://127.0.0.1:1", max_retries=0) as client:
            await client.send(request)

    with pytest.raises(InputError) as caught:
        asyncio.run(asked())
    error: BaseException | None = caught.value
    while error is not None:
        assert "secret" not in repr(error)
        error = error.__cause__ or error.__context__
    assert "secret" not in "".join(traceback.format_exception(caught.value))
    return caught.value


@ALL
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("part", [Text(HALF), ToolCall("c", "look", f'{{"a": "{HALF}"}}')])
def test_text_that_cannot_be_encoded_is_refused_by_its_place(kind: type[Any], part: Part, stream: bool) -> None:
    messages = (Message.user("hi"), Message("assistant", (part,)), Message.user("so?"))
    assert "messages[1]: holds half a character" in str(refused(kind, ChatRequest(messages, stream=stream)))


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        (AnthropicChatClient, Reasoning("", f'{{"type": "thinking", "thinking": "{HALF}"}}', "anthropic")),
        (OpenAIResponsesClient, Reasoning("", f'{{"type": "reasoning", "text": "{HALF}"}}', "openai")),
        (OpenAIChatClient, Reasoning("", f'{{"reasoning": "{HALF}"}}', "openai")),
        (OpenAIChatClient, File(text=HALF)),
    ],
)
def test_items_that_cannot_be_encoded_are_refused_too(kind: type[Any], part: Part) -> None:
    messages = (Message.user("hi"), Message("assistant", (part,)), Message.user("so?"))
    assert "messages[1]" in str(refused(kind, ChatRequest(messages)))


@ALL
@pytest.mark.parametrize(
    ("options", "place"),
    [
        (ChatOptions(instructions=HALF), "options.instructions"),
        (ChatOptions(tools=(ToolDeclaration("look", HALF),)), "options.tools"),
        (ChatOptions(model=HALF), "options.model"),
        (ChatOptions(temperature=float("nan")), "options.temperature"),
        (ChatOptions(extra={"a": object()}), "options.extra['a']"),
        (ChatOptions(extra={"a": [float("nan")]}), "options.extra['a']"),
        (ChatOptions(extra={"a": {"b": float("inf")}}), "options.extra['a']"),
        (ChatOptions(extra={"a": HALF}), "options.extra['a']"),
        (ChatOptions(extra={"a": b"x"}), "options.extra['a']"),
        (ChatOptions(extra={5: "x"}), "options.extra"),  # type: ignore[dict-item]
    ],
)
def test_options_that_cannot_be_sent_are_named(kind: type[Any], options: ChatOptions, place: str) -> None:
    assert str(refused(kind, ChatRequest((Message.user("hi"),), options))).startswith(f"{place}: ")


@ALL
def test_an_object_that_holds_itself_is_refused(kind: type[Any]) -> None:
    itself: dict[str, object] = {}
    itself["a"] = itself
    deep: object = []
    for _ in range(100_000):
        deep = [deep]
    for value in (itself, deep):
        request = ChatRequest((Message.user("hi"),), ChatOptions(extra={"a": value}))
        assert str(refused(kind, request)).startswith("options.extra['a']: ")


CHAT_SHELL = ProviderItem("openai", '{"type":"custom","custom":{"name":"sh"}}')
SHELL = ProviderItem("openai", '{"type":"custom","name":"sh"}')
BASH = ProviderItem("anthropic", '{"type":"bash_20250124","name":"sh"}')


@pytest.mark.parametrize(
    ("kind", "tool"),
    [
        (OpenAIChatClient, BASH),
        (OpenAIResponsesClient, BASH),
        (OpenAIResponsesClient, CHAT_SHELL),
        (AnthropicChatClient, SHELL),
        (AnthropicChatClient, CHAT_SHELL),
    ],
)
def test_a_tool_that_is_demanded_and_that_another_api_alone_is_told_of_is_refused(
    kind: type[Any], tool: ProviderItem
) -> None:
    for tools in ((ToolDeclaration("look"), tool), (tool,)):
        request = ChatRequest((Message.user("hi"),), ChatOptions(tools=tools, tool_choice="sh"))
        told = "options.tool_choice='sh': that tool is declared in the form of another API alone"
        assert str(refused(kind, request)) == told


@pytest.mark.parametrize(
    "options",
    [
        ChatOptions(tools=(ToolDeclaration("look"), SHELL), tool_choice="look"),
        ChatOptions(tools=(ToolDeclaration("look"), SHELL), tool_choice="required"),
        ChatOptions(tools=(ToolDeclaration("sh"), SHELL), tool_choice="sh"),
        ChatOptions(tools=(ToolDeclaration("look"), BASH), tool_choice="sh"),
        ChatOptions(tools=(SHELL,), tool_choice="sh", extra={"tools": [{"name": "sh"}]}),
        ChatOptions(tools=(SHELL,), tool_choice="sh", extra={"tools": [{"name": "b"}], "tool_choice": {"type": "any"}}),
    ],
)
def test_any_other_choice_of_a_tool_is_sent(options: ChatOptions) -> None:
    request = ChatRequest((Message.user("hi"),), options)
    body = anthropic_wire.request_to_wire(request)
    assert sendable(request, lambda: body) is body


@pytest.mark.parametrize("betas", [5, ["secret\n"], ["sécret"], [3]])
def test_betas_that_no_header_may_hold_are_refused(betas: object) -> None:
    request = ChatRequest((Message.user("hi"),), ChatOptions(extra={"betas": betas}))
    assert "betas" in str(refused(AnthropicChatClient, request))
