"""Recorded usage beside what is computed for the same calls when everything is sent.

So a replay can be checked against the bill. The figures are of calls whose usage was recorded, and of their input; what
the answers cost is told beside. Recorded counts are by the model's own tokenizer, and hold what the file does not: a
system prompt or tool schemas, mostly. Computed ones take each context to begin with a cold cache, branches and forks
too.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import msgspec

from chatstack.cli.terminal import counted
from chatstack.tokens.prices import Price, price_of
from chatstack.values.responses import Usage
from chatstack.workbench.replay.measures.costs import Spending, summed
from chatstack.workbench.replay.reading.usages import RecordedCall


class Computed(msgspec.Struct, frozen=True):
    """Computed figures of requests: tokens, those from and to the cache, and the dollars for the input."""

    tokens: int = 0
    read: int = 0
    written: int = 0
    usd: Decimal | None = Decimal(0)

    @classmethod
    def of(cls, tokens: int, spending: Spending) -> Computed:
        """Return the sums so far."""
        return cls(tokens, spending.tokens_read, spending.tokens_written, spending.usd)

    def __add__(self, other: Computed) -> Computed:
        usd = summed(self.usd, other.usd)
        return Computed(self.tokens + other.tokens, self.read + other.read, self.written + other.written, usd)

    def since(self, before: Computed) -> Computed:
        """Return what was added since an earlier moment."""
        usd = None if self.usd is None or before.usd is None else self.usd - before.usd
        return Computed(self.tokens - before.tokens, self.read - before.read, self.written - before.written, usd)


_NO_USAGE, _NOTHING = Usage(), Computed()


@dataclass(slots=True)
class Recorded:
    """The recorded usage of all calls that have one, and what is computed of the same calls.

    ``usd_input`` and ``usd_output`` are by today's prices of the recorded models, or of the one that is asked for, in
    the recorded service tiers; None from the first call on whose price is not known. ``without_usage`` counts the calls
    without one, ``partial_outputs`` those whose output was written down too early, ``without_writes`` those whose
    record has no place for cache writes.
    """

    calls: int = 0
    without_usage: int = 0
    usage: Usage = _NO_USAGE
    usd_input: Decimal | None = Decimal(0)
    usd_output: Decimal | None = Decimal(0)
    computed: Computed = _NOTHING
    partial_outputs: int = 0
    without_writes: int = 0

    def add(self, call: RecordedCall | None, computed: Computed, model: str, *, prices_of: str = "") -> None:
        """Add a call, and what was computed of it. ``model`` is that of the recording, for calls that name none that is
        known; ``prices_of`` is the model whose prices count instead."""
        if call is None or call.usage is None:
            self.without_usage += 1
            return
        self.calls += 1
        self.usage += call.usage
        price = price_of(prices_of or call.model, tier=call.tier) or price_of(prices_of or model, tier=call.tier)
        given, said = (None, None) if price is None else _cost(call.usage, price)
        self.usd_input, self.usd_output = summed(self.usd_input, given), summed(self.usd_output, said)
        self.computed += computed
        self.partial_outputs += call.output_is_partial
        self.without_writes += not call.tells_writes

    def merge(self, other: Recorded) -> None:
        """Add those of other conversations."""
        self.calls += other.calls
        self.without_usage += other.without_usage
        self.usage += other.usage
        self.usd_input = summed(self.usd_input, other.usd_input)
        self.usd_output = summed(self.usd_output, other.usd_output)
        self.computed += other.computed
        self.partial_outputs += other.partial_outputs
        self.without_writes += other.without_writes

    def told(self, counter: str) -> list[str]:
        """Return it in sentences; none if no usage was recorded."""
        if not self.calls:
            return []
        usage, computed = self.usage, self.computed
        written = f", {usage.cache_write_tokens:,} written to it" if usage.cache_write_tokens else ""
        sentences = [
            f"Recorded usage of {counted(self.calls, 'call')}: "
            f"{_input(usage.input_tokens, usage.cache_read_tokens)}{written}{_dollars(self.usd_input)}; "
            f"{usage.output_tokens:,} of output{_dollars(self.usd_output)}.",
            f"Computed of them when everything is sent, by {counter}: {_input(computed.tokens, computed.read)}"
            f"{_dollars(computed.usd)}. What a file does not hold, as system prompts, tool schemas and what "
            "a server's own tools read, is in the recorded figures alone.",
        ]
        partial = {
            "without recorded usage": self.without_usage,
            "with an output that was written down before the answer had ended": self.partial_outputs,
            "without a place for cache writes": self.without_writes,
        }
        lacks = [f"{number:,} {lack}" for lack, number in partial.items() if number]
        of = self.calls + self.without_usage
        return [*sentences, f"The record is partial: {'; '.join(lacks)}, of {of:,} calls."] if lacks else sentences


def _cost(usage: Usage, price: Price) -> tuple[Decimal | None, Decimal | None]:
    """Return the dollars for the input and for the output of a call."""
    given = price.of_usage(msgspec.structs.replace(usage, output_tokens=0))
    said = None if price.output is None else usage.output_tokens * price.output.at(usage.input_tokens) / 1_000_000
    return given, said


def _input(tokens: int, read: int) -> str:
    return f"{tokens:,} tokens of input, {read:,} of them from the cache"


def _dollars(usd: Decimal | None) -> str:
    return "" if usd is None else f", ${usd:,.2f}"
