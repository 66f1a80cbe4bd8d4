"""The node of a graph that asks a model."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, cast

from chatstack.client.checks import check_client
from chatstack.client.closing import Closing
from chatstack.client.protocol import ChatClient, chain, layer_kind
from chatstack.client.wiring import Resolver
from chatstack.context.strategy import Strategy
from chatstack.errors import InputError, WiringError
from chatstack.nodes.applying import check_call
from chatstack.nodes.managers import BaseContextManager
from chatstack.nodes.state import HasMessages, S, messages_of, state_with
from chatstack.stack.recipe import BuiltClient, ChatStack
from chatstack.telemetry.shortening import shortened
from chatstack.telemetry.tracer import needs_tracer
from chatstack.telemetry.turns import attached
from chatstack.values.messages import Message
from chatstack.values.requests import ChatOptions
from chatstack.values.responses import ChatResponse


@dataclass(frozen=True, slots=True, eq=False)
class ChatNode(Closing):
    """A node: ``await node(state)`` asks the client, and returns the whole state with the answer at its end.

    A context manager or a strategy trims the messages for that call only; without one, the client's own layers do.
    ``trim_context=False`` turns the manager off; True raises ``WiringError`` if neither the node nor its client can
    trim. A trimmed state never leaves the node, and the state that came in stays as it is: a manager works on a
    copy with other messages, whose other fields are the same objects.
    An exception of the manager's surfaces; nothing is sent untrimmed instead.

    A strategy is applied around the client, so it sees only the first request of a turn; what a tool loop in the client
    adds within the turn is seen by layers inside that loop. The strategy's layer gets its services from ``resolve``, as
    in ``ChatStack.build``; so does the ``ModelTracer`` that a bare provider is given. ``options`` and
    ``timeout_seconds`` apply to every call.

    Make a node once: it remembers what a strategy decided, so a node that is made for each call pays for a summary each
    time. Where it must be made for each call, make its ``StrategyContextManager`` once.
    Source: Agentflow's context manager.
    """

    client: ChatClient
    _: KW_ONLY
    trim_context: bool | None = None
    context_manager: BaseContextManager[Any] | Strategy | None = None
    options: ChatOptions | None = None
    timeout_seconds: float | None = None
    resolve: Resolver | None = field(default=None, repr=False)
    _asked: BuiltClient = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_node("ChatNode", self.client, self.context_manager, self.trim_context)
        check_call("ChatNode", self.options, self.timeout_seconds)
        manager = self.context_manager
        stack = ChatStack(self.client, trace_model_calls=needs_tracer(self.client))
        if self.trim_context is not False and isinstance(manager, Strategy):
            stack = stack.use(manager)
        object.__setattr__(self, "_asked", stack.build(self.resolve))

    async def __call__(self, state: S, *, conversation_id: str | None = None) -> S:
        """Return the state with all its messages, and those that the turn has added. Raises ``WiringError`` for a state
        that cannot be copied, before anything is sent."""
        whole = messages_of(state)
        if not isinstance(self.context_manager, BaseContextManager):  # whose own way may do more than copy
            self._with_messages(state, whole)
        answer = await self._answer(state, whole, conversation_id)
        return self._with_messages(state, (*whole, *answer.messages))

    async def aclose(self) -> None:
        """End the background work of the layer that a strategy was given; client and manager are closed by who made
        them."""
        await self._asked.aclose()

    async def answer(self, state: HasMessages, *, conversation_id: str | None = None) -> ChatResponse:
        """Return the response alone, for graphs that add ``response.messages`` to the state themselves."""
        return await self._answer(state, messages_of(state), conversation_id)

    async def _answer(
        self, state: HasMessages, whole: tuple[Message, ...], conversation_id: str | None
    ) -> ChatResponse:
        sent = whole
        manager = self.context_manager
        if self.trim_context is not False and isinstance(manager, BaseContextManager):
            # A manager may change the state that it gets, so it gets a copy.
            coming: object = manager.atrim_context(self._with_messages(state, whole))
            if not isinstance(coming, Awaitable):  # pyright: ignore[reportUnnecessaryIsInstance]
                told = "atrim_context is no coroutine function: write 'async def atrim_context'"
                raise InputError(f"{type(manager).__name__}: {told}")
            trimmed = await cast("Awaitable[object]", coming)
            if trimmed is None:
                raise InputError(f"{type(manager).__name__}: atrim_context returned None instead of a state")
            sent = messages_of(trimmed)
        with attached(shortened(whole, sent)) if sent != whole else nullcontext():
            return await self._asked.get_response(
                sent, options=self.options, conversation_id=conversation_id, timeout_seconds=self.timeout_seconds
            )

    def _with_messages(self, state: S, messages: Sequence[Message]) -> S:
        manager = self.context_manager
        if isinstance(manager, BaseContextManager):
            changed: S = manager.with_messages(state, messages)
            return changed
        return state_with(state, messages, remedy="await node.answer(state), and add its messages yourself")


def check_node(owner: str, client: object, manager: object, trim_context: object) -> None:
    """Refuse what a node cannot call or trim with. Raises ``WiringError`` that names the node's class, ``owner``."""
    for layer in chain(client):
        _check_filled_in(owner, "client", layer)
    check_client(client, owner, "client")
    _check_filled_in(owner, "context_manager", manager)
    if manager is not None and not isinstance(manager, BaseContextManager | Strategy):
        wanted = "an instance of chatstack's BaseContextManager, or a Strategy"
        if isinstance(manager, ChatStack):
            wanted = "StackContextManager(stack)"
        raise _wrong(owner, "context_manager", manager, wanted)
    if not isinstance(trim_context, bool | None):
        raise _wrong(owner, "trim_context", trim_context, "True or False")
    if trim_context and manager is None and all(layer_kind(each) != "context" for each in chain(client)):
        raise WiringError(
            f"{owner}: trim_context=True, and nothing to trim with; pass context_manager=..., e.g. "
            "MessageContextManager(max_messages=10), or give the client a context layer",
            layer=owner,
            parameter="trim_context",
        )


def _check_filled_in(owner: str, parameter: str, value: object) -> None:
    """Refuse a lazy default of injectq's: it keeps the first object it resolves, of whichever container.

    It is known by its class: ``isinstance`` would already resolve it, and keep the result.
    """
    if type(value).__module__.partition(".")[0] == "injectq":
        raise WiringError(
            f"{owner}: {parameter} is, or wraps, an Inject[...] default that nothing has filled in; it keeps the first "
            "object that it finds, whichever container that was of. Decorate the function that has the default with "
            "injectq's @inject, or, for a node of 10xgraph, with chatstack_tenxgraph's @injected(container)",
            layer=owner,
            parameter=parameter,
        )


def _wrong(owner: str, parameter: str, value: object, wanted: str) -> WiringError:
    kind = value if isinstance(value, type) else type(value)
    given = f"the class {kind.__qualname__} itself" if kind is value else f"a {kind.__module__}.{kind.__qualname__}"
    return WiringError(f"{owner}: {parameter} is {given}; pass {wanted}", layer=owner, parameter=parameter)
