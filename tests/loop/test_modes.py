"""What each mode asks, runs and leaves, call by call.

Source: the remarks on ``LastToolResults`` in NexusLabs.Needlr's ``IterativeContext``.
"""

from __future__ import annotations

from typing import Unpack

import pytest

from chatstack import ChatOptions, ChatStack, ContextWindow, InputError, ToolCall
from chatstack.loop.context import IterativeContext
from chatstack.loop.iterative import IterativeLoop
from chatstack.loop.settings import LoopMode
from chatstack.testing import Answer, ScriptedClient
from chatstack.tools.turn import OVER_LIMIT
from tests.loop.runs import Options, asked, call, fresh, look, looped, run


def two(*names: str) -> list[ToolCall]:
    return [call("look", f"c{name}", what=name) for name in names]


class Seen:
    """A prompt that keeps what it was shown of the iteration before."""

    def __init__(self) -> None:
        self.results: list[list[str]] = []

    def __call__(self, context: IterativeContext) -> str:
        self.results.append([each.output for each in context.last_tool_results])
        return f"iteration {context.iteration}"


def watched(answers: list[Answer], **options: Unpack[Options]) -> tuple[IterativeLoop, Seen]:
    seen = Seen()
    options["is_complete"] = lambda context: context.iteration == 1
    return looped(answers, seen, [look], **options), seen


def test_a_single_call_sends_no_results_back_and_leaves_all_of_them_to_the_next_prompt() -> None:
    loop, seen = watched([two("a", "b"), two("c")], mode="single_call")
    result = run(loop)
    assert asked(loop) == [["iteration 0"], ["iteration 1"]]
    assert seen.results == [[], ["saw a", "saw b"]]
    assert [record.model_calls for record in result.iterations] == [1, 1]


def test_one_round_trip_shows_the_first_results_to_the_model_and_leaves_those_of_the_second_round() -> None:
    context = fresh()
    loop, seen = watched([two("a", "b"), two("c", "d"), "done"], mode="one_round_trip")
    result = run(loop, context)
    first = 'look({"what": "a"}) look({"what": "b"})'
    assert asked(loop) == [
        ["iteration 0"],
        ["iteration 0", first, "saw a", "saw b"],
        ["iteration 1"],
    ]
    assert seen.results == [[], ["saw c", "saw d"]]
    assert context.last_tool_results == ()  # the second iteration ended in words
    assert [record.model_calls for record in result.iterations] == [2, 1]


def test_one_round_trip_that_ends_in_words_leaves_nothing() -> None:
    loop, seen = watched([two("a"), "I have seen it", "done"], mode="one_round_trip")
    result = run(loop)
    assert seen.results == [[], []]
    assert [record.text for record in result.iterations] == ["I have seen it", "done"]
    assert [[each.output for each in record.tool_calls] for record in result.iterations] == [["saw a"], []]


def test_many_rounds_leave_those_of_the_round_that_hit_the_limit() -> None:
    loop, seen = watched([two("a"), two("b"), two("c", "d"), "done"], mode="multi_round", max_tool_rounds=3)
    result = run(loop)
    assert [len(request) for request in asked(loop)] == [1, 3, 5, 1]
    assert asked(loop)[2][-3:] == ["saw a", 'look({"what": "b"})', "saw b"]
    assert seen.results == [[], ["saw c", "saw d"]]
    assert [record.model_calls for record in result.iterations] == [3, 1]


def test_many_rounds_that_end_in_words_leave_nothing() -> None:
    loop, seen = watched([two("a"), two("b"), "both seen", "done"], mode="multi_round", max_tool_rounds=3)
    result = run(loop)
    assert seen.results == [[], []]
    assert result.iterations[0].model_calls == 3
    assert [each.output for each in result.iterations[0].tool_calls] == ["saw a", "saw b"]


