"""Compactions: what a provider has compacted is sent as its compaction, in the place of everything before it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from chatstack.client.protocol import ProviderInfo
from chatstack.context.edits.units import is_users, units_of
from chatstack.context.histories.conversations import term_in, with_term
from chatstack.context.histories.recognised import Recognised
from chatstack.values.messages import Message
from chatstack.values.native import server_of


def _newest_compaction(seen: Recognised, reader: ProviderInfo) -> int:
    """Return the position in the history of the newest compaction that the provider is sent back; -1 if there is none:
    those that another server made are left out of the request."""
    history = seen.history
    for at, made_by in reversed(history.compactions):
        if made_by == reader.name and at < seen.length:
            server = server_of(history.messages[at])
            if not (server and reader.server_address) or server == reader.server_address:
                return at
    return -1


def without_compacted(messages: tuple[Message, ...], seen: Recognised, reader: ProviderInfo) -> tuple[Message, ...]:
    """Return the messages without those that the newest compaction of that provider stands for; the same ones if there
    is none, or nothing before it that may go.

    What no layer may drop stays: system and pinned messages, and calls that have no result before the compaction, as it
    may come after. So does the last user message before it: it is the latest one while its turn runs, and to drop it
    later would change the beginning of what is sent.
    """
    border = _newest_compaction(seen, reader)
    if border <= 0:
        return messages
    kept = _kept_before(border, seen)
    if len(kept) == border:
        return messages
    positions = seen.positions
    if isinstance(positions, range):  # all system messages are at the head
        head = positions.start
        return (*messages[:head], *(messages[head + at] for at in kept), *messages[head + border :])
    gone = {positions[at] for at in range(border)} - {positions[at] for at in kept}
    return tuple([message for at, message in enumerate(messages) if at not in gone])


def _kept_before(border: int, seen: Recognised) -> tuple[int, ...]:
    """Return the positions before a compaction of what stays whatever follows; worked out once for each compaction."""
    history = seen.history
    known = term_in(history.kept_before, border)
    if known is None:
        known = tuple(sorted({*_staying(history.messages[:border])}))
        history.kept_before = with_term(history.kept_before, border, known)
    return known


def _staying(before: tuple[Message, ...]) -> Iterator[int]:
    """Yield the positions of the last user message, and of units that wait for a result or hold a pinned message."""
    users = (at for at in range(len(before) - 1, -1, -1) if is_users(before[at]))
    yield from itertools.islice(users, 1)
    for unit in units_of(before):
        if unit.is_open or any(before[at].pinned for at in unit.positions):
            yield from unit.positions
