"""Positions in JSON text, and patches that leave all other text alone: properties, and the odd cases by hand."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatstack_gateway.positions import UneditableError, alike, elements, members, patched, scan

SEEDS = st.integers(0, 2**60)
SCALARS: list[Any] = [None, True, False, 1, 0, -5, 2**50, 0.5, "", 'a/"\\\u20ac\u2028', "\u00e9" * 3, "\x7f\t"]


def made_of(chance: random.Random, depth: int = 0) -> Any:
    """Some JSON value."""
    kind = chance.random()
    if depth > 3 or kind < 0.4:
        return chance.choice(SCALARS)
    if kind < 0.7:
        return [made_of(chance, depth + 1) for _ in range(chance.randrange(4))]
    return object_of(chance, depth + 1)


def object_of(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    """Some JSON object."""
    names = [chance.choice('ab\u00e9"\\/') * chance.randrange(4) for _ in range(chance.randrange(5))]
    return {name: made_of(chance, depth) for name in names}


def spelt(value: Any, chance: random.Random) -> str:
    """One of the ways to write a value."""
    space = chance.choice(["", " ", "\n\t", "  \r\n"])
    if isinstance(value, dict):
        fields = [
            f"{space}{spelt(name, chance)}{space}:{space}{spelt(each, chance)}{space}" for name, each in value.items()
        ]
        return "{" + (",".join(fields) or space) + "}"
    if isinstance(value, list):
        return "[" + (",".join(space + spelt(each, chance) + space for each in value) or space) + "]"
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=chance.random() < 0.5)
        return text.replace("/", "\\/") if chance.random() < 0.5 else text
    return json.dumps(value)


def changed(value: Any, chance: random.Random) -> Any:
    """The same value with something in it changed, added or taken away."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        name = chance.choice(list(value))
        what = chance.random()
        if what < 0.2:
            return {key: each for key, each in value.items() if key != name}
        if what < 0.4:
            return {**value, f"{name}+": 1}
        return {**value, name: changed(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        return [*value[:at], changed(value[at], chance), *value[at + 1 :]]
    return chance.choice([0, "new \u2028 \u20ac", [1], {"a": {}}, None])


@settings(max_examples=500, deadline=None)
@given(SEEDS)
def test_positions_are_those_of_the_values(seed: int) -> None:
    chance = random.Random(seed)
    value = object_of(chance)
    text = f" {spelt(value, chance)}\n"
    body = scan(text)

    assert body.value == value
    for name, spot in body.fields.items():
        assert json.loads(text[spot.start : spot.end]) == value[name]
        if isinstance(spot.value, list):
            assert [each.value for each in elements(text, spot)] == value[name]
        if isinstance(spot.value, dict):
            assert {key: each.spot.value for key, each in members(text, spot).items()} == value[name]


@settings(max_examples=1_000, deadline=None)
@given(SEEDS)
def test_a_patch_changes_what_it_says_and_nothing_else(seed: int) -> None:
    chance = random.Random(seed)
    value = object_of(chance)
    text = spelt({"it": value, "rest": [1.0]}, chance)
    spot = scan(text).fields["it"]
    after = changed(value, chance)

    made = patched(text, spot, value, after)

    assert json.loads(made) == after
    if alike(after, value):
        assert made == text[spot.start : spot.end]
    elif isinstance(after, dict) and after.keys() == value.keys():
        before = {name: text[each.spot.start : each.spot.end] for name, each in members(text, spot).items()}
        for name, each in members(made, scan(f'{{"it":{made}}}').fields["it"]._replace(start=0)).items():
            if alike(after[name], value[name]):
                assert made[each.spot.start : each.spot.end] == before[name]


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "[]", "{", "}", '{"a"', '{"a":', '{"a":1', '{"a":1,', '{"a":1,}', "{,}", '{"a" 1}', '{"a":1 "b":2}'),
        *('{"a":NaN}', '{"a":Infinity}', '{"a":-Infinity}', '{"a":01}', '{"a":1}x', "{1:2}", '{"a":1}{}', "{'a':1}"),
        *('{"a":1,"a":2}', '{"a":{"b":1,"b":1}}', '{"a":[{"b":1,"b":1}]}', '{"a":1,"\\u0061":2}', '{"a":"\n"}'),
        '{"a":' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
)
def test_what_is_no_json_object_with_each_name_once_is_not_edited(text: str) -> None:
    with pytest.raises(UneditableError):
        scan(text)


def test_true_and_one_are_two_values() -> None:
    body = scan('{"a":[1,true]}')
    assert patched(body.text, body.fields["a"], [1, True], [True, 1]) == "[true,1]"
