"""Errors in the form that the clients of each wire understand. No text of a request, and no key, is in any of them."""

from __future__ import annotations

from dataclasses import dataclass

from chatstack import BudgetExceeded, ContextOverflowError
from chatstack.errors import (
    AuthenticationError,
    ChatStackError,
    InputError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    RequestRefusedError,
    StoreError,
    StreamBusyError,
    StreamClosedError,
    WiringError,
)
from chatstack.providers.wires import Form
from chatstack_gateway.positions import written

_UNEXPECTED = (StoreError, WiringError, InputError, StreamBusyError, StreamClosedError)
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's types of error, by status; OpenAI's clients go by the status."""


def is_deliberate(error: BaseException) -> bool:
    """Return True for a refusal that a layer means: a budget, a strict limit, a rate limit, or an error of its own that
    derives from ``ChatStackError``. All other failures of a layer are accidents."""
    return isinstance(error, ChatStackError) and not isinstance(error, _UNEXPECTED)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer in the place of the model's. ``is_final`` says that trying again will not help, ``param`` names the
    field that it is about."""

    status: int
    message: str
    code: str = ""
    retry_after_seconds: float | None = None
    is_final: bool = False
    param: str = ""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers beside the body's length."""
        found = [(b"content-type", b"application/json")]
        if self.retry_after_seconds is not None:
            found.append((b"retry-after", str(max(0, round(self.retry_after_seconds))).encode()))
        if self.is_final:
            found.append((b"x-should-retry", b"false"))  # the SDKs of both makers go by it
        return found

    def body(self, form: Form | None) -> bytes:
        """Return the body as that wire has it."""
        return written(self._told(form)).encode()

    def event(self, form: Form) -> bytes:
        """Return the event that tells a stream's reader of it."""
        if form == "chat":
            return f"data: {written(self._told(form))}\n\n".encode()
        told = (
            self._told(form) if form == "messages" else {"type": "error", "code": self._code, "message": self.message}
        )
        return f"event: error\ndata: {written(told)}\n\n".encode()

    @property
    def _code(self) -> str:
        return self.code or _KINDS.get(self.status, "api_error")

    def _told(self, form: Form | None) -> dict[str, object]:
        kind = _KINDS.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
        if form == "messages":
            if self.code == "insufficient_quota":
                kind = "billing_error"
            return {"type": "error", "error": {"type": kind, "message": self.message}}
        return {
            "error": {"message": self.message, "type": kind, "param": self.param or None, "code": self.code or None}
        }


def refusal_of(error: BaseException) -> Refusal:
    """Return the answer for an error of ours, or for a failure to reach upstream."""
    told = str(error) if isinstance(error, ChatStackError) else "the gateway failed"
    if isinstance(error, BudgetExceeded):
        return Refusal(429, told, "insufficient_quota", is_final=True)
    if isinstance(error, ContextOverflowError):
        if error.actual is not None and error.limit is not None:
            told = f"prompt is too long: {error.actual} tokens > {error.limit} maximum ({told})"
        return Refusal(400, told, "context_length_exceeded", is_final=True)
    if isinstance(error, RateLimitError):
        return Refusal(429, told, "rate_limit_exceeded", error.retry_after_seconds)
    if isinstance(error, AuthenticationError):
        return Refusal(401, told, is_final=True)
    if isinstance(error, RequestRefusedError):
        return Refusal(error.status if 400 <= error.status < 500 else 400, told, error.code, is_final=True)
    if isinstance(error, ProviderTimeoutError):
        return Refusal(504, told)
    if isinstance(error, ProviderError):
        return Refusal(502, told)
    return Refusal(400 if is_deliberate(error) else 502, told, is_final=True)
