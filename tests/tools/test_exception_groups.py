"""What a tool raises within an ``asyncio.TaskGroup`` comes in a group, and counts as if it were raised alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chatstack import ChatStack, FallbackError, FunctionInvoker, Message, ServerError, ToolCall, tool
from chatstack.errors import ToolError
from chatstack.testing import ScriptedClient, TelemetryCapture
from chatstack.tools.execution import graph_signals


class Interrupt(Exception):
    """What ends a turn."""


async def in_a_group(*errors: Exception) -> None:
    async def one(error: Exception) -> None:
        raise error

    async with asyncio.TaskGroup() as group:
        for error in errors:
            group.create_task(one(error))


class Loop:
    def __init__(self, *errors: Exception, **options: Any) -> None:
        @tool
        async def look() -> None:
            await in_a_group(*errors)

        self.capture = TelemetryCapture()
        stack = ChatStack(ScriptedClient([[ToolCall("1", "look")], "done"]))
        self.client = stack.use(FunctionInvoker, tools=[look], **options).build(self.capture.resolve)

    def ask(self) -> tuple[Message, ...]:
        return asyncio.run(self.client.get_response("go")).messages

    def read(self) -> str:
        """What the model reads."""
        return self.ask()[1].results[0].text


LOCKED, FULL = ToolError("The file is locked."), ToolError("The disk is full.")


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ((LOCKED,), "Error: The file is locked."),
        ((LOCKED, FULL), "Error: The file is locked. The disk is full."),
        ((KeyError("x"), LOCKED), "Error: The file is locked."),
        ((ExceptionGroup("deeper", [LOCKED]),), "Error: The file is locked."),
        ((KeyError("x"),), "Error: look failed."),
    ],
    ids=["one", "two", "beside a bug", "deeper", "a bug"],
)
def test_the_text_of_a_tool_error_is_shown(errors: tuple[Exception, ...], said: str) -> None:
    assert Loop(*errors).read() == said


def test_details_are_those_of_what_the_group_holds() -> None:
    loop = Loop(KeyError("city"), ValueError("no such day"), include_error_details=True)
    assert loop.read() == "Error: look failed: KeyError: 'city'; ValueError: no such day"
    assert loop.capture.span("execute_tool look").attributes["error.type"] == "ExceptionGroup"


def test_a_span_names_what_was_raised_alone() -> None:
    loop = Loop(KeyError("city"))
    loop.ask()
    assert loop.capture.span("execute_tool look").attributes["error.type"] == "KeyError"


def test_a_group_of_ours_speaks_for_itself() -> None:
    error = FallbackError("nobody answered", [ServerError("overloaded")])
    assert Loop(error, include_error_details=True).read() == f"Error: look failed: FallbackError: {error}"


@pytest.mark.parametrize("errors", [(Interrupt(),), (KeyError("x"), Interrupt())], ids=["alone", "beside a bug"])
def test_what_propagates_does_so_as_it_was_raised(errors: tuple[Exception, ...]) -> None:
    cause = errors[-1].__cause__ = OSError("why")
    with pytest.raises(Interrupt) as caught:
        Loop(*errors, propagate=(Interrupt,)).ask()
    assert caught.value is errors[-1]
    assert caught.value.__cause__ is cause
    assert not isinstance(caught.value.__context__, ExceptionGroup), "it would hold itself"


def test_a_group_that_propagates_by_its_own_class_stays_whole() -> None:
    with pytest.raises(ExceptionGroup):
        Loop(KeyError("x"), propagate=(ExceptionGroup,)).ask()


def test_a_signal_of_a_graph_leaves_its_group_too() -> None:
    async def ask() -> None:
        graph_signals.set((Interrupt,))
        await Loop(Interrupt()).client.get_response("go")

    with pytest.raises(Interrupt):
        asyncio.run(ask())
