"""A value of the wrong type is refused where it is made, by class, field and type, never by its text."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import pytest

from chatstack import (
    ChatOptions,
    ChatRequest,
    File,
    Image,
    InputError,
    Message,
    OutputSchema,
    ProviderItem,
    Reasoning,
    Text,
    ToolCall,
    ToolDeclaration,
    ToolResult,
    tool,
)

SECRET: Any = {"password": "hunter2"}


@tool
def look() -> str:
    return ""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Text(None), "Text: text must be text, not NoneType"),  # type: ignore[arg-type]
        (lambda: Text("a", SECRET), "Text: extra_json must be JSON text, not dict"),
        (lambda: Reasoning(SECRET), "Reasoning: text must be text, not dict"),
        (lambda: ProviderItem("openai", SECRET), "ProviderItem: json must be JSON text, not dict"),
        (lambda: ToolCall("c", "f", SECRET), "ToolCall: arguments must be JSON text, not dict"),
        (lambda: ToolCall(None, "f"), "ToolCall: id must be text, not NoneType"),  # type: ignore[arg-type]
        (lambda: ToolCall("c", 5), "ToolCall: name must be text, not int"),  # type: ignore[arg-type]
        (lambda: ToolResult("c", None), "ToolResult: name must be text, not NoneType"),  # type: ignore[arg-type]
        (lambda: Message.tool("c", SECRET), "ToolResult: output must be text or a tuple of parts, not dict"),
        (lambda: Message.tool("c", None), "ToolResult: output must be text or a tuple of parts, not NoneType"),  # type: ignore[arg-type]
        (lambda: Message.tool("c", [Text("a")]), "ToolResult: output must be text or a tuple of parts, not list"),  # type: ignore[arg-type]
        (
            lambda: Message.tool("c", (Text("a"), "hunter2")),  # type: ignore[arg-type]
            "ToolResult: output[1] must be a Text, Image, File or ProviderItem, not str",
        ),
        (lambda: Message.tool("c", "a", is_error=None), "ToolResult: is_error must be True or False, not NoneType"),  # type: ignore[arg-type]
        (lambda: Message.user("a", pinned=1), "Message: pinned must be True or False, not int"),  # type: ignore[arg-type]
        (lambda: Message("user", (), mark=SECRET), "Message: mark must be text, not dict"),
        (
            lambda: Message("user", (), mark="note"),  # type: ignore[arg-type]
            "Message: mark='note' is not one of '', 'summary', 'repair'",
        ),
        (lambda: Message("user", (), extra_json=SECRET), "Message: extra_json must be JSON text, not dict"),
        (lambda: Message.tool(7, "a"), "ToolResult: call_id must be text, not int"),  # type: ignore[arg-type]
        (lambda: Image(data=b"hunter2"), "Image: data must be base64 text (Image.from_bytes takes bytes), not bytes"),  # type: ignore[arg-type]
        (lambda: File(data=b"hunter2"), "File: data must be base64 text (File.from_bytes takes bytes), not bytes"),  # type: ignore[arg-type]
        (lambda: File(name=None), "File: name must be text, not NoneType"),  # type: ignore[arg-type]
        (
            lambda: ToolDeclaration("f", "", SECRET),
            "ToolDeclaration: parameters must be a JSON schema as text, not dict",
        ),
        (lambda: OutputSchema("f", SECRET), "OutputSchema: schema must be a JSON schema as text, not dict"),
        (
            lambda: ChatOptions(tools=(look,)),  # type: ignore[arg-type]
            "ChatOptions: tools[0] is a Tool, not a ToolDeclaration; pass functions to FunctionInvoker, or their "
            "tool(...).declaration() here",
        ),
        (
            lambda: ChatOptions(tools=(look.declaration(), look.function)),  # type: ignore[arg-type]
            "ChatOptions: tools[1] is a function, not a ToolDeclaration; pass functions to FunctionInvoker, or their "
            "tool(...).declaration() here",
        ),
        (
            lambda: ChatOptions(tools=(Message.user("a"),)),  # type: ignore[arg-type]
            "ChatOptions: tools[0] is a Message, not a ToolDeclaration; pass functions to FunctionInvoker, or their "
            "tool(...).declaration() here",
        ),
        (lambda: ChatOptions(tools=(SECRET,)), "ChatOptions: tools[0] is a dict, not a ToolDeclaration"),
        (lambda: ChatOptions(stop=("END", 5)), "ChatOptions: stop[1] must be text, not int"),  # type: ignore[arg-type]
        (lambda: ChatOptions(model=5), "ChatOptions: model must be text, not int"),  # type: ignore[arg-type]
        (lambda: ChatOptions(instructions=None), "ChatOptions: instructions must be text, not NoneType"),  # type: ignore[arg-type]
        (lambda: ChatOptions(tool_choice=SECRET), "ChatOptions: tool_choice must be text, not dict"),
        (lambda: ChatOptions(parallel_tool_calls=1), "ChatOptions: parallel_tool_calls must be True or False, not int"),  # type: ignore[arg-type]
        (lambda: ChatOptions(max_tokens="5"), "ChatOptions: max_tokens must be a whole number, not str"),  # type: ignore[arg-type]
        (lambda: ChatOptions(max_tokens=True), "ChatOptions: max_tokens must be a whole number, not bool"),
        (lambda: ChatOptions(temperature="0.5"), "ChatOptions: temperature must be a number, not str"),  # type: ignore[arg-type]
        (lambda: ChatOptions(seed=0.5), "ChatOptions: seed must be a whole number, not float"),  # type: ignore[arg-type]
        (lambda: ChatOptions(output_schema=SECRET), "ChatOptions: output_schema must be an OutputSchema, not dict"),
        (lambda: ChatOptions(extra=None), "ChatOptions: extra must be a mapping, not NoneType"),  # type: ignore[arg-type]
        (lambda: ChatOptions(extra=[SECRET]), "ChatOptions: extra must be a mapping, not list"),  # type: ignore[arg-type]
        (lambda: ChatRequest([Message.user("hunter2")]), "ChatRequest: messages must be a tuple of messages, not list"),  # type: ignore[arg-type]
        (lambda: ChatRequest("hunter2"), "ChatRequest: messages must be a tuple of messages, not str"),  # type: ignore[arg-type]
        (lambda: ChatRequest((), None), "ChatRequest: options must be ChatOptions, not NoneType"),  # type: ignore[arg-type]
        (lambda: ChatRequest((), ChatOptions(), 5), "ChatRequest: conversation_id must be text, not int"),  # type: ignore[arg-type]
    ],
)
def test_a_field_of_the_wrong_type_is_refused_by_class_field_and_type(make: Callable[[], object], said: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert str(caught.value) == said
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_a_whole_number_may_stand_for_a_number_and_a_subclass_for_its_class() -> None:
    class Model(StrEnum):
        SMALL = "small"

    options = ChatOptions(temperature=1, model=Model.SMALL)
    assert (options.temperature, options.model) == (1, "small")
    assert Text(Model.SMALL).text == "small"
    assert ToolResult("c", output=Model.SMALL).text == "small"


@pytest.mark.parametrize("value", [ChatOptions(), ChatRequest((Message.user("a"),))], ids=["options", "request"])
def test_options_and_requests_cannot_be_hashed_as_they_say(value: object) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(value)
    assert "cannot be hashed" in (ChatOptions.__doc__ or "")
