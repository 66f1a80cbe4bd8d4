"""The surroundings of one call, each part of which can be made to fail: model, summary client, store, tool, clocks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from chatstack import ChatRequest, ChatStream, ChatUpdate, ContextMemory, Message, ProgressEvent, Telemetry, ToolCall
from chatstack.errors import StoreError
from chatstack.testing import ScriptedClient, TelemetryCapture
from chatstack.values.responses import FinishReason, Usage
from tests.faults.virtual_time import VirtualLoop

LONG = 1e6
"""Seconds that a thing hangs which hangs."""


@dataclass(frozen=True)
class Pause:
    """The model is silent for so long."""

    seconds: float


@dataclass(frozen=True)
class Jump:
    """All clocks jump."""

    seconds: float


@dataclass(frozen=True)
class Finish:
    """The message ends for this reason."""

    reason: FinishReason


END = object()
"""The stream ends, though its message has not."""
Step: TypeAlias = "str | ToolCall | Usage | Pause | Jump | Finish | BaseException | object"
CALL = (ToolCall("c1", "lookup", '{"what": "rain"}'),)
FINE = ("fine",)


class Model(ScriptedClient):
    """A model that plays steps, the last answer again and again. Each step is one at which it can be cancelled."""

    def __init__(self, world: World, *answers: Sequence[Step]) -> None:
        super().__init__()
        self.script = list(answers)
        self._world = world

    def heal(self) -> None:
        """Answer well from now on."""
        self.script = [FINE]

    async def send(self, request: ChatRequest, /) -> ChatStream:
        steps = self.script[min(len(self.requests), len(self.script) - 1)]
        self.requests.append(request)
        stream = await ChatStream.primed(self._stream(steps))
        stream.sent = request
        return stream

    async def _stream(self, steps: Sequence[Step]) -> AsyncGenerator[ChatUpdate, None]:
        self.open_streams += 1
        try:
            text, calls, usage = "", list[ToolCall](), Usage(100, 10)
            reason: FinishReason | None = None
            for step in steps:
                await asyncio.sleep(0)
                if isinstance(step, BaseException):
                    raise step
                if step is END:
                    return
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                elif isinstance(step, Jump):
                    self._world.jump(step.seconds)
                elif isinstance(step, Finish):
                    reason = step.reason
                elif isinstance(step, Usage):
                    usage = step
                elif isinstance(step, ToolCall):
                    calls.append(step)
                    yield ChatUpdate(part=step)
                else:
                    text += str(step)
                    yield ChatUpdate(text=str(step))
            message = Message.assistant(*([text] if text else []), *calls)
            done: FinishReason = reason or ("tool_calls" if calls else "stop")
            yield ChatUpdate(message_done=message, usage=usage, finish_reason=done)
        finally:
            self.open_streams -= 1


class Store:
    """A store in a dict; ``fault`` runs before each query of the kinds in ``fails``."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, bytes], bytes] = {}
        self.fails: tuple[str, ...] = ()
        self.fault: Callable[[], Awaitable[None]] | None = None
        self.found: Callable[[Sequence[bytes]], tuple[bytes, bytes] | None] | None = None

    async def _query(self, kind: str) -> None:
        await asyncio.sleep(0)
        if self.fault is not None and kind in self.fails:
            await self.fault()

    async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        await self._query("find")
        if self.found is not None:
            return self.found(links)
        return next(
            ((link, self.records[owner, link]) for link in reversed(links) if (owner, link) in self.records), None
        )

    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
        await self._query("put")
        there = self.records.get((owner, link))
        if there is not None and there != replaces:
            return there
        self.records[owner, link] = record
        return record

    async def forget(self, links: Sequence[bytes] | None = None) -> None:
        self.records.clear()

    async def aclose(self) -> None:
        raise StoreError("a stack never closes a store that was given to it")


class World:
    """Everything around one call. Make it inside a ``VirtualLoop``, or any other."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.shift = 0.0
        self.model = Model(self, FINE)
        self.other = Model(self, ("from another",))
        self.writer = Model(self, ("they spoke of the weather",))
        self.store = Store()
        self.capture = TelemetryCapture()
        self.telemetry: Telemetry = self.capture.telemetry
        self.memory = ContextMemory(clock=self.clock)
        self.tool: Callable[[], Awaitable[object]] = _sunny
        self.tool_timeout_seconds: float | None = None
        self.listener: Callable[[ProgressEvent], object] | None = None
        self.bound: Callable[[type], object] | None = None
        """What the container answers in the place of what is bound here."""
        self.timeout_seconds: float | None = None
        self.at_end: list[Callable[[], object]] = []

    def clock(self) -> float:
        """Return the time of the monotonic clock."""
        return self.loop.time() + self.shift

    def jump(self, seconds: float) -> None:
        """Move all clocks; that of the loop only ahead, as it never runs backwards."""
        if seconds > 0 and isinstance(self.loop, VirtualLoop):
            self.loop.jump(seconds)
        else:
            self.shift += seconds

    def share(self) -> None:
        """Share decisions by the store."""
        self.memory = ContextMemory(clock=self.clock, store=self.store, scope="tests")

    def resolve(self, kind: type) -> object:
        """Resolve what is bound."""
        if self.bound is not None:
            return self.bound(kind)
        bound: dict[type, object] = {Telemetry: self.telemetry, ContextMemory: self.memory}
        return bound[kind]

    def heal(self) -> None:
        """Take every fault away."""
        for model in (self.model, self.other, self.writer):
            model.heal()
        self.writer.script = [("they spoke of the weather",)]
        self.store.fault = self.store.found = None
        self.tool = _sunny
        self.timeout_seconds = None

    def close(self) -> None:
        """Let go of whatever still waits."""
        for each in self.at_end:
            each()


async def _sunny() -> object:
    await asyncio.sleep(0)
    return "sunny"
