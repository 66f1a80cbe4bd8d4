"""Whole conversations over the official SDKs against servers with a prompt cache: each call reads what the last one
left there, save after an edit."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest

from chatstack import ChatStack, FunctionInvoker, Message, ToolResultClearer, ToolResultShaper, tool
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.anthropic.marks import CacheLifetime
from tests.providers.cache_server import AnthropicCache, Call, Item, blocks_of, marks_of

BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
SYSTEM = Message.system("You are a librarian. " * 20)
SIZES = (1, 3, 12, 2, 25, 1)
"""Calls of the tool in each round of a turn. A round of 25 has 50 blocks, more than a look back."""


@tool
def look(shelf: str) -> str:
    """Looks at a shelf of the library."""
    return f"books on {shelf}: " + "book, " * 40


def librarian(body: Item) -> list[Item]:
    """Thinks, and calls the tool several times a round, until the turn's rounds are over."""
    roles = [message["role"] for message in body["messages"]]
    asked = max(
        at
        for at, message in enumerate(body["messages"])
        if message["role"] == "user" and message["content"][-1]["type"] == "text"
    )
    number = roles[asked:].count("assistant")
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    if number == len(SIZES):
        return [thought, {"type": "text", "text": f"There are books. {len(roles)}"}]
    uses = [
        {"type": "tool_use", "id": f"t{len(roles)}x{each}", "name": "look", "input": {"shelf": f"{each}"}}
        for each in range(SIZES[number])
    ]
    return [thought, {"type": "text", "text": "I look."}, *uses]


def talk(stack: ChatStack, *prompts: str, stream: bool, head: Sequence[Message] = (SYSTEM,)) -> None:
    async def talked() -> None:
        history: list[Message] = [*head]
        async with stack.open() as client:
            for prompt in prompts:
                history.append(Message.user(prompt))
                if stream:
                    async with client.get_streaming_response(history, conversation_id="c") as answer:
                        history += (await answer.response()).messages
                else:
                    history += (await client.get_response(history, conversation_id="c")).messages
        await stack.provider.aclose()  # type: ignore[attr-defined]

    asyncio.run(talked())


def stack_over(server: AnthropicCache, cache: CacheLifetime = "5m") -> ChatStack:
    provider = AnthropicChatClient("claude-sonnet-5", api_key="k", http_client=server.http_client(), cache=cache)
    return ChatStack(provider).use(FunctionInvoker, tools=[look], max_tool_calls_per_turn=200)


def breaks(calls: Sequence[Call]) -> list[int]:
    """The calls that did not read all that the one before had left in the cache."""
    pairs = itertools.pairwise(calls)
    return [number for number, (before, call) in enumerate(pairs, 1) if call.read != before.read + before.written]


@pytest.mark.sampled(3)
@BOTH_WAYS
@pytest.mark.parametrize("cache", ["5m", "1h"])
def test_a_conversation_with_tools_reads_all_that_was_written(cache: CacheLifetime, stream: bool) -> None:
    server = AnthropicCache(librarian)
    talk(stack_over(server, cache), "Which books?", "And others?", "More?", stream=stream)
    assert len(server.calls) == 3 * (len(SIZES) + 1)
    assert breaks(server.calls) == []
    assert all(call.rest == 0 for call in server.calls)  # all of it is behind or before a mark
    sent = sum(call.size for call in server.calls)
    assert sum(call.written for call in server.calls) == server.calls[-1].size < sent / 8


@BOTH_WAYS
def test_results_that_are_bounded_when_new_cost_no_cache(stream: bool) -> None:
    plain, server = AnthropicCache(librarian), AnthropicCache(librarian)
    for each, shapes in ((plain, False), (server, True)):
        stack = stack_over(each)
        talk(stack.use(ToolResultShaper, max_bytes=120) if shapes else stack, "Which books?", "And?", stream=stream)
    assert len(server.calls) == 2 * (len(SIZES) + 1)
    assert breaks(server.calls) == []
    assert all(call.rest == 0 for call in server.calls)
    assert server.calls[-1].size < plain.calls[-1].size
    assert "bytes left out; handle" in json.dumps(server.calls[-1].body)


