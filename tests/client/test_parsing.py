"""Answers of a type: what becomes of the text, and how it is said that it is none."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import json
import pickle
import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import pydantic
import pytest
from pydantic_core import PydanticCustomError

from chatstack import (
    ChatOptions,
    ChatResponse,
    ChatStack,
    FunctionInvoker,
    InputError,
    Message,
    OutputError,
    ParsedResponse,
    ToolCall,
    ToolDeclaration,
    TurnTimeoutError,
    Usage,
    WiringError,
    tool,
)
from chatstack.client.parsing import shape_of
from chatstack.testing import Answer, ScriptedClient
from chatstack.values.requests import OutputSchema
from tests.client.shapes import (
    LOOSE,
    PLACE,
    STRICT,
    UNUSABLE,
    Bounded,
    Cat,
    Dog,
    First,
    Flight,
    Mood,
    Place,
    Route,
    Scores,
    Second,
    Train,
    Tree,
)
from tests.type_checkers import lines_with_errors

BOTH = pytest.mark.parametrize("stream", [False, True])
EVERY = pytest.mark.parametrize(
    ("kind", "text", "value"), [pytest.param(*each, id=str(each[0])) for each in (*STRICT, *LOOSE)]
)


def client_of(*answers: Answer) -> ScriptedClient:
    return ScriptedClient(answers)


async def asked(client: ScriptedClient, kind: Any, *, stream: bool, **options: Any) -> ChatResponse:
    answer: ChatResponse
    if stream:
        answer = await client.get_streaming_response("go", output_type=kind, **options).response()
        return answer
    answer = await client.get_response("go", output_type=kind, **options)
    return answer


def ask(client: ScriptedClient, kind: Any, *, stream: bool = False, **options: Any) -> ChatResponse:
    return asyncio.run(asyncio.wait_for(asked(client, kind, stream=stream, **options), 300))


def unfit(answer: Answer, kind: Any, *, stream: bool = False, **options: Any) -> OutputError:
    with pytest.raises(OutputError) as caught:
        ask(client_of(answer), kind, stream=stream, **options)
    return caught.value


# Every kind of type


@BOTH
@EVERY
def test_the_answer_becomes_a_value_of_the_type(kind: Any, text: str, value: object, stream: bool) -> None:
    client = client_of(text)
    response = ask(client, kind, stream=stream)
    assert isinstance(response, ParsedResponse)
    parsed = cast("ChatResponse", response).parsed
    assert parsed == value
    assert type(parsed) is type(value)
    assert response.text == text
    assert response.messages == (Message.assistant(text),)
    assert client.requests[0].options.output_schema == shape_of(kind).schema


@dataclass
class Defaults:
    """Any object would do for one."""

    city: str | None = None
    limit: int = 10


def test_what_may_be_null_may_be_left_out_in_an_answer() -> None:
    assert ask(client_of(f'{{"start":{PLACE},"stops":[]}}'), Route).parsed == Route(Place("Dubai", 41.5), [])


# What does not fit


@pytest.mark.parametrize(
    ("kind", "text", "fault"),
    [
        (Annotated[int, msgspec.Meta(ge=1, le=5)], "9", "int <= 5"),
        (Annotated[int, msgspec.Meta(ge=-1)], "-9", "int >= -1"),
        (Annotated[float, msgspec.Meta(gt=0.5)], "0.5", "float > 0.5"),
        (Annotated[int, msgspec.Meta(multiple_of=2)], "9", "int that's a multiple of 2"),
        (Annotated[list[str], msgspec.Meta(min_length=1)], "[]", "array of length >= 1"),
        (Annotated[str, msgspec.Meta(max_length=3)], '"hunter2"', "str of length <= 3"),
        (Annotated[str, msgspec.Meta(pattern="^[a-z' ]+$")], '"hunter2"', 'str matching regex "^[a-z\' ]+$"'),
        (Annotated[datetime.time, msgspec.Meta(tz=True)], '"01:00:00"', "time with a timezone component"),
        (tuple[int, int], "[1, 2, 3]", "array of length 2"),
        (Annotated[dict[str, int], msgspec.Meta(max_length=1)], '{"hunter2": 1, "b": 2}', "object of length <= 1"),
    ],
    ids=itertools.count(),
)
def test_a_broken_bound_is_named_with_the_type(kind: Any, text: str, fault: str) -> None:
    error = unfit(f'{{"value": {text}}}', kind)
    assert str(error).endswith(f": expected {fault}")


def test_what_a_class_says_by_itself_stays_out_of_it() -> None:
    class Even(msgspec.Struct):
        number: str

        def __post_init__(self) -> None:
            raise ValueError(f"Expected `int` below {self.number}")

    class Odd(pydantic.BaseModel):
        number: str

        @pydantic.field_validator("number")
        @classmethod
        def _is_odd(cls, number: str) -> str:
            raise PydanticCustomError(cast("Any", number), cast("Any", number))

    assert "hunter2" not in str(unfit('{"number": "hunter2"}', Even))
    assert str(unfit('{"number": "hunter2"}', Odd)).endswith("does not fit: at `$.number`")


@BOTH
@pytest.mark.parametrize(
    ("kind", "text", "place"),
    [
        (Place, '{"city":"hunter2","degrees":"hot"}', ": at `$.degrees`: expected float"),
        (Place, '{"city":"hunter2"}', ": missing `degrees`"),
        (
            Tree,
            '{"value":1,"children":[{"value":"hunter2","children":[]}]}',
            ": at `$.children[0].value`: expected int",
        ),
        (dict[str, int], '{"value":{"hunter2":"x"}}', ": at `$[...]`: expected int"),
        (list[int], '["hunter2"]', ": at `$[0]`: expected int"),
        (list[int], '{"values":[1]}', ": expected an object with the one field `value`"),
        (list[int], '{"value":[1],"more":"hunter2"}', ": expected an object with the one field `value`"),
        (Defaults | None, '{"value":{"city":"hunter2"},"more":1}', ": expected an object with the one field `value`"),
        (dict[str, Any], '{"result":{"a":"hunter2"}}', ": expected an object with the one field `value`"),
        (Mood, '{"value":"hunter2"}', ""),
        (Flight | Train, '{"value":{"type":"hunter2"}}', ": at `$.type`"),
        (Cat, '{"kind":"cat","name":["hunter2"]}', ": at `$.name`: string_type"),
        (Cat, '{"kind":"cat","hunter2":1}', ": at `$.name`: missing"),
        (Cat, '"hunter2"', ": model_type"),
        (Cat | Dog, '{"value":{"kind":"hunter2"}}', ": at `$.Cat.kind`: literal_error"),
        (Bounded, '{"count":-1}', ": at `$.count`: greater_than"),
        (Scores, '{"value":["hunter2"]}', ": at `$[0]`: int_parsing"),
        (list[Cat], '{"value":[{"kind":"cat","name":1}]}', ": at `$[0].name`: string_type"),
        (dict[str, Cat], '{"value":{"hunter2":{"kind":"cat"}}}', ": at `$[...].name`: missing"),
    ],
    ids=itertools.count(),
)
def test_what_does_not_fit_is_an_error_that_keeps_the_text_to_itself(
    kind: Any, text: str, place: str, stream: bool
) -> None:
    error = unfit(text, kind, stream=stream)
    assert str(error) == f"output_type={shape_of(kind).schema.name}: the answer does not fit{place}"
    assert error.text == text
    assert error.response is not None
    assert error.response.text == text
    assert error.response.usage.output_tokens > 0
    assert error.__cause__ is not None


@BOTH
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Place, "It is hunter2."),
        (Place, ""),
        (Place, "```json\nIt is hunter2.\n```"),
        (list[int], "[1, 2"),
        (Tree, '{"value":1,"children":[' * 5_000),
        (str, '{"value":"\\ud800"'),
    ],
    ids=itertools.count(),
)
def test_what_is_not_json_says_so_and_keeps_the_text_to_itself(kind: Any, text: str, stream: bool) -> None:
    error = unfit(text, kind, stream=stream)
    assert str(error) == f"output_type={shape_of(kind).schema.name}: the answer is not JSON"
    assert error.text == text


@BOTH
@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (list[int], "[1, 2]", [1, 2]),
        (int | None, "null", None),
        (dict[str, dict[str, int]], '{"value": {"value": {"a": 1}}}', {"value": {"a": 1}}),
    ],
    ids=itertools.count(),
)
def test_a_value_without_the_object_around_it_is_read(kind: Any, text: str, value: object, stream: bool) -> None:
    assert ask(client_of(text), kind, stream=stream).parsed == value


@BOTH
@pytest.mark.parametrize(("finish", "said"), [("length", "was cut off by a limit"), ("refused", "was refused")])
def test_an_answer_that_was_cut_off_or_refused_says_so_even_if_it_would_fit(
    finish: Any, said: str, stream: bool
) -> None:
    error = unfit([PLACE, finish], Place, stream=stream)
    assert str(error) == f"output_type=Place: the answer {said}"
    assert error.text == PLACE
    assert error.response is not None
    assert error.response.finish_reason == finish


def test_an_answer_that_calls_tools_of_the_callers_says_so_and_keeps_the_calls() -> None:
    call = ToolCall("a", "ask_user", "{}")
    options = ChatOptions(tools=(ToolDeclaration("ask_user", "", "{}"),))
    error = unfit(Message.assistant(call), Place, options=options)
    assert "is a call of tools" in str(error)
    assert error.response is not None
    assert error.response.messages[0].calls == (call,)


def test_the_error_can_be_pickled_and_the_answer_too() -> None:
    error = pickle.loads(pickle.dumps(unfit("no", Place)))
    assert (error.text, error.response.text) == ("no", "no")
    answer = ask(client_of(PLACE), Place)
    assert pickle.loads(pickle.dumps(answer)) == answer


@pytest.mark.parametrize("kind", UNUSABLE, ids=itertools.count())
def test_a_type_that_is_none_is_refused_before_anything_is_sent(kind: Any) -> None:
    client = client_of("never")
    said = "expected a class, got text 'Place'$" if kind == "Place" else "cannot be described as JSON"
    with pytest.raises(InputError, match=said):
        ask(client, kind)
    with pytest.raises(InputError, match=said):
        client.get_streaming_response("go", output_type=kind)
    assert client.requests == []


def test_two_schemas_are_one_too_many() -> None:
    options = ChatOptions(output_schema=OutputSchema("mine", "{}"))
    with pytest.raises(InputError, match="output_schema already"):
        ask(client_of("never"), Place, options=options)


# On the way


def test_a_stream_is_text_first_and_a_value_at_its_end() -> None:
    async def read() -> None:
        async with client_of('{"city": "Dubai", "degrees": 41.5}').get_streaming_response(
            "go", output_type=Place
        ) as stream:
            text = "".join([update.text async for update in stream])
            assert json.loads(text) == json.loads(PLACE)
            for _ in range(2):
                assert (await stream.response()).parsed == Place("Dubai", 41.5)

    asyncio.run(read())


def test_a_stream_whose_answer_does_not_fit_can_still_be_read() -> None:
    async def read() -> None:
        async with client_of("no JSON").get_streaming_response("go", output_type=Place) as stream:
            assert "".join([update.text async for update in stream]) == "no JSON"
            for _ in range(2):
                with pytest.raises(OutputError):
                    await stream.response()

    asyncio.run(read())


@BOTH
def test_with_tools_in_between_every_round_asks_for_it_and_the_last_one_gives_it(stream: bool) -> None:
    def look() -> str:
        """Looks."""
        return "sunny"

    provider = client_of(["Let me see.", ToolCall("a", "look", "{}")], PLACE)
    client = ChatStack(provider).use(FunctionInvoker, tools=[look]).build()

    async def run() -> ChatResponse:
        if stream:
            return await client.get_streaming_response("go", output_type=Place).response()
        return await client.get_response("go", output_type=Place)

    response = asyncio.run(run())
    assert response.parsed == Place("Dubai", 41.5)
    assert [message.role for message in response.messages] == ["assistant", "tool", "assistant"]
    assert response.rounds == 2
    assert [request.options.output_schema for request in provider.requests] == [shape_of(Place).schema] * 2


@BOTH
def test_it_goes_together_with_a_time_limit(stream: bool) -> None:
    assert ask(client_of(PLACE), Place, stream=stream, timeout_seconds=5).parsed == Place("Dubai", 41.5)
    slow = ScriptedClient([PLACE], delay_seconds=5)
    with pytest.raises(TurnTimeoutError):
        ask(slow, Place, stream=stream, timeout_seconds=0.02)


def test_an_answer_that_nobody_asked_a_type_of_has_no_value() -> None:
    response = asyncio.run(client_of(PLACE).get_response("go"))
    assert response.parsed is None
    assert type(response) is ChatResponse


def test_what_was_parsed_keeps_all_of_the_answer() -> None:
    plain, parsed = asyncio.run(client_of(PLACE).get_response("go")), ask(client_of(PLACE), Place)
    for name in ("messages", "finish_reason", "id", "model", "rounds", "overhead_usage"):
        assert getattr(parsed, name) == getattr(plain, name)
    assert parsed.usage != Usage()


# Without pydantic, and for type checkers


ALONE = """
import sys
from dataclasses import dataclass
from chatstack import InputError
from chatstack.client.parsing import shape_of

