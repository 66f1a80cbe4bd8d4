"""A turn of the tool loop that is recorded, and resumes from its record."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol

from chatstack.client.checks import send_to
from chatstack.client.protocol import ChatClient
from chatstack.client.stream import ChatStream
from chatstack.tools.execution import Outcome, ToolRunner
from chatstack.tools.parameters import ToolContext
from chatstack.values.parts import ToolCall
from chatstack.values.requests import ChatRequest


class TurnRecorder(Protocol):
    """Records what a turn comes to, and gives back what it has recorded, instead of asking or running again."""

    async def answer(self, client: ChatClient, request: ChatRequest) -> ChatStream:
        """Return the next round's answer: recorded, or from the client."""
        ...

    async def outcome(self, runner: ToolRunner, position: int, call: ToolCall, context: ToolContext) -> Outcome:
        """Return the outcome of the call at that position of its round: recorded, or run now."""
        ...

    def begun(self, round: int) -> int:
        """Return how many calls of that round are recorded as let through, counted from its first one. They are not cut
        by a limit that is lower by now."""
        ...


turn_recorder: ContextVar[TurnRecorder | None] = ContextVar("turn_recorder", default=None)
"""The recorder of the turn that runs in this context; the outermost tool loop in it asks and runs through it.

A context variable, because whoever makes a run durable does not build the client. A recorder sets it to None around
what it asks and runs: a tool may ask a client with a tool loop of its own, whose rounds are not rounds of this turn.
"""


async def answered(client: ChatClient, request: ChatRequest) -> ChatStream:
    """Send the request, through the recorder if there is one."""
    recorder = turn_recorder.get()
    return await (send_to(client, request) if recorder is None else recorder.answer(client, request))


async def carried_out(runner: ToolRunner, position: int, call: ToolCall, context: ToolContext) -> Outcome:
    """Run the call, through the recorder if there is one."""
    recorder = turn_recorder.get()
    return await (runner.run(call, context) if recorder is None else recorder.outcome(runner, position, call, context))


def begun_before(round: int) -> int:
    """Return how many calls of that round the recorder has as let through, if there is one; else 0."""
    recorder = turn_recorder.get()
    return 0 if recorder is None else recorder.begun(round)
