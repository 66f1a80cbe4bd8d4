"""A function becomes a tool: what the model sees of it, and what is refused."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest

from chatstack import Injected, Tool, ToolContext, ToolDeclaration, WiringError, tool


class Unit(Enum):
    CELSIUS = "celsius"
    KELVIN = "kelvin"


@dataclass
class Place:
    city: str
    country: str = "AE"


class Stay(msgspec.Struct):
    place: Place
    nights: int


class Database:
    pass


NUMBER, TEXT = {"type": "number"}, {"type": "string"}


def schema_of(made: Tool[..., Any]) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(made.parameters)
    return schema


def properties(function: Callable[..., object]) -> dict[str, Any]:
    found: dict[str, Any] = schema_of(tool(function))["properties"]
    return found


# What the model sees


def test_name_docstring_and_type_hints_become_the_declaration() -> None:
    @tool
    def get_weather(city: str, days: int = 1) -> str:
        """The weather of a city.

        For some days.
        """
        return city

    assert get_weather.declaration() == ToolDeclaration(
        "get_weather", "The weather of a city.\n\nFor some days.", get_weather.parameters
    )
    assert schema_of(get_weather) == {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}},
        "required": ["city"],
        "additionalProperties": False,
    }


def test_name_and_description_can_be_given() -> None:
    @tool(name="weather", description="Tells the weather.", timeout_seconds=3)
    def get_weather(city: str) -> str:
        """Not this."""
        return city

    assert (get_weather.name, get_weather.description, get_weather.timeout_seconds) == (
        "weather",
        "Tells the weather.",
        3,
    )


def test_a_tool_is_still_the_function() -> None:
    @tool
    def double(number: int) -> int:
        return number * 2

    assert double(21) == 42
    assert double.description == ""


def test_a_tool_without_parameters_has_an_empty_object() -> None:
    @tool
    def now() -> str:
        return "noon"

    assert schema_of(now)["properties"] == {}
    assert now.arguments_from("") == {}
    assert now.arguments_from("  ") == {}
    assert now.arguments_from("{}") == {}


def test_a_coroutine_function_is_known_as_such() -> None:
    async def slow() -> None: ...

    def quick() -> None: ...

    assert tool(slow).is_async
    assert not tool(quick).is_async


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (list, {"type": "array", "items": {}}),
        (
            dict[str, list[Any]],
            {"type": "object", "additionalProperties": {"type": "array", "items": {}}},
        ),
        (
            tuple[float, str] | None,
            {
                "anyOf": [
                    {
                        "type": "array",
                        "minItems": 2,
                        "maxItems": 2,
                        "prefixItems": [NUMBER, TEXT],
                        "items": {"anyOf": [NUMBER, TEXT]},
                    },
                    {"type": "null"},
                ]
            },
        ),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Literal["a", "b"], {"enum": ["a", "b"], "type": "string"}),
        (str | None, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        (date, {"type": "string", "format": "date"}),
        (uuid.UUID, {"type": "string", "format": "uuid"}),
        (Annotated[int, "how many"], {"type": "integer", "description": "how many"}),
        (
            Annotated[int, "how many", msgspec.Meta(ge=1, le=9)],
            {"type": "integer", "minimum": 1, "maximum": 9, "description": "how many"},
        ),
        (
            Annotated[int, msgspec.Meta(ge=1, description="how many")],
            {"type": "integer", "minimum": 1, "description": "how many"},
        ),
    ],
    ids=str,
)
def test_a_type_hint_becomes_json_schema(hint: Any, schema: dict[str, Any]) -> None:
    def function(value: Any) -> None: ...

    function.__annotations__["value"] = hint
    assert properties(function)["value"] == schema


@pytest.mark.parametrize("default", ["x", 1, None, True, 1.5])
def test_a_default_is_shown_and_makes_a_parameter_optional(default: object) -> None:
    def function(value: str | float | bool | None = default) -> None: ...  # type: ignore[assignment]

    made = tool(function)
    assert properties(function)["value"]["default"] == default
    assert schema_of(made)["required"] == []
    assert made.arguments_from("{}") == {"value": default}


def test_a_default_that_can_change_is_fresh_for_every_call() -> None:
    def function(tags: list[str] = ["a"]) -> None: ...  # noqa: B006

    made = tool(function)
    first = made.arguments_from("{}")["tags"]
    first.append("b")
    assert made.arguments_from("{}") == {"tags": ["a"]}


def test_a_class_as_default_is_fresh_for_every_call_too() -> None:
    def function(place: Place = Place("Dubai"), stay: Stay = Stay(Place("Doha"), 1)) -> None: ...  # noqa: B008

    made = tool(function)
    first = made.arguments_from("{}")
    first["place"].city = first["stay"].place.city = "elsewhere"
    assert made.arguments_from("{}") == {"place": Place("Dubai"), "stay": Stay(Place("Doha"), 1)}
    assert schema_of(made)["required"] == []


def test_an_enum_is_a_choice_of_its_values() -> None:
    def function(unit: Unit = Unit.KELVIN) -> None: ...

    made = tool(function)
    schema = schema_of(made)
    assert schema["properties"]["unit"]["default"] == "kelvin"
    assert schema["$defs"]["Unit"]["enum"] == ["celsius", "kelvin"]
    assert made.arguments_from('{"unit": "celsius"}') == {"unit": Unit.CELSIUS}


def test_nested_classes_are_defined_once_and_arrive_as_instances() -> None:
    def book(stay: Stay, alternatives: list[Place]) -> None: ...

    made = tool(book)
    schema = schema_of(made)
    assert schema["properties"] == {
        "stay": {"$ref": "#/$defs/Stay"},
        "alternatives": {"type": "array", "items": {"$ref": "#/$defs/Place"}},
    }
    assert set(schema["$defs"]) == {"Stay", "Place"}
    assert schema["$defs"]["Place"]["required"] == ["city"]
    arguments = made.arguments_from('{"stay": {"place": {"city": "Dubai"}, "nights": 2}, "alternatives": []}')
    assert arguments == {"stay": Stay(Place("Dubai"), 2), "alternatives": []}


def test_a_class_may_be_called_like_the_tool() -> None:
    def Place_(place: Place) -> None: ...

    made = tool(name="Place")(Place_)
    assert made.arguments_from('{"place": {"city": "Dubai"}}') == {"place": Place("Dubai")}
    assert "place" in schema_of(made)["properties"]


def test_a_bound_method_is_a_tool() -> None:
    class Agency:
        def book(self, city: str) -> str:
            """Books."""
            return f"booked {city}"

    made = tool(Agency().book)
    assert (made.name, made.description, list(schema_of(made)["properties"])) == ("book", "Books.", ["city"])
    assert made(city="Dubai") == "booked Dubai"


# What the model does not see


def test_context_and_services_are_filled_in_and_not_in_the_schema() -> None:
    def find(query: str, database: Injected[Database], context: ToolContext, limit: int = 5) -> None: ...

    made = tool(find)
    assert list(schema_of(made)["properties"]) == ["query", "limit"]
    assert made.services == {"database": Database}
    assert made.context_parameter == "context"


def test_a_context_that_may_be_none_is_filled_in_too() -> None:
    def find(query: str, context: ToolContext | None = None) -> None: ...

    made = tool(find)
    assert list(schema_of(made)["properties"]) == ["query"]
    assert made.context_parameter == "context"


def test_the_model_cannot_fill_in_what_is_injected() -> None:
    def find(query: str, database: Injected[Database]) -> None: ...

    with pytest.raises(msgspec.ValidationError, match="database"):
        tool(find).arguments_from('{"query": "q", "database": "mine"}')


# Arguments


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("{}", "missing required field `city`"),
        ('{"city": 5}', r"Expected `str`, got `int` - at `\$\.city`"),
        ('{"city": "a", "days": "two"}', r"Expected `int`, got `str` - at `\$\.days`"),
        ('{"city": "a", "town": "b"}', "unknown field `town`"),
        ("[]", "Expected `object`, got `array`"),
        ('{"city": "a"', "truncated"),
    ],
)
def test_arguments_that_do_not_fit_say_where(arguments: str, said: str) -> None:
    def get_weather(city: str, days: int = 1) -> None: ...

    with pytest.raises(msgspec.DecodeError, match=said):
        tool(get_weather).arguments_from(arguments)


def test_bounds_of_an_argument_are_checked() -> None:
    def get_weather(days: Annotated[int, "how many", msgspec.Meta(ge=1)]) -> None: ...

    with pytest.raises(msgspec.ValidationError, match=r">= 1"):
        tool(get_weather).arguments_from('{"days": 0}')


# Refused


def bare(city) -> None: ...  # type: ignore[no-untyped-def]


def starred(*cities: str) -> None: ...


def keywords(**cities: str) -> None: ...


def positional(city: str, /) -> None: ...


YIELDS = "has a 'yield', and a result is read as a whole: return it, as a list if need be"


def yields(city: str) -> Iterator[str]:
    yield city


async def yields_later(city: str) -> AsyncIterator[str]:
    yield city


class Yields:
    def __call__(self, city: str) -> Iterator[str]:
        yield city


def not_json(where: Callable[[], None]) -> None: ...


def not_resolved(city: NoSuchType) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def look_up(city: str) -> str:
    return city


class OfAnotherLibrary:
    """A tool as LangChain has it: with the function that it was made of, in one of two fields."""

    func = None

    def __init__(self, coroutine: Callable[[str], str]) -> None:
        self.coroutine = coroutine


class CallableThing:
    count: int = 0

    def __call__(self, city: str) -> None:
        """Calls it."""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (bare, "tool 'bare': parameter 'city' has no type hint; the model needs one"),
        (starred, "tool 'starred': parameter 'cities' takes any number of arguments; tools need named parameters"),
        (keywords, "tool 'keywords': parameter 'cities' takes any number of arguments; tools need named parameters"),
        (positional, "tool 'positional': parameter 'city' is positional-only; tools need named parameters"),
        (
            not_resolved,
            "tool 'not_resolved': parameter 'city' has a type hint that cannot be resolved, NoSuchType: "
            "name 'NoSuchType' is not defined; import what it names outside of TYPE_CHECKING",
        ),
        ("text", "tool: expected a function, got str"),
        (OfAnotherLibrary(look_up), "tool: expected a function, got OfAnotherLibrary; pass the one in its 'coroutine'"),
        (yields, f"tool 'yields': {YIELDS}"),
        (yields_later, f"tool 'yields_later': {YIELDS}"),
        (Yields(), f"tool 'Yields': {YIELDS}"),
        (functools.partial(yields, city="x"), f"tool 'yields': {YIELDS}"),
        (
            lambda: "x",
            "tool '<lambda>': a name is 1 to 128 letters, digits, _ and -; pass @tool(name='...')",
        ),
    ],
)
def test_what_cannot_be_a_tool_is_refused_by_name_and_reason(function: Any, said: str) -> None:
    with pytest.raises(WiringError) as caught:
        tool(function)
    assert str(caught.value) == said


def test_a_parameter_that_json_cannot_describe_is_refused() -> None:
    with pytest.raises(WiringError, match=r"tool 'not_json': parameter '\w+' \(\w+\) cannot be described as JSON"):
        tool(not_json)


def test_a_callable_object_is_described_by_its_call() -> None:
    made = tool(CallableThing())
    assert (made.name, made.description) == ("CallableThing", "Calls it.")
    assert schema_of(made)["properties"] == {"city": {"type": "string"}}


def test_what_a_partial_has_bound_by_position_is_not_the_models_to_fill_in() -> None:
    def book(agency: Database, city: str) -> str:
        """Books."""
        return city

    made = tool(functools.partial(book, Database()))
    assert (made.name, made.description) == ("book", "Books.")
    assert list(schema_of(made)["properties"]) == ["city"]
    assert made(city="Dubai") == "Dubai"


class Agency:
    def book(self, city: str, api_key: str = "", nights: int = 1) -> str:
        """Books."""
        return f"{nights} nights in {city}, {api_key}"

    bound = functools.partialmethod(book, api_key="sk-SECRET")


BOUND = functools.partial(Agency().book, api_key="sk-SECRET")
CONTEXT = ToolContext(conversation_id=None, call_id="c", tool_name="book", round=0, messages=())
PARTIALS: list[Callable[..., str]] = [
    BOUND,
    Agency().bound,
    functools.partial(functools.partial(Agency().book, nights=3, api_key="sk-SECRET")),
]


@pytest.mark.parametrize("bound", PARTIALS)
def test_what_a_partial_has_bound_by_name_is_not_the_models_to_see_or_to_fill_in(bound: Callable[..., str]) -> None:
    made = tool(bound)
    assert "sk-SECRET" not in made.parameters
    assert "api_key" not in schema_of(made)["properties"]
    assert "api_key" not in made.arguments_from('{"city": "Dubai"}')
    assert made(**made.arguments_from('{"city": "Dubai"}')).endswith(" nights in Dubai, sk-SECRET")
    with pytest.raises(msgspec.ValidationError, match="unknown field `api_key`"):
        made.arguments_from('{"city": "Dubai", "api_key": "mine"}')


def test_a_parameter_that_no_model_fills_in_may_have_any_name() -> None:
    def book(city: str, __database: Injected[Database], __context: ToolContext) -> str:
        return city

    made = tool(book)
    assert list(schema_of(made)["properties"]) == ["city"]
    assert (dict(made.services), made.context_parameter) == ({"__database": Database}, "__context")


def test_a_bound_service_is_not_asked_of_the_container_and_a_bound_parameter_needs_no_hint() -> None:
    def book(city: str, database: Injected[Database], context: ToolContext, session) -> str:  # type: ignore[no-untyped-def]
        return city

    made = tool(functools.partial(book, database=Database(), context=CONTEXT, session=threading.Lock()))
    assert list(schema_of(made)["properties"]) == ["city"]
    assert (dict(made.services), made.context_parameter) == ({}, None)


def test_a_model_cannot_fill_in_what_is_bound_behind_a_schema_either() -> None:
    made = Tool.from_schema(BOUND, name="book", parameters={"type": "object"})
    assert made.arguments_from('{"city": "Dubai"}') == {"city": "Dubai"}
    with pytest.raises(msgspec.ValidationError, match="unknown field `api_key`"):
        made.arguments_from('{"city": "Dubai", "api_key": "mine"}')


@pytest.mark.parametrize("name", ["get weather", "wetter.heute", "größe", "x" * 129])
def test_a_name_that_providers_refuse_is_refused_here(name: str) -> None:
    with pytest.raises(WiringError, match="letters, digits, _ and -"):
        tool(name=name)(starless)


def starless() -> None: ...


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_timeout_must_be_positive(seconds: float) -> None:
    with pytest.raises(WiringError) as caught:
        tool(timeout_seconds=seconds)(starless)
    assert str(caught.value) == f"tool 'starless': timeout_seconds={seconds} must be greater than 0"
    assert caught.value.parameter == "timeout_seconds"


def broken_hint(city: "1 +") -> None: ...  # type: ignore[valid-type]  # noqa: F722


def with_bytes(data: bytearray = bytearray(b"a")) -> None: ...  # noqa: B008


def locked(value: list[int] = [threading.Lock()]) -> None: ...  # type: ignore[list-item]  # noqa: B006, B008


OF_PYTHON = ["__init__", "__post_init__", "__dict__", "__slots__", "__class__", "__annotations__", "__y", "__y_", "__"]


@pytest.mark.parametrize("name", OF_PYTHON)
def test_a_parameter_with_a_name_of_pythons_own_is_refused(name: str) -> None:
    made: dict[str, Any] = {}
    exec(f"def take({name}: int) -> None: ...", made)
    with pytest.raises(WiringError) as caught:
        tool(made["take"])
    assert str(caught.value) == f"tool 'take': parameter {name!r} has a name that Python keeps for itself; rename it"
    assert caught.value.parameter == name


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: tool(int), "tool: expected a function, got the class int"),
        (lambda: tool(CallableThing), "tool: expected a function, got the class CallableThing"),
        (lambda: tool(name=5)(starless), "tool 'starless': name must be text, not int"),  # type: ignore[call-overload]
        (
            lambda: tool(name="")(starless),
            "tool '': a name is 1 to 128 letters, digits, _ and -; pass @tool(name='...')",
        ),
        (lambda: tool(description=5)(starless), "tool 'starless': description must be text, not int"),  # type: ignore[call-overload]
        (lambda: tool(timeout_seconds="5")(starless), "tool 'starless': timeout_seconds must be a number, not str"),  # type: ignore[call-overload]
        (lambda: tool(timeout_seconds=True)(starless), "tool 'starless': timeout_seconds must be a number, not bool"),
        (lambda: tool(tool(starless)), "tool: 'starless' is a tool already; pass it on as it is"),
        (
            lambda: tool(locked),
            "tool 'locked': parameter 'value' has a default that cannot be copied for every call: "
            "cannot pickle '_thread.lock' object",
        ),
    ],
)
def test_what_is_given_to_tool_by_mistake_is_refused_by_name_and_type(make: Callable[[], object], said: str) -> None:
    with pytest.raises(WiringError) as caught:
        make()
    assert str(caught.value) == said


def returns_unknown(city: str, days: Annotated[int, "How many."] = 1) -> NoSuchType:  # type: ignore[name-defined]  # noqa: F821
    return city * days


def test_a_return_hint_that_cannot_be_resolved_is_not_needed() -> None:
    properties = json.loads(tool(returns_unknown).parameters)["properties"]
    days = {"type": "integer", "description": "How many.", "default": 1}
    assert properties == {"city": {"type": "string"}, "days": days}


def test_a_hint_that_is_no_python_is_refused_by_the_tools_name() -> None:
    with pytest.raises(WiringError, match="tool 'broken_hint': a type hint cannot be resolved"):
        tool(broken_hint)


def test_a_function_that_does_not_tell_its_parameters_is_refused() -> None:
    with pytest.raises(WiringError, match="tool 'max': its parameters are not known"):
        tool(max)


def test_a_bytearray_as_default_is_fresh_for_every_call() -> None:
    made = tool(with_bytes)
    made.arguments_from("{}")["data"].append(1)
    assert made.arguments_from("{}") == {"data": bytearray(b"a")}


def test_an_injected_parameter_must_name_one_class() -> None:
    def ask(question: str, db: Injected[dict[str, int] | None] = None) -> str:
        return question

    with pytest.raises(WiringError, match="parameter 'db' is Injected"):
        tool(ask)


# As small models write arguments


@tool
def drive(kilometres: float, stops: list[int], note: str = "", toll: bool | None = None) -> None:
    """Drive."""


@pytest.mark.parametrize(
    "text",
    [
        '{"kilometres": "22", "stops": ["1", 2]}',
        '{"kilometres": "22", "stops": "[1, 2]"}',
        '```json\n{"kilometres": 22, "stops": [1, 2]}\n```',
        '```\n{"kilometres": "22.0", "stops": [1, "2"], "toll": "null"}\n```',
        json.dumps('{"kilometres": 22, "stops": "[1, 2]"}'),
    ],
)
def test_numbers_in_quotes_and_a_fence_are_read(text: str) -> None:
    assert drive.arguments_from(text) == {"kilometres": 22.0, "stops": [1, 2], "note": "", "toll": None}


@pytest.mark.parametrize("text", ["", " ", "null", " null\n", "{}", '"{}"'])
def test_no_arguments_are_those_of_a_tool_that_needs_none(text: str) -> None:
    """Some models and servers write null for them."""

    @tool
    def rest(minutes: int = 5) -> None:
        """Rest."""

    assert rest.arguments_from(text) == {"minutes": 5}
    assert remote().arguments_from(text) == {}


def test_text_for_text_stays_as_it_is() -> None:
    assert drive.arguments_from('{"kilometres": "1", "stops": [], "note": "22"}')["note"] == "22"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"kilometres": "far", "stops": []}', r"\$\.kilometres"),
        ('{"kilometres": "nan", "stops": []}', r"\$\.kilometres"),
        ('{"kilometres": 1, "stops": "1, 2"}', r"\$\.stops"),
        ('{"kilometres": 1, "stops": [], "speed": "2"}', "unknown field `speed`"),
        ("null", "Expected `object`, got `null`"),
        ('"[1]"', "Expected `object`, got `str`"),
        ('"to Rome"', "Expected `object`, got `str`"),
    ],
)
def test_what_could_mean_anything_is_still_refused_by_its_place(text: str, place: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=place):
        drive.arguments_from(text)


# A schema from elsewhere


def remote(**options: Any) -> Tool[..., Any]:
    async def call(**arguments: object) -> object:
        return arguments

    return Tool.from_schema(call, **{"name": "remote-search", **options})


SCHEMA = {"type": "object", "properties": {"from": {"type": "string"}}, "required": ["from"], "x-own": 1}


def test_a_schema_from_elsewhere_is_declared_as_it_is() -> None:
    made = remote(description="Searches.", parameters=SCHEMA, timeout_seconds=3, idempotent=True)
    declared = made.declaration()
    assert (declared.name, declared.description) == ("remote-search", "Searches.")
    assert json.loads(declared.parameters) == SCHEMA
    assert (made.is_async, made.timeout_seconds, made.idempotent) == (True, 3, True)
    assert json.loads(remote().declaration().parameters) == {"type": "object", "properties": {}}


@pytest.mark.parametrize("bare", [{"type": "object"}, {"type": "object", "properties": None}])
def test_a_schema_without_properties_gets_them(bare: dict[str, object]) -> None:
    """OpenAI refuses each request that declares an object without, as MCP servers do for tools without parameters."""
    assert json.loads(remote(parameters=bare).declaration().parameters) == {"type": "object", "properties": {}}
    assert "properties" not in bare or bare["properties"] is None


@pytest.mark.parametrize("text", ['{"from": "here", "n": [1]}', '```json\n{"from": "here", "n": [1]}\n```'])
def test_all_fields_of_the_models_arguments_reach_its_function(text: str) -> None:
    arguments = remote(parameters=SCHEMA).arguments_from(text)
    assert arguments == {"from": "here", "n": [1]}
    assert asyncio.run(remote()(**arguments)) == arguments
    assert remote().arguments_from("") == {}


@pytest.mark.parametrize("text", ["[1]", "3", "null", "{"])
def test_arguments_that_are_no_object_are_refused(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        remote(parameters=SCHEMA).arguments_from(text)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"parameters": {"type": "string"}}, "the JSON schema of an object"),
        ({"parameters": ["type"]}, "the JSON schema of an object"),
        ({"parameters": {"type": "object", "default": object()}}, "no JSON schema"),
        ({"name": "files/read"}, "a name is 1 to 128 letters"),
        ({"timeout_seconds": 0}, "greater than 0"),
    ],
)
def test_what_cannot_be_such_a_tool_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(WiringError, match=said):
        remote(**options)
