"""Forgetting: the links by which whoever has a history reaches all that was kept about it.

Most records lie under a link of the history itself. Two kinds do not: those about an edited form of it (behind a layer
that leaves messages out), and those under an answer to a request whose last messages were not kept. Their links
are noted under a link that the history has. See ``chatstack/context/memory/notes.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from chatstack.context.edits.records import Record
from chatstack.context.histories.choices import lengths_before_answer
from chatstack.context.histories.digests import next_link
from chatstack.context.histories.recognised import Recognised
from chatstack.values.messages import Message

_NOTHING_EDITED = Record()


def came_link(seen: Recognised, length: int) -> bytes:
    """Return the link, in the history as it came, of what the first ``length`` messages of a form of it stand for.

    Counted from the end, as the layers outside edit what is old: so it covers all of these messages, and is a beginning
    of every history that goes on from this request.
    """
    came = seen.came or seen
    at = length + came.length - seen.length
    return came.links[min(max(at, 1), came.length) - 1]


def answer_links(seen: Recognised, lengths: Sequence[int], said: Message, key: bytes) -> tuple[list[bytes], bytes]:
    """Return the links of an answer after that many messages each, and the one among the history's own under which
    all of them are noted. ``lengths`` are those of ``lengths_before_answer``, of which any may come again."""
    links = [next_link(seen.links[at - 1], said, key) for at in lengths]
    return links, next_link(came_link(seen, lengths[-1]), said, key)


def found_under(seen: Recognised, length: int, record: Record, key: bytes) -> list[bytes]:
    """Return the links under which a record about the first ``length`` messages of an edited form may be noted: as a
    choice, which is bound to the answer at the end of these, or as what is about these messages."""
    said, under = seen.history.messages[length - 1], [came_link(seen, length)]
    if length > 1 and said.role == "assistant":
        lengths = lengths_before_answer(seen.history.messages, length - 1, record)
        under.append(next_link(came_link(seen, lengths[-1]), said, key))
    return under


def links_of(seen: Recognised, key: bytes) -> list[bytes]:
    """Return the links of a history: of all its beginnings, and of its answers without the user messages or the rounds
    before them, under which choices are kept, too."""
    messages, links = seen.history.messages, seen.links
    found = list(links[: seen.length])
    for at in range(1, seen.length):
        if messages[at].role == "assistant":
            lengths = [*lengths_before_answer(messages, at, _NOTHING_EDITED)[1:]]
            if not messages[at].calls:
                lengths.append(seen.without_rounds(at))
            found.extend(next_link(links[each - 1], messages[at], key) for each in lengths if 0 < each < at)
    return found
