"""The layer that asks somebody else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import ClassVar, cast

from chatstack.client.checks import send_to, why_no_client, wraps_a_client
from chatstack.client.fronts import ChatFronts
from chatstack.client.options import check_options
from chatstack.client.protocol import ChatClient, LayerKind, chain
from chatstack.client.stream import ChatStream
from chatstack.client.wiring import wrong
from chatstack.context.requests.opening import is_server_held
from chatstack.context.requests.services import ContextServices
from chatstack.errors import ChatStackError, FallbackError, InputError, ProviderError, WiringError
from chatstack.layers.guard import ContextWindowGuard
from chatstack.telemetry.tracer import traced
from chatstack.tokens.counter import TokenCounter
from chatstack.values.requests import ChatRequest


@wraps_a_client
@dataclass(frozen=True, slots=True, eq=False)
class Fallback(ChatFronts):
    """Asks the next client when one raises a ``ProviderError`` before its first delta: overloaded, not reachable, too
    long; a wrong key or a refused request, too.

    Goes innermost, right around the provider, which is asked first; then ``clients``, in their order. Only what comes
    before the first delta counts: an answer that has begun is never started again somewhere else. Each of ``clients``
    gets a span of its own, and a request that fits its own window: a pruning guard stands before it, unless it is a
    stack with one. The model that a request names, its ``extra`` and its ``seed`` are the first client's: the others
    are asked for their own. ``stop`` is everybody's, as an answer that runs on is another answer: Responses, which has
    no such option, refuses it, and the next client is asked.

    Where the first client's server holds the history (``previous_response_id``, ``conversation``, ``thread`` in
    ``extra``), nobody else is asked, as the others have nothing of it: the first one's refusal is raised.

    Where nobody answers, ``FallbackError`` holds what each of them said, the first one first.
    """

    inner: ChatClient
    _: KW_ONLY
    clients: Sequence[ChatClient]
    counter: TokenCounter | None = None
    services: ContextServices = field(default_factory=ContextServices, repr=False)
    _others: tuple[ChatClient, ...] = field(init=False, repr=False)

    kind: ClassVar[LayerKind] = "fallback"

    def __post_init__(self) -> None:
        check_options(self)
        given: object = self.clients
        clients = cast("Sequence[object]", given) if isinstance(given, list | tuple) else ()
        if not clients:
            raise wrong("Fallback", "clients", given, "a list of chat clients, at least one")
        for position, client in enumerate(clients):
            told = why_no_client(client)
            if told:
                raise WiringError(f"Fallback: clients[{position}] is {told}", layer="Fallback", parameter="clients")
        object.__setattr__(self, "_others", tuple(self._fitted(client) for client in self.clients))

    async def send(self, request: ChatRequest, /) -> ChatStream:
        if is_server_held(request.options):
            return await self._with_history(request)
        errors: list[ChatStackError] = []
        for client in (self.inner, *self._others):
            answer = [await self._tried(client, request)]
            if isinstance(answer[0], ChatStackError):
                errors.append(answer[0])
                continue
            return cast("ChatStream", answer.pop())  # so that a refusal which keeps this frame does not keep the stream
        first = errors[0]
        told = ", ".join(type(error).__name__ for error in errors)
        raise FallbackError(f"none of {len(errors)} clients answered ({told})", errors) from first

    async def _with_history(self, request: ChatRequest) -> ChatStream:
        """Ask the first client alone: the others have nothing of a history that its server holds."""
        try:
            return await send_to(self.inner, request)
        except ProviderError as error:
            error.add_note("Fallback asked no other client: the history lies at the server of the first one")
            raise

    async def _tried(self, client: ChatClient, request: ChatRequest) -> ChatStream | ChatStackError:
        """The answer or the refusal. Caught in here: a refusal holds on to the frames that it went through, and must
        not keep a later answer alive with them that the caller has dropped."""
        try:
            return await send_to(client, request if client is self.inner else _for_another(request))
        except ProviderError as error:
            return error
        except InputError as error:  # what another provider cannot be sent is no reason to hide the first refusal
            if client is self.inner:
                raise
            return error

    def _fitted(self, client: ChatClient) -> ChatClient:
        """Return the client with its own span, behind a guard of its own window."""
        if isinstance(client, Fallback):
            return replace(
                client,
                inner=self._fitted(client.inner),
                counter=client.counter or self.counter,
                services=self.services,
            )
        client = traced(client, self.services.telemetry, beside=self.inner)
        if any(isinstance(layer, ContextWindowGuard) for layer in chain(client)):
            return client
        return ContextWindowGuard(
            client,
            max_context_tokens="auto",
            prune_on_overflow=True,
            counter=self.counter,
            services=self.services,
        )


def _for_another(request: ChatRequest) -> ChatRequest:
    """The request without what is meant for one provider alone. Always another one, so that no layer takes for the size
    of its request what another model reports."""
    return request.but(options=request.options.but(model=None, extra={}, seed=None, native_edits=()))
