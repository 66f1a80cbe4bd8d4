"""The feed of progress: the facts that ``on_progress`` hears, for whoever follows; and bad followers hurt nobody."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest
import svcs

from chatstack import (
    BuiltClient,
    ChatRequest,
    ChatStack,
    ChatStream,
    ContextWindowGuard,
    FunctionInvoker,
    Message,
    ModelTracer,
    ProgressEvent,
    ProgressFeed,
    ProgressReporter,
    StreamBusyError,
    Telemetry,
    ToolCall,
    find,
)
from chatstack.telemetry.feed import ProgressEvents
from chatstack.testing import Answer, ScriptedClient, TelemetryCapture

KINDS = ["turn_started", "model_call_started", "model_call_ended", "turn_ended"]
LOOK = Message.assistant(ToolCall("1", "look"))


def look() -> str:
    """Looks."""
    return "sunny"


def event(name: str, conversation_id: str | None = None) -> ProgressEvent:
    return ProgressEvent(kind="edit", name=name, at=0.0, conversation_id=conversation_id)


def stack(*answers: Answer, **options: Any) -> ChatStack:
    return ChatStack(ScriptedClient(answers or ["fine"], delay_seconds=0)).use(ProgressReporter, **options)


def built(
    *answers: Answer, capture: TelemetryCapture | None = None, limit: int = 10_000, **options: Any
) -> BuiltClient:
    whole = stack(*answers, **options).use(FunctionInvoker, tools=[look])
    services: dict[type, object] = {Telemetry: capture.telemetry if capture is not None else None}
    return whole.use(ContextWindowGuard, max_context_tokens=limit).build(services.get)


def feed_of(client: BuiltClient) -> ProgressFeed:
    reporter = find(client, ProgressReporter)
    assert reporter is not None
    return reporter.feed


async def until_turn_ends(events: ProgressEvents, turns: int = 1) -> list[ProgressEvent]:
    """What comes, up to the end of so many turns."""
    heard: list[ProgressEvent] = []
    async with asyncio.timeout(300):
        async for each in events:
            heard.append(each)
            turns -= each.kind == "turn_ended"
            if not turns:
                return heard
    return heard


async def rest(events: ProgressEvents) -> list[ProgressEvent]:
    """What still waits."""
    await events.aclose()
    return [each async for each in events]


# The same facts


@pytest.mark.parametrize("streaming", [False, True])
def test_a_follower_hears_what_the_listener_hears_in_the_same_order(streaming: bool) -> None:
    heard: list[ProgressEvent] = []

    async def run() -> list[ProgressEvent]:
        async with built(LOOK, "it is sunny", on_progress=heard.append, limit=5) as client:
            events = feed_of(client).events("c-1")
            stream = client.get_streaming_response("hello", conversation_id="c-1")
            await (stream.response() if streaming else client.get_response("hello", conversation_id="c-1"))
            return await rest(events)

    followed = asyncio.run(run())
    assert len(followed) == len(heard)
    assert all(mine is theirs for mine, theirs in zip(followed, heard, strict=True))
    assert {each.kind for each in followed} >= {*KINDS, "context_weighed", "tool_started", "tool_ended", "warning"}


@pytest.mark.slow
def test_hundreds_of_conversations_at_once_each_see_their_own_in_order() -> None:
    async def run() -> tuple[list[list[ProgressEvent]], list[ProgressEvent]]:
        client = built(*[LOOK] * 300, "done", feed=(feed := ProgressFeed()))
        every = feed.events(capacity=10_000)
        following = [feed.events(f"c-{number}") for number in range(300)]

        own = [asyncio.ensure_future(until_turn_ends(each)) for each in following]
        await asyncio.gather(*(client.get_response("hello", conversation_id=f"c-{each}") for each in range(300)))
        return await asyncio.gather(*own), await rest(every)

    own, every = asyncio.run(run())
    for number, heard in enumerate(own):
        assert heard == [each for each in every if each.conversation_id == f"c-{number}"]
        assert (heard[0].kind, heard[-1].kind) == ("turn_started", "turn_ended")
        assert [each.at for each in heard] == sorted(each.at for each in heard)
    assert sum(map(len, own)) == len(every)


def test_several_may_follow_one_conversation_and_each_hears_all_of_it() -> None:
    async def run() -> list[list[ProgressEvent]]:
        client = built()
        following = [feed_of(client).events(of) for of in ("c", "c", None, "other")]
        await client.get_response("hello", conversation_id="c")
        return [await rest(events) for events in following]

    first, *others = asyncio.run(run())
    assert [each.kind for each in first if each.kind != "context_weighed"] == KINDS
    assert others == [first, first, []]


def test_events_come_while_the_turn_runs() -> None:
    async def run() -> list[str]:
        client = built("one two three")
        async with feed_of(client).events() as events, client.get_streaming_response("hello") as stream:
            await anext(stream)
            return [(await anext(events)).kind for _ in range(3)]

    assert asyncio.run(run()) == ["turn_started", "context_weighed", "model_call_started"]


def test_clients_that_a_container_builds_per_conversation_tell_its_one_feed() -> None:
    feed = ProgressFeed()
    registry: Any = svcs.Registry()
    registry.register_value(ProgressFeed, feed)

    async def run() -> list[str | None]:
        recipe = stack()
        events = feed.events()
        for number in range(3):
            with svcs.Container(registry) as container:
                async with recipe.open(lambda kind: container.get(kind) if kind in registry else None) as client:
                    assert feed_of(client) is feed
                    await client.get_response("hello", conversation_id=str(number))
        return [each.conversation_id for each in await rest(events) if each.kind == "turn_ended"]

    assert asyncio.run(run()) == ["0", "1", "2"]


# Who follows, and from where


def test_a_follower_in_a_thread_and_loop_of_its_own_hears_everything() -> None:
    feed, heard = ProgressFeed(), list[str]()
    follows = threading.Event()

    async def follow() -> None:
        async with feed.events("c") as events:
            follows.set()
            heard.extend(each.kind for each in await until_turn_ends(events, turns=20))

    thread = threading.Thread(target=lambda: asyncio.run(follow()))
    thread.start()
    assert follows.wait(300)
    client = stack(feed=feed).build()

    async def talk() -> None:
        for _ in range(20):
            await client.get_response("hello", conversation_id="c")

    asyncio.run(talk())
    thread.join(300)
    assert heard == KINDS * 20


def test_many_threads_may_tell_while_others_come_and_go() -> None:
    feed, count = ProgressFeed(), 2_000
    events = feed.events(capacity=4 * count)

    def tell(thread: int) -> None:
        for number in range(count):
            feed.put(event(f"{thread}-{number}"))
            feed.events()  # dropped at once

    threads = [threading.Thread(target=tell, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    heard = [each.name for each in asyncio.run(rest(events))]
    for thread in range(4):
        assert [name for name in heard if name.startswith(f"{thread}-")] == [f"{thread}-{n}" for n in range(count)]


def test_a_follower_that_is_cancelled_while_it_waits_misses_nothing_and_may_go_on() -> None:
    async def run() -> list[str]:
        feed = ProgressFeed()
        events = feed.events()
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        feed.put(event("one"))  # it has been woken, and does not run any more
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        feed.put(event("two"))
        return [each.name for each in await rest(events)]

    assert asyncio.run(run()) == ["one", "two"]


@pytest.mark.parametrize("from_a_thread", [False, True])
def test_one_reads_at_a_time_and_closing_it_from_elsewhere_ends_who_waits(from_a_thread: bool) -> None:
    async def run() -> list[str]:
        feed = ProgressFeed()
        events = feed.events()
        feed.put(event("one"))
        waiting = asyncio.ensure_future(until_turn_ends(events))
        await asyncio.sleep(0.01)
        with pytest.raises(StreamBusyError):
            await anext(events)
        await (asyncio.to_thread(lambda: asyncio.run(events.aclose())) if from_a_thread else events.aclose())
        feed.put(event("too late"))
        return [each.name for each in await waiting]

    assert asyncio.run(run()) == ["one"]


def test_followers_that_are_dropped_or_whose_loop_has_gone_disturb_nobody() -> None:
    feed = ProgressFeed()
    events = feed.events("c")
    seen, loop = weakref.ref(events), asyncio.new_event_loop()
    waiting: Any = loop.create_task(until_turn_ends(events))
    loop.run_until_complete(asyncio.sleep(0))
    waiting.cancel()
    loop.close()
    feed.put(event("one", "c"))
    assert feed.is_followed("c")
    del events, waiting
    gc.collect()
    assert (seen(), feed.is_followed("c"), feed.is_followed(None)) == (None, False, False)


# Who is too slow, or raises, or calls back


def test_what_a_slow_follower_misses_is_counted_and_warned_of_once_per_turn() -> None:
    capture = TelemetryCapture()

    async def run() -> tuple[int, int, list[str]]:
        client = built(LOOK, "fine", capture=capture)
        slow = feed_of(client).events("c", capacity=2)
        fast = feed_of(client).events("c")
        for _ in range(3):
            await client.get_response("hello", conversation_id="c")
        return slow.dropped, fast.dropped, [each.kind for each in await rest(slow)]

    dropped, of_the_fast, kept = asyncio.run(run())
    assert (of_the_fast, kept) == (0, ["turn_started", "context_weighed"])
    assert capture.warnings == ("progress_dropped",) * 3
    warned = [span.attributes["chatstack.progress.dropped"] for span in capture.spans_named("progress")]
    assert sum(map(int, warned)) + 2 == dropped  # type: ignore[arg-type]  # + the last warning, and the end of its turn
    roots = capture.spans_named("invoke_agent chat")
    assert [span.attributes["chatstack.warnings"] for span in roots] == [("progress_dropped",)] * 3


def test_what_a_follower_had_missed_when_it_was_closed_is_told_all_the_same() -> None:
    capture = TelemetryCapture()

    async def run() -> None:
        client = built(capture=capture)
        async with feed_of(client).events("c", capacity=1):
            await client.get_response("hello", conversation_id="c")
        await client.get_response("hello", conversation_id="c")

    asyncio.run(run())
    dropped = [span.attributes["chatstack.progress.dropped"] for span in capture.spans_named("progress")]
    assert len(dropped) == 2  # in the turn itself, and what that told after it


def test_a_listener_may_ask_the_client_itself() -> None:
    heard: list[tuple[str | None, str]] = []

    def listen(each: ProgressEvent) -> None:
        heard.append((each.conversation_id, each.kind))
        if each.kind == "turn_ended" and each.conversation_id == "outer":
            asyncio.run(client.get_response("hello again", conversation_id="inner"))

    client = stack(on_progress=listen).build()

    async def run() -> list[str]:
        async with client:
            events = feed_of(client).events("inner")
            await client.get_response("hello", conversation_id="outer")
            return [each.kind for each in await until_turn_ends(events)]

    assert asyncio.run(run()) == KINDS
    assert heard == [(of, kind) for of in ("outer", "inner") for kind in KINDS]


@pytest.mark.parametrize("does", ["raises", "exits", "blocks"])
def test_a_listener_that_raises_exits_or_blocks_costs_followers_nothing(does: str) -> None:
    go = threading.Event()

    def listen(each: ProgressEvent) -> None:
        if does == "blocks":
            go.wait(300)
        else:
            raise {"raises": ValueError("no"), "exits": SystemExit(3)}[does]

    async def run() -> list[str]:
        client = stack(on_progress=listen).build()
        events = feed_of(client).events()
        await client.get_response("hello")
        heard: list[str] = [each.kind for each in await rest(events)]
        go.set()
        await client.aclose()
        return heard

    assert [kind for kind in asyncio.run(run()) if kind != "warning"] == KINDS


def test_without_follower_listener_and_sdk_the_stream_of_the_provider_comes_up_as_it_is() -> None:
    class Provider(ScriptedClient):
        async def send(self, request: ChatRequest, /) -> ChatStream:
            self.last = await super().send(request)
            return self.last

    async def run() -> list[bool]:
        provider = Provider()
        reporter = ProgressReporter(ModelTracer(provider))
        request = ChatRequest((Message.user("hello"),), conversation_id="c")
        found = [await reporter.send(request) is provider.last]
        for follows in ("other", "c"):
            async with reporter.feed.events(follows):
                found.append(await reporter.send(request) is provider.last)
        return [*found, await reporter.send(request) is provider.last]

    assert asyncio.run(run()) == [True, True, False, True]
