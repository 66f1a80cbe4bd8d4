"""Constraints of pydantic's on a tool's parameters: shown and checked, or refused."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any, Generic, NamedTuple, NewType, TypedDict, TypeVar, cast

import annotated_types
import msgspec
import pydantic
import pytest

from chatstack import Tool, WiringError, tool
from chatstack.client.constraints import is_pydantics

T = TypeVar("T")


class Notes(TypedDict):
    pages: Annotated[int, pydantic.Field(ge=1)]


@pydantic.dataclasses.dataclass
class Transfer:
    cents: int


@dataclasses.dataclass
class Batch:
    transfers: list[Transfer]
    after: Batch | None = None


class Cat(pydantic.BaseModel):
    age: int = pydantic.Field(ge=0)


@dataclasses.dataclass
class Home:
    cats: list[Cat]
    near: Home | None = None


@dataclasses.dataclass
class Page(Generic[T]):
    items: list[T]
    size: Annotated[int, pydantic.Field(gt=0)] = 1


class Named(NamedTuple):
    size: Annotated[int, pydantic.Field(gt=0)]


@dataclasses.dataclass
class Box(Generic[T]):
    item: T


Positive = NewType("Positive", Annotated[int, pydantic.Field(gt=0)])


@tool
def search(
    limit: Annotated[int, pydantic.Field(ge=1, le=50, description="how many", examples=[10])],
    code: Annotated[str, pydantic.Field(pattern="^[A-Z]+$", min_length=2)] = "AB",
    pages: list[Annotated[int, annotated_types.Interval(gt=0, lt=9)]] | None = None,
    share: Annotated[pydantic.PositiveFloat, "of all"] = 1.0,
    most: Annotated[int | None, pydantic.Field(ge=1, description="at most")] = None,
    of: Positive | msgspec.UnsetType = msgspec.UNSET,
    up_to: Annotated[int | msgspec.UnsetType, pydantic.Field(le=9)] = msgspec.UNSET,
    boxed: Box[Annotated[int, pydantic.Field(ge=3)]] | None = None,
) -> None: ...


def properties(made: Tool[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made.parameters)["properties"]
    return found


def test_bounds_and_descriptions_are_shown() -> None:
    shown = properties(search)
    assert shown["limit"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 50,
        "description": "how many",
        "examples": [10],
    }
    assert shown["code"] == {"type": "string", "pattern": "^[A-Z]+$", "minLength": 2, "default": "AB"}
    assert shown["most"]["anyOf"] == [{"type": "integer", "minimum": 1}, {"type": "null"}]
    assert shown["most"]["description"] == "at most"
    assert shown["of"] == {"type": "integer", "exclusiveMinimum": 0}
    assert shown["up_to"] == {"type": "integer", "maximum": 9}
    assert '"minimum":3' in search.parameters
    assert (shown["share"]["exclusiveMinimum"], shown["share"]["description"]) == (0, "of all")


@pytest.mark.parametrize(
    "beside", ['"limit": 51', '"limit": 1, "code": "a1"', '"limit": 1, "pages": [9]', '"limit": 1, "share": 0']
)
def test_bounds_are_checked(beside: str) -> None:
    search.arguments_from('{"limit": 50, "code": "ABC", "pages": [8], "share": 0.5}')
    with pytest.raises(msgspec.ValidationError):
        search.arguments_from(f"{{{beside}}}")


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        (Transfer, "is, or holds, Transfer, which pydantic alone can check"),
        (Batch, "is, or holds, Batch, which pydantic alone can check"),
        (list[Notes], "is, or holds, Notes, which pydantic alone can check"),
        (Annotated[int, pydantic.AfterValidator(abs)], "has AfterValidator"),
        (Annotated[int, pydantic.Field(strict=True)], "has Strict"),
        (Annotated[int, pydantic.Field(alias="n")], "has a Field with an alias or a default"),
        (Annotated[int, pydantic.Field(default=3)], "has a Field with an alias or a default"),
        (Annotated[int, pydantic.Field(validation_alias="n")], "has a Field with an alias or a default"),
        (Page[int], "is, or holds, Page, which pydantic alone can check"),
        (Named, "is, or holds, Named, which pydantic alone can check"),
        (Annotated[str, pydantic.StringConstraints(min_length=1, to_upper=True)], "has _PydanticGeneralMetadata"),
        (Annotated[str, pydantic.Field(pattern=r"^\p{L}$")], "bad escape"),
    ],
)
def test_what_pydantic_alone_can_check_is_refused(hint: Any, said: str) -> None:
    def pay(what: Any) -> None: ...

    pay.__annotations__["what"] = hint
    with pytest.raises(WiringError, match=f"tool 'pay': parameter 'what' {said}"):
        tool(pay)


def test_a_type_that_names_itself_is_looked_at_once() -> None:
    """As ``type Tree = list[Tree]`` does, from Python 3.12 on."""
    tree: Any = cast("Any", NewType)("Tree", list)
    tree.__supertype__ = list[tree]
    assert is_pydantics(dict[str, tree]) is False
    bounded: Any = cast("Any", NewType)("Bounded", list)
    bounded.__supertype__ = list[Annotated[bounded, pydantic.Field(max_length=3)]]

    def grow(what: Any) -> None: ...

    grow.__annotations__["what"] = bounded
    with pytest.raises(WiringError, match="parameter 'what' maximum recursion depth exceeded"):
        tool(grow)


def test_types_that_hold_one_another_are_looked_at_once() -> None:
    kinds = [dataclasses.make_dataclass("K0", [("at", int)])]
    for number in range(1, 40):
        kinds.append(dataclasses.make_dataclass(f"K{number}", [("one", kinds[-1]), ("other", kinds[-1])]))
    assert is_pydantics(kinds[-1]) is False


def test_a_dataclass_of_models_is_a_parameter_as_before() -> None:
    @tool
    def move(home: Home) -> None: ...

    assert move.arguments_from('{"home": {"cats": [{"age": 1}]}}') == {"home": Home([Cat(age=1)])}
    with pytest.raises(msgspec.ValidationError, match="greater than or equal to 0"):
        move.arguments_from('{"home": {"cats": [{"age": -1}]}}')


def test_a_default_may_be_a_model_and_is_fresh_for_each_call() -> None:
    @tool
    def look(cat: Cat = Cat(age=1)) -> None: ...  # noqa: B008

    assert "default" not in properties(look)["cat"]
    look.arguments_from("{}")["cat"].age = 9
    assert look.arguments_from("{}") == {"cat": Cat(age=1)}


def test_a_field_as_default_is_refused_with_what_to_write() -> None:
    def look(limit: int = pydantic.Field(3, ge=1)) -> None: ...

    with pytest.raises(WiringError, match=r"parameter 'limit' has a default \(FieldInfo\) .*: write Annotated\["):
        tool(look)
