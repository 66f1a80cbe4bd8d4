"""What callers look up and send along with a question, but keep the question alone: the conversation goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from chatstack import ChatStack, ContextWindowGuard, Message, Summarizer
from chatstack.testing import ScriptedClient

Added = Callable[[Message], list[Message]]

FOUND = "what was found " * 500
ADDED: dict[str, Added] = {
    "above it": lambda question: [Message.user(f"{FOUND}\n\n{question.text}")],
    "around it": lambda question: [Message.user(f"Read:\n{FOUND}\nAnswer:\n{question.text}\nBe brief.")],
    "a message before it": lambda question: [Message.user(FOUND), question],
    "messages around it": lambda question: [Message.user(FOUND), question, Message.user("Be brief.")],
}
SYSTEM = Message.system("You answer by what was found.")


async def asked(stack: ChatStack, model: ScriptedClient, added: Added, turns: int = 40) -> list[Sequence[Message]]:
    """Return what was sent, without the words of the last user."""
    client, messages, sent = stack.build(), [SYSTEM], list[Sequence[Message]]()
    for number in range(turns):
        question = Message.user(f"Question {number}? " + "why " * 60)
        answer = Message.assistant(f"Answer {number}. " + "so " * 60)
        model.answers[:] = [answer]
        await client.get_response([*messages, *added(question)])
        sent.append(model.requests[-1].messages[: -len(added(question))])
        messages += [question, answer]
    return sent


def changes(sent: Sequence[Sequence[Message]]) -> int:
    """Return how often a request did not begin with the one before it."""
    return sum(list(before) != list(now[: len(before)]) for before, now in pairwise(sent))


@pytest.mark.parametrize("added", ADDED.values(), ids=ADDED)
def test_what_is_sent_of_a_conversation_keeps_its_beginning(added: Added) -> None:
    model = ScriptedClient()
    stack = ChatStack(model).use(ContextWindowGuard, max_context_tokens=4_000, prune_on_overflow=True)
    assert changes(asyncio.run(asked(stack, model, added))) == 2


@pytest.mark.parametrize("added", ADDED.values(), ids=ADDED)
def test_a_summary_is_not_written_on_every_turn(added: Added) -> None:
    model, writer = ScriptedClient(), ScriptedClient()
    stack = ChatStack(model).use(Summarizer, max_tokens=4_000, keep_recent_turns=3, summary_client=writer)
    asyncio.run(asked(stack, model, added))
    assert len(writer.requests) == 2


@pytest.mark.parametrize(("question", "count"), [("Is it?", 4), ("Is it so?", 7)])
def test_what_is_no_part_of_what_was_sent_belongs_to_another_conversation(question: str, count: int) -> None:
    """Both were answered alike; the request of one was so long that it was pruned."""

    async def run() -> int:
        model = ScriptedClient()
        stack = ChatStack(model).use(ContextWindowGuard, max_context_tokens=2_200, prune_on_overflow=True)
        client = stack.build()
        shots = [
            Message.user("word " * 400),
            Message.assistant("Ready."),
            Message.user("So?"),
            Message.assistant("Yes."),
        ]
        answer = Message.assistant("It is.")
        model.answers[:] = [answer]
        await client.get_response([*shots, Message.user(f"Is it? {FOUND}")])
        await client.get_response([*shots, Message.user(question), answer, Message.user("Why?")])
        return len(model.requests[-1].messages)

    assert asyncio.run(run()) == count
