"""Shortening: new tool results that are too large for the limit are cut in the middle."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, cast

from msgspec.structs import replace

from chatstack.context.edits.context import Context
from chatstack.context.edits.excerpts import bytes_in, head_and_tail, is_excerpt, left_out
from chatstack.context.edits.handles import handle_of, recall_call, recall_name
from chatstack.context.edits.pairing import alone, as_it_came, in_full
from chatstack.context.edits.plans import Plan
from chatstack.context.edits.summaries import OPENING
from chatstack.values.messages import Annotation, Message
from chatstack.values.parts import File, Image, Part, ProviderItem, Text, ToolResult

_FAIR_SHARE = 0.5
"""Maximum share of the limit for one shortened result, so that something else fits beside it."""
_ALL = 0.75
"""Share of the limit for all results of one round together, if they exceed the whole limit."""
_LEAST_SHARE = 0.125
"""Share of the limit below which summaries are shortened, too; results get less only if that suffices."""
_MOST_BYTES = 4
"""Maximum bytes of one character in UTF-8."""
_FRAME = 64
_LEFT_OUT = re.compile(r"\[[^\n\[\]]*\bleft out\b[^\n\[\]]*\]")

_Block: TypeAlias = Text | Image | File | ProviderItem


def unseen_results(context: Context) -> list[int]:
    """Return the positions of messages with tool results that the model has not seen, and that may be edited.

    The latest user message may not be edited, not even a result in it.
    """
    new = range(0 if context.late else context.latest_assistant + 1, len(context.messages))
    return [at for at in new if context.has_new(at) and _may_be_edited(context, at)]


def never_whole(context: Context, strategy: str, limit: int) -> dict[int, Message]:
    """Shorten the results of each round that together exceed the limit, seen or not, as they cannot have been sent
    whole; return the shortened messages by position.

    The outcome is a function of these results, the limit and the counter only, so the same is sent again by a process
    that has not kept what was sent.
    """
    found: dict[int, Message] = {}
    for positions in _rounds(context):
        results = [result for at in positions for result in context.messages[at].results]
        if sum(map(_most_tokens, results)) <= limit:  # nearly all of them: nothing need be counted
            continue
        if sum(context.size_of(context.messages[at]) for at in positions) > limit:
            sizes = [size for at in positions for size in _sizes(context, at)]
            fair = (
                share
                for share in _shares(_FAIR_SHARE, limit)
                if sum(min(size, share * limit) for size in sizes) <= _ALL * limit
            )
            found.update(shortened_to(context, positions, strategy, next(fair) * limit))
    return found


def fitted(
    context: Context, strategy: str, limit: int, over: float, *, most: float = _FAIR_SHARE
) -> dict[int, Message]:
    """Shorten unseen results until ``over`` tokens less are sent; return the shortened messages by position.

    Each result gets at most the same share of the limit: the largest of ``most``, three quarters, a half, three eighths
    ... of it that is small enough. So a result has only a few forms, each a function of the result, the limit and the
    counter, independently of other messages. Below an eighth of the limit, summaries are shortened, too. If no share is
    small enough, results get that eighth.
    """
    results = unseen_results(context)
    summaries = [at for at, each in enumerate(context.messages) if each.mark == "summary" and not each.pinned]
    sizes = {at: _sizes(context, at) for at in (*results, *summaries)}
    for share in _shares(most, limit):
        positions = results if share >= _LEAST_SHARE else results + summaries
        above = sum(max(0.0, size - share * limit) for at in positions for size in sizes[at])
        if above * context.scale >= over:  # else it cannot be enough, and no text need be made
            shortened = shortened_to(context, positions, strategy, share * limit)
            if saved_by(context, shortened) >= over:
                return shortened
    return shortened_to(context, results, strategy, min(most, _LEAST_SHARE) * limit)


def shortened_to(context: Context, positions: Sequence[int], strategy: str, most_tokens: float) -> dict[int, Message]:
    """Return those of the messages that get smaller if each of their results has at most ``most_tokens``."""
    found: dict[int, Message] = {}
    recall = recall_name(context.request.options.tools)
    for position in positions:
        message = context.messages[position]
        parts = tuple(_shorter(context, message, at, most_tokens, recall) for at in range(len(message.parts)))
        changed = [at for at, old in enumerate(message.parts) if old is not parts[at]]
        handles = [handle_of(_earlier(message, at)[1]) for at in changed if isinstance(parts[at], ToolResult)]
        shortened = message.edited(parts=parts, annotation=annotation_of(context, message, strategy, handles))
        if context.size_of(shortened) < context.sizes[position]:
            found[position] = shortened
    return found


def annotation_of(context: Context, message: Message, strategy: str, handles: Iterable[str] = ()) -> Annotation:
    """Return the annotation of a further edit of a message; ``handles`` are those of the results that it cuts."""
    before = message.annotation or Annotation(strategy)
    every = tuple(dict.fromkeys((*before.handles, *handles)))
    return Annotation(strategy, context.size_of(message.original), every, before.call_ids)


def saved_by(context: Context, shortened: Mapping[int, Message]) -> float:
    """Return the scaled tokens that the shortened messages save."""
    return sum(context.sizes[at] - context.size_of(message) for at, message in shortened.items()) * context.scale


def shortened_in(plan: Plan, context: Context) -> dict[int, list[ToolResult]]:
    """Return the unseen results that a plan shortens, as they are after it, by the positions of their messages."""
    found: dict[int, list[ToolResult]] = {}
    for at, message in plan.replace:
        if context.has_new(at):
            there = context.messages[at].parts
            new = [part for part in message.results if part not in there and _LEFT_OUT.search(part.text)]
            if new:
                found[at] = new
    return found


def new_handles(plan: Plan, context: Context) -> str:
    """Return the handles of the unseen results that a plan shortens, as they are after it; "" if there are none.

    A count would not identify them: it stays the same if an earlier one has been cleared since.
    """
    return ",".join(handle_of(each) for results in shortened_in(plan, context).values() for each in results)


def _may_be_edited(context: Context, at: int) -> bool:
    message = context.messages[at]
    return message.role != "system" and not message.pinned and at != context.latest_user and len(message.results) > 0


def _shares(most: float, limit: int) -> Iterator[float]:
    """Yield ever smaller shares of a limit, down to 0."""
    while most * limit >= 1:
        yield most
        yield most * 0.75
        most /= 2
    yield 0


def _rounds(context: Context) -> Iterator[list[int]]:
    """Yield the positions of messages with results that may be edited, grouped by round."""
    found: list[int] = []
    for at, message in enumerate(context.messages):
        if message.role == "assistant":
            if found:
                yield found
            found = []
        elif _may_be_edited(context, at):
            found.append(at)
    if found:
        yield found


def _most_tokens(result: ToolResult) -> float:
    """Return an upper bound of a result's tokens: one per byte; infinity for pictures and files."""
    output = result.output
    return len(output) * _MOST_BYTES + _FRAME if isinstance(output, str) else math.inf


