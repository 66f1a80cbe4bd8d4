"""The reasons for which a run ends by itself, which goes first, and the record that it leaves."""

from __future__ import annotations

import asyncio

import pytest

from chatstack import InputError, ToolCall, tool
from chatstack.testing import Answer
from tests.loop.runs import Options, call, fresh, look, looped, note, outputs, run

LOOK = [call("look", what="a")]


def noted(number: int) -> list[ToolCall]:
    return [call("note", f"c{number}", text=str(number))]


# The reasons


def test_it_is_completed_when_is_complete_says_so() -> None:
    result = run(looped([noted(0), "one", noted(1), "two"], is_complete=lambda context: context.iteration == 1))
    assert (result.reason, result.error) == ("completed", None)
    assert outputs(result) == [["noted 0"], ["noted 1"]]
    assert result.text == "two"


@pytest.mark.parametrize("said", ["no", 1, [], iter("no"), str])
def test_what_is_complete_gives_besides_true_and_false_is_an_error_and_no_end(said: object) -> None:
    result = run(looped([noted(0), "one"], is_complete=lambda context: said))  # type: ignore[arg-type, return-value]
    assert (result.reason, type(result.error)) == ("error", InputError)
    assert f"is_complete gave a {type(said).__name__}, not True or False" in str(result.error)


def test_none_of_is_complete_is_no_end() -> None:
    options: Options = {"is_complete": lambda context: None, "max_iterations": 1}  # type: ignore[typeddict-item, return-value]
    assert run(looped([noted(0), "one"], **options)).reason == "max_iterations"


def test_it_is_answered_when_the_model_answers_in_words_and_nobody_else_says_when_it_is_complete() -> None:
    result = run(looped([noted(0), noted(1), "all done"]))
    assert (result.reason, result.text) == ("answered", "all done")
    assert [record.model_calls for record in result.iterations] == [2, 1]


def test_words_end_nothing_as_long_as_is_complete_does_not_agree() -> None:
    words = iter(range(100))
    result = run(looped(["done", noted(1), "done"], is_complete=lambda context: next(words) == 1))
    assert (result.reason, len(result.iterations)) == ("completed", 2)


def test_it_ends_at_max_iterations() -> None:
    result = run(looped([noted(number) for number in range(9)], mode="single_call", max_iterations=3))
    assert (result.reason, outputs(result)) == ("max_iterations", [["noted 0"], ["noted 1"], ["noted 2"]])


def test_it_ends_at_max_total_tool_calls_and_answers_those_beyond() -> None:
    three = [call("note", f"c{number}", text=str(number)) for number in range(3)]
    context = fresh()
    result = run(looped([noted(9), three], mode="single_call", max_total_tool_calls=3), context)
    assert (result.reason, result.tool_calls) == ("max_tool_calls", 3)
    refused = "Error: not run, because the limit of tool calls is reached. Answer with what you have."
    assert outputs(result) == [["noted 9"], ["noted 0", "noted 1", refused]]
    assert sorted(context.workspace.read("notes.md").split()) == ["0", "1", "9"]


def test_calls_that_were_only_answered_do_not_count_towards_the_limit() -> None:
    cut: Answer = [*noted(0), *noted(1), "length"]
    result = run(looped([cut, cut, noted(2), "done"], mode="single_call", max_total_tool_calls=2))
    assert (result.reason, result.tool_calls, len(result.iterations)) == ("answered", 1, 4)


def test_parallel_calls_cannot_exceed_the_limit() -> None:
    ran: list[int] = []

    @tool
    async def count(number: int) -> int:
        """Counts."""
        ran.append(number)
        await asyncio.sleep(0)
        return number

    many = [call("count", f"c{number}", number=number) for number in range(20)]
    result = run(looped([many], tools=[count], max_total_tool_calls=7))
    assert (result.reason, ran) == ("max_tool_calls", list(range(7)))
    assert [each.was_run for each in result.iterations[0].tool_calls] == [True] * 7 + [False] * 13


def test_completion_is_asked_before_any_limit() -> None:
    limits: list[Options] = [{"max_iterations": 1}, {"max_total_tool_calls": 1}, {"max_tokens": 1}]
    for options in limits:
        options.update({"is_complete": lambda context: True, "mode": "single_call"})
        result = run(looped([noted(0)], **options))
        assert result.reason == "completed"


# Stalled


def test_it_is_stalled_after_three_iterations_that_did_the_same_without_any_effect() -> None:
    result = run(looped([LOOK], mode="single_call"))
    assert (result.reason, len(result.iterations)) == ("stalled", 3)


def test_arguments_that_mean_the_same_are_the_same() -> None:
    spellings = ['{"what":"a"}', '{ "what" : "a" }', '{"what": "\\u0061"}']
    result = run(looped([[ToolCall("c", "look", text)] for text in spellings], mode="single_call"))
    assert (result.reason, len(result.iterations)) == ("stalled", 3)


@pytest.mark.parametrize(
    "second", [[call("look", what="b")], [call("list", what="a")], [*LOOK, *LOOK], noted(0)], ids=str
)
def test_another_name_other_arguments_another_number_or_a_changed_file_is_progress(second: list[ToolCall]) -> None:
    @tool(name="list")
    def list_all(what: str) -> str:
        """Lists."""
        return what

    answers = [LOOK, second] * 4
    result = run(looped(answers, tools=[look, note, list_all], mode="single_call", max_iterations=8))
    assert result.reason == "max_iterations"


def test_the_same_calls_that_change_the_workspace_each_time_are_progress() -> None:
    result = run(looped([noted(0)], mode="single_call", max_iterations=6))
    assert result.reason == "max_iterations"


def test_words_and_tokens_do_not_count_as_progress() -> None:
    answers: list[Answer] = [["thinking", *LOOK], [f"thinking {'hard ' * 50}", *LOOK], ["hm", *LOOK]]
    result = run(looped(answers, mode="single_call"))
    assert (result.reason, len(result.iterations)) == ("stalled", 3)
    assert len({record.usage for record in result.iterations}) == 3


def test_completion_goes_before_stalling() -> None:
    result = run(looped([LOOK], mode="single_call", is_complete=lambda context: context.iteration == 2))
    assert (result.reason, len(result.iterations)) == ("completed", 3)


def test_how_many_iterations_may_be_alike_can_be_set() -> None:
    result = run(looped([LOOK], mode="single_call", max_stalled_iterations=5))
    assert (result.reason, len(result.iterations)) == ("stalled", 5)
