"""ToolResultShaper(deduplicate=True): a reference stands for a duplicate of what is sent before it, and only then."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatstack import (
    AgentState,
    CharCounter,
    ChatClient,
    ChatOptions,
    ChatRequest,
    ChatStack,
    ClearThenDrop,
    ContextMemory,
    ContextWindowGuard,
    EstimatingCounter,
    Fallback,
    FunctionInvoker,
    Message,
    StackContextManager,
    Summarizer,
    ToolCall,
    ToolResult,
    ToolResultClearer,
    ToolResultShaper,
    Truncate,
    Usage,
    named,
    recall_tool,
    tool,
)
from chatstack.client.fronts import ChatFronts
from chatstack.client.stream import ChatStream
from chatstack.context.edits.pairing import in_full
from chatstack.context.requests.services import ContextServices
from chatstack.context.shapes import references
from chatstack.errors import ContextOverflowError
from chatstack.nodes.in_place import InPlace
from chatstack.testing import ScriptedClient, TelemetryCapture
from chatstack.tokens.calibration import Calibration
from chatstack.values.native import NativeClearing
from tests.histories import PROPERTY, decoded_again
from tests.layers.test_shaper import Sent, results_in

MODEST = settings(PROPERTY, max_examples=int(os.environ.get("CHATSTACK_EXAMPLES", max(10, PROPERTY.max_examples // 8))))
REFERENCE = "[Same result, word for word, as that of "
TEXTS = [
    f"{colour} {number} " * size for number, (colour, size) in enumerate({"grey": 60, "red": 90, "blue": 200}.items())
]
SHORT = "nothing new"

Recipe = Callable[[ChatStack], ChatStack]
BEHIND: dict[str, Recipe] = {
    "nothing": lambda stack: stack,
    "guard": lambda stack: stack.use(ContextWindowGuard, max_context_tokens=1_500, prune_on_overflow=True),
    "clearer": lambda stack: stack.use(ToolResultClearer, trigger={"tokens": 1_000}, keep={"messages": 2}),
    "truncate": lambda stack: stack.use(Truncate, max_tokens=1_200),
    "condensing, guard": lambda stack: stack.use(ClearThenDrop(1_200)).use(
        ContextWindowGuard, max_context_tokens=1_400, prune_on_overflow=True
    ),
    "clearer, summarizer, guard": lambda stack: (
        stack.use(ToolResultClearer, trigger={"tokens": 1_000}, keep={"messages": 4})
        .use(Summarizer, max_tokens=1_300, max_summary_tokens=100, summary_client=ScriptedClient(["They looked."]))
        .use(ContextWindowGuard, max_context_tokens=1_500, prune_on_overflow=True)
    ),
}
every_stack = pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)


class Reporting(ScriptedClient):
    """Reports so many times the size of what it was sent."""

    def __init__(self, factor: int) -> None:
        super().__init__(["fine"])
        self.factor = factor

    def _usage(self, request: ChatRequest, answer: Message) -> Usage:
        usage = super()._usage(request, answer)
        return Usage(usage.input_tokens * self.factor, usage.output_tokens)


size_of = CharCounter().count_message


def look(at: int, text: str) -> list[Message]:
    call = ToolCall(f"c{at}", "look", f'{{"at": {at}}}')
    return [Message.assistant("I look.", call), Message.tool(f"c{at}", text, name="look")]


def with_references(stack: ChatStack, **options: Any) -> ChatStack:
    return stack.use(ToolResultShaper, deduplicate=True, **options)


def without(stack: ChatStack) -> ChatStack:
    return stack.use(ToolResultShaper)


def references_in(messages: Sequence[Message]) -> list[int]:
    return [at for at, message in enumerate(messages) if any(map(is_reference, message.results))]


def is_reference(result: ToolResult) -> bool:
    return result.text.startswith(REFERENCE)


def assert_originals_stand_before(messages: Sequence[Message]) -> None:
    for at in references_in(messages):
        whole = [each.text for each in messages[at].original.results]
        before = [each for message in messages[:at] for each in results_in([message])]
        assert all(text in before for text in whole)


def in_full_again(messages: Sequence[Message]) -> list[Message]:
    """The messages with what references stand for in their places."""
    found = []
    for message in messages:
        parts = [
            in_full(message, at) if isinstance(part, ToolResult) and is_reference(part) else part
            for at, part in enumerate(message.parts)
        ]
        found.append(Message(message.role, tuple(parts), message.pinned, message.mark, message.extra_json))
    return found


def test_a_duplicate_goes_out_as_a_reference_that_names_the_call() -> None:
    history = [Message.user("go"), *look(1, TEXTS[0]), *look(2, SHORT), *look(3, TEXTS[0]), *look(4, SHORT)]
    kept = list(history)
    sent = Sent(with_references).of(history)
    assert references_in(sent) == [6]
    assert sent[6].results[0].text == f'{REFERENCE}the earlier call look({{"at": 1}}); it stands above.]'
    assert [each for at, each in enumerate(sent) if at != 6] == [each for at, each in enumerate(history) if at != 6]
    assert all(one is other for one, other in zip(history, kept, strict=True))
    assert Sent(without).of(history) == tuple(history)


@pytest.mark.sampled(5)
@every_stack
@pytest.mark.parametrize("is_fresh", [False, True], ids=["the same objects", "fresh objects"])
@MODEST
@given(
    which=st.lists(st.sampled_from([*TEXTS, SHORT]), min_size=3, max_size=24),
    factor=st.sampled_from([0, 1, 2]),
)
def test_the_same_is_decided_as_without_and_each_original_stands_before_its_references(
    behind: Recipe, is_fresh: bool, which: list[str], factor: int
) -> None:
    """Restored, what was sent is what is sent without references, message for message, on every call."""
    deduplicating = Sent(lambda stack: behind(with_references(stack)), Reporting(factor))
    plain = Sent(lambda stack: behind(without(stack)), Reporting(factor))
    history = [Message.system("be kind"), Message.user("go")]
    form: Callable[[Sequence[Message]], list[Message]] = decoded_again if is_fresh else list
    for number, text in enumerate(which):
        history += look(number, text)
        if number % 5 == 4:
            history += [Message.assistant("fine"), Message.user("more")]
        sent = deduplicating.of(form(history))
        assert_originals_stand_before(sent)
        assert in_full_again(sent) == list(plain.of(form(history)))
        whole = [text for text in results_in(sent) if text in TEXTS]
        assert len(set(whole)) == len(whole)


@pytest.mark.sampled(2)
@every_stack
def test_the_prefix_breaks_only_where_it_does_without(behind: Recipe) -> None:
    running = {
        True: Sent(lambda stack: behind(with_references(stack))),
        False: Sent(lambda stack: behind(without(stack))),
    }
    breaks = {True: list[int](), False: list[int]()}
    before: dict[bool, tuple[Message, ...]] = {True: (), False: ()}
    history, found = [Message.user("go")], 0
    for number in range(40):
        history += look(number, TEXTS[number * number % 3])
        for is_on, each in running.items():
            sent = each.of(history)
            if sent[: len(before[is_on])] != before[is_on]:
                breaks[is_on].append(number)
            before[is_on] = sent
        found += len(references_in(before[True]))
    assert breaks[True] == breaks[False]
    assert (breaks[True] == []) == (behind is BEHIND["nothing"])
    assert found > 20


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name in BEHIND if "summarizer" not in name])
def test_a_process_that_remembers_nothing_sends_the_same(name: str) -> None:
    def recipe(stack: ChatStack) -> ChatStack:
        return BEHIND[name](with_references(stack))

    running, history = Sent(recipe), [Message.user("go")]
    for number in range(20):
        history += look(number, TEXTS[number % 2])
        assert running.of(history) == Sent(recipe).of(history)


def test_streamed_or_not_the_same_is_sent() -> None:
    history = [Message.user("go"), *look(1, TEXTS[0]), *look(2, TEXTS[0])]
    streamed = Sent(with_references)

    async def read() -> None:
        async with streamed.client.get_streaming_response(history) as stream:
            async for _ in stream:
                pass

    asyncio.run(read())
    assert streamed.model.requests[-1].messages == Sent(with_references).of(history)


def test_a_result_that_was_shaped_is_a_duplicate_of_the_same_one() -> None:
    long = "".join(f"line {number} of it\n" for number in range(1_000))
    history = [Message.user("go"), *look(1, long), *look(2, long), *look(3, long + "and more")]
    sent = Sent(with_references).of(history)
    assert references_in(sent) == [4]
    assert "bytes left out" in results_in(sent)[0]
    assert sent[4].original is history[4]


@pytest.mark.parametrize("tools", [["short", "long"], ["long", "short"]])
def test_a_reference_never_shows_less_than_the_result_would(tools: list[str]) -> None:
    text = "".join(f"line {number} of it\n" for number in range(300))
    history = [Message.user("go")]
    for at, name in enumerate(tools):
        history += [Message.assistant(ToolCall(f"c{at}", name)), Message.tool(f"c{at}", text, name=name)]
    sent = Sent(lambda stack: with_references(stack, per_tool={"short": 1_000})).of(history)
    assert references_in(sent) == ([] if tools[0] == "short" else [4])
    assert text in results_in(sent)


TERSE = ["-" * 450, "=" * 500, " " * 600, "\n" * 420 + "x"]
"""Many characters in few tokens: a reference would not be smaller."""


@pytest.mark.parametrize("model", ["gpt-5", "claude-sonnet-4-5"])
def test_what_a_reference_would_not_make_smaller_stays_in_every_process(model: str) -> None:
    counter = EstimatingCounter.of("openai" if model.startswith("gpt") else "anthropic", model)

    def recipe(stack: ChatStack) -> ChatStack:
        return with_references(stack, counter=counter)

    running, history = Sent(recipe), [Message.user("go")]
    for number, text in enumerate([*TERSE, TEXTS[2], *TERSE, TEXTS[2]]):
        history += look(number, text)
        sent = running.of(history)
        assert sent == Sent(recipe).of(history)
    assert references_in(sent) == [20]
    assert running.capture.warnings == ()


@pytest.mark.parametrize("shapers", [1, 2])
def test_two_shapers_refer_once_and_learn_what_is_reported(shapers: int) -> None:
    def recipe(stack: ChatStack, *, deduplicate: bool) -> ChatStack:
        for at in range(shapers):
            stack = stack.use(named(f"shaper {at}", ToolResultShaper), deduplicate=deduplicate)
        return stack.use(ContextWindowGuard, max_context_tokens=6_000, prune_on_overflow=True)

    on = Sent(lambda stack: recipe(stack, deduplicate=True), Reporting(3))
    off = Sent(lambda stack: recipe(stack, deduplicate=False), Reporting(3))
    history = [Message.user("go")]
    for number in range(16):
        history += look(number, TEXTS[number % 2])
        sent = on.of(history)
        assert in_full_again(sent) == list(off.of(history))
    assert len(sent) < len(history)


def test_around_the_calls_of_another_framework_it_works_and_in_a_state_it_does_not() -> None:
    history = [Message.user("go"), *look(1, TEXTS[0]), *look(2, TEXTS[0])]
    model = ScriptedClient(["fine"])
    stack = with_references(ChatStack(model))
    asyncio.run(InPlace(stack, owner="an agent").send(ChatRequest(tuple(history), ChatOptions()), model.send))
    assert references_in(model.requests[-1].messages) == [4]
    capture = TelemetryCapture()
    manager = StackContextManager(stack, resolve=capture.resolve)
    state = AgentState(messages=history)
    assert asyncio.run(manager.atrim_context(state)) is state
    assert capture.warnings == ("layer_order",)


def test_cleared_and_recalled_it_is_given_back_in_full() -> None:
    @tool
    def show(at: int) -> str:
        """Show something."""
        return TEXTS[1]

    class Asking(ScriptedClient):
        """Looks twice, and recalls what it was referred to."""

        async def send(self, request: ChatRequest, /) -> ChatStream:
            results = results_in(request.messages)
            answers = [ToolCall("a", "show", '{"at": 1}'), ToolCall("b", "show", '{"at": 1}')]
            if len(results) == 2:
                handle = request.messages[-1].annotation.handles[0]  # type: ignore[union-attr]
                answers.append(ToolCall("c", "recall", f'{{"handle": "{handle}"}}'))
            self.answers = [Message.assistant(answers[len(results)]) if len(results) < 3 else Message.assistant("read")]
            return await super().send(request)

    running = Sent(lambda stack: with_references(stack.use(FunctionInvoker, tools=[show, recall_tool()])), Asking())
    running.of([Message.user("go")])
    results = results_in(running.model.requests[-1].messages)
    assert results[1].startswith(REFERENCE)
    assert results[2] == f"[page 1 of 1]\n{TEXTS[1]}"


def test_of_several_results_in_a_message_only_duplicates_go() -> None:
    calls = Message.assistant(*(ToolCall(f"c{at}", "look", f'{{"at": {at}}}') for at in range(4)))
    message = Message("tool", tuple(ToolResult(f"c{at}", "look", TEXTS[at % 3]) for at in range(4)))
    sent = Sent(with_references).of([Message.user("go"), calls, message])
    assert [is_reference(each) for each in sent[2].results] == [False, False, False, True]
    assert '({"at": 0})' in sent[2].results[3].text


def test_two_texts_of_one_hash_are_no_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "hash", lambda value: 1, raising=False)
    sent = Sent(with_references).of([Message.user("go"), *look(1, TEXTS[0]), *look(2, TEXTS[1]), *look(3, TEXTS[0])])
    assert references_in(sent) == [6]


@pytest.mark.parametrize("is_fresh", [False, True], ids=["the same objects", "fresh objects"])
def test_a_result_is_looked_at_once(monkeypatch: pytest.MonkeyPatch, is_fresh: bool) -> None:
    looked_at: list[str] = []

    def noted(message: Message, at: int) -> ToolResult:
        looked_at.append(message.results[at].call_id)
        return in_full(message, at)

    monkeypatch.setattr(references, "in_full", noted)
    running = Sent(lambda stack: with_references(stack, max_bytes=10_000))
    history = [Message.user("go")]
    for number in range(500):
        history += look(number, f"{number} " * 500)
    form: Callable[[Sequence[Message]], list[Message]] = decoded_again if is_fresh else list
    running.of(form(history))
    assert len(looked_at) == 500
    for number in range(500, 505):
        history += look(number, "7 " * 500)
        looked_at.clear()
        running.of(form(history))
        assert looked_at == [f"c{number}", "c7"]  # the new one, and the one that it equals


def test_of_many_results_at_once_each_is_looked_at_twice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []

    def noted(message: Message, at: int) -> ToolResult:
        looked_at.append(at)
        return in_full(message, at)

    monkeypatch.setattr(references, "in_full", noted)
    calls = Message.assistant(*(ToolCall(f"c{at}", "look", f'{{"at": {at}}}') for at in range(400)))
    results = Message("tool", tuple(ToolResult(f"c{at}", "look", f"{at % 200} {TEXTS[1]}") for at in range(400)))
    sent = Sent(with_references).of([Message.user("go"), calls, results])
    assert sum(map(is_reference, sent[2].results)) == 200
    assert len(looked_at) == 600


def test_it_tells_of_new_duplicates_and_of_those_that_were_there_once() -> None:
    running = Sent(lambda stack: BEHIND["clearer"](with_references(stack)))
    history = [Message.user("go"), *look(0, TEXTS[0]), *look(1, TEXTS[0]), Message.assistant("so"), Message.user("on")]
    for number in range(2, 14):
        running.of(history, conversation_id="c")
        history += look(number, TEXTS[0])
    told: list[dict[str, Any]] = [
        dict(span.attributes) for span in running.capture.spans if "refer_to_duplicates" in span.name
    ]
    counts = [each["chatstack.compaction.tool_results_deduplicated"] for each in told]
    assert counts[:3] == [1, 1, 1]
    assert all(each["chatstack.compaction.tokens_after"] < each["chatstack.compaction.tokens_before"] for each in told)
    assert sum("were there already" in str(log.body) for log in running.capture.logs) == 1
    assert running.capture.warnings == ()


def test_duplicates_that_are_known_are_not_told_of_again_after_an_edit_of_others() -> None:
    running = Sent(lambda stack: with_references(stack).use(Truncate, max_tokens=3_000))
    history, news = [Message.user("go")], 0
    for number in range(100):
        history += look(number, f"{number} {TEXTS[2]}" if number % 2 else TEXTS[0])
        sent = running.of(history)
        news += is_reference(sent[-1].results[0])
    told = [span.name for span in running.capture.spans if span.name.startswith("compact_context")]
    assert told.count("compact_context truncate") > 4
    assert told.count("compact_context refer_to_duplicates") == news > 4


def test_sizes_of_references_are_scaled_as_those_of_other_edits_and_counted_once() -> None:
    running = Sent(lambda stack: with_references(stack).use(Truncate, max_tokens=9_000), Reporting(3))
    history, news = [Message.user("go")], 0
    for number in range(60):
        history += look(number, f"{number} {TEXTS[2]}" if number % 2 else TEXTS[0])
        sent = running.of(history)
        news += is_reference(sent[-1].results[0])
    told = [(span.name, dict(span.attributes)) for span in running.capture.spans if span.name.startswith("compact_")]
    numbers: list[dict[str, Any]] = [each for name, each in told if "refer_to" in name]
    edits: list[dict[str, Any]] = [each for name, each in told if "truncate" in name]
    assert sum(each["chatstack.compaction.tool_results_deduplicated"] for each in numbers) == news > 10
    most = max(each["chatstack.compaction.tokens_before"] for each in numbers)
    assert most > 0.6 * max(each["chatstack.compaction.tokens_before"] for each in edits)


def test_without_a_duplicate_a_guard_learns_from_refusals_as_without_the_option() -> None:
    class Small(ScriptedClient):
        async def send(self, request: ChatRequest, /) -> ChatStream:
            size = sum(map(size_of, request.messages))
            if size > 2_000:
                self.requests.append(request)
                raise ContextOverflowError(actual=size * 2, limit=4_000)
            return await super().send(request)

    sent = []
    for recipe in (with_references, without):
        running = Sent(
            lambda stack: recipe(stack).use(ContextWindowGuard, max_context_tokens=9_000, prune_on_overflow=True),  # noqa: B023
            Small(["fine"]),
        )
        history = [
            Message.user("go"),
            *(each for number in range(30, 60) for each in look(number, f"{number} {TEXTS[2]}")),
        ]
        for number in range(30):
            history += look(number, f"{number} {TEXTS[number % 3]}")
            running.of(history)
        sent.append([request.messages for request in running.model.requests])
    assert sent[0] == sent[1]
    assert len(sent[0]) > 30


def test_a_refusal_that_tells_sizes_is_not_of_what_a_guard_has_weighed() -> None:
    class Small(ScriptedClient):
        async def send(self, request: ChatRequest, /) -> ChatStream:
            if not self.requests:
                self.requests.append(request)
                raise ContextOverflowError(actual=4_100, limit=4_000)
            return await super().send(request)

    services = ContextServices(calibration=Calibration())
    guard = ContextWindowGuard(
        Small(["fine"]), max_context_tokens=100_000, prune_on_overflow=True, counter=CharCounter(), services=services
    )
    client = ToolResultShaper(guard, max_bytes=100_000, deduplicate=True, counter=CharCounter(), services=services)
    text = "grey " * 3_200
    history = [Message.user("go"), *look(1, text), *look(2, text)]
    asyncio.run(client.get_response(history))
    assert repr(services.calibration) == "Calibration(1 learnt)"
    assert services.calibration.factor(ScriptedClient().info.model, CharCounter()) == 1.0


def test_where_the_provider_clears_on_its_side_nothing_is_referred_to() -> None:
    history = [Message.user("go"), *look(1, TEXTS[0]), *look(2, TEXTS[0])]
    running = Sent(with_references)
    for options in (
        ChatOptions(native_edits=(NativeClearing(trigger_tokens=1_000),)),
        ChatOptions(extra={"context_management": {"edits": ["clear_tool_uses"]}}),
        ChatOptions(extra={"truncation": "auto"}),
    ):
        assert running.of(history, options=options) == tuple(history)
    assert len(references_in(running.of(history))) == 1


class Plain(ChatFronts):
    """A layer of somebody else's, that changes nothing."""

    def __init__(self, inner: ChatClient) -> None:
        self.inner = inner

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request)


