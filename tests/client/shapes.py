"""Types that answers are asked for in, of every kind, each with an answer of it."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypedDict, TypeVar

import msgspec
import pydantic
import pydantic.dataclasses

T = TypeVar("T")
Number = NewType("Number", int)


@dataclass
class Place:
    """Where something is."""

    city: str
    degrees: float


@dataclass
class Route:
    start: Place
    stops: list[Place]
    note: Optional[str] = None  # noqa: UP045 - both spellings are to be understood


@dataclass
class Tree:
    value: int
    children: list[Tree]


class Flight(msgspec.Struct, tag=True):
    number: str


class Train(msgspec.Struct, tag=True):
    line: Annotated[int, msgspec.Meta(ge=1, description="its number")]
    at: Annotated[Place, msgspec.Meta(description="where it leaves")]


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class Booking(msgspec.Struct, rename="camel"):
    by_what: Flight | Train
    mood: Mood
    price_class: Literal[1, 2]
    seen: Annotated[list[Mood], msgspec.Meta(max_length=3)]


class Row(TypedDict):
    id: int
    name: str | None


class Partial(TypedDict, total=False):
    id: int


class Box(msgspec.Struct, Generic[T]):
    value: T


class Pair(NamedTuple):
    name: str
    times: int


class Keywords(msgspec.Struct):
    """Fields that are called like the words of a schema."""

    type: str
    properties: int
    oneOf: list[int]
    discriminator: str
    default: Literal["$ref"]
    enum: bool = False


@dataclass
class WithDefault:
    count: int = 3
    names: list[str] = field(default_factory=list[str])


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    name: str


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    age: int = pydantic.Field(ge=0)


class Owner(pydantic.BaseModel):
    pet: Cat | Dog = pydantic.Field(discriminator="kind", description="cat or dog")
    cat: Cat = pydantic.Field(description="another one")
    born: datetime.date
    note: str | None = None


class Parent(pydantic.BaseModel):
    children: list[Parent]
    name: str | None = None


class Scores(pydantic.RootModel[list[int]]):
    pass


@pydantic.dataclasses.dataclass
class Bounded:
    count: Annotated[int, pydantic.Field(gt=0)]


@dataclass
class Mixed:
    """A dataclass with a pydantic model in it."""

    owner: Cat
    place: Place


@dataclass
class First:
    a: int


@dataclass
class Second:
    b: str


EITHER: Any = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]
Maybe = Optional[Tree]  # noqa: UP045
TOM = Cat(kind="cat", name="Tom")
PLACE = '{"city":"Dubai","degrees":41.5}'

STRICT: list[tuple[Any, str, object]] = [
    (Place, PLACE, Place("Dubai", 41.5)),
    (Route, f'{{"start":{PLACE},"stops":[{PLACE}],"note":null}}', Route(Place("Dubai", 41.5), [Place("Dubai", 41.5)])),
    (Tree, '{"value":1,"children":[{"value":2,"children":[]}]}', Tree(1, [Tree(2, [])])),
    (Row, '{"id":1,"name":null}', {"id": 1, "name": None}),
    (Flight, '{"type":"Flight","number":"EK 1"}', Flight("EK 1")),
    (
        Booking,
        f'{{"byWhat":{{"type":"Train","line":7,"at":{PLACE}}},"mood":"bad","priceClass":2,"seen":["good"]}}',
        Booking(Train(7, Place("Dubai", 41.5)), Mood.BAD, 2, [Mood.GOOD]),
    ),
    (Flight | Train, '{"value":{"type":"Flight","number":"EK 1"}}', Flight("EK 1")),
    (Flight | int | None, '{"value":null}', None),
    (Maybe, '{"value":{"value":1,"children":[]}}', Tree(1, [])),
    (Box[int], '{"value":7}', Box(7)),
    (Mood, '{"value":"good"}', Mood.GOOD),
    (Literal["a", "b"], '{"value":"b"}', "b"),
    (Literal[1, "one", None], '{"value":null}', None),
    (list[int], '{"value":[1,2]}', [1, 2]),
    (list[Place], f'{{"value":[{PLACE}]}}', [Place("Dubai", 41.5)]),
    (int, '{"value":7}', 7),
    (str, '{"value":"text"}', "text"),
    (bool, '{"value":true}', True),
    (Number, '{"value":7}', 7),
    (type(None), '{"value":null}', None),
    (Cat, '{"kind":"cat","name":"Tom"}', Cat(kind="cat", name="Tom")),
    (
        Owner,
        '{"pet":{"kind":"dog","age":3},"cat":{"kind":"cat","name":"T"},"born":"2000-02-29","note":null}',
        Owner(pet=Dog(kind="dog", age=3), cat=Cat(kind="cat", name="T"), born=datetime.date(2000, 2, 29)),
    ),
    (
        Parent,
        '{"children":[{"children":[],"name":null}],"name":"Eve"}',
        Parent(children=[Parent(children=[])], name="Eve"),
    ),
    (Literal["none"] | int, '{"value":"none"}', "none"),
    (Cat | Dog, '{"value":{"kind":"dog","age":1}}', Dog(kind="dog", age=1)),
    (
        EITHER,
        '{"value":{"kind":"cat","name":"Tom"}}',
        Cat(kind="cat", name="Tom"),
    ),
    (list[Cat], '{"value":[]}', []),
    (Scores, '{"value":[1,2]}', Scores([1, 2])),
    (Bounded, '{"count":1}', Bounded(1)),
    (Mixed, f'{{"owner":{{"kind":"cat","name":"Tom"}},"place":{PLACE}}}', Mixed(TOM, Place("Dubai", 41.5))),
    (First | Second, '{"value":{"b":"x"}}', Second("x")),
]
"""What can be asked for strictly: the type, an answer, and its value."""

LOOSE: list[tuple[Any, str, object]] = [
    (WithDefault, "{}", WithDefault()),
    (
        Keywords,
        '{"type":"t","properties":1,"oneOf":[],"discriminator":"d","default":"$ref"}',
        Keywords("t", 1, [], "d", "$ref"),
    ),
    (Partial, "{}", {}),
    (dict[str, int], '{"value":{"a":1}}', {"a": 1}),
    (dict[str, Cat | Dog], '{"value":{"a":{"kind":"dog","age":1}}}', {"a": Dog(kind="dog", age=1)}),
    (dict[str, EITHER], '{"value":{"a":{"kind":"dog","age":1}}}', {"a": Dog(kind="dog", age=1)}),
    (tuple[int, EITHER], '{"value":[1,{"kind":"dog","age":1}]}', (1, Dog(kind="dog", age=1))),
    (tuple[int, str], '{"value":[1,"a"]}', (1, "a")),
    (Pair, '{"value":["a",1]}', Pair("a", 1)),
    (Any, '{"value":[1,{}]}', [1, {}]),
    (list[Any], '{"value":[1,{}]}', [1, {}]),
    (set[int], '{"value":[1,2]}', {1, 2}),
    (bytes, '{"value":"AAE="}', b"\x00\x01"),
]
"""What OpenAI's strict mode has no words for."""


def a_function(value: int) -> int:
    raise AssertionError("called")


@dataclass
class Unresolved:
    value: Nowhere  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore


UNUSABLE: list[Any] = [Callable[[int], int], type, Unresolved, "Place", 7, a_function, len, TypeVar("Q", bound=type)]
