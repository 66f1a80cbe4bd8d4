"""Telemetry of context layers: each fact is reported once, at the one emission point."""

from __future__ import annotations

from opentelemetry.trace import Span

from chatstack import semconv
from chatstack.context.edits.context import Context
from chatstack.context.edits.kinds import KINDS, tokens_by_kind
from chatstack.context.edits.plans import Plan
from chatstack.context.edits.shortening import shortened_in
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.spans import Value
from chatstack.values.parts import ToolResult
from chatstack.values.responses import ChatResponse

_MOST_PLACES = 3


def _edit_attributes(plan: Plan, before: Context, after: Context) -> dict[str, Value]:
    """Return the attributes of an edit: its numbers, and the tokens of each kind that occurs."""
    was, left = tokens_by_kind(before), tokens_by_kind(after)
    kinds = [kind for kind in KINDS if kind in was or kind in left]
    return {
        **_plan_attributes(plan, before, after),
        **{f"{semconv.COMPACTION}.{kind}_tokens_before": was.get(kind, 0) for kind in kinds},
        **{f"{semconv.COMPACTION}.{kind}_tokens_after": left.get(kind, 0) for kind in kinds},
    }


def _plan_attributes(plan: Plan, before: Context, after: Context) -> dict[str, Value]:
    shortened = sum(map(len, shortened_in(plan, before).values()))
    cleared = _results_cleared(plan, before) - shortened
    return {
        semconv.COMPACTION_REASON: plan.reason,
        semconv.COMPACTION_MESSAGES_BEFORE: len(before.messages),
        semconv.COMPACTION_MESSAGES_AFTER: len(after.messages),
        **({semconv.COMPACTION_RESULTS_CLEARED: cleared} if cleared else {}),
        **({semconv.COMPACTION_RESULTS_SHORTENED: shortened} if shortened else {}),
    }


def _results_cleared(plan: Plan, context: Context) -> int:
    """Count the tool results whose content a plan changes."""
    return sum(
        type(old) is ToolResult and old != new
        for position, message in plan.replace
        if len(message.parts) == len(context.messages[position].parts)  # else parts were taken out of it, not cleared
        for old, new in zip(context.messages[position].parts, message.parts, strict=True)
    )


def say_edited(telemetry: Telemetry, plan: Plan, before: Context, after: Context, span: Span | None = None) -> None:
    """Report an edit, on ``span`` if it has one already; and warn if it shortened new tool results."""
    telemetry.edit(
        plan.strategy,
        f"{plan.reason}: {before.tokens:,} tokens became {after.tokens:,}",
        {} if telemetry.is_unheard else _edit_attributes(plan, before, after),
        tokens_before=before.tokens,
        tokens_after=after.tokens,
        span=span,
    )
    say_shortened(telemetry, plan, before)


def say_shaped(telemetry: Telemetry, plan: Plan, before: Context, after: Context, attribute: str, earlier: int) -> None:
    """Report new tool results that were bounded, or referred to; ``attribute`` counts them. ``earlier`` of the messages
    have been answered already, before anybody here knew the conversation: if they went out whole then, a prompt cache
    is lost."""
    why = f"{plan.reason}: {before.tokens:,} tokens became {after.tokens:,}"
    if earlier:
        why += f"; {earlier:,} were there already: if they went out whole then, it costs the prompt cache once"
    telemetry.edit(
        plan.strategy,
        why,
        {
            semconv.COMPACTION_REASON: plan.reason,
            semconv.COMPACTION_MESSAGES_BEFORE: len(before.messages),
            semconv.COMPACTION_MESSAGES_AFTER: len(after.messages),
            attribute: _results_cleared(plan, before),
        },
        tokens_before=before.tokens,
        tokens_after=after.tokens,
    )


def say_not_last(telemetry: Telemetry, editor: str) -> None:
    """Warn that no references are made to duplicates, as somebody further in may edit what they refer to."""
    telemetry.warn(
        "layer_order",
        f"deduplicate=True does nothing: {editor} may edit the request after that; context layers have to stand side "
        "by side, with one memory, and no fallback behind them",
        {},
        span_name="build_stack",
    )


def say_shortened(telemetry: Telemetry, plan: Plan, context: Context) -> None:
    """Warn of new tool results that were too large, so that the model sees only their beginning and end."""
    found = shortened_in(plan, context)
    if not found:
        return
    count = sum(map(len, found.values()))
    after = {at: message for at, message in plan.replace if at in found}
    before_tokens = sum(context.sizes[at] for at in after)
    after_tokens = sum(map(context.size_of, after.values()))
    places = ", ".join(str(context.origins[at]) for at in list(after)[:_MOST_PLACES])
    telemetry.warn(
        "tool_result_shortened",
        f"{count} shortened: new tool results of {before_tokens:,} tokens are too large, and became {after_tokens:,}; "
        f"at {places}{', ...' if len(after) > _MOST_PLACES else ''}",
        {
            semconv.COMPACTION_STRATEGY: plan.strategy,
            semconv.COMPACTION_RESULTS_SHORTENED: count,
            semconv.COMPACTION_TOKENS_BEFORE: before_tokens,
            semconv.COMPACTION_TOKENS_AFTER: after_tokens,
        },
        span_name="compact_context shorten",
    )


