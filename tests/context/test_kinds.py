"""What the tokens of a context are."""

from __future__ import annotations

import pytest

from chatstack import ChatOptions, ChatRequest, Image, Message, OutputSchema, Reasoning, ToolCall, ToolDeclaration
from chatstack.context.edits.context import Context
from chatstack.context.edits.kinds import KINDS, tokens_by_kind
from chatstack.tokens.counter import CharCounter, TokenCounter

COUNTER = CharCounter(1)


class Counting(TokenCounter):
    """Counts how often it is asked."""

    asked = 0

    def count_text(self, text: str) -> int:
        self.asked += 1
        return len(text)


def context_of(*messages: Message, options: ChatOptions | None = None, scale: float = 1.0) -> Context:
    request = ChatRequest(messages, options or ChatOptions())
    context = Context.of(request, fixed_tokens=COUNTER.count_options(request.options), size_of=COUNTER.count_message)
    return Context(
        request=request,
        messages=messages,
        messages_tokens=context.messages_tokens,
        fixed_tokens=context.fixed_tokens,
        size_of=COUNTER.count_message,
        scale=scale,
    )


CALL = ToolCall("1", "look", "{}")
MESSAGES = (
    Message.system("s" * 96),
    Message.user("u" * 46, Image(url="https://127.0.0.1/a.png")),
    Message.assistant(Reasoning("r" * 200), "t" * 100, CALL),
    Message.tool("1", "x" * 291, name="look"),
)
OPTIONS = ChatOptions(
    instructions="i" * 96,
    tools=(ToolDeclaration("look", "d" * 92, ""),),
    output_schema=OutputSchema("answer", "{}"),
)


def test_each_kind_has_its_tokens() -> None:
    found = tokens_by_kind(context_of(*MESSAGES, options=OPTIONS))
    assert tuple(found) == KINDS
    assert found["system"] == pytest.approx(100 + 100, abs=5)
    assert found["tools"] == pytest.approx(100 + 2, abs=5)
    assert found["text"] == pytest.approx(1_050 + 100, abs=10)
    assert found["reasoning"] == pytest.approx(200, abs=10)
    assert found["calls"] == pytest.approx(4 + 2 + 5, abs=20)
    assert found["results"] == 304


def test_they_add_up_to_the_size_of_the_context() -> None:
    context = context_of(*MESSAGES, options=OPTIONS)
    assert sum(tokens_by_kind(context).values()) == context.input_tokens


def test_they_are_as_large_as_providers_report() -> None:
    once, twice = (tokens_by_kind(context_of(*MESSAGES, scale=scale)) for scale in (1.0, 2.0))
    assert twice == {kind: 2 * tokens for kind, tokens in once.items()}


def test_a_kind_of_which_there_is_nothing_is_left_out() -> None:
    assert tokens_by_kind(context_of(Message.user("hello"))) == {"text": 9}
    assert tokens_by_kind(context_of()) == {}


def test_a_message_without_parts_is_text() -> None:
    assert tokens_by_kind(context_of(Message("assistant", ()))) == {"text": 4}


def test_no_text_is_counted_again() -> None:
    counter = Counting()
    sizes = {id(message): counter.count_message(message) for message in MESSAGES}
    context = Context.of(ChatRequest(MESSAGES), fixed_tokens=0, size_of=lambda message: sizes[id(message)])
    before = counter.asked
    tokens_by_kind(context)
    assert counter.asked == before
