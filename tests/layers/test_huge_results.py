"""A tool gives more than fits: the model sees its beginning and end, answers, and does not call the tool again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from chatstack import (
    ChatRequest,
    ChatStack,
    ChatStream,
    ClearThenDrop,
    ContextMemory,
    ContextOverflowError,
    ContextWindow,
    ContextWindowGuard,
    FunctionInvoker,
    Message,
    OldestFirst,
    Summarizer,
    ToolCall,
    ToolResultClearer,
    Truncate,
    tool,
)
from chatstack.stores.sqlite import SQLiteStore
from chatstack.testing import ScriptedClient, TelemetryCapture
from tests.context.strictness import leftovers, size
from tests.histories import decoded_again

LOG = "line of the file\n" * 20_000
HUGE = [Message.system("brief"), Message.user("What is in big.log?")]


@tool
def read_file(path: str) -> str:
    """Read a file."""
    return LOG


@tool
def ls(path: str) -> str:
    """List files."""
    return "a.txt b.txt " * 20


class Reader(ScriptedClient):
    """A model that lists three times, reads ``at_once`` files, once, then lists twice more and answers: it calls a tool
    again whose result it does not see. What is larger than ``window`` it refuses."""

    def __init__(self, at_once: int = 1, window: int | None = None) -> None:
        super().__init__(["nothing yet"])
        self.at_once = at_once
        self.window = window
        self.refused = 0

    async def send(self, request: ChatRequest, /) -> ChatStream:
        tokens = size(request.messages)
        if self.window is not None and tokens > self.window:
            self.refused += 1
            raise ContextOverflowError(tokens, self.window, message="too long")
        self.answers = [self.next(request)]
        return await super().send(request)

    def next(self, request: ChatRequest) -> Any:
        names = [result.name for message in request.messages for result in message.results]
        number = len(self.requests)
        if "read_file" not in names and number < 20:
            calls = [ToolCall(f"l{number}", "ls", json.dumps({"path": str(number)}))]
            if number >= 3:
                calls = [
                    ToolCall(f"r{number}-{each}", "read_file", f'{{"path": "{each}"}}') for each in range(self.at_once)
                ]
            return Message.assistant(*calls)
        if number < 6:
            return Message.assistant(ToolCall(f"l{number}", "ls", json.dumps({"path": str(number)})))
        return "It is a log."


def summaries() -> ScriptedClient:
    return ScriptedClient(["what was listed"])


def guard(stack: ChatStack) -> ChatStack:
    return stack.use(ContextWindowGuard, max_context_tokens=32_000, prune_on_overflow=True)


def the_default(stack: ChatStack) -> ChatStack:
    clearing = stack.use(ToolResultClearer, trigger={"tokens": 20_000}, keep={"messages": 3})
    return guard(clearing.use(Summarizer, max_tokens=24_000, summary_client=summaries()))


STACKS: dict[str, Callable[[ChatStack], ChatStack]] = {
    "guard": guard,
    "clearer, summarizer, guard": the_default,
    "ContextWindow": lambda stack: stack.use(ContextWindow, max_tokens=24_000, summary_client=summaries()),
    "OldestFirst": lambda stack: stack.use(OldestFirst(24_000, 16_000)),
    "Truncate": lambda stack: stack.use(Truncate(24_000)),
    "ClearThenDrop": lambda stack: stack.use(ClearThenDrop(24_000)),
    "ClearThenDrop, guard": lambda stack: guard(stack.use(ClearThenDrop(24_000))),
    "a guard that learns": lambda stack: stack.use(
        ContextWindowGuard, max_context_tokens=1_000_000, prune_on_overflow=True
    ),
}


@dataclass
class Ran:
    """A turn in a stack, and what came of it."""

    model: Reader
    capture: TelemetryCapture
    calls: list[str]
    text: str


def ran(name: str, *, stream: bool, at_once: int = 1, capture: TelemetryCapture | None = None) -> Ran:
    window = 32_000 if name == "a guard that learns" else None
    model, capture = Reader(at_once, window), capture or TelemetryCapture()
    stack = ChatStack(model).use(FunctionInvoker, tools=[read_file, ls], max_tool_calls_per_turn=30)
    client = STACKS[name](stack).build(capture.resolve)

    async def run() -> Ran:
        if stream:
            response = await client.get_streaming_response(HUGE, conversation_id="c").response()
        else:
            response = await client.get_response(HUGE, conversation_id="c")
        calls = [call.name for message in response.messages for call in message.calls]
        return Ran(model, capture, calls, response.text)

    return asyncio.run(run())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", STACKS)
def test_a_tool_whose_result_does_not_fit_is_run_once_and_an_answer_comes(name: str, stream: bool) -> None:
    done = ran(name, stream=stream)
    assert done.text == "It is a log."
    assert done.calls.count("read_file") == 1
    assert done.capture.warnings.count("tool_result_shortened") == 1
    assert not {"context_irreducible", "plan_rejected"} & set(done.capture.warnings)
    assert max(size(request.messages) for request in done.model.requests) <= 32_000
    assert all(leftovers(request.messages) == {} for request in done.model.requests)
    seen = done.model.requests[4].messages
    assert [result.name for message in seen for result in message.results] == ["ls", "ls", "ls", "read_file"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", STACKS)
def test_several_at_once_get_a_fair_share_each(name: str) -> None:
    done = ran(name, stream=False, at_once=3)
    assert (done.text, done.calls.count("read_file")) == ("It is a log.", 3)
    files = [
        message
        for message in done.model.requests[4].messages
        if message.results[:1] and message.results[0].name == "read_file"
    ]
    sizes = [size([message]) for message in files]
    assert len(sizes) == 3
    assert min(sizes) > 1_000
    assert max(sizes) - min(sizes) < 20


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", STACKS)
def test_once_shortened_it_is_sent_the_same_bytes_again(name: str) -> None:
    done = ran(name, stream=False)
    sent = [
        message
        for request in done.model.requests
        for message in request.messages
        if any(result.name == "read_file" for result in message.results)
    ]
    assert len(sent) == len(done.model.requests) - 4 > 1
    assert len(set(sent)) == 1


def test_every_process_makes_the_same_of_it() -> None:
    sent = [ran("guard", stream=False).model.requests[-1].messages for _ in range(2)]
    assert sent[0] == sent[1]


def test_another_process_with_the_same_store_sends_the_same_bytes(tmp_path: Any) -> None:
    history = [*HUGE, Message.assistant(ToolCall("r", "read_file")), Message.tool("r", LOG, name="read_file")]
    more = [*history, Message.assistant("I see."), Message.user("And?")]
    sent: list[Sequence[Message]] = []

    async def ask(messages: Sequence[Message]) -> None:
        model = ScriptedClient(["fine"])
        store = SQLiteStore(tmp_path / "decisions.db")
        memory = ContextMemory(store=store, scope="tenant", store_timeout_seconds=5)
        await guard(ChatStack(model, memory=memory)).build().get_response(decoded_again(messages))
        await memory.aclose()
        sent.append(model.requests[-1].messages)

    for messages in (history, more):
        asyncio.run(ask(messages))
    assert tuple(sent[1][:4]) == tuple(sent[0])
    assert "bytes left out]" in sent[1][3].results[0].text


def test_a_guard_that_does_not_prune_does_not_shorten() -> None:
    model, capture = ScriptedClient(["fine"]), TelemetryCapture()
    client = ChatStack(model).use(ContextWindowGuard, max_context_tokens=8_000).build(capture.resolve)
    history = [*HUGE, Message.assistant(ToolCall("r", "read_file")), Message.tool("r", LOG)]
    asyncio.run(client.get_response(history))
    assert list(model.requests[-1].messages) == history
    assert capture.warnings == ("context_window_exceeded",)


def test_the_same_question_again_is_neither_shortened_nor_warned_of_again() -> None:
    model, capture = ScriptedClient(["fine"]), TelemetryCapture()
    client = guard(ChatStack(model)).build(capture.resolve)
    history = [*HUGE, Message.assistant(ToolCall("r", "read_file")), Message.tool("r", LOG)]
    for _ in range(3):
        asyncio.run(client.get_response(history))
    assert len({request.messages for request in model.requests}) == 1
    assert capture.warnings == ("context_window_exceeded", "tool_result_shortened")


def test_the_callers_messages_keep_the_whole_result() -> None:
    model = Reader()
    stack = guard(ChatStack(model).use(FunctionInvoker, tools=[read_file, ls], max_tool_calls_per_turn=30))
    response = asyncio.run(stack.build().get_response(HUGE))
    results = [result for message in response.messages for result in message.results]
    assert LOG in [result.text for result in results]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", STACKS)
def test_each_new_result_that_is_shortened_is_warned_of_also_when_the_one_before_it_was_cleared(name: str) -> None:
    """Counting how many are shortened missed the second one: a clearer further out had cleared the first."""
    capture = TelemetryCapture()
    window = 32_000 if name == "a guard that learns" else None
    client = STACKS[name](ChatStack(Reader(window=window))).build(capture.resolve)
    history: list[Message] = [Message.system("brief")]

    async def warned(number: int) -> int:
        before = capture.warnings.count("tool_result_shortened")
        call = ToolCall(f"r{number}", "read_file", f'{{"path": "{number}"}}')
        result = Message.tool(call.id, f"{number}: {LOG}", name="read_file")
        history.extend([Message.user(f"What is in {number}.log?"), Message.assistant(call), result])
        await client.get_response(history, conversation_id="c")
        history.append(Message.assistant("It is a log."))
        for each in range(4):
            listed = ToolCall(f"l{number}-{each}", "ls", "{}")
            history.extend([Message.assistant(listed), Message.tool(listed.id, "a.txt", name="ls")])
        await client.get_response(history, conversation_id="c")
        history.append(Message.assistant("Nothing else."))
        return capture.warnings.count("tool_result_shortened") - before

    async def run() -> list[int]:
        return [await warned(number) for number in range(4)]

    assert asyncio.run(run()) == [1, 1, 1, 1]


@pytest.mark.parametrize("conversation_id", ["a", None])
def test_a_branch_with_a_huge_result_in_its_summary_stays_below_the_limit(conversation_id: str | None) -> None:
    """The edits in force are weighed as they are on this call, with the result shortened or whole."""
    model, writer = ScriptedClient(["fine"]), ScriptedClient(["In short."])
    stack = ChatStack(model).use(
        Summarizer, max_tokens=300, keep_recent_turns=1, max_summary_tokens=40, summary_client=writer
    )
    history = [Message.user("Look into it.")]
    for number, words in enumerate([400, 10, 100, 400, 400, 100]):
        call = ToolCall(f"c{number}", "look", "{}")
        history += [Message.assistant(call), Message.tool(call.id, "grey " * words, name="look")]
    branch = [*history[:9], Message.assistant("fine"), Message.user("word " * 100)]

    async def talk() -> None:
        client = stack.build()
        for end in range(3, len(history) + 1, 2):
            await client.get_response(history[:end], conversation_id=conversation_id)
        await client.get_response(branch, conversation_id=conversation_id)

    asyncio.run(talk())
    assert [size(request.messages) for request in model.requests if size(request.messages) > 300] == []
