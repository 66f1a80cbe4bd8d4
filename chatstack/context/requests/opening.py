"""Opening a request: recognise and repair it, and count what it holds, before any edit is decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from chatstack.client.protocol import ProviderInfo
from chatstack.context.edits.context import Context
from chatstack.context.edits.plans import Plan
from chatstack.context.edits.repairing import has_answer_since, late_in, repair_plan
from chatstack.context.edits.reserves import reserve_asked
from chatstack.context.edits.verifier import problems
from chatstack.context.histories.compacted import without_compacted
from chatstack.context.histories.conversations import LastAnswer
from chatstack.context.histories.recognised import Recognised
from chatstack.context.memory.memory import ContextMemory
from chatstack.context.requests.asking import Asking, aside, is_long
from chatstack.context.requests.opened import who_of
from chatstack.context.requests.saying import say_bypassed, say_rejected, say_repaired, say_unstable
from chatstack.errors import InputError
from chatstack.telemetry.emission import Telemetry
from chatstack.tokens.counter import TokenCounter
from chatstack.tokens.prices import cache_seconds
from chatstack.values.messages import Message
from chatstack.values.requests import ChatOptions, ChatRequest

SERVER_HELD = ("previous_response_id", "conversation", "thread")
"""Options that keep the history at the provider: the model sees more than the request, so nothing is edited."""

_ANSWERED = "repair:answered"
"""The level that holds the number of messages a history had when a repair answered one of its calls."""


@dataclass(frozen=True, slots=True)
class Weighing:
    """The sizes of requests, as one layer counts them. ``info`` is its provider's, which tells how long a cache lives,
    and what is reserved for an answer where the options ask for no bound."""

    memory: ContextMemory
    counter: TokenCounter
    size_of: Callable[[Message], int]
    """The size of a message, counted once."""
    info: ProviderInfo

    def weighed(
        self, request: ChatRequest, seen: Recognised, last: LastAnswer | None, *, tokens: int | None = None
    ) -> Context:
        """Return the context of a request as it came in. ``tokens`` is the size of its messages, if they are not those
        of the history; else only the new messages of the conversation are counted."""
        messages = request.messages
        if tokens is None:
            tokens = seen.history.sums(seen.length, self.counter, self.size_of)[seen.length]
            if seen.length < len(messages):
                tokens += sum(map(self.size_of, seen.systems_in(messages)))
        asked, is_cold = reserve_asked(request.options), False
        if last is not None:  # then hardly anything of the history with that answer may be in the provider's cache
            model = request.options.model or self.info.model
            is_cold = last.missed_cache or self.memory.clock() - last.at >= cache_seconds(self.info, model)
        return Context(
            request=request,
            messages=messages,
            messages_tokens=tokens,
            fixed_tokens=self.memory.options_size(request.options, self.counter),
            size_of=self.size_of,
            reserved_tokens=asked or 0,
            default_reserve_tokens=self.info.default_max_tokens if asked is None else 0,
            is_cold=is_cold,
        )


class Came(msgspec.Struct, frozen=True):
    """A request as it came to the first of adjacent context layers, repaired. ``last`` is the answer before it,
    ``late`` what the repair put before that answer, though it came since."""

    request: ChatRequest
    seen: Recognised
    last: LastAnswer | None
    is_unstable: bool
    late: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Opening:
    """Opens requests for adjacent context layers, by the counter of the first. ``owner`` names its options.
    ``compacted_by`` is the provider that is sent its compactions back, if there is one."""

    memory: ContextMemory
    telemetry: Telemetry
    weighing: Weighing
    owner: str
    compacted_by: ProviderInfo | None = None

    def open(self, request: ChatRequest) -> Asking[Came]:
        """Recognise and repair a request. Raises ``InputError`` if nothing is left to send."""
        came = self._recognised(request)
        if self.compacted_by is not None and came.seen.history.compactions:
            left = without_compacted(came.request.messages, came.seen, self.compacted_by)
            if left is not came.request.messages:
                came = self._recognised(request.but(messages=left))
        seen, counter, size_of = came.seen, self.weighing.counter, self.weighing.size_of
        if is_long(seen.length - seen.history.counted_by(counter)):  # few are counted where they are weighed
            yield from aside(lambda: seen.history.sums(seen.length, counter, size_of), seen.length)
        answered = seen.conversation.levels.get(_ANSWERED, 0)
        if seen.needs_repair or answered:
            came = self._repaired(came, answered)
        if not came.seen.is_unstable or any(each.mark or each.original is not each for each in came.request.messages):
            return came  # stable, or edited by layers further out
        if self.memory.raise_level("prefix_unstable", who_of(came.request, came.seen), 1):
            say_unstable(self.telemetry, came.seen.length)
        return msgspec.structs.replace(came, is_unstable=True)

    def stands_aside(self, request: ChatRequest) -> bool:
        """Return True if the history is kept at the provider, so that nothing may be edited; warns once for each
        conversation."""
        if not is_server_held(request.options):
            return False
        if self.memory.raise_level(f"{self.owner}:bypass", who_of(request, self._recognised(request).seen), 1):
            say_bypassed(self.telemetry)
        return True

    def _repaired(self, came: Came, answered: int) -> Came:
        """Repair a request; ``answered`` is the number of messages it had when a repair last answered a call."""
        request = came.request
        context = self.weighing.weighed(request, came.seen, came.last)
        plan = repair_plan(request.messages) or Plan(strategy="repair", reason="no result of a call, and has it now")
        is_news = bool(answered) and has_answer_since(request.messages, answered)
        repaired, levels = came, came.seen.conversation.levels
        if not plan.is_empty:
            wrong = problems(plan, context, is_repair=True)
            if wrong:
                say_rejected(self.telemetry, plan, wrong)
                return came
            if not context.after(plan).messages:
                raise InputError(
                    "messages: nothing but tool results; keep the messages with the calls that they answer"
                )
            repaired = self._recognised(context.after(plan).to_send())
            repaired = msgspec.structs.replace(
                repaired, late=late_in(plan, request.messages[context.latest_assistant + 1 :])
            )
            is_news |= self.memory.raise_level(
                f"{self.owner}:repair",
                who_of(repaired.request, repaired.seen),
                1 + len(plan.drop) + len(plan.replace) + len(plan.insert),
            )
        if is_news:
            say_repaired(
                self.telemetry, plan, context, self.weighing.weighed(repaired.request, repaired.seen, repaired.last)
            )
        if came.seen.history is repaired.seen.history and not plan.is_empty:
            # A repair at the end has made that history grow.
            levels = self._recognised(request).seen.conversation.levels
        levels[_ANSWERED] = len(request.messages) if any(each.mark == "repair" for _, each in plan.insert) else 0
        return repaired

    def _recognised(self, request: ChatRequest) -> Came:
        memory = self.memory
        seen = memory.recognise(request.messages, request.conversation_id, request.options.instructions)
        memory.past.recall(seen)
        evicted = memory.take_evicted()
        if evicted:
            self.telemetry.evicted(evicted)
        return Came(request, seen, seen.conversation.last_answer(seen.length), False)


def is_server_held(options: ChatOptions) -> bool:
    """Return True if the provider holds the history, so that a request is more than its messages."""
    return any(options.extra.get(name) for name in SERVER_HELD)
