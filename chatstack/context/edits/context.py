"""The context: what a request would send, with its size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import cast

import msgspec
from msgspec.structs import force_setattr

from chatstack.context.edits.plans import Plan
from chatstack.context.edits.units import Unit, is_users, items_in, units_of
from chatstack.values.messages import Message
from chatstack.values.native import compaction_in
from chatstack.values.requests import ChatRequest


class Context(msgspec.Struct, frozen=True, dict=True, kw_only=True):
    """The content of a request with its sizes in tokens, as a strategy sees it.

    ``fixed_tokens`` are the instructions and the tool schemas, ``reserved_tokens`` the room reserved for the answer:
    the caller's ``max_tokens``. ``default_reserve_tokens`` is the provider's default reserve for an answer without such
    a bound; it counts only ``against_window``.
    ``messages_tokens`` is the sum of ``sizes``. All of these are counted; according to the provider's reports for this
    conversation, the real input is ``scale`` times that. ``expected_scale`` is the further factor that other
    conversations suggest: for warnings and metrics, never for a decision. ``size_of`` counts a message, once.
    ``is_unstable``: the history keeps coming with another beginning, so that an edit cannot be made once and kept.
    ``is_cold``: the provider has hardly anything of it in its cache, so that an edit costs nothing there.
    ``window_tokens`` is the model's context window, None if it is not known. ``left_out`` are the positions of messages
    that a layer further in takes out already: their ``left_out_tokens`` are not in ``messages_tokens``, and editing
    them saves nothing. ``provider_clears`` are the counted tokens that the provider clears by itself; they are not in
    ``messages_tokens`` either. ``late`` are messages with results that have come since the model's latest
    answer, and stand before it, behind their calls.
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
    provider_clears: int = 0
    late: tuple[Message, ...] = ()
    find_origins: Callable[[], Sequence[int | None]] | None = None

    @classmethod
    def of(
        cls, request: ChatRequest, *, fixed_tokens: int, size_of: Callable[[Message], int], reserved_tokens: int = 0
    ) -> Context:
        """Make the context of a request as it came in."""
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
        """The counted input: messages, instructions and tool schemas, before ``scale``."""
        return self.fixed_tokens + self.messages_tokens

    @property
    def tokens(self) -> int:
        """The total size, with ``scale`` applied and the room for the answer included."""
        counted = self.fixed_tokens + self.messages_tokens
        return self.reserved_tokens + (counted if self.scale == 1.0 else self._as_will_be(counted))

    def with_messages_tokens(self, messages_tokens: int) -> int:
        """Return the total size as it would be with messages of that size."""
        return self.reserved_tokens + self._as_will_be(self.fixed_tokens + messages_tokens)

    def as_expected(self) -> Context:
        """Return the context with ``expected_scale`` applied, as reports of other conversations suggest."""
        if self.expected_scale == 1.0:
            return self
        return msgspec.structs.replace(self, scale=self.scale * self.expected_scale, expected_scale=1.0)

    @property
    def size_told(self) -> str:
        """The size in words, with the part that is reserved for the answer."""
        return f"{self.tokens:,} tokens{self.reserve_told}"

    @property
    def reserve_told(self) -> str:
        """The words on the reserve for the answer that follow a size; "" without a reserve."""
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
        """The number of items in its messages: messages, tool calls and tool results."""
        return sum(map(items_in, self.messages))

    @cached_property
    def origins(self) -> Sequence[int | None]:
        """The position at which each message came in; None for one that a layer inserted."""
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
        """The position of the model's latest answer; -1 if there is none. The model has not seen what follows it.

        A summary is a layer's message, not an answer.
        """
        messages = self.messages
        backwards = range(len(messages) - 1, -1, -1)
        return next((at for at in backwards if messages[at].role == "assistant" and not messages[at].mark), -1)

    def has_new(self, *positions: int) -> bool:
        """Return True if the model has not seen one of these, in ascending order: what follows its latest answer, and
        late results that a repair has just put behind their calls."""
        if positions[-1] > self.latest_assistant:
            return True
        late = self.late
        return bool(late) and any(self.messages[at].original is each.original for at in positions for each in late)

    @cached_property
    def latest_compaction(self) -> int | None:
        """The position of the newest compaction of a provider's, which has to be sent as it is."""
        messages = self.messages
        backwards = range(len(messages) - 1, -1, -1)
        return next((at for at in backwards if compaction_in(messages[at]) is not None), None)

    @cached_property
    def first_user(self) -> int | None:
        """The position of the first user message: the task."""
        return next((at for at, message in enumerate(self.messages) if is_users(message)), None)

    @property
    def is_edited(self) -> bool:
        """True if its messages differ from those of the request."""
        return self.messages is not self.request.messages

    def fewer_than(self, came: Context) -> int:
        """Return how many tokens fewer, scaled, its layer sends than it got; ``came`` is the context that it got."""
        sent = self.input_tokens + self.left_out_tokens + self.provider_clears
        return max(0, self._as_will_be(came.input_tokens) - self._as_will_be(sent))

    def _as_will_be(self, counted: int) -> int:
        # Rounded up, tolerating float errors: a scale was made by dividing by this very count.
        return math.ceil(counted * self.scale - 1e-6)

    def against_window(self, window: int | None = None) -> Context:
        """Return the context with the provider's default reserve, as it counts against the model's window. The reserve
        is capped at half of a known window: a small one would have no room for any request.

        A limit that the user has set covers only what the user asked for, so it never includes the default reserve.
        """
        if not self.default_reserve_tokens:
            return self
        reserved = min(self.default_reserve_tokens, window // 2 if window is not None else self.default_reserve_tokens)
        return msgspec.structs.replace(self, reserved_tokens=reserved)

    def after(self, plan: Plan) -> Context:
        """Return the context after an edit; only new messages are counted. The result for the last plan is cached."""
        known = self.__dict__.get("_after")
        if known is not None and known[0] is plan:
            return cast("Context", known[1])
        messages, size_of = self.messages, self.size_of
        touched = [*plan.drop, *[position for position, _ in plan.replace]]
        gone = sum([size_of(messages[position]) for position in touched])
        new = sum([size_of(message) for _, message in (*plan.replace, *plan.insert)])

        def origins() -> Sequence[int | None]:
            came = self.origins
            return tuple([None if at is None else came[at] for _, at in plan.apply_to(self.messages)])

        after = msgspec.structs.replace(
            self,
            messages=plan.apply(messages),
            messages_tokens=self.messages_tokens - gone + new,
            # In place without this context, which keeps the one after it: the two would wait for the garbage collector.
            find_origins=origins if plan.drop or plan.insert else self.find_origins,
        )
        force_setattr(self, "_after", (plan, after))
        return after

    def to_send(self) -> ChatRequest:
        """Return the request with the messages of this context."""
        request = self.request
        return request if self.messages is request.messages else request.but(messages=self.messages)
