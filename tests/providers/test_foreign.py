"""Errors of other frameworks' models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace

import pytest

from chatstack import (
    ChatRequest,
    ChatUpdate,
    ContextOverflowError,
    Message,
    ProviderInfo,
    RateLimitError,
    RequestRefusedError,
)
from chatstack.errors import ProviderConnectionError, ProviderError
from chatstack.providers.foreign import ForeignClient, finish_reason_of, foreign_failure


class StatusError(Exception):
    """As the SDKs, and Pydantic AI, have it."""

    def __init__(
        self, status_code: int, message: str, body: object = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.body = body
        self.response = SimpleNamespace(status_code=status_code, headers=headers or {})


class GoogleError(Exception):
    code = 429


class ConnectError(Exception):
    """An HTTP library's own."""

    __module__ = "httpx2"


class TheirOverflow(Exception):
    pass


TheirOverflow.__name__ = "ContextOverflowError"


class OpenAIOverflow(TheirOverflow):
    pass


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StatusError(429, "slow down"), RateLimitError),
        (GoogleError("slow down"), RateLimitError),
        (StatusError(400, "bad", {"error": {"code": "context_length_exceeded"}}), ContextOverflowError),
        (ValueError("prompt is too long: 208656 tokens > 200000 maximum"), ContextOverflowError),
        (OpenAIOverflow("Input tokens exceed the configured limit"), ContextOverflowError),
        (StatusError(404, "no such model"), RequestRefusedError),
        (ConnectError("refused"), ProviderConnectionError),
    ],
)
def test_an_error_of_the_models_side_is_told_by_what_it_says(error: Exception, kind: type[ProviderError]) -> None:
    found = foreign_failure("theirs", error)
    assert type(found) is kind
    assert found.provider == "theirs"


def test_the_sizes_of_an_overflow_and_the_time_to_wait_are_read() -> None:
    found = foreign_failure("theirs", ValueError("prompt is too long: 208656 tokens > 200000 maximum"))
    assert isinstance(found, ContextOverflowError)
    assert (found.actual, found.limit) == (208_656, 200_000)
    limited = foreign_failure("theirs", StatusError(429, "slow down", headers={"retry-after": "7"}))
    assert isinstance(limited, RateLimitError)
    assert limited.retry_after_seconds == 7


def test_a_cause_of_the_transport_counts() -> None:
    error = RuntimeError("Connection error.")
    error.__cause__ = ConnectError("refused")
    assert isinstance(foreign_failure("theirs", error), ProviderConnectionError)


def test_a_cause_that_is_raised_again_from_none_and_the_first_of_a_group_count() -> None:
    def fail() -> None:
        try:
            raise StatusError(429, "slow down")
        except StatusError:
            raise RuntimeError("the agent failed") from None

    with pytest.raises(RuntimeError) as caught:
        fail()
    for error in (caught.value, ExceptionGroup("all", [caught.value])):
        assert isinstance(foreign_failure("theirs", error), RateLimitError)


@pytest.mark.parametrize("error", [ValueError("no such tool"), KeyError("x"), ExceptionGroup("all", [ValueError()])])
def test_an_error_of_somebody_elses_is_none(error: Exception) -> None:
    assert foreign_failure("theirs", error) is None


def test_our_own_error_stays() -> None:
    ours = RateLimitError("slow down")
    assert foreign_failure("theirs", ours) is ours


def test_the_cause_of_a_cause_counts_and_a_circle_of_causes_ends() -> None:
    error, between = RuntimeError("the agent failed"), ValueError("the client failed")
    error.__cause__, between.__cause__ = between, StatusError(429, "slow down")
    assert isinstance(foreign_failure("theirs", error), RateLimitError)
    between.__cause__ = error
    assert foreign_failure("theirs", error) is None


def test_our_own_error_as_a_cause_keeps_its_numbers_and_can_have_a_cause() -> None:
    error = TheirOverflow("too long")
    error.__cause__ = ContextOverflowError(9, 5)
    found = foreign_failure("theirs", error)
    assert isinstance(found, ContextOverflowError)
    assert (found.actual, found.limit) == (9, 5)
    assert found is not error.__cause__


def test_a_finish_reason_is_told_by_the_words_of_any_framework() -> None:
    found = [finish_reason_of(each) for each in ("STOP", "max_tokens", "tool_call", "refusal", "pause_turn", "?", None)]
    assert found == ["stop", "length", "tool_calls", "refused", "paused", None, None]


class Model(ForeignClient):
    """A provider over somebody else's model, which fails after so many words."""

    info = ProviderInfo(name="theirs", model="m-1")

    def __init__(self, error: Exception, *words: str) -> None:
        self.error, self.words, self.is_closed = error, words, False

    async def _updates(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        try:
            for word in self.words:
                yield ChatUpdate(text=word)
            raise self.error
        finally:
            self.is_closed = True


def test_what_a_foreign_model_raises_is_ours_at_once_and_in_the_middle_and_else_surfaces() -> None:
    async def run(model: Model) -> None:
        async with model.get_streaming_response("hello") as stream:
            async for _ in stream:
                pass

    limited, mistake = StatusError(429, "slow down"), KeyError("x")
    for words in ((), ("well", "then")):
        with pytest.raises(RateLimitError) as caught:
            asyncio.run(run(Model(limited, *words)))
        assert caught.value.__cause__ is limited
        with pytest.raises(KeyError) as surfaced:
            asyncio.run(run(Model(mistake, *words)))
        assert surfaced.value is mistake


def test_a_stream_of_a_foreign_model_that_is_closed_early_closes_the_model() -> None:
    model = Model(KeyError(), "well", "then")

    async def run() -> None:
        stream = await model.send(ChatRequest((Message.user("hello"),)))
        assert not model.is_closed
        await stream.aclose()

    asyncio.run(run())
    assert model.is_closed
    assert repr(model) == "Model('theirs', 'm-1')"
