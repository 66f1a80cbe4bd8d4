"""Every error that chatstack raises, in one tree.

    ChatStackError
    ├── WiringError                 a stack that cannot be built; names layer, parameter and remedy
    ├── InputError                  something passed to a front has the wrong type or shape (also a ValueError)
    ├── ToolError
    │   ├── UnknownToolError        the model called a tool that nobody declared
    │   ├── ToolDeniedError         whoever was asked for approval said no
    │   ├── ToolTimeoutError        a tool took longer than its timeout_seconds (also a TimeoutError)
    │   └── WorkspaceError          a workspace refused it: a path that leads out, a quota, a file that is no text
    │       └── MissingFileError    the workspace has no such file (also a FileNotFoundError)
    ├── ToolLoopError               the tool loop gave up: every call fails, or the model calls on at the limit
    ├── BudgetExceeded              a turn or a conversation has used up its tokens or its money
    ├── OutputError                 an answer that is not of the ``output_type`` that was asked for; keeps its text
    ├── StreamClosedError           a stream was read after it had been closed before its end
    ├── StreamBusyError             a stream was read by two tasks at once
    ├── StoreError                  a store of decisions that cannot be read or written now
    │   └── UnusableRecordError     one record in it cannot be read, and the others can; ``link`` says which
    ├── TurnTimeoutError            ``timeout_seconds`` of the turn ran out (also a TimeoutError)
    └── ProviderError               the model's side said no, or nothing
        ├── AuthenticationError     the key is missing, wrong or not allowed
        ├── RateLimitError          too many requests; ``retry_after_seconds`` when the provider told
        ├── ContextOverflowError    the request is longer than the window; ``actual`` and ``limit`` in tokens
        ├── RequestRefusedError     the provider rejected the request for another reason (4xx)
        ├── ProviderTimeoutError    no answer in time (also a TimeoutError)
        ├── ProviderConnectionError the server could not be reached, or the connection was lost
        ├── ServerError             the provider failed (5xx, overloaded)
        ├── FallbackError           no client of a ``Fallback`` answered; an exception group of what each one said
        └── BrokenStreamError       the stream ended, stalled or turned to noise before the answer was complete

The message of an error never holds a prompt, an answer or a key. What a provider said is on its own exception,
which stays the ``__cause__``. All of them can be pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from chatstack.values import errors
from chatstack.values.messages import Message
from chatstack.values.responses import ChatResponse, Usage

if TYPE_CHECKING:  # The values raise these two themselves, so what they carry can only be typed above the values.

    class ChatStackError(errors.ChatStackError):
        messages: tuple[Message, ...]
        usage: Usage | None
        overhead_usage: Usage | None

    class InputError(ChatStackError, errors.InputError): ...

else:
    ChatStackError, InputError = errors.ChatStackError, errors.InputError


class WiringError(ChatStackError):
    """A stack that cannot be built. ``layer`` and ``parameter`` name the place."""

    def __init__(self, message: str, *, layer: str = "", parameter: str = "") -> None:
        super().__init__(message)
        self.layer = layer
        self.parameter = parameter


class ToolError(ChatStackError):
    """A tool call that failed before or while it ran; the model reads it as an error result.

    Raise one in a tool of yours to tell the model, word for word, what is wrong and what to do.
    """


class UnknownToolError(ToolError):
    """The model called a tool that nobody declared."""


class ToolDeniedError(ToolError):
    """A tool call that was not approved, and not run."""


class ToolTimeoutError(ToolError, TimeoutError):
    """A tool took longer than its ``timeout_seconds``."""


class WorkspaceError(ToolError):
    """A workspace refused it. Says which path, why, and what to do: a model reads it word for word."""


class MissingFileError(WorkspaceError, FileNotFoundError):
    """The workspace has no such file."""


class ToolLoopError(ChatStackError):
    """The tool loop stopped: after too many failures in a row, the last one its cause, or because the model goes on to
    call tools where no more are allowed, or because ``approve`` or the provider of a service was cancelled.
    ``messages`` holds what the turn had added, calls and results in whole pairs, ``usage`` and ``overhead_usage`` (of
    summaries) what has been paid for."""

    def __init__(
        self,
        message: str,
        *,
        messages: tuple[Message, ...] = (),
        usage: Usage | None = None,
        overhead_usage: Usage | None = None,
    ) -> None:
        super().__init__(message)
        self.messages = messages
        self.usage = usage
        self.overhead_usage = overhead_usage


class BudgetExceeded(ChatStackError):
    """A budget is used up. ``usage`` and ``overhead_usage`` (of summaries) are what has been paid for, ``cost`` that in
    dollars where it is known, ``messages`` what the turn had added, calls and results in whole pairs."""

    def __init__(
        self,
        message: str,
        *,
        usage: Usage | None = None,
        overhead_usage: Usage | None = None,
        cost: Decimal | None = None,
        messages: tuple[Message, ...] = (),
    ) -> None:
        super().__init__(message)
        self.usage = usage
        self.overhead_usage = overhead_usage
        self.cost = cost
        self.messages = messages


class OutputError(ChatStackError):
    """An answer that does not fit ``output_type``, or was refused or cut off. ``text`` is what the model wrote,
    ``response`` the whole answer; what did not fit is the cause."""

    def __init__(self, message: str, *, text: str = "", response: ChatResponse | None = None) -> None:
        super().__init__(message)
        self.text = text
        self.response = response


class StreamClosedError(ChatStackError):
    """Read after ``aclose()``, before the answer was complete."""


class StreamBusyError(ChatStackError):
    """Read by a second task while a first one still waits; the first one is not harmed."""


class StoreError(ChatStackError):
    """A store of decisions that cannot be read or written now; the text says why, and holds nothing that is in it."""


class UnusableRecordError(StoreError):
    """A stored record that cannot be read. The rest of the store is used on."""

    def __init__(self, message: str, *, link: bytes) -> None:
        super().__init__(message)
        self.link = link


class TurnTimeoutError(ChatStackError, TimeoutError):
    """The turn's ``timeout_seconds`` ran out."""


