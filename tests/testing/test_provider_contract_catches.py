"""The provider contract is worth something: for each promise, a provider that breaks it, and the check that says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from chatstack import ChatRequest, ChatStream, ChatUpdate, ContextOverflowError, Message
from chatstack.errors import ProviderError, RateLimitError, RequestRefusedError, ServerError
from chatstack.testing import ProviderContract
from tests.testing.broken_requests import BROKEN as REQUESTS
from tests.testing.parley import ParleyClient, checks_of, failing_checks, suite_of


class Unprimed(ParleyClient):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        return ChatStream(self.updates(request))


class Buffering(ParleyClient):
    async def updates(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        for update in [each async for each in super().updates(request)]:
            yield update


class ReadsPieceByPiece(ParleyClient):
    async def lines(self, response: Any) -> AsyncIterator[str]:
        async for piece in response.aiter_bytes():
            for line in piece.decode().split("\n"):
                yield line


class SplitsLinesAtSeparatorsOfText(ParleyClient):
    def lines(self, response: Any) -> AsyncIterator[str]:
        return response.aiter_lines()  # type: ignore[no-any-return]


class DecodesEachPieceByItself(ParleyClient):
    async def lines(self, response: Any) -> AsyncIterator[str]:
        rest = ""
        async for piece in response.aiter_bytes():
            *whole, rest = (rest + piece.decode(errors="replace")).split("\n")
            for line in whole:
                yield line


class KeepsHalfCharacters(ParleyClient):
    def read(self, text: str | bytes) -> dict[str, Any]:
        return dict(json.loads(text))


class LosesUsage(ParleyClient):
    def usage(self, tokens: dict[str, int]) -> None:
        return None


class TakesTheCacheOutOfTheInput(ParleyClient):
    def usage(self, tokens: dict[str, int]) -> Any:
        told: Any = super().usage(tokens)
        return replace(told, input_tokens=tokens["in"] - tokens["cached"])


class FinishesTwice(ParleyClient):
    def last(self, message: Message, end: dict[str, Any]) -> list[ChatUpdate]:
        *calls, done = super().last(message, end)
        return [*calls, done, ChatUpdate(message_done=message)]


class ShowsItsTextAgain(ParleyClient):
    def last(self, message: Message, end: dict[str, Any]) -> list[ChatUpdate]:
        return [ChatUpdate(text=message.text), *super().last(message, end)]


class ForgetsTheFinishReason(ParleyClient):
    def last(self, message: Message, end: dict[str, Any]) -> list[ChatUpdate]:
        return [replace(each, finish_reason=None) for each in super().last(message, end)]


class HidesItsCalls(ParleyClient):
    def last(self, message: Message, end: dict[str, Any]) -> list[ChatUpdate]:
        return super().last(message, end)[-1:]


class ForgetsWhatItDoesNotKnow(ParleyClient):
    def last(self, message: Message, end: dict[str, Any]) -> list[ChatUpdate]:
        return super().last(replace(message, extra_json=""), end)


class MakesIdsOfItsOwn(ParleyClient):
    def call(self, assembly: Any, index: int, use: dict[str, Any]) -> Any:
        return super().call(assembly, index, {**use, "id": f"call_{index}"})


class CutsArguments(ParleyClient):
    def call(self, assembly: Any, index: int, use: dict[str, Any]) -> Any:
        return super().call(assembly, index, {**use, "with": use["with"][:60]})


class HasNoArguments(ParleyClient):
    def call(self, assembly: Any, index: int, use: dict[str, Any]) -> Any:
        return super().call(assembly, index, {**use, "with": "null" if use["with"] == "{}" else use["with"]})


class StreamsOtherWords(ParleyClient):
    async def events(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        async for event in super().events(body):
            yield {**event, "says": event["says"].lower()} if body["stream"] and "says" in event else event


class SwallowsACutStream(ParleyClient):
    async def events(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        try:
            async for event in super().events(body):
                yield event
        except ProviderError:
            raise
        except Exception as error:
            if self.failure(error, began=True) is None or not body["stream"]:
                raise
        yield {"end": "stop", "tokens": {"in": 0, "out": 0, "cached": 0}}


class TakesAFailureForTheEnd(ParleyClient):
    async def events(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        async for event in super().events(body):
            yield {"end": "stop", "tokens": {"in": 1, "out": 1, "cached": 0}} if "error" in event else event


class LetsTheLibraryRaise(ParleyClient):
    def failure(self, error: Exception, began: bool) -> None:
        return None


class QuotesTheServer(ParleyClient):
    def refusal(self, status: int, said: dict[str, Any], headers: dict[str, str]) -> ProviderError:
        return ServerError(f"parley: {said['error']}", provider="parley", status=status)


class KnowsOneError(ParleyClient):
    def refusal(self, status: int, said: dict[str, Any], headers: dict[str, str]) -> ProviderError:
        return RequestRefusedError("parley: refused", provider="parley", status=status)


class ForgetsTheSizes(ParleyClient):
    def refusal(self, status: int, said: dict[str, Any], headers: dict[str, str]) -> ProviderError:
        found = super().refusal(status, said, headers)
        return ContextOverflowError(provider="parley", status=status) if status == 413 else found


class ForgetsWhenToComeBack(ParleyClient):
    def refusal(self, status: int, said: dict[str, Any], headers: dict[str, str]) -> ProviderError:
        found = super().refusal(status, said, headers)
        return RateLimitError("parley: slow down", provider="parley") if status == 429 else found


class SaysNotWho(ParleyClient):
    def refusal(self, status: int, said: dict[str, Any], headers: dict[str, str]) -> ProviderError:
        found = super().refusal(status, said, headers)
        found.provider = ""
        return found


class AsksInTheBackground(ParleyClient):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await asyncio.shield(asyncio.ensure_future(super().send(request)))


class HoldsOnToItsStreams(ParleyClient):
    kept: ClassVar[list[ChatStream]] = []

    async def send(self, request: ChatRequest, /) -> ChatStream:
        stream = await super().send(request)
        self.kept.append(stream)

        async def updates() -> AsyncGenerator[ChatUpdate, None]:
            async for update in stream:
                yield update

        return ChatStream(updates())


class KeepsItsConnections(ParleyClient):
    closed = 0

    async def aclose(self) -> None:
        self.closed += 1
        if self.closed > 3:  # the check has looked by then
            await self.http.aclose()


class ClosesOnce(ParleyClient):
    async def aclose(self) -> None:
        await self.http.aclose()
        del self.http


class ShowsItsKey(ParleyClient):
    def __repr__(self) -> str:
        return f"ShowsItsKey({self.key!r})"


class SendsItsKeyInTheBody(ParleyClient):
    def body(self, request: ChatRequest) -> dict[str, Any]:
        return {**super().body(request), "key": self.key}


class TellsNoWindow(ParleyClient):
    def __init__(self, model: str, **given: Any) -> None:
        super().__init__(model, **given | {"window_tokens": None})


class IsNobody(ParleyClient):
    def __init__(self, model: str, **given: Any) -> None:
        super().__init__(model, **given)
        self.info: Any = None


class MixesCalls(ParleyClient):
    def body(self, request: ChatRequest) -> dict[str, Any]:
        self.last_body = super().body(request)
        return self.last_body

    async def events(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        await asyncio.sleep(0)
        async for event in super().events(self.last_body):
            yield event


class RetriesAnyway(ParleyClient):
    async def send(self, request: ChatRequest, /) -> ChatStream:
        try:
            return await super().send(request)
        except ProviderError:
            return await super().send(request)


BROKEN: list[tuple[type[ParleyClient], str, str]] = [
    (Unprimed, "test_a_refusal_is_raised_by_send", "authentication: send returned a stream"),
    (Buffering, "test_a_stream_is_handed_on_while_it_comes", "no update came before the answer was complete"),
    (
        ReadsPieceByPiece,
        "test_a_stream_may_arrive_in_pieces_of_any_size",
        "text: a stream that came byte by byte was an error",
    ),
    (
        SplitsLinesAtSeparatorsOfText,
        "test_the_words_of_the_model_arrive_to_the_last_character",
        "an answer, streamed, was an error: BrokenStreamError",
    ),
    (
        DecodesEachPieceByItself,
        "test_a_stream_may_arrive_in_pieces_of_any_size",
        "text: a stream that came byte by byte: the messages",
    ),
    (
        KeepsHalfCharacters,
        "test_half_a_character_in_an_answer_does_not_end_the_conversation",
        "put U\\+FFFD in its place",
    ),
    (LosesUsage, "test_usage_is_reported_once", "response.usage"),
    (TakesTheCacheOutOfTheInput, "test_usage_is_reported_once", "input_tokens=120.*input_tokens=20"),
    (FinishesTwice, "test_an_answer_has_one_finished_message_which_comes_last", "expected 1, found 2"),
    (ShowsItsTextAgain, "test_the_deltas_add_up_to_the_finished_message", "text: the text of all deltas, joined"),
    (ForgetsTheFinishReason, "test_the_reason_why_the_model_stopped_is_told", "ended by 'stop'.* found None"),
    (HidesItsCalls, "test_tool_calls_come_whole_and_keep_their_ids", r"update\.part.* found \[\]"),
    (ForgetsWhatItDoesNotKnow, "test_what_the_client_does_not_know_goes_back_as_it_came", "keep it in extra_json"),
    (MakesIdsOfItsOwn, "test_tool_calls_come_whole_and_keep_their_ids", "ids of the calls"),
    (CutsArguments, "test_tool_calls_come_whole_and_keep_their_ids", "names and arguments"),
    (HasNoArguments, "test_a_call_without_arguments_has_an_empty_object", r"found \['null'\]"),
    (StreamsOtherWords, "test_streaming_and_not_streaming_give_the_same_answer", "streaming against not streaming"),
    (StreamsOtherWords, "test_the_words_of_the_model_arrive_to_the_last_character", "the messages"),
    (SwallowsACutStream, "test_a_stream_that_is_cut_is_an_error_and_not_a_short_answer", "a stream gave no error"),
    (TakesAFailureForTheEnd, "test_a_failure_in_the_middle_of_a_stream_is_an_error", "found an answer"),
    (LetsTheLibraryRaise, "test_a_server_that_does_not_answer_is_a_timeout", "map what your HTTP library raises"),
    (LetsTheLibraryRaise, "test_a_server_that_cannot_be_reached_is_a_connection_error", "map what your HTTP library"),
    (LetsTheLibraryRaise, "test_what_is_no_answer_is_an_error", "found JSONDecodeError"),
    (QuotesTheServer, "test_an_error_quotes_neither_prompt_nor_key", "authentication: the error quotes the prompt"),
    (KnowsOneError, "test_a_refusal_is_the_error_that_fits", "expected 'AuthenticationError'"),
    (RetriesAnyway, "test_a_refused_request_is_sent_once", "authentication: requests that .* expected 1, found 2"),
    (ForgetsTheSizes, "test_an_overflow_tells_the_sizes_that_the_server_told", "take 'actual' out of overflow_sizes"),
    (ForgetsWhenToComeBack, "test_a_rate_limit_tells_when_to_come_back", r"expected 7\.0, found None"),
    (SaysNotWho, "test_an_error_says_who_and_how", "does not say which provider"),
    (AsksInTheBackground, "test_a_cancelled_call_closes_its_connection", "before the answer: the connection to the"),
    (HoldsOnToItsStreams, "test_a_closed_stream_closes_its_connection", "was closed in its middle"),
    (KeepsItsConnections, "test_a_client_may_be_closed_again_and_again", "the client is closed: a connection"),
    (ClosesOnce, "test_a_client_may_be_closed_again_and_again", "no attribute 'http'"),
    (ShowsItsKey, "test_the_key_is_not_in_a_repr", "the key is in the repr"),
    (SendsItsKeyInTheBody, "test_the_key_is_sent_and_is_not_in_the_body", "the key is in the body"),
    (TellsNoWindow, "test_the_provider_says_who_it_is", r"info\.window_tokens: expected 12345, found None"),
    (IsNobody, "test_the_provider_says_who_it_is", "no attribute info"),
    (MixesCalls, "test_many_answers_at_once_do_not_mix", "answers to calls at the same time"),
    *REQUESTS,
]


def test_the_documented_suite_passes_for_a_provider_with_nothing_wrong() -> None:
    assert failing_checks(suite_of(ParleyClient)) == {}


class OwnRateLimitError(RateLimitError):
    """A provider's own error."""


class HasAnErrorOfItsOwn(ParleyClient):
    def refusal(self, status: int, said: dict[str, Any], headers: dict[str, str]) -> ProviderError:
        found = super().refusal(status, said, headers)
        if isinstance(found, RateLimitError):
            return OwnRateLimitError(str(found), provider=found.provider, status=found.status)
        return found


def test_an_error_of_its_own_fits_as_the_one_that_it_is_derived_from() -> None:
    suite_of(HasAnErrorOfItsOwn)().test_a_refusal_is_the_error_that_fits()


@pytest.mark.parametrize(("client", "check", "told"), BROKEN, ids=lambda each: getattr(each, "__name__", None))
def test_a_broken_provider_fails_the_check_of_what_it_broke(client: type[ParleyClient], check: str, told: str) -> None:
    with pytest.raises((AssertionError, AttributeError), match=told):
        getattr(suite_of(client, patience_seconds=0.5)(), check)()


def test_every_check_has_a_provider_that_fails_it() -> None:
    assert set(checks_of(ProviderContract)) == {check for _, check, _ in BROKEN}
