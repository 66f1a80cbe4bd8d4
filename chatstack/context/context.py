"""The context: what a request would send, with its size."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import msgspec

from chatstack.context.plans import Plan
from chatstack.context.units import Unit, units_of
from chatstack.values.messages import Message
from chatstack.values.parts import ToolResult
from chatstack.values.requests import ChatRequest


class Context(msgspec.Struct, frozen=True, dict=True):
    """What a request would send: its messages with their sizes in tokens, and what goes along with them.

    ``fixed_tokens`` are the instructions, the tool schemas and the reserved output. ``origins`` tells for each
    message at which position it came in, None for one that a layer put in. ``size_of`` counts a message, once.
    """

    request: ChatRequest
    messages: tuple[Message, ...]
    sizes: tuple[int, ...]
    fixed_tokens: int
    origins: tuple[int | None, ...]
    size_of: Callable[[Message], int]

    @classmethod
    def of(cls, request: ChatRequest, *, fixed_tokens: int, size_of: Callable[[Message], int]) -> Context:
        """The context of a request as it came in."""
        messages = request.messages
        return cls(request, messages, tuple(map(size_of, messages)), fixed_tokens, tuple(range(len(messages))), size_of)

    @cached_property
    def tokens(self) -> int:
        """The size of all of it."""
        return self.fixed_tokens + sum(self.sizes)

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Its messages in units."""
        return units_of(self.messages)

    @cached_property
    def latest_user(self) -> int | None:
        """The position of the latest user message."""
        return next((at for at in range(len(self.messages) - 1, -1, -1) if _is_users(self.messages[at])), None)

    @cached_property
    def latest_assistant(self) -> int:
        """The position of the latest assistant message; -1 if there is none. What follows the model has not seen."""
        return max((at for at, message in enumerate(self.messages) if message.role == "assistant"), default=-1)

    @cached_property
    def first_user(self) -> int | None:
        """The position of the first user message: the task."""
        return next((at for at, message in enumerate(self.messages) if _is_users(message)), None)

    @property
    def is_edited(self) -> bool:
        """Whether it differs from what came in."""
        return self.messages is not self.request.messages

    def after(self, plan: Plan) -> Context:
        """The context as it is after an edit; only what is new is counted."""
        applied = plan.apply_to(self.messages)
        return Context(
            self.request,
            tuple(message for message, _ in applied),
            tuple(
                self.sizes[position]
                if position is not None and message is self.messages[position]
                else self.size_of(message)
                for message, position in applied
            ),
            self.fixed_tokens,
            tuple(None if position is None else self.origins[position] for _, position in applied),
            self.size_of,
        )

    def to_send(self) -> ChatRequest:
        """The request with the messages of this context."""
        return self.request.but(messages=self.messages) if self.is_edited else self.request


def _is_users(message: Message) -> bool:
    """Whether the user speaks in it: tool results in a user message, as one wire has them, are not the user's."""
    return message.role == "user" and not (message.parts and all(type(part) is ToolResult for part in message.parts))
