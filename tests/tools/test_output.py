"""What a tool returned can be sent, whatever was in it."""

from __future__ import annotations

import pytest

from chatstack import File, Text
from chatstack.tools.output import output_of


@pytest.mark.parametrize(
    ("value", "output"),
    [
        ("caf\udce9.txt", "caf\ufffd.txt"),
        (["a", "caf\udce9.txt"], '["a","caf\ufffd.txt"]'),
        ({"caf\udce9": {"ü": [1, None, "\ud83d\ude00"]}}, '{"caf\ufffd":{"ü":[1,null,"😀"]}}'),
        (Text("\udce9"), (Text("\ufffd"),)),
        ([Text("\udce9"), File(text="a", name="\udce9")], (Text("\ufffd"), File(text="a", name="\ufffd"))),
    ],
    ids=ascii,
)
def test_halves_of_characters_are_replaced(value: object, output: object) -> None:
    assert output_of(value) == output


def test_parts_without_any_are_the_same_objects() -> None:
    parts = (Text("Grüße"), File(text="ä", name="ö"))
    output = output_of(list(parts))
    assert isinstance(output, tuple)
    assert all(one is other for one, other in zip(output, parts, strict=True))
