"""Tools that an API declares by a type of its own, and the client runs: a shell, a text editor, a computer."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pytest

from chatstack import (
    ChatOptions,
    ChatStack,
    FunctionInvoker,
    IterativeContext,
    IterativeLoop,
    MemoryWorkspace,
    Message,
    ProviderItem,
    Tool,
    ToolCall,
    ToolContext,
    ToolDeclaration,
    tool,
)
from chatstack.providers.openai import chat_wire, responses_wire
from chatstack.testing import Answer, ScriptedClient
from chatstack.values.requests import declared_names


def item(provider: str = "openai", **fields: object) -> ProviderItem:
    return ProviderItem(provider, json.dumps(fields))


BASH = item("anthropic", type="bash_20250124", name="bash")
SHELL = item(type="custom", name="sh")
OF_CHAT = item(type="custom", custom={"name": "sh"})
COMPUTER = item(type="computer_use_preview", display_width=800)
SPACE = item(type="namespace", name="crm", tools=[{"type": "function", "name": "sh"}])

HELD = Message.assistant(
    item(type="shell_call", id="s", call_id="c-s"), item(type="shell_call_output", id="so", call_id="c-s")
)
"""A call that was run at the provider, with its result."""
LOOK = item(type="computer_call", id="x", call_id="c-9", action={"type": "screenshot"})
ASKS = item(type="mcp_approval_request", id="m", name="pay", arguments="{}")
OURS = ToolCall("1", "weather", '{"city": "Oslo"}')


@tool
def weather(city: str) -> str:
    """Tell the weather."""
    return f"cold in {city}"


class Loop:
    def __init__(self, *answers: Answer, tools: Any = (weather,), **options: Any) -> None:
        self.provider = ScriptedClient(answers)
        self.client = ChatStack(self.provider).use(FunctionInvoker, tools=tools, **options).build()

    def ask(self, *declared: ProviderItem) -> tuple[Message, ...]:
        return asyncio.run(self.client.get_response("go", options=ChatOptions(tools=declared))).messages


@pytest.mark.parametrize(
    ("declared", "name"),
    [(BASH, "bash"), (SHELL, "sh"), (OF_CHAT, "sh"), (SPACE, "sh")],
    ids=["bash", "sh", "chat", "in"],
)
def test_a_call_of_such_a_tool_without_code_is_handed_back_beside_ours_too(declared: ProviderItem, name: str) -> None:
    call = Message.assistant(ToolCall("c1", name, "ls"), OURS)
    loop = Loop(call)
    assert loop.ask(declared) == (call, Message.tool("1", "cold in Oslo", name="weather"))


@pytest.mark.parametrize(
    "declared", [BASH, item(type="computer_use_preview"), item(name=5), ProviderItem("openai", "no")]
)
def test_a_name_that_nobody_declares_is_an_error_for_the_model(declared: ProviderItem) -> None:
    messages = Loop([ToolCall("c1", "sh", "ls")], "sorry").ask(declared)
    assert messages[1].results[0].text.startswith("Error: no tool 'sh'")


def test_such_a_tool_with_code_in_the_loop_goes_out_once_and_is_run() -> None:
    bash = Tool.from_schema(lambda command: f"{command}: a.txt", name="bash")
    loop = Loop([ToolCall("c1", "bash", '{"command": "ls"}')], "a.txt", tools=[bash, weather])
    assert loop.ask(BASH)[1].results[0].text == "ls: a.txt"
    assert loop.provider.requests[0].options.tools == (BASH, weather.declaration())


def test_an_iterative_loop_sends_it_once_too() -> None:
    bash = Tool.from_schema(lambda command: "a.txt", name="bash")
    provider = ScriptedClient([[ToolCall("c1", "bash", '{"command": "ls"}')], "a.txt"])
    loop = IterativeLoop(
        provider,
        "Work.",
        prompt=lambda context: "go",
        tools=[bash],
        options=ChatOptions(tools=(BASH,)),
        max_iterations=2,
    )
    asyncio.run(loop.run(IterativeContext(workspace=MemoryWorkspace())))
    assert provider.requests[0].options.tools == (BASH,)


# Free text for a function with parameters


@tool
def sh(command: Annotated[str, msgspec.Meta(max_length=30)]) -> str:
    """Runs a command."""
    return f"ran {command}"


@dataclass
class Edit:
    path: str


@tool
def patch(edit: Edit) -> str:
    """Changes a file."""
    return f"changed {edit.path}"


@tool
def count(lines: int) -> str:
    """Counts."""
    return f"{lines + 1}"


@tool
def move(source: str, target: str, *, context: ToolContext, times: int = 1) -> str:
    """Moves a file."""
    return f"{context.call_id}: {source} to {target}"


SHELLS = [
    sh,
    Tool.from_schema(lambda command: f"ran {command}", name="sh"),
    Tool.from_schema(functools.partial(lambda key, command: f"ran {command}", key="k"), name="sh"),
    Tool.from_schema(
        lambda **given: f"ran {given['command']}",
        name="sh",
        parameters={"type": "object", "properties": {"command": {"type": "string"}}},
    ),
]
OBJECT = "Error: the arguments do not fit: {}; the input has to be a JSON object with source, target, times."


def of_chat(name: str, text: str) -> ToolCall:
    calls = [{"id": "c1", "type": "custom", "custom": {"name": name, "input": text}}]
    (message,) = chat_wire.messages_from_wire([{"role": "assistant", "tool_calls": calls}])
    return message.calls[0]


def of_responses(name: str, text: str) -> ToolCall:
    item = {"type": "custom_tool_call", "call_id": "c1", "name": name, "input": text}
    (call,) = responses_wire.message_from_wire([item]).calls
    return call


def result_of(made: Tool[..., Any], call: ToolCall) -> str:
    return Loop([call], "done", tools=[made]).ask(item(type="custom", name=made.name))[1].results[0].text


@pytest.mark.parametrize("form", [of_chat, of_responses])
@pytest.mark.parametrize("made", SHELLS, ids=["function", "schema", "bound", "declared"])
@pytest.mark.parametrize("text", ["ls -la", '{"command": "ls"}', '"ls"', "5", ""])
def test_free_text_is_the_only_parameter_to_the_letter(
    made: Tool[..., Any], text: str, form: Callable[[str, str], ToolCall]
) -> None:
    assert result_of(made, form("sh", text)) == f"ran {text}"


@pytest.mark.parametrize("form", [of_chat, of_responses])
@pytest.mark.parametrize(
    ("made", "text", "told"),
    [
        (patch, '{"edit": {"path": "a.py"}}', "changed a.py"),
        (count, "5", "6"),
        (move, '{"source": "a", "target": "b"}', "c1: a to b"),
        (weather, "Oslo", "cold in Oslo"),
    ],
)
def test_where_no_parameter_takes_the_text_it_is_read_as_json(
    made: Tool[..., Any], text: str, told: str, form: Callable[[str, str], ToolCall]
) -> None:
    assert result_of(made, form(made.name, text)) == told


@pytest.mark.parametrize(
    ("made", "text", "told"),
    [
        (sh, "l" * 31, "Error: the arguments do not fit: Expected `str` of length <= 30 - at `$.command`."),
        (count, "many", "Error: the arguments do not fit: Expected `int`, got `str` - at `$.lines`."),
        (move, "a b", OBJECT.format("JSON is malformed: invalid character (byte 0)")),
        (move, '{"source": "a"}', OBJECT.format("Object missing required field `target`")),
    ],
)
def test_free_text_that_fits_nothing_is_an_error_that_says_what_would(
    made: Tool[..., Any], text: str, told: str
) -> None:
    assert result_of(made, of_chat(made.name, text)).startswith(told)


def test_a_text_in_the_place_of_arguments_is_an_error_in_all_other_calls() -> None:
    for extra in ("", '{"openai-chat": {"type": "function"}}', '{"anthropic": {"caller": {}}}', "no", '{"x": 5}'):
        told = result_of(sh, ToolCall("c1", "sh", '"ls"', extra))
        assert told.startswith("Error: the arguments do not fit: Expected `object`, got `str`")


# Items that wait for the caller


@pytest.mark.parametrize("open_item", [LOOK, ASKS], ids=["computer", "approval"])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_item_that_waits_for_the_caller_ends_the_turn_once_ours_has_run(
    open_item: ProviderItem, is_streamed: bool
) -> None:
    answer = Message.assistant(open_item, OURS)
    loop = Loop(answer)

    async def ask() -> tuple[Message, ...]:
        options = ChatOptions(tools=(COMPUTER,))
        if not is_streamed:
            return (await loop.client.get_response("go", options=options)).messages
        async with loop.client.get_streaming_response("go", options=options) as stream:
            return (await stream.response()).messages

    assert asyncio.run(ask()) == (answer, Message.tool("1", "cold in Oslo", name="weather"))
    assert len(loop.provider.requests) == 1


def test_beyond_the_limit_of_calls_it_is_handed_back_too() -> None:
    answer = Message.assistant(LOOK, OURS)
    messages = Loop([OURS], answer, max_tool_calls_per_turn=1).ask(COMPUTER)
    assert messages[-2] == answer
    assert messages[-1].results[0].is_error


@pytest.mark.parametrize(
    "items",
    [
        HELD.parts,
        [item(type="web_search_call", id="ws", status="completed")],
        [item(type="tool_search_call", id="t", call_id=None, execution="server")],
        [item("anthropic", type="server_tool_use", id="s", name="code_execution", input={})],
        [item("agent_framework", type="mcp_server_tool_call", call_id="c")],
    ],
    ids=["answered", "search", "tool search", "programmatic", "remote"],
)
def test_what_runs_at_the_provider_is_not_waited_for(items: Any) -> None:
    loop = Loop(Message.assistant(*items, OURS), "cold")
    assert loop.ask()[-1].text == "cold"


def test_an_iteration_ends_where_the_model_waits_for_a_caller() -> None:
    provider = ScriptedClient([Message.assistant(LOOK, OURS), "done"])
    loop = IterativeLoop(
        provider,
        "Work.",
        prompt=lambda context: "go",
        tools=[weather],
        mode="multi_round",
        options=ChatOptions(tools=(COMPUTER,)),
        max_iterations=3,
    )
    asyncio.run(loop.run(IterativeContext(workspace=MemoryWorkspace())))
    assert [len(request.messages) for request in provider.requests] == [1, 1]


def test_the_names_of_declarations_are_those_of_their_calls() -> None:
    declared = (ToolDeclaration("look"), BASH, SHELL, OF_CHAT, COMPUTER, SPACE)
    assert declared_names(declared) == {"look", "bash", "sh"}
    assert declared_names([item(name="\ud800"), ProviderItem("x", "[" * 5_000), ProviderItem("x", '"\ud800"')]) <= {
        "\ud800"
    }
