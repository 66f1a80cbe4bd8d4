"""Data URLs: addresses that hold a picture or a file themselves."""

from __future__ import annotations


def data_url(media_type: str, data: str) -> str:
    """Return the data URL of base64 text."""
    return f"data:{media_type};base64,{data}"


def split_data_url(url: str) -> tuple[str, str] | None:
    """Return media type, parameters included, and base64 text of a data URL, "" for a media type that it does not tell;
    None for any other address."""
    if not url.startswith("data:"):
        return None
    head, comma, data = url.partition(",")
    is_base64 = bool(comma) and head.endswith(";base64")
    return (head.removeprefix("data:").removesuffix(";base64"), data) if is_base64 else None
