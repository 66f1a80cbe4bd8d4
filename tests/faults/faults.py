"""The faults: each prepares a world in which one thing goes wrong."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NoReturn

from chatstack import ContextMemory, Telemetry, ToolCall, ToolError
from chatstack.errors import (
    AuthenticationError,
    BrokenStreamError,
    ContextOverflowError,
    ProviderConnectionError,
    ProviderTimeoutError,
    RateLimitError,
    RequestRefusedError,
    ServerError,
    StoreError,
    UnusableRecordError,
)
from chatstack.testing.outages import failing_telemetry, silent_telemetry
from chatstack.values.responses import Usage
from tests.faults.world import CALL, END, FINE, LONG, Finish, Jump, Pause, Step, World


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, with a name. It concerns subjects that have ``needs``; "" concerns all."""

    name: str
    needs: str
    arm: Callable[[World], None]


REFUSALS: dict[str, Callable[[], Exception]] = {
    "authentication": lambda: AuthenticationError("wrong key", status=401),
    "rate limit": lambda: RateLimitError("slow down", retry_after_seconds=3),
    "overflow": lambda: ContextOverflowError(status=400),
    "overflow, with sizes": lambda: ContextOverflowError(4_000, 200, status=400),
    "refused": lambda: RequestRefusedError("no", status=400),
    "timeout": lambda: ProviderTimeoutError("late"),
    "connection": lambda: ProviderConnectionError("lost"),
    "server": lambda: ServerError("down", status=503),
    "broken stream": lambda: BrokenStreamError("noise"),
    "an exception of another library": lambda: ZeroDivisionError("elsewhere"),
    "a cancellation of its own": lambda: asyncio.CancelledError(),  # type: ignore[dict-item,return-value]
}
STREAMS: dict[str, Callable[[], Sequence[Step]]] = {
    "nothing comes": lambda: (END,),
    "it ends within a message": lambda: ("so ", END),
    "it breaks off": lambda: ("so ", BrokenStreamError("cut")),
    "the connection is lost": lambda: ("so ", ProviderConnectionError("lost")),
    "the server fails": lambda: ("so ", ServerError("down")),
    "an overflow": lambda: ("so ", ContextOverflowError(4_000, 200)),
    "an exception of another library": lambda: ("so ", ZeroDivisionError("elsewhere")),
    "it breaks off within a call": lambda: (ToolCall("c9", "lookup", '{"wh'), BrokenStreamError("cut")),
    "an unknown tool": lambda: (ToolCall("c9", "nobody", "{}"),),
    "arguments that are noise": lambda: (ToolCall("c9", "lookup", '{"wh'),),
    "cut off at its maximum": lambda: ("so ", Finish("length")),
    "refused by the model": lambda: ("no", Finish("refused")),
    "paused, again and again": lambda: ("so ", Finish("paused")),
    "usage beyond belief": lambda: ("so", Usage(10**15, 10**15)),
    "usage that is negative": lambda: ("so", Usage(-5, -5)),
}


def _answered_by(*answers: Sequence[Step], timeout_seconds: float | None = None) -> Callable[[World], None]:
    def arm(world: World) -> None:
        world.model.script = list(answers)
        world.timeout_seconds = timeout_seconds

    return arm


def _model_faults() -> Iterator[Fault]:
    def refusing(refusal: Callable[[], Exception], *before: Sequence[Step]) -> Callable[[World], None]:
        return lambda world: _answered_by(*before, (refusal(),))(world)

    def streaming(steps: Callable[[], Sequence[Step]], *before: Sequence[Step]) -> Callable[[World], None]:
        return lambda world: _answered_by(*before, steps())(world)

    def once(refusal: Callable[[], Exception]) -> Callable[[World], None]:
        return lambda world: _answered_by((refusal(),), FINE)(world)

    for name, refusal in REFUSALS.items():
        yield Fault(f"model refuses: {name}", "", refusing(refusal))
        yield Fault(f"model refuses after a tool: {name}", "tools", refusing(refusal, CALL))
    for name in ("overflow", "overflow, with sizes", "rate limit"):
        yield Fault(f"model refuses once: {name}", "", once(REFUSALS[name]))
    for name, steps in STREAMS.items():
        yield Fault(f"stream: {name}", "", streaming(steps))
        yield Fault(f"stream after a tool: {name}", "tools", streaming(steps, CALL))
    slow = (Pause(2), "so ", Pause(2), "far", Pause(2))
    yield Fault("slow, without a limit", "", _answered_by(slow))
    yield Fault("slow, with a limit that is long", "", _answered_by(slow, timeout_seconds=60))
    yield Fault("slow, with a limit that is short", "", _answered_by(slow, timeout_seconds=3))
    yield Fault("slow after a tool, with a limit that is short", "tools", _answered_by(CALL, slow, timeout_seconds=3))
    yield Fault("hangs before it answers", "", _answered_by((Pause(LONG), "so"), timeout_seconds=30))
    yield Fault("hangs in its answer", "", _answered_by(("so ", Pause(LONG), "far"), timeout_seconds=30))
    yield Fault("hangs after its answer", "", _answered_by(("so", Pause(LONG)), timeout_seconds=30))
    yield Fault("hangs after a tool", "tools", _answered_by(CALL, (Pause(LONG), "so"), timeout_seconds=30))


