"""Messages left out by a layer further in, by a summary, which layers outside of it need not count."""

from __future__ import annotations

import msgspec

from chatstack.context.edits.context import Context
from chatstack.context.edits.records import Record
from chatstack.context.requests.opened import Opened


def without_left_out(context: Context, opened: Opened, record: Record | None) -> Context:
    """Return the context with the size that it will have once a layer further in has replayed these edits.

    Unchanged if messages were dropped from it already, as by edits from a store that this layer itself would not make.
    """
    if record is None or len(context.messages) != len(opened.context.messages):
        return context
    if record.touches(opened.seen.history.latest_user):
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
