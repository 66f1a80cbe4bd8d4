"""Answers: updates while one streams, and the whole response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Literal, TypeAlias, TypeVar

import msgspec

from chatstack.values.messages import Message
from chatstack.values.native import AppliedEdit
from chatstack.values.parts import Part, ToolResult

T_co = TypeVar("T_co", covariant=True)

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "refused", "paused", "other"]
"""Reason why the model stopped. ``length``: cut off by a limit. ``refused``: by the model, or by a filter. ``paused``:
the model goes on when it is sent its answer back."""


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens as the provider reported them. ``input_tokens`` includes reads from and writes to the cache,
    ``output_tokens`` includes reasoning. ``hour_write_tokens`` are those of ``cache_write_tokens`` that were written to
    a cache that lives an hour, which costs more."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    hour_write_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.hour_write_tokens + other.hour_write_tokens,
        )

    @property
    def total_tokens(self) -> int:
        """Sum of input and output."""
        return self.input_tokens + self.output_tokens


class CallDelta(msgspec.Struct, frozen=True):
    """A piece of a tool call that is still being written, for display. The whole call comes as ``update.part``."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class ChatUpdate(msgspec.Struct, frozen=True):
    """One step of a streamed answer.

    ``text`` and ``reasoning`` are deltas. ``part`` is a whole tool call, tool result or other item. An update with
    ``message_done`` closes one message of the answer; the deltas before it were that message's. An answer without one
    is not complete. ``usage``, ``finish_reason``, ``response_id``, ``model``, ``service_tier``, ``applied_edits`` and
    ``raw`` (the SDK's own object) come with a round's last update. Where a provider tells the input's ``usage`` as an
    answer begins, it comes with the first update, and the last one has the rest: they add up. ``overhead_usage`` of
    summaries comes with the ``model`` that wrote them, if it is another one.
    """

    text: str = ""
    reasoning: str = ""
    part: Part | None = None
    call_delta: CallDelta | None = None
    message_done: Message | None = None
    usage: Usage | None = None
    overhead_usage: Usage | None = None
    finish_reason: FinishReason | None = None
    response_id: str = ""
    model: str = ""
    applied_edits: tuple[AppliedEdit, ...] = ()
    raw: object = None
    round: int = 0
    service_tier: str = ""

    @property
    def has_content(self) -> bool:
        """True if the model has begun to answer with this update."""
        return bool(
            self.text
            or self.reasoning
            or self.call_delta is not None
            or (self.part is not None and type(self.part) is not ToolResult)
        )

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__struct_fields__ if name != "raw"}
        given = ", ".join(f"{name}={value!r}" for name, value in shown.items() if value not in ("", None, 0, ()))
        return f"ChatUpdate({given})"


class ChatResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer to one request.

    ``messages`` is exactly what to append to the history: everything that the turn added, calls and results
    included. ``usage`` sums the rounds; ``overhead_usage`` is what summaries cost. ``id``, ``model``,
    ``finish_reason``, ``service_tier`` and ``raw`` are those of the last round. ``applied_edits`` are what the provider
    says that it cleared of the input on its side, of all rounds. ``parsed`` is the answer as a value of the
    ``output_type`` that was asked for, else None. ``service_tier`` is how the provider says that it served the request,
    in its own word ("flex", "priority"; "fast" for Anthropic's fast mode), if it does: prices differ by it.
    """

    messages: tuple[Message, ...]
    usage: Usage = Usage()
    overhead_usage: Usage = Usage()
    finish_reason: FinishReason | None = None
    id: str = ""
    model: str = ""
    rounds: int = 1
    applied_edits: tuple[AppliedEdit, ...] = ()
    raw: object = None
    parsed: object = None
    service_tier: str = ""

    @property
    def text(self) -> str:
        """Text of the last assistant message."""
        for message in reversed(self.messages):
            if message.role == "assistant":
                return message.text
        return ""

    def __repr__(self) -> str:
        return (
            f"ChatResponse(messages={self.messages!r}, usage={self.usage!r}, "
            f"finish_reason={self.finish_reason!r}, id={self.id!r}, model={self.model!r})"
        )


class ParsedResponse(ChatResponse, Generic[T_co], frozen=True, kw_only=True):
    """The whole answer, with its value in ``parsed``, of the requested ``output_type``."""

    parsed: T_co  # pyright: ignore[reportGeneralTypeIssues]


if TYPE_CHECKING:  # a default needs Python 3.13 where the program runs
    from typing_extensions import TypeVar as TypeVarWithDefault

    Response_co = TypeVarWithDefault("Response_co", bound=ChatResponse, covariant=True, default=ChatResponse)
else:
    Response_co = TypeVar("Response_co", covariant=True)
