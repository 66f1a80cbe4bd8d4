"""What the API and the SDK raise, as our errors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Protocol, cast

from chatstack.errors import AuthenticationError, BrokenStreamError, ChatStackError, ProviderError, ServerError
from chatstack.providers.extras import object_or_empty
from chatstack.providers.failures import failure, transport_failure
from chatstack_gemini.parts import PROVIDER

_KEY_REASONS = frozenset({"API_KEY_INVALID", "API_KEY_EXPIRED", "API_KEY_SERVICE_BLOCKED"})
_STATUS = re.compile(r"[A-Z_]{2,40}")
"""Google's own statuses: for a page of a proxy's the SDK has the words of its HTTP status there."""
_SECONDS = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)s")


class _ApiError(Protocol):
    code: object
    status: object
    message: object
    details: object
    response: object


def translated(error: Exception, *, streaming: bool = False) -> ChatStackError | None:
    """Return our error for an exception of the SDK, or of the layers below it; None for any other."""
    from google.auth.exceptions import GoogleAuthError
    from google.genai import errors
    from pydantic import ValidationError

    if isinstance(error, ChatStackError):
        return error
    if isinstance(error, errors.APIError):
        return _refusal(cast("_ApiError", error), streaming=streaming)
    if isinstance(error, GoogleAuthError):
        told = f"{PROVIDER}: no credentials ({type(error).__name__}): the cause says why"
        return AuthenticationError(told, provider=PROVIDER)
    # The SDK reads an answer with its models, and what is no answer makes it stumble.
    unreadable = (
        *(errors.UnknownApiResponseError, ValidationError, json.JSONDecodeError),
        *(TypeError, AttributeError, KeyError),
    )
    if isinstance(error, unreadable):
        told = f"{PROVIDER}: the answer cannot be read ({type(error).__name__})"
        if streaming:
            return BrokenStreamError(told, provider=PROVIDER)
        return ServerError(f"{told}: check base_url", provider=PROVIDER)
    return transport_failure(PROVIDER, error, streaming=streaming)


def _refusal(error: _ApiError, *, streaming: bool) -> ProviderError:
    details = _details_of(error.details)
    status = error.code if isinstance(error.code, int) else 0
    text, name = _text(error.message), _text(error.status)
    code = name if _STATUS.fullmatch(name) else ""
    reasons = {str(each.get("reason")) for each in details}
    if reasons & _KEY_REASONS or text.startswith("API key not valid"):
        reason = min(reasons & _KEY_REASONS, default=code)
        told = f"{PROVIDER}: authentication failed ({status} {reason}): check the key and what it may do"
        return AuthenticationError(told, provider=PROVIDER, status=status, code=reason)
    return failure(
        PROVIDER,
        status=status,
        body={"message": text, "code": code},
        headers=_headers_of(error.response) | _retry_after(details),
        streaming=streaming,
    )


def _details_of(body: object) -> list[Mapping[str, object]]:
    fields = object_or_empty(body)
    listed = (object_or_empty(fields.get("error")) or fields).get("details")
    return [object_or_empty(each) for each in cast("list[object]", listed)] if isinstance(listed, list) else []


def _retry_after(details: list[Mapping[str, object]]) -> dict[str, str]:
    """Return the delay that a ``google.rpc.RetryInfo`` tells, as a header."""
    for each in details:
        found = _SECONDS.fullmatch(str(each.get("retryDelay")))
        if found:
            return {"retry-after": found[1]}
    return {}


def _headers_of(response: object) -> dict[str, str]:
    headers = getattr(response, "headers", None)
    if not isinstance(headers, Mapping):
        return {}
    return {str(name).lower(): str(value) for name, value in cast("Mapping[object, object]", headers).items()}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
