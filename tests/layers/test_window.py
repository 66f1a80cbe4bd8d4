"""The context window: compress, then truncate, and no more tool calls in a turn than are allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from chatstack import (
    ChatClient,
    ChatOptions,
    ChatRequest,
    ChatStack,
    ContextMemory,
    ContextWindow,
    FunctionInvoker,
    Image,
    LayerOrderWarning,
    Message,
    ServerError,
    Summarizer,
    SummaryClient,
    TableCounter,
    ToolCall,
    ToolDeclaration,
    ToolLoopError,
    ToolResult,
    WiringError,
    from_config,
    named,
)
from chatstack.context.edits.summaries import OPENING
from chatstack.testing import Answer, ScriptedClient, TelemetryCapture
from chatstack.tools.turn import OVER_LIMIT
from tests.layers.test_summarizer import BAD_OPTIONS, LONG, TASK, numbers_in, talk, turn
from tests.layers.travel import FOLD, Ruled, entries_in, items, sent_tokens, summaries_in

CUT = "compact_context truncate"
LOOK = ToolDeclaration("look")


def look(place: int) -> str:
    """Look at a place."""
    return f"seen {place}"


class Windowed:
    """A stack with a window, and all that was sent and said."""

    def __init__(
        self, window: Any = ContextWindow, *, model: ScriptedClient | None = None, loop: int = 0, **options: Any
    ) -> None:
        self.model, self.capture = model or ScriptedClient(["ok"]), TelemetryCapture()
        memory: ContextMemory = options.pop("memory", None) or ContextMemory()
        stack = ChatStack(self.model, memory=memory)
        if loop:
            stack = stack.use(FunctionInvoker, tools=[look], max_tool_calls_per_turn=loop)
        self.client = stack.use(window, **options).build(self.capture.resolve)

    def send(self, messages: Sequence[Message], options: ChatOptions | None = None) -> ChatRequest:
        asyncio.run(self.client.get_response(messages, options=options))
        return self.model.requests[-1]


# Options


@pytest.mark.parametrize(
    ("options", "parameter", "said"),
    [
        *BAD_OPTIONS,
        *(
            (
                {"max_tool_calls_per_turn": bad},
                "max_tool_calls_per_turn",
                f"max_tool_calls_per_turn={bad!r} must be a whole number, at least 1, or None",
            )
            for bad in (0, -1, 1.5, True, "10")
        ),
    ],
)
def test_a_bad_value_names_the_window_the_parameter_and_the_value(
    options: dict[str, Any], parameter: str, said: str
) -> None:
    given: dict[str, Any] = {"max_tokens": 1_000, **options}
    for make in (ContextWindow, Windowed):
        with pytest.raises(WiringError) as caught:
            make(**given)
        assert str(caught.value) == f"ContextWindow: {said}"
        assert (caught.value.layer, caught.value.parameter) == ("ContextWindow", parameter)


def test_a_misspelt_option_is_told_with_the_nearest_one() -> None:
    with pytest.raises(WiringError, match=r"'ContextWindow'.*'max_token'.*did you mean 'max_tokens'"):
        Windowed(max_token=1_000)


def test_the_defaults_are_those_of_the_seed() -> None:
    window = ContextWindow()
    assert (window.max_tokens, window.max_context_items, window.keep_recent_turns) == (None, None, 3)
    assert (window.max_tool_calls_per_turn, window.summary_client) == (10, None)


def test_the_options_of_the_seed_can_be_given_in_its_order() -> None:
    client = ScriptedClient()
    window = ContextWindow(4_000, 20, 3, 10, client)
    assert window == ContextWindow(
        max_tokens=4_000, max_context_items=20, keep_recent_turns=3, max_tool_calls_per_turn=10, summary_client=client
    )


def test_the_repr_shows_the_options() -> None:
    shown = "ContextWindow(max_tokens=4000, max_context_items=20, keep_recent_turns=2"
    assert repr(ContextWindow(4_000, 20, 2)) == f"{shown})"
    built = repr(Windowed(max_tokens=4_000, max_context_items=20, keep_recent_turns=2).client)
    assert built.startswith(f"WindowKeeper(strategy={shown}")
    stack = ChatStack(ScriptedClient()).use(ContextWindow, max_tokens=4_000)
    assert repr(stack).splitlines()[1] == "    .use(ContextWindow, max_tokens=4000)"


def test_outside_the_tool_loop_it_is_warned_of() -> None:
    stack = ChatStack(ScriptedClient()).use(ContextWindow, max_tokens=4_000).use(FunctionInvoker, tools=[look])
    with pytest.warns(LayerOrderWarning, match="ContextWindow"):
        stack.build()


# As a layer

LIMIT = 1_000


@pytest.mark.parametrize("way", ["class", "instance", "instance with another counter's name", "config"])
def test_it_is_a_layer_by_class_by_instance_and_by_config(way: str) -> None:
    model, summarizer = ScriptedClient(["ok"]), Ruled(numbers_in)
    given: dict[str, Any] = {"max_tokens": LIMIT, "keep_recent_turns": 2}
    stack = ChatStack(model)
    if way == "class":
        stack = stack.use(ContextWindow, **given, summary_client=summarizer)
    elif way == "instance":
        stack = stack.use(ContextWindow(**given, summary_client=summarizer))
    elif way == "config":
        stack = from_config({"layers": [{"use": "ContextWindow", **given}]}, provider=model)
        stack = stack.override("ContextWindow", summary_client=summarizer)
    else:
        stack = stack.use(named("window", ContextWindow(**given)), summary_client=summarizer)
    asyncio.run(stack.build().get_response(talk(12)))
    summary = Message("assistant", Message.assistant(f"{OPENING}\nfacts 1 2 3 4 5 6").parts, mark="summary")
    assert model.requests[0].messages == (TASK, summary, *talk(12)[-11:])


@pytest.mark.parametrize("limit", [{}, {"max_tool_calls_per_turn": None}])
def test_without_limits_exactly_what_came_is_sent(limit: dict[str, Any]) -> None:
    history = talk(300)
    windowed = Windowed(**limit)
    request = windowed.send(history)
    assert [*map(id, request.messages)] == [*map(id, history)]
    assert [span.name for span in windowed.capture.spans] == ["chat script"]


def test_it_compresses_as_the_summarizer_alone_does() -> None:
    sent: list[list[tuple[Message, ...]]] = []
    for kind in (ContextWindow, Summarizer):
        windowed = Windowed(kind, max_tokens=1_500, max_context_items=16, summary_client=Ruled(numbers_in))
        history = talk(1)
        for number in range(1, 40):
            windowed.send(history)
            history = [*history[:-1], *turn(number), Message.user("and now?")]
        sent.append([request.messages for request in windowed.model.requests])
    assert sent[0] == sent[1]
    assert summaries_in(ChatRequest(sent[0][-1]))


def test_the_table_of_the_seed_can_do_the_counting() -> None:
    """A picture is 300 tokens by the table, and 1,000 by the counter that is used if none is given."""
    pictures = [Message.user("look", Image(url=f"https://example.org/{number}.png")) for number in range(6)]
    history = [TASK, *(message for each in pictures for message in (each, Message.assistant("nice")))]
    history.append(Message.user("and?"))
    table = TableCounter()
    counted = sum(map(table.count_message, history))
    for counter, limit, is_folded in ((table, counted, False), (table, counted - 1, True), (None, counted, True)):
        windowed = Windowed(max_tokens=limit, counter=counter, summary_client=ScriptedClient(["pictures"]))
        assert bool(summaries_in(windowed.send(history))) is is_folded
        if counter is table and is_folded:
            (span,) = windowed.capture.spans_named(FOLD)
            assert span.attributes["chatstack.compaction.tokens_before"] == counted
            after = sum(map(table.count_message, windowed.model.requests[0].messages))
            assert span.attributes["chatstack.compaction.tokens_after"] == after


# Who summarizes


class Asked:
    """A container that remembers what it was asked for."""

    def __init__(self, services: dict[Any, object]) -> None:
        self.services = services
        self.kinds: list[object] = []

    def __call__(self, kind: type) -> object:
        self.kinds.append(kind)
        return self.services.get(kind)


def test_the_container_has_it_under_a_key_of_its_own_and_never_as_a_chat_client() -> None:
    model, summarizer, other = ScriptedClient(["ok"]), Ruled(numbers_in), ScriptedClient(["other"])
    for stack in (
        ChatStack(model).use(ContextWindow, max_tokens=LIMIT),
        ChatStack(model).use(ContextWindow(LIMIT)),
        ChatStack(model).use(Summarizer, max_tokens=LIMIT),
    ):
        before = len(summarizer.requests)
        container = Asked({SummaryClient: summarizer, ChatClient: other})
        asyncio.run(stack.build(container).get_response(talk(12)))
        assert len(summarizer.requests) == before + 1
        assert summaries_in(model.requests[-1])
        assert SummaryClient in container.kinds
        assert ChatClient not in container.kinds
        assert other.requests == []


def test_the_one_that_is_given_wins_over_the_container() -> None:
    given, bound = Ruled(numbers_in), Ruled(numbers_in)
    container = Asked({SummaryClient: bound})
    for stack in (
        ChatStack(ScriptedClient()).use(ContextWindow, max_tokens=LIMIT, summary_client=given),
        ChatStack(ScriptedClient()).use(ContextWindow(LIMIT, summary_client=given)),
    ):
        asyncio.run(stack.build(container).get_response(talk(12)))
    assert (len(given.requests), len(bound.requests)) == (2, 0)


def test_with_neither_the_model_that_answers_writes_them() -> None:
    model = ScriptedClient(["facts of old", "ok"])
    windowed = Windowed(model=model, max_tokens=LIMIT)
    request = windowed.send(talk(12))
    assert [message.text for message in summaries_in(request)] == [f"{OPENING}\nfacts of old"]
    assert len(model.requests) == 2


# Truncation


def test_while_no_summary_can_be_had_it_truncates_and_the_next_summary_knows_what_was_truncated() -> None:
    now = [0.0]
    is_down = [True]

    def unreliable(request: ChatRequest) -> Answer:
        return ServerError("down") if is_down[0] else numbers_in(request)

    summarizer = Ruled(unreliable)
    windowed = Windowed(
        max_tokens=LIMIT, max_context_items=20, summary_client=summarizer, memory=ContextMemory(clock=lambda: now[0])
    )
    history: list[Message] = [TASK]
    for number in range(1, 30):
        if number == 25:
            is_down[0] = False
            now[0] += 3_600
        answer, question = Message.assistant(f"noted {number} {LONG}"), Message.user(f"fact {number}: {LONG}")
        history += [answer, question]
        request = windowed.send(history)
        assert sent_tokens(request) <= LIMIT
        assert items(request) <= 20
        assert (request.messages[0], request.messages[-1]) == (TASK, question)
        assert len(summaries_in(request)) == (number >= 25)
    assert windowed.capture.warnings == ("summarizer_failed",)
    assert len(windowed.capture.spans_named(CUT)) >= 3
    asked = summarizer.requests[1]  # the first one after the failure
    facts = [entry.text.split(":")[0] for entry in entries_in(asked) if entry.who == "user"]
    assert facts == [f"fact {number}" for number in range(1, len(facts) + 1)]
    assert len(facts) > 18
    (summary,) = summaries_in(windowed.model.requests[-1])
    left = [message.text.split(":")[0] for message in windowed.model.requests[-1].messages if message.role == "user"]
    known = [*map(int, summary.text.removeprefix(f"{OPENING}\nfacts ").split())]
    known += [int(text.removeprefix("fact ")) for text in left[1:]]
    assert known == list(range(1, 30))  # nothing is lost for good


def test_what_may_not_go_into_a_summary_is_truncated_behind_it() -> None:
    """What the model has not seen yet is not summarized; but the limit holds."""
    unseen = [Message.user(f"fact {number}: {'x' * 1_200}") for number in range(90, 94)]
    history = [TASK, Message.assistant("ok"), *(message for number in range(1, 7) for message in turn(number)), *unseen]
    windowed = Windowed(max_tokens=LIMIT, summary_client=Ruled(numbers_in), keep_recent_turns=1)
    request = windowed.send(history)
    assert sent_tokens(request) <= LIMIT
    assert (request.messages[0], request.messages[-1]) == (TASK, unseen[-1])
    assert summaries_in(request)[0].text.endswith("facts 1 2 3 4 5 6")
    assert (len(windowed.capture.spans_named(FOLD)), len(windowed.capture.spans_named(CUT))) == (1, 1)
    assert windowed.capture.warnings == ()


def test_where_only_protected_messages_are_left_it_sends_them_and_warns() -> None:
    system, pinned = Message.system("s" * 4_000), Message.user("p" * 4_000, pinned=True)
    history = [system, Message.user("x" * 4_000), Message.assistant("ok"), pinned, Message.user("y" * 4_000)]
    windowed = Windowed(max_tokens=LIMIT, summary_client=Ruled(numbers_in))
    for _ in range(3):
        assert windowed.send(history).messages == (*history[:2], *history[3:])
    assert set(windowed.capture.warnings) == {"edit_ineffective"}
    assert len(windowed.capture.spans_named(CUT)) == 1  # what went; that it was not enough is said by the summarizer
    assert windowed.capture.warnings == ("edit_ineffective",)


# Calls of a turn


def calls(first: int, last: int, *, together: bool = False) -> list[Message]:
    """Rounds of one call each, or one round of them all."""
    numbers = range(first, last)
    asked = [ToolCall(f"c{number}", "look", f'{{"place": {number}}}') for number in numbers]
    answered = [Message.tool(f"c{number}", "seen", name="look") for number in numbers]
    if together:
        return [Message.assistant(*asked), *answered]
    return [
        message for call, result in zip(asked, answered, strict=True) for message in (Message.assistant(call), result)
    ]


def in_user_messages(messages: Sequence[Message]) -> list[Message]:
    """Results in user messages, as one wire has them."""
    return [Message("user", each.parts) if each.role == "tool" else each for each in messages]


@pytest.mark.parametrize(
    ("history", "is_allowed"),
    [
        ([TASK, *calls(0, 3)], True),
        ([TASK, *calls(0, 4)], False),
        ([TASK, *calls(0, 9)], False),
        ([TASK, *calls(0, 4, together=True)], False),
        ([TASK, *calls(0, 3, together=True)], True),
        ([TASK, *calls(0, 9), Message.assistant("done"), Message.user("more"), *calls(10, 13)], True),
        ([TASK, *calls(0, 2), Message.assistant("done"), Message.user("more"), *calls(10, 14)], False),
        ([TASK, *calls(0, 2), Message.user("by the way"), *calls(10, 13)], True),
        ([TASK, *in_user_messages(calls(0, 4))], False),
        ([Message("user", (ToolResult("x", "look", "by hand"),)), TASK, *calls(0, 3)], True),
    ],
)
def test_calls_are_counted_since_the_last_message_of_the_user(history: list[Message], is_allowed: bool) -> None:
    windowed = Windowed(max_tool_calls_per_turn=4)
    options = ChatOptions(tools=(LOOK,), tool_choice="auto", temperature=0.3)
    request = windowed.send(history, options)
    assert request.options == (options if is_allowed else options.but(tool_choice="none"))
    # Nine calls were four a while ago: then it was said.
    is_news = not is_allowed and len(history) < 19
    assert windowed.capture.warnings.count("tool_loop_limit_reached") == is_news


@pytest.mark.parametrize(
    "options", [ChatOptions(), ChatOptions(tools=(LOOK,), tool_choice="none")], ids=["no tools", "not allowed anyway"]
)
def test_where_no_tool_may_be_called_there_is_nothing_to_forbid(options: ChatOptions) -> None:
    windowed = Windowed(max_tool_calls_per_turn=4)
    assert windowed.send([TASK, *calls(0, 9)], options).options is options
    assert windowed.capture.warnings == ()


def looks_on(request: ChatRequest) -> Answer:
    """Calls as long as it may."""
    if request.options.tool_choice == "none":
        return "I have seen enough."
    number = len(request.messages)
    return Message.assistant(ToolCall(f"c{number}", "look", f'{{"place": {number}}}'))


@pytest.mark.parametrize(
    ("of_window", "of_loop", "run"), [(3, 10, 3), (10, 3, 3), (4, 4, 4), (None, 5, 5), (1, 10, 1)], ids=str
)
def test_of_two_limits_the_smaller_one_wins_and_is_warned_of_once(
    of_window: int | None, of_loop: int, run: int
) -> None:
    windowed = Windowed(model=Ruled(looks_on), loop=of_loop, max_tool_calls_per_turn=of_window)
    response = asyncio.run(windowed.client.get_response(TASK))
    assert response.text == "I have seen enough."
    assert [result.text[:4] for message in response.messages for result in message.results] == ["seen"] * run
    assert len(windowed.model.requests) == run + 1
    for number, request in enumerate(windowed.model.requests):
        assert [tool.name for tool in request.options.tools if isinstance(tool, ToolDeclaration)] == ["look"]
        assert (request.options.tool_choice == "none") is (number == run)
    assert windowed.capture.warnings == ("tool_loop_limit_reached",)
    (span,) = windowed.capture.spans_named("tool_loop")
    assert (span.attributes["chatstack.tools.calls"], span.attributes["chatstack.tools.limit"]) == (run, run)


def test_the_next_turn_may_call_again() -> None:
    windowed = Windowed(model=Ruled(looks_on), loop=10, max_tool_calls_per_turn=3)
    history = [TASK]
    for _ in range(3):
        response = asyncio.run(windowed.client.get_response(history))
        assert sum(len(message.results) for message in response.messages) == 3
        history += [*response.messages, Message.user("again")]


def in_rounds_of(many: int, *, is_obedient: bool) -> Callable[[ChatRequest], Answer]:
    """Calls that many tools at once, and again, as long as it may; or whatever it may."""

    def rule(request: ChatRequest) -> Answer:
        if is_obedient and request.options.tool_choice == "none":
            return "I have seen enough."
        places = range(len(request.messages), len(request.messages) + many)
        return Message.assistant(*(ToolCall(f"c{place}", "look", f'{{"place": {place}}}') for place in places))

    return rule


@pytest.mark.parametrize(
    ("many", "of_window", "of_loop", "run", "refused"),
    [(3, 4, 10, 4, 2), (3, 4, 2, 2, 1), (3, 6, 10, 6, 0), (5, 4, 9, 4, 1)],
)
def test_calls_over_the_limit_in_the_middle_of_a_round_get_an_error_result(
    many: int, of_window: int, of_loop: int, run: int, refused: int
) -> None:
    rule = in_rounds_of(many, is_obedient=True)
    windowed = Windowed(model=Ruled(rule), loop=of_loop, max_tool_calls_per_turn=of_window)
    response = asyncio.run(windowed.client.get_response(TASK))
    results = [result for message in response.messages for result in message.results]
    assert [result.is_error for result in results] == [False] * run + [True] * refused
    assert {result.output for result in results if result.is_error} <= {OVER_LIMIT}
    assert response.text == "I have seen enough."
    assert windowed.capture.warnings == ("tool_loop_limit_reached",)


def test_what_was_called_since_the_user_spoke_counts_before_the_turn_too() -> None:
    windowed = Windowed(model=Ruled(in_rounds_of(3, is_obedient=True)), loop=10, max_tool_calls_per_turn=4)
    response = asyncio.run(windowed.client.get_response([TASK, *calls(0, 3)]))
    assert [result.is_error for message in response.messages for result in message.results] == [False, True, True]


def test_a_model_that_calls_all_the_same_is_warned_of_once_and_stopped() -> None:
    windowed = Windowed(model=Ruled(in_rounds_of(1, is_obedient=False)), loop=20, max_tool_calls_per_turn=3)
    with pytest.raises(ToolLoopError, match=r"^3 tool calls ran in this turn") as caught:
        asyncio.run(windowed.client.get_response(TASK))
    results = [result for message in caught.value.messages for result in message.results]
    assert [result.is_error for result in results] == [False, False, False, True]
    assert windowed.capture.warnings == ("tool_loop_limit_reached",)
