"""Messages as the ``contents`` of a request, in the order that the API demands. Pure functions.

The API refuses contents that do not begin with the user, calls that follow the model's own words in another content,
and responses that are not directly behind their calls, one for each. So messages of one role in a row are one content;
results move up behind their calls, in the order of the calls; a call without a result gets an error as its response. A
result without a call before it is an ``InputError``: there is no place for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import cast

from chatstack.errors import InputError
from chatstack.providers.extras import WireObject
from chatstack.values.messages import Message
from chatstack.values.parts import Part, Text, ToolCall, ToolResult
from chatstack_gemini.parts import UNCHECKED_SIGNATURE, missing_result, result_to_wire, written

_OPENING = "Begin."
_BLANK = "(empty message)"


def contents_of(messages: Sequence[Message], start: int = 0, *, is_signed: bool) -> list[WireObject]:
    """Return the contents for the messages from ``start`` on: those before are the system instruction.

    Where ``is_signed``, the model demands signatures: a call of another model's gets one that says so. A system message
    is a part of the user's here, in ``<system>``: the API has no other place for it, and in the system instruction it
    would change the beginning of every later request.
    """
    contents: list[WireObject] = []
    responses = _Responses(messages)
    at = start
    while at < len(messages):
        end = at + 1
        if messages[at].role == "assistant":
            while end < len(messages) and messages[end].role == "assistant":
                end += 1
            said = [part for message in messages[at:end] for part in message.parts]
            _add(contents, "model", _signed(written(said)) if is_signed else written(said))
            calls = [part for part in said if isinstance(part, ToolCall)]
            if calls:
                _add(contents, "user", responses.to(calls, end))
        else:
            _add(contents, "user", _of_user(messages[at], at, responses))
        at = end
    return contents


class _Responses:
    """Finds the results of calls, each of which is used once."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._used: set[tuple[int, int]] = set()

    def to(self, calls: Sequence[ToolCall], start: int) -> list[WireObject]:
        """Return a response to each call, from the messages between ``start`` and the next of the model's; none to
        calls that end the history, which are still being worked on."""
        if start == len(self._messages):
            return []
        waiting: dict[str, deque[int]] = {}
        for position, call in enumerate(calls):
            waiting.setdefault(call.id, deque()).append(position)
        found: dict[int, ToolResult] = {}
        for place, result in self._until_model_speaks(start):
            if waiting.get(result.call_id):
                found[waiting[result.call_id].popleft()] = result
                self._used.add(place)
        return [
            result_to_wire(found[at], call.name) if at in found else missing_result(call)
            for at, call in enumerate(calls)
        ]

    def were_used(self, message: int, part: int) -> bool:
        return (message, part) in self._used

    def _until_model_speaks(self, start: int) -> Iterator[tuple[tuple[int, int], ToolResult]]:
        for at in range(start, len(self._messages)):
            message = self._messages[at]
            if message.role == "assistant":
                return
            for number, part in enumerate(message.parts):
                if isinstance(part, ToolResult):
                    yield (at, number), part


def _of_user(message: Message, at: int, responses: _Responses) -> list[WireObject]:
    rest: list[Part] = []
    for number, part in enumerate(message.parts):
        if not isinstance(part, ToolResult):
            rest.append(part)
        elif not responses.were_used(at, number):
            raise InputError(
                f"messages[{at}]: the result of the call {part.call_id!r} has no call before it, or is its second one; "
                "Gemini refuses that"
            )
    parts = written(rest)
    if message.role == "system":
        return _of_system(message, parts)
    return parts or ([{"text": _BLANK}] if message.role == "user" else [])


def _of_system(message: Message, parts: list[WireObject]) -> list[WireObject]:
    if all(isinstance(part, Text) for part in message.parts):
        return [{"text": f"<system>\n{message.text}\n</system>"}] if message.text.strip() else []
    return [{"text": "<system>\n"}, *parts, {"text": "\n</system>"}] if parts else []


def _signed(parts: list[WireObject]) -> list[WireObject]:
    """Return the parts of one answer, its first call with a signature: that is the one that the API looks at."""
    for position, part in enumerate(parts):
        if "functionCall" in part:
            if "thoughtSignature" not in part:
                parts[position] = {**part, "thoughtSignature": UNCHECKED_SIGNATURE}
            break
    return parts


def _add(contents: list[WireObject], role: str, parts: list[WireObject]) -> None:
    if not parts:
        return
    if not contents and role == "model":
        contents.append({"role": "user", "parts": [{"text": _OPENING}]})
    if contents and contents[-1]["role"] == role:
        cast("list[WireObject]", contents[-1]["parts"]).extend(parts)
    else:
        contents.append({"role": role, "parts": parts})
