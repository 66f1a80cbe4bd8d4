"""Tokens that a call should have read from the prompt cache: told with the reason, over the official SDKs' wires."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pytest

from chatstack import (
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ChatStack,
    ContextWindowGuard,
    Fallback,
    FunctionInvoker,
    Message,
    ProviderItem,
    ServerError,
    ToolDeclaration,
    ToolResultClearer,
    Usage,
)
from chatstack.client.protocol import ProviderInfo
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from chatstack.telemetry.cache_misses import compare_with_last
from chatstack.telemetry.caches import PromptCaches
from chatstack.testing import ScriptedClient, TelemetryCapture
from tests.providers.cache_server import AnthropicCache, Item, OpenAICache, Server
from tests.providers.test_prompt_caches import librarian, look

Make: TypeAlias = Callable[[], tuple[Server, Any]]

BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
LONG = "You are a librarian. " * 200
LOOK = ToolDeclaration("look", "Looks " * 300, '{"type":"object","properties":{"a":{},"b":{}}}')
SAME = ToolDeclaration("look", "Looks " * 300, '{"properties":{"b":{},"a":{}},"type":"object"}')
FIND = ToolDeclaration("find", "Finds " * 300, '{"type":"object"}')


def fine(body: Item) -> list[Item]:
    """An answer in the form of the API."""
    if "input" in body:
        content = [{"type": "output_text", "text": "fine", "annotations": []}]
        return [{"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}]
    is_anthropic = "max_tokens" in body
    return [{"type": "text", "text": "fine"} if is_anthropic else {"role": "assistant", "content": "fine"}]


def anthropic(**settings: Any) -> tuple[Server, Any]:
    server = AnthropicCache(fine)
    http_client = server.http_client()
    return server, AnthropicChatClient("claude-sonnet-5", api_key="k", http_client=http_client, **settings)


def chat(**settings: Any) -> tuple[Server, Any]:
    server = OpenAICache(fine)
    return server, OpenAIChatClient("gpt-4.1", api_key="k", http_client=server.http_client(), **settings)


def responses() -> tuple[Server, Any]:
    server = OpenAICache(fine, reports_writes=True, lifetime_seconds=1_800)
    return server, OpenAIResponsesClient("gpt-5.6", api_key="k", http_client=server.http_client())


ON_EVERY_WIRE = pytest.mark.parametrize("make", [anthropic, chat, responses])


class Conversation:
    """A conversation through a stack, whose head, tools and pauses a test decides."""

    def __init__(
        self, make: Make | tuple[Server, Any], *, stream: bool = False, conversation_id: str | None = "c"
    ) -> None:
        self.server, provider = make() if callable(make) else make
        self.capture = TelemetryCapture()
        self.capture.telemetry.caches.clock = lambda: self.server.now
        self.stack = ChatStack(provider)
        self.stream, self.conversation_id = stream, conversation_id
        self.history: list[Message] = []

    def ask(self, *, head: str = LONG, tools: Sequence[ToolDeclaration] = (LOOK, FIND), pause: float = 5) -> None:
        self.server.now += pause
        self.history.append(Message.user(f"question {len(self.history)}"))
        messages = [Message.system(head), *self.history]
        options = ChatOptions(tools=tuple(tools))

        async def asked() -> ChatResponse:
            client, id = self.stack.build(self.capture.resolve), self.conversation_id
            if not self.stream:
                return await client.get_response(messages, options=options, conversation_id=id)
            async with client.get_streaming_response(messages, options=options, conversation_id=id) as answer:
                return await answer.response()

        self.history += asyncio.run(asked()).messages

    @property
    def told(self) -> list[tuple[str, int]]:
        """Reason and size of each miss that was warned of."""
        found = [each.attributes for each in self.capture.spans if "chatstack.warning.code" in each.attributes]
        return [
            (str(each["chatstack.cache.miss_reason"]), int(str(each["chatstack.cache.missed_tokens"])))
            for each in found
            if each["chatstack.warning.code"] == "cache_missed"
        ]

    @property
    def reasons(self) -> list[str]:
        return [reason for reason, _ in self.told]


@ON_EVERY_WIRE
@BOTH_WAYS
def test_a_conversation_that_reads_all_is_not_warned_of(make: Make, stream: bool) -> None:
    talk = Conversation(make, stream=stream)
    for _ in range(4):
        talk.ask()
    assert talk.server.calls[-1].read > 1_024
    assert talk.capture.warnings == ()
    assert not any("chatstack.cache.missed_tokens" in each.attributes for each in talk.capture.spans)


@pytest.mark.sampled(5)
@ON_EVERY_WIRE
@BOTH_WAYS
@pytest.mark.parametrize("conversation_id", ["c", None])
def test_a_head_that_changes_on_every_call_is_named_once(make: Make, stream: bool, conversation_id: str | None) -> None:
    talk = Conversation(make, stream=stream, conversation_id=conversation_id)
    for number in range(4):
        talk.ask(head=f"It is {number} o'clock. " + LONG)
    assert talk.reasons == ["head"]
    ((_, missed),) = talk.told
    first, second = talk.server.calls[:2]
    assert missed > 1_024
    assert abs(missed - (first.size - second.read)) < 128


@ON_EVERY_WIRE
@BOTH_WAYS
def test_tools_that_change_are_named(make: Make, stream: bool) -> None:
    talk = Conversation(make, stream=stream)
    talk.ask()
    talk.ask(tools=(LOOK,))
    assert talk.reasons == ["tools"]


@pytest.mark.sampled(5)
@ON_EVERY_WIRE
@BOTH_WAYS
@pytest.mark.parametrize("tools", [(FIND, LOOK), (SAME, FIND)], ids=["of tools", "of fields"])
def test_an_unstable_order_is_named(make: Make, stream: bool, tools: Sequence[ToolDeclaration]) -> None:
    talk = Conversation(make, stream=stream)
    talk.ask()
    talk.ask(tools=tools)
    assert talk.reasons == ["order"]


@ON_EVERY_WIRE
@BOTH_WAYS
def test_a_pause_that_is_too_long_is_named_with_its_length(make: Make, stream: bool) -> None:
    talk = Conversation(make, stream=stream)
    talk.ask()
    talk.ask(pause=290)
    assert talk.reasons == []
    talk.ask(pause=2_000)
    assert talk.reasons == ["pause"]
    (span,) = talk.capture.spans_named("prompt_cache")
    message = str(span.attributes["chatstack.warning.message"])
    lifetime = "1,800" if make is responses else "300"
    assert message.endswith(f"the call before was 2,000 s ago, and the cache lives {lifetime} s")


def test_an_hour_is_a_longer_pause() -> None:
    talk = Conversation(anthropic(cache="1h"))
    talk.ask()
    talk.ask(pause=3_000)
    assert talk.reasons == []
    talk.ask(pause=3_700)
    assert talk.reasons == ["pause"]


def test_each_reason_is_said_once_in_a_conversation() -> None:
    talk = Conversation(anthropic)
    for number in range(3):
        talk.ask(head=f"{number} {LONG}")
    for tools in ((LOOK,), (FIND, LOOK), (FIND, SAME)):
        talk.ask(head=f"2 {LONG}", tools=tools)
    assert talk.reasons == ["head", "tools", "order"]


def test_another_conversation_is_told_anew() -> None:
    pair = anthropic()
    for number in range(2):
        talk = Conversation(pair, conversation_id=f"c{number}")
        talk.ask()
        talk.ask(head=f"new {number} {LONG}")
        assert talk.reasons == ["head"]


@BOTH_WAYS
def test_what_is_missed_is_on_the_span_of_the_call_and_in_the_metric(stream: bool) -> None:
    talk = Conversation(anthropic, stream=stream)
    talk.ask()
    talk.ask(head="new " + LONG)
    first, second = talk.server.calls
    span = talk.capture.spans_named("chat claude-sonnet-5")[-1]
    missed = first.written - second.read
    assert span.attributes["chatstack.cache.missed_tokens"] == missed == talk.told[0][1]
    assert span.attributes["chatstack.cache.miss_reason"] == "head"
    assert span.attributes["gen_ai.usage.cache_read.input_tokens"] == second.read
    points = talk.capture.metric("chatstack.cache.tokens")
    assert {str(each.labels["chatstack.cache.outcome"]): each.total for each in points} == {
        "read": second.read,
        "written": first.written + second.written,
        "missed": missed,
    }


@BOTH_WAYS
def test_a_server_that_does_not_report_its_cache_is_never_warned_of(stream: bool) -> None:
    server = OpenAICache(fine, minimum=10**9)  # reports zero, as servers without a cache do
    provider = OpenAIChatClient("m", api_key="k", http_client=server.http_client(), base_url="http://127.0.0.1:9/v1")
    talk = Conversation((server, provider), stream=stream)
    for number in range(3):
        talk.ask(head=f"{number} {LONG}")
    assert talk.capture.warnings == ()


@BOTH_WAYS
def test_a_compatible_server_that_has_reported_it_once_is_warned_of(stream: bool) -> None:
    talk = Conversation(chat(base_url="http://127.0.0.1:9/v1"), stream=stream)
    talk.ask()
    talk.ask()
    talk.ask(head="new " + LONG)
    assert talk.reasons == ["head"]


def test_without_marks_nothing_can_be_missed() -> None:
    talk = Conversation(anthropic(cache="off"))
    for number in range(3):
        talk.ask(head=f"{number} {LONG}")
    assert talk.capture.warnings == ()


def test_a_branch_reads_what_both_share_and_is_not_warned_of() -> None:
    talk = Conversation(anthropic)
    for _ in range(3):
        talk.ask()
    del talk.history[2:]
    talk.history.append(Message.user("another way"))
    talk.ask()
    assert talk.capture.warnings == ()


@pytest.mark.slow
@BOTH_WAYS
def test_an_edit_of_ours_is_no_warning(stream: bool) -> None:
    server = AnthropicCache(librarian)
    provider = AnthropicChatClient("claude-sonnet-5", api_key="k", http_client=server.http_client())
    talk = Conversation((server, provider), stream=stream)
    talk.stack = (
        talk.stack.use(FunctionInvoker, tools=[look], max_tool_calls_per_turn=200)
        .use(ToolResultClearer, trigger={"tokens": 3_000}, keep={"messages": 3})
        .use(ContextWindowGuard, max_context_tokens=100_000)
    )
    for _ in range(3):
        talk.ask(tools=())
    assert "[cleared]" in server.raw[-1].decode()
    assert "cache_missed" not in talk.capture.warnings


def test_conversations_without_an_id_that_begin_alike_are_not_taken_for_one() -> None:
    """Two users say hello; the system prompt names the user."""
    talk = Conversation(anthropic, conversation_id=None)
    hello = [Message.user("hello")]

    async def ask(user: str, history: list[Message]) -> None:
        client = talk.stack.build(talk.capture.resolve)
        answer = await client.get_response([Message.system(user + LONG), *history], options=ChatOptions(tools=(LOOK,)))
        history += [*answer.messages, Message.user("and?")]

    one, other = [*hello], [*hello]
    for history, user in ((one, "A"), (other, "B"), (one, "A"), (other, "B")):
        asyncio.run(ask(user, history))
    assert talk.capture.warnings == ()


def test_whose_head_it_was_is_not_guessed() -> None:
    """Two conversations without an id begin alike; then the provider has lost what it held of one."""
    caches, info, wrote = PromptCaches(), ProviderInfo(name="anthropic"), Usage(9_000, 1, 0, 9_000)
    for head in ("A", "B"):
        caches.missed(ChatRequest((Message.system(head), Message.user("hello"))), info, wrote, 0)
    later = (Message.system("A"), Message.user("hello"), Message.assistant("hi"), Message.user("and?"))
    miss = caches.missed(ChatRequest(later), info, wrote, 1)
    assert miss is not None
    assert miss.reason == ""


@pytest.mark.slow
def test_a_conversation_that_moves_to_another_provider_and_back_is_told_of_its_pause_at_most() -> None:
    server, second = anthropic()
    first = ScriptedClient([ServerError("down", provider="openai"), "fine"])
    talk = Conversation((server, first))
    talk.stack = ChatStack(first).use(Fallback, clients=[second])
    for _ in range(3):
        talk.ask()
    assert len(server.calls) == 1
    assert talk.capture.warnings == ()


def test_a_call_without_usage_neither_misses_nor_is_remembered() -> None:
    caches, info = PromptCaches(), ProviderInfo(name="anthropic")
    first = ChatRequest((Message.user("a"),))
    second = ChatRequest((Message.user("a"), Message.assistant("b"), Message.user("c")))
    assert caches.missed(first, info, Usage(9_000, 1, 0, 9_000), 0) is None
    assert caches.missed(second, info, Usage(), 1) is None
    miss = caches.missed(second, info, Usage(9_000, 1, 0, 9_000), 400)
    assert miss is not None
    assert (miss.tokens, miss.reason, miss.pause_seconds, miss.cache_seconds) == (9_000, "pause", 400, 300)


def test_what_is_read_again_between_tools_of_the_server_was_not_left_there_by_one_request() -> None:
    telemetry, info = TelemetryCapture().telemetry, ProviderInfo(name="anthropic")
    found = ProviderItem("anthropic", '{"content":[],"tool_use_id":"s1","type":"web_search_tool_result"}')
    answer = Message.assistant(found, "sunny")
    asked = ChatRequest((Message.user("weather?"),))
    of_three_passes = ChatResponse(messages=(answer,), usage=Usage(160_000, 5, 106_000, 54_000))
    assert compare_with_last(telemetry, asked, info, 0, of_three_passes) is None
    then = ChatRequest((*asked.messages, answer, Message.user("and now?")))
    of_one = ChatResponse(messages=(Message.assistant("rain"),), usage=Usage(60_000, 5, 54_000, 6_000))
    assert compare_with_last(telemetry, then, info, 1, of_one) is None


def test_what_is_known_of_no_conversation_is_no_reason() -> None:
    """An eviction by the provider: on the span, and no warning."""
    talk = Conversation(chat)
    talk.ask()
    talk.server.held.clear()  # type: ignore[attr-defined]
    talk.ask()
    span = talk.capture.spans_named("chat gpt-4.1")[-1]
    assert int(str(span.attributes["chatstack.cache.missed_tokens"])) > 1_024
    assert "chatstack.cache.miss_reason" not in span.attributes
    assert talk.capture.warnings == ()


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatstack.telemetry.caches._MOST_CALLS", 10)
    caches, info = PromptCaches(), ProviderInfo(name="anthropic")
    for number in range(100):
        caches.missed(ChatRequest((Message.user(str(number)),)), info, Usage(9_000, 1, 0, 9_000), number)
    assert len(caches._calls) == 10


def test_what_an_edit_leaves_out_is_not_missed() -> None:
    caches, info = PromptCaches(), ProviderInfo(name="anthropic")
    caches.missed(ChatRequest((Message.user("a"),)), info, Usage(90_000, 1, 0, 90_000), 0)
    later = ChatRequest((Message.user("a"), Message.assistant("b"), Message.user("c")))
    miss = caches.missed(later, info, Usage(5_000, 1, 1_000, 4_000), 1)
    assert miss is not None
    assert miss.tokens == 4_000
