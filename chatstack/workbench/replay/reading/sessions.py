"""Conversations that stand over many lines of one file, by whichever reader knows the form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from chatstack.providers.extras import WireObject
from chatstack.workbench.replay.reading.chains import ResponseChains
from chatstack.workbench.replay.reading.claude_code import ClaudeCode
from chatstack.workbench.replay.reading.codex import Codex
from chatstack.workbench.replay.reading.contexts import Context, Kept, Notes, SessionReader, note
from chatstack.workbench.replay.reading.exchanges import asks_for_embeddings

_READERS = (ClaudeCode, Codex, ResponseChains)


class Sessions:
    """The lines of one file that are no conversations by themselves, and the contexts that they make."""

    def __init__(self, notes: Notes) -> None:
        self.line = 0
        """The last line that was taken, 0 if none was."""
        self._notes = notes
        kept = Kept()
        self._readers: list[SessionReader] = [reader(kept, notes) for reader in _READERS]

    def take(self, value: object, line: int) -> bool:
        """Take a line, or leave it out with a note; False if no reader knows it.

        Raises ``InputError``, and ``SessionTooLongError``.
        """
        if not isinstance(value, dict):
            return False
        if asks_for_embeddings(cast("WireObject", value)):
            note(self._notes, "requests for embeddings")
            return True
        for nth, reader in enumerate(self._readers):
            if reader.take(cast("WireObject", value), line):
                self.line = line
                if nth:  # most lines of a file are of one form
                    self._readers.insert(0, self._readers.pop(nth))
                return True
        return False

    def contexts(self) -> Iterator[Context | tuple[int, str]]:
        """Yield the contexts of all lines taken, in the order of their lines within each form."""
        for reader in self._readers:
            yield from reader.contexts()
