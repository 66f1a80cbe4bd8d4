"""What has happened at a gateway, for its page: sums, and the latest requests. No text of a message is in it."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field

from chatstack import ChatResponse
from chatstack_gateway.exchange import Exchange

logger = logging.getLogger("chatstack.gateway")

LATEST = 200
_UNHEARD = (
    "a layer changes answers, and callers get upstream's bytes, so they do not see that; start with --rewrite-answers "
    "to hand on what the layers make of answers (told once; the page counts them)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One watched request: what was sent, and what the pipeline would have sent.

    Costs are in dollars, None where the model's price is not known. ``cached`` is computed alike on both sides;
    ``reported_cached`` is what the provider said.
    """

    model: str
    form: str
    messages: int
    tokens: int
    would_tokens: int
    cached: int
    would_cached: int
    usd: float | None
    would_usd: float | None
    is_broken: bool
    would_break: bool
    edits: tuple[str, ...]
    reported_cached: int

    @property
    def attributes(self) -> dict[str, str | int | float | bool | list[str]]:
        """Attributes of its span."""
        found: dict[str, str | int | float | bool | list[str]] = {
            "chatstack.observe.tokens_sent": self.tokens,
            "chatstack.observe.tokens_would_send": self.would_tokens,
            "chatstack.observe.cached_sent": self.cached,
            "chatstack.observe.cached_would_send": self.would_cached,
            "chatstack.observe.would_break_cache": self.would_break,
            "chatstack.observe.edits": list(self.edits),
        }
        if self.usd is not None and self.would_usd is not None:
            found["chatstack.observe.usd_sent"] = self.usd
            found["chatstack.observe.usd_would_send"] = self.would_usd
        return found


@dataclass(slots=True)
class Sums:
    """Sums over watched requests."""

    requests: int = 0
    tokens: int = 0
    would_tokens: int = 0
    cached: int = 0
    would_cached: int = 0
    reported_cached: int = 0
    usd: float = 0.0
    would_usd: float = 0.0
    unpriced: int = 0
    breaks: int = 0
    would_breaks: int = 0
    edited: int = 0

    def add(self, watched: Watched) -> None:
        """Add one request."""
        self.requests += 1
        self.tokens += watched.tokens
        self.would_tokens += watched.would_tokens
        self.cached += watched.cached
        self.would_cached += watched.would_cached
        self.reported_cached += watched.reported_cached
        self.breaks += watched.is_broken
        self.would_breaks += watched.would_break
        self.edited += bool(watched.edits)
        if watched.usd is None or watched.would_usd is None:
            self.unpriced += 1
        else:
            self.usd += watched.usd
            self.would_usd += watched.would_usd


@dataclass(slots=True)
class Activity:
    """Counts of one process. ``unobserved`` are watched requests on which the pipeline failed, and any that came too
    fast; ``unheard`` answers that a layer changed, while the caller got upstream's."""

    started: float = field(default_factory=time.time)
    outcomes: Counter[str] = field(default_factory=Counter[str])
    statuses: Counter[str] = field(default_factory=Counter[str])
    bytes_came: int = 0
    bytes_sent: int = 0
    unobserved: int = 0
    unheard: int = 0
    sums: Sums = field(default_factory=Sums)
    latest: deque[dict[str, object]] = field(default_factory=lambda: deque[dict[str, object]](maxlen=LATEST))

    def __call__(self, exchange: Exchange, response: ChatResponse | None, status: int) -> None:
        """Count an exchange that is over."""
        self.outcomes[exchange.outcome] += 1
        self.statuses[str(status)] += 1
        self.unheard += exchange.answer_changed
        if exchange.answer_changed and self.unheard == 1:
            logger.warning(_UNHEARD)
        self.bytes_came += len(exchange.raw)
        self.bytes_sent += exchange.sent_bytes
        self.latest.append(
            {
                "at": time.time(),
                "form": exchange.form,
                "model": exchange.request.options.model or "",
                "status": status,
                "outcome": exchange.outcome,
                "reason": exchange.reason,
                "messages": len(exchange.request.messages),
                "bytes": len(exchange.raw),
                "sent": exchange.sent_bytes,
                "input_tokens": 0 if response is None else response.usage.input_tokens,
                "cached_tokens": 0 if response is None else response.usage.cache_read_tokens,
            }
        )

    def told(self) -> dict[str, object]:
        """Return all of it as JSON values."""
        return {
            "started": self.started,
            "outcomes": dict(self.outcomes),
            "statuses": dict(self.statuses),
            "bytes_came": self.bytes_came,
            "bytes_sent": self.bytes_sent,
            "unobserved": self.unobserved,
            "unheard": self.unheard,
            "observed": asdict(self.sums),
            "latest": list(self.latest),
        }
