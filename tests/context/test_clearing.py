"""Clearing: which results go, which stay, and when an edit is worth it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from chatstack import (
    ChatOptions,
    ChatRequest,
    ClearThenDrop,
    File,
    Image,
    Message,
    Plan,
    Strategy,
    Text,
    ToolCall,
    ToolResult,
    WiringError,
)
from chatstack.context.edits.context import Context
from chatstack.context.edits.handles import handle_of
from chatstack.context.edits.verifier import problems
from chatstack.context.strategies.clearing import ClearToolResults
from chatstack.providers.anthropic import wire as anthropic_wire
from chatstack.providers.openai import chat_wire, responses_wire
from tests.context.strictness import context_of
from tests.steps import Name, grows_linearly

LONG = "sun and rain " * 40
NOW = Message.assistant("that was all")


def call(number: int, *, name: str = "look", output: str = LONG, arguments: str = "{}", **fields: Any) -> list[Message]:
    """A round of one call and its result, unlike any other."""
    call_id = f"c{number}"
    result = ToolResult(call_id, name, f"{number} {output}" if output else "", **fields)
    return [Message("assistant", (ToolCall(call_id, name, arguments),)), Message("tool", (result,))]


def rounds(count: int, **fields: Any) -> list[Message]:
    return [message for number in range(count) for message in call(number, **fields)]


def at_once(keep: int = 0, **options: Any) -> ClearToolResults:
    """Due from the first message on."""
    return ClearToolResults(trigger={"messages": 1}, keep={"messages": keep}, **options)


def cleared(strategy: ClearToolResults, messages: Sequence[Message], **about: Any) -> list[Message]:
    """The messages after the plan, which must be a good one."""
    context = msgspec.structs.replace(context_of(messages), **about)
    plan = strategy.plan(context)
    if plan is None:
        return list(messages)
    assert problems(plan, context) == ()
    return list(plan.apply(messages))


def outputs(messages: Sequence[Message]) -> list[str]:
    """What stands in the results: "-" for what was cleared, the number of the call for what was not."""
    return [
        "-" if result.text == "[cleared]" else result.text.split(" ")[0]
        for message in messages
        for result in message.results
    ]


TASK = Message.user("task")


# When


@pytest.mark.parametrize(
    ("trigger", "is_due"),
    [
        ({"tokens": 400}, True),
        ({"tokens": 401}, False),
        ({"messages": 4}, True),
        ({"messages": 5}, False),
        ({"fraction": 0.5}, True),
        ({"fraction": 0.51}, False),
    ],
)
def test_it_begins_when_the_trigger_is_reached(trigger: dict[str, float], is_due: bool) -> None:
    sized = [Message.user("x" * (4 * 88)), Message.assistant("x" * 4 * 96), Message.user("x" * 4 * 96)]
    context = context_of([*sized, Message.user("x" * 4 * 104)])
    assert context.tokens == 400
    context = msgspec.structs.replace(context, window_tokens=800, reserved_tokens=50)
    assert ClearToolResults(trigger=trigger).is_due(context) is is_due


def test_a_fraction_of_a_window_that_nobody_knows_is_never_due() -> None:
    context = context_of([TASK, *rounds(50), NOW])
    assert not ClearToolResults(trigger={"fraction": 0.001}).is_due(context)


def test_where_no_edit_can_be_kept_only_a_full_window_is_a_reason() -> None:
    context = msgspec.structs.replace(context_of([TASK, *rounds(5), NOW]), is_unstable=True)
    tokens = context.tokens
    assert at_once().is_due(context)  # nobody knows the window: the trigger is the only limit there is
    assert not at_once().is_due(msgspec.structs.replace(context, window_tokens=tokens + 1))
    assert at_once().is_due(msgspec.structs.replace(context, window_tokens=tokens))


def test_the_reason_names_the_size_and_the_trigger() -> None:
    context = msgspec.structs.replace(context_of([TASK, *rounds(4), NOW]), window_tokens=1_000)
    of_input = context.tokens
    for trigger, told in (({"tokens": 100}, "100"), ({"messages": 3}, "3 messages"), ({"fraction": 0.1}, "100")):
        for reserved in (0, 300):
            about = msgspec.structs.replace(context, reserved_tokens=reserved)
            assert about.tokens == of_input + reserved
            plan = ClearToolResults(trigger=trigger, keep={"messages": 0}).plan(about)
            assert plan is not None
            assert plan.reason == f"{of_input} tokens in 10 messages, the trigger is {told}"


# What stays


@pytest.mark.parametrize(("keep", "left"), [(0, "-----"), (1, "----4"), (3, "--234"), (5, "01234"), (9, "01234")])
def test_the_newest_results_stay(keep: int, left: str) -> None:
    assert "".join(outputs(cleared(at_once(keep), [TASK, *rounds(5), NOW]))) == left


@pytest.mark.parametrize(
    ("tokens", "left"), [(0, "-----"), (139, "-----"), (140, "----4"), (279, "----4"), (280, "---34")]
)
def test_the_newest_results_that_fit_stay(tokens: int, left: str) -> None:
    messages = [TASK, *rounds(5), NOW]
    assert context_of(messages).sizes[2] == 140
    for keep in ({"tokens": tokens}, {"fraction": tokens / 1_000}):
        strategy = ClearToolResults(trigger={"messages": 1}, keep=keep)
        assert "".join(outputs(cleared(strategy, messages, window_tokens=1_000))) == left


def test_what_fits_is_measured_by_what_the_provider_reported() -> None:
    strategy = ClearToolResults(trigger={"messages": 1}, keep={"tokens": 280})
    assert outputs(cleared(strategy, [TASK, *rounds(5), NOW], scale=2.0)) == ["-", "-", "-", "-", "4"]


def test_a_large_new_result_does_not_let_an_older_small_one_stay() -> None:
    messages = [TASK, *call(0, output="x" * 200), *call(1, output="x" * 4_000), *call(2, output="x" * 200), NOW]
    strategy = ClearToolResults(trigger={"messages": 1}, keep={"tokens": 200})
    assert outputs(cleared(strategy, messages)) == ["-", "-", "2"]


def test_a_share_of_an_unknown_window_keeps_everything() -> None:
    strategy = ClearToolResults(trigger={"messages": 1}, keep={"fraction": 0.1})
    assert outputs(cleared(strategy, [TASK, *rounds(3), NOW])) == ["0", "1", "2"]


def test_excluded_tools_stay_and_do_not_use_up_what_is_kept() -> None:
    messages = [TASK, *call(0), *call(1), *call(2, name="login"), *call(3, name="login"), NOW]
    assert outputs(cleared(at_once(1, exclude_tools=("login",)), messages)) == ["-", "1", "2", "3"]


def test_a_result_without_a_name_is_excluded_by_the_name_of_its_call() -> None:
    unnamed = [Message.assistant("", ToolCall("c9", "login")), Message.tool("c9", f"9 {LONG}")]
    messages = [TASK, *unnamed, *call(0), NOW]
    assert outputs(cleared(at_once(exclude_tools=("login",)), messages)) == ["9", "-"]


def test_what_the_model_has_not_seen_yet_stays() -> None:
    parallel = Message("assistant", (ToolCall("a", "look"), ToolCall("b", "look")))
    messages = [TASK, *rounds(2), parallel, Message.tool("a", f"a {LONG}"), Message.tool("b", f"b {LONG}")]
    assert outputs(cleared(at_once(), messages)) == ["-", "-", "a", "b"]
    assert outputs(cleared(at_once(), [*messages, NOW])) == ["-", "-", "-", "-"]


def test_errors_stay_with_what_was_asked() -> None:
    messages = [TASK, *call(0), *call(1, is_error=True, arguments='{"at": "the sky over there"}'), NOW]
    left = cleared(at_once(clear_tool_inputs=True), messages)
    assert outputs(left) == ["-", "1"]
    assert left[3] is messages[3]


def test_pinned_messages_stay() -> None:
    ((_, first), (_, second)) = call(0), call(1)
    messages = [TASK, call(0)[0], Message("tool", first.parts, pinned=True), call(1)[0], second, NOW]
    assert outputs(cleared(at_once(), messages)) == ["0", "-"]


def test_the_arguments_in_a_pinned_message_stay() -> None:
    (asked, result) = call(0, arguments='{"at": "the sky over there"}')
    pinned = Message("assistant", asked.parts, pinned=True)
    left = cleared(at_once(clear_tool_inputs=True), [TASK, pinned, result, NOW])
    assert outputs(left) == ["-"]
    assert left[1] is pinned


def test_results_of_a_unit_that_is_still_open_stay() -> None:
    asked = Message("assistant", (ToolCall("c0", "look"), ToolCall("open", "look")))
    messages = [TASK, asked, call(0)[1], *call(1), NOW]
    context = context_of(messages)
    plan = at_once().plan(context)
    assert plan is not None
    assert [position for position, _ in plan.replace] == [4]


def test_what_is_no_larger_than_its_placeholder_stays() -> None:
    messages = [TASK, *call(0, output=""), *call(1, output="123456"), *call(2, output="12345678 and more"), NOW]
    assert [each.results[0].text for each in cleared(at_once(), messages) if each.results] == [
        "",
        "1 123456",
        "[cleared]",
    ]


def test_what_goes_along_with_a_result_does_not_make_it_larger_than_its_placeholder() -> None:
    extra = '{"openai-chat": {"name": "' + "x" * 400 + '"}}'
    small = Message("tool", (ToolResult("c0", "look", "ok"),), extra_json=extra)
    assert at_once().plan(context_of([TASK, call(0)[0], small, NOW])) is None


def test_what_was_cleared_is_not_cleared_again() -> None:
    once = cleared(at_once(), [TASK, *rounds(3), NOW])
    assert at_once().plan(context_of([*once, Message.user("more")])) is None
    both = cleared(at_once(), [*once, *call(3), NOW])
    assert [one is other for one, other in zip(once, both, strict=False)] == [True] * len(once)


def test_results_of_ids_used_again_are_told_apart() -> None:
    again = [Message.assistant("", ToolCall("c0", "look", '{"n": 2}')), Message.tool("c0", f"9 {LONG}", name="look")]
    messages = [TASK, *call(0), *again, NOW]
    left = cleared(at_once(1, clear_tool_inputs=True), messages)
    assert outputs(left) == ["-", "9"]
    assert left[3] is again[0]


def test_late_results_are_found_where_they_stand() -> None:
    first, second = call(0), call(1)
    messages = [TASK, first[0], second[0], second[1], Message.user("hurry"), first[1], NOW, *call(2), NOW]
    assert outputs(cleared(at_once(1), messages)) == ["-", "-", "2"]
    assert outputs(cleared(at_once(2), messages)) == ["-", "0", "2"]


# Several results in one message


def test_of_several_results_in_one_message_each_is_looked_at_by_itself() -> None:
    asked = Message("assistant", tuple(ToolCall(each, "look") for each in "abcd"))
    parts = (
        ToolResult("a", "look", f"a {LONG}"),
        ToolResult("b", "look", f"b {LONG}", is_error=True),
        ToolResult("c", "look", f"c {LONG}"),
        ToolResult("d", "look", f"d {LONG}"),
    )
    together = Message("tool", parts)
    left = cleared(at_once(2), [TASK, asked, together, NOW])
    assert outputs(left) == ["-", "b", "c", "d"]
    assert left[2].parts[1:] == together.parts[1:]
    further = cleared(at_once(), left)
    assert outputs(further) == ["-", "b", "-", "-"]
    assert further[2].annotation is not None
    assert further[2].annotation.handles == tuple(handle_of(parts[at]) for at in (0, 2, 3))
    assert further[2].original is together


def test_results_may_stand_in_user_messages() -> None:
    messages = [TASK, call(0)[0], Message("user", call(0)[1].parts), call(1)[0], Message("user", call(1)[1].parts), NOW]
    assert outputs(cleared(at_once(1), messages)) == ["-", "1"]


def test_the_latest_user_message_stays_also_where_it_holds_results() -> None:
    steered = Message("user", (*call(1)[1].parts, Text("and look up")))
    messages = [TASK, *call(0), call(1)[0], steered, NOW, *call(2), NOW]
    left = cleared(at_once(), messages)
    assert outputs(left) == ["-", "1", "-"]
    assert outputs(cleared(at_once(), [*messages, Message.user("thanks")])) == ["-", "-", "-"]


def test_a_result_beside_an_orphan_that_was_taken_away_is_cleared_too() -> None:
    came = Message("tool", (ToolResult("gone", "look", "orphan"), *call(0)[1].parts))
    repaired = came.edited(parts=came.parts[1:])
    left = cleared(at_once(), [TASK, call(0)[0], repaired, NOW])
    assert outputs(left) == ["-"]
    assert left[2].original is came


@pytest.mark.parametrize(
    "output",
    [(Image(url="https://example.org/a.png"),), (Text("see"), File(text=LONG, name="a.txt"))],
    ids=["image", "file"],
)
def test_pictures_and_files_are_cleared_too(output: tuple[Image | File | Text, ...]) -> None:
    messages = [TASK, call(0)[0], Message("tool", (ToolResult("c0", "look", output),)), NOW]
    assert outputs(cleared(at_once(), messages)) == ["-"]


# Placeholders and inputs


def test_the_placeholder_can_name_tool_size_and_handle() -> None:
    messages = [TASK, *call(0), NOW]
    (result,) = messages[2].results
    left = cleared(at_once(placeholder="{tool} said {tokens} tokens, ask for {handle} {again} {} {{x}}"), messages)
    assert left[2].results[0].output == f"look said 140 tokens, ask for {handle_of(result)} {{again}} {{}} {{{{x}}}}"


@pytest.mark.parametrize("kind", [ClearToolResults, ClearThenDrop])
@pytest.mark.parametrize(
    ("meant", "written"),
    [
        *(("tool", written) for written in ("{tol}", "{tools}", "{Tool}", "{ tool }")),
        *(("tokens", written) for written in ("{token}", "{tokens:,}", "{TOKENS}")),
        *(("handle", written) for written in ("{handel}", "{handle!r}")),
    ],
)
def test_a_misspelt_field_of_the_placeholder_is_refused(
    kind: type[ClearToolResults | ClearThenDrop], meant: str, written: str
) -> None:
    with pytest.raises(WiringError) as caught:
        kind(placeholder=f"[{written} cleared]")
    wanted = f"text, whose fields are {{tool}}, {{tokens}} and {{handle}}: write {{{meant}}} for {written}"
    assert str(caught.value) == f"{kind.__name__}: placeholder='[{written} cleared]' must be {wanted}"
    assert (caught.value.layer, caught.value.parameter) == (kind.__name__, "placeholder")


def test_a_result_without_a_name_has_that_of_its_call_in_the_placeholder() -> None:
    messages = [TASK, call(0)[0], Message.tool("c0", LONG), NOW]
    assert cleared(at_once(placeholder="from {tool}"), messages)[2].results == (ToolResult("c0", "", "from look"),)


def test_cleared_messages_say_what_was_done_and_know_their_original() -> None:
    messages = [TASK, *call(0, arguments='{"at": "the sky over there"}'), NOW]
    left = cleared(at_once(clear_tool_inputs=True), messages)
    asked, result = left[1], left[2]
    assert asked.annotation is not None
    assert result.annotation is not None
    assert (asked.annotation.strategy, asked.annotation.call_ids) == ("clear_tool_results", ("c0",))
    assert result.annotation.strategy == "clear_tool_results"
    assert result.annotation.tokens_before == 140
    assert result.annotation.handles == (handle_of(messages[2].results[0]),)
    assert asked.original is messages[1]
    assert result.original is messages[2]


def test_a_second_edit_keeps_the_first_annotation_and_the_first_original() -> None:
    asked = Message("assistant", tuple(ToolCall(each, "look", '{"at": "the sky over there"}') for each in "abc"))
    parts = tuple(ToolResult(each, "look", f"{each} {LONG}") for each in "abc")
    messages = [TASK, asked, *(Message("tool", (part,)) for part in parts), NOW]
    once = cleared(at_once(2, clear_tool_inputs=True), messages)
    twice = cleared(at_once(0, clear_tool_inputs=True), [*once, *call(5)])
    assert twice[1].original is asked
    assert twice[1].annotation is not None
    assert twice[1].annotation.call_ids == ("a", "b", "c")
    assert twice[1].annotation.tokens_before == context_of(messages).sizes[1]
    assert twice[2] is once[2]


@pytest.mark.parametrize(
    ("inputs", "arguments"),
    [(False, ["keep", "keep"]), (True, ["{}", "{}"]), (("look",), ["{}", "keep"]), (("none",), ["keep", "keep"])],
)
def test_inputs_of_all_or_of_some_tools_are_cleared(inputs: bool | tuple[str, ...], arguments: list[str]) -> None:
    given = '{"at": "the sky over there"}'
    messages = [TASK, *call(0, arguments=given), *call(1, name="write", arguments=given), NOW]
    left = cleared(at_once(clear_tool_inputs=inputs), messages)
    found = [each.arguments for message in left for each in message.calls]
    assert found == [given if each == "keep" else each for each in arguments]


def test_inputs_of_calls_whose_results_stay_are_not_cleared() -> None:
    given = '{"at": "the sky over there"}'
    messages = [TASK, *rounds(3, arguments=given), NOW]
    left = cleared(at_once(2, clear_tool_inputs=True), messages)
    assert [each.arguments for message in left for each in message.calls] == ["{}", given, given]


def test_large_inputs_are_cleared_also_where_the_result_is_too_small_to_be() -> None:
    messages = [TASK, *call(0, name="write", output="ok", arguments=f'{{"text": "{LONG}"}}'), NOW]
    left = cleared(at_once(clear_tool_inputs=("write",)), messages)
    assert left[1].calls[0].arguments == "{}"
    assert left[2] is messages[2]
    assert at_once(clear_tool_inputs=True).plan(context_of(left)) is None


def test_inputs_that_are_empty_already_are_not_touched() -> None:
    messages = [TASK, *call(0, arguments="{}"), *call(1, arguments=""), NOW]
    left = cleared(at_once(clear_tool_inputs=True), messages)
    assert left[1] is messages[1]
    assert left[3] is messages[3]


def test_cleared_calls_and_results_are_valid_on_every_wire() -> None:
    given = '{"at": "the sky over there"}'
    left = cleared(at_once(clear_tool_inputs=True), [TASK, *call(0, arguments=given), NOW, Message.user("thanks")])
    request = ChatRequest(tuple(left), ChatOptions(model="m"))
    chat = chat_wire.messages_to_wire(request.messages)
    assert chat[1]["tool_calls"] == [{"id": "c0", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    assert chat[2] == {"role": "tool", "tool_call_id": "c0", "content": "[cleared]"}
    items = responses_wire.messages_to_wire(request.messages)
    assert items[1] == {"type": "function_call", "call_id": "c0", "name": "look", "arguments": "{}"}
    assert items[2] == {"type": "function_call_output", "call_id": "c0", "output": "[cleared]"}
    body = anthropic_wire.messages_to_wire(request.messages)
    assert body[1]["content"] == [{"type": "tool_use", "id": "c0", "name": "look", "input": {}}]
    assert body[2]["content"] == [{"type": "tool_result", "tool_use_id": "c0", "content": "[cleared]"}]


# Worth it


def test_an_edit_that_saves_less_than_asked_for_is_not_made() -> None:
    messages = [TASK, *rounds(4), NOW]
    saves = context_of(messages).tokens - sum(context_of(cleared(at_once(), messages)).sizes)
    assert at_once(clear_at_least=saves + 1).plan(context_of(messages)) is None
    assert at_once(clear_at_least=saves).plan(context_of(messages)) is not None
    scaled = msgspec.structs.replace(context_of(messages), scale=2.0)
    assert at_once(clear_at_least=2 * saves).plan(scaled) is not None
    tokens = context_of(messages).tokens
    for window, is_forced in ((tokens, False), (tokens - 1, True), (tokens - saves, True), (tokens - saves - 1, False)):
        full = msgspec.structs.replace(context_of(messages), window_tokens=window)
        assert (at_once(clear_at_least=10_000).plan(full) is not None) is is_forced


def calls_until_it_pays(
    behind: int, *, results: int = 1, about: dict[str, Any] | None = None, most: int = 60
) -> int | None:
    """After how many further calls the results are cleared, with so many tokens behind them that were read before."""
    strategy = ClearToolResults(trigger={"messages": 1}, keep={"messages": 0}, clear_at_least="pays")
    messages = [TASK, *rounds(results, output="x" * 4_000), Message.assistant("y" * 4 * behind), Message.user("go on")]
    for further in range(most):
        if strategy.plan(msgspec.structs.replace(context_of(messages), **(about or {}))) is not None:
            return further
        messages += [Message.assistant("ok"), Message.user("go on")]
    return None


def test_an_edit_waits_until_reading_has_cost_what_it_will_cost() -> None:
    soon, later, never = (calls_until_it_pays(behind) for behind in (100, 1_000, 100_000))
    assert soon is not None
    assert later is not None
    assert never is None
    assert soon < later
    # A thousand tokens read n times at 0.1, twice a thousand (and some small talk) written at 1.25 instead of 0.1.
    assert later in range(28, 33)


def test_more_to_clear_pays_sooner() -> None:
    few, many = (calls_until_it_pays(2_000, results=results) for results in (1, 8))
    assert few is not None
    assert many is not None
    assert many < few


@pytest.mark.parametrize("about", [{"is_cold": True}, {"window_tokens": 100_500}], ids=["cold", "forced"])
def test_it_does_not_wait_where_it_costs_nothing_or_must_be(about: dict[str, Any]) -> None:
    assert calls_until_it_pays(100_000, about=about) == 0


def test_a_window_that_is_not_full_forces_nothing() -> None:
    assert calls_until_it_pays(1_000, about={"window_tokens": 1_000_000}) == calls_until_it_pays(1_000)


@pytest.mark.parametrize(
    ("kind", "value"), [("tokens", 500), ("tokens", 2_000), ("messages", 5), ("messages", 30), ("fraction", 0.01)]
)
def test_where_it_cannot_get_below_its_trigger_it_does_not_clear_on_every_call(kind: str, value: float) -> None:
    strategy = ClearToolResults(trigger={kind: value}, keep={"messages": 3})
    messages = [Message.user("x" * 10_000)]
    edits = 0
    for number in range(100):
        messages += call(number)
        after = cleared(strategy, messages, window_tokens=100_000)
        edits += after != messages
        messages = after
    assert 5 <= edits <= 100 // 3


def test_getting_below_the_trigger_again_is_measured_without_the_reserve() -> None:
    """As the trigger is of the input alone."""
    before = cleared(at_once(), [TASK, *rounds(1), NOW])
    messages = [*before, Message.user("x" * 4 * 4_700), *call(7), *call(8), NOW]
    strategy = ClearToolResults(trigger={"tokens": 4_900}, keep={"messages": 0})
    input_after = context_of(cleared(at_once(), messages)).tokens
    assert 4_900 - 150 < input_after < 4_900 <= context_of(messages).tokens
    for reserved in (0, 1_000):
        assert outputs(cleared(strategy, messages, reserved_tokens=reserved)) == ["-", "-", "-"]


def test_the_plan_is_the_same_for_the_same_context() -> None:
    context = context_of([TASK, *rounds(6), NOW])
    plans: list[Plan | None] = [at_once(2, clear_tool_inputs=True).plan(context) for _ in range(2)]
    assert plans[0] == plans[1]
    assert isinstance(context, Context)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy_for", [lambda _: at_once(), lambda many: ClearThenDrop(20 * many)], ids=["clearing", "condensing"]
)
def test_the_results_of_one_message_are_looked_at_once_each(strategy_for: Callable[[int], Strategy]) -> None:
    def edit(many: int) -> None:
        ids = [Name(number) for number in range(many)]
        asked = Message("assistant", tuple(ToolCall(each, "look") for each in ids))
        given = Message("tool", tuple(ToolResult(Name(each), "look", LONG) for each in ids))
        context = context_of([TASK, asked, given, NOW])
        strategy = strategy_for(many)
        plan = strategy.plan(context)
        assert plan is not None
        assert problems(plan, context) == ()
        assert strategy.plan(context.after(plan)) is None

    assert grows_linearly(edit)
