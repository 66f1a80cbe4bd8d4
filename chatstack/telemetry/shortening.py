"""The mark of a request that was edited on its way down: what was left out of it. It travels in the OpenTelemetry
context, so that layers which do not know of it cannot lose it."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, cast

from opentelemetry import context as otel

from chatstack import semconv
from chatstack.telemetry.spans import numbers_of
from chatstack.tokens.counter import char_counter
from chatstack.values.messages import Message

Messages: TypeAlias = tuple[Message, ...]

_SHORTENED = otel.create_key("chatstack-shortened")


class LeftOut(NamedTuple):
    """The difference between the request of a model call and the original one.

    ``tokens`` is the count reported by context layers, and an estimate for other layers. ``by_plan``: a context layer
    took part in it. ``is_of_turn``: the request is the turn's own, and not one that a tool or a layer makes beside it.
    """

    messages_came: int
    messages_sent: int
    tokens: int
    by_plan: bool
    is_of_turn: bool

    @property
    def attributes(self) -> dict[str, int]:
        """The numbers as attributes of a span."""
        return {
            semconv.CONTEXT_MESSAGES: self.messages_came,
            semconv.CONTEXT_MESSAGES_SENT: self.messages_sent,
            semconv.CONTEXT_TOKENS_LEFT_OUT: self.tokens,
        }

    @property
    def numbers(self) -> dict[str, int | float]:
        """The numbers for a progress event."""
        return numbers_of(self.attributes)

    def __str__(self) -> str:
        return f"{self.messages_sent:,} of {self.messages_came:,} messages sent, about {self.tokens:,} tokens left out"


class _Shortened(NamedTuple):
    """All edits up to here: ``came`` are the messages before the first edit, ``sent`` those after the last; ``fewer``
    messages, and ``tokens`` less."""

    came: Messages
    sent: Messages
    fewer: int
    tokens: int
    by_plan: bool


def compacted(came: Messages, sent: Messages, tokens: int) -> otel.Context:
    """Return the current context with the mark that a context layer has edited messages, and left out that many tokens.

    Adds to the edits of layers further out.
    """
    return _marked(came, sent, tokens, by_plan=True)


def shortened(came: Messages, sent: Messages) -> otel.Context:
    """Return the same for a layer that is no context layer: its tokens are estimated."""
    return _marked(came, sent, _lost(came, sent), by_plan=False)


def _marked(came: Messages, sent: Messages, tokens: int, *, by_plan: bool) -> otel.Context:
    first, fewer, before = came, len(came) - len(sent), _mark_of(came)
    if before is not None:
        first, by_plan = before.came, by_plan or before.by_plan
        fewer += before.fewer + max(0, len(before.sent) - len(came))
        tokens += before.tokens + _lost(before.sent, came)
    return otel.set_value(_SHORTENED, _Shortened(first, sent, fewer, tokens, by_plan))


def unmarked(context: otel.Context) -> otel.Context:
    """Return the context without the mark, for a request that is complete."""
    return otel.set_value(_SHORTENED, None, context)


def left_out_of(sent: Messages, asked: Messages) -> LeftOut | None:
    """Return what was left out of the messages that are sent here; None if nothing was.

    ``asked`` are the messages of the turn's current round, () if unknown: by comparison with them, edits of layers that
    set no mark are found, too.
    """
    mark = _mark_of(sent)
    is_of_turn = _continues(sent if mark is None else mark.came, asked)
    known = asked if is_of_turn else ()
    if mark is None:
        tokens = _lost(known, sent)
        return LeftOut(max(len(known), len(sent)), len(sent), tokens, False, is_of_turn) if tokens else None
    came = max(len(sent), len(mark.sent)) + mark.fewer
    tokens = mark.tokens + _lost(mark.sent, sent) + _lost(known, mark.came)
    if not tokens and not mark.by_plan:
        return None
    return LeftOut(max(len(known), came), len(sent), tokens, mark.by_plan, is_of_turn)


def _mark_of(messages: Messages) -> _Shortened | None:
    """Return the mark, if it is about these messages: a layer may send a request of its own meanwhile."""
    mark = cast("_Shortened | None", otel.get_value(_SHORTENED))
    return mark if mark is not None and _continues(messages, mark.sent) else None


def _continues(messages: Messages, before: Messages) -> bool:
    """Return True if messages are an edited version of others: they end alike, or share any."""
    if messages is before:
        return True
    if not messages or not before:
        return False
    one, other = messages[-1], before[-1]
    return one.original is other.original or one == other or not set(map(id, messages)).isdisjoint(map(id, before))


def _lost(before: Messages, after: Messages) -> int:
    """Return an estimate of the tokens removed by a layer that does not report them."""
    if before is after or not before:
        return 0
    size_of = char_counter(4).count_message
    stay = set(map(id, before)).intersection(map(id, after))
    gone = sum(size_of(message) for message in before if id(message) not in stay)
    new = sum(size_of(message) for message in after if id(message) not in stay)
    return max(0, gone - new)
