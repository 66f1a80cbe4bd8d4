"""What is blank, on every wire: a request with nothing in it, and messages that lose all they had on their way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from chatstack import ChatOptions, ChatRequest, InputError, Message, ProviderItem, Text, ToolCall, ToolResult
from chatstack.providers.anthropic.wire import request_to_wire as to_anthropic
from chatstack.providers.openai.chat_wire import request_to_wire as to_chat
from chatstack.providers.openai.responses_options import request_to_wire as to_responses
from chatstack.providers.registry import PROVIDERS

FOREIGN = ProviderItem("elsewhere", "{}")
on_every_provider = pytest.mark.parametrize("make", [each.load() for each in PROVIDERS.values()], ids=PROVIDERS.keys())
on_every_wire = pytest.mark.parametrize(
    ("write", "field"), [(to_chat, "messages"), (to_responses, "input"), (to_anthropic, "messages")]
)


@on_every_provider
@pytest.mark.parametrize(
    "messages",
    [(), (Message.user(""),), (Message.system(" "), Message("user", ()), Message.user("\n"))],
    ids=["none", "empty", "blank"],
)
def test_a_request_with_nothing_in_it_is_refused_before_anything_is_sent(make: Any, messages: Any) -> None:
    client = make("m", api_key="k", base_url="http://127.0.0.1:9/v1", max_retries=0)
    for stream in (False, True):
        with pytest.raises(InputError, match=r"a request needs"):
            asyncio.run(client.send(ChatRequest(messages, ChatOptions(instructions="be kind"), stream=stream)))


@on_every_wire
def test_a_user_message_that_comes_in_goes_out(write: Callable[[ChatRequest], Any], field: str) -> None:
    for blank in (Message.user(""), Message("user", ()), Message("user", (FOREIGN,))):
        wire = write(ChatRequest((Message.user("hi"), Message.assistant("yes?"), blank)))[field]
        assert wire[-1]["role"] == "user"
        assert wire[-1]["content"] != []


@on_every_wire
def test_no_list_of_nothing_is_sent(write: Callable[[ChatRequest], Any], field: str) -> None:
    """The APIs take an empty text, or none, but no list without parts."""
    results = [ToolResult("a", output=()), ToolResult("b", output=(FOREIGN,)), ToolResult("c", output=(Text(" "),))]
    calls = Message.assistant(*(ToolCall(each.call_id, "f") for each in results))
    wire = write(ChatRequest((Message.user("hi"), calls, Message("tool", (*results, FOREIGN)))))[field]
    assert "[]" not in str(wire).replace("'annotations': []", "")
