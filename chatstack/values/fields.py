"""Type checks for the fields of values: an ``InputError`` names class, field and type, never the content."""

from __future__ import annotations

import msgspec
from msgspec.structs import force_setattr

from chatstack.values.errors import InputError


def check_text(value: msgspec.Struct, **wanted: str) -> None:
    """Raise ``InputError`` for the first field that is not text; ``wanted`` says for each what it should be.

    Values are made on every call, so they compare types themselves first, and call this only if one differs. A subclass
    of ``str`` (a member of a ``StrEnum``) becomes plain text: no encoder knows it.
    """
    for name, kind in wanted.items():
        found: object = getattr(value, name)
        if not isinstance(found, str):
            raise wrong_type(value, name, kind, found)
        if type(found) is not str:
            force_setattr(value, name, str.__str__(found))


def shown(value: msgspec.Struct) -> str:
    """Return the repr of a value that says in ``__rich_repr__`` what may be seen of it."""
    fields = ", ".join(f"{name}={each!r}" for name, each in value.__rich_repr__())
    return f"{type(value).__name__}({fields})"


def check_flag(value: msgspec.Struct, name: str) -> None:
    """Raise ``InputError`` for a field that is neither True nor False, such as a database's 0 and 1."""
    found: object = getattr(value, name)
    if not isinstance(found, bool):
        raise wrong_type(value, name, "True or False", found)


def wrong_type(value: object, field: str, wanted: str, found: object) -> InputError:
    """Return the error for a field of the wrong type."""
    kind = type(found).__name__
    remedy = "; await it first" if kind == "coroutine" else ""
    return InputError(f"{type(value).__name__}: {field} must be {wanted}, not {kind}{remedy}")
