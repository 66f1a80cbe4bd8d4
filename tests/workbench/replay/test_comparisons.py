"""The ways of shortening that ours is compared with: what they keep, and that they remember nothing."""

from __future__ import annotations

import asyncio

import pytest

from chatstack import ChatOptions, ChatStack, Message, ToolCall, ToolResult
from chatstack.telemetry.emission import Telemetry
from chatstack.testing.scripted import ScriptedClient
from chatstack.workbench.replay.comparisons import RollingMasking, SlidingWindow
from chatstack.workbench.replay.measures.figures import PolicyFigures
from chatstack.workbench.replay.measures.measuring import WireCounter
from chatstack.workbench.replay.policies import policies_for
from chatstack.workbench.replay.reading.recordings import Recording
from chatstack.workbench.replay.recorder import EditLog
from tests.workbench.replay.conversations import by_name, data_file, outcome_of, recordings_in, setup_of

CLEARED = "[cleared]"
RULE, TASK = Message.system("rule"), Message.user("task")


def rounds(count: int, words: int = 10) -> list[Message]:
    """Calls with their results, all of the same size and under one id."""
    found: list[Message] = []
    for number in range(10, 10 + count):
        found += [Message.assistant(ToolCall("a", "look", f"{number}")), Message.tool("a", f"seen {number}" * words)]
    return found


def sent_by(strategy: SlidingWindow | RollingMasking, *histories: list[Message]) -> tuple[list[list[Message]], int]:
    """What one stack sends of these histories, one call after the other, and how many edits it reports."""
    model, telemetry = ScriptedClient(["fine"]), EditLog()
    services: dict[type, object] = {Telemetry: telemetry}
    client = ChatStack(model).use(strategy).build(services.__getitem__)

    async def ask() -> None:
        for history in histories:
            await client.get_response(history, conversation_id="one")

    asyncio.run(ask())
    return [list(request.messages) for request in model.requests], len(telemetry.edits)


def size_of(*messages: Message) -> int:
    return sum(map(WireCounter.best().count_message, messages))


def test_a_sliding_window_keeps_system_and_task_and_the_newest_units_that_fit() -> None:
    history = [RULE, TASK, *rounds(6)]
    kept = [RULE, TASK, *history[-4:]]

    for spare in (0, size_of(*history[-6:-4]) - 1):
        sent, edits = sent_by(SlidingWindow(size_of(*kept) + spare), history)
        assert (sent, edits) == ([kept], 1)
    sent, _ = sent_by(SlidingWindow(size_of(*kept) + size_of(*history[-6:-4])), history)
    assert sent == [[RULE, TASK, *history[-6:]]]


def test_a_sliding_window_splits_no_unit_and_leaves_no_hole() -> None:
    big = [Message.assistant(ToolCall("a", "look")), Message.tool("a", "word " * 500)]
    history = [TASK, *rounds(1), *big, *rounds(2)]

    sent, _ = sent_by(SlidingWindow(size_of(*history) - size_of(big[1]) + 10), history)

    assert sent == [[TASK, *history[-4:]]]


def test_a_sliding_window_may_drop_all_but_system_and_task() -> None:
    history = [RULE, TASK, *rounds(1, words=500)]

    sent, _ = sent_by(SlidingWindow(100), history)

    assert sent == [[RULE, TASK]]


def test_what_fits_a_sliding_window_is_sent_as_it_is() -> None:
    history = [RULE, TASK, *rounds(6)]

    sent, edits = sent_by(SlidingWindow(size_of(*history)), history)

    assert (sent, edits) == ([history], 0)


def test_a_sliding_window_moves_on_with_each_call() -> None:
    history = [TASK, *rounds(8)]
    ceiling = size_of(*history[:7])

    sent, edits = sent_by(SlidingWindow(ceiling), *(history[:count] for count in (7, 9, 11)))

    assert [messages[1:3] for messages in sent] == [history[1:3], history[3:5], history[5:7]]
    assert edits == 2


def test_rolling_masking_replaces_all_but_the_newest_results() -> None:
    history = [RULE, TASK, *rounds(5)]

    sent, edits = sent_by(RollingMasking(keep=2), history)

    assert [each.results[0].output for each in sent[0] if each.role == "tool"] == [CLEARED] * 3 + [
        each.results[0].output for each in history[-3:] if each.role == "tool"
    ]
    assert [each for each in sent[0] if each.role != "tool"] == [each for each in history if each.role != "tool"]
    assert edits == 1


def test_rolling_masking_counts_results_and_not_messages() -> None:
    both = Message("tool", tuple(ToolResult(id, "look", f"seen {id}") for id in ("a", "b", "c")))
    history = [TASK, Message.assistant(*(ToolCall(id, "look") for id in ("a", "b", "c"))), both]

    sent, _ = sent_by(RollingMasking(keep=2), history)

    assert [(part.call_id, part.output) for part in sent[0][-1].results] == [
        ("a", CLEARED),
        ("b", "seen b"),
        ("c", "seen c"),
    ]


def test_rolling_masking_leaves_few_results_alone_and_moves_on_with_each_call() -> None:
    history = [TASK, *rounds(4)]

    sent, edits = sent_by(RollingMasking(keep=2), *(history[:count] for count in (5, 7, 9)))

    masked = [sum(each.text == CLEARED for message in messages for each in message.results) for messages in sent]
    assert (masked, edits) == ([0, 1, 2], 2)


def test_a_masked_message_still_knows_what_it_stands_for() -> None:
    history = [TASK, *rounds(2)]

    sent, _ = sent_by(RollingMasking(keep=1), history)

    assert sent[0][2].original is history[2]


def test_what_the_comparisons_send_does_not_depend_on_what_they_sent_before() -> None:
    history = [RULE, TASK, *rounds(12)]
    for strategy in (SlidingWindow(size_of(*history) // 2), RollingMasking(keep=3)):
        after_others, _ = sent_by(strategy, history[:10], history[:20], history)
        alone, _ = sent_by(strategy, history)
        assert after_others[-1] == alone[0]


def test_instructions_and_tools_take_room_in_a_sliding_window() -> None:
    history = [TASK, *rounds(2)]
    model = ScriptedClient(["fine"])
    client = ChatStack(model).use(SlidingWindow(size_of(*history))).build()

    asyncio.run(client.get_response(history, options=ChatOptions(instructions="be brief")))

    assert list(model.requests[0].messages) == [TASK, *history[-2:]]


def replayed(name: str, window: int, count: int) -> dict[str, PolicyFigures]:
    items = recordings_in(data_file(name))[:count]
    assert all(isinstance(item, Recording) for item in items)
    return by_name(outcome_of(setup_of(*policies_for([]), window=window, counter=WireCounter.best()), *items).figures)


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "window"), [("tau_airline_gpt4o.dev.jsonl.gz", 4_000), ("swe_gemini3_mini.dev.jsonl.gz", 8_000)]
)
def test_the_comparisons_send_valid_requests_of_real_conversations(name: str, window: int) -> None:
    figures = replayed(name, window, 20)

    assert {each.invalid_requests for each in figures.values()} == {0}
    assert figures["sliding-window"].over_limit == 0
    assert figures["rolling-masking"].spending.prefix_breaks > 0
