"""Names of conversations: by their ids, or by what stands above them."""

from __future__ import annotations

import hashlib
import threading

from chatstack.context.histories.digests import head_digest
from chatstack.lru import Lru
from chatstack.values.messages import Message

_MOST_HEADS = 1_000
_HEADLESS = f"head:{head_digest((), None).hex()}"
"""The name of a conversation that has neither an id, nor system messages, nor instructions."""


class Names:
    """Gives conversations their names; no id can be read off one where there is a ``key``."""

    def __init__(self, key: bytes, max_entries: int, lock: threading.RLock) -> None:
        self._key = key
        self._lock = lock
        self._heads: Lru[int, str] = Lru(min(_MOST_HEADS, max_entries))

    def by_id(self, conversation_id: str) -> str:
        """Return the name of a conversation with an id."""
        raw = conversation_id.encode("utf-8", "surrogatepass")
        return f"id:{hashlib.blake2b(raw, digest_size=16, key=self._key).hexdigest()}"

    def by_head(self, systems: tuple[Message, ...], instructions: str | None) -> str:
        """Return the name of a conversation without an id, or with a new one: a digest of its head."""
        if not systems and not instructions:
            return _HEADLESS
        key = hash((systems, instructions))
        with self._lock:
            known = self._heads.get(key)
            if known is None:
                known = f"head:{head_digest(systems, instructions).hex()}"
                self._heads.put(key, known)
        return known

    def clear(self) -> None:
        """Forget all heads."""
        self._heads.clear()
