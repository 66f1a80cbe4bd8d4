"""The report of a replay as data: for programs as JSON, and for the page.

``version`` is 2. ``counter``, ``window`` and ``tools`` (``file``, ``count``, ``tokens``) say how it was measured,
``model`` whose prices count (null: the recorded models'), ``pause_seconds`` how long after one call the next one came,
``long_cache`` whether caches live an hour, ``shared_memory`` whether policies remember one conversation in the next,
``own_counter`` whether their layers count by themselves. ``files`` is what was read (the first of them, and
``file_count``), ``conversations`` and ``calls`` how much that was, ``joined`` how many recorded lines are the beginning
of another, and so no conversation of their own, ``left_out`` what else was not read, in words, and how often,
``errors`` (``file``, ``line``, ``error``) what could not be read (the first of them, and ``error_count``),
``assumptions`` what was assumed because it is not known, in sentences.
``prices`` has for each ``model`` dollars for a million tokens, of a small request: ``input``, ``read``, ``write``
(null where nobody tells it); and ``minimum_prefix_tokens``, ``lifetime_seconds`` (null: not published), ``source``.
``recorded`` is null, or the recorded usage beside what is computed for the same calls when everything is sent:
``calls`` of which it is known, and ``calls_without_usage``; as recorded ``input_tokens`` (cache reads and writes
included), ``cache_read_tokens``, ``cache_write_tokens``, ``output_tokens``, ``input_usd`` and ``output_usd``;
``computed_tokens``, ``computed_tokens_from_cache``, ``computed_tokens_to_cache``, ``computed_usd``; how many calls have
a ``partial_output``, and how many are ``without_cache_writes``; ``told`` is the same in sentences.
``calls_at`` counts the conversations that have a first call, a second, and so on. For each of the ``policies``:

- ``name``, ``about``, ``is_yours`` (a stack given by ``--pipeline``)
- ``conversations``, ``calls`` (recorded answers), ``requests`` (all that was sent for them)
- ``tokens_sent``, ``peak_tokens`` (the largest request), ``over_limit`` (calls with a request over the window)
- ``tokens_from_cache``, ``tokens_to_cache``: tokens that a prompt cache would have held, and would have taken in;
  ``tokens_missed``: tokens that the call before had left there, and that were sent again and not read;
  ``prefix_breaks``: calls whose request does not start with all of the request before it (``measures/costs.py``);
  ``summary_input``, ``summary_output``: tokens that were read and written for summaries
- ``cost_relative``: cost in uncached input tokens (a read 0.1, a write 1.25 or, to a long cache, 2, nothing under
  1,024 tokens cached, a token of a summary 5), as a multiple of what sending everything costs; null where calls were
  refused
- ``cost_usd``, ``cost_usd_uncached``: the input with a prompt cache and without, by the prices of the recorded models
  and the fixed counter's tokens; null where calls were refused or a price is not known. What the answers cost is the
  same for every policy and is left out.
- ``grounding``, ``grounding_far``: shares, 0 to 1, of the ``grounding_values`` and ``grounding_far_values`` that the
  recorded calls took from their full context and that were still in what was sent (``measures/grounding.py``); null
  where there was no such value. Of a refused call none was there. ``grounding_bare``, ``grounding_far_bare``: the same
  without what stood only in a list of names that an edit left; ``grounding_attributed``, ``grounding_far_attributed``:
  without what stood only in such a list and whose label there does not lead to the call that held it
- ``edits`` (that layers report), ``refused`` (calls for which the stack raised), ``invalid_requests`` (that a server
  would refuse), ``faults`` (why, and how often), ``latest_user_lost`` (calls whose request lacks the latest user
  message), ``cpu_ms_per_call``
- ``dearest``: the conversation with the highest ``cost_relative``, with its ``number`` in the order of the input and
  its ``id``; null where all had refused calls
- ``curve``: ``tokens`` (the mean) and ``peak`` (the largest) of the requests for the first call of each conversation,
  the second, and so on; null where there was none

For the page alone there are ``stories``: some conversations, call by call (``replay/stories.py``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import cast

import msgspec

from chatstack.tokens.prices import Price
from chatstack.workbench.replay.assumptions import assumptions_of
from chatstack.workbench.replay.measures.figures import Curve, Dearest, PolicyFigures
from chatstack.workbench.replay.measures.recorded import Recorded
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.policies import Policy
from chatstack.workbench.replay.setup import Setup

REPORT_VERSION = 2
"""Version of the report: goes up when a field changes its meaning or is removed; fields may be added."""
_FILES_TOLD = 100

Report = dict[str, object]


def report_of(outcome: Outcome, setup: Setup, files: Sequence[str] = (), tools_file: str | None = None) -> Report:
    """Return the whole report, with the settings of the measurement."""
    tools = {"file": tools_file, "count": len(setup.tools), "tokens": setup.tools_tokens}
    everything = outcome.everything
    policies = zip(setup.policies, outcome.figures, strict=True)
    return {
        "version": REPORT_VERSION,
        "counter": setup.counter.name,
        "window": setup.window,
        "tools": tools if tools_file is not None else None,
        "model": setup.model or None,
        "pause_seconds": setup.pause_seconds,
        "long_cache": setup.long_cache,
        "shared_memory": setup.shared_memory,
        "own_counter": setup.own_counter,
        "files": list(files[:_FILES_TOLD]),
        "file_count": len(files),
        "conversations": outcome.conversations,
        "calls": everything.calls,
        "joined": outcome.joined,
        "left_out": outcome.left_out,
        "recorded": _recorded(outcome.recorded, setup.counter.name),
        "errors": [{"file": each.file, "line": each.line, "error": each.error} for each in outcome.broken],
        "error_count": outcome.broken_count,
        "assumptions": assumptions_of(outcome, setup),
        "prices": [_price(model, price) for model, price in sorted(outcome.prices.items())],
        "calls_at": everything.curve.calls,
        "policies": [_policy(policy, figures, everything) for policy, figures in policies],
    }


def report_json(report: Report) -> str:
    """Return the report as JSON text. Lone surrogates, which a recording may hold, are written as escapes."""
    return json.dumps(report, indent=2)


def with_stories(report: Report, outcome: Outcome) -> Report:
    """Return the report for the page, with its stories."""
    return {**report, "stories": cast("object", msgspec.to_builtins(outcome.stories))}


def _price(model: str, price: Price) -> dict[str, object]:
    return {
        "model": model,
        "input": float(price.input.base),
        "read": float(price.read.base),
        "write": None if price.write is None else float(price.write.base),
        "minimum_prefix_tokens": price.minimum_tokens,
        "lifetime_seconds": price.lifetime_seconds,
        "source": price.source,
    }


def _recorded(recorded: Recorded, counter: str) -> dict[str, object] | None:
    if not recorded.calls:
        return None
    usage, computed = recorded.usage, recorded.computed
    return {
        "calls": recorded.calls,
        "calls_without_usage": recorded.without_usage,
        "input_tokens": usage.input_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
        "input_usd": _rounded(recorded.usd_input),
        "output_usd": _rounded(recorded.usd_output),
        "computed_tokens": computed.tokens,
        "computed_tokens_from_cache": computed.read,
        "computed_tokens_to_cache": computed.written,
        "computed_usd": _rounded(computed.usd),
        "partial_output": recorded.partial_outputs,
        "without_cache_writes": recorded.without_writes,
        "told": recorded.told(counter),
    }


def _policy(policy: Policy, figures: PolicyFigures, everything: PolicyFigures) -> dict[str, object]:
    spending, grounding = figures.spending, figures.grounding
    is_whole = not figures.refused  # refused calls cost nothing: their sum beside others would look cheap
    return {
        "name": figures.name,
        "about": policy.about,
        "is_yours": policy.is_yours,
        "conversations": figures.conversations,
        "calls": figures.calls,
        "requests": figures.requests,
        "tokens_sent": figures.tokens_sent,
        "peak_tokens": figures.peak_tokens,
        "over_limit": figures.over_limit,
        "tokens_from_cache": spending.tokens_read,
        "tokens_to_cache": spending.tokens_written,
        "tokens_missed": spending.tokens_missed,
        "summary_input": spending.summary_input,
        "summary_output": spending.summary_output,
        "prefix_breaks": spending.prefix_breaks,
        "cost_relative": _rounded(figures.cost_relative(everything.spending)),
        "cost_usd": _rounded(spending.usd) if is_whole else None,
        "cost_usd_uncached": _rounded(spending.usd_uncached) if is_whole else None,
        "grounding": _rounded(grounding.share),
        "grounding_values": grounding.values,
        "grounding_far": _rounded(grounding.far_share),
        "grounding_far_values": grounding.far_values,
        "grounding_bare": _rounded(grounding.bare_share),
        "grounding_far_bare": _rounded(grounding.far_bare_share),
        "grounding_attributed": _rounded(grounding.attributed_share),
        "grounding_far_attributed": _rounded(grounding.far_attributed_share),
        "invalid_requests": figures.invalid_requests,
        "edits": figures.edits,
        "refused": figures.refused,
        "latest_user_lost": figures.latest_user_lost,
        "dearest": _dearest(figures.dearest),
        "cpu_ms_per_call": round(figures.cpu_ms_per_call, 4),
        "faults": dict(sorted(figures.faults.items())),
        "curve": _curve(figures.curve),
    }


def _dearest(found: Dearest | None) -> dict[str, object] | None:
    if found is None:
        return None
    return {"cost_relative": _rounded(found.cost_relative), "number": found.number, "id": found.id}


def _curve(curve: Curve) -> dict[str, list[float | None]]:
    return {
        "tokens": [
            round(tokens / calls, 1) if calls else None for tokens, calls in zip(curve.tokens, curve.calls, strict=True)
        ],
        "peak": [peak if calls else None for peak, calls in zip(curve.peak, curve.calls, strict=True)],
    }


def _rounded(figure: float | Decimal | None) -> float | None:
    return None if figure is None else round(float(figure), 6)
