"""Opening a request: repair, recognise and size it, before any edit is decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chatstack.context.context import Context
from chatstack.context.conversations import LastAnswer
from chatstack.context.history import Recognised
from chatstack.context.memory import ContextMemory
from chatstack.context.opened import Opened
from chatstack.context.plans import Plan
from chatstack.context.repairing import has_answer_since, repair_plan
from chatstack.context.reserves import reserve_asked
from chatstack.context.saying import say_bypassed, say_rejected, say_repaired
from chatstack.context.verifier import problems
from chatstack.errors import InputError
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.shortening import is_compacted
from chatstack.tokens.caching import CACHE_SECONDS
from chatstack.tokens.counter import TokenCounter
from chatstack.values.messages import Message
from chatstack.values.requests import ChatRequest

SERVER_HELD = ("previous_response_id", "conversation")
"""Options that keep the history at the provider: the model sees more than the request, so nothing is edited."""

_ANSWERED = "repair:answered"
"""The level that holds the number of messages a history had when a repair answered one of its calls."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Opens requests for one context layer. ``owner`` names the layer's options; ``model`` and ``default_reserve`` are
    those of its provider. With ``by_original``, edited messages are recognised by their originals."""

    memory: ContextMemory
    telemetry: Telemetry
    counter: TokenCounter
    size_of: Callable[[Message], int]
    owner: str
    model: str
    default_reserve: int
    by_original: bool

    def open(self, request: ChatRequest) -> Opened:
        """Repair and size a request. Raises ``InputError`` if nothing is left to send."""
        opened = self._opened(request)
        context, seen = opened.context, opened.seen
        levels = seen.conversation.levels
        answered = levels.get(_ANSWERED, 0)
        if not (seen.needs_repair or answered):
            return opened
        plan = repair_plan(request.messages) or Plan(strategy="repair", reason="no result of a call, and has it now")
        is_news = bool(answered) and has_answer_since(request.messages, answered)
        if not plan.is_empty:
            wrong = problems(plan, context, is_repair=True)
            if wrong:
                say_rejected(self.telemetry, plan, wrong)
                return opened
            if not context.after(plan).messages:
                raise InputError(
                    "messages: nothing but tool results; keep the messages with the calls that they answer"
                )
            opened = self._opened(context.after(plan).to_send())
            is_news |= self.memory.raise_level(
                f"{self.owner}:repair", opened.who, 1 + len(plan.drop) + len(plan.replace) + len(plan.insert)
            )
        if is_news:
            say_repaired(self.telemetry, plan, context, opened.context)
        if seen.history is opened.seen.history and not plan.is_empty:
            # A repair at the end has made that history grow.
            levels = self._opened(request).seen.conversation.levels
        levels[_ANSWERED] = len(request.messages) if any(each.mark == "repair" for _, each in plan.insert) else 0
        return opened

    def stands_aside(self, request: ChatRequest) -> bool:
        """Return True if the history is kept at the provider, so that nothing may be edited; warns once for each
        conversation."""
        extra = request.options.extra
        if not extra or not any(extra.get(name) for name in SERVER_HELD):
            return False
        if self.memory.raise_level(f"{self.owner}:bypass", self._opened(request).who, 1):
            say_bypassed(self.telemetry)
        return True

    def _opened(self, request: ChatRequest) -> Opened:
        by_original = self.by_original and is_compacted()
        messages = tuple([each.original for each in request.messages]) if by_original else request.messages
        seen = self.memory.recognise(messages, request.conversation_id, request.options.instructions)
        evicted = self.memory.take_evicted()
        if evicted:
            self.telemetry.evicted(evicted)
        self.memory.past.recall(seen)
        last = seen.conversation.last_answer(seen.length)
        context = self._weighed(request, seen, by_original, last)
        model = request.options.model or self.model
        return Opened(context, seen, model, is_by_original=by_original, last_answer=last)

    def _weighed(self, request: ChatRequest, seen: Recognised, by_original: bool, last: LastAnswer | None) -> Context:
        """Return the context as it came in; only the new messages of the conversation are counted."""
        messages = request.messages
        if by_original:  # sizes are cached, but the history's sums are those of the originals
            tokens = sum(map(self.size_of, messages))
        else:
            tokens = seen.history.sums(seen.length, self.counter, self.size_of)[seen.length]
            if seen.length < len(messages):
                tokens += sum(map(self.size_of, seen.systems_in(messages)))
        asked = reserve_asked(request.options)
        return Context(
            request=request,
            messages=messages,
            messages_tokens=tokens,
            fixed_tokens=self.memory.options_size(request.options, self.counter),
            size_of=self.size_of,
            reserved_tokens=asked or 0,
            default_reserve_tokens=self.default_reserve if asked is None else 0,
            is_cold=last is not None and self._is_cold(last),
        )

    def _is_cold(self, last: LastAnswer) -> bool:
        """Return True if hardly anything of the history with this answer is in the provider's cache."""
        return last.missed_cache or self.memory.clock() - last.at >= CACHE_SECONDS
