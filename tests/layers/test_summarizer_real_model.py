"""Summaries by a real model, over real wires: a very small one, so what it writes may be nonsense, or never end.

Left to itself it decides which of two ways a conversation goes, and each has to hold together: a summary stands and is
sent from then on, or ``summarizer_failed`` is warned of and the oldest messages are left out. Where a summary is
needed, the model is stopped at the end of its first sentence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest

from chatstack import (
    CharCounter,
    ChatClient,
    ChatFronts,
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ChatStack,
    ChatStream,
    ContextMemory,
    ContextWindow,
    Message,
    Usage,
)
from chatstack.context.edits.summaries import OPENING
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient
from chatstack.testing import CapturedSpan, TelemetryCapture
from tests.model_server import MODEL, WINDOW_TOKENS, ModelServer, missing_part, model_server

pytestmark = [pytest.mark.server, pytest.mark.timeout(3_600)]

INSTRUCTIONS = "You are brief."
OPTIONS = ChatOptions(instructions=INSTRUCTIONS, max_tokens=8, temperature=0.0)
FOLD = "compact_context summarize"
SHORT_PROMPT = "Answer with one short sentence."
FACTS = ("the boat is number 41", "the master is Anna", "the toll is 12 crowns", "the ferry leaves at noon")

LIKE_THE_MODEL = CharCounter(chars_per_token=3)
"""By four characters a token it would be three quarters of what this model counts."""

Client: TypeAlias = OpenAIChatClient | AnthropicChatClient
Maker: TypeAlias = Callable[..., Client]


def over_chat_completions(server: ModelServer, **options: Any) -> Client:
    return OpenAIChatClient(
        MODEL, api_key="none", base_url=server.openai_url, max_tokens_field="max_tokens", max_retries=0, **options
    )


def over_messages(server: ModelServer, **options: Any) -> Client:
    return AnthropicChatClient(MODEL, api_key="none", base_url=server.anthropic_url, max_retries=0, **options)


ON_BOTH_WIRES = pytest.mark.parametrize("make", [over_chat_completions, over_messages])


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    if missing_part():
        pytest.skip(f"the real model needs {missing_part()}, which is not installed")
    with model_server() as running:
        yield running


def talk(turns: int) -> list[Message]:
    """A conversation of about 40 tokens a turn, with a question at the end."""
    history: list[Message] = []
    for number in range(turns):
        fact = FACTS[number % len(FACTS)]
        history.append(Message.user(f"Note {number}: {fact}. The wind is fair today, and the sea is calm."))
        history.append(Message.assistant(f"I wrote down as note {number}: {fact}."))
    return [*history, Message.user("What is the number of the boat?")]


@dataclass(frozen=True, slots=True, eq=False)
class Recorder(ChatFronts):
    """Keeps the requests that go by."""

    inner: ChatClient
    requests: list[ChatRequest]

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.requests.append(request)
        return await self.inner.send(request)


@dataclass(frozen=True, slots=True, eq=False)
class OneSentence(ChatFronts):
    """Stops the model at the end of its first sentence, or of a line: it might never stop by itself."""

    inner: ChatClient

    async def send(self, request: ChatRequest, /) -> ChatStream:
        options = request.options.but(temperature=0.0, stop=(".", "!", "?", ",", "]"))
        return await self.inner.send(request.but(options=options))


class Conversed:
    """A conversation of two calls through a context window, and all that became of it."""

    def __init__(self, client: Client, turns: int, *, is_stopped: bool = False, **options: Any) -> None:
        self.window = ContextWindow(keep_recent_turns=1, **options)
        self.capture, self.asked, self.sent = TelemetryCapture(), list[ChatRequest](), list[ChatRequest]()
        self.answers: list[ChatResponse] = []
        writer = Recorder(OneSentence(client) if is_stopped else client, self.asked)
        # The time stands still: what has failed is not tried again.
        stack = ChatStack(client, memory=ContextMemory(clock=lambda: 0.0))
        stack = stack.use(self.window, summary_client=writer, counter=LIKE_THE_MODEL).use(Recorder, requests=self.sent)
        asyncio.run(self._converse(stack, client, talk(turns)))

    async def _converse(self, stack: ChatStack, provider: Client, history: list[Message]) -> None:
        client = stack.build(self.capture.resolve)
        try:
            for question in ("And the toll?", ""):
                answer = await client.get_response(history, options=OPTIONS, conversation_id="harbour")
                self.answers.append(answer)
                history = [*history, *answer.messages, Message.user(question)]
        finally:
            await provider.aclose()

    @property
    def folds(self) -> tuple[CapturedSpan, ...]:
        return self.capture.spans_named(FOLD)

    @property
    def summary_calls(self) -> list[CapturedSpan]:
        """The model calls that a summary took, refused ones too."""
        folds = {span.span_id for span in self.folds}
        return [span for span in self.capture.spans if span.parent_id in folds]

    @property
    def summaries(self) -> list[str]:
        """The summary in each request, "" where there is none."""
        return [next((each.text for each in sent.messages if each.mark == "summary"), "") for sent in self.sent]

    def check(self) -> None:
        """What holds whatever the model wrote."""
        assert len(self.sent) == len(self.answers) == 2
        assert all(answer.text for answer in self.answers)
        most = 1.1 * (self.window.max_tokens or 0)  # it goes by an estimate; the model counts for itself
        assert all(0 < answer.usage.input_tokens + 8 <= most for answer in self.answers)
        earlier, later = (request.messages for request in self.sent)
        assert later[: len(earlier)] == earlier
        spent = Usage(
            sum(int(str(span.attributes.get("gen_ai.usage.input_tokens", 0))) for span in self.summary_calls),
            sum(int(str(span.attributes.get("gen_ai.usage.output_tokens", 0))) for span in self.summary_calls),
        )
        first, second = (answer.overhead_usage for answer in self.answers)
        assert (first.input_tokens, first.output_tokens) == (spent.input_tokens, spent.output_tokens)
        assert first.input_tokens > first.output_tokens > 0
        assert second == Usage()
        assert len(self.folds) == 1
        assert {span.name for span in self.summary_calls} == {f"chat {MODEL}"}

    def check_it_stands(self) -> None:
        """There is a summary, and it is sent as it is from then on."""
        assert self.capture.warnings == ()
        assert set(self.summaries) == {self.summaries[0]}
        assert self.summaries[0].startswith(f"{OPENING}\n")
        assert len(self.summaries[0]) > len(OPENING) + 1
        assert self.capture.spans_named("compact_context truncate") == ()

    def check_it_failed(self) -> None:
        """There is none; that is said once, and the oldest messages are left out instead."""
        assert self.capture.warnings == ("summarizer_failed",)
        assert self.folds[0].attributes["chatstack.warning.code"] == "summarizer_failed"
        assert self.summaries == ["", ""]
        assert len(self.capture.spans_named("compact_context truncate")) == 1


@pytest.mark.parametrize(
    ("make", "most"), [(over_chat_completions, 60), (over_messages, 60), (over_chat_completions, 4)]
)
def test_a_conversation_that_outgrows_its_limit_is_folded_or_truncated_as_the_model_will_have_it(
    model: ModelServer, make: Maker, most: int
) -> None:
    conversed = Conversed(make(model), 12, max_tokens=350, max_summary_tokens=most, summary_prompt=SHORT_PROMPT)
    conversed.check()
    if conversed.summaries[0]:
        conversed.check_it_stands()
    else:
        conversed.check_it_failed()
    assert len(conversed.sent[0].messages) < 25


@ON_BOTH_WIRES
def test_a_summary_that_a_real_model_wrote_is_sent_unchanged_with_the_next_call(
    model: ModelServer, make: Maker
) -> None:
    conversed = Conversed(make(model), 8, is_stopped=True, max_tokens=335, max_summary_tokens=100)
    conversed.check()
    conversed.check_it_stands()
    (asked,) = conversed.asked
    assert asked.options.tools == ()
    sent = "".join(message.text for message in conversed.sent[0].messages if message.mark != "summary")
    notes = [f"note {number}:" for number in range(7)]
    assert any(note in asked.messages[0].text for note in notes)
    assert all(note in asked.messages[0].text + sent for note in notes)


@pytest.mark.parametrize(
    ("make", "stated"),
    [(over_chat_completions, None), (over_messages, 1_000_000)],
    ids=["told by the API", "learnt from a refusal"],
)
def test_a_transcript_longer_than_the_models_window_is_folded_in_pieces_and_none_of_it_is_left_out(
    model: ModelServer, make: Maker, stated: int | None
) -> None:
    """The window is the server's own. Where the client says that it is larger, the server refuses at first; else it may
    do so once, as the sizes of pieces are estimates."""
    conversed = Conversed(
        make(model, window_tokens=stated),
        55,
        is_stopped=True,
        max_tokens=500,
        max_summary_tokens=60,
        summary_prompt=SHORT_PROMPT,
    )
    conversed.check()
    conversed.check_it_stands()
    outcomes = [str(span.attributes.get("error.type", "")) for span in conversed.summary_calls]
    refused = outcomes.count("ContextOverflowError")
    assert (1 if stated else 0) <= refused <= 3
    assert stated is None or outcomes[0] == "ContextOverflowError"
    calls = list(zip(outcomes, conversed.asked, conversed.summary_calls, strict=True))
    answered = [(request, span) for outcome, request, span in calls if not outcome]
    assert len(answered) == len(outcomes) - refused >= 2
    pieces = [request.messages[0].text for request, _ in answered]
    assert all("summary so far" in piece for piece in pieces[1:])
    assert "summary so far" not in pieces[0]
    whole = "\n".join(pieces)
    left = {message.text for message in conversed.sent[0].messages}
    gone = [message.text for message in talk(55) if message.text not in left]
    assert len(gone) > 90
    assert [whole.count(f"{text}\n[") for text in gone] == [1] * len(gone)
    sizes = [int(str(span.attributes["gen_ai.usage.input_tokens"])) for _, span in answered]
    assert sum(sizes) > WINDOW_TOKENS > max(sizes)
