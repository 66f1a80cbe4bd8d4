"""Errors of models that another framework calls: told by what their exceptions say, whatever SDK is below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from chatstack.errors import ProviderError
from chatstack.providers.failures import failure, transport_failure
from chatstack.providers.overflow import Overflow, overflow_in

_OVERFLOW = "ContextOverflowError"
"""Name of LangChain's exception class for an overflow, from which those of its integrations derive."""


def foreign_failure(provider: str, error: BaseException) -> ProviderError | None:
    """Return our error for an exception of another framework's model, which the caller sets as its cause.

    None for an exception that does not come from the model's side, which should surface as it is. It is told by its
    fields (``status_code``, ``body``, ``response.headers``, as the SDKs of OpenAI and Anthropic, and Pydantic AI, have
    them), by an overflow in its text, or by an exception of the transport, itself or as its cause.
    """
    if isinstance(error, ProviderError):
        return error
    status, text = _status_of(error), str(error)
    told = overflow_in(status, "", "", text)
    if told is None and any(kind.__name__ == _OVERFLOW for kind in type(error).__mro__):
        told = Overflow()
    if status or told is not None:
        return failure(
            provider,
            status=status,
            body=getattr(error, "body", None),
            text=text,
            headers=_headers_of(error),
            overflow=told,
        )
    for each in (error, error.__cause__):
        known = None if each is None else transport_failure(provider, each)
        if known is not None:
            return known
    return None


def _status_of(error: BaseException) -> int:
    for name in ("status_code", "code"):  # google-genai has the status in ``code``
        status: object = getattr(error, name, None)
        if type(status) is int and 400 <= status < 600:
            return status
    return 0


def _headers_of(error: BaseException) -> Mapping[str, str]:
    headers: object = getattr(getattr(error, "response", None), "headers", None)
    return dict(cast("Mapping[str, str]", headers)) if isinstance(headers, Mapping) else {}
