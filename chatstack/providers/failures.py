"""Classification of provider failures: from status, code and text to one ``ProviderError``.

Pure functions, shared by all providers. A provider's text is read here to recognise an overflow, and goes no further:
it may quote the prompt. It stays on the SDK's exception, which the caller sets as the cause.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import cast

from chatstack.errors import (
    AuthenticationError,
    BrokenStreamError,
    ContextOverflowError,
    InputError,
    ProviderConnectionError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    RequestRefusedError,
    ServerError,
)
from chatstack.providers.error_bodies import ErrorBody, as_text
from chatstack.providers.overflow import Overflow, overflow_in, plausible
from chatstack.providers.retry_after import retry_after_seconds

# A server may echo the key as a code: refuse codes that begin like a key, have a hyphen, or a run as long as a key's.
_SHOWABLE = re.compile(
    r"[a-z]{1,55}exception|(?!sk|pk|key|bearer)(?!.*[a-z0-9]{20})[a-z0-9_.]{1,64}", re.ASCII | re.IGNORECASE
)
_HTTP_STATUS = re.compile(r"[1-5][0-9][0-9]")

_AWS_READERS = frozenset({"botocore.eventstream", "botocore.parsers"})
"""Modules that read the binary streams of Bedrock."""
_TOO_LONG = "integer string conversion"
"""Text of Python's plain ``ValueError`` for a JSON number with thousands of digits."""

_AUTHENTICATION = frozenset({"authentication_error", "permission_error", "invalid_api_key", "invalid_authentication"})
_RATE_LIMIT = frozenset({
    "rate_limit_error",
    "rate_limit_exceeded",
    "rate_limit",
    "insufficient_quota",
    "throttlingException",  # Bedrock, as all names of this form
})  # fmt: skip
_TIMEOUT = frozenset({"timeout_error", "timeout", "request_timeout", "vector_store_timeout", "modelTimeoutException"})
_SERVER = frozenset({
    "api_error",
    "engine_overloaded_error",  # Moonshot
    "internal_error",
    "internal_server_error",
    "internalServerException",
    "modelStreamErrorException",
    "overloaded_error",
    "server_error",
    "server_is_overloaded",
    "service_unavailable_error",
    "serviceUnavailableException",
})  # fmt: skip
_REFUSED = frozenset({
    "billing_error",
    "content_filter",
    "data_residency_mismatch",
    "invalid_prompt",
    "invalid_request_error",
    "model_not_found",
    "not_found_error",
    "request_too_large",
    "validationException",
})  # fmt: skip
_REFUSED_FOR = re.compile("image|policy")
"""Words in the names of other refusals, as ``image_too_large`` and ``content_policy_violation``."""


def failure(
    provider: str,
    *,
    status: int = 0,
    body: object = None,
    code: str = "",
    text: str = "",
    headers: Mapping[str, str] | None = None,
    streaming: bool = False,
    overflow: Overflow | None = None,
) -> ProviderError:
    """Return the error for a provider's failed answer; the caller raises it ``from`` the SDK's exception.

    ``body`` is the error body in any shape: whole, the object under ``error``, or its text; ``code`` and ``text`` are
    used where it lacks them. ``streaming`` says that the answer had begun to stream, with status 200: then the code or
    type of an error event decides (its text only for an overflow), and one without either is a ``BrokenStreamError``.

    ``overflow`` is for an API that tells an overflow by its status or by fields of its own: the caller has recognised
    it, and ``Overflow(actual, limit)`` holds the sizes that were told. Without it code, type and text decide.
    """
    said = ErrorBody.read(body)
    code = said.code or as_text(code)
    if (
        _HTTP_STATUS.fullmatch(code) and status < 400
    ):  # some routers put the HTTP status into the code of a streamed error
        status = int(code)
    text = said.text or (text if isinstance(text, str) else "")  # pyright: ignore[reportUnnecessaryIsInstance]
    label = _label(status, code, said.kind)
    shown = code if _SHOWABLE.fullmatch(code) else (said.kind if _SHOWABLE.fullmatch(said.kind) else "")
    told = overflow_in(status, code, said.kind, text, said.fields) if overflow is None else plausible(overflow)
    if told is not None:
        return _overflow(provider, status, shown, label, told)
    kind, remedy = _class_of(status, code, said.kind, streaming)
    message = f"{provider}: {remedy[0]}{label}{remedy[1]}"
    if kind is RateLimitError:
        return RateLimitError(
            message,
            provider=provider,
            status=status,
            code=shown,
            retry_after_seconds=retry_after_seconds(headers or {}, text),
        )
    return kind(message, provider=provider, status=status, code=shown)