APART: dict[str, tuple[Recipe, str]] = {
    "a guard behind somebody else's layer": (lambda stack: BEHIND["guard"](stack.use(Plain)), "ContextWindowGuard"),
    "a fallback": (lambda stack: stack.use(Fallback, clients=[ScriptedClient()]), "Fallback"),
    "a guard with a memory of its own": (
        lambda stack: stack.use(
            ContextWindowGuard, max_context_tokens=9_000, services=ContextServices(memory=ContextMemory())
        ),
        "ContextWindowGuard",
    ),
}


@pytest.mark.parametrize(("behind", "which"), APART.values(), ids=APART)
def test_where_others_may_edit_after_it_nothing_is_referred_to_and_that_is_said(behind: Recipe, which: str) -> None:
    history = [Message.user("go"), *look(1, TEXTS[0]), *look(2, TEXTS[0])]
    running = Sent(lambda stack: behind(BEHIND["clearer"](with_references(stack))))
    for _ in range(2):
        assert running.of(history) == tuple(history)
    assert running.capture.warnings == ("layer_order",)
    assert f"deduplicate=True does nothing: {which} may edit the request after that" in str(
        running.capture.logs[0].body
    )


@pytest.mark.parametrize("order", ["alone", "before somebody else's layer", "behind one"])
def test_where_nobody_edits_after_it_nothing_is_said(order: str) -> None:
    def recipe(stack: ChatStack) -> ChatStack:
        stack = with_references(stack.use(Plain) if order == "behind one" else stack)
        stack = stack if order == "alone" else BEHIND["clearer, summarizer, guard"](stack)
        return stack.use(Plain) if order.startswith("before") else stack

    running = Sent(recipe)
    history = [Message.user("go"), *look(1, TEXTS[0]), *look(2, TEXTS[0])]
    assert references_in(running.of(history)) == [4]
    assert running.capture.warnings == ()


