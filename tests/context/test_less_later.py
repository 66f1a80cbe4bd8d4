"""What callers take out of their histories later: old pictures, long results, what they had looked up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import msgspec
import pytest

from chatstack import (
    ChatStack,
    ContextMemory,
    ContextWindowGuard,
    Image,
    Message,
    Summarizer,
    Text,
    ToolCall,
    ToolResult,
    ToolResultClearer,
    ToolResultShaper,
)
from chatstack.testing import ScriptedClient, TelemetryCapture

Steps = Callable[[int], list[Message]]
View = Callable[[Sequence[Message]], list[Message]]

SCREEN = Image(url="data:image/png;base64,iVBORw0KGgo=")
FOUND = "\n\nWhat was found: " + "grey " * 300
IDS = pytest.mark.parametrize("conversation_id", [None, "c"])


def with_result(message: Message, output: str | tuple[Text | Image, ...]) -> Message:
    (result,) = message.results
    return msgspec.structs.replace(message, parts=(msgspec.structs.replace(result, output=output),))


def latest_screens(messages: Sequence[Message], count: int = 3) -> list[Message]:
    """Return the messages with the last pictures, as agents that use a computer do."""
    old = [at for at, each in enumerate(messages) if each.role == "tool"][:-count]
    return [with_result(each, (Text("screen"),)) if at in old else each for at, each in enumerate(messages)]


def short_results(messages: Sequence[Message]) -> list[Message]:
    old = [at for at, each in enumerate(messages) if each.role == "tool"][:-3]
    return [with_result(each, each.results[0].text[:600]) if at in old else each for at, each in enumerate(messages)]


def latest_found(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with what was looked up for the last two questions."""
    old = [at for at, each in enumerate(messages) if each.role == "user"][:-2]
    return [Message.user(each.text.split("\n")[0]) if at in old else each for at, each in enumerate(messages)]


def screens(number: int) -> list[Message]:
    """Return a round with a picture, as the first of a task that has no end."""
    call = ToolCall(f"c{number}", "click", f'{{"x": {number}}}')
    screen = Message(role="tool", parts=(ToolResult(call.id, "click", (Text("screen"), SCREEN)),))
    return [*([] if number else [Message.user("Book it.")]), Message.assistant("Now " * 60, call), screen]


def results(number: int) -> list[Message]:
    call = ToolCall(f"c{number}", "read", f'{{"page": {number}}}')
    begin = [] if number % 4 else [Message.user(f"Question {number}? " + "why " * 40)]
    return [*begin, Message.assistant("", call), Message.tool(call.id, f"page {number} " + "grey " * 300, name="read")]


def found(number: int) -> list[Message]:
    call = ToolCall(f"c{number}", "read", "{}")
    asked = Message.user(f"Question {number}? " + "why " * 40 + FOUND)
    return [asked, Message.assistant("", call), Message.tool(call.id, "grey " * 60), Message.assistant("So " * 60)]


KINDS: dict[str, tuple[Steps, View, int]] = {
    "pictures": (screens, latest_screens, 5_500),
    "one picture": (screens, partial(latest_screens, count=1), 2_000),
    "results": (results, short_results, 3_500),
    "what was looked up": (found, latest_found, 3_000),
}
EACH = pytest.mark.parametrize(("steps", "view", "limit"), KINDS.values(), ids=KINDS)


async def asked(
    stack: ChatStack,
    steps: Steps,
    view: View,
    conversation_id: str | None = None,
    *,
    count: int = 40,
    capture: TelemetryCapture | None = None,
) -> list[Sequence[Message]]:
    """Ask through a stack, and return what was sent."""
    model = stack.provider
    assert isinstance(model, ScriptedClient)
    client, messages = stack.build(capture.resolve if capture else None), list[Message]()
    for number in range(count):
        for message in steps(number):
            if message.role == "assistant":
                model.answers[:] = [message]
                await client.get_response(view(messages), conversation_id=conversation_id)
            messages.append(message)
    return [request.messages for request in model.requests]


def cut_elsewhere(sent: Sequence[Sequence[Message]]) -> int:
    """Return how often a request did not begin with the first four messages of the one before it."""
    return sum(list(before[:4]) != list(now[: len(before[:4])]) for before, now in pairwise(sent))


@IDS
@EACH
def test_a_guard_rarely_cuts(steps: Steps, view: View, limit: int, conversation_id: str | None) -> None:
    stack = ChatStack(ScriptedClient()).use(ContextWindowGuard, max_context_tokens=limit, prune_on_overflow=True)
    assert 2 <= cut_elsewhere(asyncio.run(asked(stack, steps, view, conversation_id))) <= 7


