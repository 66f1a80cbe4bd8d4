"""Conversations that go on without the last words of users: what was worked out for the rest of them is kept."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack import (
    CharCounter,
    ChatStack,
    ContextMemory,
    ContextWindowGuard,
    Message,
    ProviderItem,
    Text,
    ToolCall,
    ToolResult,
    ToolResultClearer,
)
from chatstack.context.edits import records
from chatstack.context.histories import digests, history
from chatstack.context.histories.history import History
from chatstack.testing import ScriptedClient
from tests.histories import PROPERTY, decoded_again

WORDS = st.sampled_from(["hi", "and now?", "", "a longer question " * 5])
IDS = st.sampled_from(["a", "b", "c"])
ITEMS = [
    ProviderItem("theirs", '{"type": "server_tool_use", "id": "s"}'),
    ProviderItem("theirs", '{"type": "web_search_tool_result", "tool_use_id": "s"}'),
    ProviderItem("anthropic", '{"type": "compaction", "content": "what was"}'),
]
MESSAGES = st.one_of(
    st.builds(Message.user, WORDS),
    st.builds(lambda text, pinned: Message("user", (Text(text),), pinned=pinned), WORDS, st.booleans()),
    st.builds(Message.assistant, WORDS),
    st.builds(lambda ids: Message("assistant", tuple(ToolCall(id, "look", "{}") for id in ids)), st.lists(IDS)),
    st.builds(lambda id, pinned: Message("tool", (ToolResult(id, "look", "seen"),), pinned=pinned), IDS, st.booleans()),
    st.builds(lambda ids: Message("user", tuple(ToolResult(id, "look", "seen") for id in ids)), st.lists(IDS)),
    st.builds(lambda items: Message("assistant", tuple(items)), st.lists(st.sampled_from(ITEMS))),
)


def grown(messages: Sequence[Message]) -> History:
    made = History()
    made.grow(tuple(messages))
    made.sums(len(messages), CharCounter(), CharCounter().count_message)
    made.prefix_hash(len(messages))
    made.links(len(messages))
    return made


def worked_out(of: History) -> tuple[object, ...]:
    length, counter = len(of.messages), CharCounter()
    pairs, round_at = of.pairs, of.pairs._round  # pyright: ignore[reportPrivateUsage]
    places, unanswered = pairs.paired()
    return (
        of.messages,
        array("q", of.sums(length, counter, counter.count_message)),
        [of.prefix_hash(at) for at in range(1, length + 1)],
        of.links(length)[:length],
        ([*places], unanswered, pairs.open_calls(), pairs.orphans, pairs.displaced, round_at),
        (pairs.leftovers(-1), None if pairs.items is None else pairs.items.joined),
        (of.latest_user, of.latest_assistant, of.pinned, of.pinned_results, of.is_edited, of.compactions),
    )


@PROPERTY
@given(st.lists(MESSAGES, min_size=1, max_size=12), st.lists(WORDS, min_size=1, max_size=3), st.lists(MESSAGES))
def test_a_branch_is_as_if_it_had_grown_alone(before: list[Message], reminders: list[str], then: list[Message]) -> None:
    known = grown([*before, *map(Message.user, reminders)])
    made = known.branched(tuple(before))
    made.grow((*before, *then))
    assert worked_out(made) == worked_out(grown([*before, *then]))
    assert worked_out(known) == worked_out(grown([*before, *map(Message.user, reminders)]))


@PROPERTY
@given(st.lists(MESSAGES, min_size=1, max_size=12), st.lists(MESSAGES, max_size=8), st.lists(MESSAGES))
def test_so_is_one_from_further_back(before: list[Message], behind: list[Message], then: list[Message]) -> None:
    known = grown([*before, *behind])
    made = known.branched(tuple(before))
    made.grow((*before, *then))
    assert worked_out(made) == worked_out(grown([*before, *then]))
    assert worked_out(known) == worked_out(grown([*before, *behind]))
    assert made.messages_bytes == grown([*before, *then]).messages_bytes


def steps(first: int, count: int) -> list[Message]:
    return [
        message
        for number in range(first, first + count)
        for message in (
            Message.assistant(f"I look {number}.", ToolCall(f"c{number}", "look", '{"at": 1}')),
            Message.tool(f"c{number}", f"seen {number} " + "grey " * 20, name="look"),
        )
    ]


class Agent:
    """A conversation of tool rounds, each request with a reminder at its end that is not kept."""

    def __init__(self, *, is_fresh: bool = False, memory: ContextMemory | None = None) -> None:
        self.messages = [Message.user("Find it."), *steps(0, 1)]
        self.is_fresh = is_fresh
        self.model = ScriptedClient()
        stack = ChatStack(self.model, memory=memory or ContextMemory())
        self.client = stack.use(ToolResultClearer, trigger={"tokens": 1_500}, counter=CharCounter()).build()

    async def ask(self, times: int) -> None:
        for _ in range(times):
            answer, result = steps(len(self.messages) // 2, 1)
            self.model.answers[:] = [answer]
            given = (*self.messages, Message.user(f"It is {len(self.messages)} o'clock."))
            await self.client.get_response(decoded_again(given) if self.is_fresh else given)
            self.messages += [answer, result]


def test_a_reminder_makes_no_work_that_grows_with_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    def counted(name: str, module: object) -> None:
        real = getattr(module, name)

        def count(*args: object) -> object:
            done.append(1)
            return real(*args)

        monkeypatch.setattr(module, name, count)

    counted("_kept_of", digests)
    counted("weight_of", history)
    monkeypatch.setattr(records.Edit, "applied", _counting(records.Edit.applied, done))

    async def run() -> list[int]:
        agent, found = Agent(), list[int]()
        for _ in range(3):
            await agent.ask(130)  # the answers that it may have gone back to are 128 at most
            done.clear()
            await agent.ask(1)
            found.append(len(done))
        return found

    found = asyncio.run(run())
    assert max(found) <= 1.2 * found[0], found


def _counting(real: object, done: list[int]) -> object:
    def count(*args: object) -> object:
        done.append(1)
        return real(*args)  # type: ignore[operator]

    return count


@pytest.mark.parametrize("is_fresh", [False, True])
def test_a_conversation_with_reminders_counts_once(is_fresh: bool) -> None:
    async def run() -> None:
        memory, alone = ContextMemory(), ContextMemory()
        agent = Agent(is_fresh=is_fresh, memory=memory)
        await agent.ask(100)
        await (
            ChatStack(ScriptedClient(["fine"]), memory=alone)
            .use(ToolResultClearer, trigger={"tokens": 1_500}, counter=CharCounter())
            .build()
            .get_response(agent.messages)
        )
        assert memory.held_bytes < 20 * alone.held_bytes

    asyncio.run(run())


def test_choices_are_evicted_with_the_history_that_goes_on() -> None:
    async def run() -> None:
        memory = ContextMemory()
        agent = Agent(memory=memory)
        await agent.ask(60)
        *older, latest = memory._recogniser.histories()  # pyright: ignore[reportPrivateUsage]
        assert latest.entries
        assert not older
        assert memory.held_bytes == latest.held_bytes + memory._small_bytes()  # pyright: ignore[reportPrivateUsage]

    asyncio.run(run())


def test_a_warning_is_not_repeated_for_each_reminder(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        client = ChatStack(ScriptedClient(["fine"] * 6)).use(ContextWindowGuard, max_context_tokens=1_000).build()
        messages = [Message.user("word " * 900)]
        for number in range(6):
            answer = await client.get_response([*messages, Message.user(f"reminder {number}")])
            messages += [*answer.messages, Message.user("more")]

    with caplog.at_level(logging.WARNING, logger="chatstack"):
        asyncio.run(run())
    assert len(caplog.records) == 1


def test_another_conversation_with_that_beginning_is_warned_itself(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        client = ChatStack(ScriptedClient(["fine", "well"])).use(ContextWindowGuard, max_context_tokens=1_000).build()
        shots = [Message.user("word " * 900), Message.assistant("Ready.")]
        await client.get_response([*shots, Message.user("The first.")])
        await client.get_response([*shots, Message.user("Another one.")])

    with caplog.at_level(logging.WARNING, logger="chatstack"):
        asyncio.run(run())
    assert len(caplog.records) == 2