def transport_failure(provider: str, error: BaseException, *, streaming: bool = False) -> ProviderError | None:
    """Return the error for an exception from below the SDK, or None if it is none of the transport's.

    The HTTP library is recognised by the module of the exception's classes, never imported. ``streaming`` says that the
    answer had begun: then every interruption is a ``BrokenStreamError``.
    """
    names = {
        each.__name__
        for each in type(error).__mro__
        if each.__module__.split(".")[0] in {"httpx", "httpx2", "httpcore", "httpcore2", "aiohttp"}
    }
    is_timeout = "TimeoutException" in names or isinstance(error, TimeoutError)
    is_noise = type(error).__module__ in _AWS_READERS
    if streaming and (names or is_noise or isinstance(error, (OSError, ValueError, EOFError, RecursionError))):
        # ValueError: malformed JSON, or broken UTF-8; RecursionError: JSON that nests too deeply.
        what = "could not be read" if is_noise or isinstance(error, (ValueError, RecursionError)) else "was cut"
        return BrokenStreamError(
            f"{provider}: the stream {what} before the answer was complete ({type(error).__name__})", provider=provider
        )
    if is_timeout:
        return ProviderTimeoutError(
            f"{provider}: no answer in time ({type(error).__name__}): raise timeout_seconds or try again",
            provider=provider,
        )
    if names or isinstance(error, OSError):
        why = ": ".join(filter(None, (type(error).__name__, _system_reason(error))))
        return ProviderConnectionError(
            f"{provider}: no connection ({why}): check base_url and the network", provider=provider
        )
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return ServerError(f"{provider}: the answer is not JSON: check base_url", provider=provider)
    if is_noise or isinstance(error, RecursionError) or (isinstance(error, ValueError) and _TOO_LONG in str(error)):
        return ServerError(f"{provider}: the answer cannot be read ({type(error).__name__})", provider=provider)
    return None


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, its cause, and so on. A chain may go in a circle: respx raises an error from one of its own
    that was raised from it."""
    passed = set[int]()
    while error is not None and id(error) not in passed:
        passed.add(id(error))
        yield error
        if isinstance(error, BaseExceptionGroup):  # one error for each address of a host
            error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
        else:  # httpcore raises its errors again "from None"; any other context may be what the caller was busy with
            error = error.__cause__ or (error.__context__ if error.__suppress_context__ else None)


def _system_reason(error: BaseException) -> str:
    """Return what the system said at the end of the chain of causes, as "Too many open files"; "" if nothing."""
    said = [each.strerror for each in causes(error) if isinstance(each, OSError) and each.strerror]
    return said[-1] if said else ""


@contextmanager
def misshapen(provider: str, *, streaming: bool) -> Generator[None, None, None]:
    """Turn exceptions while an answer is read into the provider's failure: it lacks the shape that the API promises."""
    kind = BrokenStreamError if streaming else ServerError
    try:
        yield
    except InputError as error:
        raise kind(f"{provider}: the answer has the wrong shape: {error}", provider=provider) from error
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise kind(f"{provider}: the answer cannot be read ({type(error).__name__})", provider=provider) from error
    except BrokenStreamError as error:
        if streaming:
            raise
        raise ServerError(str(error), provider=provider) from error


def window_full(provider: str, input_tokens: int, reason: str) -> ContextOverflowError:
    """Return the error for an answer that ended for that reason, a full window, before the model had begun to
    answer."""
    return _overflow(provider, 200, reason, f" ({reason})", Overflow(input_tokens or None))


def stream_ended(provider: str, missing: str) -> BrokenStreamError:
    """Return the error for a stream that ended in good order, but without the end of an answer."""
    return BrokenStreamError(
        f"{provider}: the stream ended without {missing}: the answer is not complete", provider=provider
    )


def _overflow(provider: str, status: int, code: str, label: str, found: Overflow) -> ContextOverflowError:
    sizes = ""
    if found.actual is not None and found.limit is not None:
        sizes = f": {found.actual:,} of {found.limit:,} tokens"
    elif found.limit is not None:
        sizes = f" of {found.limit:,} tokens"
    return ContextOverflowError(
        found.actual,
        found.limit,
        message=f"{provider}: the request does not fit the context window{sizes}{label}",
        provider=provider,
        status=status,
        code=code,
    )


def _class_of(status: int, code: str, kind: str, streaming: bool) -> tuple[type[ProviderError], tuple[str, str]]:
    """Return the class, and the parts of its message before and after the label."""
    says = {code, kind}
    if status in (401, 403) or (status < 400 and says & _AUTHENTICATION):
        return AuthenticationError, ("authentication failed", ": check the key and what it may do")
    if "insufficient_quota" in says:
        return RateLimitError, ("quota used up", ": check plan and billing")
    if status == 429 or (status in (0, 200, 413) and says & _RATE_LIMIT):
        return RateLimitError, ("too many requests", ": slow down or raise the limit")
    if status in (408, 504, 524) or (status < 400 and says & _TIMEOUT):
        return ProviderTimeoutError, ("no answer in time", ": try again later")
    if status >= 500 or status == 498 or (status < 400 and says & _SERVER):  # 498: Groq's flex tier is full
        return ServerError, ("the provider failed or is overloaded", ": try again later")
    if status == 413:
        return RequestRefusedError, ("the body of the request is too large", ": send less, or smaller files")
    if status == 404 or says & {"model_not_found", "not_found_error"}:
        return RequestRefusedError, ("not found", ": check model and base_url")
    if status < 400 and streaming and not (says & _REFUSED or any(map(_REFUSED_FOR.search, says))):
        return BrokenStreamError, ("the stream broke off with an error", ": the answer is not complete")
    return RequestRefusedError, ("request refused", ": the cause holds what the provider said")


def _label(status: int, code: str, kind: str) -> str:
    """Return ``" (401 invalid_api_key)"``: status, and the first of code and type that is fit to be shown."""
    shown = [str(status)] if status >= 300 else []
    name = next((each for each in (code, kind) if each and each != str(status) and _SHOWABLE.fullmatch(each)), "")
    if name:
        shown.append(name)
    return f" ({' '.join(shown)})" if shown else ""
