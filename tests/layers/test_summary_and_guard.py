"""A summarizer around a guard: what the guard alone would make fit fits with a summary, too; and each fact once."""

from __future__ import annotations

import asyncio

import pytest

from chatstack import (
    ChatStack,
    ClearThenDrop,
    ContextWindow,
    ContextWindowGuard,
    FunctionInvoker,
    Message,
    OldestFirst,
    Summarizer,
    ToolCall,
    ToolResultClearer,
    tool,
)
from chatstack.testing import ScriptedClient, TelemetryCapture
from tests.context.strictness import leftovers, size
from tests.layers.travel import summaries_in

LIMIT = 2_000
LONG_SUMMARY = "what was said and done " * 90


def talk(turns: int, last: int) -> list[Message]:
    """Turns of about 110 tokens, and a question of ``last`` tokens."""
    history = [Message.user("the task")]
    for number in range(turns):
        history += [Message.assistant(f"{number} " + "y" * 200), Message.user(f"{number} " + "x" * 200)]
    return [*history, Message.assistant("done"), Message.user("q" * 4 * last)]


def inner(kind: str, stack: ChatStack) -> ChatStack:
    if kind == "guard":
        return stack.use(ContextWindowGuard, max_context_tokens=LIMIT, prune_on_overflow=True)
    return stack.use(OldestFirst(LIMIT, 1_400) if kind == "oldest first" else ClearThenDrop(LIMIT))


@pytest.mark.parametrize("kind", ["guard", "oldest first", "condensing"])
def test_a_summary_never_makes_that_too_large_which_would_fit_without_it(kind: str) -> None:
    for last in range(100, 1_960, 60):
        model, capture = ScriptedClient(["fine"]), TelemetryCapture()
        stack = ChatStack(model).use(
            Summarizer, max_tokens=LIMIT, summary_client=ScriptedClient([LONG_SUMMARY]), keep_recent_turns=1
        )
        client = inner(kind, stack).build(capture.resolve)
        for history in (talk(20, 50), [*talk(20, 50), Message.assistant("ok"), Message.user("q" * 4 * last)]):
            asyncio.run(client.get_response(history, conversation_id="c"))
        sent = model.requests[-1]
        assert size(sent.messages) <= LIMIT
        assert len(summaries_in(sent)) == 1
        assert not {"context_irreducible", "plan_rejected"} & set(capture.warnings)


def test_a_summary_that_was_shortened_stays_so() -> None:
    model = ScriptedClient(["fine"])
    stack = ChatStack(model).use(
        Summarizer, max_tokens=LIMIT, summary_client=ScriptedClient([LONG_SUMMARY]), keep_recent_turns=1
    )
    client = inner("guard", stack).build()
    history = talk(20, 50)
    asyncio.run(client.get_response(history))
    (whole,) = summaries_in(model.requests[-1])
    grown = [*history, Message.assistant("ok"), Message.user("q" * 4 * 1_700)]
    for _ in range(2):
        asyncio.run(client.get_response(grown))
        (short,) = summaries_in(model.requests[-1])
        assert size([short]) < size([whole])
        assert "bytes left out]" in short.text
    assert model.requests[-1].messages == model.requests[-2].messages


@tool
def look(place: str) -> str:
    """Look."""
    return "x" * 3_000


@pytest.mark.parametrize("stream", [False, True])
def test_that_nothing_helps_is_said_by_one_layer_for_each_request(stream: bool) -> None:
    capture = TelemetryCapture()
    stack = (
        ChatStack(ScriptedClient(["fine"]))
        .use(ToolResultClearer, trigger={"tokens": 1_000})
        .use(ContextWindow, max_tokens=900, summary_client=ScriptedClient(["short"]))
        .use(OldestFirst(800, 700))
    )
    client = stack.build(capture.resolve)
    messages = [Message.user("x" * 8_000)]
    call = client.get_streaming_response(messages).response() if stream else client.get_response(messages)
    asyncio.run(_finished(call))
    assert capture.warnings == ("edit_ineffective",)


async def _finished(call: object) -> None:
    await call  # type: ignore[misc]


def test_a_summary_of_a_client_with_layers_of_its_own_warns_for_itself() -> None:
    capture = TelemetryCapture()
    writer = ChatStack(ScriptedClient(["short"])).use(OldestFirst(10, 5)).build(capture.resolve)
    stack = (
        ChatStack(ScriptedClient(["fine"]))
        .use(ToolResultClearer, trigger={"tokens": 500})
        .use(Summarizer, max_tokens=900, summary_client=writer)
    )
    asyncio.run(stack.build(capture.resolve).get_response(talk(20, 50)))
    assert capture.warnings == ("edit_ineffective", "edit_ineffective")


def test_a_loop_over_large_results_goes_on_with_a_summary() -> None:
    calls = [Message.assistant(ToolCall(f"c{number}", "look", f'{{"place": "{number}"}}')) for number in range(8)]
    model = ScriptedClient([*calls, "fine"])
    stack = ChatStack(model).use(FunctionInvoker, tools=[look], max_tool_calls_per_turn=20)
    stack = stack.use(Summarizer, max_tokens=LIMIT, summary_client=ScriptedClient([LONG_SUMMARY]))
    response = asyncio.run(inner("guard", stack).build().get_response("Look around."))
    assert response.text == "fine"
    assert all(size(request.messages) <= LIMIT for request in model.requests)
    assert all(leftovers(request.messages) == {} for request in model.requests)
