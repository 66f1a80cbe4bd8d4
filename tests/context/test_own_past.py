"""Whose past a choice binds, by hand: few-shot examples and attachments."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from msgspec.structs import force_setattr

from chatstack import (
    BuiltClient,
    ChatOptions,
    ChatRequest,
    ChatStack,
    ClearThenDrop,
    ContextMemory,
    ContextWindow,
    ContextWindowGuard,
    Message,
    Summarizer,
    ToolCall,
    ToolResultClearer,
    Usage,
)
from chatstack.context.histories.conversations import LastAnswer
from chatstack.testing import ScriptedClient, TelemetryCapture

EXAMPLES = [
    Message.user("Label tickets as in these examples."),
    Message.assistant("Ready."),
    *(
        message
        for number in range(6)
        for message in (
            Message.user(f"Ticket: example {number} " + "of what people write to us " * 6),
            Message.assistant(f"label: LABEL_{number}"),
        )
    ),
]
LONG = Message.user("Ticket: " + "a long mail thread that was pasted " * 80)


def guarded(stack: ChatStack, limit: int = 1_000) -> ChatStack:
    return stack.use(ContextWindowGuard, max_context_tokens=limit, prune_on_overflow=True)


STACKS: dict[str, Callable[[ChatStack], ChatStack]] = {
    "guard": guarded,
    "condensing": lambda stack: guarded(stack.use(ClearThenDrop, max_tokens=1_000)),
    "summarizer": lambda stack: guarded(
        stack.use(Summarizer, max_tokens=900, summary_client=ScriptedClient(["in short"]), max_summary_tokens=60)
    ),
}


@pytest.mark.parametrize("recipe", STACKS)
@pytest.mark.parametrize("system", [None, "All have the same rules."])
@pytest.mark.parametrize("has_id", [True, False])
def test_one_users_long_first_message_takes_the_examples_from_nobody_else(
    recipe: str, system: str | None, has_id: bool
) -> None:
    model = ScriptedClient(["label: PARCEL"])
    client = STACKS[recipe](ChatStack(model)).build()

    async def ask(name: str, messages: list[Message]) -> list[Message]:
        rules = Message.system(system or f"{name}'s rules.")
        response = await client.get_response([rules, *messages], conversation_id=name if has_id else None)
        return [*messages, *response.messages]

    async def all_of_them() -> None:
        before = await ask("b", [*EXAMPLES, Message.user("Ticket: where is my parcel?")])
        await ask("a", [*EXAMPLES, LONG])
        assert len(model.requests[-1].messages) < 2 + len(EXAMPLES)
        await ask("c", [*EXAMPLES, Message.user("Ticket: the app crashes")])
        assert len(model.requests[-1].messages) == 2 + len(EXAMPLES)
        await ask("b", [*before, Message.user("Ticket: it has come, thanks")])
        assert len(model.requests[-1].messages) == 4 + len(EXAMPLES)

    asyncio.run(all_of_them())


@pytest.mark.parametrize("first", ["the one that fits", "the one that does not"])
def test_an_attachment_of_one_is_no_reminder_in_the_past_of_another(first: str) -> None:
    """Both have the same system message, the same question and the same answer; one said something more with it."""
    model = ScriptedClient(["label: PARCEL"])
    client = guarded(ChatStack(model)).build()
    question = [Message.system("Rules."), *EXAMPLES, Message.user("Ticket: where is my parcel?")]

    async def ask(name: str, messages: list[Message]) -> list[Message]:
        response = await client.get_response(messages, conversation_id=name)
        return [*messages, *response.messages]

    async def both() -> None:
        if first == "the one that fits":
            fits = await ask("b", question)
            await ask("a", [*question, LONG])
        else:
            await ask("a", [*question, LONG])
            fits = await ask("b", question)
        assert len(model.requests[0].messages) != len(model.requests[1].messages)
        given = [*fits, Message.user("Ticket: it has come, thanks")]
        await ask("b", given)
        assert list(model.requests[-1].messages) == given

    asyncio.run(both())


def test_a_look_in_vain_before_an_edit_is_no_reason_to_wait_after_it() -> None:
    """Here one look finds too little, a later one finds enough; the memory is lost behind that, and the next is due."""
    sizes = [200, 200, 150, 200, 40, 40, 150]
    history = [Message.user("task")]
    for number, size in enumerate(sizes):
        call = ToolCall(f"c{number}", "look", f'{{"n": {number}}}')
        history += [Message.assistant("", call), Message.tool(call.id, f"{number} ".ljust(size * 4, "x"), name="look")]
    history.append(Message.assistant("done"))

    def fresh() -> tuple[ScriptedClient, BuiltClient]:
        model = ScriptedClient()
        stack = ChatStack(model).use(ToolResultClearer, trigger={"tokens": 400}, keep={"messages": 1})
        return model, stack.build()

    async def sent(pair: tuple[ScriptedClient, BuiltClient], end: int) -> tuple[Message, ...]:
        model, client = pair
        model.answers = [history[end]]
        await client.get_response(history[:end])
        return model.requests[-1].messages

    async def check() -> None:
        kept, lost = fresh(), fresh()
        for number in range(len(sizes) + 1):
            lost = fresh() if number == 4 else lost
            assert await sent(kept, 1 + 2 * number) == await sent(lost, 1 + 2 * number), number

    asyncio.run(check())


@pytest.mark.parametrize("seed", [2, 5])
@pytest.mark.parametrize("alternates", ["worker", "model"])
def test_who_has_seen_some_of_the_calls_waits_where_the_others_waited(alternates: str, seed: int) -> None:
    """Few results may be cleared, so that most looks find too little, and the next is due much later."""
    rolls, models = random.Random(seed), [Silent(["x"]) for _ in range(3)]
    clients = [
        ChatStack(model).use(ToolResultClearer, trigger={"tokens": 900}, keep={"messages": 1}).build()
        for model in models
    ]
    history = [Message.user("task " + "word " * 600)]
    sent = list[tuple[Message, ...]](), list[tuple[Message, ...]]()

    async def talk() -> None:
        for number in range(40):
            call = ToolCall(f"c{number}", "read", "{}")
            others = 1 + number % 2 if alternates == "worker" else 1
            model = f"model-{number % 2}" if alternates == "model" else None
            for at, of in ((0, 0), (1, others)):
                models[of].answers = [Message.assistant(call)]
                options = ChatOptions(model=model if at else None)
                answer = await clients[of].get_response(history, conversation_id="c", options=options)
                sent[at].append(models[of].requests[-1].messages)
            history.extend(answer.messages)
            history.append(Message.tool(call.id, "word " * rolls.choice([5, 10, 20, 30]), name="read"))

    asyncio.run(talk())
    assert sent[0] == sent[1]


# Reports


class Silent(ScriptedClient):
    """A provider that reports no usage."""

    def _usage(self, request: ChatRequest, answer: Message) -> Usage:
        return Usage()


class Heavy(ScriptedClient):
    """A provider whose tokens are twice as many as estimated; answers in the order of its script."""

    def _usage(self, request: ChatRequest, answer: Message) -> Usage:
        usage = super()._usage(request, answer)
        return Usage(2 * usage.input_tokens, usage.output_tokens)


SHARED = Message.user("The report: " + "long words of it " * 700)


@pytest.mark.parametrize("ids", [("a", "b"), (None, None)])
def test_a_report_is_kept_where_another_conversation_goes_on_from_the_same_beginning(
    ids: tuple[str | None, ...],
) -> None:
    model = Heavy(["Ready, a.", "Ready, b.", "fine"])
    client = guarded(ChatStack(model), 7_000).build()

    async def both() -> None:
        histories: list[list[Message]] = []
        for each in ids:
            response = await client.get_response([SHARED], conversation_id=each)
            histories.append([SHARED, *response.messages, Message.user("And? " * 1_000)])
        for history, each in zip(histories, ids, strict=True):
            await client.get_response(history, conversation_id=each)

    asyncio.run(both())
    first, second = (request.messages[2:] for request in model.requests[2:])
    assert first == second, "both are as large as their own reports say"


def test_reports_under_earlier_edits_are_kept_for_a_conversation_that_parts() -> None:
    """A system prompt near the limit: edits come and go, and each has reports of its own."""
    begin = [[Message.system("You are a bot. " + "abc " * 2_500), Message.user("go")], [Message.user("abc " * 400)]]
    first, second = (
        begin + [[Message.user(f"{sizes} " + "abc " * size)] for size in sizes]
        for sizes in ([300, 700, 300], [20, 700, 700])
    )

    async def last_of(*talks: list[list[Message]]) -> list[tuple[Message, ...]]:
        model = Heavy(["ok"])
        writer = ScriptedClient(["Summary."])
        client = ChatStack(model).use(ContextWindow, max_tokens=5_300, summary_client=writer).build()
        histories, sent = [list[Message]() for _ in talks], list[tuple[Message, ...]]()
        for calls in zip(*talks, strict=True):
            for history, added in zip(histories, calls, strict=True):
                history += added
                history += (await client.get_response(history)).messages
            sent.append(model.requests[-1].messages)
        return sent

    assert asyncio.run(last_of(first, second)) == asyncio.run(last_of(second))


def test_a_report_of_the_same_request_edits_no_other_conversation() -> None:
    model = Heavy(["fine"])
    client = guarded(ChatStack(model), 4_000).build()
    messages = [*EXAMPLES, SHARED]
    for _ in range(2):
        asyncio.run(client.get_response(messages))
    assert [request.messages for request in model.requests] == [tuple(messages)] * 2


def test_asked_again_an_edited_request_goes_out_the_same_and_is_told_once() -> None:
    model, capture = Heavy(["fine"]), TelemetryCapture()
    client = guarded(ChatStack(model), 2_500).build(capture.resolve)
    messages = [*EXAMPLES]
    for number in range(4):
        messages += [Message.user(f"{number} " + "more words " * 150), Message.assistant("fine")]
        asyncio.run(client.get_response(messages[:-1]))
    edits = len(capture.spans_named("compact_context truncate"))
    sent = model.requests[-1].messages
    assert len(sent) < len(messages) - 1
    asyncio.run(client.get_response(messages[:-1]))
    assert model.requests[-1].messages == sent
    assert len(capture.spans_named("compact_context truncate")) == edits


class Hashed(str):
    """A text that counts how often it is read to be hashed."""

    times = 0

    def __hash__(self) -> int:
        Hashed.times += 1
        return str.__hash__(self)

    __eq__ = str.__eq__


def test_a_call_hashes_a_sample_of_its_messages() -> None:
    """All text of a long history takes a third of the time of its first call."""
    history = [Message.user(f"{number}") for number in range(1_000)]
    for message in history:
        force_setattr(message.parts[0], "text", Hashed(message.text))
    client = guarded(ChatStack(Heavy(["fine"])), 1_000_000).build()
    Hashed.times = 0
    asyncio.run(client.get_response(history))
    assert 0 < Hashed.times < 120


def test_a_conversation_keeps_few_answers_and_one_is_near_wherever_it_goes_back_to() -> None:
    memory, history, turns = ContextMemory(), [Message.user("turn 0")], 300
    for turn in range(1, turns):
        seen, said = memory.recognise(tuple(history)), Message.assistant(f"said {turn}")
        memory.past.entry(seen, said).answered = LastAnswer(0.0, turn, missed_cache=False, record=0, length=seen.length)
        history += [said, Message.user(f"turn {turn}")]
    assert len(memory.past) <= 10
    for back in range(1, 60):
        again = memory.recognise((*history[: -2 * back - 1], Message.user("Something else.")))
        again.conversation.answered = None
        memory.past.recall(again)
        assert again.conversation.answered is not None
        assert turns - again.conversation.answered.input_tokens <= 3 * back + 3, back


def test_who_goes_back_several_turns_is_sent_what_fits_by_earlier_reports() -> None:
    model = Heavy(["fine"])
    client = guarded(ChatStack(model), 30_000).build()

    async def talk() -> int:
        history: list[Message] = []
        for turn in range(12):
            history.append(Message.user(f"{turn} " + "word " * 900))
            history += (await client.get_response(history)).messages
        back = [*history[:-10], Message.user("another " * 6_500)]
        return (await client.get_response(back)).usage.input_tokens

    assert asyncio.run(talk()) <= 30_000


def test_the_past_of_an_answer_is_that_of_all_messages_before_it() -> None:
    memory = ContextMemory()
    for first in ("a", "b"):
        asked = (Message.user(first), Message.assistant("well"), Message.user("c"))
        entry = memory.past.entry(memory.recognise(asked), Message.assistant("d"))
        entry.answered = LastAnswer(0.0, ord(first), missed_cache=False, record=0, length=3)
    for first, known in (("a", 97), ("b", 98), ("c", None)):
        asked = (Message.user(first), Message.assistant("well"), Message.user("c"))
        again = ContextMemory().recognise((*asked, Message.assistant("d")))
        memory.past.recall(again)
        assert (again.conversation.answered and again.conversation.answered.input_tokens) == known
