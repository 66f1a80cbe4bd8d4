"""A strategy, a pure function from what would be sent to a plan, and the layer that applies one."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass, field, is_dataclass
from typing import Protocol

import msgspec

from chatstack.client.options import short_repr
from chatstack.client.protocol import ChatClient
from chatstack.client.stream import ChatStream
from chatstack.context.decisions.editing import ContextEditing
from chatstack.context.decisions.policy import Policy
from chatstack.context.edits.context import Context
from chatstack.context.edits.plans import Plan
from chatstack.context.passage import Arrived
from chatstack.context.requests.asking import MANY, Asking, call
from chatstack.context.requests.saying import say_window_unknown
from chatstack.context.requests.services import ContextServices
from chatstack.context.run import ContextLayer
from chatstack.errors import WiringError
from chatstack.tokens.counter import TokenCounter
from chatstack.tokens.windows import is_asked_for


class Strategy(ABC):
    """Decides what to edit. Subclass it, write ``plan``, and hand it to a layer that applies strategies.

    A strategy is a value: a dataclass whose fields are all its options. It keeps nothing between calls, and for the
    same context it makes the same plan. Its plans are verified before they are applied. From ``aside_from``
    messages on ``plan`` is called in a thread, so that others have the event loop; 256 are right for one that takes
    some 50 µs for each message.

    Its decisions are kept under its class's name and its ``version``, in a store, too: raise the version when the
    algorithm changes so much that earlier decisions should no longer apply. New or changed options do not invalidate
    them. Within a process, strategies are told apart by their options; those that JSON cannot hold (functions, objects)
    count by their repr.

    ``name`` labels its edits in spans, logs and metrics. The reasons of its plans and the text of ``excess`` appear
    there only if it sets ``quotes_nothing = True``, a promise that they never quote messages, or if text is captured.
    """

    __slots__ = ()

    # No ``ClassVar``: a dataclass may make fields of them, and type checkers let it.
    name: str = "custom"
    quotes_nothing: bool = False
    version: int = 1
    aside_from: int = MANY

    def __repr__(self) -> str:
        """Return the class with the options that differ from the defaults."""
        return short_repr(self)

    @abstractmethod
    def plan(self, context: Context) -> Plan | None:
        """Return the edit to make, or None. If ``context.is_unstable``, plan only what a limit forces."""

    def is_due(self, context: Context) -> bool:
        """Return False only if ``plan`` would plan nothing: a cheap test before it. Once true, it must stay true as a
        context grows."""
        return True

    def waits_on(self, context: Context) -> tuple[int, ...] | None:
        """Return the sizes that ``plan`` waits on after it has found nothing to do: until one of them has grown by a
        32nd, it is not asked again. None asks it on each call that is due."""
        return None

    def excess(self, context: Context) -> str:
        """Return in words by how much a context is still too large, or \"\"; it is warned of after the edit."""
        return ""

    @property
    def needs_window(self) -> bool:
        """True if it uses ``context.window_tokens``; finding that out may take a call to the provider's API."""
        return False

    @property
    def asks_inner(self) -> bool:
        """True if its layer calls a model through the client that it wraps, so that there has to be one."""
        return False

    def for_messages_alone(self) -> Strategy:
        """Return the strategy without its effects on a request's options, for callers that take only the messages."""
        return self

    def as_layer(self) -> AppliesStrategy:
        """Return the layer that applies it, which ``ChatStack.use(strategy)`` puts into the stack."""
        return functools.partial(StrategyApplier, strategy=self)


class AppliesStrategy(Protocol):
    """The factory of a strategy's layer, with the options that ``.use(strategy, ...)`` takes."""

    def __call__(self, inner: ChatClient, /, *, counter: TokenCounter | None = None) -> ChatClient: ...


@dataclass(frozen=True, slots=True, eq=False)
class StrategyApplier(ContextLayer):
    """Applies one strategy to every request: repaired first, earlier decisions replayed, its plan verified.

    Goes inside the tool loop, outside the guard. ``.use(strategy)`` makes it.
    """

    inner: ChatClient
    _: KW_ONLY
    strategy: Strategy
    counter: TokenCounter | None = None
    services: ContextServices = field(default_factory=ContextServices, repr=False)
    _editing: ContextEditing = field(init=False, repr=False)

    @property
    def needs_window(self) -> bool:
        """True where the strategy asks for the model's window."""
        return self.strategy.needs_window

    @property
    def may_wait(self) -> bool:
        """True where an edit may have to wait: for a store, or for the provider to tell its window."""
        return self.memory.shared is not None or (self.strategy.needs_window and is_asked_for(self.inner))

    def __post_init__(self) -> None:
        name = type(self.strategy).__name__
        if not is_dataclass(self.strategy) and type(self.strategy).__repr__ is Strategy.__repr__:
            told = "has no options that can be read, and decisions are kept under them"
            raise WiringError(f"{name}: {told}: make the strategy a dataclass, or write __repr__", layer=name)
        editing = ContextEditing.around(self.inner, self.strategy, self.services, self.counter)
        object.__setattr__(self, "_editing", editing)

    def passed(self, arrived: Arrived) -> Asking[ChatStream]:
        editing, strategy, window = self._editing, self.strategy, None
        opened = arrived.opened(editing)
        if strategy.needs_window:
            window = yield from call(self.windows.of, self.inner, opened.context.request.options.model)
        if window is not None:
            opened.context = opened.context.against_window(window)
        context = yield from editing.replay(opened, limit=window or 0)
        if window is not None:
            context = msgspec.structs.replace(context, window_tokens=window)
        elif strategy.needs_window and editing.is_news("window", opened):
            say_window_unknown(self.telemetry, type(strategy).__name__, "it keeps to no limit")
        policy = Policy(
            self._plan, strategy.is_due, self._waits_on, waits_over_turns=True, aside_from=strategy.aside_from
        )
        context = yield from editing.edit(policy, context, opened)
        excess = strategy.excess(context)
        if excess:
            why = f"{self._worded(excess, 'too much is left')}, and nothing more may go"
            editing.say_ineffective(strategy.name, context, opened, why)
        return (yield from arrived.onward(editing, context, opened))

    def _plan(self, context: Context) -> Plan | None:
        """Return the strategy's plan, under its own name, with a reason that may be shown."""
        try:
            plan = self.strategy.plan(context)
        except BaseException as error:
            kind, name = type(self.strategy).__name__, self.strategy.name
            error.add_note(f"in plan() of the strategy {kind} ({name!r}), which a StrategyApplier applies")
            raise
        if not isinstance(plan, Plan):  # the verifier says what is wrong with it
            if inspect.iscoroutine(plan):
                plan.close()
            return plan
        reason = self._worded(plan.reason, "the strategy has decided so")
        return msgspec.structs.replace(plan, strategy=self.strategy.name, reason=reason)

    def _waits_on(self, context: Context) -> tuple[int, ...] | None:
        """Return the sizes that the strategy waits on, of whatever kind they come in, as a tuple."""
        sizes = self.strategy.waits_on(context)
        return None if sizes is None else tuple(sizes)

    def _worded(self, words: str, instead: str) -> str:
        telemetry = self.telemetry
        may_quote = telemetry.captures_on_spans or telemetry.captures_in_events
        return words if self.strategy.quotes_nothing or may_quote else instead
