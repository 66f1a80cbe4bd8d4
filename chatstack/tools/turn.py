"""Bookkeeping for one turn of the tool loop; no calls are made here."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from chatstack.client.protocol import chain
from chatstack.context.edits.item_pairs import waits_for_caller
from chatstack.tools.execution import Outcome
from chatstack.tools.parameters import ToolContext
from chatstack.values.messages import Message
from chatstack.values.parts import ProviderItem, ToolCall, ToolResult
from chatstack.values.requests import ChatRequest, declared_names
from chatstack.values.responses import ChatResponse, ChatUpdate, Usage

CUT_OFF = "Error: not run, because the answer that asked for it was cut off."
OVER_LIMIT = "Error: not run, because the limit of tool calls is reached. Answer with what you have."
NOT_ALLOWED = "Error: not run, because this request allows no tool calls."
NOT_RUN = (CUT_OFF, OVER_LIMIT, NOT_ALLOWED)
"""Reasons why a call was not run; a round with only such results is the last of its turn."""
REPEATS = 3
"""Number of identical calls in a turn that counts as a repetition."""
_MAX_PAUSES = 10


@runtime_checkable
class LimitsToolCalls(Protocol):
    """A layer inside a tool loop with a limit of its own: calls beyond it are not run."""

    def tool_calls_left(self, messages: tuple[Message, ...]) -> int:
        """Return the number of tool calls that are left in the turn at the end of these messages."""
        ...


def limits_in(client: object) -> tuple[LimitsToolCalls, ...]:
    """Return the layers of a client that limit calls."""
    return tuple(each for each in chain(client) if isinstance(each, LimitsToolCalls))


class ToolTurn:
    """The state of one turn: added messages, open calls, failures."""

    def __init__(
        self,
        request: ChatRequest,
        limit: int,
        limits: Sequence[LimitsToolCalls] = (),
        *,
        returns_unfinished: bool = False,
    ) -> None:
        """Start a turn with a limit of calls. Layers further in may have limits, too; the smallest one counts.
        ``returns_unfinished``: paused answers, and calls of tools that nobody declared, are the caller's."""
        self.request = request
        self.limit = limit
        self.limits = limits
        self.returns_unfinished = returns_unfinished
        self.inner_left = limit
        self.begun = 0
        """Number of open calls that an interrupted turn had let through: they were within its limit."""
        self.round = 0
        self.pauses = 0
        self.calls_run = 0
        self.failed_rounds = 0
        self.last_failure: BaseException | None = None
        self.added: list[Message] = []
        self.open_calls: list[ToolCall] = []
        self.answers: list[ChatResponse] = []
        self.refused_for = ""
        """The reason why the open calls were not run; "" if they were."""
        self.seen: dict[tuple[str, bytes], int] = {}
        self.declared: frozenset[str] | None = None
        """Names of the tools that the request declares, once a call has asked for them."""
        self.waits_for_caller = False
        """True if the last answer holds a call that no loop can run, as of a computer, or asks for an approval."""

    @property
    def usage(self) -> Usage:
        """Usage of all rounds up to now."""
        return sum((each.usage for each in self.answers), Usage())

    @property
    def overhead_usage(self) -> Usage:
        """Usage of summaries up to now."""
        return sum((each.overhead_usage for each in self.answers), Usage())

    @property
    def limit_reached(self) -> bool:
        return self.calls_run >= self.limit

    @property
    def calls_left(self) -> int:
        """Number of open calls that may be run."""
        return max(self.begun, min(self.limit - self.calls_run, self.inner_left))

    def heard(self, answer: ChatResponse, begun: int = 0) -> None:
        """Record the model's answer; ``begun`` of its calls may be run whatever the limit is by now."""
        self.begun = begun
        if self.limits:
            before = self.request.messages + tuple(self.added)
            self.inner_left = min(each.tool_calls_left(before) for each in self.limits)
        self.answers.append(answer)
        self.added.extend(answer.messages)
        self.open_calls = [call for each in answer.messages for call in each.calls]
        if self.open_calls:
            answered = {result.call_id for message in answer.messages for result in message.results}
            self.open_calls = [call for call in self.open_calls if call.id not in answered]
        items = [each for message in answer.messages for each in message.parts if isinstance(each, ProviderItem)]
        self.waits_for_caller = bool(items) and waits_for_caller(items)
        self.pauses += answer.finish_reason == "paused"

    def repeated(self, calls: list[ToolCall]) -> list[ToolCall]:
        """Return the calls that are now made for the third time."""
        found: list[ToolCall] = []
        for call in calls:
            key = call.name, canonical(call.arguments)
            self.seen[key] = times = self.seen.get(key, 0) + 1
            if times == REPEATS:
                found.append(call)
        return found

    def refusal(self, answer: ChatResponse) -> str:
        """Return the reason why the open calls must not be run, or ""."""
        if answer.finish_reason in ("length", "refused"):
            return CUT_OFF
        if self.request.options.tool_choice == "none":
            return NOT_ALLOWED
        return "" if self.calls_left else OVER_LIMIT

    def refuse(self, why: str, own: Container[str]) -> list[Outcome]:
        """Return an error result for every open call that is ours to run, or that was cut off."""
        return [refused(call, why) for call in self.open_calls if why == CUT_OFF or not self.is_callers(call, own)]

    def is_callers(self, call: ToolCall, own: Container[str]) -> bool:
        """Return True if the caller declared the tool of this call, or gets unknown ones, and will run it."""
        if call.name in own:
            return False
        if self.declared is None:
            self.declared = declared_names(self.request.options.tools)
        return self.returns_unfinished or call.name in self.declared

    def is_handed_back(self, own: Container[str]) -> bool:
        """Return True if the last answer has a call that only the caller can run."""
        return self.waits_for_caller or any(self.is_callers(call, own) for call in self.open_calls)

    def is_over(self, own: Container[str]) -> bool:
        """Return True if this round was the last: an answer, or a call that only the caller can run."""
        if self.open_calls or self.waits_for_caller:
            return self.is_handed_back(own)
        is_paused = self.answers[-1].finish_reason == "paused" and not self.returns_unfinished
        return not is_paused or self.pauses > _MAX_PAUSES

    def add(self, outcomes: list[Outcome]) -> list[ChatUpdate]:
        """Record results, in call order, and return them as updates."""
        updates: list[ChatUpdate] = []
        for outcome in outcomes:
            message = Message("tool", (outcome.result,))
            self.added.append(message)
            updates.append(ChatUpdate(part=outcome.result, message_done=message, round=self.round))
            if outcome.was_run:
                self.last_failure = outcome.failure or self.last_failure
        run = [outcome for outcome in outcomes if outcome.was_run]
        if run:
            # By rounds, not by calls: the model must read the failure before it can do better.
            all_failed = all(outcome.failure is not None for outcome in run)
            self.failed_rounds = self.failed_rounds + 1 if all_failed else 0
        return updates

    def answer(self, under_way: ChatResponse | None = None) -> ChatResponse:
        """Return the sum of the rounds, with the round under way if it was not recorded yet."""
        answers, messages = self.answers, self.added
        if under_way is not None and (not answers or answers[-1] is not under_way):
            answers, messages = [*answers, under_way], [*messages, *under_way.messages]
        if len(answers) == 1 and len(messages) == len(answers[0].messages):
            return answers[0]
        last = next((each for each in reversed(answers) if each.finish_reason is not None), answers[-1])
        return ChatResponse(
            messages=tuple(messages),
            usage=sum((each.usage for each in answers), Usage()),
            overhead_usage=sum((each.overhead_usage for each in answers), Usage()),
            finish_reason=last.finish_reason,
            id=last.id,
            model=last.model,
            rounds=self.round + 1,
            applied_edits=tuple(edit for each in answers for edit in each.applied_edits),
            raw=last.raw,
            service_tier=last.service_tier,
        )

    def next_request(self) -> ChatRequest:
        """Return the request of the next round. A forced choice holds for the first round only, or it would never
        end."""
        self.round += 1
        choice = self.request.options.tool_choice
        if self.limit_reached:
            choice = "none"
        elif choice not in (None, "auto", "none"):
            choice = None
        return self.request.but(
            messages=self.request.messages + tuple(self.added),
            options=self.request.options.but(tool_choice=choice),
        )

    def context_of(self, call: ToolCall) -> ToolContext:
        return ToolContext(
            conversation_id=self.request.conversation_id,
            call_id=call.id,
            tool_name=call.name,
            round=self.round,
            messages=self.request.messages + tuple(self.added),
        )


def refused(call: ToolCall, why: str) -> Outcome:
    """Return the result of a call that is not run."""
    return Outcome(ToolResult(call.id, call.name, why, is_error=True), was_run=False)


def canonical(arguments: str) -> bytes:
    """Return a key that is equal for arguments with the same meaning."""
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments.strip() or "{}"), order="deterministic")
    except (ValueError, RecursionError):  # invalid JSON, invalid text, or nested too deeply
        return arguments.encode(errors="surrogatepass")
