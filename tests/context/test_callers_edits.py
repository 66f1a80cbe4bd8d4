"""What callers change in their own histories between turns: as little as possible is decided anew."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from chatstack import ChatStack, ContextMemory, ContextWindowGuard, Message, Summarizer, ToolCall
from chatstack.testing import ScriptedClient
from tests.context.test_sharing import DictStore

SYSTEM = Message.system("You are to the point.")
View = Callable[[list[Message]], list[Message]]


def turns_of(count: int, *, words: int = 300) -> list[list[Message]]:
    """Return turns: a question, two rounds of calls, with results of so many words, and an answer."""

    def round_of(number: int, at: int) -> list[Message]:
        call = ToolCall(f"c{number}_{at}", "read", f'{{"page": {number}, "at": {at}}}')
        return [Message.assistant("", call), Message.tool(call.id, f"page {number}.{at} " + "grey " * words)]

    return [
        [
            Message.user(f"Question {number}? " + "why " * 40),
            *round_of(number, 0),
            *round_of(number, 1),
            Message.assistant(f"Answer {number}. " + "so " * 200),
        ]
        for number in range(count)
    ]


class App:
    """An application that asks through a stack, and keeps of each turn what it likes. ``sent`` are the requests."""

    def __init__(self, stack: ChatStack, model: ScriptedClient, conversation_id: str | None = None) -> None:
        self.client, self.model, self.conversation_id = stack.build(), model, conversation_id
        self.sent: list[Sequence[Message]] = []

    @property
    def changes(self) -> int:
        """How often a request did not begin as the one before it, up to its question."""
        asked = [max(at for at, each in enumerate(sent) if each.role == "user") for sent in self.sent]
        pairs = zip(pairwise(self.sent), asked, strict=False)
        return sum(list(before[:end]) != list(now[:end]) for (before, now), end in pairs)

    async def ask(self, messages: Sequence[Message], answer: Message) -> None:
        self.model.answers[:] = [answer]
        await self.client.get_response([SYSTEM, *messages], conversation_id=self.conversation_id)
        self.sent.append(self.model.requests[-1].messages)

    async def turn(self, past: list[Message], turn: list[Message], view: View = list) -> None:
        """Send each request of a turn, with what is kept of those before."""
        for at, message in enumerate(turn):
            if message.role == "assistant":
                await self.ask(view([*past, *turn[:at]]), message)


def reminded(messages: list[Message]) -> list[Message]:
    return [*messages, Message.user(f"{len(messages)} so far")]


@pytest.mark.parametrize("conversation_id", [None, "c"])
@pytest.mark.parametrize("view", [list[Message], reminded])
def test_no_summaries_of_a_window_that_the_caller_slides(view: View, conversation_id: str | None) -> None:
    model, writer, turns = ScriptedClient(), ScriptedClient(), turns_of(20)
    app = App(ChatStack(model).use(Summarizer, max_tokens=6_000, summary_client=writer), model, conversation_id)

    async def run() -> None:
        for number, turn in enumerate(turns):
            await app.turn([*itertools.chain(*turns[max(0, number - 8) : number])], turn, view)

    asyncio.run(run())
    assert len(writer.requests) <= 2


# Of a turn, the question and the answer alone are kept


def answers_alone(turns: Sequence[list[Message]]) -> list[Message]:
    return [message for turn in turns for message in (turn[0], turn[-1])]


async def answered(apps: Sequence[App], turns: Sequence[list[Message]]) -> None:
    """Ask the applications in turn."""
    for number, turn in enumerate(turns):
        await apps[number % len(apps)].turn(answers_alone(turns[:number]), turn)


def guarded(memory: ContextMemory | None = None) -> tuple[ChatStack, ScriptedClient]:
    model = ScriptedClient()
    stack = ChatStack(model, memory=memory) if memory else ChatStack(model)
    return stack.use(ContextWindowGuard, max_context_tokens=4_000, prune_on_overflow=True), model


@pytest.mark.parametrize("conversation_id", [None, "c"])
def test_edits_hold_where_the_rounds_of_past_turns_are_dropped(conversation_id: str | None) -> None:
    app = App(*guarded(), conversation_id)
    asyncio.run(answered([app], turns_of(60)))
    assert app.changes == 7


def test_summaries_hold_where_the_rounds_of_past_turns_are_dropped() -> None:
    model, writer = ScriptedClient(), ScriptedClient()
    app = App(ChatStack(model).use(Summarizer, max_tokens=4_000, summary_client=writer), model)
    asyncio.run(answered([app], turns_of(60)))
    assert len(writer.requests) == app.changes == 4


def test_processes_with_one_store_agree_where_the_rounds_of_past_turns_are_dropped() -> None:
    store = DictStore()
    apps = [App(*guarded(ContextMemory(store=store, scope="s")), "c") for _ in range(2)]
    asyncio.run(answered(apps, turns_of(60)))
    alone = App(*guarded(), "c")
    asyncio.run(answered([alone], turns_of(60)))
    assert {*map(tuple, apps[0].sent), *map(tuple, apps[1].sent)} == {*map(tuple, alone.sent)}


def test_what_a_large_turn_displaces_comes_again_once_its_rounds_are_dropped() -> None:
    app, turns = App(*guarded()), turns_of(8)
    turns[6] = turns_of(7, words=1_400)[6]
    asyncio.run(answered([app], turns))
    assert len(app.sent[-4]) < 10
    assert list(app.sent[-1][:-5]) == [SYSTEM, *answers_alone(turns[:-1])]