def _sizes(context: Context, at: int) -> list[int]:
    results = context.messages[at].results
    return [context.size_of(alone(each)) for each in results] if len(results) > 1 else [context.sizes[at]]


def _earlier(message: Message, at: int) -> tuple[ToolResult, ToolResult]:
    """Return a result before it was shortened, if it was, and as its tool gave it, from which it is shortened. Other
    edits are never undone: a result with one is returned as it is, for both."""
    part, came, whole = cast("ToolResult", message.parts[at]), as_it_came(message, at), in_full(message, at)
    if came == part or any(is_excerpt(part.text, _divided(whole.output, keep=keep)[1]) for keep in (True, False)):
        return came, whole
    return part, part


def _shorter(context: Context, message: Message, at: int, most_tokens: float, recall: str) -> Part:
    """Shorten a part to at most ``most_tokens`` if it may be shortened; return any other as it is."""
    part = message.parts[at]
    if isinstance(part, ToolResult):
        result, whole = _earlier(message, at)
        if context.size_of(alone(result)) <= most_tokens:
            return part
        # A result edited by another layer cannot be recalled as it is now, and must not be as it came.
        known = recall if as_it_came(message, at) == result else ""
        return _shorter_result(context, whole, most_tokens, known)
    if isinstance(part, Text) and message.mark == "summary" and context.size_of(message) > most_tokens:
        return _shorter_summary(context, message, part, most_tokens)
    return part


def _shorter_result(context: Context, result: ToolResult, most_tokens: float, recall: str) -> ToolResult:
    """Cut its text to head and tail; pictures and files stay if they take at most half of the room."""
    kept, text = _divided(result.output, keep=True)
    if context.size_of(alone(replace(result, output=kept))) > most_tokens / 2:
        kept, text = _divided(result.output, keep=False)
    size = context.size_of(alone(replace(result, output=(Text(text), *kept))))
    frame = context.size_of(alone(replace(result, output=(Text(""), *kept))))
    # The bytes per token are those of this result, by this counter, not by what providers reported.
    most_bytes = int(bytes_in(text) * max(0.0, most_tokens - frame) / max(1, size - frame))
    shorter = head_and_tail(text, most_bytes, recall=recall_call(recall, result) if recall else "")
    return replace(result, output=(Text(shorter), *kept) if kept else shorter)


def _shorter_summary(context: Context, message: Message, part: Text, most_tokens: float) -> Text:
    came, now = _body(message.original.text), _body(part.text)
    body = came if is_excerpt(now, came) else now
    opened = f"{OPENING}\n"
    most_bytes = int((bytes_in(body) + len(opened)) * most_tokens / context.size_of(message)) - len(opened)
    bare = left_out(bytes_in(body), bytes_in(body))
    # Without any text left, the opening line is left out, too.
    text = bare if most_bytes <= len(bare) else opened + head_and_tail(body, most_bytes)
    return Text(text, part.extra_json)


def _body(summary: str) -> str:
    return summary.removeprefix(OPENING).removeprefix("\n")


def _divided(output: str | tuple[_Block, ...], *, keep: bool) -> tuple[tuple[_Block, ...], str]:
    """Split a result into the blocks that are not text, and its text; blocks that are not kept are named in it."""
    if isinstance(output, str):
        return (), output
    kept = tuple(each for each in output if keep and not _is_text(each))
    return kept, "\n".join(_said(each) for each in output if _is_text(each) or not keep)


def _is_text(block: _Block) -> bool:
    return isinstance(block, Text) or (isinstance(block, File) and bool(block.text))


def _said(block: _Block) -> str:
    if isinstance(block, Text | File) and block.text:
        return block.text
    if isinstance(block, Image | File):
        return f"[{'a picture' if isinstance(block, Image) else 'a file'} left out: {block.media_type or 'no type'}]"
    return "[a provider's own item left out]" if isinstance(block, ProviderItem) else ""
