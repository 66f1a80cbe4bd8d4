"""The break-even rule: an edit that nothing forces waits until it has paid for itself.

How many calls are still to come is not known, as it is not to somebody who rents skis and might buy them. The rent is
what it has cost to read again, from the prompt cache, the tokens that would go, since they were new. The price is that
of writing anew what stays behind the edit, of what the edit puts in, and of forgetting. At ``TIMES`` the price the edit
is made. A token goes once, so its rent counts once, and sending everything pays it, too. So all such edits together add
at most 1 / ``TIMES`` to the cost of sending everything, whatever is still to come.

Each assistant message was the answer to a request of all messages before it. So the rent follows from the history
alone, and every process comes to the same.

Source: ski rental, and its form with many purchases: Dooly, Goldman and Scott, "On-line analysis of the TCP
acknowledgment delay problem" (2001).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

from chatstack.context.edits.context import Context
from chatstack.context.histories.growth import Growth
from chatstack.tokens.caching import CACHE_READ, CACHE_WRITE, CACHED_FROM
from chatstack.values.messages import as_shaped, was_edited

TIMES: Final = 2
"""The rent at which an edit is made, in prices of the edit. Once would bound the cost, too; but many a conversation
ends just then."""
FORGETTING: Final = 0.2
"""Price of a token that goes, in uncached input tokens, for the chance that it is needed again: what was read again
fewer than four times on average stays, however little its edit costs. Chosen on half of the recorded coding runs."""

MOST_LEFT: Final = 0.75
"""Share of a conversation that an edit leaves, at most: one that takes little would be followed by the next."""
SHARED_OF: Final = 0.8
"""Share of a conversation that shares are taken of: an edit that nothing forces goes deeper than one at a limit, as
nothing says that there will be another one."""
SHARED_FROM: Final = 12_000
"""Size that shares are taken of, at least: those of a short conversation are not enough to work with."""


def may_forget(context: Context) -> bool:
    """Return True if anything was read again so often that forgetting it may pay: a test before any edit is drafted."""
    fewest = math.ceil(TIMES * FORGETTING / CACHE_READ) + 1
    return len(_answers(context)) >= fewest


def why_now(context: Context, left: Mapping[int, int], *, put_in: float = 0.0, forgetting: float = 0.0) -> str:
    """Return in words why an edit is worth its price now; "" if it is not.

    ``left`` holds what is left of each message that the edit touches, in counted tokens, by position: 0 if it goes.
    ``put_in`` is what else it puts in, in counted tokens, ``forgetting`` the price of a token that goes.
    """
    rest = context.input_tokens + put_in - sum(context.sizes[at] - size for at, size in left.items())
    if rest * context.scale < CACHED_FROM:
        return ""  # nothing of it would be cached any more
    rent, goes = _rent(context, left)
    price = forgetting * goes
    if not context.is_cold:
        price += (CACHE_WRITE - CACHE_READ) * _written_anew(context, left) + CACHE_WRITE * put_in
    if rent < TIMES * price:
        return ""
    told = f"reading again what goes has cost {rent * context.scale:,.0f}, the edit {price * context.scale:,.0f}"
    return f"cold cache ({told})" if context.is_cold else f"pays ({told})"


def may_pay(
    context: Context, going: Sequence[int], most: float, first: int | None, *, put_in: float, forgetting: float
) -> bool:
    """Return False if no edit that takes out at most ``most`` counted tokens of the messages at these positions can be
    worth its price now: a bound by sums of sizes.

    The edit begins at ``first`` or before it, and puts in ``put_in`` tokens; where ``first`` is None, both are open.
    Of all edits that a recorded set of coding runs asked about, it spared drafting two of three.
    """
    gain = _most_gain(context, going, most, forgetting)
    if first is None or context.is_cold:
        return gain > 0
    latest = context.latest_assistant
    behind = (
        context.input_tokens - context.fixed_tokens - most - sum(context.sizes[:first]) - sum(context.sizes[latest:])
    )
    return gain >= TIMES * ((CACHE_WRITE - CACHE_READ) * max(0.0, behind) + CACHE_WRITE * put_in)


def _most_gain(context: Context, going: Sequence[int], most: float, forgetting: float) -> float:
    """Return the rent of the messages that were read again most often, less the price of forgetting them."""
    origins, sizes, answers = context.origins, context.sizes, _answers(context)
    gain = 0.0
    for origin, at in sorted((origin, at) for at in going if (origin := origins[at]) is not None):
        of_each = CACHE_READ * _rereads(answers, origin) - TIMES * forgetting
        if of_each <= 0 or most <= 0:
            break  # newer ones were read no more often
        gain += of_each * min(most, sizes[at])
        most -= sizes[at]
    return gain


def _rent(context: Context, left: Mapping[int, int]) -> tuple[float, int]:
    """Return what reading again the tokens that go has cost since they were new, and how many these are."""
    origins, answers = context.origins, _answers(context)
    rent = goes = 0
    for at, size in left.items():
        origin = origins[at]
        gain = _sent_all_along(context, at) - size
        if origin is not None and gain > 0:
            rent += gain * _rereads(answers, origin)
            goes += gain
    return CACHE_READ * rent, goes


def _rereads(answers: Sequence[int], origin: int) -> int:
    """Return how often a message was read from the cache: the first of the requests with it wrote it there."""
    return max(0, len(answers) - bisect_right(answers, origin) - 1)


def _sent_all_along(context: Context, at: int) -> int:
    """Return the size of a message that every request since it was new had in it: not that of a list put in later."""
    message, size = context.messages[at], context.sizes[at]
    return min(size, context.size_of(as_shaped(message))) if was_edited(message) else size


def _written_anew(context: Context, left: Mapping[int, int]) -> int:
    """Return the tokens that the provider has in its cache, and writes again after the edit."""
    first, sizes = min(left), context.sizes
    head = context.fixed_tokens + sum(sizes[:first])
    behind = sum(left.get(at, sizes[at]) for at in range(first, context.latest_assistant))
    return behind + (head if head * context.scale < CACHED_FROM else 0)


def _answers(context: Context) -> list[int]:
    """Return the positions in the request of the answers to requests that had the task in them."""
    user = context.first_user
    if user is None:
        return []
    answers = Growth.of(context).reading.answers(context.request.messages)
    return answers[bisect_right(answers, context.origins[user] or 0) :]
