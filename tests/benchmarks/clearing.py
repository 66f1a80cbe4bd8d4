# /// script
# requires-python = ">=3.11"
# dependencies = ["chatstack-core", "langchain>=1.3"]
#
# [tool.uv.sources]
# chatstack-core = { path = "../..", editable = true }
# ///
"""What clearing costs, beside LangChain, as ratios in one run: ``uv run tests/benchmarks/clearing.py``.

The subjects are timed in turn, round after round, so that a machine that changes its speed changes it for all; a row
gives the median of the ratios, the lowest and the highest, and both medians. Times are CPU times of this process, of a
whole call on our side (front, layers, tracer, fake model), and of the bare function or middleware on the other. Ours
are ``same`` objects, where the caller keeps its list, or ``fresh`` ones, where all of it, text included, is read anew
for every call; ``cold`` is a conversation that this process has never seen.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.metadata
import os
import platform
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import msgspec
from langchain.agents.middleware.context_editing import ClearToolUsesEdit, ContextEditingMiddleware
from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.messages.utils import count_tokens_approximately
from results import Run  # beside this file

import chatstack

ROUNDS = 9
CALLS = 500
EARLY, LATE = slice(100, 150), slice(450, 500)
USER_EVERY = 10
TEXT_BYTES = 1_000
KEEP = 3
NEVER = 100_000_000
ROOMY = {"trigger": {"tokens": NEVER}}, {"max_context_tokens": NEVER}
TIGHT = {"trigger": {"tokens": 24_000}}, {"max_context_tokens": 32_000}
REPEATS = 10

Objects = Literal["same", "fresh", "read"]
Ours = list[chatstack.Message]
Theirs = list[AnyMessage]

counter = chatstack.CharCounter(4)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[chatstack.Message]).decode


class Sample(NamedTuple):
    """The same conversation twice, and the lengths at which it was sent."""

    ours: Ours
    theirs: Theirs
    lengths: list[int]

    def fresh(self, length: int) -> Ours:
        """Its beginning in objects that nobody has seen, hashed, counted or digested."""
        return _decode(_encode(self.ours[:length]))


class Row(NamedTuple):
    """One line of the table: pairs of seconds."""

    title: str
    pairs: Sequence[tuple[float, float]]


def main() -> None:
    run = Run.from_command_line("clearing", __doc__, rounds=ROUNDS)
    load = os.getloadavg()[0]
    gc.collect()
    gc.freeze()  # what was imported is nobody's cost
    growing = asyncio.run(growing_rows(run))
    single = asyncio.run(single_rows(run))
    alone = recognition(run)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("langchain", "langchain-core"))
    print(
        f"\n{versions}; CPython {platform.python_version()}, {os.cpu_count()} cores, "
        f"load {load:.1f} before and {os.getloadavg()[0]:.1f} after; medians of {run.rounds} rounds, CPU time\n"
    )
    print("| what / beside what | ratio | lowest to highest | ours / theirs |\n|---|---|---|---|")
    for row in (*growing, *single):
        print(told(row))
    print("\n| what | median | lowest to highest |\n|---|---|---|")
    for title, seconds in alone.items():
        lowest, highest = min(seconds) * 1e3, max(seconds) * 1e3
        print(f"| {title} | {statistics.median(seconds) * 1e3:.2f} ms | {lowest:.2f} to {highest:.2f} ms |")
    run.write()


def told(row: Row) -> str:
    ratios = sorted(mine / other for mine, other in row.pairs)
    mine, other = (statistics.median(each) for each in zip(*row.pairs, strict=True))
    return (
        f"| {row.title} | {statistics.median(ratios):.3f} | {ratios[0]:.3f} to {ratios[-1]:.3f} "
        f"| {shown(mine)} / {shown(other)} |"
    )


def shown(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.0f} µs"


# growing conversations


async def growing_rows(run: Run) -> list[Row]:
    """500 calls of one conversation, each two or three messages longer than the one before."""
    sample = growing_sample(CALLS)
    subjects: dict[str, tuple[Any, Objects]] = {
        f"{objects} objects, {edits}": (limits, objects)
        for edits, limits in (("no edits", ROOMY), ("edits", TIGHT))
        for objects in get_args(Objects)
    }
    subjects["same objects, without the two layers"] = (None, "same")
    mine: dict[str, list[list[float]]] = {title: [] for title in subjects}
    theirs: list[list[float]] = []
    for _ in range(run.rounds):
        theirs.append(their_counting(sample))
        for title, (limits, objects) in subjects.items():
            mine[title].append(await our_growing(sample, limits, objects))
    for title, runs in mine.items():
        run.seconds(f"{CALLS} growing calls, {title}", list(map(sum, runs)))
        run.seconds(f"the same, calls 450 to 500, {title}", [sum(each[LATE]) for each in runs])
    run.seconds(f"{CALLS} growing calls, LangChain's token count alone", list(map(sum, theirs)), is_ours=False)
    rows = [
        Row(f"{CALLS} growing calls, {title} / LangChain's token count alone", pairs(map(sum, runs), map(sum, theirs)))
        for title, runs in mine.items()
    ]
    for title, runs in (*mine.items(), ("LangChain's token count alone", theirs)):
        ends = [(sum(run[LATE]), sum(run[EARLY])) for run in runs]
        rows.append(Row(f"calls 450 to 500 / 100 to 150: {title}", ends))
    return rows


def pairs(mine: Iterable[float], other: Iterable[float]) -> list[tuple[float, float]]:
    return list(zip(mine, other, strict=True))


async def our_growing(sample: Sample, limits: tuple[Any, Any] | None, objects: Objects) -> list[float]:
    """Seconds of each call, without what it took to read objects or to make up what the model reports."""
    model = FakeModel()
    client = chatstack.ChatStack(model).build() if limits is None else stack(model, *limits)
    seconds: list[float] = []
    kept = sample.fresh(sample.lengths[-1])
    gc.collect()
    for length in sample.lengths:
        if objects == "read":
            messages = chatstack.from_json(chatstack.to_json(sample.ours[:length]))
        else:
            messages = sample.fresh(length) if objects == "fresh" else kept[:length]
        seconds.append(await seconds_of_call(client, model, messages))
    assert (model.edited > 0) == (limits is TIGHT)
    return seconds


async def seconds_of_call(client: chatstack.ChatFronts, model: FakeModel, messages: Ours) -> float:
    off = model.seconds
    started = time.process_time()
    await client.get_response(messages)
    return time.process_time() - started - (model.seconds - off)


def their_counting(sample: Sample) -> list[float]:
    seconds: list[float] = []
    for length in sample.lengths:
        messages = sample.theirs[:length]
        started = time.process_time()
        count_tokens_approximately(messages)
        seconds.append(time.process_time() - started)
    return seconds


# single calls


async def single_rows(run: Run) -> list[Row]:
    """Calls of one length: one that clears, and one that has nothing to do."""
    samples = {length: sample_of(length) for length in (1_000, 5_000)}
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(run.rounds):
        for length, sample in samples.items():
            measured = {
                "cleared by LangChain": their_edit(sample, trigger=1_000),
                "left alone by LangChain": their_edit(sample, trigger=NEVER),
                "cleared, seen before, same objects": await clearing(sample, fresh=False),
                "cleared, seen before, fresh objects": await clearing(sample, fresh=True),
                "cleared, cold": await cold(sample, trigger=1),
                "nothing to do, seen before, same objects": await nothing_to_do(sample, fresh=False),
                "nothing to do, seen before, fresh objects": await nothing_to_do(sample, fresh=True),
                "nothing to do, cold": await cold(sample, trigger=NEVER),
            }
            for title, seconds in measured.items():
                times.setdefault((title, length), []).append(seconds)
    rows: list[Row] = []
    for title, length in times:
        run.seconds(f"{length:,} messages, {title}", times[title, length], is_ours="LangChain" not in title)
        if "LangChain" not in title:
            other = "cleared by LangChain" if title.startswith("cleared") else "left alone by LangChain"
            beside = "LangChain's middleware, clearing" if title.startswith("cleared") else "the same, nothing to do"
            rows.append(
                Row(f"{length:,} messages, {title} / {beside}", pairs(times[title, length], times[other, length]))
            )
    for title in dict.fromkeys(title for title, _ in times):
        rows.append(Row(f"5,000 messages / 1,000: {title}", pairs(times[title, 5_000], times[title, 1_000])))
    return rows


async def clearing(sample: Sample, *, fresh: bool) -> float:
    """The call that reaches the trigger, two messages after the one before."""
    length = sample.lengths[-1]
    model = FakeModel()
    client = stack(model, {"trigger": {"messages": length}}, {"max_context_tokens": NEVER})
    kept = sample.fresh(length)
    await client.get_response(kept[: length - 2])
    assert not model.edited
    gc.collect()
    seconds = await seconds_of_call(client, model, sample.fresh(length) if fresh else kept)
    assert model.edited
    return seconds


async def cold(sample: Sample, *, trigger: int) -> float:
    model = FakeModel()
    client = stack(model, {"trigger": {"tokens": trigger}}, {"max_context_tokens": NEVER})
    await client.get_response("hello")  # what is made once for a process, or a client
    messages = sample.fresh(sample.lengths[-1])
    gc.collect()
    seconds = await seconds_of_call(client, model, messages)
    assert bool(model.edited) == (trigger != NEVER)
    return seconds


async def nothing_to_do(sample: Sample, *, fresh: bool) -> float:
    """A call that goes on where the one before ended, as its mean over the last few lengths."""
    length = sample.lengths[-1]
    model = FakeModel()
    client = stack(model, *ROOMY)
    kept = sample.fresh(length)
    lengths = range(length - 2 * REPEATS, length + 1, 2)
    seconds: list[float] = []
    for each in lengths:
        messages = sample.fresh(each) if fresh else kept[:each]
        seconds.append(await seconds_of_call(client, model, messages))
    assert not model.edited
    return statistics.fmean(seconds[1:])


def their_edit(sample: Sample, *, trigger: int) -> float:
    middleware: Any = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=trigger, keep=KEEP)])
    request: Any = ModelRequest(model=FakeListChatModel(responses=["fine"]), messages=list(sample.theirs))
    sent: list[Any] = []

    def handler(edited: Any) -> ModelResponse[Any]:
        sent.append(edited)
        return ModelResponse(result=[AIMessage("fine")])

    gc.collect()
    started = time.process_time()
    middleware.wrap_model_call(request, handler)
    seconds = time.process_time() - started
    cleared = sum(message.content == "[cleared]" for message in sent[0].messages)
    results = sum(isinstance(message, ToolMessage) for message in sample.theirs)
    assert cleared == (0 if trigger == NEVER else results - KEEP)
    return seconds


# recognition


def recognition(run: Run) -> dict[str, list[float]]:
    """What it takes to know a history of 5,000 messages of 1 KB again; without a model or layers."""
    make = (chatstack.Message.user, chatstack.Message.assistant)
    messages = [make[number % 2](text_of(number)) for number in range(5_000)]
    sample = Sample(messages, [], [len(messages)])
    found: dict[str, list[float]] = {}
    for _ in range(run.rounds):
        for title, seconds in recognition_round(sample).items():
            found.setdefault(title, []).append(seconds)
    for title, taken in found.items():
        run.seconds(title, taken)
    return found


def recognition_round(sample: Sample) -> dict[str, float]:
    memory, unseen = chatstack.ContextMemory(), sample.fresh(5_000)
    kept, fresh, longer = sample.fresh(5_000), sample.fresh(5_000), sample.fresh(5_000)
    memory.recognise(kept[:4_998])
    longer.append(chatstack.Message.user("go on"))
    gc.collect()
    times = {
        "5,000 messages of 1 KB known again, two longer, same objects": seconds_of(lambda: memory.recognise(kept)),
        "the same length again, same objects": seconds_of(lambda: memory.recognise(kept)),
        "the same length again, fresh objects": seconds_of(lambda: memory.recognise(fresh)),
        "one longer, fresh objects": seconds_of(lambda: memory.recognise(longer)),
    }
    new = chatstack.ContextMemory()
    times["5,000 messages never seen: taken in"] = seconds_of(lambda: new.recognise(unseen))
    seen = new.recognise(unseen)
    times["5,000 messages never seen: digested, every beginning"] = seconds_of(lambda: seen.links)
    assert len(seen.links) == 5_000
    return times


def seconds_of(subject: Callable[[], object]) -> float:
    started = time.process_time()
    subject()
    return time.process_time() - started


# ours


class FakeModel(chatstack.ChatFronts):
    """Answers at once, and reports a tenth more than is counted; what the counting takes is noted, to be taken off."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.edited = 0
        self.done = chatstack.Message.assistant("fine")

    async def send(self, request: chatstack.ChatRequest, /) -> chatstack.ChatStream:
        started = time.process_time()
        tokens = int(sum(map(size_of, request.messages)) * 1.1)
        self.edited += any(message.original is not message for message in request.messages)
        self.seconds += time.process_time() - started
        return await chatstack.ChatStream.primed(self.play(tokens))

    async def play(self, tokens: int) -> AsyncGenerator[chatstack.ChatUpdate, None]:
        yield chatstack.ChatUpdate(text="fine")
        yield chatstack.ChatUpdate(message_done=self.done, usage=chatstack.Usage(tokens, 1), finish_reason="stop")


