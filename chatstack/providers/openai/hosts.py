"""Hosts of OpenAI's own servers and of Azure's, among all that speak OpenAI's APIs."""

from __future__ import annotations

from typing import Final

_OPENAI: Final = "api.openai.com"
_AZURE: Final = (".azure.com", ".azure.us", ".azure.cn")


def is_openai(host: str) -> bool:
    """Return True for OpenAI's own servers, those of its regions included."""
    return host == _OPENAI or host.endswith(f".{_OPENAI}")


def is_openai_or_azure(host: str) -> bool:
    """Return True for OpenAI's own servers, and for Azure's."""
    return is_openai(host) or host.endswith(_AZURE)
