"""The context: what a request would send, with its size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import cast

import msgspec
from msgspec.structs import force_setattr

from chatstack.context.plans import Plan
from chatstack.context.units import Unit, is_users, items_in, units_of
from chatstack.values.messages import Message
from chatstack.values.requests import ChatRequest


class Context(msgspec.Struct, frozen=True, dict=True, kw_only=True):
    """What a request would send: its messages with their sizes in tokens, and what goes along with them.

    ``fixed_tokens`` are the instructions and the tool schemas, ``reserved_tokens`` the room for the answer that counts:
    the caller's ``max_tokens``. ``default_reserve_tokens`` is what the provider keeps for an answer that nobody
    bounded; it counts only ``against_window``.
    ``messages_tokens`` is the sum of ``sizes``. All of these are counted; what providers reported for requests like
    this one says that the input will be ``scale`` times that, as far as this very conversation tells. What others tell
    is ``expected_scale``: for warnings and metrics, never for a decision. ``size_of`` counts a message, once.
    ``is_unstable``: the history keeps coming with another beginning, so that an edit cannot be made once and kept.
    ``is_cold``: the provider has hardly anything of it in its cache, so that an edit costs nothing there.
    ``window_tokens`` is what fits into the model's context, None where nobody knows. ``left_out`` are the positions of
    messages that a layer further in takes out already: they, ``left_out_tokens``, are not in ``messages_tokens``, and
    no edit of them helps.
    """

    request: ChatRequest
    messages: tuple[Message, ...]
    messages_tokens: int
    fixed_tokens: int
    size_of: Callable[[Message], int]
    reserved_tokens: int = 0
    default_reserve_tokens: int = 0
    scale: float = 1.0
    expected_scale: float = 1.0
    is_unstable: bool = False
    is_cold: bool = False
    window_tokens: int | None = None
    left_out: frozenset[int] = frozenset()
    left_out_tokens: int = 0
    find_origins: Callable[[], Sequence[int | None]] | None = None

    @classmethod
    def of(
        cls, request: ChatRequest, *, fixed_tokens: int, size_of: Callable[[Message], int], reserved_tokens: int = 0
    ) -> Context:
        """The context of a request as it came in."""
        return cls(
            request=request,
            messages=request.messages,
            messages_tokens=sum(map(size_of, request.messages)),
            fixed_tokens=fixed_tokens,
            size_of=size_of,
            reserved_tokens=reserved_tokens,
        )

    @property
    def input_tokens(self) -> int:
        """What is counted of the input: messages, instructions and tool schemas, before ``scale``."""
        return self.fixed_tokens + self.messages_tokens

    @property
    def tokens(self) -> int:
        """The size of all of it, the room for the answer included, as it will be."""
        return self.reserved_tokens + self._as_will_be(self.input_tokens)

    def as_expected(self) -> Context:
        """The context as large as reports of other conversations let expect; this one where it has its own."""
        if self.expected_scale == 1.0:
            return self
        return msgspec.structs.replace(self, scale=self.scale * self.expected_scale, expected_scale=1.0)

    @property
    def size_told(self) -> str:
        """The size in words, with the part of it that is room for the answer."""
        return f"{self.tokens:,} tokens{self.reserve_told}"

    @property
    def reserve_told(self) -> str:
        """What to say behind a size of the part that is room for the answer; "" where there is none."""
        if not self.reserved_tokens:
            return ""
        whose = "the provider's default" if self.default_reserve_tokens else "max_tokens"
        return f" ({self.reserved_tokens:,} of them reserved for the answer by {whose})"

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The size of each message, as counted."""
        return tuple(map(self.size_of, self.messages))

    @cached_property
    def items(self) -> int:
        """How many items its messages are: messages, tool calls and tool results."""
        return sum(map(items_in, self.messages))

    @cached_property
    def origins(self) -> Sequence[int | None]:
        """For each message at which position it came in; None for one that a layer put in."""
        return range(len(self.messages)) if self.find_origins is None else self.find_origins()

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Its messages in units."""
        return units_of(self.messages)

    @cached_property
    def latest_user(self) -> int | None:
        """The position of the latest user message."""
        return next((at for at in range(len(self.messages) - 1, -1, -1) if is_users(self.messages[at])), None)

    @cached_property
    def latest_assistant(self) -> int:
        """The position of the latest answer of the model; -1 if there is none. What follows the model has not seen.

        A summary is a layer's message, and no answer.
        """
        messages = self.messages
        backwards = range(len(messages) - 1, -1, -1)
        return next((at for at in backwards if messages[at].role == "assistant" and not messages[at].mark), -1)

    @cached_property
    def first_user(self) -> int | None:
        """The position of the first user message: the task."""
        return next((at for at, message in enumerate(self.messages) if is_users(message)), None)

    @property
    def is_edited(self) -> bool:
        """Whether it differs from what came in."""
        return self.messages is not self.request.messages

    def fewer_than(self, came: Context) -> int:
        """How many tokens fewer its layer sends than it got, as they will be; ``came`` is what it got."""
        sent = self.input_tokens + self.left_out_tokens
        return max(0, self._as_will_be(came.input_tokens) - self._as_will_be(sent))

    def _as_will_be(self, counted: int) -> int:
        # Rounded up, but not for what floats add: a scale was made by dividing by this very count.
        return math.ceil(counted * self.scale - 1e-6)

    def against_window(self, window: int | None = None) -> Context:
        """The context as it counts against the model's own window, where the provider's default reserve needs room; of
        a window that is known, half at most, or a small one would have no room for any request.

        A limit that somebody wrote is about what they asked for, and never about a reserve that nobody asked for.
        """
        if not self.default_reserve_tokens:
            return self
        reserved = min(self.default_reserve_tokens, window // 2 if window is not None else self.default_reserve_tokens)
        return msgspec.structs.replace(self, reserved_tokens=reserved)

    def after(self, plan: Plan) -> Context:
        """The context as it is after an edit; only what is new is counted. Asked again, the same one."""
        known = self.__dict__.get("_after")
        if known is not None and known[0] is plan:
            return cast("Context", known[1])
        applied = plan.apply_to(self.messages)
        gone = sum(self.size_of(self.messages[position]) for position in plan.drop)
        gone += sum(self.size_of(self.messages[position]) for position, _ in plan.replace)
        new = sum(self.size_of(message) for _, message in (*plan.replace, *plan.insert))

        def origins() -> Sequence[int | None]:
            return tuple(None if position is None else self.origins[position] for _, position in applied)

        after = msgspec.structs.replace(
            self,
            messages=tuple([message for message, _ in applied]),
            messages_tokens=self.messages_tokens - gone + new,
            find_origins=origins,
        )
        force_setattr(self, "_after", (plan, after))
        return after

    def to_send(self) -> ChatRequest:
        """The request with the messages of this context."""
        return self.request.but(messages=self.messages) if self.is_edited else self.request
