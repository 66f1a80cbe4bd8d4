"""Interning: a message that is read anew, for each call of a server, is the object that it was before.

Layers know the objects of a history again without reading its text. For a call without edits, that is most of the work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TypeAlias
from weakref import WeakValueDictionary

import msgspec

from chatstack.values.messages import Message

_Key: TypeAlias = int | bytes | tuple[int | bytes, int]
"""The hash of a message, or a digest of what it was read from; with a number, where it is not the first in its list."""

_known: WeakValueDictionary[_Key, Message] = WeakValueDictionary()
"""Messages that were read. They are here as long as anybody holds them, so that what a memory forgets is gone."""


def interned(messages: Iterable[Message]) -> list[Message]:
    """Return these messages, each that is known as the object that equals it. Equal ones of one list are different
    objects."""
    found: list[Message] = []
    places = _Places()
    for message in messages:
        place = places.next(hash(message))
        known = _known.get(place)
        if known is None or known != message:
            _known[place] = known = message
        found.append(known)
    return found


def interned_json(texts: Iterable[msgspec.Raw], read: Callable[[msgspec.Raw], Message]) -> list[Message]:
    """Return the messages in these texts, each that is known without reading it: a third of what reading takes."""
    found: list[Message] = []
    places = _Places()
    for text in texts:
        place = places.next(hashlib.sha256(text).digest())
        known = _known.get(place)
        if known is None:
            known = _known.setdefault(place, read(text))
        found.append(known)
    return found


class _Places(dict[int | bytes, int]):
    """The keys of one list's messages, with how often each has come in it."""

    def next(self, key: int | bytes) -> _Key:
        before = self.get(key, 0)
        self[key] = before + 1
        return (key, before) if before else key
