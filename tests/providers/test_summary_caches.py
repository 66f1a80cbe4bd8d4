"""Summaries that read from the prompt cache: over the official SDKs, against servers that have one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chatstack import CharCounter, ChatOptions, ChatResponse, ChatStack, Message, Summarizer, ToolDeclaration
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from chatstack.testing import TelemetryCapture
from tests.providers.cache_server import AnthropicCache, Call, Item, OpenAICache, Server

ASKED = "This message is no part of the conversation."
SUMMARY = "It was about books."
LOOK = ToolDeclaration("look", "Looks at a shelf", '{"type":"object","properties":{"shelf":{"type":"string"}}}')
OPTIONS = ChatOptions(instructions="You are a librarian. " * 20, tools=(LOOK,))
WIRES = ("anthropic", "chat", "responses")


def last_text(body: Item) -> str:
    """What the user said last."""
    items: list[Item] = body["input" if "input" in body else "messages"]
    content = items[-1]["content"]
    return str(content if isinstance(content, str) else content[-1]["text"])


def is_summary(call: Call) -> bool:
    return last_text(call.body).startswith(ASKED)


def said(body: Item) -> str:
    return SUMMARY if last_text(body).startswith(ASKED) else "There are many books. " * 150


class Talk:
    """A conversation over a wire whose summaries are asked for behind what is cached.

    These servers report characters as tokens, so a limit of 50,000 is one of about 12,000 tokens.
    """

    def __init__(self, wire: str, **options: Any) -> None:
        self.capture = TelemetryCapture()
        self.server, self.provider = self._connected(wire)
        options = {"max_tokens": 50_000, "cache_aligned": True, "counter": CharCounter(chars_per_token=1), **options}
        self.stack = ChatStack(self.provider).use(Summarizer, **options)

    def _connected(self, wire: str) -> tuple[Server, Any]:
        if wire == "anthropic":
            server: Server = AnthropicCache(self.of_anthropic)
            http = server.http_client()
            return server, AnthropicChatClient("claude-sonnet-5", api_key="k", http_client=http, max_retries=0)
        server = OpenAICache(lambda body: [{"text": said(body)}])
        made = OpenAIChatClient if wire == "chat" else OpenAIResponsesClient
        server.answer = _of_openai(wire)
        return server, made("gpt-5-mini", api_key="k", http_client=server.http_client(), max_retries=0)

    def of_anthropic(self, body: Item) -> list[Item]:
        return [{"type": "text", "text": said(body)}]

    def talk(self, *, turns: int = 20, stream: bool = False, options: ChatOptions = OPTIONS) -> list[ChatResponse]:
        async def talked() -> list[ChatResponse]:
            history, answers = list[Message](), list[ChatResponse]()
            async with self.stack.open(self.capture.resolve) as client:
                for number in range(turns):
                    history.append(Message.user(f"Question {number}: " + "where are the books? " * 200))
                    if stream:
                        async with client.get_streaming_response(
                            history, options=options, conversation_id="c"
                        ) as answer:
                            answers.append(await answer.response())
                    else:
                        answers.append(await client.get_response(history, options=options, conversation_id="c"))
                    history += answers[-1].messages
                    await asyncio.sleep(0.01)
            await self.provider.aclose()
            return answers

        return asyncio.run(talked())

    @property
    def summaries(self) -> list[Call]:
        return [call for call in self.server.calls if is_summary(call)]


def _of_openai(wire: str) -> Any:
    def answer(body: Item) -> Any:
        text = said(body)
        if wire == "chat":
            return [{"role": "assistant", "content": text}]
        return [
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": []}],
            }
        ]

    return answer


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("prepare_at", [None, 0.8], ids=["when due", "ahead"])
@pytest.mark.parametrize("wire", WIRES)
def test_a_summary_reads_at_least_95_percent_of_its_input_from_the_cache(
    wire: str, prepare_at: float | None, stream: bool
) -> None:
    talk = Talk(wire, prepare_at=prepare_at)
    answers = talk.talk(stream=stream)
    assert len(talk.summaries) >= 2
    shares = [call.read / call.size for call in talk.summaries]
    assert min(shares) >= 0.95
    overhead = [answer.overhead_usage for answer in answers if answer.overhead_usage.input_tokens]
    assert all(usage.cache_read_tokens >= 0.95 * usage.input_tokens for usage in overhead)
    assert len(overhead) == len(talk.summaries)
    assert talk.capture.warnings == ()


@pytest.mark.parametrize("wire", WIRES)
def test_the_framed_transcript_reads_next_to_nothing(wire: str) -> None:
    talk = Talk(wire, cache_aligned=False)
    talk.talk(turns=10)
    framed = [call for call in talk.server.calls if "entry" in str(call.body)]
    assert framed
    assert max(call.read / call.size for call in framed) < 0.05


@pytest.mark.parametrize("wire", WIRES)
def test_tools_stay_declared_and_are_not_allowed_where_that_costs_no_cache(wire: str) -> None:
    talk = Talk(wire)
    talk.talk(turns=10)
    (before, *_), (call, *_) = [each for each in talk.server.calls if not is_summary(each)], talk.summaries
    declared = [{name: value for name, value in tool.items() if name != "cache_control"} for tool in call.body["tools"]]
    first = [{name: value for name, value in tool.items() if name != "cache_control"} for tool in before.body["tools"]]
    assert declared == first
    assert call.body.get("tool_choice") == (None if wire == "anthropic" else "none")


def test_where_the_model_calls_a_tool_instead_the_transcript_is_sent() -> None:
    class Calls(Talk):
        def of_anthropic(self, body: Item) -> list[Item]:
            if last_text(body).startswith(ASKED):
                return [{"type": "tool_use", "id": "t", "name": "look", "input": {"shelf": "a"}}]
            return super().of_anthropic(body)

    talk = Calls("anthropic")
    answers = talk.talk(turns=8)
    assert len(talk.summaries) == 1
    at = talk.server.calls.index(talk.summaries[0])
    assert "tools" not in talk.server.calls[at + 1].body
    assert talk.capture.warnings == ()
    assert sum(bool(answer.overhead_usage.input_tokens) for answer in answers) == 1
