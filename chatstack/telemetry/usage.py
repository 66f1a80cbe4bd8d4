"""Validation of reported usage as it comes in: budgets, loops, spans and estimates all rely on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec.structs import astuple

from chatstack.client.protocol import ChatClient, provider_info
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.turns import current_turn
from chatstack.tokens.upper_bound import is_clearly_possible, most_of
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatResponse, ChatUpdate, Usage
from chatstack.values.usage import LARGEST, credible, doubted, is_modest, with_usage


def check_usage(
    telemetry: Telemetry,
    request: ChatRequest,
    inner: ChatClient,
    update: ChatUpdate,
    so_far: Callable[[], ChatResponse],
) -> ChatUpdate:
    """Return the update without implausible usage, which counts as not reported.

    Warns (``usage_implausible``) once per conversation.
    """
    usage = update.usage
    is_plain = is_modest(usage, LARGEST) and is_modest(update.overhead_usage)
    if usage is not None and is_plain and is_clearly_possible(request, max(astuple(usage))):
        return update
    said = so_far().messages if update.message_done is None else (*so_far().messages, update.message_done)
    info = provider_info(inner)
    default = info.default_max_tokens if info is not None else 0
    most = partial(most_of, request, said, request.options.max_tokens or default)

    def believed(usage: Usage) -> Usage:
        known = credible(usage, most)
        doubts = [] if known is usage else doubted(usage, known)
        if doubts and telemetry.is_first("usage_implausible", conversation_key(request)):
            telemetry.warn(
                "usage_implausible",
                f"the provider reported what cannot be true ({', '.join(doubts)}): it counts as not told, in budgets "
                "too",
                {},
                span_name="usage",
            )
        return known

    return with_usage(update, believed)


def conversation_key(request: ChatRequest) -> str | int:
    """Return a key for the conversation that is constant over its calls: its id, or a hash of the first user
    message."""
    turn = current_turn()
    conversation_id = request.conversation_id or (turn.conversation_id if turn is not None else None)
    return conversation_id or hash(next((each for each in request.messages if each.role == "user"), None))