@dataclass
class First: a: int
@dataclass
class Second: b: int

assert shape_of(First).schema.strict
assert "pydantic" not in sys.modules
if sys.argv[1] == "without":
    sys.modules["pydantic"] = None
try:
    print(shape_of(First | Second).schema.name)
except InputError as error:
    print(error)
"""


@pytest.mark.parametrize(("pydantic", "told"), [("with", "answer"), ("without", "cannot be described as JSON")])
def test_pydantic_is_asked_only_where_msgspec_cannot_tell_classes_apart(pydantic: str, told: str) -> None:
    command = [sys.executable, "-c", ALONE, pydantic]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert told in ran.stdout
    assert ask(client_of('{"value":{"a":1}}'), First | Second).parsed == First(1)


@pytest.mark.parametrize(
    "kind", [Annotated[str, pydantic.Field(pattern="(?=a)b")], Annotated[list[First], pydantic.Field(min_length=-1)]]
)
def test_a_constraint_that_no_library_takes_is_told(kind: Any) -> None:
    with pytest.raises(InputError, match="cannot be described as JSON"):
        ask(client_of('{"value":[]}'), kind)


@dataclass
class Third:
    c: Annotated[int, msgspec.Meta(ge=1)]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Annotated[int | None, msgspec.Meta(ge=1)], "Can only set `ge` on a numeric type"),
        (Annotated[Decimal, msgspec.Meta(le=1)], "Can only set `le` on a numeric type"),
        (First | Third, "Type unions may not contain more than one dataclass"),
        (list[First | Third], "Type unions may not contain more than one dataclass"),
    ],
    ids=str,
)
def test_a_bound_of_msgspecs_is_never_left_out_for_pydantic(kind: Any, why: str) -> None:
    with pytest.raises(InputError, match=f"pydantic reads no msgspec.Meta, and msgspec says: {why}"):
        ask(client_of('{"value":0}'), kind)


@dataclass
class BoundedByBoth:
    a: Annotated[int, msgspec.Meta(ge=1)]
    b: Annotated[int, pydantic.Field(ge=1)]


def test_a_bound_of_msgspecs_beside_one_of_pydantics_is_never_left_out() -> None:
    with pytest.raises(InputError, match="BoundedByBoth, which pydantic alone can check"):
        ask(client_of('{"a":0,"b":1}'), BoundedByBoth)
    kind = Annotated[int, msgspec.Meta(ge=1), pydantic.Field(le=3)]
    assert ask(client_of('{"value":2}'), kind).parsed == 2
    for wrong in (0, 4):
        with pytest.raises(OutputError, match=r"does not fit: expected int [<>]= [13]"):
            ask(client_of(f'{{"value":{wrong}}}'), kind)


class Paid(pydantic.BaseModel):
    cents: list[Annotated[int, msgspec.Meta(ge=1)]]


class Paying(pydantic.BaseModel):
    next: Paying | None = None
    paid: Paid | None = None


@dataclass
class Payments:
    all: list[Paid]


@pytest.mark.parametrize(("kind", "model"), [(Paid, "Paid"), (list[Paying], "Paying"), (Payments, "Paid")])
def test_a_bound_of_msgspecs_in_a_model_of_pydantics_is_never_left_out(kind: Any, model: str) -> None:
    with pytest.raises(InputError, match=f"is, or holds, {model}, in which pydantic sees no msgspec.Meta"):
        ask(client_of('{"cents":[0]}'), kind)

    def pay(what: Any) -> None: ...

    pay.__annotations__["what"] = kind
    with pytest.raises(WiringError, match=f"tool 'pay': parameter 'what' is, or holds, {model}, in which pydantic"):
        tool(pay)


def test_what_is_no_bound_of_msgspecs_is_left_out_for_pydantic() -> None:
    kind = Annotated[First | Second, msgspec.Meta(description="either")]
    assert ask(client_of('{"value":{"a":1}}'), kind).parsed == First(1)


@pydantic.dataclasses.dataclass
class Transfer:
    cents: Annotated[int, pydantic.Field(le=100)]


@dataclass
class Holding:
    transfers: list[Transfer]


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (Annotated[int, pydantic.Field(le=50)], "50", 50),
        (list[Annotated[int, pydantic.Field(le=50)]], "[50]", [50]),
        (Transfer, '{"cents": 50}', Transfer(50)),
        (Holding, '{"transfers": [{"cents": 50}]}', Holding([Transfer(50)])),
    ],
)
def test_what_pydantic_constrains_is_checked_by_it(kind: Any, value: str, read: object) -> None:
    is_object = value.startswith("{")
    written = value if is_object else f'{{"value": {value}}}'
    assert ask(client_of(written), kind).parsed == read
    with pytest.raises(OutputError, match="does not fit"):
        ask(client_of(written.replace("50", "5000")), kind)


TYPED = """
import enum
from dataclasses import dataclass
from typing import Literal, Optional, TypedDict, assert_type
import msgspec, pydantic
from chatstack import ChatResponse, ChatStream, ParsedResponse, SyncClient
from chatstack.testing import ScriptedClient

