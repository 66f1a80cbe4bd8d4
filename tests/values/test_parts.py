"""Parts are immutable values that show where their content lies, never the content."""

from __future__ import annotations

import base64
import enum
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chatstack import (
    File,
    Image,
    InputError,
    Message,
    ProviderItem,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    from_json,
    to_json,
)
from chatstack.values.data_urls import split_data_url
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


KEY = "sk-SECRET"


@pytest.mark.parametrize(
    ("json_text", "kind"),
    [
        (f'{{"type": "mcp", "authorization": "{KEY}"}}', "mcp"),
        (f'{{"authorization": "{KEY}"}}', ""),
        (f'{{"type": ["{KEY}"]}}', ""),
        (f"no JSON, {KEY}", ""),
        (f'"\ud800 {KEY}"', ""),
        ('{"a":' * 9_000, ""),
    ],
)
def test_the_repr_of_a_providers_item_tells_its_type_and_nothing_that_may_be_a_key(json_text: str, kind: str) -> None:
    item = ProviderItem("openai", json_text)
    assert repr(item) == f"ProviderItem(provider='openai', type={kind!r}, json='...')"
    assert KEY not in repr(item.__rich_repr__())


PNG = {"media_type": "image/png"}
ONE_OF_THREE, ONE_OF_FOUR = "exactly one of url, data and file_id", "exactly one of url, data, text and file_id"
UNSENDABLE: list[tuple[Image | File, str]] = [
    (Image(), f"Image: is empty; give {ONE_OF_THREE}"),
    (Image(url="https://x", data="QUJD", **PNG), f"Image: has both url and data; give {ONE_OF_THREE}"),
    (Image(url="https://x", file_id="f"), f"Image: has both url and file_id; give {ONE_OF_THREE}"),
    (Image(data="QUJD"), 'Image: data needs a media_type, such as "image/png"'),
    (Image(data="QUJD", media_type="png"), 'Image: data needs a media_type, such as "image/png"'),
    (
        Image(data="data:image/png;base64,QUJD", **PNG),
        "Image: data is a data URL; give the base64 text behind its comma",
    ),
    (Image(url="data:image/png;base64,"), f"Image: is empty; give {ONE_OF_THREE}"),
    (Image(data="  ", media_type="image/png"), f"Image: is empty; give {ONE_OF_THREE}"),
    (File(), f"File: is empty; give {ONE_OF_FOUR}"),
    (File(name="a.pdf"), f"File: is empty; give {ONE_OF_FOUR}"),
    (File(data="QUJD", text="ABC"), f"File: has both data and text; give {ONE_OF_FOUR}"),
    (File(data="data:text/plain;base64,QUJD"), "File: data is a data URL; give the base64 text behind its comma"),
]


@pytest.mark.parametrize(("part", "told"), UNSENDABLE)
def test_a_message_of_a_picture_that_no_provider_takes_is_refused_with_what_to_give(part: Image, told: str) -> None:
    makers: list[Callable[[], Message]] = [
        lambda: Message.user("see", part),
        lambda: Message.assistant(part),
        lambda: Message.tool("c", (Text("see"), part)),
    ]
    for make in makers:
        with pytest.raises(InputError) as caught:
            make()
        assert str(caught.value).startswith(told)


@pytest.mark.parametrize("part", [each for each, _ in UNSENDABLE])
def test_a_saved_history_with_such_a_picture_can_still_be_read(part: Image) -> None:
    history = [Message("user", (part,)), Message("tool", (ToolResult("c", output=(part,)),))]
    assert from_json(to_json(history)) == history
    assert pickle.loads(pickle.dumps(history)) == history


@pytest.mark.parametrize(
    "part",
    [
        Image(url="data:image/png;base64,QUJD"),
        Image(file_id="f", media_type="image/png"),
        File(data="QUJD"),
        File(extra_json='{"anthropic":{"source":{"type":"content","content":[]}}}'),
    ],
)
def test_any_other_picture_or_file_is_taken(part: Image | File) -> None:
    assert Message.user(part).parts == (part,)


@pytest.mark.parametrize("make", [Image.from_bytes, File.from_bytes])
def test_bytes_that_are_none_are_refused(make: Callable[[Any, str], object]) -> None:
    with pytest.raises(InputError, match=r"is empty; give exactly one of url, data"):
        make(b"", "image/png")
    for wrong in ("QUJD", Path("a.png"), None):
        with pytest.raises(
            InputError, match=rf"from_bytes: data must be bytes, not {type(wrong).__name__}; .*\.read_bytes\(\)"
        ):
            make(wrong, "image/png")
    assert make(bytearray(b"ABC"), "image/png") == make(memoryview(b"ABC"), "image/png") == make(b"ABC", "image/png")


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


@pytest.mark.parametrize(
    ("url", "inline"),
    [
        ("data:image/png;base64,QUJD", ("image/png", "QUJD")),
        ("data:text/csv;charset=utf-8;base64,QQ==", ("text/csv;charset=utf-8", "QQ==")),
        ("data:;base64,QQ==", ("", "QQ==")),
        ("data:text/plain,hello", None),
        ("data:image/png;base64", None),
        ("https://example.org/a;base64,QQ==", None),
    ],
)
def test_a_data_url_is_told_from_other_addresses(url: str, inline: tuple[str, str] | None) -> None:
    assert split_data_url(url) == inline
