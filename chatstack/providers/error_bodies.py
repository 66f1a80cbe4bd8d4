"""Bodies of errors: what a server says is wrong, in whatever shape it came.

The text may quote the prompt: it is read to recognise an overflow, and goes no further.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from chatstack.providers.extras import field_of, objects_in

_WORDS = ("message", "detail", "msg", "error", "errors", "error_msg", "errorMessage", "description", "reason", "title")
"""Names of the fields in which servers say what is wrong."""

_OWN = ("message", "detail", "code", "type")
"""Names of the fields of an error; a body that has one of them is the error, whatever it lists beside."""


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """The fields of an error body, in whatever shape it came."""

    code: str = ""
    kind: str = ""
    text: str = ""
    fields: Mapping[str, object] | None = None

    @classmethod
    def read(cls, body: object) -> ErrorBody:
        """Read the whole body or the object under ``error``, decoded or as text."""
        fields = _error_fields(body)
        if fields is None:
            return cls(text=body if isinstance(body, str) else "")
        return cls(
            code=as_text(fields.get("code")),
            kind=as_text(fields.get("type")),
            text="\n".join(filter(None, (_message_of(fields), _upstream_of(fields)))),
            fields=fields,
        )


def _error_fields(body: object, depth: int = 3) -> Mapping[str, object] | None:
    if isinstance(body, (str, bytes)):
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            return None
    if isinstance(body, list):  # one compatible endpoint wraps its error in a list
        body = cast("list[object]", body)[0] if body else None
    if not isinstance(body, Mapping):
        return None
    fields = cast("Mapping[str, object]", body)
    inner = fields.get("error")
    if not inner and depth and isinstance(fields.get("detail"), Mapping):  # FastAPI's HTTPException(detail={...})
        return _error_fields(fields["detail"], depth - 1)
    if not inner and not any(fields.get(name) for name in _OWN):  # Cloudflare, watsonx
        inner = fields.get("errors")
    if isinstance(inner, list):
        several = cast("list[object]", inner)
        return {**next(iter(objects_in(several)), fields), "message": _message_of(several)}
    if isinstance(inner, Mapping):
        return cast("Mapping[str, object]", inner)
    if isinstance(inner, str):
        return {**fields, "message": inner}
    return fields


def _message_of(said: object, depth: int = 5) -> str:
    """Return the server's own words: text, or what an object or a list holds under a name for them. Whatever else is
    there, such as pydantic's ``input``, may quote the request."""
    if isinstance(said, str) or not depth:
        return said if isinstance(said, str) else ""
    if isinstance(said, list):
        return "\n".join(filter(None, (_message_of(each, depth - 1) for each in cast("list[object]", said))))
    if isinstance(said, Mapping):
        fields = cast("Mapping[str, object]", said)
        return next(filter(None, (_message_of(fields.get(name), depth - 1) for name in _WORDS)), "")
    return ""


def _upstream_of(fields: Mapping[str, object]) -> str:
    """Return the error of the server behind a router, which OpenRouter puts into ``metadata.raw``: an object, or
    text."""
    raw = field_of(fields.get("metadata"), "raw")
    said = _error_fields(raw)
    if said is None:
        return raw if isinstance(raw, str) else ""
    return f"{_message_of(said)}\n{as_text(said.get('code'))}"


def as_text(value: object) -> str:
    """Return a code as text; "" for what is none."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**9:  # str() refuses huge ones
        return str(value)
    return value if isinstance(value, str) else ""
