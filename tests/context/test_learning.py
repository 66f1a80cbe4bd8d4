"""What a report teaches: the next estimate of that conversation, and of that model; and what teaches nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack import (
    BrokenStreamError,
    CharCounter,
    ChatClient,
    ChatFronts,
    ChatOptions,
    ChatRequest,
    ChatStack,
    ChatStream,
    ChatUpdate,
    ClearThenDrop,
    ContextMemory,
    ContextWindowGuard,
    FunctionInvoker,
    Message,
    OutputSchema,
    ProviderInfo,
    ProviderItem,
    Summarizer,
    TableCounter,
    TokenCounter,
    ToolCall,
    ToolDeclaration,
    ToolResultClearer,
    Truncate,
    Usage,
    named,
)
from chatstack.context.histories.last_reports import all_reports
from chatstack.context.requests.services import ContextServices
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.tracer import ModelTracer
from chatstack.testing import ScriptedClient, TelemetryCapture
from chatstack.tokens.calibration import Calibration
from chatstack.tokens.counter import char_counter
from tests.histories import PROPERTY, decoded_again

COUNTER = CharCounter()
MAKE = (Message.user, Message.assistant)


def talk(messages: int = 9, start: str = "") -> list[Message]:
    """User and assistant in turn, 100 tokens each, no two of them equal."""
    return [MAKE[number % 2](f"{start}{number} ".ljust(384, "x")) for number in range(messages)]


def size(messages: Sequence[Message], counter: TokenCounter = COUNTER) -> int:
    return sum(map(counter.count_message, messages))


class Reporting(ChatFronts):
    """A provider that reports what it is told to, for each request; ``pace`` is awaited before the answer ends."""

    def __init__(self, report: Callable[[ChatRequest], Usage]) -> None:
        self.report = report
        self.answer = Message.assistant("fine")
        self.info = ProviderInfo(name="reporting", model="m")
        self.requests: list[ChatRequest] = []
        self.pace: Callable[[ChatRequest], Any] | None = None
        self.breaks = False

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.requests.append(request)
        return await ChatStream.primed(self._answer(request))

    async def _answer(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        yield ChatUpdate(text="fine")
        if self.pace is not None:
            await self.pace(request)
        yield ChatUpdate(message_done=self.answer, usage=self.report(request), finish_reason="stop")
        if self.breaks:
            raise BrokenStreamError("cut")


def times(weight: float) -> Callable[[ChatRequest], Usage]:
    """Reports that many times what the default counter counts of the messages."""
    return lambda request: Usage(round(weight * size(request.messages)), 7)


class Weighed:
    """A guard that tells the size of every request, and does nothing about it."""

    def __init__(
        self,
        report: Callable[[ChatRequest], Usage],
        *layers: Callable[[ChatClient], ChatClient],
        services: Mapping[type, object] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        self.provider = Reporting(report)
        self.capture = TelemetryCapture()
        options = {"max_context_tokens": 1_000_000, "warning_threshold": 1e-9, "every_call": True, **options}
        stack = ChatStack(self.provider).use(ContextWindowGuard, **options)
        for layer in layers:
            stack = stack.use(layer)
        self.client = stack.build({Telemetry: self.capture.telemetry, **services}.get)

    @property
    def sizes(self) -> list[int]:
        """The size of each request, as it was told."""
        told = (span.attributes.get("chatstack.context.input_tokens") for span in self.capture.spans)
        return [each for each in told if isinstance(each, int)]

    def ask(self, messages: Sequence[Message], conversation_id: str | None = None, **options: Any) -> int:
        """What the request was taken to be, before it was answered."""
        given = ChatOptions(**options)
        asyncio.run(self.client.get_response(messages, options=given, conversation_id=conversation_id))
        return self.sizes[-1]


# The very request


@pytest.mark.parametrize("weight", [0.3, 0.9, 1.0, 1.7, 3.9])
@pytest.mark.parametrize("fresh", [False, True], ids=["same objects", "fresh objects"])
def test_what_was_reported_for_the_beginning_is_taken_exactly_and_only_the_rest_is_estimated(
    weight: float, fresh: bool
) -> None:
    weighed = Weighed(times(weight))
    assert weighed.ask(talk(9)) == 900
    for length in (9, 11, 15, 16):
        before = round(weight * size(weighed.provider.requests[-1].messages))
        grown = len(weighed.provider.requests[-1].messages)
        messages = decoded_again(talk(length)) if fresh else talk(length)
        assert weighed.ask(messages) == before + 100 * (length - grown)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_streams_teach_the_same(stream: bool) -> None:
    weighed = Weighed(times(1.5))

    async def ask() -> None:
        if stream:
            async for _ in weighed.client.get_streaming_response(talk()):
                pass
        else:
            await weighed.client.get_response(talk())

    asyncio.run(ask())
    asyncio.run(ask())
    assert weighed.sizes == [900, 1_350]


class ByScript(CharCounter):
    """One token for each Chinese character; seven characters of JSON are one."""

    def count_text(self, text: str) -> int:
        return len(text) if not text.isascii() else len(text) // 7


@pytest.mark.parametrize(
    ("text", "too"),
    [
        ("上海浦东国际机场今天的航班延误了两个小时" * 40, "low"),
        ('{"id": 17, "at": "2026-11-22", "ok": true}' * 40, "high"),
    ],
    ids=["Chinese", "JSON"],
)
def test_estimates_far_too_low_and_too_high_are_put_right(text: str, too: str) -> None:
    truth = ByScript()
    weighed = Weighed(lambda request: Usage(size(request.messages, truth)), counter=TableCounter())
    history = [Message.user(text)]
    true = size(history, truth)
    first = weighed.ask(history)
    assert first < true / 3 if too == "low" else first > true * 1.5
    assert weighed.ask(history) == true
    assert weighed.ask([*history, Message.assistant("fine"), Message.user("more")]) == pytest.approx(true, rel=0.05)


def test_a_model_is_known_better_in_other_conversations_too() -> None:
    weighed = Weighed(times(2.0))
    for number in range(20):
        weighed.ask(talk(61, f"{number} "))
    assert weighed.ask(talk(61, "a new one ")) == pytest.approx(12_200, rel=0.1)
    assert weighed.ask(talk(61, "a new one "), model="another") == 6_100


LIMIT = 9_000
"""Above what a conversation of 61 messages is estimated at, below twice that."""
EDITORS: dict[str, Callable[[ChatStack], ChatStack]] = {
    "guard": lambda stack: stack.use(ContextWindowGuard, max_context_tokens=LIMIT, prune_on_overflow=True),
    "strict guard": lambda stack: stack.use(ContextWindowGuard, max_context_tokens=LIMIT, strict=True),
    "clear then drop": lambda stack: stack.use(ClearThenDrop(LIMIT, before_limit="never")),
    "truncate": lambda stack: stack.use(Truncate, max_tokens=LIMIT),
    "summarizer": lambda stack: stack.use(Summarizer, max_tokens=LIMIT, summary_client=ScriptedClient(["short"])),
    "clearer": lambda stack: stack.use(ToolResultClearer, trigger={"tokens": LIMIT}, keep={"messages": 0}),
}


@pytest.mark.parametrize("editor", EDITORS.values(), ids=EDITORS)
def test_what_other_conversations_taught_edits_none(editor: Callable[[ChatStack], ChatStack]) -> None:
    """Each is sent as if it were alone; in its own next turn, what was reported for it counts."""
    provider, capture, calibration = Reporting(times(2.0)), TelemetryCapture(), Calibration()
    client = editor(ChatStack(provider)).build(
        lambda kind: calibration if kind is Calibration else capture.resolve(kind)
    )
    for number in range(5):
        asyncio.run(client.get_response(talk(31, f"{number} ")))
    assert calibration.factor("m", char_counter(4)) > 1.2
    new = [Message.user("look"), *looked(), *talk(61, "new ")]
    asyncio.run(client.get_response(new))
    assert provider.requests[-1].messages == tuple(new)
    assert [span for span in capture.spans if span.name.startswith("compact_context")] == []


def looked() -> list[Message]:
    """A call and a long result."""
    return [
        Message.assistant("", ToolCall("a", "look")),
        Message.tool("a", "x" * 4_000),
        Message.assistant("seen"),
    ]


def test_a_pruning_guard_tells_that_a_request_may_not_fit_by_what_others_taught() -> None:
    weighed = Weighed(
        times(2.0), max_context_tokens=LIMIT, prune_on_overflow=True, warning_threshold=0.9, every_call=False
    )
    for number in range(5):
        asyncio.run(weighed.client.get_response(talk(31, f"{number} ")))
    before = weighed.capture.warnings
    assert before == ()
    asyncio.run(weighed.client.get_response(talk(61, "new ")))
    assert weighed.capture.warnings == ("context_window_near_limit",)
    assert len(weighed.provider.requests[-1].messages) == 61
    (told,) = [span for span in weighed.capture.spans if "chatstack.warning.code" in span.attributes]
    assert str(told.attributes["chatstack.warning.message"]).startswith("may not fit at 1")


# What teaches nothing


@pytest.mark.parametrize("usage", [Usage(0, 5), Usage(901 * 4, 5), Usage(224, 5), Usage()], ids=repr)
def test_reports_that_cannot_be_of_this_request_are_ignored(usage: Usage) -> None:
    weighed = Weighed(lambda request: usage)
    assert [weighed.ask(talk()), weighed.ask(talk())] == [900, 900]


@pytest.mark.parametrize("reported", [225, 3_600])
def test_four_times_is_still_believed(reported: int) -> None:
    weighed = Weighed(lambda request: Usage(reported, 5))
    assert [weighed.ask(talk()), weighed.ask(talk())] == [900, reported]


@pytest.mark.parametrize("output", [1, 2_000, 1_000_000])
def test_what_the_model_wrote_moves_nothing(output: int) -> None:
    def estimates(output: int) -> list[int]:
        weighed = Weighed(lambda request: Usage(4_000, output, reasoning_tokens=output))
        return [weighed.ask(talk(31)), weighed.ask(talk(31)), weighed.ask(talk(31, "another "))]

    assert estimates(output) == estimates(0)
    assert estimates(output)[:2] == [3_100, 4_000]


def test_what_came_from_the_cache_is_input_like_any_other() -> None:
    weighed = Weighed(lambda request: Usage(1_200, 5, cache_read_tokens=1_100, cache_write_tokens=50))
    assert [weighed.ask(talk()), weighed.ask(talk())] == [900, 1_200]


@dataclass(frozen=True)
class Rewriter(ChatFronts):
    """Changes what is sent."""

    inner: ChatClient
    change: Callable[[ChatRequest], ChatRequest]

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(self.change(request))


@pytest.mark.parametrize(
    "change",
    [
        lambda request: request.but(messages=request.messages[-5:]),
        lambda request: request.but(messages=(Message.system("s" * 800), *request.messages)),
        lambda request: request.but(options=request.options.but(instructions="i" * 800)),
    ],
    ids=["drops", "adds", "instructs"],
)
def test_a_request_that_somebody_further_in_has_changed_is_another(
    change: Callable[[ChatRequest], ChatRequest],
) -> None:
    weighed = Weighed(times(1.5), lambda inner: Rewriter(inner, change))
    assert [weighed.ask(talk(40)), weighed.ask(talk(40))] == [4_000, 4_000]
    assert weighed.ask(talk(40, "other ")) == 4_000


def test_a_layer_that_changes_nothing_is_not_in_the_way() -> None:
    weighed = Weighed(times(1.5), lambda inner: Rewriter(inner, lambda request: request.but(conversation_id="other")))
    assert [weighed.ask(talk()), weighed.ask(talk())] == [900, 1_350]


def test_what_a_guard_further_in_has_pruned_is_no_report_of_the_whole() -> None:
    capture = TelemetryCapture()
    provider = Reporting(times(1.5))
    stack = ChatStack(provider).use(
        ContextWindowGuard, max_context_tokens=1_000_000, warning_threshold=1e-9, every_call=True
    )
    client = stack.use(
        named("inner", ContextWindowGuard), max_context_tokens=2_000, prune_on_overflow=True, warning_threshold=1
    ).build(capture.resolve)

    def told(code: str) -> list[object]:
        told = [span for span in capture.spans if span.attributes.get("chatstack.warning.code") == code]
        spans = [span for span in told if span.attributes["chatstack.context.window_tokens"] == 1_000_000]
        return [span.attributes["chatstack.context.input_tokens"] for span in spans]

    for _ in range(2):
        asyncio.run(client.get_response(talk(40)))
    assert size(provider.requests[-1].messages) <= 2_000
    # The inner one has sent 2,000 tokens or fewer: nothing is learnt of the model from that, either.
    assert told("context_window_near_limit") == [4_000, 4_000]


def test_the_sum_of_several_rounds_is_no_report_of_the_first() -> None:
    def look() -> str:
        """Look."""
        return "sunny"

    provider, capture = ScriptedClient([Message.assistant(ToolCall("c", "look")), "fine"]), TelemetryCapture()
    loop = FunctionInvoker(ModelTracer(provider), tools=[look], telemetry=capture.telemetry)
    guard = ContextWindowGuard(
        loop,
        max_context_tokens=10**6,
        warning_threshold=1e-9,
        every_call=True,
        services=ContextServices(telemetry=capture.telemetry),
    )
    for _ in range(2):
        provider.requests.clear()
        asyncio.run(guard.get_response(talk()))
        assert len(provider.requests) == 2
    spans = capture.spans_named("context_guard")
    assert [span.attributes["chatstack.context.input_tokens"] for span in spans] == [900, 900]


def items(*fields: dict[str, Any]) -> Message:
    return Message.assistant("fine", *(ProviderItem("theirs", json.dumps(each)) for each in fields))


SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
SHELL = {"type": "shell_call", "id": "i1", "call_id": "c1", "action": {}}


@pytest.mark.parametrize(
    "answer",
    [
        items(SEARCH, {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}),
        items({"type": "bash_code_execution_tool_result", "tool_use_id": "s0", "content": {}}),
        items({"type": "mcp_tool_use", "id": "m1"}, {"type": "mcp_tool_result", "tool_use_id": "m1", "content": []}),
        items({"type": "web_search_call", "id": "i1", "status": "completed"}),
        items({"type": "mcp_call", "id": "i1", "approval_request_id": None, "output": "sunny"}),
        items(SHELL, {"type": "shell_call_output", "call_id": "c1", "output": []}),
        items({"executableCode": {"code": "1"}}, {"codeExecutionResult": {"outcome": "OUTCOME_OK"}}),
    ],
    ids=["search", "after a pause", "MCP", "Responses", "MCP of Responses", "shell", "Gemini"],
)
def test_the_sum_of_all_passes_between_which_the_server_ran_tools_is_no_report_of_the_request(answer: Message) -> None:
    weighed = Weighed(times(3.0))
    weighed.provider.answer = answer
    assert [weighed.ask(talk(40)), weighed.ask(talk(40))] == [4_000, 4_000]
    assert weighed.ask(talk(40, "other ")) == 4_000


@pytest.mark.parametrize(
    "answer",
    [
        items(SEARCH),
        items(SHELL),
        items({"type": "computer_call", "id": "i1", "call_id": "c1", "action": {}}),
        items({"type": "mcp_approval_request", "id": "a1", "name": "pay"}),
        items({"type": "mcp_list_tools", "id": "l1", "tools": []}),
        items({"executableCode": {"code": "1"}}),
    ],
    ids=["paused", "caller's shell", "caller's computer", "approval", "tools", "Gemini"],
)
def test_a_call_without_its_result_has_read_the_request_once(answer: Message) -> None:
    weighed = Weighed(times(1.5))
    weighed.provider.answer = answer
    assert [weighed.ask(talk()), weighed.ask(talk())] == [900, 1_350]


def test_where_nobody_tells_what_reached_the_provider_nothing_is_learnt() -> None:
    capture = TelemetryCapture()
    guard = ContextWindowGuard(
        Reporting(times(1.5)),
        max_context_tokens=10**6,
        warning_threshold=1e-9,
        every_call=True,
        services=ContextServices(telemetry=capture.telemetry),
    )
    for _ in range(2):
        asyncio.run(guard.get_response(talk()))
    spans = capture.spans_named("context_guard")
    assert [span.attributes["chatstack.context.input_tokens"] for span in spans] == [900, 900]


TOOL = ToolDeclaration("look", "", "{}")
OTHER_TOOL = ToolDeclaration("take", "", "{}")
SCHEMA = OutputSchema("n", '{"type":"object"}')


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({}, {"model": "another"}),
        ({"tools": (TOOL,)}, {"tools": (OTHER_TOOL,)}),
        ({}, {"tools": (TOOL,)}),
        ({"tools": (TOOL,)}, {}),
        ({"instructions": "Be brief."}, {"instructions": "Be quick."}),
        ({}, {"output_schema": SCHEMA}),
    ],
    ids=["model", "other tools", "tools", "no tools", "instructions", "schema"],
)
def test_what_goes_along_is_part_of_what_was_reported(first: dict[str, Any], then: dict[str, Any]) -> None:
    weighed, unlearnt = Weighed(times(2.0)), Weighed(times(1.0))
    weighed.ask(talk(), **first)
    assert weighed.ask(talk(), **then) == unlearnt.ask(talk(), **then)
    assert weighed.ask(talk(), **then) > 1_700


@pytest.mark.parametrize("systems", [["be brief"], [], ["be quick", "be kind"]], ids=repr)
def test_other_system_messages_make_another_request(systems: list[str]) -> None:
    weighed, unlearnt = Weighed(times(2.0)), Weighed(times(1.0))
    weighed.ask([Message.system("be quick"), *talk()])
    then = [*map(Message.system, systems), *talk()]
    assert weighed.ask(then) == unlearnt.ask(then)


@pytest.mark.parametrize("count", [8, 9])
def test_in_one_conversation_a_report_under_another_system_prompt_is_better_than_none(count: int) -> None:
    """Facts that are looked up for each question stand there. Under other tools it says nothing, as before."""
    changing, steady, unlearnt = Weighed(times(2.0)), Weighed(times(2.0)), Weighed(times(1.0))
    for number, fact in enumerate(("likes trains", "hates boats", "walks a lot")):
        messages = [Message.system(f"The user {fact}."), *talk(count + number)]
        same = [Message.system("The user likes trains."[: len(messages[0].text)]), *talk(count + number)]
        assert abs(changing.ask(messages, "c") - steady.ask(same, "c")) <= 2
    messages.append(Message.user("more ".ljust(384, "x")))
    assert changing.ask(messages, "c") > 2_000
    assert changing.ask(messages, "c", tools=(TOOL,)) == unlearnt.ask(messages, "c", tools=(TOOL,))


def test_another_branch_of_a_conversation_is_another_request() -> None:
    weighed = Weighed(times(2.0))
    weighed.ask(talk(9))
    assert weighed.ask([*talk(8), Message.user("otherwise ".ljust(384, "x"))]) == 900


def test_a_shorter_beginning_of_a_conversation_is_another_request() -> None:
    weighed = Weighed(times(2.0))
    weighed.ask(talk(9))
    assert weighed.ask(talk(7)) == 700


# Edits


@pytest.mark.parametrize("weight", [0.7, 1.5])
def test_after_an_edit_it_goes_by_the_report_of_what_was_sent_and_not_by_an_older_one(weight: float) -> None:
    limit = round(3_000 * weight)
    weighed = Weighed(times(weight), max_context_tokens=limit, prune_on_overflow=True)
    for length in (19, 37, 38, 40):
        weighed.ask(talk(length))
    lengths = [len(each.messages) for each in weighed.provider.requests]
    assert lengths[0] == 19
    assert lengths[1] < 30
    assert lengths[1:] == [lengths[1], lengths[1] + 1, lengths[1] + 3]
    reports = [round(weight * 100 * length) for length in lengths]
    low, high = 100 * min(1, weight), 100 * max(1, weight)
    assert reports[1] + low <= weighed.sizes[-2] <= reports[1] + high + 1
    assert reports[2] + 2 * low <= weighed.sizes[-1] <= reports[2] + 2 * high + 1


def test_a_report_of_the_whole_says_nothing_of_what_is_left_after_an_edit() -> None:
    weighed = Weighed(times(1.5), max_context_tokens=4_500, prune_on_overflow=True)
    weighed.ask(talk(19))
    weighed.provider.breaks = True
    with pytest.raises(BrokenStreamError):
        weighed.ask(talk(37))
    weighed.provider.breaks = False
    assert weighed.ask(talk(39)) == size(weighed.provider.requests[-1].messages) < 3_700


# Answers that do not come to their end


@pytest.mark.parametrize("how", ["dropped", "closed", "broken", "cancelled"])
def test_an_answer_that_does_not_end_teaches_nothing(how: str) -> None:
    weighed = Weighed(times(1.5))
    provider = weighed.provider

    async def ask() -> None:
        if how == "cancelled":
            provider.pace = lambda request: asyncio.Event().wait()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await weighed.client.get_response(talk())
        elif how == "broken":
            provider.breaks = True
            with pytest.raises(BrokenStreamError):
                await weighed.client.get_response(talk())
        else:
            stream = await weighed.client.send(ChatRequest(tuple(talk()), stream=True))
            while (await anext(stream)).message_done is None:
                pass
            if how == "closed":
                await stream.aclose()
            del stream

    asyncio.run(ask())
    provider.pace, provider.breaks = None, False
    assert [weighed.ask(talk()), weighed.ask(talk())] == [900, 1_350]


@pytest.mark.parametrize("slow", [9, 11])
def test_of_two_calls_at_the_same_time_the_later_request_counts_whichever_ends_last(slow: int) -> None:
    weighed = Weighed(times(1.5))

    async def both() -> None:
        ended = asyncio.Event()

        async def pace(request: ChatRequest) -> None:
            if len(request.messages) == slow:
                await ended.wait()

        weighed.provider.pace = pace
        waiting = asyncio.ensure_future(weighed.client.get_response(talk(slow)))
        await asyncio.sleep(0)
        await weighed.client.get_response(talk(20 - slow))
        ended.set()
        await waiting

    asyncio.run(both())
    weighed.provider.pace = None
    assert weighed.ask(talk(13)) == pytest.approx(1_650 + 200, abs=1)


# For ever


@PROPERTY
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 20_000), st.integers(0, 3)), min_size=1, max_size=12),
    st.integers(0, 500),
)
def test_whatever_is_reported_a_size_is_never_negative_nor_below_what_is_reserved(
    calls: list[tuple[int, int, int]], reserved: int
) -> None:
    reports = iter([reported for _, reported, _ in calls])
    weighed = Weighed(lambda request: Usage(next(reports), 5))
    for length, _, start in calls:
        told = weighed.ask(talk(length, f"{start} "), max_tokens=reserved)
        assert told >= reserved + length * 100 / 4.01


@pytest.mark.slow
def test_what_is_learnt_is_bounded_however_many_terms_and_conversations_there_are() -> None:
    memory, calibration = ContextMemory(max_messages=100), Calibration()
    weighed = Weighed(times(1.5), services={ContextMemory: memory, Calibration: calibration})

    async def ask() -> None:
        for reserve in range(300):
            await weighed.client.get_response(talk(), options=ChatOptions(max_tokens=reserve))
        assert 0 < len(all_reports(memory.recognise(talk()).conversation.reports)) <= 64
        for number in range(20):
            await weighed.client.get_response(talk(9, f"{number} "))
        for number in range(300):
            await weighed.client.get_response(talk(31), options=ChatOptions(model=f"model-{number}"))

    asyncio.run(ask())
    assert weighed.ask(talk(), max_tokens=299) == 900 + 299
    assert repr(calibration) == "Calibration(256 learnt)"