def test_a_refusal_takes_the_references_of_what_goes_along() -> None:
    """A request is refused as too long: what the guard sends next is whole where its original has gone."""

    class Small(ScriptedClient):
        async def send(self, request: ChatRequest, /) -> ChatStream:
            if sum(len(each) for each in results_in(request.messages)) > 2_000:
                self.requests.append(request)
                raise ContextOverflowError
            return await super().send(request)

    running = Sent(
        lambda stack: with_references(stack).use(
            ContextWindowGuard, max_context_tokens=100_000, prune_on_overflow=True
        ),
        Small(["fine"]),
    )
    history = [Message.user("go"), *look(1, TEXTS[1]), *look(2, TEXTS[0]), *look(3, TEXTS[2]), *look(4, TEXTS[0])]
    sent = running.of(history)
    assert len(running.model.requests) > 1
    assert references_in(running.model.requests[0].messages) == [8]
    assert len(sent) < len(history)
    assert_originals_stand_before(sent)


def test_what_is_kept_for_it_is_given_back_with_the_conversation() -> None:
    held = []
    for recipe in (with_references, without):
        running = Sent(lambda stack: BEHIND["guard"](recipe(stack)))  # noqa: B023
        history = [Message.user("go")]
        for number in range(40):
            history += look(number, f"{number // 2} {TEXTS[number % 3]}")
            running.of(history, conversation_id="c")
        held.append(running.memory.held_bytes)
        running.memory.forget(conversation_id="c")
        held.append(running.memory.held_bytes)
    assert 7_000 < held[0] - held[2] < 8_500
    assert held[1] == held[3]


