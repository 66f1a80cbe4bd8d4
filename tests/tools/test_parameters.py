"""Who fills in a tool's parameters, and the defaults of those that the model may leave out."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from typing import Annotated, Any

import msgspec
import pydantic
import pytest

from chatstack import (
    ChatStack,
    FunctionInvoker,
    Injected,
    InputError,
    Message,
    ToolCall,
    ToolContext,
    ToolResult,
    WiringError,
    tool,
)
from chatstack.client.parsing import shape_of
from chatstack.testing import ScriptedClient


class Database:
    pass


@tool
def who(user: Injected[Database] | None = None) -> str:
    return type(user).__name__


def ran(call: ToolCall, services: dict[type, object] | None) -> ToolResult:
    stack = ChatStack(ScriptedClient([Message.assistant(call), "ok"])).use(FunctionInvoker, tools=[who])
    client = stack.build() if services is None else stack.build(services.get)
    return asyncio.run(client.get_response("go")).messages[1].results[0]


def test_the_model_cannot_make_up_a_service_that_may_be_none() -> None:
    assert json.loads(who.parameters)["properties"] == {}
    assert who.services == {"user": Database}
    assert ran(ToolCall("1", "who", '{"user": {"name": "mallory"}}'), {Database: Database()}).is_error


@pytest.mark.parametrize(
    ("services", "found"), [({Database: Database()}, "Database"), ({}, "NoneType"), (None, "NoneType")]
)
def test_a_service_that_may_be_none_keeps_its_default_where_there_is_none(
    services: dict[type, object] | None, found: str
) -> None:
    assert ran(ToolCall("1", "who", "{}"), services).output == found


def test_a_service_without_a_default_is_still_required() -> None:
    def ask(user: Injected[Database] | None) -> None: ...

    with pytest.raises(WiringError, match="tool 'ask' needs Database injected"):
        ChatStack(ScriptedClient(["hi"])).use(FunctionInvoker, tools=[ask]).build()


@pytest.mark.parametrize("hint", [list[Injected[Database]], Injected[Database] | int, dict[str, Injected[Database]]])
def test_a_service_within_another_type_is_refused(hint: Any) -> None:
    def ask(users: Any) -> None: ...

    ask.__annotations__["users"] = hint
    with pytest.raises(WiringError, match=r"parameter 'users' is .*; Injected\[...\] stands alone, or beside None"):
        tool(ask)


def test_two_contexts_are_refused() -> None:
    def look(one: ToolContext, two: ToolContext) -> None: ...

    with pytest.raises(WiringError, match="parameter 'two' is a ToolContext, as 'one' is"):
        tool(look)


def test_a_default_of_none_may_be_sent() -> None:
    def look(limit: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    assert tool(look).arguments_from('{"limit": null}') == {"limit": None}


def test_a_default_that_json_has_no_form_for_is_not_shown() -> None:
    def look(limit: float = float("inf")) -> None: ...

    assert json.loads(tool(look).parameters)["properties"]["limit"] == {"type": "number"}
    assert tool(look).arguments_from("{}") == {"limit": float("inf")}


def test_a_default_that_cannot_be_written_is_refused_by_its_parameter() -> None:
    def look(text: str = "\ud800") -> None: ...

    with pytest.raises(WiringError, match=r"parameter 'text' has a default \(str\) that cannot be written as JSON"):
        tool(look)


@pytest.mark.parametrize("kind", [Annotated[int | None, msgspec.Meta(ge=1)], Annotated[str, msgspec.Meta(ge=1)]])
def test_a_bound_that_does_not_fit_its_type_is_told(kind: Any) -> None:
    def look(limit: Any) -> None: ...

    look.__annotations__["limit"] = kind
    with pytest.raises(WiringError, match=r"'limit' \(.*\) has a bound that does not fit its type: Can only set `ge`"):
        tool(look)


class Shop:
    def sell(self, what: str) -> None: ...


def test_a_method_without_its_object_is_told_how_to_become_a_tool() -> None:
    with pytest.raises(WiringError, match="parameter 'self' has no type hint; make a tool of the bound method"):
        tool(Shop.sell)
    assert list(tool(Shop().sell).arguments_from('{"what": "tea"}')) == ["what"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type statements came with 3.12")
def test_a_type_that_names_itself_is_refused_by_its_parameter_and_may_be_an_output_type() -> None:
    named: dict[str, Any] = {}
    exec("type Tree = dict[str, Tree]", named)  # no syntax of the oldest Python

    def grow(tree: Any) -> None: ...

    grow.__annotations__["tree"] = named["Tree"]
    with pytest.raises(WiringError, match=r"tool 'grow': parameter 'tree' .* cannot be described as JSON"):
        tool(grow)
    client = ChatStack(ScriptedClient(['{"value": {"a": {}}}'])).build()
    assert asyncio.run(client.get_response("go", output_type=named["Tree"])).parsed == {"a": {}}


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type statements came with 3.12")
@pytest.mark.parametrize(
    "statements",
    [
        "type Loop = Loop",
        "type Other = Loop\ntype Loop = Other",
        "type Loop = Annotated[Loop, 'a loop']",
        "type Of[T] = Of[list[T]]\nLoop = Of[int]",
    ],
)
@pytest.mark.parametrize("form", ["kind", "list[kind] | None", "make_dataclass('Holder', [('held', kind)])"])
def test_a_type_that_names_nothing_but_itself_is_refused(statements: str, form: str) -> None:
    named: dict[str, Any] = {"Annotated": Annotated, "make_dataclass": dataclasses.make_dataclass}
    exec(statements, named)

    def look(at: Any) -> None: ...

    look.__annotations__["at"] = eval(form, named, {"kind": named["Loop"]})
    with pytest.raises(WiringError, match=r"tool 'look': parameter 'at' .*names nothing but itself"):
        tool(look)
    with pytest.raises(InputError, match=r"output_type=.*names nothing but itself"):
        shape_of(look.__annotations__["at"])


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type statements came with 3.12")
def test_a_generic_type_statement_keeps_its_arguments_and_its_bounds() -> None:
    named: dict[str, Any] = {"Annotated": Annotated, "Meta": msgspec.Meta, "Field": pydantic.Field}
    exec("type Few[T] = Annotated[list[T], Field(max_length=2)]\ntype Row[T] = list[T]", named)

    def look(few: Any, row: Any) -> None: ...

    look.__annotations__ |= {"few": named["Few"][int], "row": named["Row"][Annotated[int, pydantic.Field(ge=1)]]}
    made = tool(look)
    made.arguments_from('{"few": [1, 2], "row": [1]}')
    for wrong in ('{"few": ["a"], "row": []}', '{"few": [1, 2, 3], "row": []}', '{"few": [], "row": [0]}'):
        with pytest.raises(msgspec.ValidationError):
            made.arguments_from(wrong)