def _summary_faults() -> Iterator[Fault]:
    def refusing(refusal: Callable[[], Exception]) -> Callable[[World], None]:
        return writing(lambda: (refusal(),))

    def writing(steps: Callable[[], Sequence[Step]]) -> Callable[[World], None]:
        def arm(world: World) -> None:
            world.writer.script = [steps()]

        return arm

    for name, refusal in REFUSALS.items():
        yield Fault(f"summary client refuses: {name}", "summary", refusing(refusal))
    for name, steps in STREAMS.items():
        yield Fault(f"summary: {name}", "summary", writing(steps))
    yield Fault("summary: empty", "summary", writing(lambda: ("",)))
    yield Fault("summary: longer than what it stands for", "summary", writing(lambda: ("they spoke " * 2_000,)))
    yield Fault("summary client is slow", "summary", writing(lambda: (Pause(20), "they spoke of the weather")))
    yield Fault("summary client hangs", "summary", writing(lambda: (Pause(LONG), "they spoke of the weather")))
    yield Fault("summary client hangs in its answer", "summary", writing(lambda: ("they spoke", Pause(LONG))))


def _raising(error: Callable[[], BaseException]) -> Callable[[], Awaitable[Any]]:
    async def fail() -> NoReturn:
        await asyncio.sleep(0)
        raise error()

    return fail


def _pausing(seconds: float) -> Callable[[], Awaitable[Any]]:
    async def pause() -> object:
        await asyncio.sleep(seconds)
        return "sunny"

    return pause


def _store_faults() -> Iterator[Fault]:
    failures: dict[str, Callable[[], Awaitable[Any]]] = {
        "raises StoreError": _raising(lambda: StoreError("away")),
        "raises an exception of another library": _raising(lambda: ZeroDivisionError("elsewhere")),
        "raises TimeoutError": _raising(TimeoutError),
        "raises a cancellation of its own": _raising(asyncio.CancelledError),
        "is slow": _pausing(0.1),
        "hangs": _pausing(LONG),
    }

    def failing(fault: Callable[[], Awaitable[Any]], *kinds: str) -> Callable[[World], None]:
        def arm(world: World) -> None:
            world.share()
            world.store.fault, world.store.fails = fault, kinds

        return arm

    def finding(found: Callable[[Sequence[bytes]], tuple[bytes, bytes] | None]) -> Callable[[World], None]:
        def arm(world: World) -> None:
            world.share()
            world.store.found = found

        return arm

    def unusable(links: Sequence[bytes]) -> NoReturn:
        raise UnusableRecordError("no record", link=links[-1])

    for (name, fault), kinds in product(failures.items(), (("find",), ("put",), ("find", "put"))):
        yield Fault(f"store {name}: {' and '.join(kinds)}", "context", failing(fault, *kinds))
    yield Fault(
        "store finds noise", "context", finding(lambda links: (links[-1], b"\xff\x00 noise") if links else None)
    )
    yield Fault("store finds what nobody asked for", "context", finding(lambda links: (b"another", b"{}")))
    yield Fault("store finds no record at all", "context", finding(unusable))
    yield Fault("store gives nonsense", "context", finding(lambda links: 5))  # type: ignore[arg-type,return-value]


class _Rude:
    """A result that cannot even be shown."""

    def __str__(self) -> str:
        raise ZeroDivisionError("elsewhere")

    __repr__ = __str__


