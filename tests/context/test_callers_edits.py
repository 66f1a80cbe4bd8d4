"""What callers change in their own histories between turns: as little as possible is decided anew."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

import pytest

from chatstack import ChatStack, Message, Summarizer, ToolCall
from chatstack.testing import ScriptedClient

SYSTEM = Message.system("You are to the point.")
View = Callable[[list[Message]], list[Message]]


def turns_of(count: int) -> list[list[Message]]:
    """Return turns: a question, two rounds of calls, and an answer."""

    def round_of(number: int, at: int) -> list[Message]:
        call = ToolCall(f"c{number}_{at}", "read", f'{{"page": {number}, "at": {at}}}')
        return [Message.assistant("", call), Message.tool(call.id, f"page {number}.{at} " + "grey " * 300)]

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

    async def ask(self, messages: Sequence[Message], answer: Message) -> None:
        self.model.answers[:] = [answer]
        await self.client.get_response([SYSTEM, *messages], conversation_id=self.conversation_id)
        self.sent.append(self.model.requests[-1].messages)

    async def turn(self, past: list[Message], turn: list[Message], view: View = list) -> None:
        """Send each request of a turn, with what is kept of those before."""
        for at, message in enumerate(turn):
            if message.role == "assistant":
                await self.ask(view([*past, *turn[:at]]), message)


@pytest.mark.parametrize("conversation_id", [None, "c"])
@pytest.mark.parametrize(
    "view",
    [list, lambda messages: [*messages, Message.user(f"{len(messages)} so far")]],
    ids=["as it is", "with a reminder that is not kept"],
)
def test_no_summaries_of_a_window_that_the_caller_slides(view: View, conversation_id: str | None) -> None:
    model, writer, turns = ScriptedClient(), ScriptedClient(), turns_of(20)
    app = App(ChatStack(model).use(Summarizer, max_tokens=6_000, summary_client=writer), model, conversation_id)

    async def run() -> None:
        for number, turn in enumerate(turns):
            await app.turn([*itertools.chain(*turns[max(0, number - 8) : number])], turn, view)

    asyncio.run(run())
    assert len(writer.requests) <= 2
