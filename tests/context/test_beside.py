"""What a stack holds beside the messages of a conversation, and how often it holds these."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest

from chatstack import (
    Budget,
    ChatRequest,
    ChatStack,
    ChatStream,
    ContextMemory,
    ContextWindowGuard,
    Message,
    ToolCall,
    ToolResultClearer,
)
from chatstack.context.histories.own_past import OwnPast
from chatstack.context.histories.recognising import Recogniser
from chatstack.testing import ScriptedClient

CONVERSATIONS = 16
SETTLED = 4
"""After so many, what is made once has been made."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Message]).decode


class Answering(ScriptedClient):
    """Gives the next message of a conversation, and keeps no request."""

    async def send(self, request: ChatRequest, /) -> ChatStream:
        stream = await super().send(request)
        self.requests.clear()
        return stream


def conversation(number: int) -> bytes:
    """50 messages in rounds of tools, 1.3 KB each."""
    messages = [Message.user(f"task {number}")]
    while len(messages) < 49:
        call = ToolCall(f"call_{number}_{len(messages)}", "look", f'{{"at": {len(messages)}}}')
        messages += [
            Message.assistant(f"{len(messages)} looks ".ljust(120, "."), call),
            Message.tool(call.id, f"{number} {len(messages)} ".ljust(2_400, "x"), name="look"),
        ]
    return _encode([*messages, Message.assistant("done")])


def nothing_to_edit(stack: ChatStack) -> ChatStack:
    return stack.use(ToolResultClearer, trigger={"tokens": 10**8}).use(ContextWindowGuard, max_context_tokens=10**8)


def edits(stack: ChatStack) -> ChatStack:
    return stack.use(ToolResultClearer, trigger={"tokens": 8_000}, keep={"messages": 3}).use(
        ContextWindowGuard, max_context_tokens=10**8
    )


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "is_fresh", "most"),
    [(nothing_to_edit, False, 0.1), (nothing_to_edit, True, 0.08), (edits, False, 0.28), (edits, True, 0.28)],
    ids=["the caller keeps its messages", "it keeps nothing", "its messages, edits", "nothing, edits"],
)
def test_what_is_held_beside_a_conversation_is_little(
    layers: Callable[[ChatStack], ChatStack], is_fresh: bool, most: float
) -> None:
    """Shares of the conversation's own size. Where the caller keeps nothing, the memory holds the messages once."""
    memory, model = ContextMemory(), Answering()
    stack = ChatStack(model, memory=memory).use(Budget, max_tokens=10**9, per="conversation")
    client = layers(stack).build()
    written = [conversation(number) for number in range(CONVERSATIONS)]

    async def through(number: int, messages: list[Message] | None) -> None:
        whole = messages or _decode(written[number])
        for at, answer in enumerate(whole):
            if answer.role == "assistant":
                *given, said = whole[: at + 1] if messages else _decode(_encode(whole[: at + 1]))
                model.answers = [said]
                await client.get_response(given, conversation_id=f"c{number}")

    async def all_but(first: int, kept: list[list[Message]]) -> None:
        for number in range(first, CONVERSATIONS):
            await through(number, kept[number] if kept else None)

    tracemalloc.start()
    try:
        before = traced()
        kept = [_decode(each) for each in written]
        own = (traced() - before) / CONVERSATIONS
        kept = [] if is_fresh else kept
        for number in range(SETTLED):
            asyncio.run(through(number, kept[number] if kept else None))
        before = traced()
        asyncio.run(all_but(SETTLED, kept))
        beside = (traced() - before) / (CONVERSATIONS - SETTLED)
    finally:
        tracemalloc.stop()
    assert memory.take_evicted() == 0
    assert 0.02 < (beside - own if is_fresh else beside) / own < most


def reminded(given: list[Message]) -> list[Message]:
    return [*given, Message.user(f"{len(given)} so far")]


def cut(given: list[Message]) -> list[Message]:
    """Return the messages with all results cut but the last three."""
    old = [at for at, each in enumerate(given) if each.role == "tool"][:-3]
    return [
        Message.tool(each.results[0].call_id, each.results[0].text[:1_200], name="look") if at in old else each
        for at, each in enumerate(given)
    ]


@pytest.mark.parametrize("view", [reminded, cut])
def test_a_history_that_the_caller_changes_on_each_call_is_held_once(
    view: Callable[[list[Message]], list[Message]],
) -> None:
    """Else each earlier form of it holds messages of its own, as the caller sends fresh ones on each call."""
    model = Answering()
    client = ChatStack(model, memory=ContextMemory()).use(ContextWindowGuard, max_context_tokens=10**8).build()

    async def through(written: bytes) -> None:
        for at, answer in enumerate(_decode(written)):
            if answer.role == "assistant":
                *given, said = _decode(written)[: at + 1]
                model.answers = [said]
                await client.get_response(view(given))

    tracemalloc.start()
    try:
        asyncio.run(through(conversation(0)))
        before = traced()
        kept = view(_decode(conversation(1)))
        own = traced() - before
        before = traced()
        asyncio.run(through(conversation(1)))
        held = traced() - before
    finally:
        tracemalloc.stop()
    assert len(kept) >= 50
    assert held < 1.3 * own, (held, own)


def test_own_past_is_kept_of_the_latest_answers_and_some_turns() -> None:
    memory = ContextMemory()
    messages: list[Message] = [Message.user("task")]
    for number in range(60):
        called = number % 6 < 5
        said = Message.assistant(f"{number}", *([ToolCall(f"c{number}", "look")] if called else []))
        memory.past.entry(memory.recognise(messages), said)
        messages += [said, Message.tool(f"c{number}", "seen") if called else Message.user("and then?")]
    assert len(memory.past) == 7  # the two latest answers, and five of the ten that ended a turn


def test_own_past_of_another_conversation_is_not_thinned_out() -> None:
    memory = ContextMemory()
    for name in ("one", "two", "three"):
        asked = [Message.user("task")]
        for number in range(5):
            said = Message.assistant(f"{number}", ToolCall(f"c{number}", "look"))
            memory.past.entry(memory.recognise(asked, name), said)
            asked += [said, Message.tool(f"c{number}", "seen")]
    assert len(memory.past) == 6


def test_a_history_takes_few_bytes_for_each_message() -> None:
    """Numbers and digests in one piece: hashes, sums of sizes, links."""
    messages = tuple(Message.user(f"{number}") for number in range(5_000))
    recogniser = Recogniser(b"", 10**6)
    for message in messages:
        hash(message)
    tracemalloc.start()
    try:
        before = traced()
        seen = recogniser.recognise(messages)
        seen.history.prefix_hash(len(messages))
        seen.history.sums(len(messages), ScriptedCounter(), lambda _: 1_000)  # type: ignore[arg-type]
        held = traced() - before
    finally:
        tracemalloc.stop()
    assert held / len(messages) < 8 * 3 * 1.25 + 2


class ScriptedCounter:
    """Only a key: sizes are given."""


def test_entries_that_are_dropped_with_a_form_are_gone() -> None:
    memory = ContextMemory()
    past: OwnPast = memory.past
    seen = memory.recognise([Message.user("a")])
    past.entry(seen, Message.assistant("b"))
    assert len(past) == 1
    past.drop(seen.conversation)
    assert len(past) == 0