def size_of(message: chatstack.Message) -> int:
    """As the layers have counted it already; counting it anew would take long."""
    kept = getattr(message, "_size", None)
    return counter.count_message(message) if kept is None else kept[1]


def stack(model: FakeModel, clearer: dict[str, Any], guard: dict[str, Any]) -> chatstack.BuiltClient:
    return (
        chatstack.ChatStack(model)
        .use(chatstack.ToolResultClearer, keep={"messages": KEEP}, **clearer)
        .use(chatstack.ContextWindowGuard, prune_on_overflow=True, **guard)
        .build()
    )


# conversations


def growing_sample(calls: int) -> Sample:
    """A task, then a call and its result each time, and now and then a word of the user's."""
    ours: Ours = [chatstack.Message.user("find out why the build fails, and mend it")]
    theirs: Theirs = [HumanMessage("find out why the build fails, and mend it")]
    lengths: list[int] = []
    for number in range(calls):
        call_id, path, text = f"call_{number:06d}", f"src/module_{number}.py", text_of(number)
        call = chatstack.ToolCall(call_id, "read_file", f'{{"path": "{path}"}}')
        ours += [
            chatstack.Message.assistant("I look at the next file.", call),
            chatstack.Message.tool(call_id, text, name="read_file"),
        ]
        their_call: Any = {"name": "read_file", "args": {"path": path}, "id": call_id, "type": "tool_call"}
        theirs += [
            AIMessage("I look at the next file.", tool_calls=[their_call]),
            ToolMessage(text, tool_call_id=call_id, name="read_file"),
        ]
        if number % USER_EVERY == USER_EVERY - 1:
            ours.append(chatstack.Message.user(f"go on, step {number}"))
            theirs.append(HumanMessage(f"go on, step {number}"))
        lengths.append(len(ours))
    return Sample(ours, theirs, lengths)


def sample_of(length: int) -> Sample:
    grown = growing_sample(length // 2)
    return Sample(grown.ours[:length], grown.theirs[:length], [length])


def text_of(number: int) -> str:
    line = f"{number:06d}: the quick brown fox jumps over the lazy dog, and so on\n"
    return (line * (TEXT_BYTES // len(line) + 1))[:TEXT_BYTES]


if __name__ == "__main__":
    main()
