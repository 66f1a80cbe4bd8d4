"""The turn of another framework's agent: one root span, onto which the warnings of its model calls roll up."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager

from chatstack import semconv
from chatstack.client.collecting import outside_collector
from chatstack.errors import InputError
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.events import LISTENER, is_listener
from chatstack.telemetry.spans import end_span, start_span
from chatstack.telemetry.turns import Listener, Turn, attached, current_turn, inside, of_conversation
from chatstack.values.requests import ChatRequest


@contextmanager
def agent_turn(
    name: str = "agent",
    *,
    conversation_id: str | None = None,
    on_progress: Listener | None = None,
    telemetry: Telemetry | None = None,
) -> Generator[None]:
    """Open the root span ``invoke_agent {name}`` around the run of another framework's agent.

    For agents whose framework opens no span of its own: without it each of their model calls is a trace by itself. All
    spans of stacks that are asked within the block stand under the root; their warnings and edits roll up to it.
    ``on_progress`` is called with each ``ProgressEvent`` at once, and must neither block nor raise. Around ``await`` it
    is a plain ``with``::

        with agent_turn("planner", conversation_id="c-42"):
            state = await agent.ainvoke(...)

    Raises ``InputError`` for a name or an id that is no text, for an ``on_progress`` that is no plain function, and for
    a ``telemetry`` that is none.
    """
    for what, given in (("name", name), ("conversation_id", "" if conversation_id is None else conversation_id)):
        if not isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"agent_turn: {what}: expected text, got {type(given).__name__}")
    if on_progress is not None and not is_listener(on_progress):
        raise InputError(f"agent_turn: on_progress={type(on_progress).__name__} must be {LISTENER}")
    telemetry = Telemetry() if telemetry is None else telemetry
    if not isinstance(telemetry, Telemetry):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"agent_turn: telemetry: expected a Telemetry, got {type(telemetry).__name__}")
    about = {semconv.OPERATION_NAME: "invoke_agent", semconv.AGENT_NAME: name}
    span = start_span(telemetry.tracer, f"invoke_agent {name}", of_conversation(conversation_id, about))
    turn = Turn(span, conversation_id, on_progress)
    started, error = time.perf_counter(), None
    try:
        turn.tell("turn_started", name)
        with attached(inside(turn)):
            yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        kind = end_span(span, error)
        seconds = time.perf_counter() - started
        outside_collector(telemetry.instruments.agent_duration.record, seconds, {semconv.AGENT_NAME: name}, error=kind)
        numbers = {"warnings": turn.warning_count, "edits": turn.edit_count, "seconds": seconds}
        turn.tell("turn_ended", name, error=kind, numbers=numbers)


def count_round(counter: object, request: ChatRequest) -> None:
    """Record a model call of an agent as the next round of the turn: for what stands between an agent and its model.

    The messages are as the agent asked them, so that what layers leave out shows. ``counter`` is whoever calls this:
    the first one that counts within a turn counts all of it.
    """
    turn = current_turn()
    if turn is not None:
        answers = 0
        for message in reversed(request.messages):
            if message.role == "user" and not message.results:
                break
            answers += message.role == "assistant"
        turn.count(answers, counter, request.messages)
