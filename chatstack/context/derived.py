"""Derived histories: what a layer gets where layers further out have edited the history, kept beside that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from chatstack.context.conversations import Conversation
from chatstack.context.history import History, Recognised
from chatstack.values.messages import Message

_MOST = 2
"""Maximum number of edited forms of a conversation that are kept: one, and one that it may alternate with."""
_MESSAGE_BYTES = 300
"""Estimated bytes kept for a message; the message itself is that of the history, or of its record."""


class Derived:
    """The edited forms of histories, by the edits. They belong to the history, and are evicted with it.

    The same edits of a history that has grown give the same messages, and more: so nothing has to be searched for.
    """

    def __init__(self, weigh: Callable[[History, int], bool], lock: threading.RLock) -> None:
        self._weigh = weigh
        self._lock = lock

    def recognised(self, seen: Recognised, edits: int, messages: tuple[Message, ...]) -> Recognised:
        """Return the history of these messages: those of the seen history, after edits with that fingerprint."""
        positions: Sequence[int]
        if isinstance(seen.positions, range):
            positions = range(seen.positions.start, len(messages))
            conversation = messages[positions.start :]
        else:
            positions = tuple(at for at, message in enumerate(messages) if message.role != "system")
            conversation = tuple([messages[at] for at in positions])
        with self._lock:
            history, state = self._of(seen, edits, conversation)
            new = len(conversation) - len(history.messages)
            if new:
                history.grow(conversation)
                self._weigh(seen.history, new * _MESSAGE_BYTES)
        return Recognised(history, state, len(conversation), positions, False, seen.who)

    def _of(self, seen: Recognised, edits: int, conversation: tuple[Message, ...]) -> tuple[History, Conversation]:
        forms, key = seen.history.forms, (seen.who, edits)
        known = forms.get(key)
        if known is not None:
            if conversation[: len(known[0].messages)] == known[0].messages:
                return known
            self._drop(seen.history, key)
        mine = [form for form in forms if form[0] == seen.who]
        for form in mine[: 1 - _MOST]:
            self._drop(seen.history, form)
        state = Conversation()
        state.levels = seen.conversation.levels
        forms[key] = (seen.history.derived(), state)
        return forms[key]

    def _drop(self, history: History, form: tuple[str, int]) -> None:
        dropped, _ = history.forms.pop(form)
        self._weigh(history, -len(dropped.messages) * _MESSAGE_BYTES)