@BOTH_WAYS
def test_without_marks_nothing_is_read(stream: bool) -> None:
    server = AnthropicCache(librarian)
    talk(stack_over(server, "off"), "Which books?", stream=stream)
    assert [call.read + call.written for call in server.calls] == [0] * len(server.calls)


@pytest.mark.slow
@BOTH_WAYS
def test_after_an_edit_tools_and_system_are_read_and_then_all_again(stream: bool) -> None:
    server = AnthropicCache(librarian)
    stack = stack_over(server).use(ToolResultClearer, trigger={"tokens": 5_000}, keep={"messages": 3})
    talk(stack, "Which books?", "And others?", "More?", "Still more?", stream=stream)
    edited = [number for number, call in enumerate(server.calls) if is_new_edit(server.calls, number)]
    assert edited  # else nothing is shown here
    assert breaks(server.calls) == edited
    head = sum(len(json.dumps(each)) for each in head_of(server.calls[0]))
    assert all(server.calls[number].read > head / 2 for number in edited)
    assert all(len(marks_of(call.body)) <= 4 for call in server.calls)


@BOTH_WAYS
def test_the_border_of_an_edit_is_marked_so_that_a_branch_reads_up_to_there(stream: bool) -> None:
    server = AnthropicCache(librarian)
    stack = stack_over(server).use(ToolResultClearer, trigger={"tokens": 2_000}, keep={"messages": 3})
    talk(stack, "Which books?", stream=stream)
    cleared = [
        at for at, (_, block) in enumerate(blocks_of(server.calls[-1].body)) if block.get("content") == "[cleared]"
    ]
    assert cleared
    assert cleared[-1] in [at for at, _ in marks_of(server.calls[-1].body)]


def test_five_minutes_are_over_after_five_minutes_and_an_hour_after_an_hour() -> None:
    def read_after(cache: CacheLifetime, seconds: float) -> int:
        server = AnthropicCache(lambda body: [{"type": "text", "text": "fine"}])
        provider = AnthropicChatClient("claude-sonnet-5", api_key="k", http_client=server.http_client(), cache=cache)

        async def asked() -> None:
            await provider.get_response([SYSTEM, Message.user("a"), Message.assistant("b"), Message.user("c")])
            server.now += seconds
            await provider.get_response([SYSTEM, Message.user("a"), Message.assistant("b"), Message.user("d")])

        asyncio.run(asked())
        return server.calls[1].read

    assert read_after("5m", 299) > 0
    assert read_after("5m", 301) == 0
    assert read_after("1h", 301) > 0
    assert read_after("1h", 3_601) == 0


@BOTH_WAYS
def test_between_edits_every_request_begins_with_the_bytes_of_the_one_before(stream: bool) -> None:
    """But for the marks."""
    server = AnthropicCache(librarian)
    talk(stack_over(server, "off"), "Which books?", "And others?", stream=stream)
    for before, after in zip(server.raw, server.raw[1:], strict=False):
        first, second = (_messages(raw) for raw in (before, after))
        assert second.startswith(first)
    assert len({raw[: raw.index(b'"messages"')] for raw in server.raw}) == 1
    fields = [{name: value for name, value in json.loads(raw).items() if name != "messages"} for raw in server.raw]
    assert all(json.dumps(each) == json.dumps(fields[0]) for each in fields)


def _messages(raw: bytes) -> str:
    return json.dumps(json.loads(raw)["messages"])[:-1]


def head_of(call: Call) -> list[Item]:
    return [block for part, block in blocks_of(call.body) if part in ("tools", "system")]


def is_new_edit(calls: Sequence[Call], number: int) -> bool:
    """Whether more results are cleared than in the call before."""
    count: Any = [json.dumps(call.body).count("[cleared]") for call in calls[max(0, number - 1) : number + 1]]
    return len(count) == 2 and count[1] > count[0]
