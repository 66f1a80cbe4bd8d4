"""Marks for Anthropic's prompt cache. Pure functions on the body of a request; the SDK is not imported.

The API caches the prefix up to a block only if that block has a mark (``cache_control``). It reads the longest prefix
that was cached before and ends at a mark, or at most 20 blocks before one. Marks are not part of what is compared, so
they may move from call to call. Where they stand follows from the request alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from chatstack.providers.extras import WireObject, field_of, objects_in

CacheLifetime: TypeAlias = Literal["off", "5m", "1h"]
"""The lifetime of a cached prefix, counted from its last use; ``"off"`` sets no marks."""

MOST_MARKS: Final = 4
"""Maximum number of marks in a request."""
LOOK_BACK: Final = 20
"""Number of blocks, that of the mark included, among which the API looks for the end of a cached prefix."""

_MARK = "cache_control"
_MARKABLE = frozenset({"text", "image", "document", "search_result", "tool_use", "tool_result"})
"""Types of blocks that can have a mark. Thinking cannot, and of blocks that only Anthropic understands, not all can."""


class _Given(NamedTuple):
    """A mark that the caller has set. ``place`` counts all blocks: tools, system, messages."""

    place: int
    is_long: bool


def mark(
    body: WireObject, lifetime: CacheLifetime, *, extra: Mapping[str, object], edited: WireObject | None = None
) -> None:
    """Set marks in the body of a request, at most four with those that the caller has set.

    By weight: at the end of the request; at the end of the request before it, which is all before the last answer;
    behind the system prompt; behind ``edited``, the last block of the last edited message; behind the tools. A request
    without tools and without an answer gets none at its end, as nothing is likely to read it again. Fields that come
    from ``extra`` are the caller's, and get none.

    The API wants longer lifetimes before shorter ones, so a mark before an hour-long one of the caller's lives an hour,
    and one behind a short one is short.
    """
    if lifetime == "off":
        return
    tools, system = objects_in(body.get("tools")), objects_in(body.get("system"))
    messages = objects_in(body.get("messages"))
    order = [*tools, *system, *(block for message in messages for block in objects_in(message.get("content")))]
    given = _given_marks(body, order)
    ends = _Ends()
    if "messages" not in extra and (tools or any(message.get("role") == "assistant" for message in messages)):
        # An automatic mark (``cache_control`` of the body) stands at the end, where there can be no second one.
        ends = _ends(messages, edited, is_end_free=not body.get(_MARK))
    far, near = (ends.before, None) if ends.is_far else (None, ends.before)
    behind_system = _last(system) if "system" not in extra else None
    behind_tools = _last_tool(tools) if "tools" not in extra else None
    wanted = _unmarked((ends.end, far, behind_system, ends.edit, behind_tools, near))
    chosen = {id(block) for block in wanted[: max(0, MOST_MARKS - len(given))]}
    for place, block in enumerate(order):
        if id(block) in chosen:
            block[_MARK] = _mark_at(place, lifetime, given)


class _Ends(NamedTuple):
    """The blocks of the messages that want a mark: at the end, at the end of the request before, and behind the last
    edit. ``is_far`` if a look back from the end does not get to the one before."""

    end: WireObject | None = None
    before: WireObject | None = None
    edit: WireObject | None = None
    is_far: bool = False


def _ends(messages: Sequence[WireObject], edited: WireObject | None, *, is_end_free: bool) -> _Ends:
    blocks: list[WireObject] = []
    sent_before = behind_edit = 0
    for message in messages:
        if message.get("role") == "assistant":
            sent_before = len(blocks)
        for block in objects_in(message.get("content")):
            blocks.append(block)
            if block is edited:
                behind_edit = len(blocks)
    end, before, edit = (_last_place(blocks[:length]) for length in (len(blocks), sent_before, behind_edit))
    is_far = end is not None and before is not None and end - before >= LOOK_BACK
    places = (end, before, edit)
    at_end, at_before, at_edit = (
        blocks[at] if at is not None and (is_end_free or at != end) else None for at in places
    )
    return _Ends(at_end, at_before, at_edit, is_far)


def _last_place(blocks: Sequence[WireObject]) -> int | None:
    """Return the place of the last block that can have a mark."""
    return next((at for at in range(len(blocks) - 1, -1, -1) if _is_markable(blocks[at])), None)


def _last(blocks: Sequence[WireObject]) -> WireObject | None:
    at = _last_place(blocks)
    return None if at is None else blocks[at]


def _is_markable(block: Mapping[str, object]) -> bool:
    kind = block.get("type")
    return kind in _MARKABLE and (kind != "text" or bool(str(block.get("text", "")).strip()))


def _last_tool(tools: Sequence[WireObject]) -> WireObject | None:
    """Return the last tool that can have a mark: one that is loaded only when it is searched for is not in the
    prefix."""
    return next((tool for tool in reversed(tools) if not _is_deferred(tool)), None)


def _is_deferred(tool: Mapping[str, object]) -> bool:
    by_default = field_of(tool.get("default_config"), "defer_loading")  # of all the tools of an MCP server
    return bool(tool.get("defer_loading") or by_default)


def _unmarked(blocks: Sequence[WireObject | None]) -> list[WireObject]:
    """Return the blocks without a mark, each once, in their order."""
    return list({id(block): block for block in blocks if block is not None and not block.get(_MARK)}.values())


def _given_marks(body: Mapping[str, object], order: Sequence[WireObject]) -> list[_Given]:
    found = [_Given(place, _is_long(each)) for place, block in enumerate(order) for each in _marks_in(block)]
    automatic = body.get(_MARK)
    return [*found, _Given(len(order), _is_long(automatic))] if automatic else found


def _marks_in(block: Mapping[str, object]) -> Iterator[object]:
    """Yield the marks of a block, and of the blocks within it."""
    if block.get(_MARK):
        yield block[_MARK]
    inner = objects_in(field_of(block.get("source"), "content"))
    for each in (*objects_in(block.get("content")), *inner):
        yield from _marks_in(each)


def _is_long(mark: object) -> bool:
    return field_of(mark, "ttl") == "1h"


def _mark_at(place: int, lifetime: CacheLifetime, given: Sequence[_Given]) -> WireObject:
    is_long = lifetime == "1h" and all(each.is_long for each in given if each.place < place)
    if is_long or any(each.is_long for each in given if each.place > place):
        return {"type": "ephemeral", "ttl": "1h"}
    return {"type": "ephemeral"}
