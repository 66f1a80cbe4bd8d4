"""The provider contract for APIs of other kinds: streams of JSON lines, and what an API does not have."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from chatstack import ChatRequest, Message
from chatstack.errors import ProviderError
from chatstack.testing.provider_contract import ModelAnswer, ServerReply, line_bytes
from tests.testing.parley import ParleyClient, failing_checks, suite_of


class SpeaksInLines(ParleyClient):
    async def lines(self, response: Any) -> AsyncIterator[str]:
        async for line in super().lines(response):
            yield f"data: {line}"


class TellsTheLimitAlone(ParleyClient):
    def refusal(self, status: int, said: dict[str, Any], headers: dict[str, str]) -> ProviderError:
        return super().refusal(status, {**said, "tokens": None}, headers)


@pytest.mark.slow
def test_a_stream_of_json_lines_keeps_the_contract() -> None:
    class Lines(suite_of(SpeaksInLines)):  # type: ignore[misc]
        def answer(self, said: ModelAnswer, *, stream: bool) -> ServerReply:
            reply: ServerReply = super().answer(said, stream=stream)
            if not stream:
                return reply
            return ServerReply.lines(*(json.loads(piece.removeprefix(b"data: ")) for piece in reply.pieces))

        def failure_in_stream(self) -> bytes:
            return line_bytes({"error": "we are down"})

    assert failing_checks(Lines) == {}


def test_a_size_that_an_api_does_not_tell_is_declared() -> None:
    class LimitAlone(suite_of(TellsTheLimitAlone)):  # type: ignore[misc]
        overflow_sizes = ("limit",)

    LimitAlone().test_an_overflow_tells_the_sizes_that_the_server_told()
    with pytest.raises(AssertionError, match=r"take 'actual' out of overflow_sizes.*9000.*None"):
        suite_of(TellsTheLimitAlone)().test_an_overflow_tells_the_sizes_that_the_server_told()

    class NotAsDeclared(suite_of(ParleyClient)):  # type: ignore[misc]
        overflow_sizes = ()

    with pytest.raises(AssertionError, match=r"put 'actual' into overflow_sizes.*None.*9000"):
        NotAsDeclared().test_an_overflow_tells_the_sizes_that_the_server_told()


def test_replies_are_utf_8_and_escape_nothing_but_half_characters() -> None:
    said, wire = {"says": "é\u2028 \\ \ud83d"}, b'{"says": "\xc3\xa9\xe2\x80\xa8 \\\\ \\ud83d"}'
    assert ServerReply.json(said).pieces == (wire,)
    assert ServerReply.lines(said, 1).pieces == (wire + b"\n", b"1\n")
    assert ServerReply.events(said, "[DONE]").pieces == (b"data: " + wire + b"\n\n", b"data: [DONE]\n\n")
    assert json.loads(wire) == said


@pytest.mark.slow
def test_an_api_without_parallel_calls_and_late_system_messages_says_so() -> None:
    class OneCall(ParleyClient):
        def turn(self, message: Message) -> dict[str, Any]:
            assert len(message.calls) <= 1
            return super().turn(message)

        def body(self, request: ChatRequest) -> dict[str, Any]:
            assert all(each.role != "system" for each in request.messages[1:])
            return super().body(request)

    class Plain(suite_of(OneCall)):  # type: ignore[misc]
        has_parallel_calls = False
        has_late_system = False

    assert failing_checks(Plain) == {}
    told = failing_checks(suite_of(OneCall))
    assert "test_the_history_arrives_in_its_order" in told