@dataclass
class Place: city: str
class Row(TypedDict): id: int
class Struct(msgspec.Struct): a: int
class Model(pydantic.BaseModel): a: int
class Mood(enum.Enum): GOOD = "good"

def takes_either(answer: ParsedResponse[Place | Struct]) -> None: ...
def takes_any(stream: ChatStream) -> None: ...

async def ask(client: ScriptedClient) -> None:
    assert_type(await client.get_response("go"), ChatResponse)
    assert_type(await client.get_response("go", output_type=Place), ParsedResponse[Place])
    place = await client.get_response("go", output_type=Place)
    takes_either(place)
    assert_type((await client.get_response("go", output_type=Row)).parsed, Row)
    assert_type((await client.get_response("go", output_type=Struct)).parsed, Struct)
    assert_type((await client.get_response("go", output_type=Model)).parsed, Model)
    assert_type((await client.get_response("go", output_type=Mood)).parsed, Mood)
    assert_type((await client.get_response("go", output_type=list[Place])).parsed, list[Place])
    assert_type((await client.get_response("go", output_type=int)).parsed, int)
    assert_type((await client.get_response("go", output_type=Place | Struct)).parsed, object)
    assert_type((await client.get_response("go", output_type=Optional[Place])).parsed, object)
    assert_type((await client.get_response("go", output_type=Literal["a", "b"])).parsed, object)

