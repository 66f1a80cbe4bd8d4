"""The layer that clears: its options, what it says, and how rarely it edits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import pytest

from chatstack import (
    ChatOptions,
    ChatRequest,
    ChatStack,
    ContextMemory,
    ContextWindowGuard,
    Message,
    ProviderInfo,
    ServerError,
    ToolCall,
    ToolResultClearer,
    Usage,
    WiringError,
    find,
)
from chatstack.client.stream import ChatStream
from chatstack.context.histories import digests
from chatstack.context.histories import history as history_module
from chatstack.testing import CapturedSpan, ScriptedClient, TelemetryCapture
from chatstack.tokens.counter import TokenCounter
from chatstack.values.responses import ChatUpdate
from tests.context.strictness import size
from tests.context.test_pruning_properties import CountingCounter
from tests.histories import decoded_again

EDIT = "compact_context clear_tool_results"
LONG = "sun and rain " * 40
TASK = Message.user("task")


def call(number: int, output: str = LONG) -> list[Message]:
    """A round of 150 tokens."""
    asked = Message.assistant("", ToolCall(f"c{number}", "look", f'{{"n": {number}}}'))
    return [asked, Message.tool(f"c{number}", f"{number} {output}", name="look")]


def rounds(count: int, output: str = LONG) -> list[Message]:
    return [message for number in range(count) for message in call(number, output)]


class Cleared:
    """A clearer around a script, and all that it said."""

    def __init__(
        self,
        *,
        provider: ScriptedClient | None = None,
        memory: ContextMemory | None = None,
        guard: int = 0,
        **options: Any,
    ) -> None:
        self.provider = provider or ScriptedClient(["ok"])
        self.capture = TelemetryCapture()
        stack = ChatStack(self.provider, memory=memory or ContextMemory())
        stack = stack.use(ToolResultClearer, **options)
        if guard:
            stack = stack.use(ContextWindowGuard, max_context_tokens=guard, prune_on_overflow=True)
        self.client = stack.build(self.capture.resolve)

    def send(self, messages: Sequence[Message], **options: Any) -> list[Message]:
        asyncio.run(self.client.get_response(messages, **options))
        return list(self.provider.requests[-1].messages)

    @property
    def edits(self) -> int:
        return sum(span.attributes.get("chatstack.severity") == "INFO" for span in self.spans)

    @property
    def spans(self) -> tuple[CapturedSpan, ...]:
        return self.capture.spans_named(EDIT)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.capture.warnings


def texts(messages: Sequence[Message]) -> list[str]:
    """What stands in the results: "-" for what was cleared, the number of the call for what was not."""
    return [
        "-" if result.text == "[cleared]" else result.text.split(" ")[0]
        for message in messages
        for result in message.results
    ]


# C1: options

ONE_OF = 'exactly one of {"tokens": n}, {"messages": n} and {"fraction": x}'


@pytest.mark.parametrize(
    ("options", "parameter", "said"),
    [
        ({name: bad}, name, f"{name}={bad!r} must be {ONE_OF}")
        for name in ("trigger", "keep")
        for bad in ({}, {"tokens": 5, "messages": 3}, {"token": 5}, 100_000, None, "tokens", {3: 4})
    ]
    + [
        ({"trigger": {kind: bad}}, f"trigger.{kind}", f"trigger.{kind}={bad!r} must be a whole number, at least 1")
        for kind in ("tokens", "messages")
        for bad in (0, -1, 1.5, True, "5", None)
    ]
    + [
        ({"keep": {kind: bad}}, f"keep.{kind}", f"keep.{kind}={bad!r} must be a whole number, at least 0")
        for kind in ("tokens", "messages")
        for bad in (-1, 1.5, False, "5", None)
    ]
    + [
        (
            {"trigger": {"fraction": bad}},
            "trigger.fraction",
            f"trigger.fraction={bad!r} must be a number greater than 0, at most 1",
        )
        for bad in (0, -0.1, 1.1, True, float("nan"), "0.5", None)
    ]
    + [
        (
            {"keep": {"fraction": bad}},
            "keep.fraction",
            f"keep.fraction={bad!r} must be a number from 0 to 1",
        )
        for bad in (-0.1, 1.1, True, float("nan"), "0.5", None)
    ]
    + [
        ({name: bad}, name, f"{name}={bad!r} must be {wanted}")
        for name, wanted in (
            ("exclude_tools", "a list of tool names"),
            ("clear_tool_inputs", "True or False or a list of tool names"),
        )
        for bad in ("look", None, 5, ["look", 1], ["look", None], ["look", ["look"]])
    ]
    + [
        (
            {"clear_at_least": bad},
            "clear_at_least",
            f"clear_at_least={bad!r} must be a whole number, at least 0, or 'pays'",
        )
        for bad in (-1, 1.5, True, "often", None)
    ]
    + [
        ({"token_count_method": bad}, "token_count_method", f"token_count_method={bad!r} must be 'approx' or 'model'")
        for bad in ("exact", None)
    ]
    + [
        (
            {"max_context_tokens": bad},
            "max_context_tokens",
            f"max_context_tokens={bad!r} must be a whole number, at least 1, or 'auto'",
        )
        for bad in (0, -1, 1.5, True, None, "1k")
    ]
    + [
        ({"placeholder": None}, "placeholder", "placeholder=None must be text"),
        (
            {"counter": len},
            "counter",
            "counter='builtin_function_or_method' must be a TokenCounter: derive your own from it",
        ),
    ],
)
def test_a_bad_value_fails_at_build_with_the_parameter_and_the_value(
    options: dict[str, Any], parameter: str, said: str
) -> None:
    stack = ChatStack(ScriptedClient()).use(ToolResultClearer, **options)
    with pytest.raises(WiringError) as caught:
        stack.build()
    assert str(caught.value) == f"ToolResultClearer: {said}"
    assert (caught.value.layer, caught.value.parameter) == ("ToolResultClearer", parameter)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"trigger": {"tokens": 1}, "keep": {"messages": 0}},
        {"trigger": {"fraction": 1}, "keep": {"fraction": 0}},
        {"exclude_tools": ("a",), "clear_tool_inputs": frozenset({"b"})},
        {"clear_at_least": 0, "placeholder": ""},
        {"placeholder": '{"a": 1} {"tol": "x"} {} {0} {tool} {{tokens}} {x} {again} {result} {name: x} {tool {handle}'},
    ],
)
def test_the_ends_of_the_allowed_values_are_allowed(options: dict[str, Any]) -> None:
    assert find(Cleared(**options).client, ToolResultClearer) is not None


def test_options_cannot_be_changed_behind_its_back() -> None:
    trigger, names = {"tokens": 400}, ["login"]
    cleared = Cleared(trigger=trigger, keep={"messages": 0}, exclude_tools=names)
    trigger["tokens"] = 1_000_000
    names.append("look")
    assert texts(cleared.send([TASK, *rounds(3), Message.user("and?")])) == ["-", "-", "2"] or cleared.edits == 1


def test_the_defaults_are_those_of_the_seed() -> None:
    layer = find(Cleared().client, ToolResultClearer)
    assert layer is not None
    assert (layer.trigger, layer.keep, layer.placeholder) == ({"tokens": 100_000}, {"messages": 3}, "[cleared]")
    assert (layer.exclude_tools, layer.clear_tool_inputs, layer.token_count_method) == ((), False, "approx")


def test_the_order_in_which_tools_are_named_does_not_matter_to_what_was_decided() -> None:
    memory = ContextMemory()
    history = [TASK, *rounds(9), Message.user("and?")]
    one, other = (
        Cleared(memory=memory, trigger={"tokens": 400}, exclude_tools=names) for names in (["a", "b"], ["b", "a", "b"])
    )
    assert one.send(history) == other.send(history)
    assert (one.edits, other.edits) == (1, 0)


@pytest.mark.parametrize("trigger", [{"tokens": 1_000}, {"messages": 15}, {"fraction": 0.1}], ids=str)
@pytest.mark.parametrize("keep", [{"messages": 2}, {"tokens": 300}, {"fraction": 0.03}], ids=str)
def test_each_trigger_and_each_keep(trigger: dict[str, Any], keep: dict[str, Any]) -> None:
    provider = ScriptedClient(["ok"], info=ProviderInfo(name="scripted", window_tokens=10_000))
    cleared = Cleared(provider=provider, trigger=trigger, keep=keep)
    assert texts(cleared.send([TASK, *rounds(6)])) == ["0", "1", "2", "3", "4", "5"]
    assert texts(cleared.send([TASK, *rounds(7)])) == ["-", "-", "-", "-", "-", "5", "6"]


def test_instructions_count_for_the_trigger_and_reserved_output_does_not() -> None:
    history = [TASK, *rounds(4)]
    assert Cleared(trigger={"tokens": 700}).send(history, options=ChatOptions(max_tokens=10_000)) == history
    assert Cleared(trigger={"tokens": 700}).send(history, options=ChatOptions(instructions="x" * 400)) != history


def test_below_the_trigger_exactly_what_came_is_sent() -> None:
    history = [Message.system("be brief"), TASK, *rounds(4), Message.user("and?")]
    cleared = Cleared()
    assert [*map(id, cleared.send(history))] == [*map(id, history)]
    assert (cleared.spans, cleared.warnings) == ((), ())


# C2: fractions


@pytest.mark.parametrize(
    "options", [{"trigger": {"fraction": 0.5}}, {"trigger": {"tokens": 100}, "keep": {"fraction": 0.5}}]
)
def test_a_fraction_of_a_window_that_nobody_knows_is_warned_of_once(options: dict[str, Any]) -> None:
    cleared = Cleared(**options)
    history = [TASK]
    for number in range(5):
        history += call(number)
        cleared.send(history)
    assert cleared.warnings.count("window_unknown") == 1
    assert cleared.edits == 0


def test_a_window_that_is_given_is_the_one_that_counts() -> None:
    provider = ScriptedClient(["ok"], info=ProviderInfo(name="scripted", window_tokens=100_000))
    cleared = Cleared(provider=provider, trigger={"fraction": 0.7}, max_context_tokens=1_000)
    assert texts(cleared.send([TASK, *rounds(5)])) == ["-", "-", "2", "3", "4"]
    assert cleared.warnings == ()


def test_a_trigger_in_tokens_needs_no_window() -> None:
    cleared = Cleared(trigger={"tokens": 700})
    cleared.send([TASK, *rounds(5)])
    assert (cleared.edits, cleared.warnings) == (1, ())


# C6: pays, forced, cold


class Reporting(ScriptedClient):
    """Reports so many tokens as read from its cache; none stands for nearly everything."""

    cached: int | None = None

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.requests.append(request)
        tokens = sum(map(self.counter.count_message, request.messages))
        usage = Usage(tokens, 5, cache_read_tokens=tokens if self.cached is None else self.cached)
        message = Message.assistant("ok")

        async def updates() -> Any:
            yield ChatUpdate(text="ok")
            yield ChatUpdate(message_done=message, usage=usage, finish_reason="stop")

        return await ChatStream.primed(updates())


def waiting(**options: Any) -> Cleared:
    """One that has a single large result to clear, much behind it, and waits."""
    return Cleared(trigger={"tokens": 1_000}, keep={"messages": 0}, clear_at_least="pays", **options)


HISTORY = [TASK, *call(0, "x" * 8_000), Message.assistant("y" * 40_000), Message.user("and?")]


def test_it_waits_and_says_nothing() -> None:
    cleared = waiting()
    assert cleared.send(HISTORY) == HISTORY
    assert (cleared.spans, cleared.warnings) == ((), ())


def test_a_full_window_forces_it() -> None:
    assert texts(waiting(max_context_tokens=size(HISTORY) - 1).send(HISTORY)) == ["-"]
    assert texts(waiting(max_context_tokens=size(HISTORY)).send(HISTORY)) == ["0"]
    info = ProviderInfo(name="scripted", window_tokens=size(HISTORY) - 1)
    assert texts(waiting(provider=ScriptedClient(["ok"], info=info)).send(HISTORY)) == ["-"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("output", ["x" * 400, "x" * 4_000], ids=["small results", "large results"])
@pytest.mark.parametrize("talk", ["y" * 80, "y" * 4_000], ids=["little talk", "much talk"])
def test_a_window_that_no_edit_can_meet_forces_none_and_waiting_costs_no_more_than_clearing(
    output: str, talk: str
) -> None:
    bills: dict[object, Bill] = {}
    for least, window in ((0, "auto"), ("pays", 12_000)):
        options: dict[str, Any] = {"keep": {"messages": 10}, "clear_at_least": least, "max_context_tokens": window}
        cleared = Cleared(trigger={"tokens": 3_000}, provider=Reporting(["ok"]), **options)
        bills[least] = Bill()
        history = [TASK, Message.user("x" * 60_000)]
        for number in range(60):
            history += [*call(number, output), Message.assistant(talk), Message.user(f"and {number}?")]
            bills[least].add(cleared.send(history))
    assert bills["pays"].cost <= bills[0].cost


@pytest.mark.parametrize(("seconds", "is_cleared"), [(10, False), (299, False), (301, True)])
def test_a_cache_that_has_run_out_makes_it_free(seconds: float, is_cleared: bool) -> None:
    now = [1_000.0]
    cleared = waiting(memory=ContextMemory(clock=lambda: now[0]))
    cleared.send(HISTORY)
    now[0] += seconds
    sent = cleared.send([*HISTORY, Message.assistant("ok"), Message.user("and now?")])
    assert (texts(sent) == ["-"]) is is_cleared


@pytest.mark.parametrize(
    ("info", "seconds"),
    [
        (ProviderInfo(name="anthropic", model="claude-sonnet-4-5"), 300),
        (ProviderInfo(name="anthropic", model="claude-sonnet-4-5", cache_seconds=3_600), 3_600),
        (ProviderInfo(name="openai", model="gpt-5.6"), 1_800),
        (ProviderInfo(name="openai", model="gpt-4o"), 300),
        (ProviderInfo(name="unheard of"), 300),
    ],
    ids=["published", "chosen", "published as longer", "of an older model", "unknown"],
)
def test_a_cache_has_run_out_when_it_has_lived_as_long_as_the_provider_keeps_it(
    info: ProviderInfo, seconds: int
) -> None:
    for pause, is_cleared in ((seconds - 1, False), (seconds, True)):
        now = [1_000.0]
        provider = ScriptedClient(["ok"], info=info)
        cleared = waiting(provider=provider, memory=ContextMemory(clock=partial(now.__getitem__, 0)))
        cleared.send(HISTORY)
        now[0] += pause
        sent = cleared.send([*HISTORY, Message.assistant("ok"), Message.user("and now?")])
        assert (texts(sent) == ["-"]) is is_cleared


@pytest.mark.parametrize(("cached", "is_cleared"), [(None, False), (0, True)])
def test_a_report_of_hardly_anything_cached_makes_it_free(cached: int | None, is_cleared: bool) -> None:
    provider = Reporting(["ok"])
    cleared = waiting(provider=provider)
    history = list(HISTORY)
    for number in range(2):
        assert texts(cleared.send(history)) == ["0"]
        history += [Message.assistant("ok"), Message.user(f"and {number}?")]
        provider.cached = cached
    assert (texts(cleared.send(history)) == ["-"]) is is_cleared


@pytest.mark.slow
def test_waiting_it_never_costs_more_than_twice_sending_everything() -> None:
    """Promise 5, at warm-cache prices: what is read costs 0.1, what is new 1.25."""
    for output, talk, most in (("x" * 8_000, "y" * 400, 1), ("x" * 400, "y" * 4_000, 2), ("x" * 4_000, "y" * 40, 1)):
        cleared = Cleared(trigger={"tokens": 2_000}, keep={"messages": 2}, clear_at_least="pays")
        history = [TASK]
        ours, all_of_it = Bill(), Bill()
        for number in range(120):
            history += [*call(number, output), Message.assistant(talk), Message.user(f"and {number}?")]
            all_of_it.add(history)
            ours.add(cleared.send(history))
            assert ours.cost <= 2 * all_of_it.cost
        assert ours.cost < most * all_of_it.cost
        assert cleared.edits > 1


class Bill:
    """What requests cost that go to a cache that never runs out."""

    def __init__(self) -> None:
        self.cost = 0.0
        self.before: list[Message] = []

    def add(self, messages: Sequence[Message]) -> None:
        same = 0
        for one, other in zip(self.before, messages, strict=False):
            if one != other:
                break
            same += 1
        self.cost += 0.1 * size(messages[:same]) + 1.25 * size(messages[same:])
        self.before = list(messages)


# token_count_method


class Telling(ScriptedClient):
    """A provider that counts: every token as so many, or not at all, or with trouble."""

    def __init__(self, times: float | BaseException | None, **options: Any) -> None:
        super().__init__(["ok"], **options)
        self.times = times
        self.asked: list[ChatRequest] = []

    async def count_tokens(self, request: ChatRequest, /) -> int | None:
        self.asked.append(request)
        if isinstance(self.times, BaseException):
            raise self.times
        return None if self.times is None else int(self.times * size(request.messages))


def test_a_provider_that_counts_is_believed() -> None:
    history = [TASK, *rounds(5)]  # 755 by the estimate
    for times, is_cleared in ((1.0, False), (1.4, True), (0.5, False)):
        provider = Telling(times)
        sent = Cleared(provider=provider, trigger={"tokens": 1_000}, token_count_method="model").send(history)
        assert (sent != history) is is_cleared
        assert [list(each.messages) for each in provider.asked] == [history]


def test_an_estimate_above_the_trigger_is_corrected_by_the_provider() -> None:
    history = [TASK, *rounds(5)]
    provider = Telling(0.5)
    assert Cleared(provider=provider, trigger={"tokens": 500}, token_count_method="model").send(history) == history
    assert Cleared(provider=Telling(0.5), trigger={"tokens": 500}).send(history) != history


def test_far_below_the_trigger_or_by_default_nobody_is_asked() -> None:
    provider = Telling(1.0)
    Cleared(provider=provider, trigger={"tokens": 100_000}, token_count_method="model").send([TASK, *rounds(5)])
    Cleared(provider=provider, trigger={"tokens": 500}).send([TASK, *rounds(5)])
    Cleared(provider=provider, trigger={"messages": 3}, token_count_method="model").send([TASK, *rounds(5)])
    assert provider.asked == []


def test_a_conversation_whose_size_was_reported_need_not_be_counted() -> None:
    provider = Telling(1.0)
    cleared = Cleared(provider=provider, trigger={"tokens": 1_000}, token_count_method="model")
    history = [TASK, *rounds(5)]
    for number in range(5, 8):
        cleared.send(history)
        history += call(number)
    assert len(provider.asked) == 1


@pytest.mark.parametrize(
    "times", [None, ServerError("down"), 0.0, -1.0, "nobody"], ids=["no", "raises", "zero", "negative", "nobody"]
)
def test_a_provider_that_does_not_count_is_said_once_and_estimates_hold(
    times: float | BaseException | Literal["nobody"] | None,
) -> None:
    provider = ScriptedClient(["ok"]) if times == "nobody" else Telling(times)
    cleared = Cleared(provider=provider, trigger={"tokens": 700}, token_count_method="model")
    history = [TASK, *rounds(5)]
    for number in range(5, 9):
        sent = cleared.send(history)
        history += call(number)
        assert "-" in texts(sent)
    assert cleared.warnings == ("token_count_estimated",)


# C10: what is said


@pytest.mark.parametrize("streams", [False, True])
def test_an_edit_is_an_information_span_with_its_numbers(streams: bool) -> None:
    cleared = Cleared(trigger={"tokens": 700}, keep={"messages": 2})
    history = [TASK, *rounds(5)]

    async def stream() -> None:
        async with cleared.client.get_streaming_response(history) as updates:
            async for _ in updates:
                pass

    if streams:
        asyncio.run(stream())
    else:
        cleared.send(history)
    sent = cleared.provider.requests[-1].messages
    span = cleared.capture.span(EDIT)
    about = {name.removeprefix("chatstack."): value for name, value in span.attributes.items()}
    assert about["severity"] == "INFO"
    assert about["compaction.strategy"] == "clear_tool_results"
    assert about["compaction.tokens_before"] == size(history)
    assert about["compaction.tokens_after"] == size(sent)
    assert about["compaction.messages_before"] == about["compaction.messages_after"] == 11
    assert about["compaction.tool_results_cleared"] == 3
    assert about["compaction.reason"] == f"{size(history)} tokens in 11 messages, the trigger is 700"
    assert span.status == "unset"
    assert cleared.warnings == ()


def test_what_is_replayed_is_not_said_again() -> None:
    cleared = Cleared(trigger={"tokens": 700}, keep={"messages": 2})
    for _ in range(4):
        cleared.send([TASK, *rounds(5)])
    assert cleared.edits == 1


def test_no_text_of_a_message_is_said() -> None:
    cleared = Cleared(trigger={"tokens": 100}, keep={"messages": 0}, clear_tool_inputs=True)
    cleared.send([Message.user("secret task"), *rounds(5, "secret result " * 20), Message.user("secret wish")])
    assert cleared.edits == 1
    assert "secret" not in cleared.capture.said()


@pytest.mark.parametrize(
    ("history", "why"),
    [
        ([Message.user("x" * 8_000), *rounds(2)], "no tool result is left that may be cleared"),
        ([Message.user("x" * 8_000), *rounds(9)], "the results that may be cleared are few"),
    ],
    ids=["nothing", "too little"],
)
def test_an_edit_that_does_not_help_is_warned_of_once(history: list[Message], why: str) -> None:
    cleared = Cleared(trigger={"tokens": 1_000}, keep={"messages": 2})
    for number in range(20, 30):
        cleared.send(history, conversation_id="c")
        history = [*history, *call(number, "ok")]
    assert cleared.warnings == ("edit_ineffective",)
    (warned,) = (span for span in cleared.spans if "chatstack.warning.code" in span.attributes)
    assert str(warned.attributes["chatstack.warning.message"]).endswith(why)


def test_where_the_provider_holds_the_history_it_stands_aside_and_says_so_once() -> None:
    cleared = Cleared(trigger={"tokens": 100})
    history = [TASK, *rounds(5)]
    for _ in range(3):
        assert cleared.send(history, options=ChatOptions(extra={"previous_response_id": "r"})) == history
    assert cleared.warnings == ("context_layers_bypassed",)


def test_orphans_are_repaired_before_the_trigger_is_weighed() -> None:
    cleared = Cleared(trigger={"tokens": 700})
    sent = cleared.send([TASK, Message.tool("gone", "x" * 4_000), *rounds(2)])
    assert sent == [TASK, *rounds(2)]
    assert (cleared.edits, cleared.warnings) == (0, ("messages_repaired",))


# C4, C7: what was cleared stays cleared


def test_what_is_replayed_has_its_annotation_and_its_original() -> None:
    cleared = Cleared(trigger={"tokens": 700}, keep={"messages": 2})
    history = [TASK, *rounds(5)]
    first = cleared.send(history)
    second = cleared.send([*decoded_again(history), *call(5, "ok")])
    assert second[:11] == first
    for at in (2, 4, 6):
        assert second[at].annotation == first[at].annotation is not None
        assert second[at].original == history[at]


class Loop:
    """A tool loop that grows, and what became of its requests."""

    def __init__(self, cleared: Cleared, calls: int, *, output: str = LONG, fresh: bool = False) -> None:
        self.breaks = 0
        self.largest = 0
        before: list[Message] = []
        history = [TASK]
        for number in range(calls):
            edits = cleared.edits if number % 10 == 0 or number > calls - 3 else None
            sent = cleared.send(decoded_again(history) if fresh else history)
            self.breaks += sent[: len(before)] != before
            assert edits is None or edits <= self.breaks + 1
            self.largest = max(self.largest, size(sent))
            before = sent
            history += call(number, output)


@pytest.mark.slow
@pytest.mark.parametrize("fresh", [False, True], ids=["the same objects", "fresh equal objects"])
def test_over_two_hundred_growing_calls_edits_are_few_and_nothing_else_breaks_the_prefix(fresh: bool) -> None:
    cleared = Cleared(trigger={"tokens": 8_000}, keep={"messages": 3})
    loop = Loop(cleared, 200, fresh=fresh)
    assert loop.breaks == cleared.edits
    assert 4 <= cleared.edits <= 8
    assert loop.largest < 8_000 + 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trigger", "most"),
    [({"messages": 100}, 16), ({"messages": 10}, 70), ({"tokens": 4_000}, 40), ({"tokens": 500}, 70)],
    ids=str,
)
def test_where_clearing_cannot_get_below_the_trigger_it_does_not_follow_every_call(
    trigger: dict[str, int], most: int
) -> None:
    cleared = Cleared(trigger=trigger, keep={"messages": 3})
    loop = Loop(cleared, 200)
    assert loop.breaks <= cleared.edits <= loop.breaks + 1
    assert 5 <= cleared.edits <= most


def test_it_is_decided_once_also_for_many_calls_at_once() -> None:
    cleared = Cleared(trigger={"tokens": 700}, keep={"messages": 2})
    history = [TASK, *rounds(6)]

    async def call_it(number: int) -> tuple[Message, ...]:
        request = ChatRequest(tuple([*history, Message.assistant("ok"), Message.user(f"and {number}?")]))
        await (await cleared.client.send(request)).response()
        return ()

    async def all_of_them() -> None:
        await cleared.client.get_response(history)
        await asyncio.gather(*map(call_it, range(50)))

    asyncio.run(all_of_them())
    assert cleared.edits == 1
    beginnings = {request.messages[: len(history)] for request in cleared.provider.requests}
    assert len(beginnings) == 1


# Promise 7: what grows is not counted again


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fresh", [False, True], ids=["the same objects", "fresh equal objects"])
def test_three_hundred_growing_calls_count_each_message_once(fresh: bool) -> None:
    counter = CountingCounter()
    provider = ScriptedClient(["ok"])
    stack = ChatStack(provider, trace_model_calls=False).use(
        ToolResultClearer, trigger={"tokens": 10_000}, keep={"messages": 3}, counter=counter
    )
    client = stack.use(ContextWindowGuard, max_context_tokens=20_000, prune_on_overflow=True, counter=counter).build()
    history = [TASK]

    async def run() -> None:
        for number in range(300):
            await client.get_response(decoded_again(history) if fresh else history)
            history.extend(call(number))

    asyncio.run(run())
    cleared = [each for each in counter.asked if any(result.text == "[cleared]" for result in each.results)]
    others = len(counter.asked) - len(cleared)
    assert others == len(history) - 2  # what the last round added was not sent any more
    assert len(cleared) == len(set(cleared)) > 200


class Stepping(TokenCounter):
    """Counts a letter as a token, and how many letters it was shown."""

    def __init__(self) -> None:
        self.letters = 0

    def count_text(self, text: str) -> int:
        self.letters += len(text)
        return len(text)


def test_late_calls_count_no_more_than_early_ones() -> None:
    counter = Stepping()
    cleared = Cleared(trigger={"tokens": 1_000_000}, counter=counter, guard=0)
    history, shown = [TASK], []
    for number in range(100, 160):
        before = counter.letters
        cleared.send(history)
        shown.append(counter.letters - before)
        history += call(number)
    assert len(set(shown[1:])) == 1


def test_where_nothing_was_ever_decided_no_hash_chain_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    linked: list[Message] = []
    real = digests.next_links

    def noted(link: bytes, messages: Sequence[Message], key: bytes) -> list[bytes]:
        linked.extend(messages)
        return real(link, messages, key)

    monkeypatch.setattr(history_module, "next_links", noted)
    cleared = Cleared(guard=100_000)
    history = [Message.user("a task of its own")]
    for number in range(20):
        cleared.send(history)
        history += call(number)
    assert linked == []
    small = Cleared(trigger={"tokens": 500})
    small.send(history)
    assert linked[: len(history)] == history
