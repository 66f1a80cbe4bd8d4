"""The summarizer: its options, what is folded and what stays, what it asks for, what it says, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from chatstack import (
    ChatClient,
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ChatStack,
    ChatStream,
    ContextMemory,
    ContextWindowGuard,
    FunctionInvoker,
    Layer,
    Message,
    OutputSchema,
    ProgressReporter,
    ServerError,
    Summarizer,
    ToolCall,
    ToolDeclaration,
    Usage,
    WiringError,
    find,
)
from chatstack.context.edits.summaries import OPENING, SUMMARY_PROMPT, version_of
from chatstack.testing import Answer, CapturedSpan, ScriptedClient, TelemetryCapture
from tests.context.strictness import is_subsequence, size
from tests.histories import decoded_again
from tests.layers.travel import FOLD, Ruled, entries_in, sent_tokens, summaries_in

LONG = "sun and rain " * 20
TASK = Message.user("fact 0: never book flights on Sundays")


def turn(number: int, said: str = LONG) -> list[Message]:
    """A turn of about 140 tokens."""
    return [Message.user(f"fact {number}: {said}"), Message.assistant(f"noted {number} {said}")]


def turns(first: int, last: int) -> list[Message]:
    return [message for number in range(first, last) for message in turn(number)]


def talk(length: int) -> list[Message]:
    """A conversation of that many turns, and a question."""
    return [TASK, Message.assistant("ok"), *turns(1, length), Message.user("and now?")]


def numbers_in(request: ChatRequest) -> Answer:
    """A summary of the numbers of facts: "facts 1 2 3"."""
    said = (entry.text for entry in entries_in(request) if entry.who in ("summary so far", "user"))
    words = (text.split(":")[0].removeprefix("facts ").removeprefix("fact ") for text in said)
    return f"facts {' '.join(words)}"


class Summarized:
    """A summarizer around a script, and all that was sent and said."""

    def __init__(
        self,
        *,
        provider: ScriptedClient | None = None,
        memory: ContextMemory | None = None,
        around: Sequence[tuple[Layer, dict[str, Any]]] = (),
        within: Sequence[tuple[Layer, dict[str, Any]]] = (),
        **options: Any,
    ) -> None:
        self.model = provider or ScriptedClient(["ok"])
        self.summarizer = Ruled(numbers_in)
        self.capture = TelemetryCapture()
        stack = ChatStack(self.model, memory=memory or ContextMemory())
        for layer, given in around:
            stack = stack.use(layer, **given)
        of_its_own: dict[str, Any] = {"summary_client": self.summarizer, **options}
        stack = stack.use(Summarizer, **of_its_own)
        for layer, given in within:
            stack = stack.use(layer, **given)
        self.client = stack.build(self.capture.resolve)

    def ask(self, messages: Sequence[Message], **options: Any) -> ChatResponse:
        answer: ChatResponse = asyncio.run(self.client.get_response(messages, **options))
        return answer

    def send(self, messages: Sequence[Message], **options: Any) -> list[Message]:
        self.ask(messages, **options)
        return list(self.model.requests[-1].messages)

    @property
    def folds(self) -> tuple[CapturedSpan, ...]:
        return self.capture.spans_named(FOLD)


# Options

_BAD_VALUES: list[tuple[tuple[str, ...], tuple[Any, ...], str]] = [
    (
        ("max_tokens", "max_context_items", "max_summary_tokens"),
        (0, -1, 1.5, True, "5"),
        "a whole number, at least 1, or None",
    ),
    (
        ("keep_recent_turns",),
        (0, -1, 1.5, True, "3", None),
        "a whole number, at least 1",
    ),
    (
        ("compress_to",),
        (0, -0.1, 1.1, True, float("nan"), "0.5", None),
        "a number greater than 0, at most 1",
    ),
    (
        ("summary_timeout_seconds",),
        (0, -1, float("nan"), float("inf"), True, "60", None),
        "a number greater than 0",
    ),
    (("summary_prompt",), ("", "  \n", 5, None), "text: what is asked of the model that summarizes"),
]
_NO_CLIENTS = (
    (5, "of type int, and no chat client: it has no send()"),
    ("gpt-5-mini", "a name, and no chat client; write OpenAIChatClient('gpt-5-mini')"),
    (ScriptedClient, "the class ScriptedClient itself; pass an instance"),
    (object(), "of type object, and no chat client: it has no send()"),
)
BAD_OPTIONS: list[tuple[dict[str, Any], str, str]] = [
    ({name: bad}, name, f"{name}={bad!r} must be {wanted}")
    for names, values, wanted in _BAD_VALUES
    for name in names
    for bad in values
] + [({"summary_client": bad}, "summary_client", f"summary_client is {kind}") for bad, kind in _NO_CLIENTS]


@pytest.mark.parametrize(("options", "parameter", "said"), BAD_OPTIONS)
def test_a_bad_value_fails_at_build_with_layer_parameter_and_value(
    options: dict[str, Any], parameter: str, said: str
) -> None:
    given: dict[str, Any] = {"max_tokens": 1_000, **options}
    stack = ChatStack(ScriptedClient()).use(Summarizer, **given)
    with pytest.raises(WiringError) as caught:
        stack.build()
    assert str(caught.value) == f"Summarizer: {said}"
    assert (caught.value.layer, caught.value.parameter) == ("Summarizer", parameter)


def test_without_a_limit_it_would_never_do_anything_and_says_so() -> None:
    with pytest.raises(WiringError, match=r"^Summarizer: give max_tokens or max_context_items$") as caught:
        ChatStack(ScriptedClient()).use(Summarizer).build()
    assert (caught.value.layer, caught.value.parameter) == ("Summarizer", "max_tokens")


def test_the_repr_shows_the_options_and_no_inner_parts() -> None:
    shown = repr(Summarized(max_tokens=1_000, keep_recent_turns=2, summary_client=None).client)
    assert shown.splitlines()[0] == "Summarizer(max_tokens=1000, keep_recent_turns=2)"


def test_the_defaults_are_those_of_the_seed() -> None:
    layer = find(Summarized(max_tokens=1_000).client, Summarizer)
    assert layer is not None
    assert (layer.max_context_items, layer.keep_recent_turns, layer.summary_prompt) == (None, 3, SUMMARY_PROMPT)


# What is folded


def test_within_the_limits_exactly_what_came_is_sent() -> None:
    history = talk(9)
    summarized = Summarized(max_tokens=size(history), max_context_items=len(history))
    assert [*map(id, summarized.send(history))] == [*map(id, history)]
    assert summarized.summarizer.requests == []
    assert (summarized.folds, summarized.capture.warnings) == ((), ())


@pytest.mark.parametrize("limit", ["max_tokens", "max_context_items"])
def test_over_a_limit_by_one_the_oldest_become_one_summary(limit: str) -> None:
    history = talk(9)
    most = size(history) if limit == "max_tokens" else len(history)
    options: dict[str, Any] = {limit: most - 1}
    sent = Summarized(**options).send(history)
    summary = Message("assistant", (*Message.assistant(f"{OPENING}\nfacts 1 2 3 4 5 6").parts,), mark="summary")
    assert sent == [TASK, summary, *history[-5:]]


@pytest.mark.parametrize("keep", [1, 2, 3, 5])
def test_the_newest_turns_stay_word_for_word(keep: int) -> None:
    history = talk(12)
    sent = Summarized(max_tokens=size(history) - 1, keep_recent_turns=keep).send(history)
    assert sent[2:] == history[-(2 * keep - 1) :]
    assert [*map(id, sent[2:])] == [*map(id, history[-(2 * keep - 1) :])]


def test_with_one_turn_beside_those_that_stay_it_is_not_a_turn_that_goes() -> None:
    """The seed: with more than keep_recent_turns + 1 turns. With fewer, what was done goes, what was asked stays."""
    history = [TASK]
    for number in range(1, 5):
        history += [Message.assistant(f"said {number} {LONG}"), Message.user(f"fact {number}: short")]
    users = [message for message in history if message.role == "user"]
    for keep, stays in ((4, users), (3, [TASK, *users[-3:]])):
        sent = Summarized(max_tokens=size(history) - 1, keep_recent_turns=keep).send(history)
        assert [message for message in sent if message.role == "user"] == stays
        assert len(summaries_in(ChatRequest(tuple(sent)))) == 1


def test_the_room_for_the_answer_does_not_count() -> None:
    """A provider that reserves more than the limit by itself would else make it fold on every call."""
    history = talk(9)
    for options in (ChatOptions(max_tokens=8_192), ChatOptions(extra={"max_completion_tokens": 8_192})):
        assert Summarized(max_tokens=size(history)).send(history, options=options) == history
    assert Summarized(max_tokens=size(history) - 1).send(history) != history


def test_instructions_and_tools_count() -> None:
    history = talk(9)
    declared = ToolDeclaration("look", "x" * 400)
    for options in (ChatOptions(instructions="x" * 400), ChatOptions(tools=(declared,))):
        assert Summarized(max_tokens=size(history) + 50).send(history, options=options) != history
    assert Summarized(max_tokens=size(history) + 50).send(history) == history


def test_asked_again_it_sends_the_same_and_pays_nothing() -> None:
    history = talk(9)
    summarized = Summarized(max_tokens=size(history) - 1)
    first = summarized.send(history)
    assert summarized.send(history) == first
    assert summarized.send([*history, *turn(9), Message.user("go on")])[: len(first)] == first
    assert len(summarized.summarizer.requests) == len(summarized.folds) == 1


def test_going_back_in_a_history_that_was_long_when_first_seen_keeps_its_summary_as_long_as_it_fits() -> None:
    history = talk(40)
    summarized = Summarized(max_tokens=size(history) * 2 // 3)
    first = summarized.send(history)
    for back in range(1, 3):
        sent = summarized.send([*history[: -1 - 2 * back], Message.user(f"no, rather {back}")])
        assert sent[:2] == first[:2]
        assert sent[-1].text == f"no, rather {back}"
    assert len(summarized.summarizer.requests) == 1
    summarized.send([*history[:-31], Message.user("from the middle")])
    assert summarized.model.requests[-1].messages[-2:] == (history[-32], Message.user("from the middle"))


def test_the_next_summary_takes_in_the_one_before() -> None:
    summarized = Summarized(max_tokens=1_500)
    history = talk(1)
    for number in range(1, 60):
        summarized.send(history, conversation_id="one")
        history = [*history[:-1], *turn(number), Message.user("and now?")]
    told = [entries_in(request)[0] for request in summarized.summarizer.requests]
    assert len(told) >= 5
    assert [each.who for each in told] == ["user (stays)", *["summary so far"] * (len(told) - 1)]
    (summary,) = summaries_in(summarized.model.requests[-1])
    numbers = [int(word) for word in summary.text.removeprefix(f"{OPENING}\nfacts ").split()]
    assert numbers == list(range(1, len(numbers) + 1))  # each once, in order, none lost
    assert OPENING not in "".join(each.text for each in told)


def test_the_deeper_it_compresses_the_rarer_it_must() -> None:
    counts: list[int] = []
    for share in (0.9, 0.6, 0.3):
        summarized = Summarized(max_tokens=2_000, compress_to=share, keep_recent_turns=1)
        history = [TASK]
        for number in range(100):
            history += [Message.assistant("", ToolCall(f"c{number}", "look")), Message.tool(f"c{number}", LONG)]
            summarized.send(history)
        counts.append(len(summarized.summarizer.requests))
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts)) == 3


def test_where_the_provider_holds_the_history_it_stands_aside_and_says_so_once() -> None:
    summarized = Summarized(max_tokens=500)
    for _ in range(3):
        assert summarized.send(talk(9), options=ChatOptions(extra={"previous_response_id": "r"})) == talk(9)
    assert summarized.capture.warnings == ("context_layers_bypassed",)
    assert summarized.summarizer.requests == []


# What stays whatever happens


@pytest.mark.slow
def test_after_twenty_summaries_what_is_protected_is_word_for_word_there_and_was_in_none_of_them() -> None:
    summarized = Summarized(max_tokens=1_500)
    head = Message.system("head: be brief")
    history: list[Message] = [head, TASK, Message.assistant("ok")]
    options, kept = ChatOptions(instructions="instructions: you are a travel agent"), [head, TASK]
    number = 1
    while len(summarized.summarizer.requests) < 20:
        assert number < 500
        history += turn(number)
        if number % 40 == 3:
            pinned = [Message.system(f"between: {number}"), Message.user(f"pinned: {number}", pinned=True)]
            pinned += [Message.assistant(f"pinned: said {number}", pinned=True)]
            history += pinned
            kept += pinned
        question = Message.user("and now?")
        before = [*history, question]
        sent = summarized.send(before, options=options)
        assert summarized.model.requests[-1].options.instructions == options.instructions
        assert is_subsequence(kept, sent)
        assert is_subsequence([message for message in sent if message.mark == ""], before)
        assert sent[0] is head
        assert sent[-1] is question
        number += 1
    assert len(kept) > 10
    asked = "".join(message.text for request in summarized.summarizer.requests for message in request.messages)
    for word in ("head:", "between:", "pinned:", "instructions:"):
        assert word not in asked
    (summary,) = summaries_in(summarized.model.requests[-1])
    assert "Sundays" not in summary.text  # it need not be repeated: the message is there
    assert summarized.capture.warnings == ()


def test_a_pinned_call_stays_with_its_result() -> None:
    call = Message.assistant(ToolCall("p", "look"), pinned=True)
    result = Message.tool("p", "pinned: seen")
    history = [TASK, call, result, *turns(1, 9), Message.user("and now?")]
    summarized = Summarized(max_tokens=size(history) - 1)
    assert summarized.send(history)[:3] == [TASK, call, result]
    assert "pinned:" not in summarized.summarizer.requests[0].messages[0].text


# What is asked for


def test_the_request_for_a_summary_inherits_nothing() -> None:
    summarized = Summarized(max_tokens=1_000, max_summary_tokens=200, summary_prompt='Facts only: {"a": {0}}')
    options = ChatOptions(
        model="large",
        instructions="secret instructions",
        tools=(ToolDeclaration("look"),),
        tool_choice="look",
        parallel_tool_calls=True,
        max_tokens=50,
        temperature=0.3,
        top_p=0.5,
        stop=("x",),
        seed=7,
        reasoning_effort="high",
        output_schema=OutputSchema("answer", "{}"),
        extra={"user": "me"},
    )
    summarized.send(talk(9), options=options, conversation_id="c-1")
    (request,) = summarized.summarizer.requests
    assert request.options.instructions.startswith('Facts only: {"a": {0}}\n')
    assert "secret" not in request.options.instructions
    assert request.options == ChatOptions(instructions=request.options.instructions, max_tokens=200)
    assert (request.conversation_id, request.stream) == ("c-1", False)
    assert summarized.model.requests[0].options is options


@pytest.mark.parametrize(("max_tokens", "most"), [(None, 2_048), (100, 64), (4_000, 1_000), (100_000, 8_192)])
def test_a_summary_may_have_a_quarter_of_the_limit(max_tokens: int | None, most: int) -> None:
    summarized = Summarized(max_tokens=max_tokens, max_context_items=10)
    summarized.send(talk(9))
    assert summarized.summarizer.requests[0].options.max_tokens == most


def test_a_summary_says_what_it_stands_for_who_wrote_it_and_what_it_cost() -> None:
    history = talk(9)
    summarized = Summarized(max_tokens=size(history) - 1)
    annotation = summarized.send(history)[1].annotation
    assert annotation is not None
    assert annotation.strategy == "summarize"
    assert annotation.tokens_before == size(history[1:-5])
    assert (annotation.model, annotation.prompt_version) == ("script", version_of(SUMMARY_PROMPT))
    spent = summarized.summarizer.spent
    assert (annotation.input_tokens, annotation.output_tokens) == (spent.input_tokens, spent.output_tokens) != (0, 0)


# Whose summary it is


def reminded(number: int, history: list[Message]) -> list[Message]:
    return [*history, Message.user(f"Reminder {number}: be brief.")]


CALLERS: dict[str, Callable[[int, list[Message]], tuple[list[Message], ChatOptions]]] = {
    "a reminder at the end": lambda number, history: (reminded(number, history), ChatOptions()),
    "a system message at the end": lambda number, history: (
        [*history, Message.system(f"It is {number} o'clock.")],
        ChatOptions(),
    ),
    "a system message within": lambda number, history: (
        [*history[:-1], Message.system(f"It is {number} o'clock."), history[-1]],
        ChatOptions(),
    ),
    "another system message at the head": lambda number, history: (
        [Message.system(f"It is {number} o'clock."), *history],
        ChatOptions(),
    ),
    "what was found, before the question": lambda number, history: (
        [*history[:-1], Message.user(f"{'found ' * 30}{number}\n{history[-1].text}")],
        ChatOptions(),
    ),
    "other instructions": lambda number, history: (history, ChatOptions(instructions=f"It is {number} o'clock.")),
    "other tools": lambda number, history: (
        history,
        ChatOptions(tools=tuple(ToolDeclaration(f"tool-{each}", "x" * 40) for each in range(number % 3))),
    ),
    "fresh messages": lambda number, history: (decoded_again(history), ChatOptions()),
}


def forty_turns(summarized: Summarized, caller: str = "") -> None:
    """A conversation of that many, in which the caller adds something to each request that is not kept."""
    history = [TASK, Message.assistant("ok")]
    for number in range(1, 41):
        history.append(Message.user(f"fact {number}: {LONG}"))
        sent, options = CALLERS[caller](number, history) if caller else (history, ChatOptions())
        summarized.model.answers = [f"noted {number} {LONG}"]
        history += summarized.ask(sent, options=options).messages


@pytest.mark.sampled(3)
@pytest.mark.parametrize("caller", CALLERS)
def test_what_a_caller_adds_to_each_request_and_does_not_keep_costs_no_summary_more(caller: str) -> None:
    plain, other = Summarized(max_tokens=1_500), Summarized(max_tokens=1_500)
    forty_turns(plain)
    forty_turns(other, caller)
    assert len(other.summarizer.requests) == len(plain.summarizer.requests) == 4
    told = [entry.text for each in other.summarizer.requests for entry in entries_in(each) if entry.who == "user"]
    assert len(told) == len(set(told))
    assert max(map(sent_tokens, other.model.requests)) <= 1_500
    assert other.capture.warnings == ()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("caller", CALLERS)
def test_a_summary_that_keeps_going_wrong_is_seldom_tried_whatever_a_caller_adds(caller: str) -> None:
    """No time passes here, so it rests after the first one; the answer was empty, so the client is not down."""
    useless = ScriptedClient([""])
    summarized = Summarized(max_tokens=1_500, summary_client=useless, memory=ContextMemory(clock=lambda: 0.0))
    forty_turns(summarized, caller)
    assert len(useless.requests) == 1
    assert summarized.capture.warnings == ("summarizer_failed",)


@pytest.mark.parametrize(
    ("options", "is_shared"),
    [
        ({"max_tokens": 1_000}, True),
        ({"max_tokens": 1_200, "max_summary_tokens": 100}, True),
        ({"max_context_items": 12}, True),
        ({"max_tokens": 1_500, "keep_recent_turns": 1}, True),
        ({"max_tokens": 1_500, "compress_to": 0.3}, True),
        ({"max_tokens": 1_500, "summary_prompt": "Other things matter."}, False),
    ],
    ids=str,
)
def test_a_summary_serves_other_limits_too_but_no_other_prompt(options: dict[str, Any], is_shared: bool) -> None:
    memory, history = ContextMemory(), talk(12)
    first = Summarized(memory=memory, max_tokens=1_500)
    first.send(history, conversation_id="one")
    other = Summarized(memory=memory, **options)
    sent = other.send(history, conversation_id="one")
    assert (other.summarizer.requests == []) is is_shared
    assert summaries_in(ChatRequest(tuple(sent))) == summaries_in(first.model.requests[-1])
    assert len(other.folds) == (not is_shared)  # to go by an own cut again is no edit


@pytest.mark.parametrize(("changed", "is_shared"), [(-2, True), (-4, True), (-8, False), (3, False)])
def test_where_a_folded_message_was_edited_the_summary_does_not_hold(changed: int, is_shared: bool) -> None:
    memory, history = ContextMemory(), talk(12)
    Summarized(memory=memory, max_tokens=1_500).send(history, conversation_id="one")
    history[changed] = Message.assistant("I take it all back.")
    other = Summarized(memory=memory, max_tokens=1_500)
    other.send(history, conversation_id="one")
    assert (other.summarizer.requests == []) is is_shared
    if not is_shared:
        assert "I take it all back." in other.summarizer.requests[0].messages[0].text


# Without a client of its own


def answers_or_summarizes(request: ChatRequest) -> Answer:
    return numbers_in(request) if request.options.instructions.startswith(SUMMARY_PROMPT[:40]) else "ok"


class Stamp:
    """A layer that is nobody's business but the provider's."""

    def __init__(self, inner: ChatClient, *, seen: list[ChatRequest]) -> None:
        self.inner = inner
        self.seen = seen

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.seen.append(request)
        return await self.inner.send(request)


@pytest.mark.parametrize("with_reporter", [False, True])
def test_the_provider_writes_it_itself_past_guard_tool_loop_and_reporter(with_reporter: bool) -> None:
    seen: list[ChatRequest] = []
    model = Ruled(answers_or_summarizes)
    reporter: list[tuple[Layer, dict[str, Any]]] = [(ProgressReporter, {})] if with_reporter else []
    summarized = Summarized(
        provider=model,
        around=[*reporter, (FunctionInvoker, {"tools": [look]})],
        within=[
            (ContextWindowGuard, {"max_context_tokens": 1_200, "prune_on_overflow": True}),
            (Stamp, {"seen": seen}),
        ],
        summary_client=None,
        max_tokens=1_000,
    )
    history = talk(12)
    options = ChatOptions(model="large", temperature=0.3, tool_choice="auto", extra={"user": "me"})
    response = summarized.ask(history, options=options)
    asked, sent = model.requests
    assert seen == [asked, sent]  # what goes around the provider alone still does
    assert sent_tokens(asked) > 1_200  # the guard would have cut that
    assert all(message.text in asked.messages[0].text for message in history[2:18])
    assert asked.options == ChatOptions(model="large", instructions=asked.options.instructions, max_tokens=250)
    assert [each.name for each in sent.options.tools if isinstance(each, ToolDeclaration)] == ["look"]
    assert [message.text for message in summaries_in(sent)] == [f"{OPENING}\nfacts {' '.join(map(str, range(1, 10)))}"]
    assert summarized.capture.warnings == ()
    assert len([span for span in summarized.capture.spans if span.name.startswith("invoke_agent")]) == with_reporter
    assert response.rounds == 1
    assert response.text == "ok"
    assert response.usage + response.overhead_usage == model.spent


def look(at: str) -> str:
    """Look there."""
    return at


# What is said


@pytest.mark.parametrize("streams", [False, True])
def test_a_fold_is_one_span_with_the_chat_of_the_summary_inside(streams: bool) -> None:
    history = talk(9)
    summarized = Summarized(max_tokens=size(history) - 1, around=[(ProgressReporter, {})])

    async def stream() -> None:
        async with summarized.client.get_streaming_response(history) as updates:
            async for _ in updates:
                pass

    if streams:
        asyncio.run(stream())
    else:
        summarized.send(history)
    sent = summarized.model.requests[-1]
    ((root, children),) = summarized.capture.tree()
    assert root.startswith("invoke_agent")
    assert children == [(FOLD, [("chat script", [])]), ("chat script", [])]
    span = summarized.capture.span(FOLD)
    about = {name.removeprefix("chatstack."): value for name, value in span.attributes.items()}
    assert about["severity"] == "INFO"
    assert about["compaction.strategy"] == "summarize"
    assert (about["compaction.tokens_before"], about["compaction.tokens_after"]) == (size(history), sent_tokens(sent))
    assert (about["compaction.messages_before"], about["compaction.messages_after"]) == (len(history), 7)
    assert about["compaction.reason"] == (
        f"{size(history):,} tokens, more than {size(history) - 1:,}; 13 messages into one summary"
    )
    assert (span.status, span.kind) == ("unset", "INTERNAL")
    assert "chatstack.warning.code" not in span.attributes


def test_the_edited_request_is_called_compacted_and_the_one_for_its_summary_is_not() -> None:
    summarized = Summarized(max_tokens=1_000)
    history = talk(1)
    for number in range(1, 20):
        summarized.send(history, conversation_id="one")
        history = [*history[:-1], *turn(number), Message.user("and now?")]
    folds = {span.span_id for span in summarized.folds}
    chats = summarized.capture.spans_named("chat script")
    of_summaries = [span for span in chats if span.parent_id in folds]
    others = [span for span in chats if span.parent_id not in folds]
    assert len(of_summaries) == len(summarized.summarizer.requests) == len(folds) >= 2
    assert not any("gen_ai.conversation.compacted" in span.attributes for span in of_summaries)
    is_edited = [bool(summaries_in(request)) for request in summarized.model.requests]
    assert [span.attributes.get("gen_ai.conversation.compacted", False) for span in others] == is_edited
    assert True in is_edited
    assert False in is_edited


def test_no_text_of_anybody_is_said() -> None:
    summarized = Summarized(max_tokens=500)
    summarized.send([Message.user("secret task"), *turns(1, 9), Message.user("secret wish")])
    assert len(summarized.folds) == 1
    for word in ("secret", "rain", "facts"):
        assert word not in summarized.capture.said()


# What it costs


def test_what_a_summary_cost_is_told_with_the_answer_it_was_made_for_and_once() -> None:
    history = talk(9)
    summarized = Summarized(max_tokens=size(history) - 1)
    first, again = summarized.ask(history), summarized.ask(history)
    assert first.overhead_usage == summarized.summarizer.spent != Usage()
    assert again.overhead_usage == Usage()
    assert (
        first.usage == again.usage == Usage(sent_tokens(summarized.model.requests[0]), size([Message.assistant("ok")]))
    )


def test_where_the_answer_fails_the_next_one_tells_what_the_summary_cost() -> None:
    history = talk(9)
    summarized = Summarized(max_tokens=size(history) - 1, provider=ScriptedClient([ServerError("down"), "ok"]))
    with pytest.raises(ServerError):
        summarized.ask(history)
    assert summarized.ask(history).overhead_usage == summarized.summarizer.spent != Usage()
    assert summarized.ask(history).overhead_usage == Usage()
    assert len(summarized.summarizer.requests) == 1
