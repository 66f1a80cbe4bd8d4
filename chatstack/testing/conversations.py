"""Test data of the layer contract: conversations of every shape, answers, tools, and a client that echoes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import MappingProxyType

from chatstack.client.fronts import ChatFronts
from chatstack.client.stream import ChatStream
from chatstack.testing.scripted import Answer
from chatstack.values.messages import Message
from chatstack.values.parts import File, Image, ProviderItem, Reasoning, Text, ToolCall, ToolResult
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatUpdate, Usage

CANARY = "canary-7f3a9c"
"""A marker in every text of the contract; it must never be found in telemetry."""


def _long(text: str) -> str:
    return f"{text} {CANARY} " * 8


def _call(call_id: str, name: str = "lookup") -> ToolCall:
    return ToolCall(call_id, name, f'{{"what": "{CANARY} {call_id}"}}')


def _result(call_id: str, text: str = "sunny") -> Message:
    return Message.tool(call_id, _long(text), name="lookup")


_ROUND = (Message.assistant("let me see", _call("r1")), _result("r1"), Message.assistant(_long("it is sunny")))
_ASK = Message.user(_long("how is the weather?"))

HISTORIES: Mapping[str, tuple[Message, ...]] = MappingProxyType(
    {
        "one message": (Message.user(f"hello {CANARY}"),),
        "several turns": (_ASK, *_ROUND, Message.user(_long("and there?")), *_ROUND, _ASK),
        "several system messages": (
            Message.system(_long("be brief")),
            _ASK,
            Message.assistant(_long("fine")),
            Message.system(_long("be polite")),
            _ASK,
            Message.system("be quick"),
        ),
        "parallel calls": (
            _ASK,
            Message.assistant(_call("a"), _call("b"), _call("c")),
            _result("c"),
            Message("tool", (ToolResult("a", "lookup", _long("rain")), ToolResult("b", "lookup", "snow"))),
            Message.assistant("done"),
            _ASK,
        ),
        "ids used again": (_ASK, *_ROUND, _ASK, *_ROUND, _ASK, Message.assistant(_call("r1")), _result("r1")),
        "interleaved and late results": (
            _ASK,
            Message.assistant(_call("a")),
            Message.assistant(_call("b")),
            _result("b"),
            Message.user(_long("hurry")),
            _result("a"),
            Message.assistant("done"),
            _ASK,
        ),
        "orphan results": (_ASK, _result("nobody"), *_ROUND, Message.tool("none", "gone"), _ASK),
        "calls without results": (_ASK, Message.assistant("hm", _call("x")), _ASK, *_ROUND, _ASK),
        "calls that wait": (_ASK, *_ROUND, _ASK, Message.assistant(_call("a"), _call("b"))),
        "pinned and ours": (
            Message.user(_long("never forget"), pinned=True),
            Message("assistant", (Text(_long("what was before")),), mark="summary"),
            _ASK,
            *_ROUND,
            Message.user(_long("remember"), pinned=True),
            _ASK,
        ),
        "pictures, files, reasoning, empty content": (
            Message.user("look", Image(url=f"https://example.org/{CANARY}.png"), File(text=CANARY, name=CANARY)),
            Message.assistant(Reasoning(_long("hm"), f'{{"signature": "{CANARY}"}}', "scripted"), _call("i")),
            Message.tool("i", (Text(CANARY), Image(data="aGVsbG8=", media_type="image/png")), name="lookup"),
            Message.assistant(ProviderItem("scripted", f'{{"search": "{CANARY}"}}')),
            Message.assistant(),
            Message.user(""),
            _ASK,
        ),
    }
)
"""Conversations by their peculiarity: well-formed ones, and ill-formed ones as callers really send them."""

ANSWERS: Mapping[str, tuple[Answer, ...]] = MappingProxyType(
    {
        "text": (f"it is fine {CANARY}",),
        "calls": (
            [Reasoning(f"hm {CANARY}"), "let me", " look", _call("c1"), _call("c2")],
            ["and ", _call("c1", "broken")],
            f"it is fine {CANARY}",
        ),
        "cut off": (["half an", " answer", "length"],),
        "nothing": ("",),
    }
)
"""Answers of the model, round by round. ``lookup`` and ``broken`` are in ``TOOLS``."""


async def lookup(what: str) -> str:
    """Look something up."""
    await asyncio.sleep(0)
    return f"{what} is sunny, {CANARY}"


async def broken(what: str) -> str:
    """Fail, with an error that quotes."""
    raise ValueError(f"{CANARY}: no {what}")


TOOLS = (lookup, broken)
"""The tools that the answers call, for layers that run tools."""


class EchoClient(ChatFronts):
    """A client that answers with the number of the conversation: the one in angle brackets in the latest user message.

    If tools are declared, it calls ``lookup`` with it first.
    """

    def __init__(self) -> None:
        self.requests: list[ChatRequest] = []

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.requests.append(request)
        return await ChatStream.primed(self._echo(request))

    async def _echo(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        heard = [message for message in request.messages if message.role == "user"][-1]
        (number,) = numbers_in([heard])
        await asyncio.sleep(0)
        if request.options.tools and request.messages[-1].role == "user":
            call = ToolCall("call", "lookup", f'{{"what": "<{number}>"}}')
            yield ChatUpdate(part=call)
            yield ChatUpdate(message_done=Message.assistant(call), finish_reason="tool_calls", usage=Usage(1, 1))
            return
        for word in ("this is ", f"<{number}>"):
            yield ChatUpdate(text=word)
            await asyncio.sleep(0)
        yield ChatUpdate(message_done=Message.assistant(f"this is <{number}>"), finish_reason="stop", usage=Usage(1, 1))


def numbered(number: int) -> list[Message]:
    """Return a conversation with its number in every message."""
    text = f"<{number}> " * 12
    return [Message.user(text), *(Message.assistant(text) for _ in range(8)), Message.user(text)]


def numbers_in(messages: Sequence[Message]) -> set[int]:
    """Return the numbers of the conversations that these messages belong to."""
    texts = [part.text for message in messages for part in message.parts if isinstance(part, Text | ToolResult)]
    return {int(each) for text in texts for each in re.findall(r"<(\d+)>", text)}
