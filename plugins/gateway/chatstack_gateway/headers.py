"""Headers on their way through: which belong to one connection, which hold keys, which speak of the body."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from starlette.types import Scope

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Names in lower case, in the order in which they came."""

KEYS = frozenset({b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"})
"""Headers that hold a caller's key."""

_OF_ACCOUNTS = KEYS | {b"openai-organization", b"openai-project"}
_OF_CALLERS = _OF_ACCOUNTS | {b"anthropic-beta"}
_OUR_SECRET = os.urandom(16)

TOKEN = b"x-chatstack-token"
CONVERSATION = b"x-chatstack-conversation"
OURS = frozenset({TOKEN, CONVERSATION})
"""Headers for the gateway itself, which go no further."""

_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te"}
    | {b"trailer", b"transfer-encoding", b"upgrade"}
)
"""Headers of one connection. Source: RFC 9110, 7.6.1."""
_ANEW = frozenset({b"host", b"content-length", b"expect"})
_SIGNED = frozenset({b"x-amz-content-sha256", b"signature", b"content-md5", b"digest", b"content-digest"})
READABLE = ("gzip", "deflate", "identity")
"""Encodings of an answer that its copy can be read in."""


def upward(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return the headers of a request that go on; the length and the host are written anew."""
    left_out = _of_connection(headers) | _ANEW | OURS
    return [each for each in headers if each[0] not in left_out]


def downward(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer that go on to the caller."""
    left_out = _of_connection(headers)
    return [each for each in headers if each[0] not in left_out]


def value_of(headers: Headers, name: bytes) -> str:
    """Return the value of a header; "" without one."""
    return next((value.decode("latin-1") for each, value in headers if each == name), "")


def path_of(scope: Scope) -> str:
    """Return the path as it came, with its escapes."""
    return scope.get("raw_path", b"").decode("latin-1") or str(scope["path"])


def readable(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers with the encodings that a copy of the answer cannot be read in struck from
    ``accept-encoding``."""
    found: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        if name == b"accept-encoding":
            offered = [each.strip() for each in value.decode("latin-1").split(",")]
            kept = [each for each in offered if each.split(";")[0].strip().lower() in READABLE]
            if len(kept) < len(offered):
                value = (", ".join(kept) or "identity").encode()
        found.append((name, value))
    return found


def caller_of(headers: Headers) -> str:
    """Return what tells callers apart that upstream may treat differently: a digest of key, organization and betas,
    which says nothing outside of this process."""
    return _digest(headers, _OF_CALLERS)


def account_of(headers: Headers) -> str:
    """Return a digest of key and organization, as ``caller_of`` does: betas may differ from call to call."""
    return _digest(headers, _OF_ACCOUNTS)


def is_signed(headers: Headers) -> bool:
    """Return True if a signature covers the body, so that an edit would break it."""
    authorization = value_of(headers, b"authorization").lower()
    return authorization.startswith(("aws4-", "signature ")) or any(name in _SIGNED for name, _ in headers)


def is_compressed(headers: Headers) -> bool:
    """Return True if the body of the request is not plain text."""
    return value_of(headers, b"content-encoding").strip().lower() not in ("", "identity")


def as_mapping(headers: Headers) -> Mapping[str, str]:
    """Return headers by name, the last one of each; for what reads an answer's headers."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}


def _of_connection(headers: Headers) -> frozenset[bytes]:
    named = (each.strip().lower() for name, value in headers if name == b"connection" for each in value.split(b","))
    return _HOP.union(named)


def _digest(headers: Headers, names: frozenset[bytes]) -> str:
    own = sorted(each for each in headers if each[0] in names)
    return hashlib.blake2b(repr(own).encode(), key=_OUR_SECRET, digest_size=16).hexdigest()
