"""What a program writes on standard error beside its warnings, which Python's logging prints there by itself."""

from __future__ import annotations

from typing import get_args

from chatstack.semconv import WarningCode

_BEGINNINGS = tuple(f"{code}: " for code in get_args(WarningCode))


def without_warnings(stderr: str) -> str:
    """The lines that are no warning of ours."""
    return "".join(line for line in stderr.splitlines(keepends=True) if not line.startswith(_BEGINNINGS))
