"""The part of the provider contract about refusals, broken connections, and secrets in errors."""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from chatstack.client.closing import close
from chatstack.client.protocol import ProviderInfo
from chatstack.errors import (
    AuthenticationError,
    BrokenStreamError,
    ContextOverflowError,
    ProviderConnectionError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    RequestRefusedError,
    ServerError,
)
from chatstack.testing.exchanges import same
from chatstack.testing.provider_exchanges import (
    KEY,
    PROMPT,
    Answered,
    ModelAnswer,
    ProviderSettings,
    ProviderUnderTest,
    RefusalKind,
    ServerRefusal,
    a_request,
    always,
    expect,
    read,
    run,
)
from chatstack.testing.provider_server import Delivery, ScriptedServer, ServerReply
from chatstack.values.parts import ToolCall

_ERRORS: Mapping[RefusalKind, type[ProviderError]] = {
    "authentication": AuthenticationError,
    "rate_limit": RateLimitError,
    "overflow": ContextOverflowError,
    "bad_request": RequestRefusedError,
    "server": ServerError,
}
_TEXT = "one two three four"


class FailureContract(ProviderUnderTest):
    """Refusals are the matching error, raised by ``send``; nothing is cut short, kept open, or revealed."""

    def test_a_refusal_is_the_error_that_fits(self) -> None:
        """Every kind of refusal has its class of error: layers that retry, prune or fall back rely on it, not on an
        API's words."""
        for said, error in self._errors_of(*map(_refusal, self.refusals)):
            _expect_a(_ERRORS[said.kind], error, f"the error of a refusal of the kind {said.kind!r}")

    def test_a_refusal_is_raised_by_send(self) -> None:
        """``send`` is primed: a refusal never comes out of a stream that was handed on already."""
        cases: dict[str, Delivery] = {kind: Delivery(self.refusal(_refusal(kind))) for kind in self.refusals}
        nothing = Delivery(self.answer(self._some_text(), stream=True), 0, "cut")
        run(self._raised_by_send(cases, stream=False))
        run(self._raised_by_send({**cases, "a stream that is cut before its first piece": nothing}, stream=True))

    async def _raised_by_send(self, cases: Mapping[str, Delivery], *, stream: bool) -> None:
        async with self.serving(Delivery(None)) as (client, server):
            for name, delivery in cases.items():
                server.script = partial(always, delivery)
                try:
                    answer = await client.send(a_request(stream=stream))
                except ProviderError:
                    continue
                await answer.aclose()
                raise AssertionError(f"{name}: send returned a stream; make that by await ChatStream.primed(...)")

    def test_a_refused_request_is_sent_once(self) -> None:
        """``make`` returns a client that does not retry: whoever asked for no retries decides about them."""
        for stream in (False, True):
            for kind in self.refusals:
                same(run(self._sent(kind, stream=stream)), 1, f"{kind}: requests that arrived at a client's one call")

    async def _sent(self, kind: RefusalKind, *, stream: bool) -> int:
        async with self.serving(Delivery(self.refusal(_refusal(kind)))) as (client, server):
            with suppress(ProviderError):
                await read(await client.send(a_request(stream=stream)))
            return len(server.requests)

    def test_an_overflow_tells_the_sizes_that_the_server_told(self) -> None:
        """``actual`` and ``limit`` are what the server said, and None where it said nothing.

        Those that are not in ``overflow_sizes`` are None, whatever the server said.
        """
        sizes = (ServerRefusal(kind="overflow", actual_tokens=9_000, limit_tokens=8_192), _refusal("overflow"))
        for said, error in self._errors_of(*sizes) if "overflow" in self.refusals else ():
            for name, size in (("actual", said.actual_tokens), ("limit", said.limit_tokens)):
                is_told = name in self.overflow_sizes
                hint = (
                    f"; if the API does not tell it, take {name!r} out of overflow_sizes"
                    if is_told
                    else f"; if the API tells it, put {name!r} into overflow_sizes"
                )
                found = getattr(error, name, "no such attribute")
                same(found, size if is_told else None, f"{name} of an overflow, in tokens{hint}")

    def test_a_rate_limit_tells_when_to_come_back(self) -> None:
        """``retry_after_seconds`` is what the server said, and None where it said nothing."""
        limits = (ServerRefusal(kind="rate_limit", retry_after_seconds=7.0), _refusal("rate_limit"))
        for said, error in self._errors_of(*limits) if "rate_limit" in self.refusals else ():
            found = getattr(error, "retry_after_seconds", "no such attribute")
            same(found, said.retry_after_seconds, "retry_after_seconds of a rate limit")

    def test_an_error_says_who_and_how(self) -> None:
        """``provider`` and ``status`` are on it, and it can be pickled."""
        for said, error in self._errors_of(*map(_refusal, self.refusals)):
            expect(bool(error.provider), f"{said.kind}: the error does not say which provider")
            same(error.status, self.refusal(said).status, f"{said.kind}: the status on the error")
            same(str(pickle.loads(pickle.dumps(error))), str(error), f"{said.kind}: the error, pickled and read")

    def test_an_error_quotes_neither_prompt_nor_key(self) -> None:
        """The server's text may quote both; it stays on the cause, never in the text of the error."""
        for said, error in self._errors_of(*map(_refusal, self.refusals)):
            for secret, name in ((PROMPT, "prompt"), (KEY, "key")):
                expect(secret not in f"{error} {error!r} {error.code}", f"{said.kind}: the error quotes the {name}")

    def test_a_server_that_does_not_answer_is_a_timeout(self) -> None:
        """After ``timeout_seconds`` without a word comes a ``ProviderTimeoutError``."""
        for stream in (False, True):
            (error,) = self._errors([Delivery(None, then="hold")], stream=stream, timeout_seconds=0.2)
            _expect_a(ProviderTimeoutError, error, "the error when the server does not answer")

    def test_a_server_that_cannot_be_reached_is_a_connection_error(self) -> None:
        """Nothing listens, or the connection is closed before the first byte."""
        lost = self._errors([Delivery(None, then="cut")], stream=False)
        for error in (_provider_error(run(self._nobody_there())), *lost):
            _expect_a(ProviderConnectionError, error, "the error when there is no connection")

    async def _nobody_there(self) -> object:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        client = self.make(ProviderSettings(base_url=f"http://127.0.0.1:{port}"))
        try:
            return await read(await client.send(a_request()))
        except Exception as error:  # noqa: BLE001 - any error: it is checked
            return error
        finally:
            await close(client)

    def test_what_is_no_answer_is_an_error(self) -> None:
        """A proxy's page and an empty object come with status 200, too; neither is an answer."""
        bodies = ((b"<html>Welcome</html>", "text/html"), (b"{}", "application/json"))
        noise = [Delivery(ServerReply((body,), content_type=kind)) for body, kind in bodies]
        for stream in (False, True):
            for error in self._errors(noise, stream=stream):
                expect(PROMPT not in str(error), "the error quotes the prompt")

    def test_a_stream_that_is_cut_is_an_error_and_not_a_short_answer(self) -> None:
        """Wherever a stream ends early, by a lost connection or in good order, no message is finished from its half.

        Where all of the message had come, and only its end is lost, the whole message is an answer, too.
        """
        call = ToolCall("call_a1", "look_up", '{"city": "Oslo"}')
        for said in (self._some_text(), ModelAnswer(calls=(call,), finish_reason="tool_calls", usage=self.usage)):
            reply, (whole,) = self.answer(said, stream=True), self.answered(said, stream=True)
            for how in ("cut", "ended"):
                counts = range(len(reply.pieces))
                cuts = [
                    Delivery(reply, each, "cut") if how == "cut" else Delivery(_begun(reply, each)) for each in counts
                ]
                for count, found in zip(counts, run(self.outcomes(cuts, stream=True)), strict=True):
                    if isinstance(found, Answered):
                        what = (
                            f"{how} after {count} of {len(reply.pieces)} pieces, a stream gave no error: the messages"
                        )
                        same(found.response.messages, whole.response.messages, what)
                    else:
                        _provider_error(found)

    def test_a_failure_in_the_middle_of_a_stream_is_an_error(self) -> None:
        """The server's report inside the stream is read, and not taken for the end of the answer."""
        event = self.failure_in_stream()
        if event is None:
            return
        reply = self.answer(self._some_text(), stream=True)
        half = len(reply.pieces) // 2
        (error,) = self._errors([Delivery(_begun(reply, half, event))], stream=True)
        expect(
            isinstance(error, ServerError | BrokenStreamError),
            f"a failure in the middle of a stream: expected a ServerError or a BrokenStreamError, found {error!r}",
        )
        expect(PROMPT not in str(error) and KEY not in str(error), "the error quotes what the server said")

    def test_a_cancelled_call_closes_its_connection(self) -> None:
        """The connection is closed, both before the answer and between two pieces of a stream."""
        for stream in (False, True):
            run(self._cancelled(Delivery(None, then="hold"), "before the answer", stream=stream))
        run(self._cancelled(self._held(), "in the middle of a stream", stream=True))

    async def _cancelled(self, delivery: Delivery, when: str, *, stream: bool) -> None:
        async def call() -> None:
            await read(await client.send(a_request(stream=stream)))

        async with self.serving(delivery) as (client, server):
            task = asyncio.create_task(call())
            await server.until(lambda: bool(server.requests) or task.done(), self.patience_seconds)
            await asyncio.sleep(0.05)  # into the stream
            task.cancel()
            (found,) = await asyncio.gather(task, return_exceptions=True)
            expect(isinstance(found, asyncio.CancelledError), f"cancelled {when}: expected that, found {found!r}")
            gone = await server.until(lambda: not server.open_connections, self.patience_seconds)
            expect(gone, f"cancelled {when}: the connection to the server is still open")

    def test_a_closed_stream_closes_its_connection(self) -> None:
        """Closing a stream early stops the server, so that the rest is not paid for."""

        async def work() -> None:
            async with self.serving(self._held()) as (client, server):
                stream = await client.send(a_request(stream=True))
                await anext(stream)
                for _ in range(2):
                    await stream.aclose()
                gone = await server.until(lambda: not server.open_connections, self.patience_seconds)
                expect(gone, "the stream was closed in its middle: the connection to the server is still open")

        run(work())

    def test_a_client_may_be_closed_again_and_again(self) -> None:
        """``aclose`` lets go of all connections, and does nothing when it is called again."""

        async def work() -> None:
            async with self.serving(Delivery(self.answer(self._some_text(), stream=False))) as (client, server):
                expect(callable(getattr(client, "aclose", None)), "the client has no aclose()")
                await read(await client.send(a_request()))
                for _ in range(3):
                    await close(client)
                gone = await server.until(lambda: not server.open_connections, self.patience_seconds)
                expect(gone, "the client is closed: a connection to the server is still open")

        run(work())

    def test_the_provider_says_who_it_is(self) -> None:
        """``info`` has a name, the model, the server, and the window that was stated: spans and limits go by it."""

        async def work() -> None:
            async with ScriptedServer(lambda request: Delivery(None)) as server:
                settings = ProviderSettings(base_url=server.base_url, window_tokens=12_345)
                client = self.make(settings)
                info = getattr(client, "info", None)
                await close(client)
                if not isinstance(info, ProviderInfo):
                    raise AssertionError("the client has no attribute info: ProviderInfo(name=..., model=...)")
                expect(bool(info.name), "info.name is empty: it is the GenAI name of the provider")
                same(info.model, settings.model, "info.model")
                same((info.server_address, info.server_port), ("127.0.0.1", server.port), "address and port in info")
                same(info.window_tokens, 12_345, "info.window_tokens")

        run(work())

    def test_the_key_is_not_in_a_repr(self) -> None:
        """Reprs get into logs and tracebacks."""

        async def work() -> None:
            client = self.make(ProviderSettings(base_url="http://127.0.0.1:9"))
            shown = f"{client!r} {client} {getattr(client, 'info', None)!r}"
            await close(client)
            expect(KEY not in shown, "the key is in the repr of the client or of its info")

        run(work())

    def _some_text(self) -> ModelAnswer:
        return ModelAnswer(text=_TEXT, usage=self.usage)

    def _held(self) -> Delivery:
        """A stream that falls silent before its last piece."""
        reply = self.answer(self._some_text(), stream=True)
        return Delivery(reply, len(reply.pieces) - 1, "hold")

    def _errors_of(self, *said: ServerRefusal) -> Iterator[tuple[ServerRefusal, ProviderError]]:
        """Yield the errors of calls with these refusals, streamed and not."""
        deliveries = [Delivery(self.refusal(each)) for each in said]
        for stream in (False, True):
            yield from zip(said, self._errors(deliveries, stream=stream), strict=True)

    def _errors(
        self, deliveries: Sequence[Delivery], *, stream: bool, timeout_seconds: float = 20.0
    ) -> list[ProviderError]:
        found = run(self.outcomes(deliveries, stream=stream, timeout_seconds=timeout_seconds))
        return [_provider_error(each) for each in found]


def _refusal(kind: RefusalKind) -> ServerRefusal:
    return ServerRefusal(kind=kind)


def _provider_error(outcome: object) -> ProviderError:
    """Return the outcome of a call, if it is a ``ProviderError``."""
    if isinstance(outcome, ProviderError):
        return outcome
    if isinstance(outcome, Exception):
        told = f"expected a ProviderError, found {outcome!r}: map what your HTTP library raises"
        raise AssertionError(told) from outcome
    raise AssertionError(f"expected a ProviderError, found an answer: {outcome!r}")


def _expect_a(kind: type[ProviderError], error: object, what: str) -> None:
    """Raise ``AssertionError`` unless the error is one of that class, or of a subclass of a provider's own."""
    expect(isinstance(error, kind), f"{what}: expected {kind.__name__!r}, found {type(error).__name__!r}")


def _begun(reply: ServerReply, count: int, *more: bytes) -> ServerReply:
    """Return so many pieces of that reply, with others in place of the rest."""
    return ServerReply((*reply.pieces[:count], *more), reply.status, reply.content_type, reply.headers)
