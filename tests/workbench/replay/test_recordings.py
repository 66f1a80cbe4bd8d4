"""Conversations are read from any of the known forms; what is broken is told with its place, and stops nothing."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tracemalloc
from pathlib import Path

import pytest

from chatstack.workbench.replay.reading.lines import LINE_LIMIT_BYTES
from chatstack.workbench.replay.reading.recordings import BrokenLine, Recording, read_recordings
from chatstack.workbench.replay.reading.sources import sources_from
from tests.workbench.replay.conversations import assistant, conversation, data_file, user, write_lines

ONE = conversation(user("hello"), assistant("hi"))


def read(path: Path, limit_bytes: int = LINE_LIMIT_BYTES) -> list[Recording | BrokenLine]:
    with sources_from([path]) as sources:
        return list(read_recordings(sources, limit_bytes=limit_bytes))


def places(path: Path, limit_bytes: int = LINE_LIMIT_BYTES) -> list[tuple[str, int]]:
    """Whether each item was read or is broken, and the line of it."""
    return [("read" if isinstance(each, Recording) else "broken", each.line) for each in read(path, limit_bytes)]


def only_error(path: Path, limit_bytes: int = LINE_LIMIT_BYTES) -> str:
    (broken,) = read(path, limit_bytes)
    assert isinstance(broken, BrokenLine)
    return broken.error


def test_each_line_of_jsonl_is_a_conversation(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "talks.jsonl", ONE, conversation(user("b"), id="two", model="m"))

    first, second = read(path)

    sizes = [len(line) for line in path.read_bytes().splitlines(keepends=True)]
    file = str(path)
    assert first == Recording({"messages": ONE["messages"]}, "chat", "one", "gpt-4o", file, 1, 0, sizes[0])
    assert second == Recording({"messages": [user("b")]}, "chat", "two", "m", file, 2, 0, sizes[1])


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("one.json", json.dumps(ONE), 1),
        ("one_pretty.json", json.dumps(ONE, indent=2), 1),
        ("list.json", json.dumps([ONE, ONE]), 2),
        ("list_pretty.json", json.dumps([ONE, ONE], indent=1), 2),
        ("messages.json", json.dumps(ONE["messages"]), 1),
        ("messages_pretty.json", json.dumps(ONE["messages"], indent=4), 1),
        ("lines.json", f"{json.dumps(ONE)}\n{json.dumps(ONE)}\n", 2),
        ("no_suffix", f"{json.dumps(ONE)}\n\n{json.dumps(ONE)}", 2),
        ("messages.jsonl", f"{json.dumps(ONE['messages'])}\n", 1),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_every_form_is_read_plain_and_gzipped(tmp_path: Path, name: str, text: str, count: int, zipped: bool) -> None:
    path = tmp_path / (f"{name}.gz" if zipped else name)
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())

    assert [item.body for item in read(path) if isinstance(item, Recording)] == [{"messages": ONE["messages"]}] * count
    assert len(read(path)) == count


def test_gzip_is_told_by_content_and_not_by_name(tmp_path: Path) -> None:
    path = tmp_path / "talks.jsonl"
    path.write_bytes(gzip.compress(json.dumps(ONE).encode()))

    assert places(path) == [("read", 1)]


@pytest.mark.parametrize("name", ["talks.jsonl", "talks.json"])
def test_text_in_utf_16_as_some_shells_redirect_it_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(json.dumps(ONE).encode("utf-16"))

    assert only_error(path) == "text in UTF-16; write it as UTF-8"


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "talks.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(ONE).encode())

    assert places(path) == [("read", 1)]


def test_a_conversation_without_an_id_is_called_by_its_place(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "talks.jsonl", {"messages": [user("a")]})

    (recording,) = read(path)

    assert isinstance(recording, Recording)
    assert (recording.id, recording.model) == ("talks.jsonl:1:0", "")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{broken", "not valid JSON"),
        ("\x00\x01", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("3", "not a conversation: found int; expected a list of messages, or an object with 'messages' or 'input'"),
        ("{}", "not a conversation: found an empty object"),
        ('{"id": 1, "turns": []}', "not a conversation: found an object with 'id', 'turns'; expected"),
        (json.dumps(dict.fromkeys("abcdef")), "found an object with 'a', 'b', 'c', 'd', 'e', ...; expected"),
        ("[]", "an empty list, where a conversation is expected"),
        ('[[], {"input": ""}]', "the conversation has no messages"),
        ('{"messages": null}', "expected a list of messages, got null"),
        ('{"messages": []}', "has no messages"),
        ('{"messages": [7]}', "messages[0]: expected an object, got int"),
        ('{"messages": [{"content": "x"}]}', "messages[0].role: expected text, got null"),
        ('{"messages": [{"role": ["user"]}]}', "messages[0].role: expected text, got list"),
    ],
)
def test_a_broken_line_is_told_with_its_number_and_does_not_stop_the_rest(
    tmp_path: Path, line: str, error: str
) -> None:
    path = write_lines(tmp_path / "talks.jsonl", ONE, line, ONE)

    first, *between, third = read(path)

    assert isinstance(first, Recording)
    assert isinstance(third, Recording)
    assert between
    for broken in between:
        assert isinstance(broken, BrokenLine)
        assert str(broken).startswith(f"{path}:2: ")
        assert error in broken.error


def test_lines_in_a_json_file_are_read_though_the_first_is_broken(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "talks.json", "{broken", ONE, "", ONE)

    assert places(path) == [("broken", 1), ("read", 2), ("read", 4)]


def test_a_file_of_lines_is_no_document_though_it_looks_like_one(tmp_path: Path) -> None:
    path = tmp_path / "talks.jsonl"
    path.write_text(json.dumps(ONE, indent=1))

    assert places(path)[:2] == [("broken", 1), ("broken", 2)]


def test_a_line_over_the_limit_is_an_error_for_that_line(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "talks.jsonl.gz", ONE, conversation(user("x" * 3_000_000)), ONE)

    assert places(path, limit_bytes=1_000) == [("read", 1), ("broken", 2), ("read", 3)]


def test_a_document_over_the_limit_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "talks.json"
    path.write_text(json.dumps([ONE] * 100, indent=1))

    assert only_error(path, limit_bytes=1_000) == "longer than 1,000 bytes"


@pytest.mark.parametrize(
    "begin", ["{\n", "[\n", '{"a": [\n', "{broken}\n"], ids=["object", "list", "nested", "broken first line"]
)
def test_a_document_of_very_many_short_lines_takes_a_few_times_its_own_memory(tmp_path: Path, begin: str) -> None:
    path = tmp_path / "talks.json.gz"
    size_bytes = 3_000_000
    path.write_bytes(gzip.compress(begin.encode() + b"aa\n" * (size_bytes // 3)))

    tracemalloc.start()
    try:
        error = only_error(path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert error.startswith("not valid JSON: ")
    assert peak_bytes < 3 * size_bytes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["talks.json.gz", "talks.jsonl.gz"])
@pytest.mark.parametrize("value", ["[],", '{"":0},', "1,"])
def test_more_small_values_than_could_be_held_are_one_error(tmp_path: Path, name: str, value: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"[" + value.encode() * 3_100_000 + b"0]", compresslevel=1))

    assert only_error(path) == "holds more than 3,000,000 values"


def test_commas_and_brackets_in_text_are_no_values(tmp_path: Path) -> None:
    text = '1,[{\\"' * 1_100_000
    path = write_lines(tmp_path / "talks.jsonl", conversation(user(text)))

    (recording,) = read(path)

    assert isinstance(recording, Recording)
    assert recording.body == {"messages": [user(text)]}


def test_text_that_never_ends_is_looked_at_once(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "talks.jsonl", '["' + '\\",' * 3_100_000)

    assert only_error(path).startswith("not valid JSON: ")


def test_a_gzip_file_that_was_cut_gives_what_came_before(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "talks.jsonl.gz", ONE, ONE)
    path.write_bytes(path.read_bytes()[:-9])

    first, *_, last = read(path)

    assert isinstance(first, Recording)
    assert isinstance(last, BrokenLine)
    assert last.error.startswith("reading stopped here: ")


def test_an_empty_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "talks.jsonl"
    path.write_bytes(b"\n  \n")

    assert only_error(path) == "holds nothing"


def test_progress_counts_the_bytes_of_all_files(tmp_path: Path) -> None:
    files = [write_lines(tmp_path / "a.jsonl", ONE, ONE), write_lines(tmp_path / "b.jsonl.gz", ONE)]
    told: list[int] = []

    with sources_from(files) as sources:
        list(read_recordings(sources, advance=told.append))

    assert told == sorted(told)
    assert 0 < told[0] < told[-1]
    assert told[-1] == sum(source.size_bytes for source in sources) == sum(path.stat().st_size for path in files)


def test_of_what_was_recorded_only_what_replaying_needs_is_kept(tmp_path: Path) -> None:
    beside = {"tools": [{"type": "function", "function": {"name": "look"}}], "usage": [{"prompt_tokens": 1}], "n": 1}
    path = write_lines(tmp_path / "talks.jsonl", {**ONE, **beside, "system": None})

    (recording,) = read(path)

    assert isinstance(recording, Recording)
    assert recording.body == {"messages": ONE["messages"], "tools": beside["tools"]}
    assert pickle.loads(pickle.dumps(recording)) == recording


def test_a_list_may_hold_conversations_of_every_form(tmp_path: Path) -> None:
    asked = {"role": "user", "content": [{"type": "input_text", "text": "hello"}]}
    bodies = [
        ONE,
        {"system": "Be brief.", "messages": [user("hello")]},
        {"input": [asked], "model": "gpt-5"},
        {"input": "hello"},
        [asked],
        [{"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}],
        {"type": "log", "input": [asked]},
        {"type": "log", "messages": [user("hello")]},
    ]
    forms = ["chat", "messages", *["responses"] * 5, "chat"]
    path = tmp_path / "talks.json"
    for first in range(len(bodies)):
        path.write_text(json.dumps([*bodies[first:], *bodies[:first]]))

        items = [item for item in read(path) if isinstance(item, Recording)]

        assert [item.form for item in items] == [*forms[first:], *forms[:first]]
        assert all(("input" if item.form == "responses" else "messages") in item.body for item in items)


def test_a_bare_list_of_responses_items_is_one_conversation(tmp_path: Path) -> None:
    call: dict[str, object] = {"type": "custom_tool_call", "call_id": "c", "name": "look", "input": "sky"}
    path = tmp_path / "talks.json"
    path.write_text(json.dumps([call, {"type": "custom_tool_call_output", "call_id": "c", "output": "blue"}]))

    (recording,) = read(path)

    assert isinstance(recording, Recording)
    assert recording.form == "responses"


def test_standard_input_is_read_like_a_file_whatever_its_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[str, list[type]]] = [
        (json.dumps(ONE, indent=1), [Recording]),
        (f"{json.dumps(ONE)}\n{{broken\n{json.dumps(ONE)}", [Recording, BrokenLine, Recording]),
    ]
    for text, kinds in shapes:
        for data in (text.encode(), gzip.compress(text.encode())):
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

            with sources_from([Path("-")]) as sources:
                items = list(read_recordings(sources))
                again = list(read_recordings(sources))

            assert items == again
            assert [type(item) for item in items] == kinds
            assert {item.file for item in items} == {"stdin"}
            assert all(str(item).startswith("stdin:2: ") for item in items if isinstance(item, BrokenLine))


@pytest.mark.data
def test_the_recorded_sets_are_read_without_an_error() -> None:
    counts = {
        name: places(data_file(f"{name}.dev.jsonl.gz"))
        for name in ("tau_airline_gpt4o", "tau2_activegraph", "swe_gemini3_mini")
    }

    assert {name: len(found) for name, found in counts.items()} == {
        "tau_airline_gpt4o": 100,
        "tau2_activegraph": 16,
        "swe_gemini3_mini": 255,
    }
    assert {kind for found in counts.values() for kind, _ in found} == {"read"}


@pytest.mark.parametrize(
    ("name", "beginning", "told"),
    [
        ("a.jsonl.zst", b"\x28\xb5\x2f\xfd", "compressed by zstd; decompress it, or use gzip"),
        ("a.json.bz2", b"BZh9", "compressed by bzip2; decompress it, or use gzip"),
        ("a.ndjson.xz", b"\xfd7zXZ\x00", "compressed by xz; decompress it, or use gzip"),
        ("a.json", b"PK\x03\x04", "a zip archive; unpack it, or use gzip"),
        ("a.jsonl", b"PAR1", "a Parquet file; write it as JSONL"),
    ],
)
def test_a_file_that_is_packed_in_another_way_is_told_also_in_a_folder(
    tmp_path: Path, name: str, beginning: bytes, told: str
) -> None:
    (tmp_path / name).write_bytes(beginning + b"\x00\n" * 9)

    with sources_from([tmp_path]) as sources:
        assert [str(each) for each in read_recordings(sources)] == [f"{tmp_path / name}:1: {told}"]
