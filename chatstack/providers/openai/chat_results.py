"""Tool results for OpenAI's own chat completions, which take text alone in them; compatible servers take pictures, too,
but many of them no list of texts.

Pure functions. Source: ``ChatCompletionToolMessageParam`` of the openai SDK, whose content is text, or parts of text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from chatstack.providers.extras import WireObject
from chatstack.providers.openai.hosts import is_openai_or_azure

_AZURE_CLIENT = "AsyncAzureOpenAI"
_NOTE = "[Pictures and files of this result follow in the next user message.]"


def takes_text_alone(client: object, host: str) -> bool:
    """Return True for a server that refuses pictures and files in the results of tools: OpenAI's own, and Azure's, at
    its own address or behind another one."""
    return is_openai_or_azure(host) or any(kind.__name__ == _AZURE_CLIENT for kind in type(client).__mro__)


def with_text_results(messages: Sequence[WireObject]) -> list[WireObject]:
    """Return the messages of a request with the pictures and files of results in a user message behind the last result
    of their round, each under the name of its tool."""
    return list(_moved(messages))


def with_joined_texts(messages: Sequence[WireObject]) -> list[WireObject]:
    """Return the messages of a request with results of nothing but text as a string: many servers refuse a list of
    texts there, or read nothing of it."""
    return [{**each, "content": text} if (text := _joined(each)) else each for each in messages]


def _joined(message: WireObject) -> str:
    content = message.get("content")
    if message["role"] != "tool" or not isinstance(content, list):
        return ""
    parts = cast("list[WireObject]", content)
    is_plain = all(part.get("type") == "text" and len(part) == 2 for part in parts)  # a cache's mark stays where it is
    return "\n".join(str(part["text"]) for part in parts) if is_plain else ""


def _moved(messages: Sequence[WireObject]) -> Iterator[WireObject]:
    names: dict[object, object] = {}
    waiting: list[WireObject] = []
    for message in messages:
        for call in cast("list[WireObject]", message.get("tool_calls") or ()):
            names[call["id"]] = cast("WireObject", call.get("function") or call.get("custom") or {}).get("name")
        if waiting and message["role"] != "tool":
            yield {"role": "user", "content": waiting}
            waiting = []
        content = message["content"]
        if message["role"] == "tool" and isinstance(content, list):
            parts = cast("list[WireObject]", content)
            texts = [part for part in parts if part.get("type") == "text"]
            if len(texts) < len(parts):
                called = message["tool_call_id"]
                named: WireObject = {"type": "text", "text": f"Result of {names.get(called, 'a tool')} ({called}):"}
                waiting += [named, *(part for part in parts if part.get("type") != "text")]
                message = {**message, "content": [*texts, {"type": "text", "text": _NOTE}]}
        yield message
    if waiting:
        yield {"role": "user", "content": waiting}
