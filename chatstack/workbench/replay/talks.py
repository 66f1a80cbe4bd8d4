"""One recorded conversation, as input for every policy."""

from __future__ import annotations

import hashlib
import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from operator import is_

from chatstack.errors import InputError
from chatstack.tokens.prices import Price
from chatstack.values.messages import Message
from chatstack.values.requests import ChatOptions, ChatRequest, DeclaredTool
from chatstack.workbench.replay.measures.grounding import Evidence
from chatstack.workbench.replay.reading.forms import Conversation
from chatstack.workbench.replay.reading.usages import RecordedCall


class Talk:
    """One recorded conversation: its calls, and what its requests must hold.

    ``calls`` are the recorded calls, one for each answer, None for an answer that was only repeated; without them,
    every answer but a first message is a call. ``tools``, if any, go out instead of those that the recording declares;
    ``called`` is the conversation's id, ``priced_as`` the model, with the service tier whose price it is. Raises
    ``InputError`` if there are not as many calls as answers.
    """

    def __init__(
        self,
        conversation: Conversation,
        calls: Sequence[RecordedCall | None] | None = None,
        *,
        called: str,
        tools: tuple[DeclaredTool, ...] = (),
        model: str = "",
        price: Price | None = None,
        priced_as: str = "",
    ) -> None:
        self.messages = conversation.messages
        self.model = model
        self.price = price
        self.priced_as = priced_as or model
        options = conversation.options
        self._options: ChatOptions = options.but(tools=tools) if tools else options
        self.evidence = Evidence(self.messages, options.instructions)
        self._called = called
        self._recorded = {id(message) for message in self.messages}
        answers = [at for at, each in enumerate(self.messages) if each.role == "assistant"]
        calls = (RecordedCall(),) * len(answers) if calls is None else calls
        if len(calls) != len(answers):
            raise InputError(f"holds {len(answers)} answers, where {len(calls)} were told from its lines")
        self.recorded = {at: call for at, call in zip(answers, calls, strict=True) if at and call is not None}
        self.positions = list(self.recorded)
        self._users = [at for at, each in enumerate(self.messages) if each.role == "user"]

    def group_of(self, groups: int) -> int:
        """Return the number of one of so many groups; conversations about the same task are in the same one."""
        return int.from_bytes(task_digest(self.messages)[:-1], "big") % groups

    def calls(self) -> Iterator[tuple[int, ChatRequest]]:
        """Yield the position of each answer that is a call of it, and the request for it: all messages before it."""
        for position in self.positions:
            yield position, ChatRequest(self.messages[:position], self._options, self._called)

    def needs_user_at(self, position: int) -> bool:
        """Return True if there is a user message before that position."""
        return bool(self._users) and self._users[0] < position

    def loses_latest_user(self, position: int, sent: ChatRequest) -> bool:
        """Return True if the latest user message before that position is not in the request.

        It is there if it was sent as it is, or if a message that is not of the recording says all that it says. An
        earlier message that reads the same does not stand for it.
        """
        before = bisect_left(self._users, position)
        if not before:
            return False
        latest = self.messages[self._users[before - 1]]
        if any(map(is_, sent.messages, itertools.repeat(latest))):
            return False
        others = (
            message
            for message in sent.messages
            if message.original is latest or id(message.original) not in self._recorded
        )
        return not any(map(partial(_says, latest), others))


def task_digest(messages: Sequence[Message]) -> bytes:
    """Return a digest of the first user message: the same for copies of a conversation, and other runs of a task."""
    first = next((message.text for message in messages if message.role == "user"), "")
    return hashlib.blake2b(first.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _says(latest: Message, message: Message) -> bool:
    """Return True if a message says all that the latest user message says."""
    if message.role != "user":
        return False
    return message.parts == latest.parts or bool(latest.text and latest.text in message.text)