class ProviderError(ChatStackError):
    """The model's side said no. ``provider`` and ``status`` (of HTTP, 0 when there was none) say who and how."""

    def __init__(self, message: str, *, provider: str = "", status: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.provider = provider
        self.status = status
        self.code = code


class AuthenticationError(ProviderError):
    """The key is missing, wrong, or may not do this."""


class RateLimitError(ProviderError):
    """Too many requests, after the SDK's own retries. ``retry_after_seconds`` is None when not told."""

    def __init__(
        self,
        message: str,
        *,
        provider: str = "",
        status: int = 429,
        code: str = "",
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message, provider=provider, status=status, code=code)
        self.retry_after_seconds = retry_after_seconds


class ContextOverflowError(ProviderError):
    """The request is longer than the window: ``actual`` of ``limit`` tokens, None where nobody said. Text in the first
    place is the message, as with its siblings, and ``actual`` is given by name then."""

    def __init__(
        self,
        size_or_message: int | str | None = None,
        /,
        limit: int | None = None,
        *,
        actual: int | None = None,
        message: str = "",
        provider: str = "",
        status: int = 0,
        code: str = "",
    ) -> None:
        if isinstance(size_or_message, str):
            message = message or size_or_message
        elif size_or_message is not None:
            actual = size_or_message
        said = message or f"the request does not fit: {_tokens(actual)} of {_tokens(limit)} tokens"
        super().__init__(said, provider=provider, status=status, code=code)
        self.actual = actual
        self.limit = limit


class RequestRefusedError(ProviderError):
    """The provider rejected the request: unknown model, bad parameter, content policy."""


class ProviderTimeoutError(ProviderError, TimeoutError):
    """The provider did not answer in time."""


class ProviderConnectionError(ProviderError):
    """The server could not be reached, or the connection was lost before an answer began."""


class ServerError(ProviderError):
    """The provider failed or is overloaded."""


class FallbackError(ProviderError, ExceptionGroup[ChatStackError]):
    """No client answered: an exception group of the errors, in the order in which the clients were asked. The first one
    says who and how."""

    def __new__(cls, message: str, errors: Sequence[ChatStackError]) -> FallbackError:
        return super().__new__(cls, message, errors)

    def __init__(self, message: str, errors: Sequence[ChatStackError]) -> None:
        first = errors[0]
        said = (first.provider, first.status, first.code) if isinstance(first, ProviderError) else ("", 0, "")
        super().__init__(message, provider=said[0], status=said[1], code=said[2])

    def derive(self, errors: Sequence[Exception], /) -> ExceptionGroup[Exception]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return ExceptionGroup(self.message, errors)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.message, self.exceptions), self.__dict__)


class BrokenStreamError(ProviderError):
    """The answer broke off: the stream ended without its end, was cut, stalled, or could not be read."""


def _tokens(count: int | None) -> str:
    return "an unknown number" if count is None else f"{count:,}"
