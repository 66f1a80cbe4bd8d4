"""Errors of other frameworks' models."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from chatstack import ContextOverflowError, RateLimitError, RequestRefusedError
from chatstack.errors import ProviderConnectionError, ProviderError
from chatstack.providers.foreign import foreign_failure


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


@pytest.mark.parametrize("error", [ValueError("no such tool"), KeyError("x"), ExceptionGroup("all", [ValueError()])])
def test_an_error_of_somebody_elses_is_none(error: Exception) -> None:
    assert foreign_failure("theirs", error) is None


def test_our_own_error_stays() -> None:
    ours = RateLimitError("slow down")
    assert foreign_failure("theirs", ours) is ours
