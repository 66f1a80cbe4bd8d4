"""The guard: what it refuses, when it warns, what it prunes, and what it never touches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from chatstack import (
    BuiltClient,
    CharCounter,
    ChatOptions,
    ChatResponse,
    ChatStack,
    ContextOverflowError,
    ContextWindowGuard,
    Image,
    Message,
    OldestFirst,
    ProviderInfo,
    TableCounter,
    Text,
    TokenCounter,
    ToolCall,
    ToolDeclaration,
    ToolResult,
    WiringError,
    find,
    named,
)
from chatstack.testing import CapturedSpan, ScriptedClient, TelemetryCapture
from chatstack.values.messages import Role

NEAR, EXCEEDED, IRREDUCIBLE = "context_window_near_limit", "context_window_exceeded", "context_irreducible"


def sized(tokens: int, role: Role = "user", name: str = "x", **fields: Any) -> Message:
    """A message of exactly that many tokens by the default counter: four for its frame, one for four letters."""
    text = name.ljust(4 * (tokens - 4), "x")
    assert len(text) == 4 * (tokens - 4), "the name does not fit"
    return Message(role, (Text(text),), **fields)


def talk(*sizes: int, start: str = "") -> list[Message]:
    """User and assistant in turn, with those sizes, and no two messages equal."""
    return [
        sized(size, "assistant" if number % 2 else "user", f"{start}{number} ") for number, size in enumerate(sizes)
    ]


class Guarded:
    """A guard of 100 tokens around a script, and all that it said."""

    def __init__(
        self, limit: int | Literal["auto"] = 100, *, provider: ScriptedClient | None = None, **options: Any
    ) -> None:
        self.provider = provider or ScriptedClient(["ok"], counter=options.get("counter"))
        self.stack = ChatStack(self.provider).use(ContextWindowGuard, max_context_tokens=limit, **options)
        self.capture = TelemetryCapture()
        self.client = self.stack.build(self.capture.resolve)

    def send(
        self, messages: Sequence[Message] | int, client: BuiltClient | None = None, **options: Any
    ) -> list[Message]:
        """What reached the provider; a number stands for a single message of that size."""
        sent = [sized(messages)] if isinstance(messages, int) else messages
        asyncio.run((client or self.client).get_response(sent, **options))
        return list(self.provider.requests[-1].messages)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.capture.warnings

    def warning(self, code: str) -> CapturedSpan:
        (found,) = (s for s in self.capture.spans if s.attributes.get("chatstack.warning.code") == code)
        return found


# G1: values


@pytest.mark.parametrize(
    ("options", "parameter", "said"),
    [
        (
            {"max_context_tokens": bad},
            "max_context_tokens",
            f"max_context_tokens={bad!r} must be a whole number, at least 1, or 'auto'",
        )
        for bad in (0, -1, 1.5, True, "128k", None)
    ]
    + [
        ({name: bad}, name, f"{name}={bad!r} must be a number greater than 0, at most 1")
        for name in ("warning_threshold", "prune_to")
        for bad in (0, -0.1, 1.01, 80, float("nan"), "0.8", True, None)
    ]
    + [
        (
            {"chars_per_token": bad},
            "chars_per_token",
            f"chars_per_token={bad!r} must be a number from 0.1 to 100 or None",
        )
        for bad in (0, -4, float("nan"), "4")
    ]
    + [
        (
            {"counter": len},
            "counter",
            "counter='builtin_function_or_method' must be a TokenCounter: derive your own from it",
        )
    ],
)
def test_a_bad_value_fails_at_build_with_the_parameter_and_the_value(
    options: dict[str, Any], parameter: str, said: str
) -> None:
    stack = ChatStack(ScriptedClient()).use(ContextWindowGuard, **{"max_context_tokens": 100, **options})
    with pytest.raises(WiringError) as caught:
        stack.build()
    assert str(caught.value) == f"ContextWindowGuard: {said}"
    assert (caught.value.layer, caught.value.parameter) == ("ContextWindowGuard", parameter)


@pytest.mark.parametrize("options", [{"warning_threshold": 1}, {"prune_to": 1.0}, {"warning_threshold": 0.001}])
def test_the_ends_of_the_allowed_values_are_allowed(options: dict[str, Any]) -> None:
    assert find(Guarded(1, **options).client, ContextWindowGuard) is not None


def test_options_are_keyword_only_behind_inner() -> None:
    with pytest.raises(TypeError):
        ContextWindowGuard(ScriptedClient(), 100)  # type: ignore[arg-type,call-arg]


def test_it_wraps_any_client_by_hand_too() -> None:
    guard = ContextWindowGuard(ScriptedClient(["fine"]), max_context_tokens=100)
    assert asyncio.run(guard.get_response("hello")).text == "fine"


# G3: the lines


@pytest.mark.parametrize(
    ("tokens", "said"),
    [(79, ()), (80, (NEAR,)), (81, (NEAR,)), (100, (NEAR,)), (101, (EXCEEDED,))],
)
def test_at_the_threshold_is_near_and_above_the_limit_is_exceeded(tokens: int, said: tuple[str, ...]) -> None:
    guarded = Guarded()
    guarded.send(tokens)
    assert guarded.warnings == said


@pytest.mark.sampled(5)
@pytest.mark.parametrize("percent", range(5, 100))
def test_the_threshold_is_met_exactly_whatever_floating_point_makes_of_it(percent: int) -> None:
    at, below = Guarded(warning_threshold=percent / 100), Guarded(warning_threshold=percent / 100)
    at.send(percent)
    assert at.warnings == (NEAR,)
    if percent > 5:
        below.send(percent - 1)
        assert below.warnings == ()


def test_a_threshold_of_one_warns_at_the_limit_itself() -> None:
    guarded = Guarded(warning_threshold=1)
    guarded.send(99)
    before = guarded.warnings
    assert before == ()
    guarded.send(100, conversation_id="other")
    assert guarded.warnings == (NEAR,)


@pytest.mark.parametrize("conversation_id", ["c-1", None])
def test_a_growing_conversation_is_warned_of_once_for_each_line(conversation_id: str | None) -> None:
    guarded, history = Guarded(), talk(30, 30)
    for size in (10, 12, 5, 6, 12, 10, 10):  # 70, 82, 87, 93, 105, 115, 125
        history += [sized(size, "assistant")]
        guarded.send(history, conversation_id=conversation_id)
    assert guarded.warnings == (NEAR, EXCEEDED)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((85, 79, 85), (NEAR,)),
        ((80, 76, 80), (NEAR,)),
        ((80, 75, 80), (NEAR, NEAR)),
        ((101, 99, 101), (EXCEEDED,)),
        ((101, 96, 101), (EXCEEDED,)),
        ((101, 95, 101), (EXCEEDED, EXCEEDED)),
        ((101, 78, 85), (EXCEEDED,)),
        ((101, 20, 85, 101), (EXCEEDED, NEAR, EXCEEDED)),
        ((100, 101), (NEAR, EXCEEDED)),
        ((20, 20, 20), ()),
    ],
)
def test_hovering_does_not_repeat_a_warning_and_shrinking_clears_the_way_for_the_next(
    sizes: tuple[int, ...], said: tuple[str, ...]
) -> None:
    guarded = Guarded()
    for size in sizes:
        guarded.send(size, conversation_id="c-1")
    assert guarded.warnings == said


def test_without_an_id_the_conversation_is_known_by_its_messages() -> None:
    guarded = Guarded()
    one, other = talk(60, 22, start="one "), talk(60, 22, start="two ")
    for history in (one, one, [*one, sized(5)], other, other):
        guarded.send(history)
    assert guarded.warnings == (NEAR, NEAR)


def test_two_conversations_with_the_same_beginning_and_different_ids_are_two() -> None:
    guarded = Guarded()
    for conversation_id in ("a", "b", "a", "b"):
        guarded.send(85, conversation_id=conversation_id)
    assert guarded.warnings == (NEAR, NEAR)


def test_every_call_repeats_the_warning_for_every_call_that_is_over_the_line() -> None:
    guarded = Guarded(every_call=True)
    for size in (85, 85, 101, 101, 78, 20):
        guarded.send(size, conversation_id="c-1")
    assert guarded.warnings == (NEAR, NEAR, EXCEEDED, EXCEEDED)


def test_two_guards_of_different_thresholds_both_warn() -> None:
    provider, capture = ScriptedClient(["ok"]), TelemetryCapture()
    client = (
        ChatStack(provider)
        .use(named("early", ContextWindowGuard), max_context_tokens=100, warning_threshold=0.5)
        .use(named("late", ContextWindowGuard), max_context_tokens=100, warning_threshold=0.9)
        .build(capture.resolve)
    )
    for size in (60, 95):
        asyncio.run(client.get_response([sized(size)], conversation_id="c-1"))
    assert [span.attributes["chatstack.context.threshold"] for span in capture.spans_named("context_guard")] == [
        0.5,
        0.9,
    ]


def test_streaming_warns_and_prunes_the_same() -> None:
    async def stream(client: BuiltClient, messages: list[Message]) -> ChatResponse:
        async with client.get_streaming_response(messages) as answer:
            return await answer.response()

    def spans(guarded: Guarded) -> list[tuple[str, dict[str, object]]]:
        return [(s.name, dict(s.attributes)) for s in guarded.capture.spans if not s.name.startswith("chat ")]

    plain, streaming = Guarded(prune_on_overflow=True), Guarded(prune_on_overflow=True)
    history = talk(20, *[10] * 10)
    plain.send(history)
    asyncio.run(stream(streaming.client, history))
    assert streaming.provider.requests[0].messages == plain.provider.requests[0].messages
    assert spans(streaming) == spans(plain)
    assert [name for name, _ in spans(plain)] == ["context_guard", "compact_context truncate"]


def test_a_warning_carries_its_numbers() -> None:
    guarded = Guarded()
    guarded.send(85)
    span = guarded.capture.span("context_guard")
    ours = {name: value for name, value in span.attributes.items() if name.startswith("chatstack.")}
    assert ours == {
        "chatstack.severity": "WARN",
        "chatstack.warning.code": NEAR,
        "chatstack.warning.message": "fits at 85%: about 85 of 100 tokens",
        "chatstack.guard.action": "warn",
        "chatstack.context.input_tokens": 85,
        "chatstack.context.window_tokens": 100,
        "chatstack.context.utilization": 0.85,
        "chatstack.context.threshold": 0.8,
        "chatstack.context.token_source": "estimated",
    }
    assert (span.kind, span.status) == ("INTERNAL", "unset")


@pytest.mark.parametrize(
    ("options", "action"), [({}, "warn"), ({"prune_on_overflow": True}, "prune"), ({"strict": True}, "reject")]
)
def test_the_action_says_what_is_done_about_it(options: dict[str, Any], action: str) -> None:
    guarded = Guarded(**options)
    try:
        guarded.send(talk(20, *[10] * 10))
    except ContextOverflowError:
        assert action == "reject"
    assert guarded.warning(EXCEEDED).attributes["chatstack.guard.action"] == action


def test_how_full_every_request_is_goes_into_a_metric_warned_or_not() -> None:
    guarded = Guarded()
    for size in (10, 50):
        guarded.send(size)
    (point,) = guarded.capture.metric("chatstack.context.utilization")
    assert point.count == 2
    assert point.total == pytest.approx(0.6)


# G2: what is weighed


def weighed(messages: list[Message], options: ChatOptions | None = None, **guard: Any) -> object:
    """The size that the guard takes a request for."""
    guarded = Guarded(1, **guard)
    guarded.send(messages, options=options)
    return guarded.warning(EXCEEDED).attributes["chatstack.context.input_tokens"]


def test_everything_that_is_sent_is_weighed() -> None:
    message = sized(50)
    options = ChatOptions(
        instructions="i" * 40, tools=(ToolDeclaration("t" * 4, "d" * 20, "{" * 16),), max_tokens=1_000
    )
    assert weighed([message]) == 50
    assert weighed([message], ChatOptions(instructions="i" * 40)) == 50 + 14
    assert weighed([message], ChatOptions(max_tokens=1_000)) == 1_050
    assert weighed([message], options) == 50 + 14 + 14 + 1_000


def test_calls_and_results_are_weighed() -> None:
    messages = [
        sized(20),
        Message.assistant(ToolCall("c", "n" * 4, "a" * 40)),
        Message.tool("c", "r" * 400, name="n" * 4),
    ]
    assert weighed(messages) == 20 + (4 + 1 + 10 + 5) + (4 + 1 + 100 + 5)


def test_a_picture_is_not_weighed_by_its_bytes() -> None:
    picture = Image.from_bytes(b"\0" * 3_000_000, "image/png")
    assert weighed([Message.user(picture)]) == 1_004
    assert weighed([Message.user("see", Image(url="https://example.test/a.png"))]) == 1_004
    answer = Message("tool", (ToolResult("c", "see", (picture,)),))
    assert weighed([sized(10), Message.assistant(ToolCall("c", "see")), answer]) == 10 + 9 + (4 + 0 + 1_000 + 5)


def test_the_counter_is_the_users_to_give() -> None:
    class Words(TokenCounter):
        source = "counted"

        def count_text(self, text: str) -> int:
            return len(text.split())

    guarded = Guarded(10, counter=Words())
    guarded.send([Message.user("one two three four five six")])
    span = guarded.warning(NEAR)
    assert span.attributes["chatstack.context.input_tokens"] == 10
    assert span.attributes["chatstack.context.token_source"] == "counted"


def test_characters_per_token_can_be_given() -> None:
    assert weighed([Message.user("x" * 100)], chars_per_token=2) == 54


@pytest.mark.parametrize("size", [-1_000_000, -1, float("nan"), 2.5, True, None, "12"], ids=repr)
def test_a_counter_that_gives_no_number_of_tokens_is_an_error_that_names_it(size: Any) -> None:
    """Taken for nothing, a negative count would turn the guard off without a word."""

    class Wild(TokenCounter):
        def count_text(self, text: str) -> int:
            return 0

        def count_message(self, message: Message) -> int:
            return size  # type: ignore[no-any-return]

    guarded = Guarded(10, provider=ScriptedClient(), counter=Wild())
    with pytest.raises(WiringError, match=r"^Wild: count_message gave .*; a count of tokens is a whole number"):
        guarded.send(talk(50, 50))
    assert guarded.provider.requests == []


def test_a_count_below_zero_is_not_hidden_by_what_is_beside_it() -> None:
    class Minus(TokenCounter):
        def count_text(self, text: str) -> int:
            return -len(text)

    guarded = Guarded(10, provider=ScriptedClient(), counter=Minus())
    with pytest.raises(WiringError, match="Minus: count_part gave -5"):
        guarded.send([Message.user("hello", Image(url="https://host/cat.png"))])
    with pytest.raises(WiringError, match="Minus: count_options gave -96"):
        guarded.send([Message.user(Image(url="https://host/cat.png"))], options=ChatOptions(instructions="x" * 100))


def test_a_whole_number_of_another_type_is_a_count() -> None:
    class Whole:
        def __index__(self) -> int:
            return 7

    class Foreign(TokenCounter):
        def count_text(self, text: str) -> int:
            return 0

        def count_message(self, message: Message) -> int:
            return Whole()  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    guarded = Guarded(8, provider=ScriptedClient(), counter=Foreign())
    guarded.send([Message.user("hello")])
    assert guarded.warnings == (NEAR,)


# G4: pruning


def test_without_pruning_what_is_too_big_is_sent_as_it_is() -> None:
    guarded, history = Guarded(), talk(20, *[10] * 10)
    sent = guarded.send(history)
    assert all(one is other for one, other in zip(sent, history, strict=True))
    assert guarded.warnings == (EXCEEDED,)


def test_the_oldest_go_first_down_to_the_low_water_mark() -> None:
    guarded, history = Guarded(prune_on_overflow=True), talk(20, *[10] * 10)
    sent = guarded.send(history)
    assert sent == [history[0], *history[6:]]
    assert sum(len(message.text) // 4 + 4 for message in sent) == 70


def test_a_conversation_at_the_limit_is_not_pruned_and_one_above_it_is() -> None:
    at, above = Guarded(prune_on_overflow=True), Guarded(prune_on_overflow=True)
    assert len(at.send(talk(20, *[10] * 8))) == 9
    assert len(above.send(talk(21, *[10] * 8))) < 9


def test_how_far_it_prunes_is_an_option() -> None:
    guarded, history = Guarded(prune_on_overflow=True, prune_to=0.95), talk(20, *[10] * 10)
    assert guarded.send(history) == [history[0], *history[4:]]


def test_after_an_edit_the_next_calls_make_none() -> None:
    guarded, history = Guarded(prune_on_overflow=True), talk(20, *[10] * 10)
    before = guarded.send(history)
    for number in range(2):
        history += [sized(10, "assistant", f"a{number}")]
        sent = guarded.send(history)
        assert sent[: len(before)] == before
        before = sent
    assert guarded.warnings == (EXCEEDED, NEAR)
    assert len(guarded.capture.spans_named("compact_context truncate")) == 1


def test_the_next_overflow_prunes_again_and_warns_again() -> None:
    guarded, history = Guarded(prune_on_overflow=True), talk(20, *[10] * 10)
    guarded.send(history)
    history += talk(*[10] * 6, start="later ")
    sent = guarded.send(history)
    assert sent[0] is history[0]
    assert 70 <= sum(len(message.text) // 4 + 4 for message in sent) <= 100
    assert guarded.warnings == (EXCEEDED, EXCEEDED)


def protected_history() -> tuple[list[Message], list[Message]]:
    """A history that is too big, and those of its messages that must stay."""
    system, task = sized(5, "system", "s"), sized(10, "user", "task")
    pinned = sized(10, "assistant", "pin", pinned=True)
    summary = sized(10, "assistant", "sum", mark="summary")
    old = talk(10, 10, 10, 10, 10, 10, start="old ")
    late_system = sized(5, "system", "t")
    latest = sized(10, "user", "latest")
    history = [system, task, *old[1:3], pinned, *old[3:5], summary, late_system, *old[5:], latest]
    return history, [system, task, pinned, summary, late_system, latest]


def test_system_task_pinned_summary_and_latest_user_message_stay() -> None:
    history, kept = protected_history()
    guarded = Guarded(60, prune_on_overflow=True)
    assert guarded.send(history) == kept


def test_a_call_goes_with_its_results_and_never_without() -> None:
    task, latest = sized(20, name="task"), sized(10, name="latest")
    call = Message.assistant("looking", ToolCall("c", "look"), ToolCall("d", "look"))
    results = [Message.tool("c", "x" * 80, name="look"), Message.tool("d", "x" * 80, name="look")]
    guarded = Guarded(100, prune_on_overflow=True)
    assert guarded.send([task, call, *results, sized(20, "assistant"), latest]) == [
        task,
        sized(20, "assistant"),
        latest,
    ]


def test_calls_that_wait_for_results_stay() -> None:
    history = [*talk(20, 20, 20, 20), Message.user("go"), Message.assistant("x" * 100, ToolCall("c", "look"))]
    sent = Guarded(100, prune_on_overflow=True).send(history)
    assert sent[-1] == history[-1]
    assert sent[0] == history[0]
    full = [sized(40, name="task"), sized(40, name="go"), Message.assistant("x" * 100, ToolCall("c", "look"))]
    guarded = Guarded(100, prune_on_overflow=True)
    assert guarded.send(full) == full
    assert guarded.warnings == (EXCEEDED, IRREDUCIBLE)


def test_an_edit_is_information_with_sizes_before_and_after() -> None:
    guarded = Guarded(prune_on_overflow=True)
    guarded.send(talk(20, *[10] * 10))
    attributes = guarded.capture.span("compact_context truncate").attributes
    ours = {name: value for name, value in attributes.items() if name.startswith("chatstack.")}
    assert ours == {
        "chatstack.severity": "INFO",
        "chatstack.compaction.strategy": "truncate",
        "chatstack.compaction.reason": "120 tokens, more than 100",
        "chatstack.compaction.messages_before": 11,
        "chatstack.compaction.messages_after": 6,
        "chatstack.compaction.tokens_before": 120,
        "chatstack.compaction.tokens_after": 70,
        "chatstack.compaction.text_tokens_before": 120,
        "chatstack.compaction.text_tokens_after": 70,
    }
    (point,) = guarded.capture.metric("chatstack.compaction.tokens_removed")
    assert (point.total, dict(point.labels)) == (50, {"chatstack.compaction.strategy": "truncate"})


def test_the_model_call_behind_an_edit_says_that_it_was_compacted() -> None:
    guarded = Guarded(prune_on_overflow=True)
    guarded.send(talk(20, *[10] * 10))
    guarded.send(10)
    edited, plain = guarded.capture.spans_named("chat script")
    assert edited.attributes["gen_ai.conversation.compacted"] is True
    assert "gen_ai.conversation.compacted" not in plain.attributes


def test_the_callers_messages_are_the_same_objects_before_and_after() -> None:
    history = talk(20, *[10] * 10)
    before = list(history)
    sent = Guarded(prune_on_overflow=True).send(history)
    assert all(one is other for one, other in zip(history, before, strict=True))
    assert all(any(message is each for each in history) for message in sent)


# Latched


def test_what_was_pruned_stays_pruned_for_equal_messages_in_fresh_objects() -> None:
    guarded = Guarded(prune_on_overflow=True)
    before = guarded.send(talk(20, *[10] * 10))
    again = [*talk(20, *[10] * 10), sized(5, "assistant")]
    assert guarded.send(again) == [*before, sized(5, "assistant")]
    assert len(guarded.capture.spans_named("compact_context truncate")) == 1


def test_what_was_pruned_stays_pruned_across_two_builds_of_one_stack() -> None:
    guarded = Guarded(prune_on_overflow=True)
    before = guarded.send(talk(20, *[10] * 10))
    other = guarded.stack.build(guarded.capture.resolve)
    assert guarded.send([*talk(20, *[10] * 10), sized(5, "assistant")], other) == [*before, sized(5, "assistant")]
    assert guarded.warnings == (EXCEEDED,)


def test_each_message_is_counted_once_by_all_layers_and_builds_of_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    count_message = CharCounter.count_message

    def counting(self: CharCounter, message: Message) -> int:
        counted.append(message.text)
        return count_message(self, message)

    monkeypatch.setattr(CharCounter, "count_message", counting)
    provider, history = ScriptedClient(["ok"], counter=TableCounter()), talk(10, 10, 10)
    stack = (
        ChatStack(provider)
        .use(OldestFirst, max_tokens=500, target_tokens=400)
        .use(ContextWindowGuard, max_context_tokens=1_000)
        .use(named("other", ContextWindowGuard), max_context_tokens=2_000)
    )
    for _ in range(3):
        asyncio.run(stack.build().get_response(history))
    assert counted == [message.text for message in history]


def test_an_id_does_not_stand_for_the_content() -> None:
    guarded = Guarded(prune_on_overflow=True)
    guarded.send(talk(20, *[10] * 10), conversation_id="c-1")
    other = talk(20, *[10] * 7, start="other ")
    assert guarded.send(other, conversation_id="c-1") == other


def test_the_same_content_under_another_id_is_pruned_the_same_way() -> None:
    guarded = Guarded(prune_on_overflow=True)
    one = guarded.send(talk(20, *[10] * 10), conversation_id="c-1")
    assert guarded.send(talk(20, *[10] * 10), conversation_id="c-2") == one


def test_an_edited_system_message_does_not_undo_what_was_decided() -> None:
    guarded, history = Guarded(prune_on_overflow=True), talk(20, *[10] * 10)
    before = guarded.send([Message.system("it is noon"), *history])
    sent = guarded.send([Message.system("it is one"), *history, sized(5, "assistant")])
    assert sent == [Message.system("it is one"), *before[1:], sized(5, "assistant")]


# G5: irreducible


def test_what_cannot_be_made_to_fit_is_warned_of_and_sent_as_it_is() -> None:
    guarded = Guarded(prune_on_overflow=True)
    history = [sized(80, name="task"), sized(90, name="latest")]
    assert guarded.send(history) == history
    assert guarded.warnings == (EXCEEDED, IRREDUCIBLE)
    span = guarded.warning(IRREDUCIBLE)
    assert (span.status, span.attributes["chatstack.guard.action"]) == ("unset", "warn")


def test_what_can_be_removed_is_removed_before_it_is_given_up() -> None:
    guarded = Guarded(prune_on_overflow=True)
    history = [sized(60, name="task"), sized(10, "assistant"), sized(90, name="latest")]
    assert guarded.send(history) == [history[0], history[2]]
    assert guarded.warnings == (EXCEEDED, IRREDUCIBLE)


def test_the_largest_parts_are_named_by_role_position_and_size_never_by_text() -> None:
    secret = "hunter2"
    guarded = Guarded(prune_on_overflow=True, strict=True)
    history = [
        sized(5, "system", "s"),
        sized(60, name=secret),
        sized(10, "assistant", f"{secret} "),
        sized(90, name=f"{secret}!"),
    ]
    with pytest.raises(ContextOverflowError) as caught:
        guarded.send(history, options=ChatOptions(instructions=secret * 40))
    assert "user message at 3 (90 tokens), user message at 1 (60 tokens), system message at 0 (5 tokens)" in str(
        caught.value
    )
    assert "instructions and tools (74 tokens)" in str(caught.value)
    said = [str(caught.value), *(f"{log.body!r} {dict(log.attributes)}" for log in guarded.capture.logs)]
    said += [f"{dict(s.attributes)} {s.events} {s.status_text}" for s in guarded.capture.spans]
    assert [each for each in said if secret in each] == []


def test_irreducible_is_said_once_while_it_lasts() -> None:
    guarded = Guarded(prune_on_overflow=True)
    for _ in range(3):
        guarded.send([sized(80, name="task"), sized(90, name="latest")], conversation_id="c-1")
    assert guarded.warnings == (EXCEEDED, IRREDUCIBLE)


@pytest.mark.parametrize("prune", [True, False])
def test_strict_raises_before_anything_is_sent(prune: bool) -> None:
    guarded = Guarded(strict=True, prune_on_overflow=prune)
    with pytest.raises(ContextOverflowError) as caught:
        guarded.send([sized(80, name="task"), sized(90, name="latest")])
    assert (caught.value.actual, caught.value.limit) == (170, 100)
    assert guarded.provider.requests == []
    assert guarded.warnings == ((EXCEEDED, IRREDUCIBLE) if prune else (EXCEEDED,))
    rejected = guarded.warning(IRREDUCIBLE if prune else EXCEEDED)
    assert (rejected.status, rejected.attributes["error.type"]) == ("error", "ContextOverflowError")
    assert rejected.attributes["chatstack.guard.action"] == "reject"


def test_strict_without_pruning_names_pruning_as_the_remedy() -> None:
    with pytest.raises(ContextOverflowError, match="prune_on_overflow is off"):
        Guarded(strict=True).send(talk(20, *[10] * 10))


def test_strict_raises_again_for_every_call() -> None:
    guarded = Guarded(strict=True)
    for _ in range(2):
        with pytest.raises(ContextOverflowError):
            guarded.send(120, conversation_id="c-1")
    assert guarded.warnings == (EXCEEDED,)


def test_strict_is_silent_where_pruning_helps() -> None:
    guarded, history = Guarded(strict=True, prune_on_overflow=True), talk(20, *[10] * 10)
    assert guarded.send(history) == [history[0], *history[6:]]


# Windows


@pytest.mark.parametrize("tokens", [79, 80, 101])
def test_auto_takes_the_window_that_the_provider_knows(tokens: int) -> None:
    provider = ScriptedClient(["ok"], info=ProviderInfo(name="scripted", model="script", window_tokens=100))
    guarded, fixed = Guarded("auto", provider=provider), Guarded(100)
    guarded.send(tokens)
    fixed.send(tokens)
    assert guarded.warnings == fixed.warnings


def test_auto_does_not_take_one_models_window_for_anothers() -> None:
    provider = ScriptedClient(["ok"], info=ProviderInfo(name="scripted", model="script", window_tokens=100))
    guarded = Guarded("auto", provider=provider)
    guarded.send(200, options=ChatOptions(model="some-other-model"))
    assert guarded.warnings == ("window_unknown",)


def test_an_unknown_window_is_said_once_and_guards_nothing() -> None:
    guarded = Guarded("auto", prune_on_overflow=True)
    history = talk(20, *[10] * 10)
    assert guarded.send(history) == history
    guarded.send([*history, sized(5)])
    assert guarded.warnings == ("window_unknown",)
    message = guarded.warning("window_unknown").attributes["chatstack.warning.message"]
    assert isinstance(message, str)
    assert message.endswith("or the provider its window_tokens")


def test_auto_knows_published_windows() -> None:
    pytest.importorskip("genai_prices")
    provider = ScriptedClient(["ok"], info=ProviderInfo(name="openai", model="gpt-4o"))
    guarded = Guarded("auto", provider=provider, chars_per_token=4)
    guarded.send(talk(60_000, 50_000))
    assert guarded.warning(NEAR).attributes["chatstack.context.window_tokens"] == 128_000


# Where the history is not ours


@pytest.mark.parametrize("name", ["previous_response_id", "conversation"])
def test_where_the_server_holds_the_history_it_stands_aside_and_says_so_once(name: str) -> None:
    guarded, history = Guarded(prune_on_overflow=True, strict=True), talk(20, *[10] * 10)
    options = ChatOptions(extra={name: "r-1"})
    for _ in range(2):
        assert guarded.send(history, options=options) == history
    assert guarded.warnings == ("context_layers_bypassed",)


# C3: repairs


def broken() -> list[Message]:
    return [
        Message.user("go"),
        Message.tool("lost", "orphan", name="look"),
        Message.assistant(ToolCall("open", "look")),
        Message.user("and now?"),
    ]


def test_orphans_go_and_open_calls_are_answered_and_it_is_said_once() -> None:
    guarded = Guarded()
    sent = guarded.send(broken())
    assert [message.role for message in sent] == ["user", "assistant", "tool", "user"]
    (result,) = sent[2].results
    assert (result.call_id, result.is_error, sent[2].mark) == ("open", True, "repair")
    guarded.send([*broken(), Message.assistant("ok"), Message.user("well?")])
    assert guarded.warnings == ("messages_repaired",)
    span = guarded.capture.span("compact_context repair")
    assert span.attributes["chatstack.warning.message"] == (
        "the history had 1 results without a call, 1 calls without a result"
    )


def test_more_to_repair_is_said_again() -> None:
    guarded = Guarded()
    guarded.send(broken())
    guarded.send([*broken(), Message.tool("lost, too", "x"), Message.user("well?")])
    assert guarded.warnings == ("messages_repaired", "messages_repaired")


def test_a_call_of_the_last_message_still_waits_and_needs_no_repair() -> None:
    guarded = Guarded()
    history = [Message.user("go"), Message.assistant(ToolCall("open", "look"))]
    assert guarded.send(history) == history
    assert guarded.warnings == ()


def test_repairs_come_before_the_weighing() -> None:
    guarded = Guarded()
    guarded.send([sized(70), Message.tool("lost", "x" * 400), sized(5)])
    assert guarded.warnings == ("messages_repaired",)


@pytest.mark.parametrize("window", [0, -1, "5", True])
def test_a_window_that_makes_no_sense_is_an_unknown_one(window: object) -> None:
    info = ProviderInfo(name="odd", model="nobody-knows", window_tokens=window)  # type: ignore[arg-type]
    provider, capture = ScriptedClient(info=info), TelemetryCapture()
    client = ChatStack(provider).use(ContextWindowGuard, max_context_tokens="auto").build(capture.resolve)
    asyncio.run(client.get_response("hello"))
    assert capture.warnings == ("window_unknown",)


@pytest.mark.parametrize("characters", [float("inf"), True, 1e-320, 10**400])
def test_a_number_of_characters_that_would_make_the_guard_blind_is_refused(characters: float) -> None:
    with pytest.raises(WiringError, match=r"chars_per_token=.* must be a number from"):
        ContextWindowGuard(ScriptedClient(), max_context_tokens=100, chars_per_token=characters)


@pytest.mark.parametrize(
    ("options", "reserved"),
    [
        (ChatOptions(), 300),
        (ChatOptions(max_tokens=20), 20),
        (ChatOptions(extra={"max_completion_tokens": 40}), 40),
        (ChatOptions(max_tokens=20, extra={"max_output_tokens": 50}), 50),
    ],
)
def test_the_reserve_is_the_options_or_the_providers_own(options: ChatOptions, reserved: int) -> None:
    info = ProviderInfo(name="scripted", default_max_tokens=300, window_tokens=1_000)
    provider, capture = ScriptedClient(info=info), TelemetryCapture()
    stack = ChatStack(provider).use(ContextWindowGuard, max_context_tokens="auto", warning_threshold=0.01)
    asyncio.run(stack.build(capture.resolve).get_response("x" * 40, options=options))
    assert capture.span("context_guard").attributes["chatstack.context.input_tokens"] == 14 + reserved