def say_repaired(telemetry: Telemetry, plan: Plan, before: Context, after: Context) -> None:
    """Warn that the history had calls without a result, or results without a call."""
    telemetry.warn(
        "messages_repaired",
        f"the history had {plan.reason}",
        {
            **_plan_attributes(plan, before, after),
            semconv.COMPACTION_STRATEGY: plan.strategy,
            semconv.COMPACTION_TOKENS_BEFORE: before.tokens,
            semconv.COMPACTION_TOKENS_AFTER: after.tokens,
        },
        span_name="compact_context repair",
    )


def say_rejected(telemetry: Telemetry, plan: object, wrong: tuple[str, ...], name: str = "unknown") -> None:
    """Warn that a plan did not pass the verifier; ``name`` is the strategy's, as what is no plan has none."""
    strategy = plan.strategy if isinstance(plan, Plan) else name
    telemetry.warn(
        "plan_rejected",
        f"the plan of {strategy!r} was not applied: {'; '.join(wrong[:3])}",
        {semconv.COMPACTION_STRATEGY: strategy},
        span_name=f"compact_context {strategy}",
        error="plan_rejected",
    )


def say_bypassed(telemetry: Telemetry) -> None:
    """Warn that nothing is edited, as the history is kept at the provider."""
    telemetry.warn(
        "context_layers_bypassed",
        "the history lies at the provider (previous_response_id or conversation): nothing is weighed or edited",
        {semconv.GUARD_ACTION: "warn"},
    )


def say_unstable(telemetry: Telemetry, length: int) -> None:
    """Warn that the history keeps coming with another beginning."""
    telemetry.warn(
        "prefix_unstable",
        f"a history of {length} messages began differently twice running (is its head rewritten, or a window slid over "
        "it, before it gets here?): no edit can be kept for it, nor a prompt cache used; it is edited only where a "
        "limit forces it",
        {semconv.COMPACTION_MESSAGES_BEFORE: length},
        span_name="compact_context replay",
    )


def say_provider_cleared(telemetry: Telemetry, strategy: str, answer: ChatResponse, *, before: int) -> None:
    """Report what the provider says that it has cleared of a request; ``before`` are the tokens that it had cleared of
    the request before, which are no news."""
    cleared = sum(each.cleared_tokens for each in answer.applied_edits)
    after = answer.usage.input_tokens
    telemetry.edit(
        strategy,
        f"the provider cleared {cleared:,} tokens on its side, and read {after:,}",
        {
            semconv.COMPACTION_NATIVE: True,
            semconv.COMPACTION_REASON: "the provider's own edit",
            semconv.COMPACTION_RESULTS_CLEARED: sum(each.cleared_results for each in answer.applied_edits),
        },
        tokens_before=after + max(0, cleared - before),
        tokens_after=after,
    )


def say_provider_compacted(telemetry: Telemetry, strategy: str, context: Context, answer: ChatResponse) -> None:
    """Report that the provider has compacted a request: its size as counted here, and what the provider says to have
    read afterwards, where it says so."""
    after = min(answer.usage.input_tokens or context.tokens, context.tokens)
    telemetry.edit(
        strategy,
        f"the provider compacted {len(context.messages)} messages on its side",
        {
            semconv.COMPACTION_NATIVE: True,
            semconv.COMPACTION_REASON: "the provider's own edit",
            semconv.COMPACTION_MESSAGES_BEFORE: len(context.messages),
            semconv.COMPACTION_MESSAGES_AFTER: 1,
        },
        tokens_before=context.tokens,
        tokens_after=after,
    )


def say_ineffective(telemetry: Telemetry, strategy: str, after: Context, why: str) -> None:
    """Warn that an edit was due, and does not help."""
    telemetry.warn(
        "edit_ineffective",
        f"about {after.size_told} are left, still at the trigger: {why}",
        {semconv.COMPACTION_STRATEGY: strategy, semconv.COMPACTION_TOKENS_AFTER: after.tokens},
        span_name=f"compact_context {strategy}",
    )


def share_of(context: Context, limit: int) -> str:
    """Return how full a context is: the share of the limit, and the sizes."""
    return f"{context.tokens / limit:.0%}: about {context.tokens:,} of {limit:,} tokens{context.reserve_told}"


def say_window_unknown(telemetry: Telemetry, layer: str, consequence: str) -> None:
    """Warn that a limit is a share of a window that is not known."""
    telemetry.warn(
        "window_unknown",
        f"{layer}: nobody knows the window of this model: {consequence}; give the limit as a number, or the "
        "provider its window_tokens",
        {semconv.GUARD_ACTION: "warn"},
    )


def say_estimated(telemetry: Telemetry, strategy: str) -> None:
    """Warn that the provider does not count tokens, so that sizes are estimates."""
    telemetry.warn(
        "token_count_estimated",
        'token_count_method="model", but the provider does not count, or could not be asked: sizes are estimates',
        {semconv.COMPACTION_STRATEGY: strategy},
        span_name=f"compact_context {strategy}",
    )


def say_not_summarized(
    telemetry: Telemetry, strategy: str, context: Context, why: str, kind: str, span: Span | None
) -> None:
    """Warn that there is no summary; ``kind`` is the error on the span of the attempt, if there was one."""
    telemetry.warn(
        "summarizer_failed",
        f"no summary: {why}; the history stays as it is",
        {
            semconv.COMPACTION_STRATEGY: strategy,
            semconv.COMPACTION_MESSAGES_BEFORE: len(context.messages),
            semconv.COMPACTION_TOKENS_BEFORE: context.tokens,
        },
        span_name=f"compact_context {strategy}",
        error=kind,
        span=span,
    )
