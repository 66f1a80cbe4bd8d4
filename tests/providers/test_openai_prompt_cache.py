"""What OpenAI is told for the sake of its prompt cache: a key for each conversation, and a lifetime if asked."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any, TypeAlias

import pytest

from chatstack import ChatOptions, ChatStack, FunctionInvoker, Message, WiringError, tool
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from chatstack.providers.openai.hosts import is_openai
from chatstack.providers.openai.prompt_cache import cache_key
from tests.providers.cache_server import Item, OpenAICache
from tests.tools.wire_script import function_call

Kind: TypeAlias = type[OpenAIChatClient] | type[OpenAIResponsesClient]

BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
BOTH = pytest.mark.parametrize("kind", [OpenAIChatClient, OpenAIResponsesClient])
ELSEWHERE = "http://127.0.0.1:9/v1"
ID = "user-17@example.org"
FIELDS = {"prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"}


@tool
def look(shelf: str = "") -> str:
    """Looks at a shelf of the library."""
    return "books, " * 100


def librarian(body: Item) -> list[Item]:
    """Calls the tool three times, then answers; in the form of the API."""
    is_chat = "messages" in body
    history = body["messages" if is_chat else "input"]
    asked = max(at for at, item in enumerate(history) if item.get("role") == "user")
    number = sum(item.get("role") == "tool" or item.get("type") == "function_call_output" for item in history[asked:])
    name = f"call_{len(history)}"
    if is_chat and number < 3:
        call = {"id": name, "type": "function", "function": {"name": "look", "arguments": "{}"}}
        return [{"role": "assistant", "content": None, "tool_calls": [call]}]
    if number < 3:
        return [{**function_call(1), "call_id": name, "name": "look", "arguments": "{}", "id": f"fc_{len(history)}"}]
    if is_chat:
        return [{"role": "assistant", "content": f"There are books. {len(history)}"}]
    content = [{"type": "output_text", "text": f"There are books. {len(history)}", "annotations": []}]
    return [
        {"type": "message", "id": f"msg_{len(history)}", "role": "assistant", "status": "completed", "content": content}
    ]


def client(kind: Kind, server: OpenAICache, **settings: Any) -> OpenAIChatClient | OpenAIResponsesClient:
    return kind("gpt-5-mini", api_key="k", http_client=server.http_client(), max_retries=0, **settings)


def asked(kind: Kind, *, conversation_id: str | None = ID, extra: Item | None = None, **settings: Any) -> Item:
    """The fields about the cache that one call sends."""
    server = OpenAICache(lambda body: librarian({**body, "input" if "input" in body else "messages": _answered(body)}))

    async def ask() -> None:
        await client(kind, server, **settings).get_response(
            "hello", conversation_id=conversation_id, options=ChatOptions(extra=extra or {})
        )

    asyncio.run(ask())
    return {name: value for name, value in server.calls[0].body.items() if name in FIELDS}


def _answered(body: Item) -> list[Item]:
    result = {"role": "tool"} if "messages" in body else {"type": "function_call_output"}
    return [{"role": "user"}, result, result, result]


@BOTH
def test_openai_itself_gets_a_key_for_the_conversation_and_no_other_server_does(kind: Kind) -> None:
    assert asked(kind) == {"prompt_cache_key": cache_key(ID)}
    assert asked(kind, base_url="https://eu.api.openai.com/v1") == {"prompt_cache_key": cache_key(ID)}
    assert asked(kind, base_url=ELSEWHERE) == {}
    assert asked(kind, base_url="https://api.openai.com.example/v1") == {}


@BOTH
def test_another_server_gets_it_when_asked(kind: Kind) -> None:
    assert asked(kind, base_url=ELSEWHERE, cache="key") == {"prompt_cache_key": cache_key(ID)}


@BOTH
def test_off_sends_nothing(kind: Kind) -> None:
    assert asked(kind, cache="off") == {}


@BOTH
def test_a_lifetime_is_sent_in_the_field_that_has_it(kind: Kind) -> None:
    key = {"prompt_cache_key": cache_key(ID)}
    assert asked(kind, cache="24h") == {**key, "prompt_cache_retention": "24h"}
    if kind is OpenAIResponsesClient:
        assert asked(kind, cache="12h", base_url=ELSEWHERE) == {**key, "prompt_cache_options": {"ttl": "12h"}}
        given = {"prompt_cache_options": {"mode": "explicit"}}
        assert asked(kind, cache="12h", extra=given) == {
            **key,
            "prompt_cache_options": {"ttl": "12h", "mode": "explicit"},
        }
        assert given == {"prompt_cache_options": {"mode": "explicit"}}
    else:
        with pytest.raises(WiringError, match="cache must be one of 'auto', 'off', 'key', '24h', not '12h'"):
            OpenAIChatClient("m", api_key="k", cache="12h")  # type: ignore[arg-type]


@BOTH
def test_without_a_conversation_there_is_no_key(kind: Kind) -> None:
    assert asked(kind, conversation_id=None) == {}
    assert asked(kind, conversation_id=None, cache="24h") == {"prompt_cache_retention": "24h"}


@BOTH
def test_what_the_caller_gives_wins(kind: Kind) -> None:
    extra = {"prompt_cache_key": "mine", "prompt_cache_retention": "in_memory"}
    assert asked(kind, extra=extra, cache="24h") == extra


def test_a_key_is_the_same_everywhere_and_tells_nothing_of_the_conversation() -> None:
    assert cache_key("c-42") == "2bc58dd8fa03056781e91d7f667892ad"
    assert cache_key("c-43") != cache_key("c-42")
    assert len(cache_key("\ud800" + "x" * 10_000)) == 32  # the API takes 64 characters


def test_only_hosts_of_openai_are_openai() -> None:
    assert [
        is_openai(host) for host in ("api.openai.com", "us.api.openai.com", "xapi.openai.com", "openai.com", "")
    ] == [
        True,
        True,
        False,
        False,
        False,
    ]


@BOTH
@BOTH_WAYS
def test_each_call_of_a_conversation_reads_all_of_the_one_before(kind: Kind, stream: bool) -> None:
    """In steps of 128, as the API has it; and between edits it begins with the very same bytes."""
    server = OpenAICache(librarian)
    stack = ChatStack(client(kind, server)).use(FunctionInvoker, tools=[look])
    asyncio.run(_talked(stack, stream=stream))
    assert len(server.calls) == 8
    for before, call in pairwise(server.calls):
        assert call.read == before.size // 128 * 128
    for sent, grown in pairwise(map(_history, server.raw)):
        assert grown.startswith(sent)
    rest = [
        {name: value for name, value in call.body.items() if name not in ("messages", "input")} for call in server.calls
    ]
    assert all(json.dumps(each) == json.dumps(rest[0]) for each in rest)
    assert rest[0]["prompt_cache_key"] == cache_key("c")


async def _talked(stack: ChatStack, *, stream: bool) -> None:
    history = [Message.system("You are a librarian. " * 20)]
    async with stack.open() as client:
        for prompt in ("Which books?", "And others?"):
            history.append(Message.user(prompt))
            if stream:
                async with client.get_streaming_response(history, conversation_id="c") as answer:
                    history += (await answer.response()).messages
            else:
                history += (await client.get_response(history, conversation_id="c")).messages


def _history(raw: bytes) -> str:
    body = json.loads(raw)
    return json.dumps(body.get("messages", body.get("input")))[:-1]


@BOTH
def test_two_conversations_do_not_share_a_key(kind: Kind) -> None:
    server = OpenAICache(librarian)

    async def ask() -> None:
        stack = ChatStack(client(kind, server)).use(FunctionInvoker, tools=[look])
        await asyncio.gather(*(stack.build().get_response("hello", conversation_id=each) for each in ("a", "b")))

    asyncio.run(ask())
    assert len({call.body["prompt_cache_key"] for call in server.calls}) == 2