async def read(client: ScriptedClient, sync: SyncClient) -> None:
    async with client.get_streaming_response("go", output_type=Place) as stream:
        assert_type((await stream.response()).parsed, Place)
        takes_any(stream)
    assert_type(await client.get_streaming_response("go").response(), ChatResponse)
    assert_type(sync.get_streaming_response("go", output_type=Row).response().parsed, Row)
    assert_type(sync.get_streaming_response("go").response(), ChatResponse)
"""


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_type_checker_knows_the_type_of_what_was_parsed(checker: str, tmp_path: Path) -> None:
    assert lines_with_errors(checker, TYPED, tmp_path) == set()


@dataclass
class Leg:
    city: str
    kilometres: float


@pytest.mark.parametrize(
    "answer",
    [
        '{"city": "Oslo", "kilometres": "22"}',
        '```json\n{"city": "Oslo", "kilometres": 22}\n```',
        'Here it is:\n```\n{"city": "Oslo", "kilometres": "22"}\n```',
        '<think>\nA leg: {"city": "Bergen"}?\n</think>\n\n{"city": "Oslo", "kilometres": 22}',
        'It wants a leg.\n</think>\n\n```json\n{"city": "Oslo", "kilometres": "22"}\n```',
    ],
)
def test_thinking_a_fence_and_a_number_in_quotes_are_read_and_the_text_stays(answer: str) -> None:
    response = asyncio.run(ScriptedClient([answer]).get_response("a leg", output_type=Leg))
    assert response.parsed == Leg("Oslo", 22.0)
    assert response.text == answer


@pytest.mark.parametrize("kind", [float, list[float]])
def test_a_fence_around_what_is_no_object_is_read_too(kind: Any) -> None:
    value = "22" if kind is float else '["22"]'
    answer = f'```json\n{{"value": {value}}}\n```'
    response = asyncio.run(ScriptedClient([answer]).get_response("how far?", output_type=kind))
    assert response.parsed == ([22.0] if kind is not float else 22.0)


def test_a_pydantic_model_in_a_fence_is_read() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Stop", city=(str, ...), minutes=(int, ...))
    answer = '```json\n{"city": "Oslo", "minutes": "5"}\n```'
    response = asyncio.run(ScriptedClient([answer]).get_response("a stop", output_type=model))
    assert (response.parsed.city, response.parsed.minutes) == ("Oslo", 5)


@pytest.mark.parametrize(
    "answer",
    ['```json\n{"city": "Oslo"}\n```', "```json\n{}\n```\n```json\n{}\n```", '{"city": "Oslo", "kilometres": "far"}'],
)
def test_what_does_not_fit_in_a_fence_is_an_output_error_with_the_whole_text(answer: str) -> None:
    with pytest.raises(OutputError) as caught:
        asyncio.run(ScriptedClient([answer]).get_response("a leg", output_type=Leg))
    assert caught.value.text == answer
