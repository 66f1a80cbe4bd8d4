"""Reminders: words of users at the end of each request that are not kept. What a conversation has come to goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import pytest

from chatstack import (
    CharCounter,
    ChatRequest,
    ChatStack,
    ChatStream,
    ClearThenDrop,
    ContextMemory,
    ContextOverflowError,
    ContextWindowGuard,
    Message,
    ToolCall,
    ToolResultClearer,
    Truncate,
    Usage,
)
from chatstack.context.decisions.reconstructing import Reconstruction
from chatstack.context.edits import units
from chatstack.context.histories import history
from chatstack.testing import ScriptedClient
from tests.context.test_sharing import DictStore

Use = Callable[[ChatStack], ChatStack]
Made = Callable[[int], Message | None]

COUNTER = CharCounter()
KINDS: dict[str, Made] = {
    "none": lambda _: None,
    "in the system": lambda _: Message.system("!"),
    "a user's": lambda _: Message.user("!"),
}


def guard(stack: ChatStack, most: int = 1_000) -> ChatStack:
    return stack.use(ContextWindowGuard, max_context_tokens=most, prune_on_overflow=True, counter=COUNTER)


def clearer(stack: ChatStack, trigger: int = 1_000, at_least: int = 0) -> ChatStack:
    return stack.use(ToolResultClearer, trigger={"tokens": trigger}, clear_at_least=at_least, counter=COUNTER)


RECIPES: dict[str, Use] = {
    "guard": guard,
    "clearer": clearer,
    "clearer, guard": lambda stack: guard(clearer(stack, 600)),
    "waits": lambda stack: clearer(stack, 1_000, at_least=10_000),
    "ClearThenDrop": lambda stack: stack.use(ClearThenDrop(max_tokens=1_000), counter=COUNTER),
}


class Model(ScriptedClient):
    """Reports so many times what is counted; refuses what is longer than the window."""

    def __init__(self, factor: float = 0, window: int = 0) -> None:
        super().__init__()
        self.factor = factor
        self.window = window

    async def send(self, request: ChatRequest, /) -> ChatStream:
        if self.window and size_of(request) > self.window:
            raise ContextOverflowError("too long")
        return await super().send(request)

    def _usage(self, request: ChatRequest, answer: Message) -> Usage:
        return Usage(int(self.factor * size_of(request)), 10)


def size_of(request: ChatRequest) -> int:
    return sum(map(COUNTER.count_message, request.messages))


class Agent:
    """A conversation of tool rounds, with a reminder at the end of each request that is not kept."""

    def __init__(self, model: Model, use: Use, reminder: Made, *, store: DictStore | None = None) -> None:
        self.model = model
        self.reminder = reminder
        memory = ContextMemory() if store is None else ContextMemory(store=store, scope="x")
        self.client = use(ChatStack(model, memory=memory, trace_model_calls=False)).build()
        self.messages = [Message.user("Find it.")]
        self.calls = 0

    async def ask(self, times: int = 1, *, words: int = 30) -> list[Sequence[Message]]:
        """Return the messages that were sent, without reminders."""
        return [await self._asked(1, words) for _ in range(times)]

    async def ask_twice(self) -> Sequence[Message]:
        """Go on from the second answer to one request."""
        return await self._asked(2, 30)

    async def _asked(self, answers: int, words: int) -> Sequence[Message]:
        self.calls += 1
        reminder, call = self.reminder(self.calls), ToolCall(f"c{self.calls}", "look", f'{{"at": {self.calls}}}')
        given = self.messages if reminder is None else [*self.messages, reminder]
        answer = Message.assistant(f"I look {self.calls}.", call)
        for again in range(answers):
            answer = Message.assistant(f"I look {self.calls}{'b' * again}.", call)
            self.model.answers[:] = [answer]
            await self.client.get_response(given)
        self.messages += [answer, Message.tool(call.id, f"seen {self.calls} " + "grey " * words, name="look")]
        return [each for each in self.model.requests[-1].messages if each != reminder]


@pytest.mark.parametrize("factor", [0, 0.7, 1.6])
@pytest.mark.parametrize("use", RECIPES.values(), ids=RECIPES)
def test_what_is_sent_before_a_users_reminder_is_what_is_sent_before_a_system_message(use: Use, factor: float) -> None:
    def sent(reminder: str) -> list[Sequence[Message]]:
        return asyncio.run(Agent(Model(factor), use, KINDS[reminder]).ask(60))

    assert sent("a user's") == sent("in the system")


def test_the_size_that_the_provider_reports_keeps_a_guard_below_its_limit() -> None:
    agent = Agent(Model(1.6), guard, KINDS["a user's"])
    asyncio.run(agent.ask(60))
    assert max(map(size_of, agent.model.requests)) * 1.6 < 1_050


@pytest.mark.parametrize("use", RECIPES.values(), ids=RECIPES)
def test_no_past_request_is_planned_again(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    real = Reconstruction._made_context  # pyright: ignore[reportPrivateUsage]

    def made(self: Reconstruction, length: int, course: object) -> object:
        looked.append(length)
        return real(self, length, course)  # type: ignore[arg-type]

    monkeypatch.setattr(Reconstruction, "_made_context", made)

    def contexts(reminder: str) -> int:
        looked.clear()
        asyncio.run(Agent(Model(), use, KINDS[reminder]).ask(60))
        return len(looked)

    assert contexts("a user's") <= contexts("none")


def test_the_latest_user_message_is_not_searched_for_in_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Message] = []

    def is_users(message: Message) -> bool:
        looked.append(message)
        return units.is_users(message)

    monkeypatch.setattr(history, "is_users", is_users)

    async def run() -> list[int]:
        agent, found = Agent(Model(), lambda stack: guard(stack, 10**7), KINDS["a user's"]), list[int]()
        for _ in range(3):
            await agent.ask(30)
            looked.clear()
            await agent.ask()
            found.append(len(looked))
        return found

    assert asyncio.run(run()) == [3, 3, 3]


@pytest.mark.parametrize("trigger", [1_000, 10**7])
def test_a_store_is_asked_for_what_is_new(trigger: int) -> None:
    async def run() -> list[int]:
        store = DictStore()
        agent = Agent(Model(), lambda stack: clearer(stack, trigger), KINDS["a user's"], store=store)
        found: list[int] = []
        for _ in range(60):
            store.calls.clear()
            await agent.ask()
            found.append(sum(len(about) for what, _, about in store.calls if what == "find"))
        return found

    assert max(asyncio.run(run())) <= 10


def test_a_conversation_goes_on_from_the_second_answer_with_its_edits() -> None:
    async def sent(reminder: str) -> list[int]:
        agent = Agent(Model(window=600), lambda stack: guard(stack, 100_000), KINDS[reminder])
        await agent.ask(6, words=60)
        return [len(await agent.ask_twice()), *(len(each) for each in await agent.ask(6, words=60))]

    def run(reminder: str) -> list[int]:
        return asyncio.run(sent(reminder))

    assert run("a user's") == run("in the system") == run("none")


@pytest.mark.parametrize("slides", [True, False])
def test_a_history_that_keeps_coming_with_another_beginning_is_told_once(
    slides: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(reminder: Made) -> None:
        agent = Agent(Model(), clearer, reminder)
        first, *rest = [Message.user("Find it.")]
        for number in range(40):
            call = ToolCall(f"c{number}", "look", f'{{"at": {number}}}')
            rest += [Message.assistant(f"I look {number}.", call), Message.tool(call.id, "grey " * 60, name="look")]
        for end in range(20, 80, 2):
            first = first if slides else Message.user(f"Find it: {end}.")
            agent.messages = [first, *(rest[end - 20 : end] if slides else rest[:end])]
            agent.model.answers[:] = [rest[end]]
            said = reminder(end)
            await agent.client.get_response(agent.messages if said is None else [*agent.messages, said])

    def warned(reminder: str) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="chatstack"):
            asyncio.run(run(KINDS[reminder]))
        return [record.getMessage().partition(":")[0] for record in caplog.records]

    assert warned("a user's") == warned("none")
    assert warned("a user's").count("prefix_unstable") == 1


def test_of_two_conversations_that_begin_alike_each_goes_on_from_its_own(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        model = Model()
        client = ChatStack(model).use(ContextWindowGuard, max_context_tokens=1_000).build()
        shots = [Message.user("word " * 900), Message.assistant("Ready.")]
        talks = {name: [*shots, Message.user(f"The question of {name}.")] for name in ("one", "another")}
        for number in range(4):
            for name, messages in talks.items():
                answer = Message.assistant(f"{name} has {number}.")
                model.answers[:] = [answer]
                await client.get_response([*messages, Message.user(f"It is {number} o'clock.")])
                messages += [answer, Message.user("More.")]

    with caplog.at_level(logging.WARNING, logger="chatstack"):
        asyncio.run(run())
    assert len(caplog.records) == 2


def test_of_two_conversations_with_equal_answers_neither_gets_the_others_edits() -> None:
    """Only the reminder of one is too long, so that its request is pruned."""

    async def run(reminders: Sequence[str]) -> int:
        model = Model()
        client = guard(ChatStack(model, memory=ContextMemory())).build()
        messages = [Message.user("Find it.")]
        for number in range(4):
            call = ToolCall(f"c{number}", "look", f'{{"at": {number}}}')
            messages += [Message.assistant("I look.", call), Message.tool(call.id, "grey " * 100, name="look")]
        call = ToolCall("c4", "look", "{}")
        for reminder in reminders:
            model.answers[:] = [Message.assistant("I look.", call)]
            await client.get_response([*messages, Message.user(reminder)], conversation_id=reminder[:9])
        messages += [Message.assistant("I look.", call), Message.tool("c4", "grey", name="look")]
        model.answers[:] = [Message.assistant("Here it is.")]
        await client.get_response([*messages, Message.user(reminders[-1])], conversation_id=reminders[-1][:9])
        return len(model.requests[-1].messages)

    assert asyncio.run(run(["word " * 800, "Go on."])) == asyncio.run(run(["Go on."])) == 12


def test_an_equal_answer_to_another_question_is_none_to_the_one_with_the_reminder() -> None:
    shots = [
        Message.user("Find it."),
        Message.assistant("look " * 60),
        Message.user("And?"),
        Message.assistant("Here."),
    ]

    async def sent(*, after_another: bool) -> int:
        model = Model()
        client = ChatStack(model, memory=ContextMemory()).use(Truncate(max_tokens=200), counter=COUNTER).build()
        model.answers = [Message.assistant("OK"), Message.assistant("OK")]
        if after_another:
            await client.get_response([*shots, Message.user("long " * 100)])
        await client.get_response([*shots, Message.user("short"), Message.assistant("OK"), Message.user("next")])
        return len(model.requests[-1].messages)

    assert asyncio.run(sent(after_another=True)) == asyncio.run(sent(after_another=False)) == 7


def test_conversations_that_share_examples_are_none_with_another_beginning(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        model, memory = Model(), ContextMemory()
        client = ChatStack(model, memory=memory).use(ContextWindowGuard, max_context_tokens=1_000).build()
        for name in "abcde":
            shots = [Message.assistant("Ready."), *[Message.user("An example."), Message.assistant("Its answer.")] * 3]
            messages = [Message.user(f"You help {name}."), *shots, Message.user(f"{name} " + "long " * 900)]
            model.answers = [Message.assistant("OK")]
            await client.get_response(messages)

    with caplog.at_level(logging.WARNING, logger="chatstack"):
        asyncio.run(run())
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["context_window_exceeded"] * 5