def _tool_faults() -> Iterator[Fault]:
    def giving(tool: Callable[[], Awaitable[object]], limit: float | None = None) -> Callable[[World], None]:
        def arm(world: World) -> None:
            world.model.script = [CALL, FINE]
            world.tool, world.tool_timeout_seconds = tool, limit

        return arm

    def returning(value: object) -> Callable[[], Awaitable[object]]:
        async def give() -> object:
            await asyncio.sleep(0)
            return value

        return give

    yield Fault("tool raises", "tools", giving(_raising(lambda: ValueError("no"))))
    yield Fault("tool raises ToolError", "tools", giving(_raising(lambda: ToolError("look elsewhere"))))
    yield Fault("tool raises TimeoutError", "tools", giving(_raising(TimeoutError)))
    yield Fault("tool raises StopAsyncIteration", "tools", giving(_raising(StopAsyncIteration)))
    yield Fault("tool raises a provider's error", "tools", giving(_raising(lambda: ContextOverflowError(9, 1))))
    yield Fault("tool raises a group", "tools", giving(_raising(lambda: ExceptionGroup("all", [ValueError("no")]))))
    yield Fault("tool cancels itself", "tools", giving(_raising(asyncio.CancelledError)))
    yield Fault("tool is slow", "tools", giving(_pausing(5)))
    yield Fault("tool hangs", "tools", giving(_pausing(LONG), 5))
    yield Fault("tool gives what is no JSON", "tools", giving(returning({1: {2, object}})))
    yield Fault("tool gives what cannot be shown", "tools", giving(returning(_Rude())))
    yield Fault("tool gives a lone surrogate", "tools", giving(returning("so \ud800 far")))
    yield Fault("tool gives a million characters", "tools", giving(returning("sunny " * 170_000)))


def _listener_faults() -> Iterator[Fault]:
    def hearing(listener: Callable[[object], object]) -> Callable[[World], None]:
        def arm(world: World) -> None:
            world.listener = listener

        return arm

    def fail(event: object) -> NoReturn:
        raise ZeroDivisionError("elsewhere")

    def leave(event: object) -> NoReturn:
        raise SystemExit(1)

    def block(world: World) -> None:
        over = threading.Event()
        world.listener = lambda event: over.wait(60)
        world.at_end.append(over.set)

    yield Fault("listener raises", "listener", hearing(fail))
    yield Fault("listener raises SystemExit", "listener", hearing(leave))
    yield Fault("listener blocks", "listener", block)


def _exporter_faults() -> Iterator[Fault]:
    def exporting(*, hangs: bool) -> Callable[[World], None]:
        def arm(world: World) -> None:
            failing = failing_telemetry(hangs=hangs)
            world.telemetry = failing.__enter__()
            world.at_end.append(lambda: failing.__exit__(None, None, None))

        return arm

    def silent(world: World) -> None:
        world.telemetry = silent_telemetry()

    yield Fault("exporter raises", "", exporting(hangs=False))
    yield Fault("exporter hangs", "", exporting(hangs=True))
    yield Fault("no exporter", "", silent)


def _container_faults() -> Iterator[Fault]:
    def answering(answer: Callable[[type], object]) -> Callable[[World], None]:
        def arm(world: World) -> None:
            world.bound = answer

        return arm

    def fail(kind: type) -> NoReturn:
        raise ZeroDivisionError("elsewhere")

    def missing(kind: type) -> NoReturn:
        raise LookupError(kind)

    async def later(kind: type) -> object:
        return kind()

    def wrong(kind: type) -> object:
        if kind in (Telemetry, ContextMemory):
            return object()
        raise LookupError(kind)

    yield Fault("container raises", "", answering(fail))
    yield Fault("container has nothing", "", answering(missing))
    yield Fault("container gives None", "", answering(lambda kind: None))
    yield Fault("container gives something else", "", answering(wrong))


def _clock_faults() -> Iterator[Fault]:
    for name, seconds in (("ahead", 1e5), ("back", -1e5)):
        steps = ("so ", Jump(seconds), "far")
        yield Fault(f"clock jumps {name} in an answer", "", _answered_by(steps))
        yield Fault(f"clock jumps {name} in an answer, with a limit", "", _answered_by(steps, timeout_seconds=60))

        def arm(world: World, seconds: float = seconds) -> None:
            world.writer.script = [(Jump(seconds), "they spoke of the weather")]

        yield Fault(f"clock jumps {name} in a summary", "summary", arm)


FAULTS = (
    *_model_faults(),
    *_summary_faults(),
    *_store_faults(),
    *_tool_faults(),
    *_listener_faults(),
    *_exporter_faults(),
    *_container_faults(),
    *_clock_faults(),
)
