"""Recall: a tool with which the model gets back a tool result whose content was cleared from its context."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from chatstack.context.edits.handles import RECALL_DESCRIPTION, handle_of
from chatstack.context.edits.units import is_users
from chatstack.errors import ToolError, WiringError
from chatstack.tools.output import Output
from chatstack.tools.parameters import ToolContext
from chatstack.tools.tool import Tool, tool
from chatstack.values.messages import Message
from chatstack.values.parts import File, Image, ProviderItem, Text, ToolCall, ToolResult

_LEAST_PAGE = 100
_LONGEST_CHARACTER = 32
"""Maximum length of one visible character, in code points: a page does not end within a shorter one."""
_LINE_SHARE = 8
"""A page ends at a line break if there is one in the last eighth of the page."""
_JOINER = "\u200d"
_TIMES = 2
"""Maximum number of times that the same page is given back in a turn."""
_PAGE = re.compile(r"\[page \d+ of \d+")


def recall_tool(*, page_chars: int = 8_000, name: str = "recall") -> Tool[..., Output]:
    """Return a tool for ``FunctionInvoker`` that gives back a cleared tool result, in pages of at most ``page_chars``.
    A page holds one picture or file at the most, and ends with it.

    For placeholders that name a ``{handle}``. It looks only among the unedited messages of the request being served, so
    it cannot reach another conversation. An unknown handle gives an error result that says what to do. Give it to the
    tool loop from the first call on: a tool that is declared later invalidates the prompt cache. Its own result may
    be cleared in its turn, but after others; its handle then stands for what it gave back. What has been recalled twice
    in a turn is not given a third time: the answer says where it stands.
    """
    if type(page_chars) is not int or page_chars < _LEAST_PAGE:
        raise WiringError(
            f"recall_tool: page_chars={page_chars!r} must be a whole number, {_LEAST_PAGE} or more",
            parameter="page_chars",
        )

    # A plain function, so that it runs in a thread: searching a long history would block the event loop.
    @tool(name=name, description=RECALL_DESCRIPTION)
    def recall(
        handle: Annotated[str, "The handle that stands in the place of the cleared content."],
        context: ToolContext,
        page: Annotated[int, "Which page, from 1 on."] = 1,
    ) -> Output:
        beside = _asked_beside(context, _Asked(handle, page))
        result, page = _found(handle.strip(), page, context.messages, name)
        if result is None:
            raise ToolError(
                "no tool result of this conversation has that handle. Handles stand in the placeholders of cleared "
                "results: copy one from there, letter by letter, or call the tool that gave the result again instead."
            )
        pages = list(_pages(result, page_chars))
        last = len(pages)
        if not 1 <= page <= last:
            raise ToolError(f"there is no such page. That result has {_counted(last)}; call again with one of them.")
        following = f"; for the next: {name}(handle={handle_of(result)!r}, page={page + 1})" if page < last else ""
        text, medium = pages[page - 1]
        text = f"[page {page} of {last}{following}]\n{text}"
        given: Output = text if medium is None else (Text(text), medium)
        return _where_it_stands(given, context.messages, beside) or given

    return recall


def _counted(pages: int) -> str:
    return "one page, page 1" if pages == 1 else f"{pages} pages, 1 to {pages}"


def _found(handle: str, page: int, messages: Sequence[Message], name: str) -> tuple[ToolResult | None, int]:
    """Return the newest result with that handle, and the page of it. The handle of a recalled page is that page."""
    for at in range(len(messages) - 1, -1, -1):
        for result in reversed(messages[at].original.results):
            if handle_of(result) == handle:
                asked = _recall_of(result, messages[:at], name)
                if asked is None:
                    return result, page
                handle, page = asked.handle, asked.page
                break
    return None, page


class _Asked(msgspec.Struct):
    """The arguments of a recall."""

    handle: str
    page: int = 1

    def __post_init__(self) -> None:
        self.handle = self.handle.strip()


def _recall_of(result: ToolResult, before: Sequence[Message], name: str) -> _Asked | None:
    """Return what a result was recalled by; None if it is no page of another one."""
    if not _PAGE.match(result.text):
        return None
    calls = (call for message in reversed(before) for call in message.calls if call.id == result.call_id)
    call = next(calls, None)
    return None if call is None or call.name != name else _asked_by(call)


def _asked_by(call: ToolCall) -> _Asked | None:
    try:
        return msgspec.json.decode(call.arguments, type=_Asked, strict=False)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def _asked_beside(context: ToolContext, asked: _Asked) -> int:
    """Return the number of calls in the same round that ask for the same, and stand before this one."""
    for message in reversed(context.messages):
        ids = [call.id for call in message.calls]
        if context.call_id in ids:
            before = message.calls[: ids.index(context.call_id)]
            return sum(call.name == context.tool_name and _asked_by(call) == asked for call in before)
    return 0


def _where_it_stands(given: Output, messages: Sequence[Message], beside: int) -> str:
    """Return where this answer stands, if it was given twice since the user spoke last, those ``beside`` this one
    included; "" if it was not."""
    ago: list[int] = []
    for number, message in enumerate(reversed(messages), 1):
        if is_users(message):
            break
        if any(result.output == given for result in message.original.results):
            ago.append(number)
    times = len(ago) + beside
    if times < _TIMES:
        return ""
    since = "a call beside this one"
    if ago:
        since = "the last message" if ago[0] == 1 else f"{ago[0]} messages ago"
    return (
        f"[not given again: it was recalled {times} times in this turn, and stands in the result of {since}. Read "
        "it there. If it was cleared since, write down what you need of it, or go on without.]"
    )


def _pages(result: ToolResult, page_chars: int) -> Iterator[tuple[str, Image | File | None]]:
    """Yield the pages of a result, one at least: text, and the picture or the file behind it."""
    lines: list[str] = []
    for part in (Text(result.output),) if isinstance(result.output, str) else result.output:
        if isinstance(part, Image) or (isinstance(part, File) and not part.text):
            *before, last = _cut_up("\n".join(lines), page_chars)
            yield from ((text, None) for text in before)
            yield last, part
            lines = []
        else:
            lines.append(_readable(part))
    if lines or not result.output:
        yield from ((text, None) for text in _cut_up("\n".join(lines), page_chars))


def _readable(part: Text | File | ProviderItem) -> str:
    if isinstance(part, ProviderItem):
        return f"[an item that only {part.provider} can read]"
    return f"[file {part.name}]\n{part.text}" if isinstance(part, File) and part.name else part.text


def _cut_up(text: str, page_chars: int) -> list[str]:
    starts = list(_page_starts(text, page_chars))
    return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def _page_starts(text: str, page_chars: int) -> Iterator[int]:
    """Yield the start of every page; the first page always exists."""
    yield 0
    start = 0
    while len(text) - start > page_chars:
        start = _cut(text, start, start + page_chars)
        yield start


def _cut(text: str, start: int, end: int) -> int:
    """Return the end of a page, ``end`` at most: behind a line break if there is one, else between two characters."""
    line = text.rfind("\n", end - (end - start) // _LINE_SHARE, end)
    if line >= 0:
        return line + 1
    for at in range(end, end - _LONGEST_CHARACTER, -1):
        if not _belongs_to_the_one_before(text, at):
            return at
    return end


def _belongs_to_the_one_before(text: str, at: int) -> bool:
    """Return True if the code point there continues the character before it, as far as that can be told without
    tables."""
    before, here = text[at - 1], text[at]
    if before.isascii() and here.isascii():
        return before == "\r" and here == "\n"
    code = ord(here)
    return (
        unicodedata.category(here).startswith("M")  # accents, vowel signs, variation selectors
        or _JOINER in (before, here)
        or 0x1F3FB <= code <= 0x1F3FF  # skin tones of emoji
        or 0xE0020 <= code <= 0xE007F  # the tag characters of a flag
        or 0x1160 <= code <= 0x11FF  # vowels and final consonants of a Korean syllable
        or ("\ud800" <= before <= "\udbff" and "\udc00" <= here <= "\udfff")
        or (_is_regional(here) and _is_second_of_a_flag(text, at))
    )


def _is_regional(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _is_second_of_a_flag(text: str, at: int) -> bool:
    """Return True for the second letter of a flag. Letters come in pairs, counted from the start of the row, or from
    near."""
    first = at
    while first > max(0, at - 2 * _LONGEST_CHARACTER) and _is_regional(text[first - 1]):
        first -= 1
    return (at - first) % 2 == 1
