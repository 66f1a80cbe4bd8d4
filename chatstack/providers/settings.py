"""Validation of provider settings at construction: one ``WiringError`` that names the parameter."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from typing import Annotated, TypeAlias, cast, get_args
from urllib.parse import urlsplit

from msgspec import Meta

from chatstack.errors import WiringError

BaseUrl: TypeAlias = Annotated[str, Meta(extra_json_schema={"pattern": "^https?://[^/?#]"})]

# An HTTP library's error for an invalid header quotes the header, and with it the key.
_HEADER_SAFE = re.compile(r"[\x21-\x7e]+")


def check_settings(
    owner: str,
    *,
    model: object,
    timeout_seconds: object,
    max_retries: object,
    stall_seconds: object,
    window_tokens: object,
) -> None:
    """Raise ``WiringError``, naming ``owner`` and the parameter, for a setting that no provider can work with."""
    if not isinstance(model, str) or not model.strip():
        raise _wrong(owner, "model", "must be the name of a model", model)
    for name, seconds in (("timeout_seconds", timeout_seconds), ("stall_seconds", stall_seconds)):
        if seconds is not None and not _is_duration(seconds):
            raise _wrong(owner, name, "must be a number of seconds above 0, or None", seconds)
    if max_retries is not None and not _is_whole(max_retries, 0):
        raise _wrong(owner, "max_retries", "must be a whole number, 0 or more", max_retries)
    if window_tokens is not None and not _is_whole(window_tokens, 1):
        raise _wrong(owner, "window_tokens", "must be a whole number above 0, or None", window_tokens)


def check_choice(owner: str, parameter: str, value: object, choices: object) -> None:
    """Raise ``WiringError``, naming ``owner`` and the parameter, unless the value is one of a ``Literal``'s, or of a
    collection's."""
    names = get_args(choices) or tuple(cast("Collection[object]", choices))
    if value not in names:
        raise _wrong(owner, parameter, f"must be one of {', '.join(map(repr, names))}", value)


def check_base_url(owner: str, base_url: object) -> None:
    """Raise ``WiringError`` for an invalid server address, without showing it: it may hold a password."""
    remedy = f"{owner}: base_url must be like 'https://host:port/path'"
    if not isinstance(base_url, str):
        raise WiringError(f"{remedy}, not {type(base_url).__name__}", parameter="base_url")
    fault = fault_in_address(base_url)
    if fault:
        raise WiringError(f"{remedy}: {fault}", parameter="base_url")


def fault_in_address(url: str) -> str:
    """Return what is wrong with the address of a server, without showing that; "" if nothing is."""
    try:
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname or address.port == 0:
            return "scheme, host or port is missing or wrong"
    except ValueError:
        return "host or port is none"
    return ""


def check_key(owner: str, key: object) -> None:
    """Raise ``WiringError``, without the key, for a key that no header may hold. Keys from a callable are not
    checked."""
    if key is None or callable(key):
        return
    if not isinstance(key, str):
        raise WiringError(f"{owner}: api_key must be text, not {type(key).__name__}", parameter="api_key")
    if not key:
        raise WiringError(f"{owner}: api_key is empty; pass any text for a server that needs none", parameter="api_key")
    if not _HEADER_SAFE.fullmatch(key):
        raise WiringError(
            f"{owner}: api_key holds white space or characters that no header may hold: is there a line break at its "
            "end, or a quotation mark that is none of ASCII's?",
            parameter="api_key",
        )


def _wrong(owner: str, parameter: str, wanted: str, found: object) -> WiringError:
    shown = repr(found) if isinstance(found, (int, float, str)) and len(str(found)) <= 40 else type(found).__name__
    return WiringError(f"{owner}: {parameter} {wanted}, not {shown}", parameter=parameter)


def _is_duration(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
