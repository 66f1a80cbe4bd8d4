"""A call that a model makes again and again in one turn is warned of, once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chatstack import ChatResponse, ChatStack, FunctionInvoker, Message, ProgressReporter, ToolCall, semconv
from chatstack.testing import Answer, ScriptedClient, TelemetryCapture
from chatstack.testing.capture import CapturedLog

LONG = "[" * 5_000 + "]" * 5_000


def look(city: str = "", days: int = 1) -> str:
    """Looks at the weather."""
    return "sunny"


class Turns:
    """Turns with one tool, and what was said of them."""

    def __init__(self, *answers: Answer, **options: Any) -> None:
        self.capture = TelemetryCapture()
        stack = ChatStack(ScriptedClient(answers)).use(ProgressReporter).use(FunctionInvoker, tools=[look], **options)
        self.client = stack.build(self.capture.resolve)

    def ask(self) -> ChatResponse:
        return asyncio.run(self.client.get_response("go", conversation_id="c-1"))

    @property
    def warnings(self) -> list[CapturedLog]:
        return [log for log in self.capture.logs if log.attributes.get(semconv.WARNING_CODE) == "repeated_tool_call"]


def calls(*arguments: str, name: str = "look") -> Message:
    return Message.assistant(*(ToolCall(f"call-{place}", name, each) for place, each in enumerate(arguments)))


SAME = calls('{"city": "Dubai"}')


@pytest.mark.parametrize(("times", "warned"), [(2, 0), (3, 1), (7, 1)])
def test_the_third_identical_call_of_a_turn_is_warned_of_once(times: int, warned: int) -> None:
    turns = Turns(*[SAME] * times, "done")
    assert turns.ask().text == "done"
    assert len(turns.warnings) == warned
    for log in turns.warnings:
        assert log.attributes[semconv.TOOL_NAME] == "look"
        assert log.attributes[semconv.TOOLS_CALLS] == 3


def test_the_warning_is_counted_on_the_root_of_the_turn() -> None:
    turns = Turns(SAME, SAME, SAME, "done")
    turns.ask()
    (root,) = [span for span in turns.capture.spans if span.parent_id is None]
    assert root.attributes[semconv.WARNING_COUNT] == 1
    assert "Dubai" not in turns.capture.said()


@pytest.mark.parametrize(
    "arguments",
    [
        ('{"city": "Dubai", "days": 2}', '{"days":2,"city":"Dubai"}', ' {"city":"Dub\\u0061i",\n"days": 2}'),
        ("", "{}", "  "),
        ("{", "{", "{"),
        ('{"city": "\ud800"}',) * 3,
        ('{"city": "\\ud800"}',) * 3,
        (LONG, LONG, LONG),
        ("1e999",) * 3,
    ],
    ids=["in another order", "none", "no JSON", "half a character", "half of one escaped", "nested", "a large number"],
)
def test_arguments_that_mean_the_same_are_the_same_whatever_a_model_writes(arguments: tuple[str, ...]) -> None:
    turns = Turns(*map(calls, arguments), "done", max_consecutive_failures=9)
    assert turns.ask().text == "done"
    assert len(turns.warnings) == 1


@pytest.mark.parametrize(
    "arguments",
    [('{"days": 1}', '{"days": 2}', '{"days": 3}'), ('{"days": 1}', '{"days": "1"}', '{"days": true}')],
)
def test_other_arguments_are_another_call(arguments: tuple[str, ...]) -> None:
    turns = Turns(*map(calls, arguments), "done", max_consecutive_failures=9)
    turns.ask()
    assert turns.warnings == []


def test_parallel_calls_count_too() -> None:
    turns = Turns(calls(*['{"city": "Oslo"}'] * 4), "done")
    turns.ask()
    assert len(turns.warnings) == 1


def test_each_call_that_is_repeated_is_warned_of() -> None:
    turns = Turns(*[calls('{"city": "Oslo"}', '{"city": "Lima"}')] * 3, "done")
    turns.ask()
    assert len(turns.warnings) == 2


def test_a_conversation_is_not_a_turn() -> None:
    turns = Turns(SAME, "one", SAME, "two", SAME, "three")
    assert [turns.ask().text for _ in range(3)] == ["one", "two", "three"]
    assert turns.warnings == []


def test_calls_that_are_not_run_any_more_do_not_count() -> None:
    turns = Turns(calls(*["{}"] * 4), "done", max_tool_calls_per_turn=2)
    turns.ask()
    assert turns.warnings == []


def test_the_name_of_a_tool_that_is_not_there_is_quoted_nowhere() -> None:
    turns = Turns(*[calls("{}", name="hunter2")] * 3, "done", max_consecutive_failures=9)
    turns.ask()
    (log,) = turns.warnings
    assert log.attributes[semconv.TOOL_NAME] == "_OTHER"
    assert "hunter2" not in turns.capture.said()
