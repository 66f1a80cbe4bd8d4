"""Who may ask: the token, and no page of a stranger's in a browser on this machine."""

from __future__ import annotations

import base64
import hmac
from urllib.parse import urlsplit

from chatstack_gateway.headers import KEYS, TOKEN, Headers, value_of
from chatstack_gateway.refusals import Refusal
from chatstack_gateway.settings import Settings, is_loopback

_APPS = frozenset({"app", "tauri", "vscode-file", "vscode-webview"})
"""Schemes of the pages that programs on this machine bring along, as editors' plugins do. No site can have them."""


def refused(settings: Settings, headers: Headers, *, by_browser: bool = False) -> Refusal | None:
    """Return the answer for somebody who may not ask; None for all others. A browser shows the token as a password."""
    refusal = _who(settings, headers, by_browser=by_browser)
    if refusal is None and value_of(headers, b"upgrade").lower() == "websocket":
        # Clients that would rather have a WebSocket go by this status, and stream over HTTP then.
        return Refusal(426, "the gateway takes no WebSockets: stream over HTTP", is_final=True)
    return refusal


def _who(settings: Settings, headers: Headers, *, by_browser: bool) -> Refusal | None:
    if settings.token:
        if not _shows(settings, headers) and not (by_browser and _equal(_password(headers), settings.token)):
            return Refusal(401, "the gateway wants its token, in the header x-chatstack-token", is_final=True)
        return None
    # Without a token everybody on this machine may ask. A page in a browser there is not this machine's own.
    if not is_loopback(_host_of(f"//{value_of(headers, b'host')}")):
        return Refusal(403, "the gateway answers to the names of this machine alone", is_final=True)
    origin = value_of(headers, b"origin")
    if origin and not _is_of_this_machine(origin):
        return Refusal(403, "the gateway answers no pages from elsewhere", is_final=True)
    return None


def _is_of_this_machine(origin: str) -> bool:
    return origin.partition(":")[0] in _APPS or is_loopback(_host_of(origin))


def is_admin(settings: Settings, headers: Headers) -> bool:
    """Return True if the request shows the administrator's token."""
    shown = value_of(headers, b"authorization").removeprefix("Bearer ").strip()
    return bool(settings.admin_token) and _equal(shown, settings.admin_token)


def with_key(settings: Settings, headers: Headers, *, is_anthropic: bool) -> list[tuple[bytes, bytes]]:
    """Return the headers with the server's key in the place of the caller's, if the server has one; without it, the
    caller's go on as they came. Tokens of the gateway's own go nowhere."""
    if not settings.key:
        return [each for each in headers if not (each[0] in KEYS and _is_own(settings, each[1]))]
    rest = [each for each in headers if each[0] not in KEYS]
    bearer = b"Bearer " + settings.key.encode()
    key = (b"x-api-key", settings.key.encode()) if is_anthropic else (b"authorization", bearer)
    return [*rest, key]


def _is_own(settings: Settings, value: bytes) -> bool:
    shown = value.decode("latin-1").strip()
    scheme, _, told = shown.partition(" ")
    shown = told.strip() if scheme.lower() == "bearer" else shown
    return any(token and _equal(shown, token) for token in (settings.token, settings.admin_token))


def _shows(settings: Settings, headers: Headers) -> bool:
    if _equal(value_of(headers, TOKEN), settings.token):
        return True
    if not settings.key:  # then what is shown there is the caller's key, for upstream
        return False
    shown = [value_of(headers, name).removeprefix("Bearer ").strip() for name in KEYS]
    return any(_equal(each, settings.token) for each in shown)


def _password(headers: Headers) -> str:
    """Return the password by which a browser shows the token; "" without one."""
    scheme, _, told = value_of(headers, b"authorization").partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(told, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _host_of(url: str) -> str:
    """Return the name of a host, without the port; "" if it cannot be read."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
