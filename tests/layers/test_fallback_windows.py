"""Whoever is asked gets a request that fits its own window; what was cut for one is whole again for another."""

from __future__ import annotations

import asyncio

from chatstack import (
    ChatRequest,
    ChatStack,
    ContextOverflowError,
    ContextWindowGuard,
    Fallback,
    Message,
    ServerError,
)
from chatstack.testing import Answer
from chatstack.tokens.counter import char_counter
from tests.layers.fallbacks import BOTH, COUNTER, ask, history, model, size, stack_of


@BOTH
def test_where_the_first_one_overflows_the_second_gets_what_fits_its_own_window(stream: bool) -> None:
    messages = history(20)
    first, second = model(ContextOverflowError(5_000, 4_000), name="one"), model(window=1_000, counter=COUNTER)
    response = ask(stack_of(first, second).build(), messages, stream=stream)
    assert response.text == "I am two"
    assert first.requests[0].messages == tuple(messages)
    (sent,) = second.requests
    assert size(sent) <= 1_000 < size(first.requests[0])
    assert sent.messages[0] == messages[0]
    assert sent.messages[-1] == messages[-1]
    assert set(sent.messages) <= set(messages)


def test_one_with_a_larger_window_gets_all_of_it() -> None:
    messages = history(20)
    second = model(window=100_000)
    ask(stack_of(model(ContextOverflowError(5_000, 4_000), name="one"), second).build(), messages)
    assert second.requests[0].messages == tuple(messages)


def test_each_gets_what_fits_its_own_window_whoever_was_asked_before() -> None:
    messages = history(30)
    down = ServerError("down")
    second, third = model(down, window=500), model(window=3_000, name="three", counter=COUNTER)
    for _ in range(2):  # the second time, what was decided the first time is there to be found
        ask(stack_of(model(down, name="one"), second, third).build(), messages, conversation_id="c")
    assert all(size(request) <= 500 for request in second.requests)
    assert all(500 < size(request) <= 3_000 for request in third.requests)
    assert third.requests[0].messages == third.requests[1].messages


def test_what_was_cut_for_a_small_one_is_whole_again_for_the_first() -> None:
    messages = history(30)
    first, second = model(ServerError("down"), "back again", name="one"), model(window=500)
    stack = stack_of(first, second)
    client = (
        ChatStack(first)
        .use(ContextWindowGuard, max_context_tokens="auto", prune_on_overflow=True)
        .use(Fallback, clients=[second])
        .build()
    )
    for each in (client, stack.build()):
        before = len(first.requests)
        answers: list[Answer] = [*[ServerError("down")] * (before + 1), "back again"]
        first.answers = answers
        assert ask(each, messages, conversation_id="c").text == "I am two"
        assert ask(each, messages, conversation_id="c").text == "back again"
        assert [request.messages for request in first.requests[before:]] == [tuple(messages)] * 2


def test_a_conversation_goes_on_behind_a_guard_whoever_answers() -> None:
    first = model(*[ServerError("down") if at % 3 == 1 else "one" for at in range(40)], name="one", window=2_000)
    second = model("two", window=900, counter=COUNTER)
    stack = ChatStack(first).use(ContextWindowGuard, max_context_tokens="auto", prune_on_overflow=True)
    client = stack.use(Fallback, clients=[second]).build()

    async def talk() -> list[Message]:
        told = [Message.system("be brief")]
        for turn in range(40):
            told.append(Message.user(f"{turn}: " + "word " * 60))
            told += (await client.get_response(told, conversation_id="c")).messages
        return told

    told = asyncio.run(talk())
    assert {message.text for message in told if message.role == "assistant"} == {"one", "two"}
    assert all(size(request) <= 2_000 for request in first.requests)
    assert all(size(request) <= 900 for request in second.requests)
    assert len(second.requests) == 13
    for request in (*first.requests, *second.requests):
        assert request.messages[0] == told[0]
        assert request.messages[-1].role == "user"


def test_one_whose_window_nobody_knows_is_asked_all_the_same() -> None:
    second = model(window=None)
    messages = history(3)
    assert ask(stack_of(model(ServerError("down"), name="one"), second).build(), messages).text == "I am two"
    assert second.requests[0].messages == tuple(messages)


def test_one_that_overflows_too_gets_less_until_it_fits() -> None:
    second = model(ContextOverflowError(2_000, 800), "shorter", window=None, counter=COUNTER)
    first = model(ContextOverflowError(5_000, 4_000), name="one")
    assert ask(stack_of(first, second).build(), history(15)).text == "shorter"
    assert size(second.requests[1]) < size(second.requests[0])


def test_what_another_models_tokenizer_counts_is_not_the_size_for_the_first() -> None:
    messages = history(30)
    first = model(ServerError("down"), "back again", name="one")
    second = model(window=100_000, counter=char_counter(2))
    limit = size(ChatRequest(tuple(messages))) + 1_000
    client = (
        ChatStack(first)
        .use(ContextWindowGuard, max_context_tokens=limit, prune_on_overflow=True)
        .use(Fallback, clients=[second])
        .build()
    )
    answered = ask(client, messages)
    again = [*messages, *answered.messages, Message.user("And now?")]
    ask(client, again)
    assert first.requests[-1].messages == tuple(again)
