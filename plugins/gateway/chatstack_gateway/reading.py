"""An answer, read as updates while its pieces come."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

from chatstack import ChatUpdate
from chatstack.providers.wires import AnswerReader, Form
from chatstack_gateway.came_answers import CameAnswer
from chatstack_gateway.events import EventSplitter, Inflater, decoded

_MOST_BYTES = 2**28


async def updates_of(
    form: Form,
    next_piece: Callable[[], Awaitable[bytes]],
    *,
    streaming: bool,
    encoding: str,
    came: CameAnswer | None = None,
) -> AsyncGenerator[ChatUpdate, None]:
    """Yield the updates of an answer. ``next_piece`` gives its bytes, b"" at the end. What the updates are read from is
    noted in ``came``. Raises ``ValueError`` for what cannot be read."""
    reader = AnswerReader(form, streaming=streaming)
    split, inflate = EventSplitter(keeps_raw=came is not None), Inflater(encoding)
    if not streaming:
        whole = await _whole(next_piece, inflate)
        if came is not None:
            came.whole = whole
        for update in reader.add(decoded(whole)):
            yield update
    is_over = not streaming
    while not is_over:
        piece = await next_piece()
        for data in split.feed(inflate.feed(piece)) if piece else split.end():
            event = decoded(data)
            updates = reader.add(event)
            if came is not None:
                came.add(split.taken(), event, updates)
            for update in updates:
                yield update
        # Of chat completions, the usage follows what ends the answer.
        is_over = not piece or split.is_done or (form != "chat" and reader.is_complete)
    updates = reader.finish()
    if came is not None:
        came.end(split.taken(), updates)
    for update in updates:
        yield update


async def _whole(next_piece: Callable[[], Awaitable[bytes]], inflate: Inflater) -> bytes:
    pieces, size = list[bytes](), 0
    while piece := await next_piece():
        size += len(piece)
        if size > _MOST_BYTES:
            raise ValueError("the answer is too large")
        pieces.append(inflate.feed(piece))
    return b"".join(pieces)