@EACH
def test_a_reminder_may_be_sent_along(steps: Steps, view: View, limit: int) -> None:
    def reminded(messages: Sequence[Message]) -> list[Message]:
        return [*view(messages), Message.user(f"{len(messages)} so far")]

    stack = ChatStack(ScriptedClient()).use(ContextWindowGuard, max_context_tokens=limit, prune_on_overflow=True)
    assert 2 <= cut_elsewhere(asyncio.run(asked(stack, steps, reminded))) <= 9


@IDS
@EACH
def test_few_summaries_are_written(steps: Steps, view: View, limit: int, conversation_id: str | None) -> None:
    writer = ScriptedClient()
    stack = ChatStack(ScriptedClient()).use(Summarizer, max_tokens=limit, summary_client=writer)
    asyncio.run(asked(stack, steps, view, conversation_id))
    assert 3 <= len(writer.requests) <= (9 if steps is screens else 4)


@IDS
@EACH
def test_edits_are_reported_once(steps: Steps, view: View, limit: int, conversation_id: str | None) -> None:
    capture = TelemetryCapture()
    stack = ChatStack(ScriptedClient()).use(ToolResultClearer, trigger={"tokens": limit // 2}, keep={"messages": 8})
    asyncio.run(asked(stack, steps, view, conversation_id, capture=capture))
    assert 1 <= len([each for each in capture.spans if each.name.startswith("compact_context")]) <= 3


@EACH
def test_what_is_held_grows_with_the_conversation(steps: Steps, view: View, limit: int) -> None:
    held: list[int] = []
    for count in (20, 40):
        memory = ContextMemory()
        stack = ChatStack(ScriptedClient(), memory=memory).use(ContextWindowGuard, max_context_tokens=10**6)
        asyncio.run(asked(stack, steps, view, count=count))
        held.append(memory.held_bytes)
    assert held[1] < 2.5 * held[0]


def test_what_was_displaced_comes_again_once_all_of_it_fits() -> None:
    """Among twelve turns, one looks up more than half of what fits."""

    def steps(number: int) -> list[Message]:
        turn = found(number)
        return [Message.user(turn[0].text + "grey " * 1_200), *turn[1:]] if number == 8 else turn

    stack = ChatStack(ScriptedClient()).use(ContextWindowGuard, max_context_tokens=3_800, prune_on_overflow=True)
    sent = asyncio.run(asked(stack, steps, latest_found, count=12))
    assert min(map(len, sent[16:20])) < 20
    assert len(sent[-1]) == 47


def test_shaped_results_are_shaped_anew_where_they_have_changed() -> None:
    stack = ChatStack(ScriptedClient()).use(ToolResultShaper, max_bytes=300, deduplicate=True)
    sent = asyncio.run(asked(stack, results, short_results, count=20))
    alone = ScriptedClient()
    for number in range(20):
        messages = [message for at in range(number + 1) for message in results(at)]
        length = max(at for at, each in enumerate(messages) if each.role == "assistant")
        alone.answers[:] = [messages[length]]
        client = ChatStack(alone).use(ToolResultShaper, max_bytes=300, deduplicate=True).build()
        asyncio.run(client.get_response(short_results(messages[:length])))
    assert sent == [request.messages for request in alone.requests]


def beside_a_result(words: str) -> list[Message]:
    result = Message(role="tool", parts=(ToolResult("c", "read", "a page"), Text(words)))
    return [Message.user("Well?"), Message.assistant("", ToolCall("c", "read", "{}")), result]


@pytest.mark.parametrize("asked", [lambda words: [Message.user(words)], beside_a_result])
@pytest.mark.parametrize(("now", "edits"), [("Is it?", 1), ("Is it so?", 2)])
def test_other_words_are_those_of_another_conversation(
    now: str, edits: int, asked: Callable[[str], list[Message]]
) -> None:
    """Both begin, end and were answered alike; what is cut is what both begin with."""
    shots = [message for at in range(4) for message in (Message.user(f"{at} " * 400), Message.assistant("Yes. " * 100))]
    end = [Message.assistant("It is."), Message.user("Why?"), answer := Message.assistant("Because. " * 20)]
    capture, model = TelemetryCapture(), ScriptedClient()
    stack = ChatStack(model).use(ContextWindowGuard, max_context_tokens=1_200, prune_on_overflow=True)
    client = stack.build(capture.resolve)

    async def run() -> None:
        model.answers[:] = [answer]
        await client.get_response([*shots, *asked("Is it? Read: a"), *end[:-1]])
        await client.get_response([*shots, *asked(now), *end, Message.user("And?")])

    asyncio.run(run())
    assert len(capture.spans_named("compact_context truncate")) == edits
