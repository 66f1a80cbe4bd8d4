"""What context layers say of their edits: each fact once, at the one emission point."""

from __future__ import annotations

from chatstack import semconv
from chatstack.context.context import Context
from chatstack.context.plans import Plan
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.spans import Value
from chatstack.values.parts import ToolResult


def edit_attributes(plan: Plan, before: Context, after: Context) -> dict[str, Value]:
    """The numbers of an edit."""
    cleared = results_cleared(plan, before)
    return {
        semconv.COMPACTION_REASON: plan.reason,
        semconv.COMPACTION_MESSAGES_BEFORE: len(before.messages),
        semconv.COMPACTION_MESSAGES_AFTER: len(after.messages),
        **({semconv.COMPACTION_RESULTS_CLEARED: cleared} if cleared else {}),
    }


def results_cleared(plan: Plan, context: Context) -> int:
    """How many tool results a plan takes the content from."""
    return sum(
        type(old) is ToolResult and old != new
        for position, message in plan.replace
        for old, new in zip(context.messages[position].parts, message.parts, strict=False)
    )


def say_repaired(telemetry: Telemetry, plan: Plan, before: Context, after: Context) -> None:
    """Calls without a result, or results without a call, were in the history."""
    telemetry.warn(
        "messages_repaired",
        f"the history had {plan.reason}",
        {
            **edit_attributes(plan, before, after),
            semconv.COMPACTION_STRATEGY: plan.strategy,
            semconv.COMPACTION_TOKENS_BEFORE: before.tokens,
            semconv.COMPACTION_TOKENS_AFTER: after.tokens,
        },
        span_name="compact_context repair",
    )


def say_rejected(telemetry: Telemetry, plan: object, wrong: tuple[str, ...]) -> None:
    """A plan did not pass the verifier."""
    strategy = plan.strategy if isinstance(plan, Plan) else "unknown"
    telemetry.warn(
        "plan_rejected",
        f"the plan of {strategy!r} was not applied: {'; '.join(wrong[:3])}",
        {semconv.COMPACTION_STRATEGY: strategy},
        span_name=f"compact_context {strategy}",
        error="plan_rejected",
    )


def say_bypassed(telemetry: Telemetry) -> None:
    """The history lies at the provider."""
    telemetry.warn(
        "context_layers_bypassed",
        "the history lies at the provider (previous_response_id or conversation): nothing is weighed or edited",
        {semconv.GUARD_ACTION: "warn"},
    )


def say_unstable(telemetry: Telemetry, length: int) -> None:
    """The history keeps coming with another beginning."""
    telemetry.warn(
        "prefix_unstable",
        f"a history of {length} messages began differently twice running (is its head rewritten, or a window slid over "
        "it, before it gets here?): no edit can be kept for it, nor a prompt cache used; it is edited only where a "
        "limit forces it",
        {semconv.COMPACTION_MESSAGES_BEFORE: length},
        span_name="compact_context replay",
    )


def say_ineffective(telemetry: Telemetry, strategy: str, after: Context, why: str) -> None:
    """An edit was due, and does not help."""
    telemetry.warn(
        "edit_ineffective",
        f"about {after.tokens:,} tokens are left, still at the trigger: {why}",
        {semconv.COMPACTION_STRATEGY: strategy, semconv.COMPACTION_TOKENS_AFTER: after.tokens},
        span_name=f"compact_context {strategy}",
    )


def say_window_unknown(telemetry: Telemetry, layer: str, consequence: str) -> None:
    """A share of a window was asked for that nobody knows."""
    telemetry.warn(
        "window_unknown",
        f"{layer}: nobody knows the window of this model: {consequence}; give the limit as a number, or the "
        "provider its window_tokens",
        {semconv.GUARD_ACTION: "warn"},
    )


def say_estimated(telemetry: Telemetry, strategy: str) -> None:
    """The provider was to count, and does not."""
    telemetry.warn(
        "token_count_estimated",
        'token_count_method="model", but the provider does not count, or could not be asked: sizes are estimates',
        {semconv.COMPACTION_STRATEGY: strategy},
        span_name=f"compact_context {strategy}",
    )
