"""Context managers: they trim the state that a node works on, for one call of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, cast

from chatstack.client.checks import check_client
from chatstack.client.closing import Closing
from chatstack.client.options import PositiveInt, check_options
from chatstack.client.protocol import ChatClient, ProviderInfo, layer_kind, provider_info
from chatstack.client.wiring import Resolver
from chatstack.context.memory.memory import ContextMemory
from chatstack.context.strategy import Strategy
from chatstack.errors import WiringError
from chatstack.nodes.applying import Applied, Outlet, check_call
from chatstack.nodes.state import S, messages_of, state_with
from chatstack.nodes.turns import NewestTurns
from chatstack.stack.recipe import ChatStack
from chatstack.telemetry.emission import Telemetry
from chatstack.tokens.counter import TokenCounter
from chatstack.values.messages import Message
from chatstack.values.requests import ChatOptions


class BaseContextManager(ABC, Generic[S]):
    """Trims a state, of the class ``S``, before a model is called. Subclass it, and write both methods.

    Both return a state with fewer messages, or the very same one when there is nothing to trim; the one that goes in
    stays as it is. ``self.with_messages(state, messages)`` makes the new one. A subclass that lacks a method raises
    ``WiringError`` when it is made. A manager that has to call a model derives from ``AwaitedContextManager``.
    Source: Agentflow's context manager.
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers take the constructor's arguments from the subclass

        def __new__(cls, *given: object, **named: object) -> BaseContextManager[Any]:
            missing = sorted(cls.__abstractmethods__)
            if missing:
                raise WiringError(
                    f"{cls.__name__}: has no {' and no '.join(missing)}; a context manager needs both trim_context and "
                    "atrim_context",
                    layer=cls.__name__,
                    parameter=missing[0],
                )
            if (given or named) and cls.__init__ is object.__init__:  # as object.__new__ would raise
                raise TypeError(f"{cls.__name__}() takes no arguments")
            return object.__new__(cls)

    @abstractmethod
    def trim_context(self, state: S) -> S:
        """Return the state with the messages that a model should see."""

    @abstractmethod
    async def atrim_context(self, state: S) -> S:
        """Return the trimmed state, where something has to be awaited."""

    def with_messages(self, state: S, messages: Sequence[Message]) -> S:
        """Return a state like that one, with other messages. Override it for a class that cannot be copied."""
        return state_with(state, messages)


class AwaitedContextManager(BaseContextManager[S]):
    """A context manager that has to wait, for a model's summary or for a service: write ``atrim_context`` alone.

    Its synchronous ``trim_context`` raises ``WiringError``: it could only block the event loop, or do nothing.
    """

    __slots__ = ()

    def trim_context(self, state: S) -> S:
        """Raises ``WiringError``, naming ``atrim_context``."""
        raise _must_be_awaited(self)


