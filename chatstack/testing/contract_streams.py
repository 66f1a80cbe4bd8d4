"""The part of the layer contract about errors, and about streams that are stopped early."""

from __future__ import annotations

import asyncio

from chatstack.client.protocol import ChatClient
from chatstack.client.stream import ChatStream
from chatstack.errors import ServerError, StreamClosedError
from chatstack.testing.capture import TelemetryCapture
from chatstack.testing.exchanges import Fronted, LayerUnderTest, a_request, same
from chatstack.testing.leftovers import LeftoverWatch, cancelled_everywhere, complaints
from chatstack.testing.scripted import Answer, ScriptedClient
from chatstack.values.responses import ChatUpdate


class StreamContract(LayerUnderTest):
    """Errors surface where they happen; a stopped call leaves nothing behind."""

    def test_what_inner_raises_before_its_answer_is_raised_by_send(self) -> None:
        for error in (KeyError("unheard of"), *(() if self.recovers else (ServerError("down"),))):
            asyncio.run(self._refused(error))

    async def _refused(self, error: Exception) -> None:
        inner, capture = ScriptedClient([error]), TelemetryCapture()
        client = self.make(inner, capture.telemetry)
        watch = LeftoverWatch(inner, capture)
        for stream in (False, True):
            raised: Exception | None = None
            with watch.step("send"):
                try:
                    await client.send(a_request(stream=stream))
                except Exception as found:  # noqa: BLE001 - any error: its type is checked
                    raised = found
            same(type(raised), type(error), "what send raises")
            same(await watch.found(), [], "left behind by a refused call")

    def test_what_inner_raises_in_its_answer_is_raised_by_the_stream(self) -> None:
        for error in (ServerError("down"), KeyError("unheard of")):
            asyncio.run(self._broken_off(error))

    async def _broken_off(self, error: Exception) -> None:
        inner, capture = ScriptedClient([["so ", "far", error]]), TelemetryCapture()
        watch = LeftoverWatch(inner, capture)
        stream = await self.make(inner, capture.telemetry).send(a_request())
        updates: list[ChatUpdate] = []
        for when in ("first", "again"):
            raised: Exception | None = None
            with watch.step("the stream"):
                try:
                    async for update in stream:
                        updates.append(update)
                except Exception as found:  # noqa: BLE001 - any error: its type is checked
                    raised = found
            same(type(raised), type(error), f"what the stream raises, read {when}")
        await stream.aclose()
        same("".join(update.text for update in updates), "so far", "the deltas before the error")
        del stream
        same(await watch.found(), [], "left behind by an answer that broke off")

    def test_a_response_may_be_asked_for_again(self) -> None:
        for name, answers in self.answers.items():
            asyncio.run(self._asked_again(name, answers))

    async def _asked_again(self, name: str, answers: tuple[Answer, ...]) -> None:
        inner, capture = ScriptedClient(answers), TelemetryCapture()
        watch = LeftoverWatch(inner, capture)
        stream = await self.make(inner, capture.telemetry).send(a_request())
        with watch.step("response"):
            first = await stream.response()
        rounds = len(inner.requests)
        await stream.aclose()
        same(await stream.response(), first, f"{name}: the response, asked for again")
        same(len(inner.requests), rounds, f"{name}: requests, after the response was asked for again")
        same(await watch.found(), [], f"{name}: left behind by a stream read to its end")

    def test_a_stream_that_is_not_opened_sends_nothing(self) -> None:
        async def unopened() -> None:
            inner, capture = ScriptedClient(), TelemetryCapture()
            watch = LeftoverWatch(inner, capture)
            Fronted(self.make(inner, capture.telemetry)).get_streaming_response("hello")
            same((len(inner.requests), len(capture.spans)), (0, 0), "requests and spans of a stream that nobody read")
            same(await watch.found(), [], "left behind by a stream that nobody read")

        asyncio.run(unopened())

    def test_a_stream_may_be_closed_after_every_update(self) -> None:
        asyncio.run(self._stopped_after_every_update(closes=True))

    def test_a_stream_may_be_dropped_after_every_update(self) -> None:
        asyncio.run(self._stopped_after_every_update(closes=False))

    async def _stopped_after_every_update(self, *, closes: bool) -> None:
        how = "closed" if closes else "dropped"
        for name, answers in self.answers.items():
            whole: list[ChatUpdate] = []
            await self.ask(ScriptedClient(answers), a_request().messages, stream=True, updates=whole)
            for count in range(len(whole) + 1):
                inner, capture = ScriptedClient(answers), TelemetryCapture()
                watch = LeftoverWatch(inner, capture)
                with complaints() as heard:
                    await _stopped(self.make(inner, capture.telemetry), count, watch, closes=closes)
                    left = await watch.found()
                same(left + heard, [], f"{name}: left behind by a stream {how} after {count} updates")

    def test_a_call_may_be_cancelled_at_every_step(self) -> None:
        for name, answers in self.answers.items():
            for stream in (False, True):
                asyncio.run(self._cancelled(name, answers, stream=stream))

    async def _cancelled(self, name: str, answers: tuple[Answer, ...], *, stream: bool) -> None:
        inner, capture = ScriptedClient(answers, delay_seconds=0), TelemetryCapture()
        watch = LeftoverWatch(inner, capture)

        async def call() -> None:
            inner.requests.clear()
            with watch.step("a cancelled call"):
                await self.ask(inner, a_request().messages, stream=stream, telemetry=capture.telemetry)

        with complaints() as heard:
            left = await cancelled_everywhere(call, watch)
        same(left + heard, [], f"{name}: left behind by a cancelled call")

    def test_each_update_may_be_read_by_another_task(self) -> None:
        for name, answers in self.answers.items():
            asyncio.run(self._handed_around(name, answers))

    async def _handed_around(self, name: str, answers: tuple[Answer, ...]) -> None:
        expected = await self.ask(ScriptedClient(answers), a_request().messages)
        inner, capture = ScriptedClient(answers, delay_seconds=0), TelemetryCapture()
        watch = LeftoverWatch(inner, capture)
        with complaints() as heard:
            stream = await asyncio.create_task(self.make(inner, capture.telemetry).send(a_request()))
            while await asyncio.create_task(_read_one(stream, watch)):
                pass
            response = await asyncio.create_task(stream.response())
            left = await watch.found()
        same(response.messages, expected.messages, f"{name}: the answer, read by many tasks")
        same(left + heard, [], f"{name}: left behind by a stream that many tasks read")


async def _stopped(client: ChatClient, count: int, watch: LeftoverWatch, *, closes: bool) -> None:
    """Read so many updates, then close the stream again and again, or drop it."""
    with watch.step("send"):
        stream = await client.send(a_request())
    for _ in range(count):
        await _read_one(stream, watch)
    if not closes:
        return
    for _ in range(3):
        with watch.step("aclose"):
            await stream.aclose()
        same(watch.now(), [], f"left behind by aclose, after {count} updates")
    try:
        await anext(stream)
    except (StreamClosedError, StopAsyncIteration):
        return
    raise AssertionError("a closed stream can still be read")


async def _read_one(stream: ChatStream, watch: LeftoverWatch) -> bool:
    with watch.step("reading on"):
        try:
            await anext(stream)
        except StopAsyncIteration:
            return False
        return True
