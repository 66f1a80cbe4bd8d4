"""What callers look up and send along with a question, but keep the question alone: the conversation goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest

from chatstack import (
    BuiltClient,
    ChatStack,
    Context,
    ContextMemory,
    ContextWindowGuard,
    Message,
    Plan,
    Strategy,
    Summarizer,
    Text,
    ToolCall,
    ToolResultClearer,
)
from chatstack.testing import ScriptedClient
from tests.histories import decoded_again

Added = Callable[[Message], list[Message]]

FOUND = "what was found " * 500
ADDED: dict[str, Added] = {
    "above it": lambda question: [Message.user(f"{FOUND}\n\n{question.text}")],
    "around it": lambda question: [Message.user(f"Read:\n{FOUND}\nAnswer:\n{question.text}\nBe brief.")],
    "a message before it": lambda question: [Message.user(FOUND), question],
    "messages around it": lambda question: [Message.user(FOUND), question, Message.user("Be brief.")],
}
ALONE: Added = lambda question: [question]  # noqa: E731
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


class Agent:
    """A conversation with rounds of tools in each turn; what was looked up is in all requests of its turn."""

    def __init__(
        self,
        added: Added,
        memory: ContextMemory | None = None,
        *,
        kept: Added = ALONE,
        is_fresh: bool = False,
    ) -> None:
        self.added, self.kept, self.is_fresh = added, kept, is_fresh
        self.messages = [SYSTEM]
        self.model, self.writer = ScriptedClient(), ScriptedClient()
        self.stack = ChatStack(self.model, memory=memory or ContextMemory())
        self.sent: list[tuple[Message, ...]] = []

    async def ask(self, turns: int, rounds: int = 2) -> None:
        client = self.stack.build()
        for _ in range(turns):
            number = len(self.messages)
            question = Message.user(f"Question {number}? " + "why " * 60)
            turn = [*self.added(question)]
            for each in range(rounds):
                call = Message.assistant("I look.", ToolCall(f"c{number}-{each}", "look", '{"at": 1}'))
                await self._send(client, turn, call)
                turn += [call, Message.tool(f"c{number}-{each}", f"seen {number} " + "grey " * 60, name="look")]
            answer = Message.assistant(f"Answer {number}. " + "so " * 60)
            await self._send(client, turn, answer)
            self.messages += [*self.kept(question), *turn[len(self.added(question)) :], answer]

    async def _send(self, client: BuiltClient, turn: Sequence[Message], answer: Message) -> None:
        self.model.answers[:] = [answer]
        given = (*self.messages, *turn)
        await client.get_response(decoded_again(given) if self.is_fresh else given)
        self.sent.append(self.model.requests[-1].messages)

    def beginnings(self, rounds: int = 2) -> list[tuple[Message, ...]]:
        """Return what was sent of each turn first, up to what was looked up for it."""
        return [each[: -len(self.added(SYSTEM))] for each in self.sent[:: rounds + 1]]


@pytest.mark.parametrize("is_fresh", [False, True])
@pytest.mark.parametrize("added", ADDED.values(), ids=ADDED)
def test_behind_calls_of_tools_the_conversation_goes_on_too(added: Added, is_fresh: bool) -> None:
    agent = Agent(added, is_fresh=is_fresh)
    agent.stack = agent.stack.use(ContextWindowGuard, max_context_tokens=6_000, prune_on_overflow=True)
    asyncio.run(agent.ask(30))
    assert changes(agent.beginnings()) <= 3


@pytest.mark.parametrize("added", ADDED.values(), ids=ADDED)
def test_an_agents_results_are_cleared_as_if_nothing_had_been_looked_up(added: Added) -> None:
    counts: list[int] = []
    for each in (added, ALONE):
        agent = Agent(each)
        stack = agent.stack.use(ToolResultClearer, trigger={"tokens": 4_000}, keep={"messages": 3})
        agent.stack = stack.use(ContextWindowGuard, max_context_tokens=8_000, prune_on_overflow=True)
        asyncio.run(agent.ask(30))
        counts.append(changes(agent.beginnings()))
    assert counts[0] <= counts[1] + 1


@pytest.mark.parametrize("added", ADDED.values(), ids=ADDED)
def test_an_agents_summary_is_not_written_on_every_turn(added: Added) -> None:
    agent = Agent(added)
    agent.stack = agent.stack.use(
        Summarizer, max_tokens=6_000, keep_recent_turns=3, summary_client=agent.writer
    )  # fmt: skip
    asyncio.run(agent.ask(30))
    assert 1 <= len(agent.writer.requests) <= 4


@pytest.mark.parametrize("added", ADDED.values(), ids=ADDED)
def test_what_is_held_of_an_agents_conversation_grows_with_it(added: Added) -> None:
    held: list[int] = []
    for turns in (10, 20):
        memory = ContextMemory()
        agent = Agent(added, memory)
        agent.stack = agent.stack.use(ContextWindowGuard, max_context_tokens=10**6)
        asyncio.run(agent.ask(turns))
        held.append(memory.held_bytes)
    assert held[1] < 2.5 * held[0]


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


@dataclass(frozen=True)
class ShortensQuestions(Strategy):
    """Keeps the beginning of long words of users."""

    name = "shortens_questions"

    def plan(self, context: Context) -> Plan | None:
        found = enumerate(context.messages)
        long = [(at, each) for at, each in found if each.role == "user" and len(each.text) > 1_000]
        shorter = tuple((at, each.edited(parts=(Text(each.text[:100]),))) for at, each in long)
        return Plan(strategy=self.name, reason="long", replace=shorter) if shorter else None


@pytest.mark.parametrize("rounds", [0, 2])
def test_an_edit_of_what_was_sent_along_is_none_of_the_question(rounds: int) -> None:
    brief = Message.user("Be brief.")
    added: Added = lambda question: [Message.user(f"{question.text}\n{FOUND}"), brief]  # noqa: E731
    agent = Agent(added, kept=lambda question: [question, brief])
    agent.stack = agent.stack.use(ShortensQuestions())
    asyncio.run(agent.ask(4, rounds))
    assert "\n".join(each.text for each in agent.sent[0][1:3]) == f"{agent.messages[1].text[:100]}\nBe brief."
    assert agent.beginnings(rounds)[-1] == (*agent.messages[: -len(agent.added(SYSTEM)) - 1 - 2 * rounds],)