@pytest.mark.parametrize("mode", ["single_call", "one_round_trip", "multi_round"])
def test_an_iteration_that_asks_for_no_tool_is_one_call_in_every_mode(mode: LoopMode) -> None:
    loop, seen = watched(["nothing to do"], mode=mode)
    assert [record.model_calls for record in run(loop).iterations] == [1, 1]
    assert seen.results == [[], []]


@pytest.mark.parametrize("mode", ["single_call", "one_round_trip", "multi_round"])
def test_results_are_replaced_and_never_added_up(mode: LoopMode) -> None:
    contexts: list[list[str]] = []

    def prompt(context: IterativeContext) -> str:
        contexts.append([each.output for each in context.last_tool_results])
        return "go on"

    answers: list[Answer] = [two(name) for name in "abcdefghi"]
    run(looped(answers, prompt, [look], mode=mode, max_tool_rounds=3, max_iterations=3))
    rounds = {"single_call": 1, "one_round_trip": 2, "multi_round": 3}[mode]
    assert contexts == [[], [f"saw {'abcdefghi'[rounds - 1]}"], [f"saw {'abcdefghi'[2 * rounds - 1]}"]]


def test_no_history_accumulates_however_long_it_goes_on() -> None:
    answers: list[Answer] = [two(str(number)) for number in range(60)]
    loop = looped(answers, tools=[look], max_iterations=30)
    run(loop)
    firsts, seconds = asked(loop)[::2], asked(loop)[1::2]
    assert firsts == [[f"iteration {number}"] for number in range(30)]
    assert {len(request) for request in seconds} == {3}


def test_what_the_model_may_not_see_of_a_cut_off_answer_is_left_to_the_next_prompt_and_nothing_is_run() -> None:
    loop, seen = watched([[*two("a"), "length"], "done"], mode="multi_round")
    result = run(loop)
    assert seen.results[1] == ["Error: not run, because the answer that asked for it was cut off."]
    assert [each.was_run for each in result.iterations[0].tool_calls] == [False]
    assert result.tool_calls == 0


def test_an_answer_that_paused_is_gone_on_with_in_the_same_iteration() -> None:
    loop, _ = watched([["thinking", "paused"], "there", "done"], mode="single_call")
    result = run(loop)
    assert asked(loop) == [["iteration 0"], ["iteration 0", "thinking"], ["iteration 1"]]
    assert [record.text for record in result.iterations] == ["there", "done"]


def test_a_forced_choice_of_tool_holds_for_the_first_call_of_an_iteration() -> None:
    client = ScriptedClient([two("a"), "seen"])
    run(looped(client, tools=[look], options=ChatOptions(tool_choice="required"), max_iterations=1))
    assert [request.options.tool_choice for request in client.requests] == ["required", None]


def test_a_call_of_a_tool_that_is_not_there_is_an_error_that_the_model_reads() -> None:
    loop, _ = watched([[call("lok", what="a")], "done"])
    run(loop)
    assert asked(loop)[1][-1] == "Error: no tool 'lok'; did you mean 'look'?"


def test_prompts_that_are_no_messages_end_the_run_with_an_error() -> None:
    for wrong in (None, 5, [], ["text"], {"role": "user"}, [5]):
        result = run(looped(["never"], lambda context, wrong=wrong: wrong))  # type: ignore[misc]
        assert (result.reason, type(result.error)) == ("error", InputError)
        assert "prompt gave a" in str(result.error)


def test_a_window_of_the_client_limits_the_calls_of_an_iteration() -> None:
    client = ChatStack(ScriptedClient([two("a", "b", "c"), two("d", "e", "f"), "done"]))
    loop = looped(client.use(ContextWindow, max_tool_calls_per_turn=4).build(), tools=[look], mode="multi_round")
    result = run(loop)
    calls = result.iterations[0].tool_calls
    assert [each.was_run for each in calls] == [True] * 4 + [False] * 2
    assert {each.output for each in calls if each.is_error} == {OVER_LIMIT}
    assert result.text == "done"
