"""Parts are immutable values that show where their content lies, never the content."""

from __future__ import annotations

import base64
import enum
import pickle

import msgspec
import pytest

from chatstack import File, Image, ProviderItem, Reasoning, Text, ToolCall, ToolResult
from chatstack.values.parts import PART_TYPES, Part

EXAMPLES: tuple[Part, ...] = (
    Text("hello"),
    Image(url="https://example.test/a.png"),
    File(text="notes", name="notes.txt"),
    Reasoning("because", item_json='{"signature":"s"}', provider="anthropic"),
    ToolCall("call-1", "search", '{"q": "tea"}'),
    ToolResult("call-1", "search", "found"),
    ProviderItem("openai", '{"type":"web_search_call"}'),
)


def test_there_is_an_example_of_every_kind_of_part() -> None:
    assert {type(part) for part in EXAMPLES} == set(PART_TYPES)


@pytest.mark.parametrize("part", EXAMPLES, ids=lambda part: type(part).__name__)
def test_a_part_survives_pickle_and_json(part: Part) -> None:
    assert pickle.loads(pickle.dumps(part)) == part
    assert msgspec.json.decode(msgspec.json.encode(part), type=Part) == part


@pytest.mark.parametrize("part", EXAMPLES, ids=lambda part: type(part).__name__)
def test_a_part_cannot_be_changed_and_can_be_a_key(part: Part) -> None:
    with pytest.raises(AttributeError):
        setattr(part, part.__struct_fields__[0], "other")
    assert {part: 1}[pickle.loads(pickle.dumps(part))] == 1


def test_bytes_of_a_picture_are_carried_as_base64() -> None:
    image = Image.from_bytes(b"\x89PNG", "image/png")
    assert base64.b64decode(image.data) == b"\x89PNG"
    assert image.media_type == "image/png"


def test_bytes_of_a_file_are_carried_as_base64_with_its_name() -> None:
    file = File.from_bytes(b"%PDF", "application/pdf", name="plan.pdf")
    assert base64.b64decode(file.data) == b"%PDF"
    assert (file.media_type, file.name) == ("application/pdf", "plan.pdf")


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (Image(data="QUJD" * 1000, media_type="image/png"), "Image(image/png, 4,000 characters)"),
        (Image(data="QUJD"), "Image(data, 4 characters)"),
        (Image(url="https://example.test/?signature=secret"), "Image(by url)"),
        (Image(url="data:image/png;base64,c2VjcmV0"), "Image(by url)"),
        (Image(file_id="file-7"), "Image(file_id='file-7')"),
        (File(text="secret", media_type="text/plain"), "File(text/plain, 6 characters)"),
        (File(data="QUJD", name="plan.pdf"), "File('plan.pdf', data, 4 characters)"),
        (File(file_id="file-7"), "File(file_id='file-7')"),
    ],
)
def test_the_repr_of_pictures_and_files_tells_where_the_content_lies_but_not_what_it_is(part: Part, shown: str) -> None:
    assert repr(part) == shown


def test_the_text_of_a_result_leaves_pictures_and_files_out() -> None:
    assert ToolResult("c", output="plain").text == "plain"
    mixed = ToolResult("c", output=(Text("a"), Image(url="u"), Text("b"), File(text="no"), ProviderItem("p", "{}")))
    assert mixed.text == "ab"


def test_the_arguments_of_a_call_stay_the_text_that_was_received() -> None:
    received = '{"b": 1,  "a": 1.0e2, "b": 2}'
    assert ToolCall("c", "f", received).arguments == received
    assert msgspec.json.decode(msgspec.json.encode(ToolCall("c", "f", received)), type=ToolCall).arguments == received


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    "part",
    [Text(Colour.RED), ToolCall("c", Colour.RED), ToolResult("c", "look", Colour.RED), Reasoning(Colour.RED)],
)
def test_text_of_a_kind_of_its_own_becomes_plain_text(part: msgspec.Struct) -> None:
    assert {type(value) for value in msgspec.structs.astuple(part)} <= {str, bool}
    assert "red" in msgspec.structs.astuple(part)
