"""Cards of models: asked once each, a failure again after five minutes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from chatstack import ServerError
from chatstack.providers.cards import Cards

CARD = {"id": "m"}


class Server:
    """A models endpoint: its answers in order, the last one again and again."""

    def __init__(self, *answers: Mapping[str, object] | BaseException) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.now = 0.0
        self.cards = Cards(self.retrieve, clock=lambda: self.now)

    async def retrieve(self, model: str) -> Mapping[str, object]:
        self.asked.append(model)
        await asyncio.sleep(0)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


def test_a_card_is_asked_for_once_by_however_many() -> None:
    server = Server(CARD)

    async def run() -> None:
        assert await asyncio.gather(*(server.cards.of("m") for _ in range(100))) == [CARD] * 100
        server.now = 1e9
        assert await server.cards.of("m") == CARD
        assert await server.cards.of("other") == CARD

    asyncio.run(run())
    assert server.asked == ["m", "other"]


def test_a_failure_is_an_empty_card_for_five_minutes() -> None:
    server = Server(ServerError("not now"), CARD)

    async def run() -> None:
        assert await server.cards.of("m") == {}
        server.now = 299.0
        assert await server.cards.of("m") == {}
        server.now = 300.0
        assert await server.cards.of("m") == CARD

    asyncio.run(run())
    assert server.asked == ["m", "m"]


def test_who_is_cancelled_leaves_the_question_to_the_next() -> None:
    server = Server(CARD)

    async def run() -> None:
        first, second = asyncio.create_task(server.cards.of("m")), asyncio.create_task(server.cards.of("m"))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await second == CARD

    asyncio.run(run())
    assert server.asked == ["m", "m"]
