"""Two processes' worth of stacks and one server: what the first has decided, the second sends, and pays nothing for."""

from __future__ import annotations

import asyncio

import msgspec
from chatstack import ChatRequest, ChatStack, ContextMemory, Message, Summarizer, ToolCall, ToolResultClearer
from chatstack.testing import ScriptedClient, TelemetryCapture
from postgres_server import PostgresServer

from chatstack_postgres import PostgresStore

TURNS = 14
EDITS = ["compact_context clear_tool_results", "compact_context summarize"]


def conversation() -> list[Message]:
    """In objects of its own each time, as in another process."""
    history = [Message.user("Look around until I say stop.")]
    for number in range(TURNS):
        call = ToolCall(f"c{number}", "look", f'{{"place": {number}}}')
        history += [
            Message.user(f"Look at place {number}."),
            Message.assistant(call),
            Message.tool(call.id, f"seen {number}: " + "grey and blue " * 60, name="look"),
            Message.assistant(f"I was at place {number}, " + "which was nice " * 8),
        ]
    return [*history, Message.user("And now?")]


class Process:
    """A stack with a memory, a store and models of its own; what it was sent, and what it made of it."""

    def __init__(self, conninfo: str, table: str, *, scope: str = "tenant") -> None:
        self.model, self.writer = ScriptedClient(["fine"]), ScriptedClient(["They looked at places, all of them grey."])
        self.capture = TelemetryCapture()
        store = PostgresStore(conninfo, table=table)
        self._memory = ContextMemory(store=store, scope=scope, store_timeout_seconds=20)
        stack = ChatStack(self.model, memory=self._memory)
        stack = stack.use(ToolResultClearer, trigger={"tokens": 1_500}, keep={"messages": 2})
        self._stack = stack.use(Summarizer, max_tokens=1_200, keep_recent_turns=5, summary_client=self.writer)

    def answers(self, *lengths: int) -> list[ChatRequest]:
        """What is sent for the first so many messages of the conversation, one call after another."""

        async def calls() -> None:
            client = self._stack.build(self.capture.resolve)
            for length in lengths:
                await client.get_response(conversation()[:length])
            await self._memory.aclose()

        asyncio.run(calls())
        return self.model.requests


def sent(requests: list[ChatRequest]) -> list[bytes]:
    return [msgspec.json.encode(request.messages) for request in requests]


def test_the_second_process_sends_the_same_and_has_no_summary_written(server: PostgresServer, table: str) -> None:
    length = len(conversation())
    first, second = Process(server.conninfo, table), Process(server.conninfo, table)
    here = sent(first.answers(length))
    assert len(first.writer.requests) == 1
    assert [span.name for span in first.capture.spans[:2]] == EDITS
    assert b"cleared" in here[0]
    assert b"all of them grey" in here[0]
    assert sent(second.answers(length)) == here
    assert second.writer.requests == []
    assert not {span.name for span in second.capture.spans} & set(EDITS)
    assert first.capture.warnings == second.capture.warnings == ()


def test_they_take_turns_as_if_they_were_one(server: PostgresServer, table: str) -> None:
    lengths = [1 + 4 * turn + 1 for turn in range(TURNS)]
    alone = Process(server.conninfo, f"{table}_alone")
    expected = sent(alone.answers(*lengths))
    assert len(alone.writer.requests) > 1
    taken, summaries = [], 0
    for length in lengths:
        process = Process(server.conninfo, f"{table}_shared")
        taken += sent(process.answers(length))
        summaries += len(process.writer.requests)
    assert taken == expected
    assert summaries == len(alone.writer.requests)


def test_another_tenant_finds_none_of_it(server: PostgresServer, table: str) -> None:
    length = len(conversation())
    Process(server.conninfo, table).answers(length)
    other = Process(server.conninfo, table, scope="another")
    other.answers(length)
    assert len(other.writer.requests) == 1
