"""Tools whose parameters are pydantic models."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest

from chatstack import ChatStack, FunctionInvoker, Message, Tool, ToolCall, WiringError, tool
from chatstack.testing import ScriptedClient


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    age: int = pydantic.Field(ge=0, description="in years")


class Owner(pydantic.BaseModel):
    cats: list[Cat]
    name: str


class Parent(pydantic.BaseModel):
    children: list[Parent]


class Even(pydantic.BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def check(cls, value: int) -> int:
        if value % 2:
            raise ValueError("must be even")
        return value


@tool
def adopt(owner: Owner, cat: Annotated[Cat | None, "which one"] = None, more: list[Cat] = []) -> str:  # noqa: B006
    """Finds a home for a cat."""
    return f"{owner.name} has {len(owner.cats)}, {cat!r}, {more!r}"


def schema_of(made: Tool[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made.parameters)
    return found


def test_the_schema_of_a_model_is_in_that_of_the_tool() -> None:
    schema = schema_of(adopt)
    cat = Cat.model_json_schema()
    assert schema["required"] == ["owner"]
    assert schema["properties"]["owner"]["properties"]["cats"]["items"] == {"$ref": "#/$defs/Cat"}
    assert schema["properties"]["cat"]["description"] == "which one"
    assert schema["properties"]["more"]["items"] == cat
    assert schema["$defs"] == {"Cat": cat}


def test_arguments_arrive_as_models() -> None:
    arguments = adopt.arguments_from('{"owner":{"cats":[{"age":3}],"name":"Ada"},"cat":{"age":1},"more":[{"age":0}]}')
    assert arguments == {"owner": Owner(cats=[Cat(age=3)], name="Ada"), "cat": Cat(age=1), "more": [Cat(age=0)]}
    assert adopt.arguments_from('{"owner":{"cats":[],"name":"Ada"}}')["cat"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"owner":{"cats":[{"age":-1}],"name":"Ada"}}', "cats.0.age: .* greater than or equal to 0 - at `\\$.owner`"),
        ('{"owner":{"cats":[]}}', "name: Field required - at `\\$.owner`"),
        ('{"owner":7}', "^Input should be an object - at `\\$.owner`"),
        (
            '{"owner":{"cats":[],"name":"Ada"},"more":[{"age":1},{"age":"x"}]}',
            "age: .* integer.* `\\$.more\\[1\\]`",
        ),
    ],
)
def test_arguments_that_do_not_fit_say_where(arguments: str, said: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=said):
        adopt.arguments_from(arguments)


def test_a_model_of_its_own_kind_and_its_own_checks() -> None:
    @tool
    def grow(tree: Parent, even: Even) -> int:
        return len(tree.children)

    arguments = '{"tree":{"children":[{"children":[]}]},"even":{"number":%s}}'
    assert grow.arguments_from(arguments % 2)["tree"] == Parent(children=[Parent(children=[])])
    assert schema_of(grow)["$defs"]["Parent"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Parent"}
    with pytest.raises(msgspec.ValidationError, match="must be even"):
        grow.arguments_from(arguments % 3)


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr
    audience: str = pydantic.Field("everybody", exclude=True)
    token_count: int = pydantic.Field(0, alias="tokenCount")


def test_a_number_in_quotes_changes_no_model_beside_it() -> None:
    @tool
    def sign_in(login: Login, retries: int) -> None: ...

    text = '{"login": {"password": "x", "audience": "me", "tokenCount": 3}, "retries": %s}'
    assert sign_in.arguments_from(text % '"2"') == sign_in.arguments_from(text % 2)


def test_the_model_reads_what_is_wrong_and_gets_it_right() -> None:
    def call(age: int) -> Message:
        return Message.assistant(ToolCall("a", "adopt", f'{{"owner":{{"cats":[{{"age":{age}}}],"name":"Ada"}}}}'))

    provider = ScriptedClient([call(-1), call(1), "done"])
    client = ChatStack(provider).use(FunctionInvoker, tools=[adopt]).build()
    response = asyncio.run(client.get_response("go"))
    first, second = [result for message in response.messages for result in message.results]
    assert first.is_error
    assert "cats.0.age" in str(first.output)
    assert second.output == "Ada has 1, None, []"


def test_two_models_of_one_name_are_refused() -> None:
    cat = pydantic.create_model("Cat", name=(str, ...))
    home = pydantic.create_model("Home", cat=(cat, ...))

    def move(home: Any, owner: Owner) -> str:
        return ""

    move.__annotations__["home"] = home
    with pytest.raises(WiringError, match="two classes are called Cat"):
        tool(move)


def test_a_union_of_models_is_refused_by_the_tools_name() -> None:
    with pytest.raises(
        WiringError, match=r"tool 'either': parameter 'pet' \(.*Owner.*\) could be .* use msgspec.Structs with a tag"
    ):

        @tool
        def either(pet: Owner | Cat) -> str:
            return ""
