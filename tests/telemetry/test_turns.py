"""The turn that is running travels in the OpenTelemetry context."""

from __future__ import annotations

import asyncio
import time

import pytest
from opentelemetry import context as otel
from opentelemetry.trace import INVALID_SPAN

from chatstack import ProgressEvent
from chatstack.telemetry.turns import Turn, attached, current_turn, with_turn


def test_there_is_no_turn_unless_one_runs() -> None:
    assert current_turn() is None
    turn = Turn(INVALID_SPAN, "c-1")
    with attached(with_turn(turn, otel.get_current())):
        assert current_turn() is turn
    assert current_turn() is None


def test_a_context_is_left_when_the_block_fails() -> None:
    with (
        pytest.raises(ValueError, match="no"),
        attached(with_turn(Turn(INVALID_SPAN, None), otel.get_current())),
    ):
        raise ValueError("no")
    assert current_turn() is None


def test_the_inner_turn_hides_the_outer_one_and_gives_it_back() -> None:
    outer, inner = Turn(INVALID_SPAN, "outer"), Turn(INVALID_SPAN, "inner")
    with attached(with_turn(outer, otel.get_current())):
        with attached(with_turn(inner, otel.get_current())):
            assert current_turn() is inner
        assert current_turn() is outer


def test_turns_of_tasks_do_not_mix() -> None:
    async def run(name: str) -> str | None:
        with attached(with_turn(Turn(INVALID_SPAN, name), otel.get_current())):
            await asyncio.sleep(0.001)
            turn = current_turn()
            return turn.conversation_id if turn is not None else None

    async def all_of_them() -> list[str | None]:
        return await asyncio.gather(*(run(str(number)) for number in range(20)))

    assert asyncio.run(all_of_them()) == [str(number) for number in range(20)]


def test_telling_makes_an_event_of_the_turn() -> None:
    heard: list[ProgressEvent] = []
    turn = Turn(INVALID_SPAN, "c-1", heard.append)
    turn.round = 2
    before = time.time()
    turn.tell("tool_ended", "look", error="ValueError", numbers={"seconds": 1.5})
    (event,) = heard
    assert (event.kind, event.name, event.conversation_id, event.round) == ("tool_ended", "look", "c-1", 2)
    assert (event.error, event.message, dict(event.numbers)) == ("ValueError", "", {"seconds": 1.5})
    assert before <= event.at <= time.time()
