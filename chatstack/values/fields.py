"""What the fields of a value may hold: an ``InputError`` names class, field and type, never what was in it."""

from __future__ import annotations

from chatstack.errors import InputError


def check_text(value: object, **wanted: str) -> None:
    """Raise ``InputError`` for the first field that is not text; ``wanted`` says for each what it should be.

    Values are made on every call, so they compare types themselves first, and ask here only if something is odd.
    """
    for name, kind in wanted.items():
        found: object = getattr(value, name)
        if not isinstance(found, str):
            raise wrong_type(value, name, kind, found)


def wrong_type(value: object, field: str, wanted: str, found: object) -> InputError:
    """What to raise for a field of the wrong type."""
    return InputError(f"{type(value).__name__}: {field} must be {wanted}, not {type(found).__name__}")
