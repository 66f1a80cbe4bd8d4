"""Messages left out by a layer further in, by a summary, which layers outside of it need not count."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec

from chatstack.client.protocol import ChatClient, chain
from chatstack.context.context import Context
from chatstack.context.opened import Opened
from chatstack.context.records import Record


@runtime_checkable
class LeavesOut(Protocol):
    """A context layer that takes the beginning of a history out for good."""

    async def left_out(self, opened: Opened) -> Record | None:
        """Return the edits in force there for this history."""
        ...


async def without_left_out(inner: ChatClient, context: Context, opened: Opened) -> Context:
    """Return the context with the size that it will have after the layers further in have replayed their decisions.

    Unchanged if messages were dropped from it already, as by edits from a store that this layer itself would not make.
    """
    if len(context.messages) != len(opened.context.messages):
        return context
    layer = next((each for each in chain(inner) if isinstance(each, LeavesOut)), None)
    record = await layer.left_out(opened) if layer is not None else None
    if record is None or opened.seen.history.latest_user in record.touched:
        return context
    positions = opened.seen.positions
    left_out = frozenset(positions[at] for at in record.drop)
    known = opened.seen.conversation.left_out
    if known is None or known[0] is not record or known[1] is not opened.replayed:
        put = sum(context.size_of(each.message) for each in record.insert)
        saved = sum(context.size_of(context.messages[at]) for at in left_out) - put
        known = opened.seen.conversation.left_out = (record, opened.replayed, saved)
    return msgspec.structs.replace(
        context, messages_tokens=context.messages_tokens - known[2], left_out=left_out, left_out_tokens=known[2]
    )
