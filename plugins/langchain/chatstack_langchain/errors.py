"""A provider's errors as LangChain's: of classes of both, as LangChain's own integrations raise them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, TypeAlias

from langchain_core import exceptions

from chatstack import errors

Kind: TypeAlias = type[errors.ProviderError]

_THEIRS: dict[tuple[Kind, int], str] = {
    (errors.AuthenticationError, 0): "ModelAuthenticationError",
    (errors.AuthenticationError, 403): "ModelPermissionDeniedError",
    (errors.RateLimitError, 0): "ModelRateLimitError",
    (errors.ContextOverflowError, 0): "ContextOverflowError",
    (errors.RequestRefusedError, 0): "ModelInvalidRequestError",
    (errors.RequestRefusedError, 404): "ModelNotFoundError",
    (errors.ProviderTimeoutError, 0): "ModelTimeoutError",
    (errors.ProviderConnectionError, 0): "ModelConnectionError",
    (errors.ServerError, 0): "ModelAPIError",
}
"""Names of LangChain's errors, by ours and a status of HTTP; 0 is any other. Most came with langchain-core 1.6."""


@contextmanager
def errors_as_theirs() -> Generator[None]:
    """Raise a provider's error as LangChain's, too, by which its middlewares tell what to ask again."""
    try:
        yield
    except errors.ProviderError as error:
        if (type(error), 0) not in _BOTH:
            raise
        raise _of_both(type(error), error.args, vars(error)).with_traceback(error.__traceback__) from error.__cause__


def _of_both(kind: Kind, args: tuple[object, ...], state: dict[str, Any]) -> errors.ProviderError:
    found = _BOTH.get((kind, state["status"])) or _BOTH[kind, 0]
    error = found.__new__(found, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def _class_of_both(kind: Kind, name: str) -> Kind:
    def reduced(self: errors.ProviderError) -> tuple[Any, ...]:
        return _of_both, (kind, self.args, vars(self))

    fields = {"__module__": kind.__module__, "__reduce__": reduced}
    return type(kind.__name__, (kind, getattr(exceptions, name)), fields)


_BOTH = {key: _class_of_both(key[0], name) for key, name in _THEIRS.items() if hasattr(exceptions, name)}
