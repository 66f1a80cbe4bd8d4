"""Tool results for OpenAI's own chat completions, which take text alone in them; compatible servers take pictures, too.

Pure functions. Source: ``ChatCompletionToolMessageParam`` of the openai SDK, whose content is text, or parts of text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from chatstack.providers.openai.prompt_cache import is_openai
from chatstack.values.messages import Message
from chatstack.values.parts import File, Image, Text, ToolResult

_AZURE = ".openai.azure.com"
_NOTE = "[Pictures and files of this result follow in the next user message.]"


def takes_text_alone(host: str) -> bool:
    """Return True for a server that refuses pictures and files in the results of tools."""
    return is_openai(host) or host.endswith(_AZURE)


def with_text_results(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with the pictures and files of results in a message of the user's behind the last result of
    their round, each under the name of its tool; the same objects where there are none."""
    return tuple(_moved(messages))


def _moved(messages: Sequence[Message]) -> Iterator[Message]:
    waiting: list[Text | Image | File] = []
    for message in messages:
        if waiting and not message.results:
            yield Message.user(*waiting)
            waiting = []
        moved = [found for part in message.parts for found in _beside_text(part)]
        if moved:
            waiting += moved
            message = msgspec.structs.replace(message, parts=tuple(map(_in_text, message.parts)))
        yield message
    if waiting:
        yield Message.user(*waiting)


def _beside_text(part: object) -> list[Text | Image | File]:
    """Return the pictures and files of a result, behind a line that names it; nothing for any other part."""
    if not isinstance(part, ToolResult) or isinstance(part.output, str):
        return []
    found = [each for each in part.output if isinstance(each, Image | File)]
    return [Text(f"Result of {part.name or 'the tool'} ({part.call_id}):"), *found] if found else []


def _in_text(part: object) -> object:
    if not isinstance(part, ToolResult) or not _beside_text(part):
        return part
    kept = [each for each in part.output if not isinstance(each, str | Image | File)]
    return msgspec.structs.replace(part, output=(*kept, Text(_NOTE)))