class _Trimming(Closing, BaseContextManager[Any]):
    """The common base of managers that apply a strategy. They take states of any class, and return that class."""

    __slots__ = ()

    _applied: Applied

    def _arranged(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        return messages

    async def aclose(self) -> None:
        """End the background work of the layers: summaries that are written ahead of need."""
        await self._applied.aclose()

    def trim_context(self, state: S) -> S:
        """Return the state with what the strategy leaves. Raises ``WiringError`` if that has to be awaited."""
        came = messages_of(state)
        if not came:
            return state
        left = self._applied.at_once(came)
        if left is None:
            raise _must_be_awaited(self, self._applied.waits)
        return self._with_left(state, came, left)

    async def atrim_context(self, state: S) -> S:
        """Return the state with what the strategy leaves."""
        came = messages_of(state)
        return self._with_left(state, came, await self._applied.to(came)) if came else state

    def _with_left(self, state: S, came: tuple[Message, ...], left: tuple[Message, ...]) -> S:
        return state if left is came else cast("S", self.with_messages(state, self._arranged(left)))


@dataclass(frozen=True, slots=True, eq=False)
class MessageContextManager(_Trimming):
    """Keeps the newest ``max_messages`` user messages and what follows them, and all system messages, which come first.

    ``remove_tool_msgs`` also leaves out tool calls with their results, but for a loop that still runs. ``max_rounds``
    keeps of each turn the newest rounds only (a round is one assistant message with its results): for long tool loops
    after one user message. Whole units go, so no call loses its result; what was broken before is repaired first.
    Pinned messages stay. The state itself comes back when there is nothing to do.
    Source: Agentflow's context manager.
    """

    max_messages: PositiveInt = 10
    remove_tool_msgs: bool = False
    max_rounds: PositiveInt | None = None
    _: KW_ONLY
    memory: ContextMemory | None = field(default=None, repr=False)
    telemetry: Telemetry | None = field(default=None, repr=False)
    _applied: Applied = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_options(self)
        strategy = NewestTurns(self.max_messages, self.remove_tool_msgs, self.max_rounds)
        stack = ChatStack(Outlet(_NOBODY), memory=self.memory).use(strategy)
        resolve = _resolver_of(self.telemetry)
        object.__setattr__(self, "_applied", Applied(stack, "MessageContextManager", resolve=resolve))

    def _arranged(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        systems = tuple(message for message in messages if message.role == "system")
        return (*systems, *(message for message in messages if message.role != "system"))


@dataclass(frozen=True, slots=True, eq=False)
class StrategyContextManager(_Trimming):
    """Any strategy as a context manager: repairs, plans, verifies and reports as the strategy's layer does in a stack.

    ``options`` are those of the calls to come (instructions, tools, ``max_tokens``): they are counted with the
    messages. ``window_tokens`` is the model's window, for strategies that need it. Decisions are kept in ``memory``, so
    that later calls are edited the same way. ``client`` writes summaries, for a strategy that has no client of its
    own. The synchronous ``trim_context`` raises ``WiringError`` if something has to be awaited: a memory with a store,
    a window that the client has to be asked for, or a strategy whose layer calls a model (``ContextWindow``).
    """

    strategy: Strategy
    _: KW_ONLY
    counter: TokenCounter | None = None
    memory: ContextMemory | None = field(default=None, repr=False)
    telemetry: Telemetry | None = field(default=None, repr=False)
    options: ChatOptions | None = None
    window_tokens: PositiveInt | None = None
    client: ChatClient | None = None
    _applied: Applied = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, Strategy):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WiringError(
                f"StrategyContextManager: strategy is {_named(self.strategy)}; pass an instance of a Strategy",
                layer="StrategyContextManager",
                parameter="strategy",
            )
        check_options(self)
        check_call("StrategyContextManager", self.options)
        if self.client is not None:
            check_client(self.client, "StrategyContextManager", "client")
        kind = type(self.strategy).__name__
        if self.strategy.asks_inner and self.client is None:
            raise WiringError(
                f"StrategyContextManager: {kind} has no model that writes its summaries: give it summary_client=..., "
                "or this manager client=...",
                layer="StrategyContextManager",
                parameter="client",
            )
        model = (self.options.model if self.options is not None else None) or ""
        info = ProviderInfo(name="nodes", model=model, window_tokens=self.window_tokens)
        strategy = self.strategy.for_messages_alone()
        stack = ChatStack(Outlet(info, self.client), memory=self.memory)
        stack = stack.use(strategy) if self.counter is None else stack.use(strategy, counter=self.counter)
        applied = Applied(stack, kind, options=self.options, resolve=_resolver_of(self.telemetry))
        object.__setattr__(self, "_applied", applied)


@dataclass(frozen=True, slots=True, eq=False)
class StackContextManager(_Trimming):
    """The context layers of a recipe as a context manager: clearer, summarizer, guard, one after the other.

    The recipe's provider is not called for answers here, only for the summaries, counts and window that a layer needs.
    ``options`` are those of the calls to come. Decisions are kept in the recipe's memory. The cost of a summary is in
    its span, as a state has no place for it. ``trim_context`` raises ``WiringError`` naming the layer that may have to
    wait: for a model, a store, or a window that has to be asked for. A layer of yours that never waits declares
    ``may_wait = False``.
    """

    stack: ChatStack
    _: KW_ONLY
    options: ChatOptions | None = None
    resolve: Resolver | None = field(default=None, repr=False)
    _applied: Applied = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.stack, ChatStack):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WiringError(
                f"StackContextManager: stack is {_named(self.stack)}; pass a ChatStack, not built yet",
                layer="StackContextManager",
                parameter="stack",
            )
        check_call("StackContextManager", self.options)
        provider = self.stack.provider
        info = provider_info(provider) or _NOBODY
        stack = replace(self.stack, provider=Outlet(info, provider))
        applied = Applied(stack, "StackContextManager", options=self.options, resolve=self.resolve)
        for called, layer in applied.layers:
            if layer_kind(layer) != "context":
                remedy = "leave it to the client of the node"
                if not layer_kind(layer):
                    remedy = f'if it does no more than that, say so in its class: kind = "context"; else {remedy}'
                raise WiringError(
                    f"StackContextManager: layer {called!r} is no context layer, and a manager only decides what is "
                    f"sent; {remedy}",
                    layer=called,
                    parameter="stack",
                )
        object.__setattr__(self, "_applied", applied)


_NOBODY = ProviderInfo(name="nodes")


def _resolver_of(telemetry: Telemetry | None) -> Resolver:
    return lambda kind: telemetry if kind is Telemetry else None


def _must_be_awaited(manager: BaseContextManager[Any], layer: str = "") -> WiringError:
    kind = type(manager).__name__
    why = f", as layer {layer!r} may have to" if layer else ""
    return WiringError(
        f"{kind}: trim_context cannot wait for a model or a store{why}; use `await atrim_context(state)`",
        layer=kind,
        parameter="trim_context",
    )


def _named(value: object) -> str:
    return f"the class {value.__name__} itself" if isinstance(value, type) else f"a {type(value).__name__}"