@pytest.mark.slow
def test_every_process_sends_the_same() -> None:
    """Texts are found by a hash that differs in each process."""
    program = (
        "import asyncio\n"
        "from chatstack.layers.shaper import ToolResultShaper\n"
        "from chatstack.testing import ScriptedClient\n"
        "from tests.layers.test_duplicates import TEXTS, look\n"
        "from chatstack import Message\n"
        "model = ScriptedClient(['fine'])\n"
        "history = [Message.user('go'), *look(1, TEXTS[0]), *look(2, TEXTS[1]), *look(3, TEXTS[0])]\n"
        "asyncio.run(ToolResultShaper(model, deduplicate=True).get_response(history))\n"
        "print(repr(model.requests[0].messages))\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.getcwd()},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert REFERENCE.encode() in said.pop()


def test_conversations_at_once_are_sent_as_each_alone() -> None:
    running = Sent(lambda stack: BEHIND["clearer"](with_references(stack)))
    histories = [
        [Message.user(f"go {who % 5}"), *look(who, TEXTS[who % 3]), *look(who + 1, TEXTS[0])] for who in range(60)
    ]

    async def all_of_them() -> None:
        await asyncio.gather(*(running.client.get_response(each) for each in histories))

    asyncio.run(all_of_them())
    sent = {request.messages for request in running.model.requests}
    alone = {Sent(lambda stack: BEHIND["clearer"](with_references(stack))).of(each) for each in histories}
    assert sent == alone


def test_a_branch_refers_to_what_it_holds_itself() -> None:
    memory = ContextMemory(clock=lambda: 0.0)
    model = ScriptedClient(["fine"])
    client = with_references(ChatStack(model, memory=memory)).build()
    history = [Message.user("go"), *look(1, TEXTS[0]), *look(2, TEXTS[1]), *look(3, TEXTS[0])]
    for branch in (history, [*history[:1], *history[3:]], [*history[:3], Message.user("or"), *look(4, TEXTS[0])]):
        asyncio.run(client.get_response(branch, conversation_id="c"))
    assert [references_in(request.messages) for request in model.requests] == [[6], [], [5]]
