"""Request bodies that cannot fail later, below the SDK, where an error would quote the prompt."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec

from chatstack.errors import InputError
from chatstack.providers.extras import WireObject, encoded
from chatstack.values.parts import ProviderItem
from chatstack.values.requests import ChatOptions, ChatRequest, declared_names, refuse_blank
from chatstack.values.surrogates import lone_surrogate_in

_HALF = "holds half a character (a lone surrogate), which cannot be sent"
_DEEP = "nests too deeply"
_LONG = frozenset({"messages", "input", "system", "tools", "instructions", "contents", "systemInstruction"})
"""Fields made of our own values: only their text can be invalid."""


def sendable(request: ChatRequest, write: Callable[[], WireObject]) -> WireObject:
    """Return the body that ``write`` makes of the request.

    Raises ``InputError`` naming the place, and never quoting it, for content that cannot be sent: nothing but white
    space, options that are not JSON, and text that cannot be encoded. Its chain has no exception that holds the text.
    So it does where a tool is demanded that another API alone is told of.
    """
    refuse_blank(request.messages)
    for name, value in request.options.extra.items():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"options.extra: its names must be text, not {type(name).__name__}")
        fault = _fault_of(value) or _fault_of(name)
        if fault:
            raise InputError(f"options.extra[{name!r}]: {fault}")
    body, fault = _written(write)
    if body is None:
        raise InputError(f"{_place_of_half(request) if fault == _HALF else 'messages'}: {fault}")
    for name, value in body.items():
        fault = "" if name in _LONG else _fault_of(value)
        if fault:
            raise InputError(f"options.{name}: {fault}")
    _check_choice(request.options, body)
    return body


def _check_choice(options: ChatOptions, body: WireObject) -> None:
    """Raise ``InputError`` if the tool that is chosen by its name is left out of those that are sent: as an item of
    another API, which only that one takes."""
    items = [tool for tool in options.tools if isinstance(tool, ProviderItem)]
    choice = options.tool_choice
    if choice not in declared_names(items) or "tool_choice" in options.extra:
        return
    if encoded(choice) not in encoded(body.get("tools")):
        raise InputError(f"options.tool_choice={choice!r}: that tool is declared in the form of another API alone")


def _written(write: Callable[[], WireObject]) -> tuple[WireObject | None, str]:
    """Return the body, or its fault. The exception, which quotes the text, is dropped here."""
    try:
        body = write()
        for name in _LONG & body.keys():
            msgspec.json.encode(body[name])
    except UnicodeEncodeError:
        return None, _HALF
    except RecursionError:
        return None, _DEEP
    return body, ""


def _place_of_half(request: ChatRequest) -> str:
    for position, message in enumerate(request.messages):
        try:
            msgspec.json.encode(message)
        except UnicodeEncodeError:
            return f"messages[{position}]"
    return "options.tools" if lone_surrogate_in(request.options.instructions) is None else "options.instructions"


def _fault_of(value: object) -> str:
    """Return the reason why a value cannot go out as JSON; "" if it can."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return _HALF
    except RecursionError:
        return _DEEP
    except TypeError:
        return "holds something that JSON has no form for"
    except ValueError:
        return "holds a number that JSON has no form for (nan, infinity), or itself"
    return ""
